"""What a person decides about a release, what is publicly known, and the plan of both. Public."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from pate_tf.accounting.charge import DEFAULT_PROFILE, PlannedRelease
from pate_tf.accounting.conversions import WishedDelta
from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.accounting.mechanisms.charged_once import MAX_ROUNDS
from pate_tf.core.dataset import CLASS
from pate_tf.core.public import Pool
from pate_tf.core.settings import (
    ProtectedUnit,
    PublicationSettings,
    Settings,
    TeacherNumber,
    setting,
)
from pate_tf.data.named_function import Named, OnFeatures
from pate_tf.planning.forecast import Forecast
from pate_tf.queries.strategies import QueryConfig, QueryWishes
from pate_tf.students.student_kinds import StudentSettings

if TYPE_CHECKING:
    from pate_tf.release.feature_sums import FeatureSums
    from pate_tf.teachers.voters import Voter

METHODS: Final = ("pate", "feature_sums")
PATE, FEATURE_SUMS = METHODS
AUTO: Final = "auto"
DEFAULT_MARGIN: Final = DEFAULT_PROFILE
TRAIN: Final = "train"
EVALUATE: Final = "evaluate"
# Labels on which an accuracy has two standard errors of at most 4 points: (2 * 0.5 / 0.04)^2.
MIN_TRAINING_LABELS: Final = 625


@dataclasses.dataclass(frozen=True, kw_only=True)
class WishedEpsilon(Settings):
    """The epsilon that a person asks for. Public."""

    epsilon: float | None = setting(
        None,
        group="privacy",
        above=0.0,
        help="What the release may cost at --delta, in the worst case. Mechanism, noise and number "
        "of queries are planned from public values; with --mechanism, noise and number alone.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Privacy(WishedDelta, WishedEpsilon):
    """What a release may cost. Public."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReleasePrivacy(Privacy):
    """What a release and an estimate of its accuracy may cost. Public."""

    evaluate_epsilon: float | None = setting(
        None,
        group="privacy",
        above=0.0,
        help="Hold back a tenth of the private records, and release the accuracy on them with "
        "noise, for so much. The ledger adds it to --epsilon; the statement has the larger of "
        "both, as a record is in one part alone. Default: no such estimate.",
    )
    accept_forecast: bool = setting(
        False,
        group="privacy",
        help="Continue where a constant answer is expected to be as good as the labels: by "
        "accuracy, or by ranking where the most frequent class of the pool has more than 80 %. "
        "Otherwise nothing is charged, and the command ends with exit code 4.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget(ReleasePrivacy):
    """What this release may cost, and all releases from the same teachers or sums. Public."""

    epsilon_budget: float | None = setting(
        None,
        group="privacy",
        above=0.0,
        help="The most that all releases from these teachers may ever cost, as epsilon at --delta; "
        "fixed at first use. Default: no limit.",
    )
    replace_budget: bool = setting(
        False,
        group="privacy",
        flag="new_budget_i_understand",
        advanced=True,
        help="Replace the budget by --epsilon_budget and --delta, both of which must be given. The "
        "ledger and every later statement say so forever.",
    )
    acknowledge_reset: bool = setting(
        False,
        group="privacy",
        flag="reset_ledger_i_understand",
        advanced=True,
        help="Continue although the ledger, or rows of it, are gone. Their known cost is charged "
        "again. The ledger and every later statement say so forever.",
    )
    planned_release: str | None = setting(
        None,
        group="privacy",
        choices=("sanitised", "smooth_sensitivity"),
        advanced=True,
        help="How analysis.py will release the data-dependent cost, if ever; fixed at first use, "
        "before there are votes. Default: sanitised.",
    )
    planned: PlannedRelease | None = None  # default: what `planned_release` says
    insecure_seed: int | None = setting(
        None,
        group="privacy",
        least=0,
        advanced=True,
        help="Draw the privacy noise from this seed, for tests and demonstrations. NOTHING is "
        "private then; ledger and statement say so forever.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.planned_release is not None:
            is_smooth = self.planned_release == "smooth_sensitivity"
            planned = PlannedRelease(release="smooth_sensitivity" if is_smooth else "log_cost")
            object.__setattr__(self, "planned", planned)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublicLabelUse(Settings):
    """What labels of the public pool are used for. Public."""

    public_labels: str = setting(
        AUTO,
        group="method",
        choices=(AUTO, TRAIN, EVALUATE),
        help="train: the student learns from the labels of public records, too, except for those "
        "that are held out. It costs no privacy. evaluate: they only choose settings and measure. "
        f"auto: train for tables and texts with at least {MIN_TRAINING_LABELS} labels.",
    )

    def trains_on_labels(self, pool: Pool, method: str, num_rounds: int | None = None) -> bool:
        """Whether the student learns from the pool's own labels, too; a public rule.

        Args:
            pool: public inputs.
            method: "pate" or "feature_sums".
            num_rounds: rounds of sums; None if they are not chosen yet.

        Raises:
            ValueError: if it was chosen and it is not possible.
        """
        unsupported = ""
        if not pool.num_labeled:
            unsupported = "the public pool has no labels"
        elif pool.dataset.target != CLASS and method == PATE:
            unsupported = f"method pate does not support it for target {pool.dataset.target}"
        elif (num_rounds or 1) > 1:
            unsupported = "several rounds are not supported"
        if self.public_labels == TRAIN and unsupported:
            raise ValueError(f"public_labels: {unsupported}. Use public_labels=evaluate.")
        is_enough = pool.num_labeled >= MIN_TRAINING_LABELS
        is_default = self.public_labels == AUTO and is_enough
        is_default = is_default and pool.dataset.augmentation == "none"
        return not unsupported and (self.public_labels == TRAIN or is_default)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReleaseSettings(TeacherNumber, PublicLabelUse):
    """Which labels are released, and for how much. Public; `planning.choose` completes it.

    Either `budget.epsilon` is given, and a plan that reads no private value finds the noise; or
    `mechanism` is a mechanism with its noise. What is None is planned.

    Attributes:
        budget: what it may cost.
        queries: which inputs teachers are asked about; `representation` is what teachers, sums and
            the choice of queries are of, and `seed` seeds all but the noise.
        mechanism: with its noise; or, with an epsilon, the kind to find the noise of.
    """

    restated: ClassVar = {
        "num_teachers": {
            "group": "method",
            "help": "Number of teachers of method pate. Default: by the number of private records, "
            "100 in pate plan; with owners, whose number is private, it must be given.",
        }
    }
    budget: Budget = dataclasses.field(default_factory=Budget)
    queries: QueryWishes = dataclasses.field(default_factory=QueryWishes)
    mechanism: Mechanism | type[Mechanism] | None = None
    method: str = setting(
        AUTO,
        group="method",
        choices=(AUTO, *METHODS),
        help="pate: teachers vote on some of the public inputs. feature_sums: noisy sums of "
        "each class's clipped feature vectors label all of them. auto: by public numbers whichever "
        "is expected to label better; with owners, whose number is private, feature_sums.",
    )
    num_rounds: int | None = setting(
        None,
        group="privacy",
        least=1,
        most=MAX_ROUNDS,
        advanced=True,
        help="With --method=feature_sums: how many rounds of sums are released within --epsilon, "
        "each later one of what a linear model of the earlier ones misses. Default: planned.",
    )
    margin: float = setting(
        DEFAULT_MARGIN,
        group="privacy",
        above=0.0,
        most=1.0,
        advanced=True,
        help="With --epsilon: the vote margin that the plan assumes of every query, as a fraction "
        "of the teachers; never measured on the votes.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        epsilon = self.budget.epsilon
        has_noise = self.mechanism is not None and not isinstance(self.mechanism, type)
        if self.method == FEATURE_SUMS and epsilon is None:
            raise ValueError(
                "epsilon: expected a number with method feature_sums, which its noise follows "
                "from, got none"
            )
        if (epsilon is None) != has_noise:
            got = "both" if has_noise else "neither"
            raise ValueError(
                f"epsilon: expected a number, or a mechanism with its noise, got {got}"
            )
        if self.method == PATE and self.num_rounds is not None:
            raise ValueError(
                f"num_rounds: expected none with method pate, got {self.num_rounds}; method "
                f"feature_sums takes it"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Output(PublicationSettings):
    """What a run leaves where. Public."""

    folder: pathlib.Path | None = setting(
        None,
        group="output",
        flag="train_dir",
        help="Folder of the run; enough alone where it holds teachers or feature sums. Default: "
        "runs/DATASET-NB_TEACHERS, or runs/DATASET-feature_sums.",
    )
    save_labels: bool = setting(
        True, group="output", help="Keep the noisy labels in TRAIN_DIR/released/labels.npz."
    )
    export_formats: tuple[str, ...] = setting(
        (),
        group="output",
        choices=("onnx", "litert"),
        help="Formats to write a Keras student in as well as a SavedModel: onnx (needs the package "
        "tf2onnx), litert, or both with a comma between; they lie in assets.extra of the exported "
        "version.",
    )
    report_file: str | None = setting(
        None, group="output", help="Where to write what is printed, as JSON."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What a run does: each part is declared in one class.

    Attributes:
        release: which labels are released, and for how much.
        student: that learns from them.
        output: what is left where.
        is_published: whether the student is exported with its statement.
    """

    release: ReleaseSettings
    student: StudentSettings = dataclasses.field(default_factory=StudentSettings)
    output: Output = dataclasses.field(default_factory=Output)
    is_published: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublicNumbers(Settings, ProtectedUnit):
    """What a plan is made from besides wishes: numbers that are public."""

    num_classes: int = setting(
        10, group="data", flag="nb_labels", least=2, help="Number of classes."
    )
    num_records: int | None = setting(
        None,
        group="data",
        flag="nb_records",
        least=1,
        help="About how many private records there are, or owners with --unit=owner, as far as "
        "that is public. Without it there is no forecast for feature_sums.",
    )
    pool_size: int = setting(
        1_000,
        group="data",
        flag="stdnt_share",
        least=0,
        help="Number of public inputs, which form the student's pool; 0 for none.",
    )
    has_augmentation: bool = setting(
        True,
        group="data",
        flag="augmented",
        help="The inputs are images whose data set names an augmentation. Only then can "
        "feature_sums count records in clusters of the pool.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Electorate(OnFeatures):
    """What is publicly known of teachers, trained or not. Public.

    Attributes:
        num_teachers: that vote.
        model: what they are, as `pate_tf.Teachers` takes it; None of teachers from elsewhere.
        representation: features that they learn from; None of raw inputs.
        covers_pool: whether they can vote on every input of the pool.
        is_planned: whether the plan chose them, so that it answers for their number of records.
    """

    num_teachers: int
    model: Named | None = None
    covers_pool: bool = True
    is_planned: bool = False

    @classmethod
    def of(cls, voter: Voter) -> Self:
        """Returns what is known of an ensemble."""
        return cls(
            num_teachers=voter.num_teachers,
            model=None if voter.config is None else voter.config.model,
            representation=voter.representation,
            covers_pool=voter.covers_pool,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Known(PublicNumbers):
    """What is publicly known of the data. Public.

    Attributes:
        pool: public inputs.
        voters: teachers that are trained, or whose settings are given; None if there are none.
        sums: feature sums, computed or not; None if there are none.
    """

    pool: Pool
    voters: Electorate | None = None
    sums: FeatureSums | None = None

    @classmethod
    def of(cls, pool: Pool, **facts: Any) -> Self:
        """Returns what is known of a pool and of private data.

        Args:
            pool: public inputs.
            **facts: `unit`; `num_records`, None where owners are protected, as their number is
                private; `voters` and `sums`.
        """
        return cls(
            pool=pool,
            num_classes=pool.dataset.num_classes,
            pool_size=len(pool),
            has_augmentation=pool.dataset.augmentation != "none" and pool.dataset.target == CLASS,
            **facts,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReleasePlan:
    """What is released, and why; made by `choose` from public values alone. Public.

    A `Labeller` draws exactly this mechanism: the forecast describes what is released, as both read
    the same object.

    Attributes:
        mechanism: draws the noise and accounts for it; None of silos that randomize their votes,
            each at its own epsilon.
        queries: which inputs of the pool get labels, and how they are chosen.
        voters: teachers that vote; None of feature sums, and of silos.
        representation: features that sums are of; None of votes.
        student: the kind that fits, a name in `pate_tf.students.student_kinds`; empty of silos.
        forecast: expected accuracy of the labels; None if there is no forecast.
        evaluate_epsilon: what an estimate of the accuracy costs; None without one.
        trains_on_labels: whether the student learns from the pool's own labels, too.
        logit_factor: of a linear model, by a trial on public labels, so that its probabilities are
            calibrated.
        reason: how mechanism and noise were chosen, for every statement; None if they were given.
        choices: a sentence for each choice.
        description: the comparison that it was chosen from, as text; empty if there was none.
    """

    mechanism: Any
    queries: QueryConfig
    voters: Electorate | None = None
    representation: Any = None
    student: str = ""
    forecast: Forecast | None = None
    evaluate_epsilon: float | None = None
    trains_on_labels: bool = False
    logit_factor: float = 1.0
    reason: str | None = None
    choices: tuple[str, ...] = ()
    description: str = ""

    @property
    def method(self) -> str:
        """How labels come about: "pate" or "feature_sums"."""
        adds_up = self.mechanism is not None and self.mechanism.releases_feature_sums
        return FEATURE_SUMS if adds_up else PATE

    def notes(self, majority: float | None) -> tuple[str, ...]:
        """Returns what a person reads before anything is charged, a text each.

        Args:
            majority: share of the pool's most frequent class; None if the pool has no labels.
        """
        if self.forecast is None:
            return *self.choices, str(self)
        forecast = f"Forecast, before anything is charged: {self.forecast.in_words(majority)}"
        return *self.choices, str(self), forecast

    def __str__(self) -> str:
        number = self.queries.num_queries
        strategy = self.queries.strategy
        return self.description or f"{self.mechanism.summary()}, {number} queries by {strategy}"
