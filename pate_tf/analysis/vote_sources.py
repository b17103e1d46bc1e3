"""Reads votes from files or ledgers, and computes the privacy cost of answered queries.

Everything here is sensitive, except for the numbers of queries. TensorFlow is not imported.
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

MAX_CLASSES = 100_000  # limits the memory for counts that are computed from labels
DEFAULT_NUM_CLASSES = 10


@dataclasses.dataclass(frozen=True)
class AnsweredVotes(votes.CountedVotes):
    """Sensitive: the votes on all queries that got a label from one mechanism.

    Attributes:
        num_unanswered: number of other queries: they got no label because they failed a threshold
            test. `counts` does not contain their votes.
    """

    counts: VoteCounts
    num_unanswered: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChargedQueries(QueryCounts):
    """Public: the number of charges for queries and for other releases.

    Attributes:
        num_charged: mechanisms, each with its number of charged queries. Queries that were charged
            but lost their answers in a crash are included.
        releases: all other charges, each with its number. These charges paid for noisy releases of
            a data-dependent cost.
    """

    num_charged: Mapping[Charge, int]
    releases: Mapping[Charge, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class VoteSource(ChargedQueries):
    """Sensitive: the votes and charges of an analysis.

    Attributes:
        groups: votes, in one group for each mechanism and number of classes. Empty if votes of a
            ledger are missing, or if some queries were chosen by looking at noisy labels. In both
            cases, only the worst-case cost can be computed.
        planned_release: public; the plan of the release that was fixed when the ledger was opened.
            None if there are several ledgers.
        has_release: public; whether the ledger stores a draw, which can be shown again at no cost.
            False if there are several ledgers.
        identity: digest of all votes of a file, independent of their order; empty for ledgers.
        folder: folder of the ledger that is charged for a release and stores its draw. None for
            several ledgers. Also None for a file of votes: its draw is stored with the results.
        source: private data source that is charged for a release from a file of votes. None for
            ledgers, which contain the name of their source.
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
        """Returns a source of votes on queries that one mechanism answered."""
        return cls(
            groups=(AnsweredVotes(mechanism, counts),),
            num_charged={mechanism: mechanism.number_charged(counts.num_queries)},
            num_queries=counts.num_queries,
            num_answered=counts.num_queries,
            source=source,
        )

    def only_group(self) -> AnsweredVotes:
        """Returns the votes, if one ensemble of teachers and one mechanism answered all queries.

        Raises:
            ValueError: if there are no votes, or if several ensembles or several mechanisms
                answered queries.
        """
        if len(self.groups) != 1 or not self.groups[0].counts.num_queries:
            names = ", ".join(sorted({group.mechanism.name for group in self.groups}))
            raise ValueError(
                "release needs queries that one mechanism answered and that were chosen without "
                f"looking at noisy labels. These votes have {names or 'no such mechanism'}. Use "
                "`release=none` and the data-independent epsilon."
            )
        return self.groups[0]


def order_free_digest(counts: IntArray) -> str:
    """Returns a digest of counts that ignores the order of rows and columns, and empty columns."""
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
    """Reads the votes in a file: labels `[num_teachers, num_queries]`, or counts of labels.

    Counts have the shape `[num_queries, num_classes]`. Floating-point values are accepted if all of
    them are whole numbers.

    Args:
        path: path of the `.npy` or `.csv` file.
        mechanism: mechanism that answers the queries.
        input_is_counts: whether the file contains counts.
        indices_file: a `.npy` or `.csv` file with the indices of the queries to analyze, in order.
            Default: all queries.
        max_examples: analyze only this number of queries, from the first. Default: all.
        num_classes: public number of classes. It is never inferred from labels. Default: for
            counts, the number of columns; for labels, 10. A class without votes never reduces the
            bounds.
        num_teachers: expected number of teachers in the file. Required if a file of labels has more
            teachers than queries.

    Raises:
        ValueError: if a file is damaged or has the wrong content, if an index appears twice, or if
            labels may be transposed.
        OSError: if a file can't be read.
    """
    if num_classes is not None:
        checks.whole(1, MAX_CLASSES, num_classes=num_classes)
    array = artifacts.read_array(path)
    if not array.size:
        raise ValueError(f"{path} contains no queries: its shape is {list(array.shape)}")
    try:
        if input_is_counts:
            everything = VoteCounts(array)
            if num_classes not in (None, everything.num_classes):
                raise ValueError(
                    f"num_classes={num_classes}, but the file has {everything.num_classes} columns"
                )
        else:
            everything = Votes(array, num_classes or DEFAULT_NUM_CLASSES).counts()
        is_doubtful = not input_is_counts and everything.num_teachers > everything.num_queries
        if num_teachers != everything.num_teachers and (is_doubtful or num_teachers is not None):
            raise ValueError(
                f"votes must have shape [num_teachers, num_queries], got {everything.dimensions}: "
                "transpose them, or confirm the number of teachers with `num_teachers`"
            )
        indices = np.arange(everything.num_queries)
        if indices_file is not None:
            indices = artifacts.read_array(indices_file)
        counts = everything.take(indices[:max_examples])
        source = VoteSource.of_counts(counts, mechanism, source=PrivateSource.of_file(path))
    except ValueError as error:
        message = str(error)
        if message.startswith("votes must be labels from") and num_classes is None:
            message += "; pass the number of classes as `num_classes`, or set `input_is_counts`"
        is_named = message.startswith((str(path), str(indices_file)))
        raise ValueError(message if is_named else f"{path}: {message}") from error
    if not counts.num_queries:
        raise ValueError(f"{path}: there are no queries to analyze")
    # The identity is a digest of the whole file, so all selections of its queries share one draw.
    return dataclasses.replace(source, identity=order_free_digest(everything.values))


