"""What answered queries cost, by every kind of accounting. TensorFlow is not imported."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from pate_tf.accounting import composition, conversions, moments
from pate_tf.accounting.charges import SMOOTH_BOUNDS
from pate_tf.accounting.composition import Charge
from pate_tf.accounting.conversions import DEFAULT_DELTA, FloatArray
from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.analysis.smooth_sensitivity import smooth_sensitivity
from pate_tf.analysis.votes import AnsweredVotes, VoteSource
from pate_tf.core.sensitive import VoteCounts

MOST_MOMENTS: Final = 4096  # more change no digit, and take minutes
DEFAULT_BOUNDS: Final = ("paper", "two_sided", "class_aware")
SMOOTH_MOMENTS: Final = np.geomspace(1.0, 32.0, 8)

Progress = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Analysis:
    """What queries cost.

    Attributes:
        num_charged: public; what the queries were charged as, by mechanism.
        num_queries: public; how many queries were asked.
        num_answered: public; how many labels were released.
        delta: of every epsilon.
        conversion: from moments to epsilon, "improved" or "classic".
        releases: public; what else was charged: draws of the noisy data-dependent cost.
        bounds: SENSITIVE; epsilon and its moment, by data-dependent bound. Empty without votes.
        smooth_sensitivity: SENSITIVE; U_beta of the total cost by moment, natural logarithm.
    """

    num_charged: Mapping[Charge, int]
    num_queries: int
    num_answered: int
    delta: float
    conversion: str
    releases: Mapping[Charge, int]
    bounds: Mapping[str, tuple[float, float]] = dataclasses.field(repr=False, default_factory=dict)
    smooth_sensitivity: Mapping[float, float] = dataclasses.field(repr=False, default_factory=dict)

    @functools.cached_property
    def epsilon(self) -> float:
        """Publishable: of everything charged, in both directions, whatever the data."""
        return composition.smallest_epsilon({**self.num_charged, **self.releases}, self.delta)[0]


def moment_grid(num_moments: int | None) -> FloatArray:
    """Returns the moments 1, 2, ..., num_moments; by default real ones, log-spaced."""
    if num_moments is None:
        return moments.DEFAULT_MOMENTS
    return np.arange(1.0, num_moments + 1.0)


def bound_alphas(
    groups: Sequence[AnsweredVotes], bound: str, grid: FloatArray, progress: Progress | None = None
) -> FloatArray:
    """Returns the total cost at the true votes, `[num_moments]`. Sensitive."""
    total: FloatArray = np.sum(
        [
            moments.data_dependent_alphas(
                group.counts.values,
                group.mechanism,
                grid,
                bound=bound,
                num_unanswered=group.num_unanswered,
                progress=progress,
            )
            for group in groups
        ],
        axis=0,
    )
    return total


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
        num_moments: as of `moment_grid`; the paper's is 8.
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
    grid, groups = moment_grid(num_moments), source.groups
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
    costs = {
        name: conversions.epsilon_from_alphas(
            bound_alphas(groups, name, grid, progress), grid, delta, conversion=conversion
        )
        for name in (names if groups else ())
    }
    table = {}
    if beta is not None:
        group = source.only_group()
        # The first bound of the analysis that has a smooth sensitivity.
        usable = [bound for bound in costs if bound in SMOOTH_BOUNDS]
        bound = "two_sided" if "two_sided" in usable or not usable else usable[0]
        table = {
            float(moment): smooth_sensitivity(
                group.counts.values, group.mechanism, moment=float(moment), beta=beta, bound=bound
            )
            for moment in (SMOOTH_MOMENTS if num_moments is None else grid)
        }
    return Analysis(
        num_charged=source.num_charged,
        num_queries=source.num_queries,
        num_answered=source.num_answered,
        delta=delta,
        conversion=conversion,
        releases=source.releases,
        bounds=costs,
        smooth_sensitivity=table,
    )
