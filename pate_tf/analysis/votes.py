"""Where the votes of an analysis come from: files as the first release wrote them, or ledgers.

Everything here is sensitive but the numbers of queries. TensorFlow is not imported.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pate_tf.accounting.charge import Charge
from pate_tf.accounting.cost_release import PlannedRelease
from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.core import artifacts, validation
from pate_tf.core.sensitive import VoteCounts, Votes
from pate_tf.core.source import PrivateSource
from pate_tf.core.validation import IntArray
from pate_tf.ledger import (
    Ledger,
    LedgerError,
    compose,
    distinct_rows,
)
from pate_tf.ledger.journal import charges_of
from pate_tf.release.votes import VOTES, StoredCounts, stored_counts

LEDGER_FILE = "ledger.sqlite3"
MOST_CLASSES = 100_000  # of a file of labels: its counts have a column for each
DEFAULT_NUM_CLASSES = 10


@dataclasses.dataclass(frozen=True)
class AnsweredVotes:
    """Sensitive: the votes of all queries that one mechanism answered.

    Attributes:
        mechanism: what answered.
        counts: int64 `[num_answered, num_classes]`.
        num_unanswered: queries that a threshold left without a label.
    """

    mechanism: Mechanism
    counts: VoteCounts
    num_unanswered: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class VoteSource:
    """Sensitive: what an analysis is about.

    Attributes:
        groups: the votes, a group for each mechanism and number of classes; None if a ledger's
            votes are not there, or some queries were chosen by looking at noisy labels, so that
            only data-independent accounting is possible.
        num_charged: public; what the queries were charged as, by mechanism. Counts queries too
            whose answers a crash lost.
        num_asked: public; how many queries were asked. Default: as many as were charged.
        num_answered: public; how many labels were released. Default: one for each query.
        releases: public; what else a ledger was charged for: draws of the noisy data-dependent
            cost.
        planned_release: public; what the only ledger fixed of a release before there were votes.
        has_release: public; whether the only ledger stores a draw, to be shown again for nothing.
        identity: digest of what the votes are drawn from, whichever part of it is analysed and in
            whichever order: computed on demand.
        labels: the single votes, where the file has them.
        labels_left: public; whether the noisy labels have been released already, as a ledger's
            have.
        folder: of the only ledger, which is charged for the draw of a release and stores it; None
            for files, whose draws go where the results go, and for several ledgers.
        source: of a file of votes, to which draws are charged; None for ledgers, which have theirs.
        is_secure: public; whether all noise came from the operating system's entropy.
    """

    groups: tuple[AnsweredVotes, ...] | None
    num_charged: Mapping[Charge, int]
    num_asked: int | None = None
    num_answered: int | None = None
    releases: Mapping[Charge, int] = dataclasses.field(default_factory=dict)
    planned_release: PlannedRelease | None = None
    has_release: bool = False
    identity: Callable[[], str] = dataclasses.field(repr=False)
    labels: Votes | None = None
    labels_left: bool = False
    folder: pathlib.Path | None = None
    source: PrivateSource | None = None
    is_secure: bool = True

    @property
    def num_queries(self) -> int:
        """How many queries were asked."""
        return sum(self.num_charged.values()) if self.num_asked is None else self.num_asked


def order_free_digest(counts: IntArray) -> str:
    """Returns a digest that the order of queries, of classes, and classes without votes leave."""
    descending = -np.sort(-counts, axis=1)
    used = descending[:, (descending > 0).any(axis=0)]
    return artifacts.digest_array(used[np.lexsort(used.T)])


def read_votes_file(
    path: pathlib.Path,
    mechanism: Mechanism,
    *,
    input_is_counts: bool = False,
    indices_file: pathlib.Path | None = None,
    max_examples: int | None = None,
    num_classes: int | None = None,
) -> VoteSource:
    """Reads labels `[num_teachers, num_queries]` or counts `[num_queries, num_classes]`.

    Files of type float are accepted if they hold whole numbers.

    Args:
        path: the `.npy` file.
        mechanism: what answers the queries.
        input_is_counts: whether the file holds counts.
        indices_file: a `.npy` file with the positions of the queries that count, in their order.
            Default: all.
        max_examples: how many of those, from the first. Default: all.
        num_classes: number of classes. Default: the columns of counts; 10 for labels. It is public
            and never read off the votes; a class without votes only makes the bounds larger.

    Raises:
        ValueError: if a file is broken or does not hold what is expected of it.
        OSError: if a file can't be read.
    """
    if num_classes is not None:
        validation.whole(1, MOST_CLASSES, num_classes=num_classes)
    array = artifacts.read_array(path)
    if not array.size:
        raise ValueError(f"{path}: expected at least one query, got shape {list(array.shape)}")
    labels = None
    try:
        if input_is_counts:
            everything = VoteCounts(array)
            if num_classes not in (None, everything.num_classes):
                raise ValueError(
                    f"counts: expected {num_classes} classes, got {everything.num_classes}"
                )
        else:
            labels = _labels(array, num_classes)
            everything = labels.counts()
        everything.check_totals()
        chosen = np.arange(everything.num_queries)
        if indices_file is not None:
            chosen = _indices(artifacts.read_array(indices_file), indices_file)
        chosen = chosen[:max_examples]
        counts = everything.take(chosen)
    except ValueError as error:
        message = str(error)
        known = message.startswith((str(path), str(indices_file)))
        raise ValueError(message if known else f"{path}: {message}") from error
    if not counts.num_queries:
        raise ValueError(f"{path}: expected at least one query to analyse, got none")
    if labels is not None:
        labels = Votes(labels.labels[:, chosen.astype(np.int64)], labels.num_classes)
    return VoteSource(
        source=PrivateSource.of_file(path),
        groups=(AnsweredVotes(mechanism, counts),),
        num_charged={mechanism: mechanism.number_charged(counts.num_queries)},
        num_asked=counts.num_queries,
        identity=lambda: order_free_digest(everything.values),
        labels=labels,
    )


def _labels(array: npt.NDArray[Any], num_classes: int | None) -> Votes:
    if num_classes is not None:
        return Votes(array, num_classes)
    try:
        return Votes(array, DEFAULT_NUM_CLASSES)
    except ValueError as error:
        # Never read off the votes: it is published with a release.
        if "expected labels from" in str(error):
            raise ValueError(f"{error}; give the number of classes as `num_classes`") from error
        raise


def _indices(array: npt.NDArray[Any], path: pathlib.Path) -> npt.NDArray[Any]:
    if array.ndim != 1 or array.dtype.kind not in "iuf":
        raise ValueError(
            f"{path}: expected indices [num_queries], got {array.dtype} of shape "
            f"{list(array.shape)}"
        )
    return array


def check_mechanisms(num_charged: Iterable[Charge], said: Mapping[str, object]) -> None:
    """Checks that what a user said about the mechanism agrees with the ledger.

    Args:
        num_charged: the mechanisms of the ledger.
        said: the name and the fields that the user gave.

    Raises:
        ValueError: if a given value is not that of every mechanism in the ledger.
    """
    for mechanism in num_charged:
        fields = mechanism.to_dict()
        for field, value in said.items():
            if fields.get(field) != value:
                raise ValueError(
                    f"mechanism: the ledger has {field} {fields.get(field)} "
                    f"({mechanism.name}), got {value}"
                )


def ledger_folder(path: pathlib.Path) -> pathlib.Path:
    """Returns the folder of a ledger that was named by its file or its folder.

    Raises:
        ValueError: if it was named by another file.
    """
    if path.is_file() and path.name != LEDGER_FILE:
        raise ValueError(
            f"ledger: expected a file {LEDGER_FILE} or the folder that holds one, got {path}"
        )
    return path.parent if path.name == LEDGER_FILE else path


def read_ledgers(ledgers: Sequence[Ledger], *, votes_needed: bool) -> VoteSource:
    """Reads what was charged to ledgers of ensembles trained on the same records.

    Args:
        ledgers: open. Copies of one ledger that went on apart count with every branch, and with
            what they have in common once.
        votes_needed: whether missing votes are an error, rather than left out.

    Raises:
        ValueError: if one ledger is named twice, or the votes are not of one ensemble.
        LedgerError: if votes are damaged, or missing though they are needed.
    """
    digests = [ledger.ensemble_digest for ledger in ledgers]
    if len({ledger.head for ledger in ledgers}) < len(ledgers):
        raise ValueError("ledger: expected different ledgers, got one of them twice")
    rows = distinct_rows(ledgers)
    together = charges_of(rows)
    spent = compose(ledgers, delta=ledgers[0].delta)
    # Votes are counted by ensemble: branches share what they have in common.
    are_forks = len(set(digests)) < len(digests)
    groups: dict[tuple[Mechanism, int], list[StoredCounts]] = {}
    have_votes = all(one.num_answered == 0 or (one.folder / VOTES).is_dir() for one in ledgers)
    there = not are_forks and (votes_needed or have_votes)
    for ledger in ledgers if there else ():
        for batch in stored_counts(ledger):
            try:
                batch.counts.check_totals()
            except ValueError as error:
                raise LedgerError(f"{ledger.folder}: {error}") from error
            groups.setdefault((batch.mechanism, batch.counts.num_classes), []).append(batch)
            there = there and not batch.adaptive
    return VoteSource(
        groups=tuple(_group(key[0], batches) for key, batches in groups.items()) if there else None,
        num_charged={charge: number for charge, number in together.items() if charge.answers},
        num_asked=spent.num_queries,
        num_answered=spent.num_answered,
        releases={charge: number for charge, number in together.items() if not charge.answers},
        planned_release=ledgers[0].planned_release if len(ledgers) == 1 else None,
        has_release=len(ledgers) == 1 and ledgers[0].stored_release() is not None,
        identity=lambda: " ".join(sorted(digests)),
        is_secure=all(ledger.is_secure for ledger in ledgers),
        labels_left=True,
        folder=ledgers[0].folder if len(ledgers) == 1 else None,
    )


def _group(mechanism: Mechanism, batches: Sequence[StoredCounts]) -> AnsweredVotes:
    answered = [batch.counts.values[batch.answered] for batch in batches]
    return AnsweredVotes(
        mechanism,
        VoteCounts(np.concatenate(answered)),
        num_unanswered=sum(int((~batch.answered).sum()) for batch in batches),
    )
