"""Releases feature sums of private records: charges the ledger, then adds noise.

Sums that were already released are returned from the ledger without another charge.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from pate_tf.accounting.charge import Cost, ReleasedLabels
from pate_tf.accounting.composition import lacking
from pate_tf.accounting.conversions import LATTICE
from pate_tf.accounting.mechanisms import LaplaceClusterCounts
from pate_tf.accounting.mechanisms.base import Mechanism, ReleasesFeatureSums, Target
from pate_tf.accounting.mechanisms.charged_once import RESIDUAL_NORM
from pate_tf.core.checks import IntArray, frozen_view
from pate_tf.core.public import STANDARD_DEVIATIONS, Pool, PoolLabels
from pate_tf.core.sensitive import SumsByClass
from pate_tf.ledger import Ledger
from pate_tf.ledger.ledger_file import canonical_json, fault_point
from pate_tf.queries.labels import Labels
from pate_tf.release.noise import NoiseSource, check_drawable
from pate_tf.release.votes import QUERY_DIGEST_BYTES, cost_of_labels


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReleasedSums:
    """Public: released noisy feature sums, and their privacy cost.

    Attributes:
        values: tables of the sums of all rounds, one below the other, int64 `[num_rounds *
            num_rows, num_classes]` in units of 1 / LATTICE, read-only. Only `GaussianResidualSums`
            has several rounds.
        cost: worst-case (data-independent) cost of all rounds.
        ledger_rows: sequence numbers of the ledger rows that charged the sums. There are several
            rows only if an interrupted run could not be resumed.
        secure_noise: False if the noise came from a seed, so that the sums are not private.
        is_new: whether noise was drawn for this object. Otherwise the sums are stored ones.
    """

    values: IntArray = dataclasses.field(repr=False)
    cost: Cost
    ledger_rows: tuple[int, ...]
    secure_noise: bool
    is_new: bool = True


OF_RECORDS = "sums of all records by class"


def sums_digests(mechanism: ReleasesFeatureSums, about: str = OF_RECORDS) -> list[bytes]:
    """Returns a digest for each round of a release, which identifies its sums in the ledger.

    Args:
        mechanism: privacy mechanism with its noise and number of rounds.
        about: description of the sums.
    """
    what: list[object] = [mechanism.to_dict(), about]
    later = range(1, mechanism.num_rounds)
    rounds = [what, *([*what, number, RESIDUAL_NORM] for number in later)]
    return [
        hashlib.blake2b(canonical_json(table).encode(), digest_size=QUERY_DIGEST_BYTES).digest()
        for table in rounds
    ]


def sums_in_ledger(
    ledger: Ledger, mechanism: ReleasesFeatureSums, about: str = OF_RECORDS
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the noisy sums of a mechanism from a ledger, and the rows that charged them.

    The sums of each round are flattened. If a run was interrupted, the sums of its last rounds may
    be missing.
    """
    digests = sums_digests(mechanism, about)
    answers = ledger.stored_answers(digests)
    stored = [answers[digest] for digest in digests if digest in answers]
    numbers = tuple(number for answer in stored for number in answer.noisy_counts or ())
    return numbers, tuple(sorted({answer.debit for answer in stored}))


