"""Asks a few questions, drafts the schema, and starts a first run: `pate start`.

Before you answer yes, the command spends no privacy budget, and shows only the column names and the
number of records of the private table. You can answer every question with a flag, so the command
also runs without a terminal:

  pate start --private=visits.csv --label=diagnosis --public=public.csv --epsilon=1 --yes

The flags of `pate run` are accepted, too. For images, the files are folders.
"""

import contextlib
import pathlib
import shlex
import tempfile
from collections.abc import Callable
from typing import Any

from absl import flags

from pate_tf.cli import command_line, run_command
from pate_tf.core import artifacts
from pate_tf.data import loaded_data, tables
from pate_tf.data.schema import ONE_OWNER, STATE_CLASSES, read_schema, split_names
from pate_tf.statement.privacy_statement import largest_share_of_right_guesses

FLAGS = flags.FLAGS
FLAG_OF_ARGUMENT = run_command.FLAG_OF_ARGUMENT
CHOICES = {0.5: "strong", 1.0: "usual", 4.0: "weak"}  # suggested values of epsilon


def define() -> None:
    """Defines the flags of this command, which include those of `pate run`."""
    flags.DEFINE_boolean("yes", False, "Ask nothing: take all answers from flags and start.")
    for name in ("private", "label", "owner", "public", "schema", "epsilon", "yes"):
        command_line.shown_in_help(name, "flags")
    run_command.define()


def asked(flag: str, question: str, check: Callable[[str], Any]) -> Any:
    """Passes a flag's value, or the user's answer to a question, to `check`; returns the result.

    The question is repeated until the answer passes the check. If the input ended, because the
    command runs in a script, the answer is empty.

    Raises:
        ValueError: if the flag's value, or the empty answer of a script, fails the check.
    """
    is_given = FLAGS[flag].present or FLAGS.yes
    text = str(FLAGS[flag].value or "")
    while True:
        try:
            text = text if is_given else input(f"{question}: ").strip()
        except EOFError:
            print()
            is_given = True
        try:
            return check(text)
        except (ValueError, OSError) as error:
            if is_given:
                raise
            print(error)


def private_source(text: str) -> pathlib.Path:
    """Returns the path of a folder of images, or of a table whose first line has column names.

    Raises ValueError if the first line of the table may be a record instead.
    """
    if not text:
        raise command_line.FlagValueError("private is required: the file of private records")
    path = pathlib.Path(text).expanduser()
    if not path.is_dir():
        tables.check_header(path, [])
    return path


def public_source(text: str, is_folder: bool = False) -> pathlib.Path | None:
    """Returns the path of a readable table, or of a folder; None for an empty answer."""
    path = pathlib.Path(text).expanduser() if text else None
    if path is not None and not is_folder:
        tables.header_of(path)
    elif path is not None and not path.is_dir():
        raise ValueError(f"{path} is not a folder")
    return path


def epsilon_of(text: str) -> float:
    """Returns epsilon. An empty answer means 1, except with --yes, which requires a value."""
    with contextlib.suppress(ValueError):
        if 0.0 < (epsilon := float(text or (0.0 if FLAGS.yes else 1.0))) < float("inf"):
            return epsilon
    raise command_line.FlagValueError("epsilon must be a number above 0, such as 1")


def confirm() -> None:
    """Asks whether the run may spend its epsilon, and exits if the answer is no."""
    more = f", and {FLAGS.evaluate_epsilon} for the estimate" * bool(FLAGS.evaluate_epsilon)
    question = f"\nStart this run? It spends epsilon {FLAGS.epsilon:g}{more}. Type yes or no"
    if asked("yes", question, str).lower() not in ("y", "yes", "true"):
        print("No privacy budget was spent. To start the run later, use the command above.")
        raise SystemExit(0)


