"""A command is flags, one call of `runs/`, and printing; messages speak of flags here alone."""

import ast
import dataclasses
import re
import types

import pytest
from command_helpers import end, flag_values
from script_processes import REPOSITORY

from pate_tf.cli import analysis, command_line, flags, student, teachers
from pate_tf.core.settings import KEY

CLI = REPOSITORY / "pate_tf" / "cli"
# What a command may take from the rooms below `runs/`: plain values.
VALUES = {
    *("pate_tf.queries.config", "pate_tf.students.config", "pate_tf.analysis.guarantees"),
    *("pate_tf.teachers.settings", "pate_tf.queries.strategies"),
}
ROOMS = (
    *("data", "models", "teachers", "aggregation", "students", "queries", "serving", "ledger"),
    "analysis",
)
COMMANDS = ("student", "teachers", "analysis")
TREES = {name: ast.parse((CLI / f"{name}.py").read_text()) for name in COMMANDS}


def imports(tree: ast.AST) -> dict[str, str]:
    """From the name that a file uses to the module or object that it stands for."""
    return {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


@pytest.mark.parametrize("name", TREES)
def test_a_command_takes_nothing_but_plain_values_from_below(name):
    for full in imports(TREES[name]).values():
        room = full.split(".")[1]
        assert room not in ROOMS or {full, full.rpartition(".")[0]} & VALUES, full


def runs_called(tree: ast.AST) -> list[str]:
    """The functions of `runs/` that a file calls, in the order of its lines; no classes."""
    names = imports(tree)
    called = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            module, _, attribute = ast.unparse(node.func).partition(".")
            full = names.get(module, "") + (f".{attribute}" if attribute else "")
            last = full.rpartition(".")[2]
            if full.startswith("pate_tf.api.") and last[:1].islower():
                called.append(full)
    return called


def test_each_command_is_one_call_of_runs():
    # The comparison and the calibration are commands of their own behind the same scripts; a worker
    # only serves.
    assert sorted(runs_called(TREES["student"])) == [
        "pate_tf.api.student_run.compare",
        "pate_tf.api.student_run.run",
    ]
    assert sorted(runs_called(TREES["teachers"])) == [
        "pate_tf.api.teacher_run.run",
        "pate_tf.api.teacher_run.serve_worker",
    ]
    assert sorted(runs_called(TREES["analysis"])) == [
        "pate_tf.api.analysis.run",
        "pate_tf.api.calibration.calibrate",
        "pate_tf.api.calibration.compare",
    ]


@pytest.mark.parametrize(
    ("module", "message", "expected"),
    [
        (student, "pool_size: expected 1", "stdnt_share: expected 1"),
        (student, "num_queries: expected 1", "queries: expected 1"),
        (student, "rounds: expected 1", "query_rounds: expected 1"),
        (student, "strategy: expected one of", "query_strategy: expected one of"),
        (student, "replace_budget: expected", "new_budget_i_understand: expected"),
        (student, "num_teachers: expected 3", "nb_teachers: expected 3"),
        (student, "evaluate_on: expected", "evaluate_on: expected"),
        (teachers, "num_classes: digits has 10", "nb_labels: digits has 10"),
        (teachers, "num_teachers: expected", "nb_teachers: expected"),
        (analysis, "budget: expected it", "gate_budget: expected it"),
        (
            analysis,
            "votes: expected; give `num_classes`",
            "votes: expected; give --nb_labels",
        ),
        (student, "no colon pool_size", "no colon pool_size"),
    ],
)
def test_arguments_are_told_as_flags(module, message, expected, capsys):
    def main() -> None:
        raise ValueError(message)

    table = module.FLAG_OF_ARGUMENT
    assert end(command_line.guarded(main, flag_values(), table), ["script"]) == 1
    assert capsys.readouterr().err == f"error: {expected}\n"


def test_every_flag_of_the_tables_exists():
    for module, flags_of in (
        (student, student),
        (teachers, teachers),
        (analysis, analysis),
    ):
        written = "".join(source(each) for each in (flags_of, flags, flags))
        defined = set(re.findall(r'flags\.DEFINE_\w+\(\s*"(\w+)"', written))
        for kind in vars(module).values():
            if isinstance(kind, type) and any(KEY in one.metadata for one in fields_of(kind)):
                defined |= set(flags.names_of(kind))
        assert set(module.FLAG_OF_ARGUMENT.values()) <= defined


def fields_of(kind: type) -> tuple[dataclasses.Field, ...]:
    return dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()


def source(module: types.ModuleType) -> str:
    return (CLI / f"{module.__name__.rpartition('.')[2]}.py").read_text()


LIBRARY = [
    path
    for path in sorted((REPOSITORY / "pate_tf").rglob("*.py"))
    if path.parent != CLI and path.name != "__init__.py"
]
FLAGS_ALONE = {
    flag
    for module in (student, teachers, analysis)
    for flag in module.FLAG_OF_ARGUMENT.values()
    if flag not in ("queries", "query_strategy")  # also what a value or a statement calls it
} | {"teacher_id", "insecure_seed", "lap_scale", "teachers_dir"}


@pytest.mark.parametrize("path", LIBRARY, ids=lambda path: path.stem)
def test_errors_of_the_library_name_no_flag(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Raise) and node.exc is not None:
            texts = [
                part.value
                for part in ast.walk(node.exc)
                if isinstance(part, ast.Constant) and isinstance(part.value, str)
            ]
            assert not re.search(r"--[a-z]", " ".join(texts)), texts
            for text in texts[:1]:
                assert text.partition(":")[0] not in FLAGS_ALONE, text
