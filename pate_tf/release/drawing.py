"""The labeller: the release boundary between votes and labels. It charges, then it answers.

Nothing here knows teachers or TensorFlow: who votes and what picks noisy winners are passed in.
"""

import dataclasses
import hashlib
import pathlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pate_tf.accounting.charge import Charge, Cost, ReleasedLabels
from pate_tf.accounting.composition import smallest_epsilon
from pate_tf.accounting.group_privacy import replaced_owner_epsilon
from pate_tf.accounting.mechanisms import (
    InteractiveGaussianNoisyMax,
    Mechanism,
    mechanism_from_dict,
)
from pate_tf.accounting.mechanisms.base import NoisyWinners
from pate_tf.core import artifacts
from pate_tf.core.sensitive import VoteCounts, Votes
from pate_tf.core.validation import IntArray
from pate_tf.ledger import Ledger, LedgerError, StoredAnswer
from pate_tf.ledger.chain import batches_before, canonical_json, charge_fields, fault_point
from pate_tf.release.noise import NoiseSource, check_drawable

# The votes behind charged answers, stored next to the ledger.
#
# `votes/<sequence of the debit, nine digits>.npz` holds the counts of the queries of that row:
# `counts` int64 `[num_queries, num_classes]`, `answered` bool `[num_queries]` and `adaptive`,
# one bool. They are sensitive and serve data-dependent analysis alone.


VOTES: Final = "votes"


def store_counts(
    folder: pathlib.Path,
    debit: int,
    counts: IntArray,
    *,
    labels: Sequence[int | None],
    adaptive: bool,
) -> None:
    """Stores the counts of a charged batch, durably, before its labels are released.

    Args:
        folder: the ledger's.
        debit: sequence of the batch's ledger row.
        counts: int64 `[num_queries, num_classes]`.
        labels: what was drawn for them; None where a label was withheld.
        adaptive: see `StoredCounts`.

    Raises:
        LedgerError: if they can't be stored.
    """
    path = folder / VOTES / f"{debit:09d}.npz"
    answered = np.array([label is not None for label in labels], np.bool_)
    try:
        artifacts.make_sensitive_folder(path.parent)
        arrays = {"counts": counts, "answered": answered, "adaptive": np.array(adaptive)}
        artifacts.write_arrays(path, arrays, private=True)
    except OSError as error:
        raise LedgerError(
            f"{path}: the counts of a charged batch can't be stored: {error}"
        ) from error


@dataclasses.dataclass(frozen=True)
class StoredCounts:
    """Sensitive: the counts behind the answers of one debit.

    Attributes:
        debit: sequence of the ledger row.
        mechanism: what answered.
        counts: a row for each query that was charged, answered or withheld.
        answered: which of them got a label, `[num_queries]`.
        adaptive: whether they depend on earlier noisy labels, so that no data-dependent cost holds.
    """

    debit: int
    mechanism: Mechanism
    counts: VoteCounts
    answered: npt.NDArray[np.bool_] = dataclasses.field(repr=False)
    adaptive: bool


def stored_counts(ledger: Ledger) -> Iterator[StoredCounts]:
    """Yields the counts behind all stored answers, for data-dependent analysis.

    A debit whose answers were lost in a crash released nothing and is left out.

    Raises:
        LedgerError: if the counts of a debit are missing, damaged, or of another shape.
    """
    mechanisms: dict[int, Mechanism] = {}
    for row in ledger.history():
        if row.kind == "debit" and row.details["num_queries"]:
            mechanisms[row.sequence] = mechanism_from_dict(charge_fields(row)[0])
        elif row.kind == "answers":
            debit = int(row.details["debit"])
            if mechanisms[debit].releases_feature_sums:  # of which no teacher voted
                continue
            path = ledger.folder / VOTES / f"{debit:09d}.npz"
            try:
                arrays = artifacts.read_arrays(path)
                counts, answered = VoteCounts(arrays["counts"]), arrays["answered"]
            except (OSError, ValueError, KeyError) as error:
                raise LedgerError(f"{path}: expected the counts of a charged batch") from error
            expected = (row.details["num_queries"], row.details["num_answered"])
            if (counts.num_queries, int(answered.sum())) != expected:
                raise LedgerError(
                    f"{path}: expected counts of {expected[0]} queries, {expected[1]} of them "
                    f"answered, got others"
                )
            # Before there was a choice, none was adaptive.
            adaptive = bool(arrays.get("adaptive", False))
            yield StoredCounts(debit, mechanisms[debit], counts, answered, adaptive)


