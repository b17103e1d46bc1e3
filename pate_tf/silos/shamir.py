"""Shamir's secret sharing: `degree` + 1 parties can compute a secret, fewer parties learn nothing.

A secret is the value at 0 of a polynomial of this degree. The share of party i is the value of the
polynomial at i (Shamir 1979). Parties are numbered from 1.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from pate_tf.core.checks import IntArray

# Arithmetic on arrays modulo the prime 2**61 - 1.
#
# An element of the field is a uint64 below `PRIME`. NumPy has no 128-bit products, so factors are
# split into a high word of 30 bits and a low word of 31 bits. Because 2**61 = 1 modulo the prime,
# a number is reduced by adding its bits from bit 61 upward to its lower 61 bits.


Elements = npt.NDArray[np.uint64]
Operand = Elements | np.uint64
# A source of randomness: a function that returns `size` uniform 64-bit words.
Words = Callable[[int], npt.NDArray[np.uint64]]

PRIME: Final = 2**61 - 1

_PRIME = np.uint64(PRIME)
_BITS = np.uint64(61)
_LOW_31, _LOW_30, _LOW_32 = (np.uint64(2**bits - 1) for bits in (31, 30, 32))
_31, _30, _32, _1 = (np.uint64(bits) for bits in (31, 30, 32, 1))


def reduced(values: Operand) -> Elements:
    """Returns 64-bit integers modulo the prime, in the same shape."""
    folded = (values & _PRIME) + (values >> _BITS)
    return np.asarray(folded - _PRIME * np.asarray(folded >= _PRIME, np.uint64))


def add(left: Operand, right: Operand) -> Elements:
    """Returns elementwise sums modulo the prime; shapes are broadcast."""
    return reduced(left + right)


def subtract(left: Operand, right: Operand) -> Elements:
    """Returns elementwise differences modulo the prime; shapes are broadcast."""
    return reduced(left + (_PRIME - right))


def multiply(left: Operand, right: Operand) -> Elements:
    """Returns elementwise products modulo the prime; shapes are broadcast.

    Let the factors be a = a1 2**31 + a0 and b = b1 2**31 + b0. Because 2**62 equals 2 modulo the
    prime 2**61 - 1, the product is 2 a1 b1 + (a1 b0 + a0 b1) 2**31 + a0 b0. The code below reduces
    the middle term, so that the three terms are less than 2**61, 2**61 + 2**32 and 2**62, and their
    sum fits into 64 bits.
    """
    a1, a0 = left >> _31, left & _LOW_31
    b1, b0 = right >> _31, right & _LOW_31
    middle = a1 * b0 + a0 * b1
    return reduced(((a1 * b1) << _1) + (middle >> _30) + ((middle & _LOW_30) << _31) + a0 * b0)


def total(values: Elements, axis: int | tuple[int, ...] | None = None) -> Elements:
    """Returns sums modulo the prime over axes with fewer than 2**31 elements; an empty sum is 0."""
    high = np.sum(values >> _32, axis=axis, dtype=np.uint64)
    low = np.sum(values & _LOW_32, axis=axis, dtype=np.uint64)
    return add(multiply(reduced(np.asarray(high)), np.uint64(2**32)), reduced(np.asarray(low)))


def from_integers(values: IntArray) -> Elements:
    """Returns integers between -PRIME and PRIME as field elements, in the same shape."""
    return np.where(values < 0, values + PRIME, values).astype(np.uint64)


def to_integers(values: Elements) -> IntArray:
    """Maps each element x to the integer nearest to 0 that equals x modulo the prime, int64."""
    signed = values.astype(np.int64)
    return np.where(signed > PRIME // 2, signed - PRIME, signed)


def uniform(shape: tuple[int, ...], words: Words) -> Elements:
    """Returns random field elements with an exactly uniform distribution.

    Args:
        shape: shape of the result.
        words: source of uniform 64-bit words. For secrets, it must be the operating system's
            entropy.
    """
    size = int(np.prod(shape))
    drawn = words(size) >> np.uint64(3)
    while (redraw := np.flatnonzero(drawn == _PRIME)).size:
        drawn[redraw] = words(redraw.size) >> np.uint64(3)
    return drawn.reshape(shape)


def from_seed(seed: bytes, size: int) -> Elements:
    """Returns pseudorandom elements `[size]` from a seed, by SHAKE-256.

    The elements are almost uniform: of the 2**61 equally likely random words, two are mapped to 0,
    and exactly one to each other element.
    """
    stream = np.frombuffer(hashlib.shake_256(seed).digest(8 * size), "<u8")
    return reduced(stream.astype(np.uint64) >> np.uint64(3))


def to_bytes(values: Elements) -> bytes:
    """Encodes field elements as bytes, eight per element, little-endian."""
    return values.astype("<u8").tobytes()


def from_bytes(data: bytes, shape: tuple[int, ...], what: str) -> Elements:
    """Decodes the field elements that `to_bytes` encoded.

    Args:
        data: the bytes, eight per element.
        shape: shape of the result.
        what: name of the values in error messages.

    Raises ValueError if the number of bytes is wrong, or a number is not below the prime.
    """
    if len(data) != 8 * int(np.prod(shape)):
        raise ValueError(f"{what} must have {8 * int(np.prod(shape))} bytes, got {len(data)}")
    values = np.frombuffer(data, "<u8").astype(np.uint64)
    if values.size and int(values.max()) >= PRIME:
        raise ValueError(f"{what}: some numbers are not elements of the field")
    return values.reshape(shape)


def share(secrets: Elements, *, num_parties: int, degree: int, words: Words) -> Elements:
    """Splits each secret into one share per party, `[num_parties, *secrets.shape]`.

    Args:
        secrets: elements of the field, any shape.
        num_parties: number of parties; the shares of party i are in row i - 1.
        degree: degree of the polynomials; this many colluding parties learn nothing.
        words: source of uniform 64-bit words for the coefficients of the polynomials.

    Raises ValueError unless 1 <= degree < num_parties.
    """
    if not 1 <= degree < num_parties:
        raise ValueError(f"1 <= degree < num_parties is required, got {degree} and {num_parties}")
    coefficients = uniform((degree, *secrets.shape), words)
    shares = np.empty((num_parties, *secrets.shape), np.uint64)
    for party in range(1, num_parties + 1):
        value = coefficients[-1]
        for coefficient in (*coefficients[-2::-1], secrets):  # Horner's rule
            value = add(multiply(value, np.uint64(party)), coefficient)
        shares[party - 1] = value
    return shares


def interpolate(shares: Mapping[int, Elements], parties: Sequence[int], at: int) -> Elements:
    """Evaluates the polynomials that pass through given shares, by Lagrange interpolation.

    Args:
        shares: maps the number of each party to its shares.
        parties: numbers of the parties whose shares are used, all different.
        at: the point at which the polynomials are evaluated; 0 for the secrets.
    """
    value = np.zeros_like(shares[parties[0]])
    for party in parties:
        over, under = 1, 1
        for other in parties:
            if other != party:
                over = over * (at - other) % PRIME
                under = under * (party - other) % PRIME
        weight = np.uint64(over * pow(under, -1, PRIME) % PRIME)
        value = add(value, multiply(shares[party], weight))
    return value


def reconstruct(shares: Mapping[int, Elements], *, degree: int) -> Elements | None:
    """Returns the secrets of given shares; None if no polynomial of this degree fits all shares.

    Args:
        shares: maps the numbers of at least degree + 1 parties to their shares. If there are more
            shares, they must lie on the same polynomials.
        degree: degree of the polynomials.

    Raises ValueError if there are shares of fewer than degree + 1 parties.
    """
    parties = sorted(shares)
    if len(parties) <= degree:
        raise ValueError(f"the shares of {degree + 1} parties are needed, got {len(parties)}")
    used = parties[: degree + 1]
    for further in parties[degree + 1 :]:
        if not np.array_equal(interpolate(shares, used, further), shares[further]):
            return None
    return interpolate(shares, used, 0)
