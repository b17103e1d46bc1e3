"""Teachers, a student and the analysis on data that needs no download, in about a minute.

    pate demo [FOLDER]

Trains 100 teachers on the digits that scikit-learn ships, asks them for 100 noisy labels, trains a
student on those and prints what it cost. Everything lands in FOLDER, by default `runs/demo`.
"""

import subprocess
import sys

DATA = ("--dataset=digits", "--nb_teachers=100")
FOLDER = "runs/demo"


def commands(folder: str) -> list[tuple[str, str, list[str]]]:
    """Returns the steps: the command's name, its module and its flags."""
    return [
        ("pate teachers", "teachers", [*DATA, "--model=cnn", f"--train_dir={folder}"]),
        (
            "pate student",
            "student",
            [
                *DATA,
                f"--teachers_dir={folder}",
                f"--train_dir={folder}",
                "--queries=100",
                "--lap_scale=10",
            ],
        ),
        ("pate analysis", "analysis", [f"--train_dir={folder}"]),
    ]


def folder_argument(description: str | None, default: str) -> str:
    """Returns the folder that this process' only argument names; prints help and ends for others.

    Args:
        description: what `--help` prints.
        default: folder without an argument.
    """
    arguments = sys.argv[1:]
    if len(arguments) > 1 or any(argument.startswith("-") for argument in arguments):
        wants_help = arguments in (["--help"], ["-h"], ["-help"])
        print(description if wants_help else f"error: expected a folder, got {' '.join(arguments)}")
        raise SystemExit(0 if wants_help else 2)
    return (arguments or [default])[0]


def run() -> None:
    """Runs the steps until one fails, and exits with its code."""
    for name, module, flags in commands(folder_argument(__doc__, FOLDER)):
        print(f"\n$ {name} {' '.join(flags)}", flush=True)
        code = subprocess.run([sys.executable, "-m", f"pate_tf.cli.{module}", *flags]).returncode
        if code:
            raise SystemExit(code)


if __name__ == "__main__":
    run()
