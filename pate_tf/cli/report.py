"""Writes one page about a run for the person who signs: `pate report --train_dir=runs/mnist-250`.

Statement, what was released and when, budget, what epsilon means, accuracy and audits, in one HTML
file that loads nothing from elsewhere and prints to two sheets. The public page holds nothing
sensitive.
"""

import pathlib

from absl import flags

from pate_tf.cli import command_line
from pate_tf.core import artifacts

FLAGS = flags.FLAGS
PAGE = "privacy_report.html"


def define() -> None:
    """Defines the flags of this command."""
    flags.DEFINE_string("train_dir", None, "Folder of the run.")
    flags.DEFINE_boolean(
        "sensitive", False, "Add what may not be published: data-dependent costs, audits in full."
    )
    flags.DEFINE_string(
        "page",
        None,
        f"Where to write it. Default: {PAGE} in the run's released/ folder, with --sensitive in "
        f"its sensitive/ folder.",
    )


def main() -> None:
    """Reads the flags, writes the page."""
    from pate_tf.audit.report import report_page

    if FLAGS.train_dir is None:
        raise command_line.FlagValueError("train_dir: expected the folder of a run, got none")
    root, sensitive = pathlib.Path(FLAGS.train_dir), FLAGS.sensitive
    if FLAGS.page is not None:
        path = pathlib.Path(FLAGS.page)
        if sensitive and artifacts.is_within(path, artifacts.RELEASED):
            raise command_line.FlagValueError(
                f"page: expected a path outside of released/ with --sensitive, got {path}"
            )
        artifacts.check_can_hold_files(path.parent)
        path.parent.mkdir(parents=True, exist_ok=True)
    else:
        folder = root / (artifacts.SENSITIVE if sensitive else artifacts.RELEASED)
        path = (folder if folder.is_dir() else root) / PAGE
    artifacts.write_text(path, report_page(root, sensitive=sensitive), private=sensitive)
    print(f"written: {path}{' (SENSITIVE)' if sensitive else ' (publishable)'}")


def run() -> None:
    """Runs the command with the flags of this process."""
    command_line.run(command_line.guarded(main, FLAGS), define, __doc__)


if __name__ == "__main__":
    run()