def release_sums(
    sums: SumsByClass,
    mechanism: Mechanism,
    *,
    ledger: Ledger,
    noise: NoiseSource,
    unit: str,
    next_sums: Callable[[IntArray], IntArray] | None = None,
    about: str = OF_RECORDS,
) -> ReleasedSums:
    """Charges the ledger for sums of private records, adds noise, and returns the noisy sums.

    These guarantees hold in addition to the guarantees of `Ledger`: The charge is durable before
    noise is drawn. All rounds are charged together; the same mechanism is charged only once for the
    same sums. Each round is stored durably before the next round begins, and nothing is released
    before all rounds are stored. A run that was killed resumes without a second charge
    (`Ledger.debited`): it reuses the stored rounds and draws the missing rounds.

    Args:
        sums: exact sums over the records. The contribution of each record has an L2 norm of at most
            1. SENSITIVE.
        mechanism: a mechanism for sums of records. The noise scale of this mechanism must have been
            chosen without looking at private data.
        ledger: privacy ledger of the records, opened for labeling.
        noise: source of the privacy noise.
        unit: the unit of privacy, "record" or "owner".
        next_sums: required only for several rounds: a function that takes the noisy sums so far,
            `[num_earlier, num_rows, num_classes]`, and returns the exact sums of the next round.
        about: description of the sums. Sums with a different description are charged separately.

    Raises:
        ValueError: if the mechanism does not release sums of records, or its noise can't be drawn.
        BudgetExceeded: if the budget is too small; nothing is charged or drawn.
        LedgerError: if the ledger can't be used.
    """
    if not isinstance(mechanism, ReleasesFeatureSums):
        raise lacking(mechanism, "sums of records", "sums")
    check_drawable(mechanism)
    if mechanism.unit == "owner" and unit != "owner":
        raise ValueError(f"unit must be 'owner' for {mechanism.summary()}, got {unit!r}")
    if unit == "owner" and mechanism.num_rounds > 1:  # later rounds clip records, but not owners
        raise ValueError("num_rounds must be 1 for owners: later rounds protect only records")
    if (mechanism.num_rounds > 1) != (next_sums is not None):
        raise ValueError(
            f"`next_sums` is required for several rounds, and not allowed for one round. Got "
            f"num_rounds={mechanism.num_rounds}"
        )
    digests = sums_digests(mechanism, about)
    shape = (-1, *sums.values.shape)
    with ledger.exclusive():
        noisy = np.array(sums_in_ledger(ledger, mechanism, about)[0], np.int64).reshape(shape)
        if is_new := len(noisy) < mechanism.num_rounds:
            is_secure = noise.is_secure
            if ledger.open_debit(digests, secure_noise=is_secure) is None:
                ledger.check_affordable(mechanism, 1)
            with ledger.debited(mechanism, digests, secure_noise=is_secure) as debit:
                for digest in digests[len(noisy) :]:
                    exact = sums.values if next_sums is None or not len(noisy) else next_sums(noisy)
                    drawn = mechanism.draw_sums(exact, noise)
                    fault_point("noise_drawn")
                    # The last row of the first round's sums is the noisy number of records of each
                    # class.
                    most_frequent = int(drawn[-1].argmax())
                    ledger.store_answers(debit, [digest], [most_frequent], drawn.reshape(1, -1))
                    noisy = np.concatenate([noisy, drawn[None]])
        _, rows = sums_in_ledger(ledger, mechanism, about)
    return ReleasedSums(
        values=frozen_view(noisy.reshape(-1, shape[-1])),
        cost=cost_of_labels(ledger, mechanism, num_distinct=len(rows), rows=rows, unit=unit),
        ledger_rows=rows,
        secure_noise=ledger.is_secure,
        is_new=is_new,
    )


def released_with(inferred: PoolLabels, pool: Pool, sums: ReleasedSums, **facts: Any) -> Labels:
    """Combines labels that were inferred from noisy sums, and the sums' cost, into `Labels`.

    Args:
        inferred: inferred labels of all inputs of the pool.
        pool: the public pool.
        sums: the noisy sums from which the labels were inferred.
        **facts: further fields of `Labels`.
    """
    released = ReleasedLabels(
        query_indices=inferred.query_indices,
        labels=inferred.labels,
        num_classes=inferred.num_classes,
        num_queries=len(pool),
        cost=sums.cost,
        ledger_rows=sums.ledger_rows,
        secure_noise=sums.secure_noise,
        noisy_sums=sums.values,
    )
    return Labels(
        pool=pool,
        queries=released.query_indices,
        released=released,
        training_labels=inferred,
        strategy="first",  # all inputs of the pool, in their order
        **facts,
    )


