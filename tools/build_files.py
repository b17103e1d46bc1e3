"""Writes the BUILD files of Bazel from the imports: `python3 tools/build_files.py`.

A folder of `pate_tf/` is one library; so is a file that lies loose in it. A file of `tests/` is
one target: a test, or a module that tests import. A target depends on what its files import, and
in `tests/` also on what their strings name: scripts, files of data, modules.

`--check` writes nothing: it names the files that are not what the imports want, and fails.
"""

import argparse
import pathlib
import re
import sys
from collections.abc import Iterable

from labels import (
    BENCHMARKS,
    DATA_LABELS,
    DATA_OF_TESTS,
    HELPER_LABELS,
    HELPERS,
    INIT,
    LIBRARY,
    ROOT,
    SCRIPTS,
    TESTS,
    data_in,
    helper_name,
    imports,
    is_marked_long,
    is_wholly_long,
    label,
    library_of,
    named_in_strings,
    package_of,
)

COMMAND = "python3 tools/build_files.py"
HEADER = f"# `{COMMAND}` writes this file from the imports."
RULES = {
    "@rules_python//python:defs.bzl": ("py_binary", "py_library"),
    "//tools:pytest_test.bzl": ("pytest_test",),
}
VISIBLE = 'package(default_visibility = ["//visibility:public"])'
FOLDERS = ("benchmarks", "pate_tf", "tests")  # besides the top
EXPORTED = [ROOT / "constraints.txt", ROOT / "pyproject.toml", *DATA_OF_TESTS.values()]
SLOW_TO_START = {"@pypi//keras", "@pypi//tensorflow"}
# Tests that read every file there is, or run Bazel: they need the checkout, not their targets.
OF_THE_CHECKOUT = ("tests/bazel/", "tests/docs/")


def buildifiers_order(text: str) -> tuple[bool, bool, list[str]]:
    """Own targets, those of the repository, those of others."""
    return text[0] == "@", text[0] == "/", re.split("[:.]", text)


def written(values: Iterable[str], *, indent: str = "    ") -> str:
    """A list as buildifier writes it."""
    items = [f'"{value}"' for value in sorted(values, key=buildifiers_order)]
    if len(items) == 1:
        return f"[{items[0]}]"
    return "\n".join(["[", *(f"{indent}    {item}," for item in items), f"{indent}]"])


class BuildFiles:
    """BUILD files in the making."""

    def __init__(self) -> None:
        self.targets: dict[str, list[str]] = {}  # the text of each, by folder
        self.deps: dict[str, set[str]] = {}  # by label

    def add(
        self, folder: str, rule: str, name: str, deps: set[str], **others: str | Iterable[str]
    ) -> None:
        """Adds a target; `others` in the order of buildifier, empty ones are left out."""
        text = f'{rule}(\n    name = "{name}",\n'
        for key, value in {**others, "deps": deps}.items():
            if value and isinstance(value, str):
                text += f"    {key} = {value},\n"
            elif value:
                short = [item.replace(f"//{folder}:", ":") for item in value]
                text += f"    {key} = {written(short)},\n"
        self.targets.setdefault(folder, []).append(f"{text})")
        self.deps[label(folder, name)] = deps

    def all_below(self, labels: Iterable[str]) -> set[str]:
        """Labels, what they depend on, and so on."""
        found: set[str] = set()
        ahead = list(labels)
        while ahead:
            each = ahead.pop()
            if each not in found:
                found.add(each)
                ahead += self.deps.get(each, ())
        return found

    def files(self) -> dict[pathlib.Path, str]:
        """Every file, and what is in it."""
        return {ROOT / folder / "BUILD": self.text(folder) for folder in self.targets}

    def text(self, folder: str) -> str:
        """The file of a folder."""
        targets = self.targets[folder]
        used = {text.partition("(")[0] for text in targets}
        loads = []
        for file, rules in RULES.items():
            if names := [f'"{rule}"' for rule in rules if rule in used]:
                loads.append(f'load("{file}", {", ".join(names)})')
        parts = [HEADER, "\n".join(loads), VISIBLE]
        exported = [path for path in EXPORTED if package_of(path) == folder]
        if exported:
            names = [path.relative_to(ROOT / folder).as_posix() for path in exported]
            parts.append(f"exports_files({written(names, indent='')})")
        return "\n\n".join([*parts, *targets]) + "\n"


