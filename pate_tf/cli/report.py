"""Writes one page about a run for the person who signs: `pate report --train_dir=runs/mnist-250`.

The privacy statement, what was charged and when, accuracy and audits, in one HTML file that loads
nothing from elsewhere. It goes to the run's `released/` folder: nothing in it is sensitive.
"""

import pathlib

from absl import flags

from pate_tf.cli import command_line
from pate_tf.core import artifacts

FLAGS = flags.FLAGS


def define() -> None:
    """Defines the flags of this command."""
    flags.DEFINE_string("train_dir", None, "Folder of the run.")


def main() -> None:
    """Reads the flags, writes the page."""
    from pate_tf.audit.report import PAGE, report_page

    if FLAGS.train_dir is None:
        raise command_line.FlagValueError("train_dir: expected the folder of a run, got none")
    root = pathlib.Path(FLAGS.train_dir)
    page = report_page(root)
    path = root / artifacts.RELEASED / PAGE
    artifacts.write_text(path, page)
    print(f"written: {path} (publishable)")


def run() -> None:
    """Runs the command with the flags of this process."""
    command_line.run(command_line.guarded(main, FLAGS), define, __doc__)


if __name__ == "__main__":
    run()
