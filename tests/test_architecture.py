"""The house stands as architecture.md draws it. New rooms are entered in the tables here."""

import ast
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import pytest
from script_processes import REPOSITORY

PACKAGE = REPOSITORY / "pate_tf"

FLOOR_0 = ["records", "artifacts", "partition"]
FLOOR_1 = [*FLOOR_0, "accounting", "ledger"]
FLOOR_2 = [*FLOOR_1, "watching", "data", "models"]
ROOF = ("command_line", "student_run", "distillation_run", "student_report", "analysis")
BELOW_THE_ROOF = [*FLOOR_2, "teachers", "aggregation", "students", "queries", "serving"]

# What each room may import, itself aside.
MAY_IMPORT = {
    "records": [],
    "artifacts": ["records"],
    "partition": ["records", "artifacts"],
    "accounting": FLOOR_0,
    "ledger": [*FLOOR_0, "accounting"],
    "watching": FLOOR_0,
    "data": FLOOR_0,
    "models": [*FLOOR_0, "data"],
    "teachers": FLOOR_2,
    "aggregation": FLOOR_2,
    # Right of the ledger: public values alone.
    "students": [*FLOOR_0, "accounting", "watching", "data", "models"],
    "queries": [*FLOOR_0, "data", "models", "students"],
    "serving": [*FLOOR_0, "accounting", "data", "models"],
    "command_line": BELOW_THE_ROOF,
    "student_run": BELOW_THE_ROOF,
    "distillation_run": BELOW_THE_ROOF,
    "student_report": [*BELOW_THE_ROOF, "student_run", "distillation_run"],
    "analysis": [*FLOOR_1, "aggregation"],  # `python analysis.py` starts without TensorFlow
}
RIGHT_OF_THE_LEDGER = ("students", "queries", "serving")
WITHOUT_TENSORFLOW = (*FLOOR_1, "command_line", "analysis")
HEAVY = {
    *("tensorflow", "keras", "tensorflow_datasets", "sklearn", "skops", "matplotlib", "absl"),
    "pandas",
}
SCRIPTS = ("train_teachers.py", "train_student.py", "analysis.py")
PICKLERS = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
STATELESS_NUMPY = {"default_rng", "Generator", "SeedSequence", "BitGenerator", "PCG64", "Philox"}
# `random` is Keras' source of seeds; tests/models show that the caller's state comes back.
MAY_TOUCH_PYTHONS_GENERATOR = {"pate_tf.models.catalogue"}


def module_name(path: pathlib.Path) -> str:
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text()) for name, path in MODULES.items()}
LIBRARY = [name for name in MODULES if name.split(".")[1:2] not in ([room] for room in ROOF)]


def room(module: str) -> str | None:
    """The room a module lies in; None for `pate_tf/__init__.py`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else None


def imported(module: str, tree: ast.AST) -> Iterator[str]:
    """Everything that is imported anywhere in a file, lazily or for types alone too."""
    is_package = MODULES.get(module, pathlib.Path()).name == "__init__.py"
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                kept = len(parts) - node.level + is_package
                base = ".".join([*parts[:kept], *([base] if base else [])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield full if full in MODULES else base


def imported_packages(module: str) -> set[str]:
    return {name.split(".")[0] for name in imported(module, TREES[module])}


def dotted(node: ast.AST) -> str:
    """`np.random.seed` of the expression np.random.seed; empty for others."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (base := dotted(node.value)):
        return f"{base}.{node.attr}"
    return ""


def test_every_room_has_a_floor():
    assert {room(module) for module in MODULES} - {None} == set(MAY_IMPORT)


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_down(module):
    own = room(module)
    allowed = {own, *MAY_IMPORT[own]} if own else set()
    found = {
        room(name) for name in imported(module, TREES[module]) if name.split(".")[0] == "pate_tf"
    }
    assert found - {None} <= allowed


def test_the_table_itself_has_no_way_up():
    order = list(MAY_IMPORT)
    for name, allowed in MAY_IMPORT.items():
        assert all(order.index(other) < order.index(name) for other in allowed)


def test_no_two_files_import_each_other():
    graph = {
        module: {name for name in imported(module, tree) if name in MODULES and name != module}
        for module, tree in TREES.items()
    }
    done: set[str] = set()
    while len(done) < len(graph):
        free = {module for module in graph if module not in done and graph[module] <= done}
        assert free, f"a cycle among {sorted(set(graph) - done)}"
        done |= free


