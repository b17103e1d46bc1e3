"""Releases noisy labels from teachers' votes: charges the ledger, then draws the noise.

This module imports neither teachers nor TensorFlow. The caller passes the votes and the noise
source.
"""

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from pate_tf.accounting.charge import Cost, ReleasedLabels, shares
from pate_tf.accounting.composition import Charge, smallest_epsilon
from pate_tf.accounting.mechanisms import GaussianHistogram, Mechanism
from pate_tf.accounting.mechanisms.base import Answers
from pate_tf.core import artifacts, checks
from pate_tf.core.checks import IntArray
from pate_tf.core.sensitive import SumsByClass, VoteCounts, Votes
from pate_tf.ledger import Ledger, LedgerError, ledger_file
from pate_tf.release.exact_sums import sums_of_votes
from pate_tf.release.noise import NoiseSource, check_drawable

QUERY_DIGEST_BYTES: Final = 16
# Folder of sensitive files next to the ledger. There is a file for each debit (a ledger row that
# charges queries). The name of the file is the sequence number of the debit, nine digits. The file
# contains the arrays `counts`, int64 `[num_queries, num_classes]`, and `answered`, bool
# `[num_queries]`. For numbers and several labels, `sums` replaces `counts`; see `SumsByClass`.
# Files of earlier versions also contain `adaptive`, a single bool.
VOTES: Final = "votes"

CountVotes = Callable[[npt.NDArray[Any]], Votes | VoteCounts]


@dataclasses.dataclass(frozen=True)
class CountedVotes:
    """SENSITIVE: vote counts, and the mechanism that released noisy labels from them.

    Attributes:
        mechanism: mechanism that drew the noisy labels.
        counts: vote counts; if the target is a number or several labels, sums of predictions.
    """

    mechanism: Mechanism
    counts: VoteCounts | SumsByClass


@dataclasses.dataclass(frozen=True)
class StoredCounts(CountedVotes):
    """SENSITIVE: stored vote counts of one charge, for data-dependent privacy analysis.

    `counts` has a row for each charged query, whether its label was released or withheld.

    Attributes:
        debit: sequence number of the ledger row with the charge.
        answered: for each query, whether its label was released, `[num_queries]`.
        adaptive: whether the counts depend on earlier noisy labels. If they do, a data-dependent
            cost is not valid.
    """

    debit: int
    answered: npt.NDArray[np.bool_] = dataclasses.field(repr=False)
    adaptive: bool


def stored_counts(ledger: Ledger) -> Iterator[StoredCounts]:
    """Yields the stored vote counts of each charge in a ledger.

    Data-dependent privacy analysis needs these counts. Charges without stored answers are skipped:
    because of a crash, nothing was released for them.

    Raises:
        LedgerError: if the counts of a charge are missing or damaged, or have a wrong shape.
    """
    mechanisms: dict[int, Mechanism] = {}
    for row in ledger.history():
        if row.kind == "debit" and row.details["num_queries"]:
            mechanisms[row.sequence] = cast(Mechanism, ledger_file.charge_of(row)[0])
        elif row.kind == "answers":
            debit = int(row.details["debit"])
            if mechanisms[debit].releases_feature_sums:  # no votes
                continue
            path = ledger.folder / VOTES / f"{debit:09d}.npz"
            try:
                arrays = artifacts.read_arrays(path)
                sums = arrays.get("sums")
                counts = VoteCounts(arrays["counts"]) if sums is None else SumsByClass(sums)
                answered = arrays["answered"]
            except (OSError, ValueError, KeyError) as error:
                raise LedgerError(f"{path}: the vote counts of a charge can't be read") from error
            expected = (row.details["num_queries"], row.details["num_answered"])
            if (len(counts.values), int(answered.sum())) != expected:
                raise LedgerError(
                    f"{path}: according to the ledger, the file must contain counts of "
                    f"{expected[0]} queries, {expected[1]} of them answered"
                )
            adaptive = bool(arrays.get("adaptive", False))
            yield StoredCounts(mechanisms[debit], counts, debit, answered, adaptive)


