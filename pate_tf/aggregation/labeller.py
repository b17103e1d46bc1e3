"""The labeller: the one gate between votes and anything public. It pays, then it answers.

Nothing here knows teachers or TensorFlow: who votes and what picks noisy winners are passed in.

Beside the ledger, `votes/<sequence of the debit, nine digits>.npz` keeps the counts of the queries
that the row paid for: `counts` int64 `[num_queries, num_classes]`, `answered` bool `[num_queries]`
and `adaptive`, one bool. They are sensitive and serve data-dependent analysis alone.
"""

import dataclasses
import fractions
import hashlib
import math
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pate_tf import artifacts
from pate_tf.accounting.mechanisms import (
    LATTICE,
    ConfidentGaussianNoisyMax,
    ExponentialMechanism,
    Mechanism,
    PermuteAndFlip,
)
from pate_tf.aggregation.noise import NoiseSource, check_drawable
from pate_tf.ledger import Ledger, LedgerError
from pate_tf.ledger.chain import fault_point
from pate_tf.ledger.rows import canonical_json
from pate_tf.records import IntArray, ReleasedLabels, VoteCounts, Votes

VOTES: Final = "votes"
QUERY_DIGEST_BYTES: Final = 16

Voter = Callable[[npt.NDArray[Any]], Votes | VoteCounts]
NoisyWinners = Callable[[IntArray, IntArray], IntArray]


