"""Whether shares are those of one vote for each query, without a look at the votes.

After all shares are committed to, the parties draw public random weights rho, tau and chi. Beside
its votes v a silo shares a random number a and its square b for each query. Of each silo the
parties open, one after the other, values of polynomials of degree t:

    y = a + sum_k rho v                                                    for each query
    sum tau (y^2 - 2 y a + b - sum_k rho^2 v) + sum chi (sum_k v - 1)      0 if votes are

With z = sum_k rho v the bracket of tau is z^2 - sum_k rho^2 v + (b - a^2), which is 0 for one-hot
votes alone (Boneh et al. 2021, "Lightweight techniques for private heavy hitters"). Every opened
value is determined by the shares of honest parties, so that others can spoil an opening but not
change it (docs/theory_secure.md, Theorems V2 and V3).
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from pate_tf.silos.secure import field, shamir
from pate_tf.silos.secure.field import Elements
from pate_tf.silos.secure.terms import BatchTerms, joined
from pate_tf.silos.secure.votes import split_shares


def challenge_seed(seeds: Sequence[bytes], terms: BatchTerms, committed: bytes) -> bytes:
    """Returns what all parties' seeds together give, 32 bytes; one random seed is enough.

    Args:
      seeds: one of each party, in their order.
      terms: of the batch.
      committed: digest of what the parties committed to.
    """
    return hashlib.sha256(joined(terms.digest, committed, *seeds)).digest()


@dataclasses.dataclass(frozen=True, eq=False)
class Challenge:
    """The random weights of a batch's checks, public once every party is committed.

    Attributes:
      rho: of votes, `[num_queries, num_classes]`.
      tau: of squares, `[num_queries]`.
      chi: of numbers of votes, `[num_queries]`.
    """

    rho: Elements
    tau: Elements
    chi: Elements

    @classmethod
    def of_seed(cls, seed: bytes, terms: BatchTerms) -> Challenge:
        """Returns the weights that a `challenge_seed` gives."""
        num_queries, num_classes = terms.shape
        num_votes = num_queries * num_classes
        drawn = field.from_seed(seed, num_votes + 2 * num_queries)
        rho, tau, chi = np.split(drawn, [num_votes, num_votes + num_queries])
        return cls(rho.reshape(terms.shape), tau, chi)

    def masked(self, shares: Elements) -> Elements:
        """Returns a party's shares of y of one silo, `[num_queries]`.

        Args:
          shares: the party's shares of the silo's numbers, `[share_size(terms)]`.
        """
        a, _, votes = split_shares(shares, self.rho.shape)
        return field.add(a, field.total(field.multiply(self.rho, votes), axis=1))

    def check_value(self, shares: Elements, opened: Elements) -> np.uint64:
        """Returns a party's share of the number that is 0 if one silo's votes are.

        Args:
          shares: the party's shares of the silo's numbers, `[share_size(terms)]`.
          opened: y of the silo, `[num_queries]`.
        """
        a, b, votes = split_shares(shares, self.rho.shape)
        squares = field.total(field.multiply(field.multiply(self.rho, self.rho), votes), axis=1)
        twice = field.multiply(np.uint64(2), field.multiply(opened, a))
        brackets = field.subtract(
            field.add(field.multiply(opened, opened), b), field.add(twice, squares)
        )
        missing = field.subtract(field.total(votes, axis=1), np.uint64(1))
        return np.uint64(
            field.add(
                field.total(field.multiply(self.tau, brackets)),
                field.total(field.multiply(self.chi, missing)),
            )
        )


def opened(values: Mapping[int, Elements], *, threshold: int) -> list[Elements | None]:
    """Returns what parties' shares open of each silo, `[num_values]`; None where they don't fit.

    Args:
      values: by number of the party, its shares `[num_silos, num_values]`.
      threshold: degree of the polynomials.
    """
    num_silos = len(next(iter(values.values())))
    found: list[Elements | None] = []
    for silo in range(num_silos):
        shares = {party: rows[silo] for party, rows in values.items()}
        try:
            found.append(shamir.reconstruct(shares, degree=threshold))
        except shamir.InconsistentSharesError:
            found.append(None)
    return found