def linear_head_of(encoder: Any, weights: npt.NDArray[np.float64]) -> Any:
    """Returns a student: an encoder, followed by a linear layer with the given weights.

    Args:
        encoder: encoder from raw inputs to features.
        weights: weights of the linear layer, `[width, num_classes]`.
    """
    from pate_tf.models.encoder import SavedEncoder, save_encoder
    from pate_tf.students.student_kinds.linear_head import LinearHead

    with tempfile.TemporaryDirectory() as folder:
        save_encoder(pathlib.Path(folder), encoder)
        loaded = SavedEncoder(pathlib.Path(folder), encoder.dataset).loaded
    scale = np.ones(encoder.num_features) if encoder.scale is None else encoder.scale
    return LinearHead(loaded, encoder.dataset, scale, weights)


# An accuracy estimate with noise: the accuracy, both limits of its 95 % interval, the pure epsilon
# that it cost and, for two classes, the share of the most frequent class. Public.
EstimatedAccuracy = tuple[float, float, float, float, float | None]


def mechanism_of_estimate(epsilon: float, unit: str = "record") -> LaplaceClusterCounts:
    """Returns the mechanism that estimates an accuracy at a given pure epsilon."""
    target = Target(epsilon=epsilon, delta=0.0, unit=unit)
    return LaplaceClusterCounts.for_target(target, np.zeros((1, 2), np.int64))  # one cluster


def estimate_accuracy(
    is_correct: npt.NDArray[Any],
    owners: npt.NDArray[np.generic] | None,
    epsilon: float,
    release: Callable[[IntArray, LaplaceClusterCounts], IntArray],
    labels: IntArray | None = None,
) -> EstimatedAccuracy:
    """Estimates a public model's accuracy from noisy numbers of wrong and correct predictions.

    Laplace noise is added to all numbers. One record changes the numbers by a total of 1. With
    owners, all records of one owner together change the numbers by a total of 1. So the mechanism
    `LaplaceClusterCounts` applies, with one cluster and the two classes "wrong" and "correct", or
    four of them if `labels` are given (docs/proofs/theory.md, Proposition D9). The confidence
    interval covers the noise and the random choice of held-back records.

    Args:
        is_correct: whether the model's prediction for each record is correct, `[num_records]`, or a
            degree of correctness from 0 to 1. SENSITIVE.
        owners: owner of each record, `[num_records]`; None if the unit of privacy is a record.
        epsilon: pure epsilon of the estimate.
        release: function that takes exact counts, `[1, 2]` or `[1, 4]` in units of 1 / LATTICE,
            charges their cost, and returns noisy counts.
        labels: classes of the records, 0 or 1, to compare with the share of the most frequent
            class; None for other targets, because more counts have more noise in total. SENSITIVE.
    """
    steps = np.full(len(is_correct), LATTICE)
    if owners is not None:
        _, number, sizes = np.unique(owners, return_inverse=True, return_counts=True)
        steps = LATTICE // sizes[number]
    degrees = np.clip(np.nan_to_num(is_correct.astype(np.float64)), 0.0, 1.0)
    right = np.floor(steps * degrees).astype(np.int64)
    classes = np.zeros(len(right), np.int64) if labels is None else labels
    exact = np.zeros((1 if labels is None else 2, 2), np.int64)
    np.add.at(exact, classes, np.stack([steps - right, right], axis=1))
    mechanism = mechanism_of_estimate(epsilon, "record" if owners is None else "owner")
    # A ledger of an earlier version may have stored an estimate without classes.
    counts = (release(exact.reshape(1, -1), mechanism) / LATTICE).reshape(-1, 2)
    num_wrong, num_right = counts.sum(axis=0).clip(0.0)
    total = max(num_wrong + num_right, 1.0)
    largest = float((counts.sum(axis=1) / total).max().clip(0.0, 1.0))
    constant = largest if len(counts) > 1 else None
    accuracy = float(num_right / total)
    # This is the interval of Agresti and Coull 1998, which assumes that a prediction is either
    # correct or wrong. Degrees of correctness between 0 and 1 have less variance, so the interval
    # is valid for them, too.
    drawn = (num_right + 2.0) / (total + 4.0)
    variance = drawn * (1.0 - drawn) / total + counts.size * (mechanism.scale / total) ** 2
    half = STANDARD_DEVIATIONS * math.sqrt(variance)
    return accuracy, max(accuracy - half, 0.0), min(accuracy + half, 1.0), epsilon, constant
