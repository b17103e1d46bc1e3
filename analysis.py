"""What answered queries cost; the same as the command `pate analysis`."""

from pate_tf.cli import analysis

if __name__ == "__main__":
    analysis.run()
