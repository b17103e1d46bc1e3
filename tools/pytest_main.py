"""Runs pytest as a Bazel test: the main of every `pytest_test`.

The exit code is the exit code of pytest. If pytest finds no test, it is 5, a failure. Results go to
`test.xml`, the file that Bazel names.
"""

import os
import sys

import pytest


def main() -> int:
    """Runs the files and options of the command line; returns the exit code."""
    arguments = [*sys.argv[1:], "-p", "no:cacheprovider"]
    scratch = os.environ.get("TEST_TMPDIR")
    if scratch:
        os.environ.setdefault("HOME", scratch)  # Bazel's sandbox has none
        arguments.append(f"--basetemp={scratch}/pytest")
    if report := os.environ.get("XML_OUTPUT_FILE"):
        arguments.append(f"--junitxml={report}")
    if wanted := os.environ.get("TESTBRIDGE_TEST_ONLY"):  # `bazel test --test_filter=`
        arguments += ["-k", wanted]
    # Processes that tests start import the same modules as the tests.
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    return pytest.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