@pytest.mark.parametrize("module", LIBRARY)
def test_nothing_inside_imports_the_roof(module):
    assert {room(name) for name in imported(module, TREES[module])} & set(ROOF) == set()


@pytest.mark.parametrize("module", [m for m in MODULES if room(m) in WITHOUT_TENSORFLOW])
def test_no_file_of_the_accounting_side_names_tensorflow(module):
    assert imported_packages(module) & (HEAVY - {"matplotlib"}) == set()


def test_the_accounting_side_starts_without_tensorflow():
    modules = [module for module in MODULES if room(module) in WITHOUT_TENSORFLOW]
    program = f"import sys, {', '.join(modules)}\nprint(*sorted({HEAVY!r} & set(sys.modules)))"
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert ended.stdout.split() == []


def test_absl_stands_in_the_scripts_alone():
    assert [module for module in MODULES if "absl" in imported_packages(module)] == []
    others = [path for path in REPOSITORY.glob("*.py") if path.name not in SCRIPTS]
    for path in others:
        assert "absl" not in {
            name.split(".")[0] for name in imported("", ast.parse(path.read_text()))
        }


@pytest.mark.parametrize("module", [m for m in MODULES if room(m) in RIGHT_OF_THE_LEDGER])
def test_the_public_side_reaches_nothing_sensitive_by_name_or_path(module):
    forbidden = {"PrivateExamples", "Votes", "VoteCounts", "load_private", "sensitive", "SENSITIVE"}
    for node in ast.walk(TREES[module]):
        names = {getattr(node, field, None) for field in ("id", "attr", "name")}
        assert not names & forbidden
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            assert not node.value.startswith("sensitive")


@pytest.mark.parametrize("module", MODULES)
def test_no_assert_and_no_pickle(module):
    assert imported_packages(module) & PICKLERS == set()
    for node in ast.walk(TREES[module]):
        assert not isinstance(node, ast.Assert), f"assert in line {node.lineno}"
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            assert isinstance(node.value, ast.Constant)
            assert node.value.value is False


@pytest.mark.parametrize("module", LIBRARY)
def test_the_library_neither_prints_nor_exits(module):
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.Call):
            assert dotted(node.func) not in {
                *("print", "exit", "quit", "sys.exit", "os._exit", "SystemExit"),
                *("sys.stdout.write", "sys.stderr.write"),
            }


@pytest.mark.parametrize("module", MODULES)
def test_no_global_random_state(module):
    if module not in MAY_TOUCH_PYTHONS_GENERATOR:
        assert "random" not in imported_packages(module)
    assert "numpy.random" not in set(imported(module, TREES[module]))
    for node in ast.walk(TREES[module]):
        name = dotted(node)
        if name.startswith(("np.random.", "numpy.random.")):
            assert name.split(".")[2] in STATELESS_NUMPY, name
        if name.startswith("tf.random."):
            allowed = ("stateless_", "split", "fold_in")
            assert name.removeprefix("tf.random.").startswith(allowed), name
        assert name not in ("keras.utils.set_random_seed", "tf.keras.utils.set_random_seed")
        if name.endswith("default_rng"):
            continue
        if isinstance(node, ast.Call) and dotted(node.func).endswith("default_rng"):
            assert node.args, "default_rng without a seed"


def test_privacy_noise_is_drawn_in_one_module():
    drawers = [module for module in MODULES if "opendp" in imported_packages(module)]
    assert drawers == ["pate_tf.aggregation.noise"]


def test_scikit_learn_stands_in_few_modules():
    users = [
        module
        for module in MODULES
        if "sklearn" in imported_packages(module) and room(module) != "queries"  # of public inputs
    ]
    assert users == ["pate_tf.data.digits", "pate_tf.models.classifier", "pate_tf.models.forest"]
    keepers = [module for module in MODULES if "skops" in imported_packages(module)]
    assert keepers == ["pate_tf.models.classifier"]


def test_flags_are_defined_in_the_scripts_alone():
    for module, tree in TREES.items():
        for node in ast.walk(tree):
            assert not dotted(node).startswith(("flags.DEFINE", "argparse.")), module