def add_libraries(build: BuildFiles) -> None:
    """The libraries of `pate_tf/` and `benchmarks/`, and the scripts at the top."""
    members: dict[tuple[str, str], list[pathlib.Path]] = {}
    for path in LIBRARY:
        members.setdefault(library_of(path), []).append(path)
    for (folder, name), paths in members.items():
        deps = imports(paths) | ({INIT} if folder.startswith("pate_tf") else set())
        if label(folder, name) == INIT:
            deps = set()  # the front door opens rooms when asked, and needs none to start
        srcs = [path.relative_to(ROOT / folder).as_posix() for path in paths]
        deps -= {label(folder, name)}
        beside = [] if folder == "pate_tf" else data_in(folder)
        data = [path.relative_to(ROOT / folder).as_posix() for path in beside]
        build.add(folder, "py_library", name, deps, srcs=srcs, data=data)
    rooms = {label(*library) for library in members if library[0].startswith("pate_tf")}
    build.add("pate_tf", "py_library", "pate_tf", rooms)
    for path in SCRIPTS:
        build.add("", "py_binary", path.stem, imports([path]), srcs=[path.name])
    for path in BENCHMARKS:  # they measure beside the tests' slow twins
        deps = imports([path])
        build.add("benchmarks", "py_binary", path.stem, deps, testonly="True", srcs=[path.name])


def add_tests(build: BuildFiles) -> None:
    """The modules that tests import, and the tests."""
    for path in [*HELPERS, *sorted({*TESTS} - {*HELPERS})]:
        folder, source = package_of(path), path.relative_to(ROOT / package_of(path))
        named = imports([path]) | {*named_in_strings(path)} - {"", HELPER_LABELS.get(path)}
        data = {each for each in named if each in DATA_LABELS.values()}
        deps = named - data
        if path in HELPERS:
            lists = {"srcs": [source.as_posix()], "data": data, "imports": [str(source.parent)]}
            name = helper_name(path)
            build.add(folder, "py_library", name, deps, testonly="True", **lists)
            continue
        above = {each for each in HELPERS if path.is_relative_to(each.parent)}
        conftests = {HELPER_LABELS[each] for each in above if each.stem == "conftest"}
        slow = build.all_below(deps) & SLOW_TO_START
        manual = path.relative_to(ROOT).as_posix().startswith(OF_THE_CHECKOUT)
        every_day = ("large" if slow else "medium", ["manual"] if manual else [])
        for name, (size, tags) in lengths(path, deps, every_day).items():
            lists = {"srcs": [source.as_posix()], "data": data, "tags": tags}
            build.add(folder, "pytest_test", name, deps | conftests, size=f'"{size}"', **lists)


def lengths(
    path: pathlib.Path, deps: set[str], every_day: tuple[str, list[str]]
) -> dict[str, tuple[str, list[str]]]:
    """Size and tags of a test's targets: for every day, and by hand for what is marked long."""
    by_hand = ("enormous", ["long", "manual"])
    if is_wholly_long(path):
        return {path.stem: by_hand}
    inherited = [other for other, name in HELPER_LABELS.items() if name in deps]
    if any(is_marked_long(each) for each in (path, *inherited)):
        return {path.stem: every_day, f"{path.stem}_long": by_hand}
    return {path.stem: every_day}


def main() -> int:
    """Writes the BUILD files, or compares them; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, name what differs")
    check = parser.parse_args().check
    build = BuildFiles()
    add_libraries(build)
    add_tests(build)
    wanted = build.files()
    found = [ROOT / "BUILD", *(path for top in FOLDERS for path in (ROOT / top).rglob("BUILD"))]
    old = {path: path.read_text() for path in found if path.exists()}
    old = {path: text for path, text in old.items() if path in wanted or text.startswith(HEADER)}
    stale = sorted(path for path in {*wanted, *old} if wanted.get(path) != old.get(path))
    for path in stale:
        print(path.relative_to(ROOT).as_posix())
        if not check and path in wanted:
            path.write_text(wanted[path])
        elif not check:
            path.unlink()
    if check and stale:
        print(f"error: these are not what the imports want; run `{COMMAND}`")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
