"""What a person may say of labels and their budget. TensorFlow is not imported."""

import dataclasses

from pate_tf.accounting.cost_release import DEFAULT_PROFILE, PlannedRelease
from pate_tf.accounting.delta import DELTA
from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.accounting.mechanisms.base import check_mechanism
from pate_tf.accounting.mechanisms.feature_sums import MOST_ROUNDS
from pate_tf.accounting.planning import DEFAULT_MARGIN, ROUNDS, ROUNDS_RATIO
from pate_tf.core.settings import Settings, setting
from pate_tf.data.named_function import Named
from pate_tf.queries.strategies import AUTO
from pate_tf.release.noise import NoiseSource, SeededNoise, SystemNoise

METHODS = ("pate", "feature_sums")
DEFAULT_NUM_QUERIES = 100


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelSettings(Settings):
    """Which labels are released. Public; `pate_tf.release.labelling.plan_release` completes it.

    Either `epsilon` is given, and a plan that reads no private value finds the noise; or
    `mechanism` is a mechanism with its noise. How queries are chosen is as `QueryConfig` has it;
    None for the planned value, or for what suits the mechanism.
    """

    method: str = setting(
        "pate",
        group="method",
        choices=METHODS,
        help="pate: teachers vote on queries of the public pool, and noisy labels of these are "
        "released. feature_sums: the sum of clipped feature vectors of each class is released "
        "once, with Gaussian noise, and all of the pool gets labels; no teacher is asked.",
    )
    epsilon: float | None = setting(
        None,
        group="privacy",
        above=0.0,
        help="Epsilon of this release at --delta, whatever the data. Mechanism, noise and number "
        "of queries are planned from public values; with --mechanism, noise and number alone.",
    )
    mechanism: Mechanism | type[Mechanism] | None = None
    num_queries: int | None = None
    strategy: str | None = None  # None: `strategies.recommended`
    num_neighbours: int | None = None
    rounds: int | None = None
    num_rounds: int | None = setting(
        None,
        group="privacy",
        least=1,
        most=MOST_ROUNDS,
        advanced=True,
        help="With --method=feature_sums: how many rounds of sums are released within --epsilon, "
        "each later one of what a linear model of the earlier ones misses. Default: "
        f"{ROUNDS} where a class has {ROUNDS_RATIO:g} times more records than a single release has "
        "noise, else one.",
    )
    seed: int = 0
    representation: Named | None = None
    margin: float = setting(
        DEFAULT_MARGIN,
        group="privacy",
        above=0.0,
        most=1.0,
        advanced=True,
        help="With --epsilon: what the plan assumes of every query: the first class leads the "
        "second by this share of the teachers. A guess from public values, never measured on the "
        "votes.",
    )
    insecure_seed: int | None = setting(
        None,
        group="privacy",
        least=0,
        advanced=True,
        help="Draw the privacy noise from this seed, for tests and demonstrations. NOTHING is "
        "private then; ledger and statement say so for ever.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.strategy == AUTO:
            object.__setattr__(self, "strategy", None)
        has_noise = self.mechanism is not None and not isinstance(self.mechanism, type)
        if has_noise:
            check_mechanism(self.mechanism)
        if self.method == "pate" and (self.epsilon is None) != has_noise:
            got = "both" if has_noise else "neither"
            raise ValueError(
                f"epsilon: expected a number, or a mechanism with its noise, got {got}"
            )
        if self.method == "pate" and self.num_rounds is not None:
            raise ValueError(
                f"num_rounds: expected none with method pate, got {self.num_rounds}; method "
                f"feature_sums takes it"
            )
        if self.method == "feature_sums" and self.epsilon is None:
            raise ValueError(
                "epsilon: expected a number with method feature_sums, which its noise follows "
                "from, got none"
            )

    def noise(self) -> NoiseSource:
        """Returns the source of the privacy noise: the operating system, but for a seed."""
        return SystemNoise() if self.insecure_seed is None else SeededNoise(self.insecure_seed)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReleaseSettings(Settings):
    """How the data-dependent cost will be released, if ever; fixed at first use."""

    planned_release: str | None = setting(
        None,
        group="privacy",
        choices=("sanitised", "smooth_sensitivity"),
        advanced=True,
        help="How analysis.py will release the data-dependent cost, if ever; fixed at first use, "
        "before there are votes. Default: sanitised.",
    )
    planned_profile: float | None = setting(
        None,
        group="privacy",
        advanced=True,
        help="The hypothetical votes that this release is planned for: every query led by this "
        f"share of the teachers; fixed at first use. Default: {DEFAULT_PROFILE:g}.",
    )

    def planned(self) -> PlannedRelease | None:
        """Returns what was said; None if nothing."""
        if self.planned_release is None and self.planned_profile is None:
            return None
        is_smooth = self.planned_release == "smooth_sensitivity"
        return PlannedRelease(
            release="smooth_sensitivity" if is_smooth else "log_cost",
            profile=DEFAULT_PROFILE if self.planned_profile is None else self.planned_profile,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget(Settings):
    """What all labels of an ensemble may cost together. Public."""

    delta: float | None = setting(None, group="privacy", **DELTA)
    epsilon_budget: float | None = setting(
        None,
        group="privacy",
        above=0.0,
        help="The most that everything released from these teachers may ever cost, as epsilon at "
        "--delta; fixed at first use. Default: no limit; all is recorded in the ledger.",
    )
    replace_budget: bool = setting(
        False,
        group="privacy",
        flag="new_budget_i_understand",
        advanced=True,
        help="Replace the budget by --epsilon_budget and --delta, both of which must be given. The "
        "ledger and every later statement say so for ever.",
    )
    acknowledge_reset: bool = setting(
        False,
        group="privacy",
        flag="reset_ledger_i_understand",
        advanced=True,
        help="Go on although the ledger, or rows of it, are gone. What is known of their cost is "
        "charged again. The ledger and every later statement say so for ever.",
    )
    planned_release: PlannedRelease | None = None