def draft_schema(schema: pathlib.Path, public: pathlib.Path | None, **others: Any) -> None:
    """Drafts the schema, and asks for the classes if the public records do not show them.

    Exits if there are no public records, because the user must then complete the schema. For
    `others`, which include `private` and `label`, see `loaded_data.draft_schema`.
    """

    def drafted(classes: str) -> str:
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "draft.toml"
            return loaded_data.draft_schema(public, path, classes=split_names(classes), **others)

    text = drafted(FLAGS.classes or "")
    if public is not None and STATE_CLASSES in text:
        question = f"All classes of {others['label']!r}, separated by commas, such as no,yes"
        text = asked("classes", question, lambda answer: drafted(answer or ","))
    artifacts.write_text(schema, text)
    print("\n", text, sep="")
    if public is None:
        given = {"private": others["private"], "owner": others["owner"], "epsilon": FLAGS.epsilon}
        again = shlex.join(f"--{name}={value}" for name, value in given.items() if value)
        print(
            f"{schema} contains the names of the columns. Without a public file, you must add the "
            "range or the categories of each column from public knowledge, or delete the column. "
            f"Nothing was started. Then run:\n\n$ pate start --schema={schema} {again} --public="
        )
        raise SystemExit(command_line.USER_ERROR)
    print(f"{schema} was drafted from {public}. Review it before a run.")


def about_table(path: pathlib.Path) -> dict[str, Any]:
    """Asks about the columns of a table and drafts its schema. Returns values of flags."""
    names = tables.header_of(path).names
    print(f"Its columns: {', '.join(names)}")

    def columns_of(text: str) -> str | None:
        for name in filter(None, text.split(",")):
            if name not in names:
                raise ValueError(f"There is no column {name!r}; the columns are {', '.join(names)}")
        return text or None

    def owner_of(text: str) -> str | None:
        if "," in text:
            raise ValueError(f"owner: {ONE_OWNER}")
        return columns_of(text)

    schema = pathlib.Path(FLAGS.schema or "schema.toml")
    default = ",".join(read_schema(schema).label_names()) if schema.exists() else None
    empty = f" (empty: {default})" if default else ""
    label = asked("label", f"Column that the model predicts{empty}", columns_of) or default
    if not label:
        raise command_line.FlagValueError("label is required: the column that the model predicts")
    question = "Column that identifies the person of each row (empty: each row is another person)"
    owner = asked("owner", question, owner_of)
    question = "File of public records with these columns (empty: none)"
    public = asked("public", question, public_source)
    if schema.exists():
        print(f"Using the existing {schema}.")
        if default != label:
            raise ValueError(
                f"label: {schema} predicts {default}, not {label}. Choose a new file by --schema."
            )
    else:
        draft_schema(schema, public, private=path, label=label, owner=owner)
    for name in ("label", "classes"):  # the schema contains them
        FLAGS[name].unparse()
    return {"public": public, "schema": schema, "owner": owner}


def main() -> None:
    """Asks all questions, drafts the schema, prints the forecast, and starts the run."""
    question = "File of private records (CSV or Parquet), or folder with a folder for each class"
    answers: dict[str, Any] = {"private": asked("private", question, private_source)}
    if answers["private"].is_dir():
        question = "Folder of public images (empty: none)"
        answers["public"] = asked("public", question, lambda text: public_source(text, True))
    else:
        answers |= about_table(answers["private"])
    if not (FLAGS["epsilon"].present or FLAGS.yes):
        print("Epsilon limits what anybody can learn about one person from the model:")
        for choice, word in CHOICES.items():
            guess = f"{largest_share_of_right_guesses(choice, 0.0):.0%}".replace("%", " %")
            what = f"an attacker's guess about one person is right at most {guess} of the time"
            print(f"  {choice:<4g} {word}: {what} instead of 50 %")
    epsilon = asked("epsilon", "Epsilon (empty: 1)", epsilon_of)
    question = "Epsilon of an accuracy estimate on 10 % of the private records (empty: no estimate)"
    estimate = asked("evaluate_epsilon", question, lambda text: text and epsilon_of(text))
    answers |= {"epsilon": f"{epsilon:g}", "evaluate_epsilon": estimate}
    FLAGS(["pate run", *(f"--{name}={value}" for name, value in answers.items() if value)])
    shown = set(FLAGS) - {"yes", *command_line.ALIASES.values()}
    given = [FLAGS[name].serialize() for name in shown if FLAGS[name].present]
    print(f"\n$ pate run {shlex.join(sorted(given))}\n")
    run_command.main(confirm)