# What labels cost: the one place that counts how often a mechanism is charged.


def cost_of_labels(
    ledger: Ledger, mechanism: Mechanism, *, num_distinct: int, rows: Sequence[int], unit: str
) -> Cost:
    """Returns what labels cost at the ledger's delta, data-independent.

    Args:
        ledger: that was charged.
        mechanism: what drew the labels.
        num_distinct: how many different queries were asked for them.
        rows: sequences of the rows that charged them.
        unit: what is protected, "record" or "owner".
    """
    number = len(rows) if mechanism.charged_per_batch else num_distinct
    # A batch without labels that made its user ask for these is a part of what they tell. Of a
    # mechanism that is charged once for a batch every batch counts, up to theirs.
    charged: Counter[Charge] = Counter({} if mechanism.charged_per_batch else {mechanism: number})
    if any(one.charged_per_batch for one in ledger.charges):
        charged += batches_before(ledger.history(), mechanism, last=max(rows, default=0))
    epsilon, _ = smallest_epsilon(charged, ledger.delta)
    return Cost(
        charge=mechanism,
        number=number,
        epsilon=epsilon,
        delta=ledger.delta,
        unit=unit,
        before=tuple((charged - Counter({mechanism: number})).items()),
    )


QUERY_DIGEST_BYTES: Final = 16

CountVotes = Callable[[npt.NDArray[Any]], Votes | VoteCounts]


def query_digests(inputs: npt.NDArray[Any], mechanism: Mechanism) -> list[bytes]:
    """Returns what identifies each query: mechanism, type, shape and bytes of the input.

    Inputs that differ in a single bit, or in their type, are different queries, each charged.

    Args:
        inputs: `[num_queries, ...]`.
        mechanism: what answers.

    Returns:
        A digest of 16 bytes for each query.
    """
    start = canonical_json([mechanism.to_dict(), inputs.dtype.str, inputs.shape[1:]]).encode()
    prefix = hashlib.blake2b(start + b"\0", digest_size=QUERY_DIGEST_BYTES)
    digests = []
    for row in inputs:
        digest = prefix.copy()
        digest.update(row.tobytes())
        digests.append(digest.digest())
    return digests


def check_owners(ledger: Ledger, mechanism: Mechanism, number: int, *, unit: str) -> None:
    """Checks that a guarantee against replacing an owner is left, where owners are protected.

    Args:
        ledger: what was charged so far.
        mechanism: what is to be charged.
        number: how often.
        unit: what is protected, "record" or "owner".

    Raises:
        ValueError: if what has a delta of its own would use up so much that there is none.
    """
    charged = Counter(ledger.charges) + Counter({mechanism: number})
    if unit != "owner" or all(one.approximate is None for one in charged):
        return
    if np.isinf(replaced_owner_epsilon(charged, ledger.delta)):
        raise ValueError(
            f"mechanism: expected to leave a finite epsilon at delta {ledger.delta:g} against "
            f"replacing an owner, who can have two teachers, got {mechanism.summary()} for which "
            f"there is none; an (epsilon, delta) guarantee uses up (1 + exp(epsilon)) delta there, "
            f"so give it a smaller delta"
        )