def query_digests(inputs: npt.NDArray[Any], mechanism: Mechanism) -> list[bytes]:
    """Returns what identifies each query: mechanism, type, shape and bytes of the input.

    Inputs that differ in a single bit, or in their type, are different queries and are paid for
    separately.

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


@dataclasses.dataclass(frozen=True)
class Labeller:
    """Answers queries with noisy labels, each query once for each mechanism.

    Guarantees, under those of `Ledger`. A batch is charged whole, in the worst case, and durably
    before its noise is drawn. What was answered before is answered again from the ledger, at no
    cost and without fresh noise, also where a batch repeats a query. A crash after the debit loses
    budget, never privacy: without stored answers the queries must be paid for again. Queries
    withheld by a threshold are charged like the others, and nothing is refunded: how many there
    were is itself an output.

    Attributes:
      voter: from inputs `[num_queries, ...]` to the teachers' votes or counts, in the same order.
        Called before anything is charged, and only with queries that have no answer yet.
      ledger: the ensemble's ledger, opened for labelling.
      noise: where privacy noise comes from.
      noisy_winners: from counts and noise, both int64 `[num_queries, num_classes]`, to the class
        with the largest counts * LATTICE + noise, int64 `[num_queries]`: `VoteAggregation.label`.
      num_classes: number of classes.
    """

    voter: Voter
    ledger: Ledger
    noise: NoiseSource
    noisy_winners: NoisyWinners
    num_classes: int

    def label(
        self,
        inputs: npt.ArrayLike,
        *,
        mechanism: Mechanism,
        query_indices: npt.ArrayLike | None = None,
        adaptive: bool = False,
        num_later: int = 0,
    ) -> ReleasedLabels:
        """Pays for the queries that were never answered, answers them, and returns all answers.

        Args:
          inputs: the queries, `[num_queries, ...]`, public.
          mechanism: what draws the labels; the same value accounts for them.
          query_indices: positions of the queries in the pool, `[num_queries]`. Default: 0, 1, ...
          adaptive: whether the queries depend on earlier noisy labels. The data-independent cost
            holds for them too; no data-dependent one does, and the votes are kept as such.
          num_later: how many queries are yet to come, which must be affordable after these.

        Returns:
          The labels, with the cost of these queries alone (each distinct query once).

        Raises:
          ValueError: if the mechanism draws no noise, inputs and indices differ in number, or the
            voter's counts don't fit.
          BudgetExceeded: if the new queries and the later ones don't all fit; then none is charged
            or answered.
          LedgerError: if the ledger can't be used, or the mechanism has no finite guarantee.
        """
        check_drawable(mechanism)
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
            self.ledger.check_affordable(mechanism, len(new) + num_later)
            counts = self._count(queries[[first_place[digest] for digest in new]])
            with self.ledger.exclusive():
                self._answer(mechanism, new, counts, adaptive=adaptive)
                answers |= self.ledger.stored_answers(new)

        labels = [answers[digest].label for digest in digests]
        answered = np.array([label is not None for label in labels], np.bool_)
        epsilon, _ = mechanism.data_independent_epsilon(
            num_queries=len(distinct), delta=self.ledger.delta
        )
        return ReleasedLabels(
            query_indices=indices[answered],
            labels=np.array([label for label in labels if label is not None], np.int64),
            num_classes=self.num_classes,
            num_queries=len(queries),
            mechanism=mechanism.to_dict(),
            epsilon=epsilon,
            delta=self.ledger.delta,
            ledger_rows=tuple(sorted({answer.debit for answer in answers.values()})),
            secure_noise=self.ledger.is_secure,
        )

    def _count(self, inputs: npt.NDArray[Any]) -> VoteCounts:
        votes = self.voter(inputs)
        counts = votes.counts() if isinstance(votes, Votes) else votes
        if counts.values.shape != (len(inputs), self.num_classes):
            raise ValueError(
                f"voter: expected counts [{len(inputs)}, {self.num_classes}], got "
                f"{list(counts.values.shape)}"
            )
        return counts

    def _answer(
        self, mechanism: Mechanism, queries: Sequence[bytes], counts: VoteCounts, *, adaptive: bool
    ) -> None:
        """Pays for and answers those `queries` that no other process answered meanwhile."""
        answered = self.ledger.stored_answers(queries)
        places = [place for place, query in enumerate(queries) if query not in answered]
        if not places:
            return
        unpaid = [queries[place] for place in places]
        values = counts.values[places]
        fault_point("before_debit")
        debit = self.ledger.debit(mechanism, unpaid, secure_noise=self.noise.is_secure)
        labels = self._draw(mechanism, values)
        fault_point("noise_drawn")
        self._keep_counts(debit, values, labels, adaptive=adaptive)
        fault_point("counts_kept")
        self.ledger.store_answers(debit, unpaid, labels)

    def _draw(self, mechanism: Mechanism, counts: IntArray) -> list[int | None]:
        if isinstance(mechanism, ConfidentGaussianNoisyMax):
            labels = self._draw(mechanism.answering, counts)
            noise = self.noise.threshold_noise(mechanism, num_queries=len(counts))
            threshold = math.ceil(fractions.Fraction(mechanism.threshold) * LATTICE)
            passes = counts.max(axis=1) * LATTICE + noise >= threshold
            return [label if passed else None for label, passed in zip(labels, passes, strict=True)]
        if isinstance(mechanism, PermuteAndFlip | ExponentialMechanism):
            return list(self.noise.choose(mechanism, counts).tolist())
        noise = self.noise.additive_noise(
            mechanism, num_queries=len(counts), num_classes=self.num_classes
        )
        return list(self.noisy_winners(counts, noise).tolist())

    def _keep_counts(
        self, debit: int, counts: IntArray, labels: Sequence[int | None], *, adaptive: bool
    ) -> None:
        path = _counts_path(self.ledger.folder, debit)
        answered = np.array([label is not None for label in labels], np.bool_)
        try:
            artifacts.make_sensitive_folder(path.parent)
            arrays = {"counts": counts, "answered": answered, "adaptive": np.array(adaptive)}
            artifacts.write_arrays(path, arrays, private=True)
        except OSError as error:
            raise LedgerError(
                f"{path}: the counts of a paid batch can't be kept: {error}"
            ) from error


@dataclasses.dataclass(frozen=True)
class PaidCounts:
    """Sensitive: the counts behind the answers of one debit.

    Attributes:
      debit: sequence of the ledger row that paid.
      mechanism: what answered.
      counts: a row for each query that was paid for, answered or withheld.
      answered: which of them got a label, `[num_queries]`.
      adaptive: whether they depend on earlier noisy labels, so that no data-dependent cost holds.
    """

    debit: int
    mechanism: dict[str, object]
    counts: VoteCounts
    answered: npt.NDArray[np.bool_] = dataclasses.field(repr=False)
    adaptive: bool


def paid_counts(ledger: Ledger) -> Iterator[PaidCounts]:
    """Yields the counts behind all stored answers, for data-dependent analysis.

    A debit whose answers were lost in a crash released nothing and is left out.

    Raises:
      LedgerError: if the counts of a debit are missing, damaged, or of another shape.
    """
    mechanisms: dict[int, dict[str, object]] = {}
    for row in ledger.history():
        if row.kind == "debit":
            mechanisms[row.sequence] = dict(row.details["mechanism"])
        elif row.kind == "answers":
            debit = int(row.details["debit"])
            path = _counts_path(ledger.folder, debit)
            try:
                arrays = artifacts.read_arrays(path)
                counts, answered = VoteCounts(arrays["counts"]), arrays["answered"]
            except (OSError, ValueError, KeyError) as error:
                raise LedgerError(f"{path}: expected the counts of a paid batch") from error
            expected = (row.details["num_queries"], row.details["num_answered"])
            if (counts.num_queries, int(answered.sum())) != expected:
                raise LedgerError(
                    f"{path}: expected counts of {expected[0]} queries, {expected[1]} of them "
                    f"answered, got others"
                )
            # Before there was a choice, none was adaptive.
            adaptive = bool(arrays.get("adaptive", False))
            yield PaidCounts(debit, mechanisms[debit], counts, answered, adaptive)


def _counts_path(folder: pathlib.Path, debit: int) -> pathlib.Path:
    return folder / VOTES / f"{debit:09d}.npz"
