"""One command for each job: `python3 make.py demo`, `python3 make.py test`, ...

Needs only Python 3.11 or later and pip. It makes `.venv` in its own folder and installs the
packages that the job needs.
"""

import argparse
import hashlib
import os
import pathlib
import subprocess
import sys
import time
import venv

HERE = pathlib.Path(__file__).resolve().parent
VENV = HERE / ".venv"
PYTHON = VENV / ("Scripts" if os.name == "nt" else "bin") / "python"

# Each line is a step: commands that run side by side.
DEMO = [("tools/demo.py",)]
DEMO_SILOS = [("tools/demo.py --silos",)]
DEMO_HOSTS = [("tests/network_hosts.py",)]
DEMO_CLUSTER = [("tools/cluster.py",)]
LINT = ("-m ruff check .", "-m ruff format --check .", "-m codespell_lib")
MYPY = "-m mypy"
SPHINX = "-m sphinx --quiet --fail-on-warning --keep-going docs build/docs"
# By file and in order, so that shared preparations run once, and small files come last.
TEST = ("-m pytest -n 2 --dist=loadfile --no-loadscope-reorder",)
LONG = ("-m pytest -n 2 -m long",)

JOBS = {
    "demo": ("both methods on the embedded digits, side by side", "", DEMO),
    "demo-silos": (
        "five silos, four aggregators and a coordinator as processes, over TLS",
        "[silos]",
        DEMO_SILOS,
    ),
    "demo-cluster": ("feature sums on a cluster that loses a worker", "[cluster]", DEMO_CLUSTER),
    "docs": ("the guide, in build/docs", "[docs]", [(SPHINX,)]),
    "test": ("linters, types, the guide and tests", "[docs,test]", [LINT, (MYPY, SPHINX, *TEST)]),
    "long": ("the tests that take too long for every day", "[test]", [LONG]),
    "lint": ("linters and types alone", "[test]", [LINT, (MYPY,)]),
}


def install(extras: str) -> None:
    """Makes the virtual environment and installs missing packages."""
    wanted = "".join((HERE / name).read_text() for name in ("setup.py", "constraints.txt"))
    stamp = VENV / f"installed{extras}-{hashlib.sha256(wanted.encode()).hexdigest()[:16]}"
    if stamp.exists():
        return
    print(f"setting up {VENV} (a few minutes the first time)", flush=True)
    if not PYTHON.exists():
        venv.create(VENV, with_pip=True)
    # Of 14,000 modules only imported ones are compiled, at import. This saves a minute.
    pip = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", "install", "--no-compile"]
    needs = ["--quiet", "--constraint", "constraints.txt", "--editable", f".{extras}"]
    subprocess.run([*pip, *needs], cwd=HERE, check=True)
    stamp.touch()


def run_together(commands: tuple[str, ...]) -> int:
    """Runs commands side by side. The first failure ends the rest. Returns its exit code."""
    running = [subprocess.Popen([str(PYTHON), *one.split()], cwd=HERE) for one in commands]
    try:
        while True:
            codes = [one.poll() for one in running]
            if failed := [code for code in codes if code]:
                return failed[0]
            if None not in codes:
                return 0
            time.sleep(0.2)
    finally:
        for one in running:
            one.terminate()
        for one in running:
            one.wait()


def main() -> int:
    """Runs the steps of a job until one fails; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "job", choices=JOBS, help="; ".join(f"{name}: {job[0]}" for name, job in JOBS.items())
    )
    parser.add_argument("--hosts", action="store_true", help="demo-silos: each on a host (Linux)")
    given = parser.parse_args()
    _, extras, steps = JOBS[given.job]
    if given.hosts:
        if given.job != "demo-silos":
            parser.error("--hosts: expected with demo-silos alone")
        steps = DEMO_HOSTS
    if sys.version_info < (3, 11):  # noqa: UP036  (older ones run this file too)
        print(f"error: expected Python 3.11 or later, got {sys.version.split()[0]}")
        return 1
    # otherwise each process would compile them anew
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    try:
        install(extras)
    except subprocess.CalledProcessError:
        print("error: pip could not install what the job needs; see above", file=sys.stderr)
        return 1
    for commands in steps:
        print("", *(f"$ python {command}" for command in commands), sep="\n", flush=True)
        if code := run_together(commands):
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