def _groups(ledgers: Sequence[Ledger]) -> tuple[AnsweredVotes, ...]:
    """Returns the votes on all queries with a label, by mechanism and number of classes.

    Returns () if a ledger contains sums instead of counts, or if queries were chosen by earlier
    noisy labels.
    """
    groups: dict[tuple[Mechanism, int], list[votes.StoredCounts]] = {}
    for ledger in ledgers:
        for batch in votes.stored_counts(ledger):
            # Noisy sums of predictions have no data-dependent cost. For adaptive queries, such a
            # cost is not valid.
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
    """Reads the charges and votes of ledgers that belong to the same records.

    Args:
        ledgers: open ledgers. If some of them are copies of one ledger, their common rows are
            counted once, and all other rows are counted, too.
        votes_needed: whether missing votes are an error. If False and some votes are missing, the
            result contains no votes.

    Raises:
        ValueError: if the same ledger appears twice.
        LedgerError: if votes are damaged, or if votes are needed but missing.
    """
    if len({ledger.head for ledger in ledgers}) < len(ledgers):
        raise ValueError("`ledger` names the same ledger twice")
    charges = charges_of(distinct_rows(ledgers))
    spent = compose(ledgers, delta=ledgers[0].delta)
    # Copies of a ledger belong to the same ensemble of teachers. Without this check, their votes
    # would be counted twice.
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


MAX_MOMENTS: Final = 4096  # more moments would take minutes and hardly change the result
DEFAULT_BOUNDS: Final = ("paper", "two_sided", "class_aware")
SMOOTH_MOMENTS: Final = np.geomspace(1.0, 32.0, 8)

Progress = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Analysis(ChargedQueries, AtDelta):
    """The privacy cost of answered queries, in the worst case and for the true votes.

    Attributes:
        conversion: formula that converted moments to epsilon, "improved" or "classic".
        bounds: SENSITIVE; maps each data-dependent bound to its epsilon and the moment that gives
            it. Empty if there are no votes.
        smooth_sensitivity: SENSITIVE; maps each moment to U_beta of the total cost (natural
            logarithm).
    """

    conversion: str
    bounds: Mapping[str, tuple[float, float]] = dataclasses.field(repr=False, default_factory=dict)
    smooth_sensitivity: Mapping[float, float] = dataclasses.field(repr=False, default_factory=dict)

    @functools.cached_property
    def epsilon(self) -> float:
        """Public: worst-case epsilon of all charges together."""
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
    """Returns the data-independent and the data-dependent privacy cost of answered queries.

    >>> import numpy as np, pate_tf
    >>> counts = np.tile([90, 10], (100, 1))
    >>> analysis = pate_tf.analysis.analyse(counts, pate_tf.LaplaceNoisyMax(scale=20), delta=1e-5)
    >>> analysis.bounds["two_sided"][0] < analysis.epsilon
    True

    Args:
        votes: counts `[num_queries, num_classes]`, or the return value of `read_votes_file` or
            `read_ledgers`. Every teacher must have one vote on every query. Queries must have been
            chosen without looking at noisy labels.
        mechanism: mechanism that answers the queries; required if `votes` are counts.
        delta: delta for which every epsilon holds.
        bounds: names of data-dependent bounds. Default: all of `DEFAULT_BOUNDS` that every
            mechanism has.
        num_moments: use the moments 1, 2, ..., num_moments (8 in the paper). Default: log-spaced
            real moments.
        conversion: "improved" (Balle et al. 2020) or "classic" (Abadi et al. 2016).
        beta: discount rate per teacher of the smooth sensitivity (docs/proofs/theory.md, Theorem
            A). None if the smooth sensitivity is not needed.
        progress: function that is called with the number of finished histograms and the total
            number while the bound `exact` runs.

    Raises:
        ValueError: if a mechanism does not have one of `bounds`, or has no smooth sensitivity
            although `beta` is given.
    """
    if isinstance(votes, VoteSource):
        source = votes
    elif mechanism is None:
        raise ValueError("mechanism is required, because an array of counts does not name it")
    else:
        source = VoteSource.of_counts(VoteCounts(np.asarray(votes)), mechanism)
    grid = moments.DEFAULT_MOMENTS if num_moments is None else np.arange(1.0, num_moments + 1.0)
    groups = source.groups
    for group in groups:
        for wanted in bounds or ():
            moments.check_bound(wanted, group.mechanism)
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
    """SENSITIVE: returns the smooth sensitivity at each moment.

    The function uses the bound `two_sided`. If this bound has no smooth sensitivity, the function
    uses the first bound of `bounds` that has one.
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
