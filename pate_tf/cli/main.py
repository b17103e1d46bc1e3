"""The command `pate`: runs the subcommand that its first argument names.

Only the module of that subcommand is imported, so that `pate --help` needs no other package.
"""

import functools
import importlib
import os
import sys
import warnings
from collections.abc import Mapping
from typing import Final

from pate_tf.cli import stopping
from pate_tf.core.environment import NO_MEMORY

FLAG_ERROR = 2
INTERRUPTED = 130  # as in `pate_tf.cli.command_line`

ABOUT: Final = """\
Learn a public classifier from private data, with a stated privacy cost.

PATE trains teachers on disjoint parts of the private records and releases noisy labels that they
give to public inputs; a student that learns from these labels alone may be published. Epsilon
bounds how far one private record can change what is released: the smaller, the more private.

usage: pate COMMAND [--flag=value ...]
       pate COMMAND --help
"""

# By name, in the order of use: what it does. Its module is `pate_tf.cli.NAME_command`.
COMMANDS: Final[Mapping[str, str]] = {
    "plan": "compares methods and mechanisms for an epsilon; reads no data",
    "run": "does all of it: from two files to a published student",
    "schema": "drafts the schema of a table from its public file",
    "teachers": "trains the teachers on the private data",
    "student": "releases labels, trains a student on them, writes its statement",
    "analysis": "says what a run or a ledger spent; checks a statement",
    "predict": "applies a published student to a file, or measures it",
    "audit": "tries to break what a mechanism or a run claims; a page to sign",
    "silo": "answers public queries for one of several holders, within its budget",
    "aggregator": "adds up silos' sums or votes under secret sharing",
    "coordinator": "asks silos, trains a student on the answers, writes it",
    "dssgd": "trains one model of several participants, by selective SGD",
}

# What people type for a command that is called otherwise.
INSTEAD: Final[Mapping[str, str]] = {
    "evaluate": "`pate predict` without --output measures a student",
    "test": "`pate predict` without --output measures a student",
    "train": "`pate run` does all, `pate teachers` and `pate student` do one step each",
}

EXAMPLE: Final = """
First example, with data that need no download; everything lands in runs/digits-100:
  pate plan     --epsilon=5 --nb_teachers=100 --nb_labels=10
  pate teachers --dataset=digits --nb_teachers=100
  pate student  --dataset=digits --nb_teachers=100 --epsilon=5
  pate analysis --train_dir=runs/digits-100"""


def run_command(name: str) -> None:
    """Runs a command with the flags of this process: its module's `run`, else `define` and `main`.

    With the argument `status` a module that has a `STATUS` prints that instead. `FLAG_OF_ARGUMENT`
    of the module has the flags that are not called what they set. A user's `module:function` may
    lie in the working directory.
    """
    stopping.end_on_sigterm()
    stopping.end_without_memory()
    sys.path.append(os.getcwd())  # at the end: it stands for no other module
    if any(option.startswith("error") for option in sys.warnoptions):
        # A warning of a library is no error of ours, in child processes either.
        os.environ.pop("PYTHONWARNINGS", None)
        sys.warnoptions.clear()
        warnings.simplefilter("ignore")
    try:
        module = importlib.import_module(f"pate_tf.cli.{name}_command")
        is_status = sys.argv[1:2] == ["status"] and hasattr(module, "STATUS")
        if hasattr(module, "run") and not is_status:
            module.run()
            return
        from absl import flags

        from pate_tf.cli import command_line

        if is_status:
            del sys.argv[1]
            define = functools.partial(command_line.define_status, module.STATUS)
            main = functools.partial(command_line.print_status, module.STATUS)
        else:
            define, main = module.define, module.main
        renamed = getattr(module, "FLAG_OF_ARGUMENT", {})
        guarded = command_line.guarded(main, flags.FLAGS, renamed)
        command_line.run(guarded, define, module.__doc__)
    except (ImportError, RuntimeError) as error:
        if not any(text in str(error) for text in NO_MEMORY):
            raise
        print("error: out of memory", file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt as error:  # while modules are imported, or of SIGTERM
        if error.args:
            raise SystemExit(stopping.TERMINATED) from None
        print("error: stopped; the same command resumes from here", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None


def run() -> None:
    """Runs the subcommand that the first argument names, with the arguments that follow it.

    Flags and exit codes are the subcommand's.
    """
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name.lstrip("-") in ("help", "h", "helpfull", "helpshort"):
        print(ABOUT)
        for command, about in COMMANDS.items():
            print(f"  {command:<12} {about}")
        print(EXAMPLE)
        return
    if name == "--version":
        from pate_tf import __version__

        print(f"pate {__version__}")
        return
    if name not in COMMANDS:
        advice = INSTEAD.get(name, f"the commands are {', '.join(COMMANDS)}")
        print(f"error: pate has no command {name!r}: {advice}", file=sys.stderr)
        raise SystemExit(FLAG_ERROR)
    sys.argv[:2] = [f"pate {name}"]
    run_command(name)


if __name__ == "__main__":
    run()