@dataclasses.dataclass(frozen=True)
class Labeller:
    """Answers queries with noisy labels, each query once for each mechanism.

    Guarantees, under those of `Ledger`. A batch is charged whole, in the worst case, and durably
    before its noise is drawn. What was answered before is answered again from the ledger, at no
    cost and without fresh noise, also where a batch repeats a query. A crash after the debit loses
    budget, never privacy: without stored answers the queries must be charged again. Queries
    that the mechanism withheld are charged like the others, and nothing is refunded: how many there
    were is itself an output. A mechanism with one charge for a batch is charged for every batch
    with a query that has no answer yet, and its batches are fixed beforehand.

    Attributes:
        voter: from inputs `[num_queries, ...]` to the teachers' votes or counts, in the same order.
            Called before anything is charged, and only with queries that have no answer yet. Every
            teacher has one vote on every query.
        ledger: the ensemble's ledger, opened for labelling.
        noise: where privacy noise comes from.
        noisy_winners: from counts and noise, both int64 `[num_queries, num_classes]`, to the class
            with the largest counts * LATTICE + noise, int64 `[num_queries]`:
            `VoteAggregation.label`.
        num_classes: number of classes.
        unit: what one part of the private data is, "record" or "owner": what the cost protects.
    """

    voter: CountVotes
    ledger: Ledger
    noise: NoiseSource
    noisy_winners: NoisyWinners
    num_classes: int
    unit: str = "record"

    def label(
        self,
        inputs: npt.ArrayLike,
        *,
        mechanism: Mechanism,
        query_indices: npt.ArrayLike | None = None,
        adaptive: bool = False,
        num_later: int = 0,
        predictions: npt.NDArray[np.float64] | None = None,
    ) -> ReleasedLabels:
        """Charges the queries that were never answered, answers them, and returns all answers.

        Args:
            inputs: the queries, `[num_queries, ...]`, public.
            mechanism: what draws the labels; the same value accounts for them.
            query_indices: positions of the queries in the pool, `[num_queries]`. Default: 0, 1, ...
            adaptive: whether the queries depend on earlier noisy labels. The data-independent cost
                holds for them too; no data-dependent one does, and the votes are stored as such.
            num_later: how many queries are yet to come, which must be affordable after these.
            predictions: what a student of earlier labels says of the queries, its probabilities
                `[num_queries, num_classes]`, for a mechanism that uses them. Such queries count as
                adaptive.

        Returns:
            The labels, with the cost of these queries alone (each distinct query once).

        Raises:
            ValueError: if the mechanism draws no noise, inputs and indices differ in number, the
                voter's counts don't fit or differ in how many votes a query has, or a mechanism
                that is charged once for a batch fixed beforehand gets a part of it.
            BudgetExceeded: if the new queries and the later ones don't all fit; then none is
                charged or answered.
            LedgerError: if the ledger can't be used, or the mechanism has no finite guarantee.
        """
        check_drawable(mechanism)
        if mechanism.charged_per_batch and (adaptive or num_later):
            raise ValueError(
                f"mechanism: expected all queries of {mechanism.name} in one batch, which it is "
                f"charged for, fixed beforehand; got queries chosen in rounds"
            )
        if predictions is not None and not isinstance(mechanism, InteractiveGaussianNoisyMax):
            raise ValueError(
                f"predictions: expected none for {mechanism.name}, which uses none, got some"
            )
        queries = np.asarray(inputs)
        if queries.ndim < 1 or queries.dtype.hasobject:
            raise ValueError(
                f"inputs: expected numbers [num_queries, ...], got {queries.dtype} of shape "
                f"{list(queries.shape)}"
            )
        indices = np.arange(len(queries)) if query_indices is None else np.asarray(query_indices)
        if indices.shape != (len(queries),):
            raise ValueError(f"query_indices: expected [{len(queries)}], got {list(indices.shape)}")
        digests = query_digests(queries, mechanism)
        first_place = {digest: place for place, digest in reversed(list(enumerate(digests)))}
        distinct = sorted(first_place, key=first_place.__getitem__)

        with self.ledger.exclusive():
            answers = self.ledger.stored_answers(distinct)
        new = [digest for digest in distinct if digest not in answers]
        if new:
            number = mechanism.number_charged(len(new) + num_later)
            self.ledger.check_affordable(mechanism, number)
            check_owners(self.ledger, mechanism, number, unit=self.unit)
            places = [first_place[digest] for digest in new]
            counts = self._count(queries[places])
            said = None if predictions is None else predictions[places]
            with self.ledger.exclusive():
                self._answer(mechanism, new, counts, predictions=said, adaptive=adaptive)
                answers |= self.ledger.stored_answers(new)

        return self._released(
            mechanism, indices, [answers[digest] for digest in digests], len(distinct)
        )

    def _released(
        self,
        mechanism: Mechanism,
        indices: npt.NDArray[Any],
        answers: Sequence[StoredAnswer],
        num_distinct: int,
    ) -> ReleasedLabels:
        rows = tuple(sorted({answer.debit for answer in answers}))
        answered = np.array([answer.label is not None for answer in answers], np.bool_)
        given = [answer for answer in answers if answer.label is not None]
        noisy_counts = [answer.noisy_counts for answer in given if answer.noisy_counts is not None]
        if len(noisy_counts) < len(given):
            # Of batches with counts and batches without, the labels are what all have.
            noisy_counts = []
        return ReleasedLabels(
            query_indices=indices[answered],
            labels=np.array([answer.label for answer in given], np.int64),
            num_classes=self.num_classes,
            num_queries=len(answers),
            cost=cost_of_labels(
                self.ledger, mechanism, num_distinct=num_distinct, rows=rows, unit=self.unit
            ),
            ledger_rows=rows,
            secure_noise=self.ledger.is_secure,
            noisy_counts=np.array(noisy_counts, np.int64) if noisy_counts else None,
        )

    def _count(self, inputs: npt.NDArray[Any]) -> VoteCounts:
        votes = self.voter(inputs)
        counts = votes.counts() if isinstance(votes, Votes) else votes
        if counts.values.shape != (len(inputs), self.num_classes):
            raise ValueError(
                f"voter: expected counts [{len(inputs)}, {self.num_classes}], got "
                f"{list(counts.values.shape)}"
            )
        counts.check_totals()
        return counts

    def _answer(
        self,
        mechanism: Mechanism,
        queries: Sequence[bytes],
        counts: VoteCounts,
        *,
        predictions: npt.NDArray[np.float64] | None,
        adaptive: bool,
    ) -> None:
        """Charges and answers those `queries` that no other process answered meanwhile."""
        answered = self.ledger.stored_answers(queries)
        places = [place for place, query in enumerate(queries) if query not in answered]
        if not places:
            return
        uncharged = [queries[place] for place in places]
        values = counts.values[places]
        mechanism.check_counts(values)
        # Another process may have been charged since this was checked for the whole batch.
        number = mechanism.number_charged(len(uncharged))
        check_owners(self.ledger, mechanism, number, unit=self.unit)
        fault_point("before_debit")
        debit = self.ledger.debit(mechanism, uncharged, secure_noise=self.noise.is_secure)
        if predictions is not None and isinstance(mechanism, InteractiveGaussianNoisyMax):
            drawn = mechanism.draw_with(
                predictions[places], values, self.noise, noisy_winners=self.noisy_winners
            )
            adaptive = True
        else:
            drawn = mechanism.draw(values, self.noise, noisy_winners=self.noisy_winners)
        fault_point("noise_drawn")
        store_counts(self.ledger.folder, debit, values, labels=drawn.labels, adaptive=adaptive)
        fault_point("counts_kept")
        self.ledger.store_answers(debit, uncharged, drawn.labels, drawn.noisy_counts)
