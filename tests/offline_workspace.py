"""A workspace in which Debian's Bazel 4 builds the repository without a network.

What the network would bring is a stub: rules_python is Bazel's own rules, packages of `@pypi` are
empty libraries, and the Python toolchain is an interpreter with the packages installed, but
without pate_tf itself, so that what a target fails to name is missing.
"""

import pathlib
import re
import shutil
import subprocess
import sysconfig
import venv

DEBIANS_RULES = pathlib.Path("/usr/share/bazel/rules")
PARTS = ("benchmarks", "docs", "pate_tf", "tests", "tools")
TOOLCHAIN = """
load("@bazel_tools//tools/python:toolchain.bzl", "py_runtime_pair")

py_runtime(
    name = "runtime",
    interpreter_path = "{interpreter}",
    python_version = "PY3",
)

py_runtime_pair(
    name = "runtimes",
    py3_runtime = ":runtime",
)

toolchain(
    name = "toolchain",
    toolchain = ":runtimes",
    toolchain_type = "@bazel_tools//tools/python:toolchain_type",
)
"""
NATIVE_PYTHON = """
py_binary = native.py_binary
py_library = native.py_library
py_test = native.py_test
"""
NATIVE_C = (
    "".join(
        f"{rule} = native.{rule}\n"
        for rule in ("cc_binary", "cc_import", "cc_library", "cc_test", "cc_toolchain")
    )
    + "cc_toolchain_suite = native.cc_toolchain_suite\n"
)
PACKAGE = """
py_library(
    name = "{name}",
    visibility = ["//visibility:public"],
)
"""
COVERAGE = """
filegroup(
    name = "coverage_report_generator",
    visibility = ["//visibility:public"],
)
"""


def interpreter_without_pate_tf(folder: pathlib.Path) -> pathlib.Path:
    """Makes an environment with the packages of this one, whose start-up hooks don't run."""
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    program = "import sysconfig; print(sysconfig.get_path('purelib'))"
    completed = subprocess.run([python, "-c", program], check=True, capture_output=True, text=True)
    # A folder that a .pth file names is searched; .pth files in there, as of editable
    # installations, are not read.
    packages = pathlib.Path(completed.stdout.strip()) / "packages.pth"
    packages.write_text(sysconfig.get_path("purelib") + "\n")
    return python


def write_files(folder: pathlib.Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def make_workspace(repository: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """Copies the repository to `folder/workspace`, with stubs beside it; returns the copy."""
    workspace, stubs = folder / "workspace", folder / "stubs"
    ignored = shutil.ignore_patterns("__pycache__", ".*", "*.egg-info")
    for part in PARTS:
        shutil.copytree(repository / part, workspace / part, ignore=ignored)
    for file in repository.iterdir():
        if file.is_file() and not file.name.startswith("."):
            shutil.copy(file, workspace)
    packages = {
        name
        for pattern in ("BUILD", "*.bzl")
        for file in workspace.rglob(pattern)
        for name in re.findall(r'"@pypi//(\w+)"', file.read_text())
    }
    interpreter = interpreter_without_pate_tf(folder / "environment")
    write_files(
        stubs,
        {
            "rules_python/BUILD": TOOLCHAIN.format(interpreter=interpreter),
            "rules_python/python/BUILD": "",
            "rules_python/python/defs.bzl": NATIVE_PYTHON,
            "rules_cc/BUILD": "",
            "rules_cc/cc/BUILD": "",
            "rules_cc/cc/defs.bzl": NATIVE_C,
            "remote_coverage_tools/BUILD": COVERAGE,
            **{f"pypi/{name}/BUILD": PACKAGE.format(name=name) for name in packages},
        },
    )
    repositories = {path.name: path for path in stubs.iterdir()}
    for path in repositories.values():
        (path / "WORKSPACE").touch()
    repositories |= {f"rules_{name}": DEBIANS_RULES / name for name in ("java", "proto")}
    lines = ['workspace(name = "pate_tf")', 'register_toolchains("@rules_python//:toolchain")']
    lines += [
        f'local_repository(name = "{name}", path = "{path}")' for name, path in repositories.items()
    ]
    (workspace / "WORKSPACE").write_text("\n\n".join(lines) + "\n")
    return workspace
