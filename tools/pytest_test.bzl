"""Tests of pytest as tests of Bazel."""

load("@rules_python//python:defs.bzl", "py_test")

def pytest_test(name, srcs, data = [], tags = [], deps = [], **kwargs):
    """A test that runs pytest on a file.

    Args:
      name: the target's name, as of any rule.
      srcs: the file with the tests, alone.
      data: files that the tests open, besides `pyproject.toml`, which sets up pytest.
      tags: those with the tag `long` run the tests that are marked long, and no others.
      deps: what the tests import, besides pytest.
      **kwargs: go to `py_test`.
    """
    marked = ["-m", "long"] if "long" in tags else []
    py_test(
        name = name,
        srcs = srcs + ["//tools:pytest_main.py"],
        args = ["$(rootpath {})".format(src) for src in srcs] + marked,
        data = data + ["//:pyproject.toml"],
        legacy_create_init = 0,
        main = "//tools:pytest_main.py",
        tags = tags,
        deps = deps + ["//tools:pytest_main"],
        **kwargs
    )
