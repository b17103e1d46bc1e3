"""Defaults that help, docstrings and pages name are those of the code."""

import ast
import re
from collections.abc import Iterator

import pytest
from code_blocks import DOCS
from script_processes import REPOSITORY

from pate_tf.accounting.planning import ROUNDS, ROUNDS_LEAD
from pate_tf.core.dataset import Dataset
from pate_tf.core.settings import described
from pate_tf.models.catalogue import default_model
from pate_tf.release.plan import DEFAULT_NUM_QUERIES, LabelSettings
from pate_tf.representations.catalogue import default_of_sums, default_of_teachers
from pate_tf.selective_sgd.settings import Settings as Sgd
from pate_tf.students.config import TRAINING, StudentSettings
from pate_tf.students.kinds import kind_of
from pate_tf.teachers.run_folder import DEFAULT_NUM_TEACHERS, RECORDS_A_CLASS, RECORDS_A_TEACHER
from pate_tf.teachers.settings import (
    BATCH_SIZE,
    FEWEST_STEPS,
    LEARNING_RATE,
    PASSES,
)
from pate_tf.teachers.teachers import OF_IMAGES

SOURCES = sorted((REPOSITORY / "pate_tf").rglob("*.py"))
NUMBER = re.compile(r"Default:[^.;]*?\b(\d[\d,._]*)")
LITERAL = re.compile(r"Default: (\d[\d.,_]*\d|\d|\"[\w+]+\"|True|False|None)(?=[.;, \n]|$)")


def typed_in(node: ast.expr) -> str:
    """What a text holds that is not computed."""
    if isinstance(node, ast.JoinedStr):
        return "".join(
            part.value if isinstance(part, ast.Constant) else "{}" for part in node.values
        )
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def numbers_in_help(source: str) -> list[str]:
    """Numbers that the help of a flag or setting has typed in as a default."""
    return [
        found[1]
        for call in ast.walk(ast.parse(source))
        if isinstance(call, ast.Call)
        for text in (*call.args, *(keyword.value for keyword in call.keywords))
        for found in NUMBER.finditer(typed_in(text))
    ]


def test_help_computes_its_defaults():
    found = {
        path.name: numbers for path in SOURCES if (numbers := numbers_in_help(path.read_text()))
    }
    assert found == {}
    assert numbers_in_help('setting(None, help="How many. Default: 8 " f"for {x}.")') == ["8"]
    assert numbers_in_help('setting(None, help=f"How many. Default: {ROUNDS}.")') == []


def test_help_names_the_numbers_of_the_supervised_student():
    for name in TRAINING:
        number = getattr(kind_of("supervised"), name)
        assert f"{number:g} for supervised" in described(StudentSettings)[name].help


def wrong_defaults(source: str) -> Iterator[str]:
    """Arguments whose docstring names another literal than their signature."""
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        text, arguments = ast.get_docstring(function) or "", function.args
        positional = [*arguments.posonlyargs, *arguments.args]
        defaults = dict(
            zip(
                [one.arg for one in positional[len(positional) - len(arguments.defaults) :]]
                + [one.arg for one in arguments.kwonlyargs],
                [*arguments.defaults, *arguments.kw_defaults],
                strict=True,
            )
        )
        for name, default in defaults.items():
            entry = re.search(rf"^    {name}: ((?:.|\n     +)*)", text, re.MULTILINE)
            literal = entry and LITERAL.search(entry[1])
            is_fixed = isinstance(default, ast.Constant) and default.value is not None
            if (
                literal
                and is_fixed
                and ast.literal_eval(literal[1].replace(",", "")) != default.value
            ):
                yield f"{function.name}({name}): {literal[1]}"


def test_docstrings_name_the_defaults_of_signatures():
    wrong = {path.name: found for path in SOURCES if (found := [*wrong_defaults(path.read_text())])}
    assert wrong == {}
    invented = 'def f(*, b=2):\n    """F.\n\n    Args:\n        b: it. Default: 3."""'
    assert [*wrong_defaults(invented)] == ["f(b): 3"]


def dataset(kind: str, *shape: int) -> Dataset:
    return Dataset(
        name=kind,
        kind=kind,
        input_shape=shape,
        value_range=(0.0, 1.0),
        num_classes=2,
        pool_size=9,
    )


IMAGES, TABLE = dataset("image", 8, 8, 1), dataset("tabular", 2)


# Page, and a sentence of it with what the code has.
@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        (
            "explanation/feature_sums.md",
            f"more than {ROUNDS_LEAD:g} times as many records as this noise, there are "
            f"{'sixteen' if ROUNDS == 16 else ROUNDS} rounds",
        ),
        (
            "how-to/own_model.md",
            f"the default is `{OF_IMAGES}` for images and `{default_model(TABLE)}` for all else",
        ),
        (
            "how-to/own_model.md",
            f"the network is `{default_model(IMAGES)}` for images",
        ),
        (
            "how-to/first_release.md",
            f"{PASSES} passes over the teacher's own records, at least {FEWEST_STEPS} steps",
        ),
        ("how-to/first_release.md", f"`--batch_size={BATCH_SIZE}`"),
        ("how-to/first_release.md", f"`--learning_rate={LEARNING_RATE}`"),
        ("how-to/first_release.md", f"`--nb_teachers={DEFAULT_NUM_TEACHERS}`"),
        ("how-to/first_release.md", f"{DEFAULT_NUM_QUERIES} unless you say more"),
        (
            "how-to/small_teachers.md",
            f"| `{default_of_teachers(IMAGES)}` | grey images (the default)",
        ),
        (
            "how-to/small_teachers.md",
            f"| `{default_of_teachers(TABLE)}` | tables (the default of teachers",
        ),
        (
            "how-to/small_teachers.md",
            f"| `{default_of_sums(TABLE)}` | tables (the default of feature sums)",
        ),
        (
            "how-to/small_teachers.md",
            f"one teacher for every {RECORDS_A_TEACHER} records, or for every {RECORDS_A_CLASS} "
            "records",
        ),
        ("reference/commands.md", f"`{LabelSettings.method}` (default)"),
        ("how-to/shared_training.md", f"| theta_u | {Sgd.upload:g} |"),
        ("how-to/shared_training.md", f"| theta_d | {Sgd.download:g} |"),
        (
            "how-to/shared_training.md",
            f"SGD, {Sgd.learning_rate:g} falling to a tenth, {Sgd.batch_size}, {Sgd.local_epochs} ",
        ),
    ],
)
def test_a_page_names_the_default_of_the_code(page, sentence):
    assert sentence in " ".join((DOCS / page).read_text().split())
