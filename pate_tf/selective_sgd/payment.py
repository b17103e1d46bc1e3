"""Each participant pays its own ledger before it uploads anything."""

import dataclasses
import pathlib
from collections.abc import Sequence

import numpy as np

from pate_tf.accounting.composition import smallest_epsilon
from pate_tf.accounting.noisy_training import Training
from pate_tf.ledger import Ledger
from pate_tf.selective_sgd.privacy import Privacy
from pate_tf.values.arrays import IntArray
from pate_tf.values.record_set import RecordSet
from pate_tf.values.sensitive import PrivateExamples


@dataclasses.dataclass(frozen=True, kw_only=True)
class Payment:
    """What one participant paid. Public but for its ledger.

    Attributes:
      participant: from 0.
      charge: what for: all rounds of the run.
      epsilon: of all that the participant's ledger ever paid for, at `delta`.
      delta: of the ledger.
      ledger_head: sequence and digest of the last row of its ledger.
      secure_noise: False if anything was paid for that used predictable noise.
      was_reset: whether an earlier ledger of the participant was gone.
    """

    participant: int
    charge: Training
    epsilon: float
    delta: float
    ledger_head: tuple[int, str]
    secure_noise: bool
    was_reset: bool


def pay(
    folder: pathlib.Path,
    shares: Sequence[PrivateExamples],
    charge: Training,
    privacy: Privacy,
    *,
    paid_before: IntArray,
    secure_noise: bool,
    holders: int = 1,
) -> list[Payment]:
    """Charges every participant's own ledger, durably, before any noise is drawn.

    A participant that paid for this run already, and was stopped, does not pay again: what it drew
    in a round that was not kept never left.

    Args:
      folder: of this run's participants, below `sensitive/`: each has a folder of its own in it.
      shares: their records.
      charge: all rounds of the run.
      privacy: gives budget and delta.
      paid_before: how often each had paid for such a run before this one began.
      secure_noise: whether the noise is unpredictable.
      holders: how many participants hold one record at most; what all of them pay counts.

    Returns:
      What each paid.

    Raises:
      LedgerError: if a ledger can't pay; nothing may be uploaded then.
    """
    payments = []
    for participant, share in enumerate(shares):
        with _opened(folder, participant, share, privacy) as ledger:
            with ledger.exclusive():
                if ledger.paid().get(charge, 0) <= paid_before[participant]:
                    ledger.debit(charge, secure_noise=secure_noise)
            payments.append(
                Payment(
                    participant=participant,
                    charge=charge,
                    epsilon=_epsilon(ledger, holders),
                    delta=ledger.delta,
                    ledger_head=(ledger.head.sequence, ledger.head.digest),
                    secure_noise=ledger.is_secure,
                    was_reset=ledger.was_reset,
                )
            )
    return payments


def _epsilon(ledger: Ledger, holders: int) -> float:
    paid = {charge: number * holders for charge, number in ledger.paid().items()}
    return smallest_epsilon(paid, ledger.delta)[0]


def times_paid(
    folder: pathlib.Path, shares: Sequence[PrivateExamples], charge: Training, privacy: Privacy
) -> IntArray:
    """Returns how often each participant paid for such a run so far; arguments as `pay`."""
    found = []
    for participant, share in enumerate(shares):
        with _opened(folder, participant, share, privacy) as ledger:
            found.append(ledger.paid().get(charge, 0))
    return np.array(found, np.int64)


def _opened(
    folder: pathlib.Path, participant: int, share: PrivateExamples, privacy: Privacy
) -> Ledger:
    records = RecordSet.of(share.inputs)
    return Ledger.open(
        folder / f"{participant:04d}",
        ensemble_digest=records.digest,
        delta=privacy.delta,
        epsilon_budget=privacy.target_epsilon,
        records=records,
    )
