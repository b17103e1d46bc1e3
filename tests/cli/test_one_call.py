"""Only messages in `cli/` name flags."""

import ast
import re

import pytest
from command_helpers import end, flag_values
from script_processes import REPOSITORY

from pate_tf.cli import analysis_command, command_line, student_command, teachers_command

CLI = REPOSITORY / "pate_tf" / "cli"


@pytest.mark.parametrize(
    ("module", "message", "expected"),
    [
        (student_command, "pool_size: expected 1", "stdnt_share: expected 1"),
        (student_command, "num_queries: expected 1", "queries: expected 1"),
        (student_command, "strategy: expected one of", "query_strategy: expected one of"),
        (student_command, "replace_budget: expected", "new_budget_i_understand: expected"),
        (teachers_command, "num_teachers: expected", "nb_teachers: expected"),
        (
            analysis_command,
            "votes: expected; give `num_classes`",
            "votes: expected; give --nb_labels",
        ),
        (student_command, "no colon pool_size", "no colon pool_size"),
    ],
)
def test_arguments_are_reported_as_flags(module, message, expected, capsys):
    def main() -> None:
        raise ValueError(message)

    table = module.FLAG_OF_ARGUMENT
    assert end(command_line.guarded(main, flag_values(), table), ["script"]) == 1
    # Dashes are added where an earlier test of this process has defined the flag.
    assert capsys.readouterr().err.replace("error: --", "error: ") == f"error: {expected}\n"


def test_errors_of_the_library_name_no_flag():
    for path in (REPOSITORY / "pate_tf").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())) if path.parent != CLI else ():
            if isinstance(node, ast.Raise) and node.exc is not None:
                texts = [
                    part.value
                    for part in ast.walk(node.exc)
                    if isinstance(part, ast.Constant) and isinstance(part.value, str)
                ]
                assert not re.search(r"--[a-z]", " ".join(texts)), (path, texts)
