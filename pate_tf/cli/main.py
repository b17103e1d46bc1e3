"""Train a model on private records with differential privacy, so that you may publish the model.

pate computes sums of the records' features, or votes of models trained on parts of the records. It
adds noise to these sums or votes, uses the result to label public inputs, and trains a student on
the labels. The cost of every release is recorded in a ledger before noise is drawn. The student
comes with a privacy statement and a report. The records can be in one place, or in silos of several
data holders who never share them. Epsilon limits what anybody can learn about one person: a smaller
epsilon protects better.

usage: pate COMMAND [--flag=value ...]
       pate COMMAND --help
"""

# Only the module of the chosen subcommand is imported, so `pate --help` imports no other packages.
import difflib
import functools
import importlib
import os
import pathlib
import sys
import warnings
from collections.abc import Mapping
from typing import Final

from pate_tf.cli import stopping
from pate_tf.core.environment import NO_MEMORY

# Descriptions of the commands, in the order of use. Their modules are `pate_tf.cli.NAME_command`.
COMMANDS: Final[Mapping[str, str]] = {
    "start": "asks a few questions, drafts the schema, and starts a first run",
    "plan": "compares methods and mechanisms for an epsilon; reads no data",
    "run": "runs all steps: from two files to a published student",
    "schema": "drafts the schema of a table from its public file",
    "teachers": "trains the teachers on the private data",
    "student": "releases labels, trains a student on them, and writes a statement",
    "analysis": "computes the cost of a run or a ledger; verifies a statement",
    "predict": "applies a published student to a file, or evaluates it",
    "audit": "checks a run before publication and writes a report to sign",
    "silo": "answers public queries for one of several data holders, within a budget",
    "aggregator": "adds up silos' sums or votes with secret sharing",
    "coordinator": "queries silos, trains a student on the answers, and publishes it",
    "dssgd": "trains one model with several participants, by selective SGD",
}

# Advice for names that users may try although no such command exists.
INSTEAD: Final[Mapping[str, str]] = {
    "evaluate": "`pate predict` without --output evaluates a student",
    "report": "`pate run` and `pate audit run` write the report to TRAIN_DIR/released/report.html",
    "test": "`pate predict` without --output evaluates a student",
    "train": "`pate run` runs all steps, `pate teachers` and `pate student` run one step each",
}

EXAMPLE: Final = """
Your own table:   pate start
Without any data: pate run --dataset=digits --epsilon=2 --method=feature_sums
Shell completion: eval "$(pate completion bash)", or zsh"""

SHELLS: Final = ("bash", "zsh")


def run_command(name: str) -> None:
    """Runs a command with the flags of this process.

    If the command's module has a function `run`, this function is called. Otherwise, `define` and
    `main` are called. If the first argument is `status` and the module has a `STATUS`, the status
    is printed instead. The module's `FLAG_OF_ARGUMENT` maps arguments to flags with a different
    name. A flag of the form `module:function` can name a function in the working directory.
    """
    sigterm = stopping.end_on_sigterm()
    stopping.end_without_memory()
    sys.path.append(os.getcwd())  # last, so that other modules have priority
    if any(option.startswith("error") for option in sys.warnoptions):
        # Warnings of libraries must not become errors in this process or in its child processes.
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
    except (ImportError, MemoryError, RuntimeError, SystemError) as error:
        is_known = isinstance(error, MemoryError) or any(text in str(error) for text in NO_MEMORY)
        if not is_known:
            raise
        print("error: out of memory", file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:  # raised by Ctrl-C during imports
        print(f"error: stopped; {stopping.RESUMES}", file=sys.stderr)
        raise SystemExit(stopping.INTERRUPTED) from None
    finally:
        if sigterm.is_set():
            raise SystemExit(stopping.TERMINATED)


def completion(shell: str) -> str:
    """Returns a shell script that completes the names of commands and flags."""
    import jinja2
    from absl import flags

    commands = {}
    for name in COMMANDS:
        module = importlib.import_module(f"pate_tf.cli.{name}_command")
        before = set(flags.FLAGS)
        if not hasattr(module, "run"):  # modules with `run` have subcommands
            module.define()
        commands[name] = sorted(set(flags.FLAGS) - before)
        for flag in commands[name]:
            delattr(flags.FLAGS, flag)
    text = pathlib.Path(__file__).with_name("templates").joinpath("completion.sh").read_text()
    return str(jinja2.Template(text, trim_blocks=True).render(commands=commands, shell=shell))


def run() -> None:
    """Runs the subcommand in the first argument, which parses the remaining arguments.

    The subcommand also determines the exit code.
    """
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name.lstrip("-") in ("help", "h", "helpfull", "helpshort"):
        print(__doc__)
        for command, about in COMMANDS.items():
            print(f"  {command:<12} {about}")
        print(EXAMPLE)
        return
    if name == "--version":
        from pate_tf import __version__

        print(f"pate {__version__}")
        return
    if name == "completion":
        shell = " ".join(sys.argv[2:])
        if shell not in SHELLS:
            print(f"error: add a shell: pate completion {'|'.join(SHELLS)}", file=sys.stderr)
            raise SystemExit(stopping.FLAG_ERROR)
        print(completion(shell))
        return
    if name not in COMMANDS:
        advice = f"the commands are {', '.join(COMMANDS)}"
        for nearest in difflib.get_close_matches(name, COMMANDS, n=1):
            advice = f"did you mean `pate {nearest}`?"
        advice = INSTEAD.get(name, advice)
        print(f"error: pate has no command {name!r}: {advice}", file=sys.stderr)
        raise SystemExit(stopping.FLAG_ERROR)
    sys.argv[:2] = [f"pate {name}"]
    run_command(name)


if __name__ == "__main__":
    run()
