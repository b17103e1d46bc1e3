"""The command `pate dssgd`, as `python -m pate_tf.selective_sgd`."""

import runpy

if __name__ == "__main__":
    runpy.run_module("pate_tf.cli.selective_sgd", run_name="__main__", alter_sys=True)
