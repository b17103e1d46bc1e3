"""Noisy sums of private records' features by class, charged before their noise is drawn.

What was released once is returned again from the ledger and charged once, as by the labeller.
"""

import dataclasses
import hashlib

import numpy as np

from pate_tf.accounting.charge import Cost
from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.aggregation.labeller import QUERY_DIGEST_BYTES, check_owners, cost_of_labels
from pate_tf.aggregation.noise import NoiseSource, check_scales
from pate_tf.core.sensitive import FeatureSums
from pate_tf.core.validation import IntArray, frozen_view
from pate_tf.ledger import Ledger
from pate_tf.ledger.chain import canonical_json, fault_point


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReleasedSums:
    """Public: noisy sums that were paid for, with their cost.

    Attributes:
      values: int64 `[num_features + 1, num_classes]` in units of 1 / LATTICE, read-only.
      cost: data-independent.
      ledger_rows: the row that paid.
      secure_noise: False if the noise came from a seed; then nothing is private.
    """

    values: IntArray = dataclasses.field(repr=False)
    cost: Cost
    ledger_rows: tuple[int, ...]
    secure_noise: bool


def sums_digest(mechanism: Mechanism) -> bytes:
    """Returns what identifies the sums in the ledger of their ensemble, which has one table."""
    text = canonical_json([mechanism.to_dict(), "sums of all records by class"])
    return hashlib.blake2b(text.encode(), digest_size=QUERY_DIGEST_BYTES).digest()


def release_sums(
    sums: FeatureSums, mechanism: Mechanism, *, ledger: Ledger, noise: NoiseSource, unit: str
) -> ReleasedSums:
    """Pays for the sums of an ensemble's records, has noise drawn, and returns both together.

    Guarantees, under those of `Ledger`. They are charged durably before noise is drawn, once for
    each amount of noise. A crash after the debit loses budget, never privacy.

    Args:
      sums: of the ensemble's records, each of which adds a length of at most 1.
      mechanism: one that adds up records, whose noise was fixed without looking at private data.
      ledger: the ensemble's, opened for labelling.
      noise: where privacy noise comes from.
      unit: what is protected, "record" or "owner".

    Raises:
      ValueError: if it adds up none, the noise can't be drawn, or it leaves no finite
        guarantee to owners.
      BudgetExceeded: if they don't fit; then nothing is charged or drawn.
      LedgerError: if the ledger can't be used.
    """
    check_scales(mechanism)
    if not mechanism.adds_records:
        raise mechanism.lacking("sums of records", "sums")
    digest = sums_digest(mechanism)
    with ledger.exclusive():
        if digest not in ledger.stored_answers([digest]):
            ledger.check_affordable(mechanism, 1)
            check_owners(ledger, mechanism, 1, unit=unit)
            fault_point("before_debit")
            debit = ledger.debit(mechanism, [digest], secure_noise=noise.is_secure)
            noisy = mechanism.draw_sums(sums.values, noise)
            fault_point("noise_drawn")
            commonest = int(noisy[-1].argmax())  # of noisy numbers of records
            ledger.store_answers(debit, [digest], [commonest], noisy.reshape(1, -1))
        answer = ledger.stored_answers([digest])[digest]
    rows = (answer.debit,)
    return ReleasedSums(
        values=frozen_view(np.array(answer.noisy_counts, np.int64).reshape(sums.values.shape)),
        cost=cost_of_labels(ledger, mechanism, num_distinct=1, rows=rows, unit=unit),
        ledger_rows=rows,
        secure_noise=ledger.is_secure,
    )
