"""Labels of what the repository's files import, and of what its tests name in strings."""

import ast
import functools
import pathlib
import re
import sys
from collections.abc import Iterable, Iterator

ROOT = pathlib.Path(__file__).absolute().parents[1]

# Where an import has another name than its package.
PACKAGES = {
    "absl": "absl-py",
    "google": "protobuf",
    "grpc": "grpcio",
    "grpc_health": "grpcio-health-checking",
    "grpc_tools": "grpcio-tools",
    "PIL": "pillow",
    "sklearn": "scikit-learn",
    "tensorflow_serving": "tensorflow-serving-api",
}
# rules_python takes requirements without their extras: what these bring is named beside them.
FROM_EXTRAS = {"@pypi//tensorflow_datasets": {"@pypi//einops", "@pypi//fsspec", "@pypi//zipp"}}
NOT_IMPORTED = {"make.py", "setup.py"}  # at the top


def modules_in(folder: str) -> list[pathlib.Path]:
    """The modules of a folder and of those in it."""
    return sorted((ROOT / folder).rglob("*.py"))


def data_in(folder: str) -> list[pathlib.Path]:
    """What else lies in a folder and those in it."""
    found = sorted((ROOT / folder).rglob("*.*"))
    return [path for path in found if path.is_file() and path.suffix not in (".py", ".pyc")]


def package_of(path: pathlib.Path) -> str:
    """The folder with the BUILD file that a file belongs to: at most two floors deep."""
    return "/".join(path.relative_to(ROOT).parent.parts[:2])


def label(folder: str, name: str) -> str:
    """The shortest label: `//pate_tf/ledger` for the target `ledger` of that folder."""
    return f"//{folder}" if folder.rpartition("/")[2] == name else f"//{folder}:{name}"


def helper_name(path: pathlib.Path) -> str:
    """The target of a module that tests import; of a lower `conftest` with its folder."""
    lower = path.parent != ROOT / package_of(path)
    return f"{path.parent.name}_{path.stem}" if lower and path.stem == "conftest" else path.stem


def library_of(path: pathlib.Path) -> tuple[str, str]:
    """Folder and name of the library that a file of `pate_tf/` or `benchmarks/` belongs to."""
    folder = package_of(path)
    if folder != "pate_tf":
        return folder, folder.rpartition("/")[2]
    return folder, "init" if path.name == "__init__.py" else path.stem


def dotted_name(path: pathlib.Path) -> str:
    """The name that an import gives to a module."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


SCRIPTS = [path for path in sorted(ROOT.glob("*.py")) if path.name not in NOT_IMPORTED]
BENCHMARKS = sorted((ROOT / "benchmarks").glob("*.py"))  # scripts too
LIBRARY = [*modules_in("pate_tf"), *sorted((ROOT / "benchmarks").glob("*/**/*.py"))]
TESTS = modules_in("tests")
HELPERS = [path for path in TESTS if not path.name.startswith("test_")]
DATA_OF_TESTS = {path.name: path for path in data_in("tests")}
FRONT_DOOR, INIT = label("pate_tf", "pate_tf"), label("pate_tf", "init")
# The labels of modules by the names that imports give them.
LABELS = {dotted_name(path): label("", path.stem) for path in SCRIPTS}
LABELS |= {dotted_name(path): label("benchmarks", path.stem) for path in BENCHMARKS}
LABELS |= {dotted_name(path): label(*library_of(path)) for path in LIBRARY}
DATA_LABELS = {
    name: f"//{package_of(path)}:{path.relative_to(ROOT / package_of(path)).as_posix()}"
    for name, path in DATA_OF_TESTS.items()
}
HELPER_LABELS = {path: label(package_of(path), helper_name(path)) for path in HELPERS}


def pypi_label(package: str) -> str:
    """The label that rules_python gives to a package."""
    return "@pypi//" + re.sub(r"[-_.]+", "_", package).lower()


PINNED = {
    pypi_label(line.partition("==")[0])
    for line in (ROOT / "constraints.txt").read_text().splitlines()
}


@functools.cache
def nodes(path: pathlib.Path) -> list[ast.AST]:
    """The syntax of a file, flat."""
    return list(ast.walk(ast.parse(path.read_text())))


def imported_names(path: pathlib.Path) -> Iterator[str]:
    """What a file's imports name, also inside functions: modules, or values in them."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = path.relative_to(ROOT).parts[: -node.level] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.importorskip":
            yield ast.literal_eval(node.args[0])


def helper_named(name: str, path: pathlib.Path) -> pathlib.Path | None:
    """The module of the tests that a file means by a bare name: near ones come first."""
    found = [helper for helper in HELPERS if helper.stem == name and helper != path]
    return max(found, key=lambda helper: path.is_relative_to(helper.parent), default=None)


def label_of(name: str, path: pathlib.Path) -> str | None:
    """The label of what an import in a file names; None for what comes with Python."""
    parts = name.split(".")
    if parts[0] in sys.stdlib_module_names:
        return None
    for end in range(len(parts), 0, -1):
        module = ".".join(parts[:end])
        if module == "pate_tf" and not path.is_relative_to(ROOT / "pate_tf"):
            return FRONT_DOOR  # it can open every room
        if module in LABELS:
            return LABELS[module]
    if path not in LIBRARY and (helper := helper_named(parts[0], path)):
        return HELPER_LABELS[helper]
    found = pypi_label(PACKAGES.get(parts[0], parts[0]))
    if found not in PINNED:
        raise SystemExit(
            f"error: expected a module of the repository or a package in constraints.txt, got "
            f"'import {name}' in {path.relative_to(ROOT)}"
        )
    return found


def imports(paths: Iterable[pathlib.Path]) -> set[str]:
    """Labels of what files import."""
    labels = {label_of(name, path) for path in paths for name in imported_names(path)}
    found = {each for each in labels if each}
    return found.union(*(FROM_EXTRAS.get(each, set()) for each in found))


def named_in_strings(path: pathlib.Path) -> Iterator[str]:
    """Labels of what a test names in its strings: it starts scripts, opens files, patches."""
    values = (node.value for node in nodes(path) if isinstance(node, ast.Constant))
    text = "\n".join(value for value in values if isinstance(value, str))
    for name in re.findall(r"(?<![\w.])pate_tf(?:\.\w+)+", text):
        yield label_of(name, path) or ""
    reads_the_folder = '/ "pate_tf"' in path.read_text()
    if reads_the_folder or re.search(r"\bimport pate_tf\b(?!\.)", text):
        yield FRONT_DOOR
    for name in re.findall(r"[\w-]+\.\w+", text):
        stem = name.removesuffix(".py")
        if ROOT / name in SCRIPTS:
            yield LABELS[stem]
        elif name in DATA_LABELS:
            yield DATA_LABELS[name]
        elif stem != name and (helper := helper_named(stem, path)):
            yield HELPER_LABELS[helper]
    for name in re.findall(r"(\w+):\w", text):  # `module:function`
        if helper := helper_named(name, path):
            yield HELPER_LABELS[helper]


def is_marked_long(path: pathlib.Path) -> bool:
    """If a file has tests marked `pytest.mark.long`."""
    attributes = (node for node in nodes(path) if isinstance(node, ast.Attribute))
    return any(ast.unparse(attribute) == "pytest.mark.long" for attribute in attributes)


def is_wholly_long(path: pathlib.Path) -> bool:
    """If `pytestmark` marks all tests of a file long."""
    assignments = (ast.unparse(node) for node in nodes(path) if isinstance(node, ast.Assign))
    return any(re.match(r"pytestmark = .*\bpytest\.mark\.long\b", each) for each in assignments)
