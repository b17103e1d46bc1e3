"""Runs pytest as a test of Bazel: the main of every `pytest_test`.

The exit code is pytest's: 5, a failure, where no test was found. Results go to the file that Bazel
names, `test.xml`.
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
    # Processes that tests start import what the tests import.
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    return pytest.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