def cost_of_labels(
    ledger: Ledger, mechanism: Mechanism, *, num_distinct: int, rows: Sequence[int], unit: str
) -> Cost:
    """Returns the worst-case (data-independent) cost of labels at the ledger's delta.

    Args:
        ledger: the ledger that was charged for the labels.
        mechanism: mechanism that drew the labels.
        num_distinct: number of distinct queries.
        rows: sequence numbers of the ledger rows with the charges for these labels.
        unit: unit of privacy, "record" or "owner".
    """
    before = Counter[Charge]()
    if any(charge.approximate is not None for charge in ledger.charges):
        # The user may have chosen these queries because earlier queries got no labels, so the cost
        # of the earlier queries is included.
        before = ledger_file.batches_before(ledger.history(), mechanism, last=max(rows, default=0))
    epsilon, _ = smallest_epsilon(Counter({mechanism: num_distinct}) + before, ledger.delta)
    return Cost(
        charge=mechanism,
        number=num_distinct,
        epsilon=epsilon,
        delta=ledger.delta,
        unit=unit,
        before=tuple(before.items()),
    )


def query_digests(inputs: npt.NDArray[Any], mechanism: Mechanism, target: str = "") -> list[bytes]:
    """Returns a digest that identifies each query, to recognize repeated queries.

    The digest depends on the input's bytes, type and shape, on the mechanism and on the target.
    Inputs that differ in their type or in a single bit are different queries, and each query is
    charged.

    Args:
        inputs: queried inputs, `[num_queries, ...]`.
        mechanism: privacy mechanism with its noise.
        target: the predicted value, see `Dataset.target_in_words`. Equal inputs are different
            queries if their targets differ, for example if predicted numbers have different ranges.
    """
    known = [mechanism.to_dict(), inputs.dtype.str, inputs.shape[1:]]
    start = ledger_file.canonical_json(known + [target] * bool(target)).encode()
    prefix = hashlib.blake2b(start + b"\0", digest_size=QUERY_DIGEST_BYTES)
    digests = []
    for row in inputs:
        digest = prefix.copy()
        digest.update(row.tobytes())
        digests.append(digest.digest())
    return digests


def check_sums(mechanism: Charge | type[Charge]) -> None:
    """Raises ValueError unless a mechanism can release noisy sums of teachers' predictions."""
    if mechanism.name != GaussianHistogram.name:
        raise ValueError(
            f"mechanism: {mechanism.name} counts votes for classes; numbers and several labels "
            f"need {GaussianHistogram.name}"
        )


