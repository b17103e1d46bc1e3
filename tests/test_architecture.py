"""The packages follow docs/reference/architecture.md; add new packages here."""

import ast
import pathlib
import re
from collections.abc import Iterator

from script_processes import REPOSITORY, modules_after

PACKAGE = REPOSITORY / "pate_tf"

# Allowed imports of each package, without itself; lower layers first.
MAY_IMPORT = {
    "core": "",
    "net": "core",
    "accounting": "core",
    "ledger": "core accounting",
    "data": "core",
    "models": "core data",
    # Right of the release boundary: only public values.
    "students": "core data models",
    "representations": "core data models students",
    "postprocessing": "core accounting data models students representations",
    "queries": "core accounting data models students representations postprocessing",
    "serving": "core data students",
    # Left of the release boundary.
    "teachers": "core ledger data models students representations",
    "release": "core accounting ledger data models students representations postprocessing "
    "queries teachers",
    "planning": "core accounting data models students representations postprocessing queries "
    "teachers release",
    "analysis": "core accounting ledger release",
    # For queries: only the registry of strategies, for their words.
    "statement": "core accounting ledger data representations queries serving release analysis",
    # Imports of choices from public values and of teachers from disk happen when they are needed.
    "silos": "core net accounting ledger data models queries serving teachers representations "
    "postprocessing release statement",
    "selective_sgd": "core net accounting ledger data models representations serving release "
    "statement",
    "run": "core net accounting ledger data models students representations postprocessing queries "
    "serving teachers release planning analysis statement silos",
    "audit": "core accounting ledger release statement teachers queries serving",
    "beam": "core ledger data release models teachers",
    # Printing, flags and exit codes; lower packages do all computations.
    "cli": "core net accounting ledger release planning analysis statement data teachers "
    "selective_sgd students queries serving silos run audit beam",
    # Another program's way to start commands.
    "flower": "core net silos cli",
}
RIGHT_OF_THE_BOUNDARY = ("students", "representations", "postprocessing", "queries", "serving")
# Packages and files that start without TensorFlow.
LIGHT_PACKAGES = ("accounting", "ledger", "analysis", "statement", "net", "silos")
LIGHT_FILES = {
    *("pate_tf.core.artifacts", "pate_tf.core.public"),
    *("pate_tf.core.sensitive", "pate_tf.core.dataset", "pate_tf.core.source"),
    *("pate_tf.core.checks", "pate_tf.release.votes", "pate_tf.release.noise"),
    *("pate_tf.release.noisy_sums", "pate_tf.core.reporting"),
    *("pate_tf.cli.command_line", "pate_tf.cli.analysis_command", "pate_tf.cli.aggregator_command"),
}
HEAVY = {
    *("tensorflow", "keras", "tensorflow_datasets", "sklearn", "skops", "matplotlib", "absl"),
    "pandas",
}
SCRIPTS = ("train_teachers.py", "train_student.py", "analysis.py")
PICKLERS = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
STATELESS_NUMPY = {"default_rng", "Generator", "SeedSequence", "BitGenerator", "PCG64", "Philox"}
# `random` is Keras' source of seeds, and custom code draws from any source; tests/models show that
# the caller's state is restored.
MAY_TOUCH_GLOBAL_GENERATORS = {"pate_tf.models.architectures"}


def module_name(path: pathlib.Path) -> str:
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text()) for name, path in MODULES.items()}
PUBLIC_API = "pate_tf"  # `pate_tf/__init__.py`, which names members of all packages


def package(module: str) -> str | None:
    """Returns the package of a module, or None for `pate_tf/__init__.py`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else None


# The modules of these packages that call Keras.
HEAVY_FILES = {"pate_tf.statement.publishing", "pate_tf.silos.silo_server"}
LIGHT = [
    name
    for name in MODULES
    if name in LIGHT_FILES or (package(name) in LIGHT_PACKAGES and name not in HEAVY_FILES)
]


def imported(module: str, tree: ast.AST) -> Iterator[str]:
    """Returns everything that a file imports, including lazy imports and imports for types."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module} imports by a relative name"
            base = node.module or ""
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield full if full in MODULES else base


def imported_packages(module: str) -> set[str]:
    return {name.split(".")[0] for name in imported(module, TREES[module])}


