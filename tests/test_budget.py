"""The reading cost of the code: figures below ceilings, and names that are all listed.

Figures of `budget.json` never rise. `python tests/test_budget.py` lowers them, and writes the lists
of `frozen.json`.
"""

import ast
import collections
import io
import json
import os
import pathlib
import re
import sys
import tempfile
import tokenize

import pytest
from script_processes import run_script

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUDGET, FROZEN = ROOT / "tests" / "budget.json", ROOT / "tests" / "frozen.json"
CEILINGS = {
    "pate_tf": {
        **{"code": 28_500, "functions": 1_900, "forwarders": 125},
        **{"classes": 290, "twins": 0, "files": 175},
        **{"branchy": 0, "module_twins": 0, "parallel": 25, "starred": 3},
    },
    "tests": {"code": 28_000},
    "benchmarks": {"code": 4_000},
    "tools": {"code": 300},
}
MOST = {"names": 28, "commands": 13, "flags": 110}
BRANCHES = (
    *(ast.If, ast.For, ast.While, ast.IfExp, ast.BoolOp),
    *(ast.ExceptHandler, ast.comprehension, ast.With),
)
DEFINITIONS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
QUIET = {
    *(tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENDMARKER, tokenize.COMMENT, tokenize.ENCODING),
}
REGISTRIES = {
    "mechanisms": ("pate_tf.accounting.mechanisms.base", "MECHANISMS"),
    "students": ("pate_tf.students.student_kinds", "CHOICES"),
    "teachers": ("pate_tf.teachers.teacher_kinds", "KINDS"),
    "strategies": ("pate_tf.queries.strategies", "STRATEGIES"),
    "representations": ("pate_tf.representations.catalogue", "KINDS"),
}


def is_docstring(statement):
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def code_lines(text, tree):
    """Counts lines with a token that is neither comment nor docstring."""
    docstrings = set()
    for node in ast.walk(tree):
        if isinstance(node, DEFINITIONS) and node.body and is_docstring(node.body[0]):
            docstrings.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in QUIET:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def figures_of(folder):
    """Returns code lines, files, functions, forwarders, classes, twins, long functions, packed
    lines.
    """
    figures, names = collections.Counter(), collections.defaultdict(set)
    modules, assignments = collections.Counter(), 0
    for path in sorted((ROOT / folder).rglob("*.py")):
        if "_pb2" in path.name:
            continue
        text = path.read_text()
        tree = ast.parse(text)
        figures.update(code=code_lines(text, tree), files=1)
        modules[path.parent.name if path.stem == "__init__" else path.stem] += 1
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign):
                assignments += 1
                sides = node.targets[0], node.value
                figures["parallel"] += all(isinstance(side, ast.Tuple) for side in sides)
            elif isinstance(node, ast.Starred):
                is_literal = isinstance(node.value, ast.Tuple | ast.List) and node.value.elts
                figures["starred"] += bool(is_literal)
            if isinstance(node, ast.ClassDef):
                figures["classes"] += 1
                if not node.name.startswith("_"):
                    names[node.name].add(path)
            elif isinstance(node, DEFINITIONS[2:]):
                figures["functions"] += 1
                branches = sum(isinstance(one, BRANCHES) for one in ast.walk(node))
                figures["branchy"] += branches >= 20
                body = node.body[is_docstring(node.body[0]) :]
                if len(body) == 1 and isinstance(body[0], ast.Return | ast.Expr):
                    figures["forwarders"] += isinstance(body[0].value, ast.Call)
    figures["twins"] = sum(len(paths) > 1 for paths in names.values())
    figures["module_twins"] = sum(number > 1 for number in modules.values())
    figures["parallel"] = round(1_000 * figures["parallel"] / max(assignments, 1))
    return dict(figures)


# Commands whose flags depend on their subcommand.
SUBCOMMANDS = {"audit": ("run",), "silo": ("init", "serve"), "dssgd": ("", "serve", "join")}


def flags_of(command, folder):
    """Returns names of all flags of a command, as `--helpfull` lists them."""
    shown = run_script("pate_tf/cli/main.py", *command.split(), "--helpfull", folder=folder)
    actual = set(re.findall(r"^ +--(?:\[no\])?(\w+)", shown.out, re.MULTILINE))
    assert actual, f"{command}: {shown.out[-300:]} {shown.err[-300:]}"
    return actual


def surface(folder):
    """Returns public names, commands, their distinct flags, and registered kinds."""
    import pate_tf
    from pate_tf.cli import main

    commands = sorted(main.COMMANDS)
    with_flags = [
        f"{name} {second}" for name in commands for second in SUBCOMMANDS.get(name, ("",))
    ]
    flags = set[str]().union(*(flags_of(command, folder) for command in with_flags))
    # Runs in a separate process, because other tests register kinds.
    program = "import importlib, json, sys; print(json.dumps({name: sorted(getattr("
    program += "importlib.import_module(module), table)) for name, (module, table) in "
    program += "json.loads(sys.argv[1]).items()}))"
    (folder / "kinds.py").write_text(program)
    listed = run_script(str(folder / "kinds.py"), json.dumps(REGISTRIES), folder=folder)
    kinds = json.loads(listed.out)
    names = sorted(pate_tf.__all__)
    return {"names": names, "commands": commands, "flags": sorted(flags), **kinds}


@pytest.mark.parametrize("folder", CEILINGS)
def test_no_figure_is_above_its_budget(folder):
    limits = {**CEILINGS[folder], **json.loads(BUDGET.read_text()).get(folder, {})}
    figures = figures_of(folder)
    above = {name: (figures[name], most) for name, most in limits.items() if figures[name] > most}
    assert not above, "take something out"


def test_public_names_flags_commands_and_kinds_are_those_that_are_listed(tmp_path):
    present = surface(tmp_path)
    assert present == json.loads(FROZEN.read_text())
    assert all(len(present[name]) <= most for name, most in MOST.items())


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    limits = json.loads(BUDGET.read_text())
    for folder, some in limits.items():
        figures = figures_of(folder)
        limits[folder] = {name: min(most, figures[name]) for name, most in some.items()}
    BUDGET.write_text(json.dumps(limits, indent=1) + "\n")
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("PATE_TF_STATE", folder)
        FROZEN.write_text(json.dumps(surface(pathlib.Path(folder)), indent=1) + "\n")
