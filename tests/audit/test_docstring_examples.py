"""The examples in the docstrings of audits; later ones use the run of earlier ones."""

import doctest
import importlib

import pytest

import pate_tf.audit
from pate_tf.representations import contrastive

MODULES = ("mechanism", "run", "report")


@pytest.fixture(scope="module", autouse=True)
def quick():
    """How inputs resemble each other is learnt in few steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contrastive, "STEPS", 30)
        patch.setattr(contrastive, "STUDENT_STEPS", 30)
        yield


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    return {"folder": tmp_path_factory.mktemp("examples")}


@pytest.mark.parametrize("module", MODULES)
def test_examples_give_what_they_say(module, names):
    found = doctest.DocTestFinder(exclude_empty=True).find(
        importlib.import_module(f"pate_tf.audit.{module}"), globs=names
    )
    (test,) = (one for one in found if one.examples)
    test.globs = names
    said: list[str] = []
    assert doctest.DocTestRunner().run(test, out=said.append, clear_globs=False).failed == 0, said


def test_all_that_is_public_has_an_example_or_is_returned_by_one():
    for name in pate_tf.audit.__all__:
        value = getattr(pate_tf.audit, name)
        assert ">>>" in value.__doc__ or isinstance(value, type), name
