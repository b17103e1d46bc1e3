"""Where the votes of an analysis come from: files as the first release wrote them, or ledgers.

Everything here is sensitive but the numbers of queries. TensorFlow is not imported.
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from pate_tf.accounting.charges import PlannedRelease
from pate_tf.accounting.composition import Charge
from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.core import artifacts, validation
from pate_tf.core.sensitive import VoteCounts, Votes
from pate_tf.core.source import PrivateSource
from pate_tf.core.validation import IntArray
from pate_tf.ledger import Ledger, compose, distinct_rows
from pate_tf.ledger.journal import charges_of
from pate_tf.release import votes

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
        groups: the votes, a group for each mechanism and number of classes; empty if a ledger's
            votes are missing, or some queries were chosen by looking at noisy labels, so that only
            data-independent accounting is possible.
        num_charged: public; what the queries were charged as, by mechanism. Counts queries too
            whose answers a crash lost.
        num_queries: public; how many queries were asked.
        num_answered: public; how many labels were released.
        releases: public; what else a ledger was charged for: draws of the noisy data-dependent
            cost.
        planned_release: public; what the only ledger fixed of a release before there were votes.
        has_release: public; whether the only ledger stores a draw, to be shown again for nothing.
        identity: digest of all votes of a file, in whichever order; empty for ledgers.
        folder: of the only ledger, which is charged for the draw of a release and stores it; None
            for files, whose draws go where the results go, and for several ledgers.
        source: of a file of votes, to which draws are charged; None for ledgers, which have theirs.
        is_secure: public; whether all noise came from the operating system's entropy.
    """

    groups: tuple[AnsweredVotes, ...]
    num_charged: Mapping[Charge, int]
    num_queries: int
    num_answered: int
    releases: Mapping[Charge, int] = dataclasses.field(default_factory=dict)
    planned_release: PlannedRelease | None = None
    has_release: bool = False
    identity: str = dataclasses.field(default="", repr=False)
    folder: pathlib.Path | None = None
    source: PrivateSource | None = None
    is_secure: bool = True

    @classmethod
    def of_counts(
        cls, counts: VoteCounts, mechanism: Mechanism, *, source: PrivateSource | None = None
    ) -> "VoteSource":
        """Takes the votes of queries that one mechanism answers."""
        return cls(
            groups=(AnsweredVotes(mechanism, counts),),
            num_charged={mechanism: mechanism.number_charged(counts.num_queries)},
            num_queries=counts.num_queries,
            num_answered=counts.num_queries,
            source=source,
        )

    def only_group(self) -> AnsweredVotes:
        """Returns the votes of one mechanism and one ensemble.

        Raises:
            ValueError: if there are none, or several mechanisms answered.
        """
        if len(self.groups) != 1 or not self.groups[0].counts.num_queries:
            names = ", ".join(sorted({group.mechanism.name for group in self.groups}))
            raise ValueError(
                "release: expected votes of one mechanism, for queries chosen without looking at "
                f"noisy labels, got {names or 'others or none'}; account for them "
                "data-independently"
            )
        return self.groups[0]


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
    num_teachers: int | None = None,
) -> VoteSource:
    """Reads labels `[num_teachers, num_queries]` or counts `[num_queries, num_classes]`.

    Files of type float are accepted if they hold whole numbers.

    Args:
        path: the `.npy` or `.csv` file.
        mechanism: what answers the queries.
        input_is_counts: whether the file holds counts.
        indices_file: a `.npy` file with the positions of the queries that count, in their order.
            Default: all.
        max_examples: how many of those, from the first. Default: all.
        num_classes: number of classes. Default: the columns of counts; 10 for labels. It is public
            and never read off the votes; a class without votes only makes the bounds larger.
        num_teachers: number of teachers, checked. Needed for labels of more teachers than queries.

    Raises:
        ValueError: if a file is broken or does not hold what is expected of it, a query is named
            twice, or labels may be transposed.
        OSError: if a file can't be read.
    """
    if num_classes is not None:
        validation.whole(1, MOST_CLASSES, num_classes=num_classes)
    array = artifacts.read_array(path)
    if not array.size:
        raise ValueError(f"{path}: expected at least one query, got shape {list(array.shape)}")
    try:
        if input_is_counts:
            everything = VoteCounts(array)
            if num_classes not in (None, everything.num_classes):
                raise ValueError(
                    f"counts: expected {num_classes} classes, got {everything.num_classes}"
                )
        else:
            everything = Votes(array, num_classes or DEFAULT_NUM_CLASSES).counts()
        is_doubtful = not input_is_counts and everything.num_teachers > everything.num_queries
        if num_teachers != everything.num_teachers and (is_doubtful or num_teachers is not None):
            raise ValueError(
                f"votes: expected [num_teachers, num_queries], got {everything.dimensions}: "
                f"transpose them, or confirm `num_teachers`"
            )
        indices = np.arange(everything.num_queries)
        if indices_file is not None:
            indices = artifacts.read_array(indices_file)
        counts = everything.take(indices[:max_examples])
        source = VoteSource.of_counts(counts, mechanism, source=PrivateSource.of_file(path))
    except ValueError as error:
        message = str(error)
        if message.endswith("got others") and num_classes is None:
            message += "; name the number of classes as `num_classes`, or say `input_is_counts`"
        is_named = message.startswith((str(path), str(indices_file)))
        raise ValueError(message if is_named else f"{path}: {message}") from error
    if not counts.num_queries:
        raise ValueError(f"{path}: expected at least one query to analyze, got none")
    # Whichever part of it is analyzed, draws are from the same votes.
    return dataclasses.replace(source, identity=order_free_digest(everything.values))


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
        ValueError: if one ledger is named twice.
        LedgerError: if votes are damaged, or missing though they are needed.
    """
    if len({ledger.head for ledger in ledgers}) < len(ledgers):
        raise ValueError("ledger: expected different ledgers, got one of them twice")
    charges = charges_of(distinct_rows(ledgers))
    spent = compose(ledgers, delta=ledgers[0].delta)
    # Votes are counted by ensemble: branches share what they have in common.
    are_forks = len({ledger.ensemble_digest for ledger in ledgers}) < len(ledgers)
    have_votes = all(
        ledger.num_answered == 0 or (ledger.folder / votes.VOTES).is_dir() for ledger in ledgers
    )
    is_countable = not are_forks and (votes_needed or have_votes)
    groups: dict[tuple[Mechanism, int], list[votes.StoredCounts]] = {}
    for ledger in ledgers if is_countable else ():
        for batch in votes.stored_counts(ledger):
            groups.setdefault((batch.mechanism, batch.counts.num_classes), []).append(batch)
            is_countable = is_countable and not batch.adaptive
    only = ledgers[0] if len(ledgers) == 1 else None
    return VoteSource(
        groups=tuple(
            AnsweredVotes(
                mechanism,
                VoteCounts(
                    np.concatenate([batch.counts.values[batch.answered] for batch in batches])
                ),
                num_unanswered=sum(int((~batch.answered).sum()) for batch in batches),
            )
            for (mechanism, _), batches in groups.items()
            if is_countable
        ),
        num_charged={charge: number for charge, number in charges.items() if charge.answers},
        num_queries=spent.num_queries,
        num_answered=spent.num_answered,
        releases={charge: number for charge, number in charges.items() if not charge.answers},
        planned_release=None if only is None else only.planned_release,
        has_release=only is not None and only.stored_release() is not None,
        folder=None if only is None else only.folder,
        is_secure=all(ledger.is_secure for ledger in ledgers),
    )
