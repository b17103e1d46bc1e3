"""Runs the examples in the docstrings of the public API, each after the examples that it needs."""

import doctest
import importlib
import inspect
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
from encoder_helpers import train_briefly

import pate_tf
import pate_tf.audit

MECHANISMS = ("noisy_max", "charged_once")
MODULES = (
    *("data.loaded_data", "teachers.teacher_set", "run.labeller", "queries.labels"),
    *("run.student", "statement.publishing", "statement.privacy_statement", "release.feature_sums"),
    *("ledger.privacy_ledger", "ledger.ledger_file", "run.classifier"),
    *(
        "representations.catalogue",
        "core.dataset",
        "accounting.charge",
        "planning.comparison",
        "planning.forecast",
        "run.pipeline",
    ),
    *("audit.run_audit",),
    *(f"accounting.mechanisms.{name}" for name in MECHANISMS),
)


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    """A representation is trained in few steps."""
    with pytest.MonkeyPatch.context() as patch:
        train_briefly(patch, 30, 30)
        yield


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Returns the names that earlier examples define for later ones."""
    folder: pathlib.Path = tmp_path_factory.mktemp("examples")
    return {"folder": folder}


@pytest.mark.parametrize("module", MODULES)
def test_examples_give_what_they_say(module, names):
    actual = doctest.DocTestFinder(exclude_empty=True).find(
        importlib.import_module(f"pate_tf.{module}"), globs=names
    )
    examples = [test for test in actual if test.examples]
    assert examples
    for test in sorted(examples, key=lambda test: test.lineno or 0):
        test.globs = names
        said: list[str] = []
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
        assert runner.run(test, out=said.append, clear_globs=False).failed == 0, "".join(said)


def test_every_class_and_function_of_the_public_api_has_an_example():
    for name in pate_tf.audit.__all__:
        value = getattr(pate_tf.audit, name)
        assert ">>>" in value.__doc__ or isinstance(value, type), name
    public = {name: getattr(pate_tf, name) for name in pate_tf.__all__}
    texts = {name: one.__doc__ for name, one in public.items() if not inspect.ismodule(one)}
    assert [name for name, text in texts.items() if ">>>" not in text] == []
    assert {one.__module__.removeprefix("pate_tf.") for one in map(public.get, texts)} <= set(
        MODULES
    )
