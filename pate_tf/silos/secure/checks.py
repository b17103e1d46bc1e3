"""Whether shares are those of one vote for each query, without a look at the votes.

After all shares are committed to, the parties draw public random weights rho, tau and chi. Of each
silo they open

    zero mask + sum rho (v^2 - v) + sum tau (sum_k v - 1)      of degree 2 t, 0 at 0 if votes are
    random mask + sum chi v                                    of degree t

Honest votes pass always; others fail but for a probability of 2^-60 each, and the masks hide all
else (docs/theory_secure.md, Theorems V2 and V3).
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from pate_tf.silos.secure import field, shamir
from pate_tf.silos.secure.field import Elements
from pate_tf.silos.secure.terms import BatchTerms, joined
from pate_tf.silos.secure.votes import NUM_MASKS

NUM_CHECKS = 2


@dataclasses.dataclass(frozen=True, eq=False)
class Challenge:
    """The random weights of a batch's checks, public once every party is committed.

    Attributes:
      rho: of v^2 - v, `[num_queries * num_classes]`.
      tau: of sum_k v - 1, `[num_queries]`.
      chi: of v, `[num_queries * num_classes]`.
    """

    rho: Elements
    tau: Elements
    chi: Elements

    @classmethod
    def of_seeds(cls, seeds: Sequence[bytes], terms: BatchTerms, committed: bytes) -> Challenge:
        """Returns the weights that all parties' seeds together give.

        Args:
          seeds: one of each party, in their order; one that is random is enough.
          terms: of the batch.
          committed: digest of what the parties committed to.
        """
        seed = hashlib.sha256(joined(terms.digest, committed, *seeds)).digest()
        num_queries, num_classes = terms.shape
        num_votes = num_queries * num_classes
        drawn = field.from_seed(seed, 2 * num_votes + num_queries)
        return cls(*np.split(drawn, [num_votes, num_votes + num_queries]))


def check_values(shares: Elements, challenge: Challenge) -> Elements:
    """Returns what a party opens of one silo's shares, `[NUM_CHECKS]`.

    Args:
      shares: the party's shares of masks and votes, `[NUM_MASKS + num_queries * num_classes]`.
      challenge: the batch's weights.
    """
    votes = shares[NUM_MASKS:]
    one = np.uint64(1)
    bits = field.multiply(votes, field.subtract(votes, one))
    sums = field.total(votes.reshape(len(challenge.tau), -1), axis=1)
    valid = field.add(
        field.total(field.multiply(challenge.rho, bits)),
        field.total(field.multiply(challenge.tau, field.subtract(sums, one))),
    )
    low_degree = field.total(field.multiply(challenge.chi, votes))
    return field.add(shares[:NUM_MASKS], np.stack([valid, low_degree]))


def passing(opened: Mapping[int, Elements], *, threshold: int) -> list[bool]:
    """Returns whether each silo passes both checks.

    Args:
      opened: by number of the party, `[num_silos, NUM_CHECKS]`; more than twice the threshold.
      threshold: t.
    """
    num_silos = len(next(iter(opened.values())))
    return [
        _opens({party: values[silo] for party, values in opened.items()}, threshold)
        for silo in range(num_silos)
    ]


def _opens(values: Mapping[int, Elements], threshold: int) -> bool:
    try:
        shamir.reconstruct({i: one[1:] for i, one in values.items()}, degree=threshold)
        valid = shamir.reconstruct({i: one[:1] for i, one in values.items()}, degree=2 * threshold)
    except shamir.InconsistentSharesError:
        return False
    return not valid.any()
