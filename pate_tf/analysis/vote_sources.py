"""What answered queries cost, and where their votes come from: files, or ledgers.

Everything here is sensitive but the numbers of queries. TensorFlow is not imported.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from pate_tf.accounting import composition, conversions, moments
from pate_tf.accounting.charge import SMOOTH_BOUNDS, PlannedRelease, QueryCounts
from pate_tf.accounting.composition import Charge
from pate_tf.accounting.conversions import DEFAULT_DELTA
from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.analysis.smooth_sensitivity import smooth_sensitivity
from pate_tf.core import artifacts, checks
from pate_tf.core.checks import IntArray
from pate_tf.core.sensitive import SumsByClass, VoteCounts, Votes
from pate_tf.core.settings import AtDelta
from pate_tf.core.source import PrivateSource
from pate_tf.ledger import Ledger, compose, distinct_rows
from pate_tf.ledger.ledger_file import charges_of
from pate_tf.release import votes

MOST_CLASSES = 100_000  # of a file of labels: its counts have a column for each
DEFAULT_NUM_CLASSES = 10


@dataclasses.dataclass(frozen=True)
class AnsweredVotes(votes.CountedVotes):
    """Sensitive: the votes of all queries that one mechanism answered.

    Attributes:
        num_unanswered: queries that a threshold left without a label.
    """

    counts: VoteCounts
    num_unanswered: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChargedQueries(QueryCounts):
    """Public: what queries were charged as, and what else was charged.

    Attributes:
        num_charged: what the queries were charged as, by mechanism. Counts queries too whose
            answers a crash lost.
        releases: what else a ledger was charged for: draws of the noisy data-dependent cost.
    """

    num_charged: Mapping[Charge, int]
    releases: Mapping[Charge, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class VoteSource(ChargedQueries):
    """Sensitive: what an analysis is about.

    Attributes:
        groups: the votes, a group for each mechanism and number of classes; empty if a ledger's
            votes are missing, or some queries were chosen by looking at noisy labels, so that only
            data-independent accounting is possible.
        planned_release: public; what the only ledger fixed of a release before there were votes.
        has_release: public; whether the only ledger stores a draw, to be shown again for nothing.
        identity: digest of all votes of a file, in whichever order; empty for ledgers.
        folder: of the only ledger, which is charged for the draw of a release and stores it; None
            for files, whose draws go where the results go, and for several ledgers.
        source: of a file of votes, to which draws are charged; None for ledgers, which have theirs.
        is_secure: public; whether all noise came from the operating system's entropy.
    """

    groups: tuple[AnsweredVotes, ...]
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
        checks.whole(1, MOST_CLASSES, num_classes=num_classes)
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


def _groups(ledgers: Sequence[Ledger]) -> tuple[AnsweredVotes, ...]:
    """Returns all votes; none if some are no counts, or were asked for by looking at labels."""
    groups: dict[tuple[Mechanism, int], list[votes.StoredCounts]] = {}
    for ledger in ledgers:
        for batch in votes.stored_counts(ledger):
            # Noisy sums of predictions cost the same for all votes.
            if batch.adaptive or isinstance(batch.counts, SumsByClass):
                return ()
            groups.setdefault((batch.mechanism, batch.counts.num_classes), []).append(batch)
    return tuple(
        AnsweredVotes(
            mechanism,
            VoteCounts(np.concatenate([batch.counts.values[batch.answered] for batch in batches])),
            num_unanswered=sum(int((~batch.answered).sum()) for batch in batches),
        )
        for (mechanism, _), batches in groups.items()
    )


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
    only = ledgers[0] if len(ledgers) == 1 else None
    return VoteSource(
        groups=_groups(ledgers) if is_countable else (),
        num_charged={charge: number for charge, number in charges.items() if charge.answers},
        num_queries=spent.num_queries,
        num_answered=spent.num_answered,
        releases={charge: number for charge, number in charges.items() if not charge.answers},
        planned_release=None if only is None else only.planned_release,
        has_release=only is not None and only.stored_release() is not None,
        folder=None if only is None else only.folder,
        is_secure=all(ledger.is_secure for ledger in ledgers),
    )


MOST_MOMENTS: Final = 4096  # more change no digit, and take minutes
DEFAULT_BOUNDS: Final = ("paper", "two_sided", "class_aware")
SMOOTH_MOMENTS: Final = np.geomspace(1.0, 32.0, 8)

Progress = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Analysis(ChargedQueries, AtDelta):
    """What queries cost.

    Attributes:
        conversion: from moments to epsilon, "improved" or "classic".
        bounds: SENSITIVE; epsilon and its moment, by data-dependent bound. Empty without votes.
        smooth_sensitivity: SENSITIVE; U_beta of the total cost by moment, natural logarithm.
    """

    conversion: str
    bounds: Mapping[str, tuple[float, float]] = dataclasses.field(repr=False, default_factory=dict)
    smooth_sensitivity: Mapping[float, float] = dataclasses.field(repr=False, default_factory=dict)

    @functools.cached_property
    def epsilon(self) -> float:
        """Publishable: of everything charged, in both directions, whatever the data."""
        return composition.smallest_epsilon({**self.num_charged, **self.releases}, self.delta)[0]


def analyse(
    votes: VoteSource | npt.ArrayLike,
    mechanism: Mechanism | None = None,
    *,
    delta: float = DEFAULT_DELTA,
    bounds: Sequence[str] | None = None,
    num_moments: int | None = None,
    conversion: str = "improved",
    beta: float | None = None,
    progress: Progress | None = None,
) -> Analysis:
    """Returns what answered queries cost, whatever the data and at their votes.

    >>> import numpy as np, pate_tf
    >>> counts = np.tile([90, 10], (100, 1))
    >>> analysis = pate_tf.analysis.analyse(counts, pate_tf.LaplaceNoisyMax(scale=20), delta=1e-5)
    >>> analysis.bounds["two_sided"][0] < analysis.epsilon
    True

    Args:
        votes: counts `[num_queries, num_classes]`, one vote of every teacher on every query that
            was chosen without looking at noisy labels; or what `read_votes_file` and
            `read_ledgers` return.
        mechanism: what answers counts.
        delta: of every epsilon.
        bounds: data-dependent ones. Default: those of `DEFAULT_BOUNDS` that every mechanism has.
        num_moments: for the moments 1, 2, ..., num_moments; the paper's is 8. Default: real ones,
            log-spaced.
        conversion: "improved" (Balle et al. 2020) or "classic" (Abadi et al. 2016).
        beta: rate, per teacher, of a table of smooth sensitivities, docs/proofs/theory.md, Theorem
            A; None for no table.
        progress: called with (histograms done, histograms in all) while the bound `exact` runs.

    Raises:
        ValueError: if a mechanism lacks one of `bounds`, or has no smooth sensitivity.
    """
    if isinstance(votes, VoteSource):
        source = votes
    elif mechanism is None:
        raise ValueError("mechanism: expected what answers the votes, got none")
    else:
        source = VoteSource.of_counts(VoteCounts(np.asarray(votes)), mechanism)
    grid = moments.DEFAULT_MOMENTS if num_moments is None else np.arange(1.0, num_moments + 1.0)
    groups = source.groups
    for group in groups:
        for wanted in bounds or ():
            if wanted not in group.mechanism.bounds:
                raise ValueError(
                    f"bound: expected some of {list(group.mechanism.bounds)} for "
                    f"{group.mechanism.name}, got {wanted!r}"
                )
    kinds = [group.mechanism for group in groups]
    of_all = [name for name in DEFAULT_BOUNDS if all(name in kind.bounds for kind in kinds)]
    names = of_all if bounds is None else bounds
    costs = dict[str, tuple[float, float]]()
    for name in names if groups else ():
        alphas = np.zeros_like(grid)
        for group in groups:
            alphas += moments.data_dependent_alphas(
                group.counts.values,
                group.mechanism,
                grid,
                bound=name,
                num_unanswered=group.num_unanswered,
                progress=progress,
            )
        costs[name] = conversions.epsilon_from_alphas(alphas, grid, delta, conversion=conversion)
    return Analysis(
        num_charged=source.num_charged,
        num_queries=source.num_queries,
        num_answered=source.num_answered,
        delta=delta,
        conversion=conversion,
        releases=source.releases,
        bounds=costs,
        smooth_sensitivity={}
        if beta is None
        else _smooth_sensitivities(source, list(costs), num_moments, beta),
    )


def _smooth_sensitivities(
    source: VoteSource, bounds: Sequence[str], num_moments: int | None, beta: float
) -> dict[float, float]:
    """Returns the smooth sensitivity at each moment. Sensitive.

    By the first bound of the analysis that has one, `two_sided` before others.
    """
    group = source.only_group()
    usable = [bound for bound in bounds if bound in SMOOTH_BOUNDS]
    bound = "two_sided" if "two_sided" in usable or not usable else usable[0]
    grid = SMOOTH_MOMENTS if num_moments is None else np.arange(1.0, num_moments + 1.0)
    return {
        float(moment): smooth_sensitivity(
            group.counts.values, group.mechanism, moment=float(moment), beta=beta, bound=bound
        )
        for moment in grid
    }
