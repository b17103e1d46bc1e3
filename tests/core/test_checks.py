"""The validators accept the documented values and refuse the rest in one line that
shows no array.
"""

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pate_tf.core import checks

NUMBERS = st.one_of(st.integers(), st.floats(), st.floats(width=32).map(np.float32))
OTHERS = st.one_of(
    st.booleans(),
    st.none(),
    st.text(max_size=200),
    st.lists(st.integers()),
    st.just(np.array([0.5, 12345.0])),
    st.just(np.bool_(True)),
    st.just(0.5 + 0j),
)


def accepts(validator, *limits, value, **settings):
    """Returns whether a validator accepts a value. A refusal must be one line without arrays."""
    try:
        validator(*limits, quantity=value, **settings)
    except ValueError as error:
        assert re.fullmatch(r"quantity must be .+, got .{1,80}", str(error)), str(error)
        assert "12345" not in str(error) or np.ndim(value) == 0
        return False
    return True


@given(NUMBERS)
def test_numbers_are_accepted_in_their_interval_alone(value):
    assert accepts(checks.positive, value=value) == (0 < value < math.inf)
    for ends in ("()", "[]", "(]", "[)"):
        expected = (value >= 0 if ends[0] == "[" else value > 0) and (
            value <= 1 if ends[1] == "]" else value < 1
        )
        assert accepts(checks.between, 0, 1, value=value, ends=ends) == expected
    assert accepts(checks.between, 0, math.inf, value=value, ends="(]") == (value > 0)
    is_whole = isinstance(value, int)
    assert accepts(checks.whole, value=value) == (is_whole and value >= 1)
    assert accepts(checks.whole, -3, 5, value=value) == (is_whole and -3 <= value <= 5)


@given(OTHERS)
def test_other_types_are_no_numbers(value):
    for validator in (checks.positive, checks.whole):
        assert not accepts(validator, value=value)
    assert not accepts(checks.between, 0, 1, value=value, ends="[]")


def test_choices_are_compared_by_type_and_value():
    checks.one_of(("a", 1), first="a", second=1)
    for value in ("b", True, 1.0, None, np.array(["a"])):
        assert not accepts(checks.one_of, ("a", 1), value=value)


def test_an_axis_with_a_name_or_none_has_any_length():
    votes, labels = np.zeros((3, 10)), np.zeros((4, 10))
    checks.shape(["num_queries", 10], votes=votes, labels=labels)
    checks.shape([None, 10], votes=votes, labels=labels)
    for expected, message in (
        ([3, 10], "labels must have the shape [3, 10], got [4, 10]"),
        ([None], "votes must have the shape [None], got [3, 10]"),
        (["n", "m", "k"], "votes must have the shape [n, m, k], got [3, 10]"),
    ):
        with pytest.raises(ValueError, match="^" + re.escape(message) + "$"):
            checks.shape(expected, votes=votes, labels=labels)
