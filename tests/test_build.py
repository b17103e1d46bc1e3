"""BUILD mirrors the imports: one target a part, with the dependencies it really has.

`python tests/test_build.py` writes BUILD anew from the imports.
"""

import ast
import pathlib
import sys

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
BUILD = REPOSITORY / "BUILD"

SCRIPTS = ("analysis", "train_student", "train_teachers")
PIP_NAMES = {
    "sklearn": "scikit-learn",
    "absl": "absl-py",
    "dp_accounting": "dp-accounting",
    "grpc": "grpcio",
    "tensorflow_serving": "tensorflow-serving-api",
}

HEADER = '''"""One target a part; tests/test_build.py writes this file from the imports."""

load("@rules_python//python:defs.bzl", "py_binary", "py_library", "py_test")

package(default_visibility = ["//visibility:public"])

licenses(["notice"])

exports_files(["constraints.txt"])
'''


def part_of(path: pathlib.Path) -> str:
    """The part that a file of the package belongs to: its folder, or itself."""
    inside = path.relative_to(REPOSITORY / "pate_tf")
    if len(inside.parts) > 1:
        return inside.parts[0]
    return "version" if inside.name == "__init__.py" else inside.stem


def parts() -> dict[str, list[pathlib.Path]]:
    found: dict[str, list[pathlib.Path]] = {}
    for path in sorted((REPOSITORY / "pate_tf").rglob("*.py")):
        found.setdefault(part_of(path), []).append(path)
    return found


def library(part: str) -> str:
    """The target of a part; the scripts have the first right to a name."""
    return f"{part}_library" if part in SCRIPTS else part


def imported_names(path: pathlib.Path) -> set[str]:
    """All modules that a file names in its imports, also inside functions."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def dependencies(paths: list[pathlib.Path]) -> list[str]:
    """Labels of the parts and packages that files import."""
    labels = set()
    for name in set().union(*(imported_names(path) for path in paths)):
        first, *rest = name.split(".")
        if first == "pate_tf":
            if rest and rest[0] in parts():
                labels.add(f":{library(rest[0])}")
            labels.add(":version")
        elif first in SCRIPTS:
            labels.add(f":{first}")
        elif (REPOSITORY / "tests").joinpath(f"{first}.py").exists() or list(
            (REPOSITORY / "tests").glob(f"*/{first}.py")
        ):
            labels.add(":test_helpers")
        elif first not in sys.stdlib_module_names and first != "__future__":
            pip_name = PIP_NAMES.get(first, first).replace("-", "_").lower()
            labels.add(f"@pypi//{pip_name}")
    return sorted(labels)


def target(rule: str, name: str, paths: list[pathlib.Path], **lists: list[str]) -> str:
    lines = [f"{rule}(", f'    name = "{name}",']
    lists = {"srcs": [path.relative_to(REPOSITORY).as_posix() for path in paths], **lists}
    deps = [label for label in dependencies(paths) if label != f":{name}"]
    for key, values in {**lists, "deps": deps}.items():
        if len(values) == 1:
            lines.append(f'    {key} = ["{values[0]}"],')
        elif values:
            lines += [f"    {key} = [", *(f'        "{value}",' for value in values), "    ],"]
    if rule == "py_test":
        lines.insert(2, f'    main = "{paths[0].relative_to(REPOSITORY).as_posix()}",')
    return "\n".join([*lines, ")"])


def expected() -> str:
    data = {"data": {"data": ["pate_tf/data/checksums.tsv"]}}
    targets = [
        target("py_library", library(name), paths, **data.get(name, {}))
        for name, paths in sorted(parts().items())
    ]
    for script in SCRIPTS:
        targets.append(target("py_binary", script, [REPOSITORY / f"{script}.py"]))
    tests = sorted((REPOSITORY / "tests").rglob("*.py"))
    helpers = [path for path in tests if not path.name.startswith("test_")]
    data = ["tests/accounting/golden.json", "tests/serving/classify.c"]
    data += [f"{script}.py" for script in SCRIPTS]
    targets.append(target("py_library", "test_helpers", helpers, data=data))
    for path in tests:
        if path not in helpers:
            name = "_".join(path.relative_to(REPOSITORY / "tests").with_suffix("").parts)
            targets.append(target("py_test", name, [path]))
    return "\n\n".join([HEADER.rstrip(), *targets]) + "\n"


def test_build_mirrors_the_imports():
    assert BUILD.read_text() == expected(), "run: python tests/test_build.py"


def test_targets_have_names_of_their_own():
    calls = [node for node in ast.walk(ast.parse(BUILD.read_text())) if isinstance(node, ast.Call)]
    names = [
        keyword.value.value for call in calls for keyword in call.keywords if keyword.arg == "name"
    ]
    assert len(names) == len(set(names))
    assert {"accounting", "ledger", "teachers", *SCRIPTS} <= set(names)


if __name__ == "__main__":
    BUILD.write_text(expected())
