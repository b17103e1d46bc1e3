"""The house stands as architecture.md draws it. New rooms are entered in the tables here."""

import ast
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import pytest
from script_processes import REPOSITORY

PACKAGE = REPOSITORY / "pate_tf"

FLOOR_0 = ["values", "artifacts", "partition"]
FLOOR_1 = [*FLOOR_0, "accounting", "releases", "ledger", "statement", "noise"]
FLOOR_2 = [*FLOOR_1, "tensorboard", "data", "models"]
INSIDE = [
    *FLOOR_2,
    *("teachers", "labelling", "selective_sgd"),
    *("students", "representations", "queries", "serving"),
]
ROOF = ("runs", "front", "cli")

# What each room may import, itself aside.
MAY_IMPORT = {
    "values": [],
    "records": ["values"],
    "artifacts": ["values"],
    "partition": ["values", "artifacts"],
    "transport": ["values", "artifacts"],
    "accounting": FLOOR_0,
    "releases": [*FLOOR_0, "accounting"],
    "ledger": [*FLOOR_0, "accounting"],
    "statement": [*FLOOR_0, "accounting", "releases", "ledger"],
    "noise": [*FLOOR_0, "accounting"],
    "tensorboard": FLOOR_0,
    "data": FLOOR_0,
    "models": [*FLOOR_0, "data"],
    "teachers": FLOOR_2,
    "labelling": [*FLOOR_1],
    "selective_sgd": [*FLOOR_2, "transport"],
    # Right of the door: public values alone.
    "students": [*FLOOR_0, "accounting", "tensorboard", "data", "models"],
    "representations": [*FLOOR_0, "data", "models", "students"],
    "queries": [*FLOOR_0, "accounting", "data", "models", "students", "representations"],
    "serving": [*FLOOR_0, "accounting", "data", "models"],
    "analysis": [*FLOOR_1, "labelling"],
    # A door for each silo. What is chosen from public values, and teachers from disk, are looked
    # up in the rooms that have them, when they are needed.
    "silos": [*FLOOR_1, "transport", "models", "queries", "serving"],
    "runs": [*INSIDE, "transport", "analysis", "silos"],
    "front": [*INSIDE, "runs", "silos"],
    # Of students and queries their settings alone: tests/cli/test_one_call.py.
    "cli": [
        *FLOOR_1,
        *("transport", "selective_sgd", "students", "queries", "analysis", "silos", "runs"),
    ],
}
RIGHT_OF_THE_DOOR = ("students", "representations", "queries", "serving")
# Rooms and files that start without TensorFlow.
WITHOUT_TENSORFLOW = (*FLOOR_1, "records", "transport", "analysis", "silos")
FILES_WITHOUT_TENSORFLOW = {
    *("pate_tf.labelling.labeller", "pate_tf.labelling.cost", "pate_tf.runs.reporting"),
    *("pate_tf.runs.analysis.accounting", "pate_tf.runs.analysis.run"),
    *("pate_tf.runs.analysis.tables", "pate_tf.runs.analysis.calibration"),
    *("pate_tf.cli.command_line", "pate_tf.cli.analysis", "pate_tf.cli.analysis_flags"),
    *("pate_tf.cli.party", "pate_tf.runs.silos.party"),
}
HEAVY = {
    *("tensorflow", "keras", "tensorflow_datasets", "sklearn", "skops", "matplotlib", "absl"),
    "pandas",
}
SCRIPTS = ("train_teachers.py", "train_student.py", "analysis.py")
PICKLERS = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
STATELESS_NUMPY = {"default_rng", "Generator", "SeedSequence", "BitGenerator", "PCG64", "Philox"}
# `random` is Keras' source of seeds, and code of a user's own draws from any; tests/models show
# that the caller's state comes back.
MAY_TOUCH_GLOBAL_GENERATORS = {"pate_tf.models.catalogue"}


def module_name(path: pathlib.Path) -> str:
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text()) for name, path in MODULES.items()}
STARTS_QUICKLY = [
    name
    for name in MODULES
    if name in FILES_WITHOUT_TENSORFLOW or name.split(".")[1:2] in ([r] for r in WITHOUT_TENSORFLOW)
]
DOOR = "pate_tf"  # `pate_tf/__init__.py`, which names what lies anywhere
LIBRARY = [name for name in MODULES if name != DOOR and name.split(".")[1] not in ROOF]


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


@pytest.mark.parametrize("module", [name for name in MODULES if name != DOOR])
def test_imports_go_down(module):
    own = room(module)
    allowed = {own, *MAY_IMPORT[own]}
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


@pytest.mark.parametrize("module", STARTS_QUICKLY)
def test_no_file_of_the_accounting_side_names_tensorflow(module):
    assert imported_packages(module) & (HEAVY - {"matplotlib", "absl"}) == set()


def test_the_accounting_side_starts_without_tensorflow():
    heavy = HEAVY - {"absl"}  # the commands define flags
    imports = ", ".join(STARTS_QUICKLY)
    program = f"import sys, {imports}\nprint(*sorted({heavy!r} & set(sys.modules)))"
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert ended.stdout.split() == []


def test_absl_stands_in_the_commands_alone():
    users = {module for module in MODULES if "absl" in imported_packages(module)}
    assert {room(module) for module in users} == {"cli"}


def test_the_scripts_are_shims_of_the_commands():
    for script in SCRIPTS:
        body = ast.parse((REPOSITORY / script).read_text()).body
        assert len(body) == 3  # what it is, the import, the call
        assert {name.split(".")[0] for name in imported("", ast.Module(body, []))} == {"pate_tf"}


@pytest.mark.parametrize("module", [m for m in MODULES if room(m) in RIGHT_OF_THE_DOOR])
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
    if module in MAY_TOUCH_GLOBAL_GENERATORS:
        return
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
    assert drawers == ["pate_tf.noise"]


def test_scikit_learn_stands_in_few_modules():
    users = [
        module
        for module in MODULES
        # Representations and queries are of public inputs.
        if "sklearn" in imported_packages(module)
        and room(module) not in ("representations", "queries")
    ]
    assert users == ["pate_tf.data.digits", "pate_tf.models.classifier", "pate_tf.models.forest"]
    keepers = [module for module in MODULES if "skops" in imported_packages(module)]
    assert keepers == ["pate_tf.models.classifier"]


def test_flags_are_defined_in_the_commands_alone():
    for module, tree in TREES.items():
        if room(module) != "cli":
            for node in ast.walk(tree):
                assert not dotted(node).startswith(("flags.DEFINE", "argparse.")), module
