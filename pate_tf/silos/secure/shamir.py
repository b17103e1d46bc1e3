"""Shamir's secret sharing: any threshold + 1 parties know the secret, fewer know nothing.

The share of party i is the value at i of a polynomial whose value at 0 is the secret (Shamir 1979).
Parties count from 1.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from pate_tf.silos.secure import field
from pate_tf.silos.secure.field import Elements, Words


class InconsistentSharesError(ValueError):
    """Shares lie on no polynomial of the degree that they should have."""


def share(secrets: Elements, *, num_parties: int, degree: int, words: Words) -> Elements:
    """Returns a share of each secret for each party, `[num_parties, *secrets.shape]`.

    Args:
      secrets: elements of the field, any shape.
      num_parties: how many parties there are; party i has row i - 1.
      degree: of the polynomials; so many parties together learn nothing.
      words: the entropy of the polynomials.

    Raises:
      ValueError: unless 1 <= degree < num_parties.
    """
    if not 1 <= degree < num_parties:
        raise ValueError(f"expected 1 <= degree < num_parties, got {degree} and {num_parties}")
    coefficients = field.uniform((degree, *secrets.shape), words)
    shares = np.empty((num_parties, *secrets.shape), np.uint64)
    for party in range(1, num_parties + 1):
        value = coefficients[-1]
        for coefficient in (*coefficients[-2::-1], secrets):  # Horner's rule
            value = field.add(field.multiply(value, np.uint64(party)), coefficient)
        shares[party - 1] = value
    return shares


def weights(parties: Sequence[int], at: int) -> list[np.uint64]:
    """Returns Lagrange's weights: the value at a point is the weighted sum of shares.

    Args:
      parties: numbers of the parties whose shares there are, all different.
      at: the point, 0 for the secret.
    """
    found = []
    for party in parties:
        over, under = 1, 1
        for other in parties:
            if other != party:
                over = over * (at - other) % field.PRIME
                under = under * (party - other) % field.PRIME
        found.append(np.uint64(over * pow(under, -1, field.PRIME) % field.PRIME))
    return found


def reconstruct(shares: Mapping[int, Elements], *, degree: int) -> Elements:
    """Returns the secrets of shares, same shape as each of them.

    Args:
      shares: by number of the party, at least degree + 1 of them. All beyond so many are compared
        with the others.
      degree: of the polynomials.

    Raises:
      InconsistentSharesError: if they lie on no polynomial of that degree.
      ValueError: if there are too few.
    """
    parties = sorted(shares)
    if len(parties) <= degree:
        raise ValueError(f"expected the shares of {degree + 1} parties, got {len(parties)}")
    used = parties[: degree + 1]
    for further in parties[degree + 1 :]:
        if not np.array_equal(_value_at(shares, used, further), shares[further]):
            raise InconsistentSharesError(
                f"expected shares of a polynomial of degree {degree}, got others"
            )
    return _value_at(shares, used, 0)


def _value_at(shares: Mapping[int, Elements], parties: Sequence[int], at: int) -> Elements:
    value = np.zeros_like(shares[parties[0]])
    for party, weight in zip(parties, weights(parties, at), strict=True):
        value = field.add(value, field.multiply(shares[party], weight))
    return value