def release_votes(
    inputs: npt.ArrayLike,
    mechanism: Mechanism,
    *,
    voter: CountVotes,
    ledger: Ledger,
    noise: NoiseSource,
    num_classes: int,
    unit: str = "record",
    query_indices: npt.ArrayLike | None = None,
    target: str = "",
) -> ReleasedLabels:
    """Returns noisy labels of queries; charges the ledger for queries without a stored label.

    This function relies on the guarantees of `Ledger`. The worst-case cost of all new queries is
    charged durably before any noise is drawn. A query that was answered before, even in the same
    call, gets the stored answer from the ledger, without a charge and without fresh noise. If the
    process is killed after the charge, the same call resumes without a second charge
    (`Ledger.debited`). If the answers can't be stored, the next call is charged again. Some
    mechanisms withhold the label of a query. Such queries are charged like answered queries.
    Nothing is refunded, because the number of withheld labels is itself an output.

    Args:
        inputs: public queries, `[num_queries, ...]`.
        mechanism: mechanism that draws the labels; its cost is charged.
        voter: function from inputs `[num_queries, ...]` to the teachers' votes or their counts, in
            the same order. The function is called before anything is charged, and only with queries
            that have no answer yet. Every teacher must vote once on every query.
        ledger: privacy ledger of the teachers, opened for labeling.
        noise: source of the privacy noise, which also selects the class with the largest noisy
            count.
        num_classes: number of classes.
        unit: unit of privacy, "record" or "owner".
        query_indices: positions of the queries in the pool, `[num_queries]`. Default: 0, 1, ...
        target: the predicted value, see `Dataset.target_in_words`. If this is a number or several
            labels, a `GaussianHistogram` releases noisy sums (`sums_of_votes`) instead of counts.

    Returns:
        The labels, and the cost of these queries only; equal queries are counted once.

    Raises:
        ValueError: if the mechanism draws no noise, if the voter's counts have the wrong shape, or
            if the number of votes is not the same for all queries.
        BudgetExceeded: if the budget does not cover all new queries. In this case, no query is
            charged or answered.
        LedgerError: if the ledger can't be used, or the mechanism has no finite cost.
    """
    check_drawable(mechanism)
    queries = np.asarray(inputs)
    digests = query_digests(queries, mechanism, target)
    distinct = list(dict.fromkeys(digests))
    first_place = dict(zip(reversed(digests), reversed(range(len(digests))), strict=True))
    with ledger.exclusive():
        answers = ledger.stored_answers(distinct)
        new = [digest for digest in distinct if digest not in answers]
        is_charged = ledger.open_debit(new, secure_noise=noise.is_secure) is not None
    if new:
        if not is_charged:
            number = mechanism.number_charged(len(new))
            ledger.check_affordable(mechanism, number)
        places = [first_place[digest] for digest in new]
        votes = voter(queries[places])
        exact = sums_of_votes(votes) if isinstance(votes, Votes) else votes  # SENSITIVE
        if isinstance(exact, SumsByClass):
            check_sums(mechanism)
        counts = exact.values
        checks.shape([len(places), num_classes], counts=counts)
        with ledger.exclusive():
            answered = ledger.stored_answers(new)  # another process may have stored answers
            rows = [row for row, digest in enumerate(new) if digest not in answered]
            missing = [new[row] for row in rows]
            if rows:
                asked = type(exact)(counts[rows])
                _charge_and_draw(mechanism, missing, asked, ledger=ledger, noise=noise)
            answers |= ledger.stored_answers(new)
    stored = [answers[digest] for digest in digests]
    rows_charged = tuple(sorted({answer.debit for answer in stored}))
    cost = cost_of_labels(
        ledger, mechanism, num_distinct=len(distinct), rows=rows_charged, unit=unit
    )
    indices = np.arange(len(queries)) if query_indices is None else np.asarray(query_indices)
    return _labels_of(
        stored,
        indices,
        num_classes=num_classes,
        num_queries=len(stored),
        cost=cost,
        ledger_rows=rows_charged,
        secure_noise=ledger.is_secure,
    )


def _labels_of(
    stored: Sequence[ledger_file.StoredAnswer], indices: IntArray, **facts: Any
) -> ReleasedLabels:
    """Combines stored answers into `ReleasedLabels`; leaves out queries with a withheld label."""
    is_answered = np.array([answer.label is not None for answer in stored], np.bool_)
    labelled = [answer for answer in stored if answer.label is not None]
    noisy_counts = [answer.noisy_counts for answer in labelled]
    counts = None
    if noisy_counts and None not in noisy_counts:  # every answer has noisy counts
        counts = np.array(noisy_counts, np.int64)
    return ReleasedLabels(
        query_indices=indices[is_answered],
        labels=np.array([answer.label for answer in labelled], np.int64),
        noisy_counts=counts,
        weights=None if counts is None else shares(counts),
        **facts,
    )


def _charge_and_draw(
    mechanism: Mechanism,
    queries: Sequence[bytes],
    exact: VoteCounts | SumsByClass,
    *,
    ledger: Ledger,
    noise: NoiseSource,
) -> None:
    """Charges distinct queries, draws their noisy labels, and stores counts and labels durably.

    If a process that was killed has already charged these queries, they are not charged again.
    """
    with ledger.debited(mechanism, queries, secure_noise=noise.is_secure) as debit:
        if isinstance(exact, SumsByClass):
            sums = cast(GaussianHistogram, mechanism).draw_sums(exact.values, noise)
            drawn = Answers(sums.argmax(axis=1).tolist(), sums)
        else:
            drawn = mechanism.draw(exact.values, noise)
        ledger_file.fault_point("noise_drawn")
        path = ledger.folder / VOTES / f"{debit:09d}.npz"
        arrays = {
            "sums" if isinstance(exact, SumsByClass) else "counts": exact.values,
            "answered": np.array([label is not None for label in drawn.labels], np.bool_),
        }
        try:
            artifacts.make_sensitive_folder(path.parent)
            artifacts.write_arrays(path, arrays, private=True)
        except OSError as error:
            raise LedgerError(f"{path}: the vote counts can't be stored: {error}") from error
        ledger_file.fault_point("counts_kept")
        ledger.store_answers(debit, queries, drawn.labels, drawn.noisy_counts)