def dotted(node: ast.AST) -> str:
    """Returns `np.random.seed` for the expression np.random.seed; empty for other expressions."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (base := dotted(node.value)):
        return f"{base}.{node.attr}"
    return ""


def test_imports_go_down():
    assert {package(module) for module in MODULES} - {None} == set(MAY_IMPORT)
    order = list(MAY_IMPORT)
    for name, allowed in MAY_IMPORT.items():
        assert all(order.index(other) < order.index(name) for other in allowed.split())
    wrong = {}
    for module in MODULES:
        if module != PUBLIC_API:
            own = package(module)
            actual = {
                package(name)
                for name in imported(module, TREES[module])
                if name.split(".")[0] == "pate_tf"
            }
            if upward := actual - {None, own, *MAY_IMPORT[own].split()}:
                wrong[module] = upward
    assert wrong == {}


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


def test_the_accounting_side_starts_without_tensorflow():
    for module in LIGHT:
        assert imported_packages(module) & (HEAVY - {"matplotlib", "absl"}) == set(), module
    modules = modules_after(f"import {', '.join(LIGHT)}")
    heavy = HEAVY - {"absl"} | {"opendp", "scipy.stats"}  # the commands define flags
    assert modules & heavy == set()


def test_flags_printing_and_exits_stand_in_the_commands_alone():
    for module, tree in TREES.items():
        if package(module) != "cli":
            assert "absl" not in imported_packages(module), module
        for node in ast.walk(tree):
            if package(module) != "cli":
                assert not dotted(node).startswith(("flags.DEFINE", "argparse.")), module
            if package(module) not in ("cli", "run", None) and isinstance(node, ast.Call):
                assert dotted(node.func) not in {
                    *("print", "exit", "quit", "sys.exit", "os._exit", "SystemExit"),
                    *("sys.stdout.write", "sys.stderr.write"),
                }, module


def test_the_scripts_are_shims_of_the_commands():
    for script in SCRIPTS:
        body = ast.parse((REPOSITORY / script).read_text()).body
        assert len(body) == 3  # description, import, call
        assert {name.split(".")[0] for name in imported("", ast.Module(body, []))} == {"pate_tf"}


def test_the_public_side_reaches_nothing_sensitive_by_name_or_path():
    forbidden = {"PrivateExamples", "Votes", "VoteCounts", "load_private", "sensitive", "SENSITIVE"}
    for module in MODULES:
        if package(module) in RIGHT_OF_THE_BOUNDARY:
            for node in ast.walk(TREES[module]):
                names = {getattr(node, field, None) for field in ("id", "attr", "name")}
                assert not names & forbidden, module
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    assert not node.value.startswith("sensitive"), module


def test_sections_of_docstrings_are_indented_alike():
    section = re.compile(r"^( *)(?:Args|Attributes|Raises|Returns|Yields):\n( +)", re.MULTILINE)
    actual = {
        name: {len(inner) - len(outer) for outer, inner in section.findall(path.read_text())}
        for name, path in MODULES.items()
    }
    assert {name: widths for name, widths in actual.items() if widths - {4}} == {}
    assert sum(map(bool, actual.values())) > 100


def test_no_assert_and_no_pickle():
    for module, tree in TREES.items():
        assert imported_packages(module) & PICKLERS == set(), module
        for node in ast.walk(tree):
            assert not isinstance(node, ast.Assert), f"{module}: assert in line {node.lineno}"
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert isinstance(node.value, ast.Constant), module
                assert node.value.value is False, module


def test_no_global_random_state():
    for module, tree in TREES.items():
        if module in MAY_TOUCH_GLOBAL_GENERATORS:
            continue
        assert "random" not in imported_packages(module), module
        assert "numpy.random" not in set(imported(module, tree)), module
        for node in ast.walk(tree):
            name = dotted(node)
            if name.startswith(("np.random.", "numpy.random.")):
                assert name.split(".")[2] in STATELESS_NUMPY, (module, name)
            if name.startswith("tf.random."):
                allowed = ("stateless_", "split", "fold_in")
                assert name.removeprefix("tf.random.").startswith(allowed), (module, name)
            assert name not in ("keras.utils.set_random_seed", "tf.keras.utils.set_random_seed")
            if isinstance(node, ast.Call) and dotted(node.func).endswith("default_rng"):
                assert node.args, f"{module}: default_rng without a seed"


def test_privacy_noise_is_drawn_in_one_module():
    drawers = [module for module in MODULES if "opendp" in imported_packages(module)]
    assert drawers == ["pate_tf.release.noise"]


def test_scikit_learn_stands_in_few_modules():
    users = [
        module
        for module in MODULES
        # Representations, queries and post-processing use public values.
        if "sklearn" in imported_packages(module)
        and package(module) not in ("representations", "postprocessing", "queries")
    ]
    assert users == [
        *("pate_tf.data.datasets", "pate_tf.models.estimators"),
        *("pate_tf.models.forest", "pate_tf.run.classifier"),
    ]
    keepers = [module for module in MODULES if "skops" in imported_packages(module)]
    assert keepers == ["pate_tf.models.estimators"]
