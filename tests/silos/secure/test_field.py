"""The field, against Python integers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pate_tf.release.noise import SystemNoise
from pate_tf.silos import shamir
from pate_tf.silos.shamir import PRIME

EDGES = [0, 1, 2, 2**30, 2**31 - 1, 2**31, 2**32, 2**60, PRIME - 2, PRIME - 1]
ELEMENTS = st.lists(st.one_of(st.sampled_from(EDGES), st.integers(0, PRIME - 1)), min_size=1)
WORDS = SystemNoise().words


def array(values):
    return np.array(values, np.uint64)


def test_the_modulus_is_prime():
    # Lucas and Lehmer's test of 2**61 - 1.
    value = 4
    for _ in range(59):
        value = (value * value - 2) % PRIME
    assert value == 0


@given(ELEMENTS, ELEMENTS)
def test_arithmetic_is_that_of_whole_numbers(one, other):
    pairs = [(a, b) for a in one for b in other]
    left, right = (array(column) for column in zip(*pairs, strict=True))
    assert shamir.add(left, right).tolist() == [(a + b) % PRIME for a, b in pairs]
    assert shamir.subtract(left, right).tolist() == [(a - b) % PRIME for a, b in pairs]
    assert shamir.multiply(left, right).tolist() == [a * b % PRIME for a, b in pairs]


def test_totals_don_t_overflow():
    values = np.full((3, 100_000), PRIME - 1, np.uint64)
    expected = 100_000 * (PRIME - 1) % PRIME
    assert shamir.total(values, axis=1).tolist() == [expected] * 3
    assert int(shamir.total(values)) == 300_000 * (PRIME - 1) % PRIME
    assert shamir.total(values[:0], axis=0).tolist() == [0] * 100_000


@given(st.lists(st.integers(-(2**60) + 1, 2**60 - 1), min_size=1))
def test_signed_numbers_come_back(values):
    signed = np.array(values, np.int64)
    elements = shamir.from_integers(signed)
    assert elements.tolist() == [value % PRIME for value in values]
    assert shamir.to_integers(elements).tolist() == values


def test_uniform_elements_redraw_the_one_word_too_many():
    served = iter([np.full(2, 2**64 - 1, np.uint64), array([8, 2**64 - 1]), array([16])])
    assert shamir.uniform((2,), lambda size: next(served)[:size]).tolist() == [1, 2]


@pytest.mark.parametrize(("num_parties", "degree"), [(3, 1), (3, 2), (5, 2), (7, 3)])
def test_any_parties_above_the_degree_know_the_secret(num_parties, degree):
    secrets = shamir.uniform((4, 3), WORDS)
    shares = shamir.share(secrets, num_parties=num_parties, degree=degree, words=WORDS)
    for first in range(num_parties - degree):
        some = {party + 1: shares[party] for party in range(first, num_parties)}
        assert np.array_equal(shamir.reconstruct(some, degree=degree), secrets)
    with pytest.raises(
        ValueError, match=f"shares of {degree + 1} parties are needed, got {degree}"
    ):
        shamir.reconstruct({i + 1: shares[i] for i in range(degree)}, degree=degree)


def test_shares_of_another_degree_are_noticed():
    shares = shamir.share(array([7]), num_parties=5, degree=3, words=WORDS)
    assert shamir.reconstruct({i + 1: shares[i] for i in range(5)}, degree=2) is None
