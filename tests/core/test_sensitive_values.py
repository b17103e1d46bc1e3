"""No `repr` and no `str` shows a sensitive value: a sweep over every dataclass of the library.

A table lists each class that holds a sensitive value, by its docstring or a field's name.
"""

import dataclasses
import importlib
import pkgutil
import re

import numpy as np
import pytest

import pate_tf
from pate_tf.beam.summing import Block, _Partial

# Fields that must not be shown, by class name; "*" for all fields.
SENSITIVE = {
    "PrivateExamples": ("inputs", "labels", "owners"),
    "VoteCounts": ("values",),
    "SumsByClass": ("values",),
    "Votes": ("labels",),
    "Partition": ("assignment",),
    "LedgerRow": ("details",),
    "StoredCounts": ("answered",),
    "DistinctHistograms": ("rows", "weights"),
    "Forest": ("children", "features", "thresholds", "probabilities"),
    "Estimator": ("fitted",),
    "TrainedTeacher": ("*",),
    "Analysis": ("bounds", "smooth_sensitivity"),
    "RunReport": ("*",),
    "Upload": ("indices", "values"),
    "TextTable": ("fields",),
}
# Classes that are entirely sensitive, with parts that hide themselves.
OF_PARTS = {
    "Fitted": ("source",),
    "CountedVotes": ("counts",),
    "AnsweredVotes": ("counts",),
    "VoteSource": ("groups",),
    "Data": ("private",),
    "TrainingJob": ("examples",),
    "StoredCounts": ("counts",),
}


ACCOUNTING = "pate_tf.accounting."  # mechanisms and costs: public, by their nature


def dataclasses_of_the_library() -> list[type]:
    actual = []
    for module in pkgutil.walk_packages(pate_tf.__path__, "pate_tf."):
        for value in vars(importlib.import_module(module.name)).values():
            is_ours = isinstance(value, type) and value.__module__.startswith("pate_tf.")
            is_public = is_ours and value.__module__.startswith(ACCOUNTING)
            if is_ours and not is_public and dataclasses.is_dataclass(value):
                actual.append(value)
    return actual


ALL = dataclasses_of_the_library()
CLASSES = {kind.__name__: kind for kind in ALL}
SWEPT = {
    name: (*OF_PARTS.get(name, ()), *SENSITIVE.get(name, ())) for name in {**OF_PARTS, **SENSITIVE}
}


class Planted:
    """Replaces a secret value. It must not appear in any text made from it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text

    __str__ = __repr__

    def __format__(self, specification: str) -> str:
        return self.text

    def __len__(self) -> int:
        return 3

    shape = (3, 3)

    def sum(self) -> int:
        return 3


def planted(kind: type, secret: tuple[str, ...]) -> object:
    """Returns an instance whose fields hold words to search for in its texts."""
    instance = object.__new__(kind)
    for field in dataclasses.fields(kind):
        text = "SECRET" if field.name in secret or secret == ("*",) else "shown"
        object.__setattr__(instance, field.name, Planted(text))
    return instance


def test_every_class_of_the_tables_exists():
    assert set(SWEPT) - set(CLASSES) == set()


@pytest.mark.parametrize("name", SENSITIVE)
def test_sensitive_fields_are_not_shown(name):
    kind = CLASSES[name]
    fields = {field.name for field in dataclasses.fields(kind)}
    assert set(SENSITIVE[name]) <= fields | {"*"}
    instance = planted(kind, SENSITIVE[name])
    for text in (repr(instance), str(instance), f"{instance}", f"{[instance]}"):
        assert "SECRET" not in text


@pytest.mark.parametrize("name", OF_PARTS)
def test_parts_hide_themselves(name):
    hints = {field.name: str(field.type) for field in dataclasses.fields(CLASSES[name])}
    for field in OF_PARTS[name]:
        assert any(part in hints[field] for part in (*SWEPT, "FeatureSums")), hints[field]


NAMES = ("epsilon_data_dependent", "bounds", "smooth_sensitivity", "curves", "votes", "counts")


def test_what_is_sensitive_by_docstring_or_name_is_in_a_table():
    for name, kind in CLASSES.items():
        swept = SWEPT.get(name, ())
        # "SENSITIVE; ..." marks an attribute.
        marked = re.findall(r"^ +(\w+): SENSITIVE", kind.__doc__ or "", re.MULTILINE)
        for field in dataclasses.fields(kind):
            is_value = not re.search(r"\b(str|Callable)\b", str(field.type))  # no name, no function
            if field.name in marked or (field.name in NAMES and is_value):
                assert field.name in swept or swept == ("*",), f"{name}.{field.name}"


ARRAYS = re.compile(r"NDArray|IntArray|FloatArray|ndarray|Digests|Tensor\b")
# Arrays that may be shown: of the public pool, of released values, or synthetic.
PUBLIC = {"Summands", "PublicStart", "Regression", "Labels", "OpenedHistogram", "Outcomes"}


@pytest.mark.parametrize("kind", sorted(set(ALL), key=repr), ids=lambda kind: kind.__qualname__)
def test_arrays_are_not_shown_unless_they_are_public(kind):
    """An array is private until the table says that it is public, independent of docstrings."""
    types = {field.name: str(field.type) for field in dataclasses.fields(kind)}
    fields = [name for name, of in types.items() if ARRAYS.search(of) and "Callable" not in of]
    if fields and kind.__name__ not in PUBLIC:
        instance = planted(kind, tuple(fields))
        for text in (repr(instance), f"{instance}", f"{[instance]}"):
            assert "SECRET" not in text


def test_blocks_and_partial_sums_of_a_pipeline_show_nothing():
    block = Block(np.array([[41.0, 7.0]]), np.array([1]), np.array(["Ms Who"]))
    partial = _Partial(np.array([[123456, 789]]), np.array([17], np.uint64), 3)
    for value in (block, partial):
        assert not re.search(r"41|Ms Who|123456|789|17\D|3\D", repr(value).split(" at ")[0])
