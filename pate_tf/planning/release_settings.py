"""Public: settings of a release, facts about the data, and the resulting plan."""

from __future__ import annotations

import dataclasses
import math
import pathlib
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from pate_tf.accounting.charge import DEFAULT_PROFILE, PlannedRelease
from pate_tf.accounting.conversions import WishedDelta
from pate_tf.accounting.mechanisms import Mechanism
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
from pate_tf.planning.forecast import MIN_PRECISE, Forecast
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
# With this number of labels, two standard errors of an accuracy are at most 10 points:
# (2 * 0.5 / 0.1)^2.
MIN_JOINED: Final = 100


@dataclasses.dataclass(frozen=True, kw_only=True)
class WishedEpsilon(Settings):
    """Public: setting for the privacy budget epsilon."""

    epsilon: float | None = setting(
        None,
        group="privacy",
        above=0.0,
        help="Privacy budget of the release: its worst-case epsilon at --delta. The mechanism, "
        "its noise and the number of queries are planned from public values. With --mechanism, "
        "only its noise and the number of queries are planned.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Privacy(WishedDelta, WishedEpsilon):
    """Public: settings for the privacy budget of a release."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReleasePrivacy(Privacy):
    """Public: settings for the privacy budgets of a release and of an accuracy estimate."""

    evaluate_epsilon: float | None = setting(
        None,
        above=0.0,
        hint=", or left out for no estimate",
        help="Hold out 10 % of the private records, and release the accuracy on them with noise at "
        "this epsilon. The ledger adds this epsilon to --epsilon. The statement contains the "
        "larger epsilon, because each record is used for only one of them. Default: no estimate.",
    )
    accept_forecast: bool = setting(
        False,
        help=f"Continue even if {MIN_PRECISE} labels of a public table show that private data do "
        "not help, or if a constant answer is expected to be as good as the labels (by AUC if a "
        "class has over 80 % of the pool). Otherwise, nothing is charged, and the exit code is 4.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget(ReleasePrivacy):
    """Public: settings for the privacy budgets of this release and of all releases."""

    epsilon_budget: float | None = setting(
        None,
        above=0.0,
        help="Maximum total epsilon at --delta of all releases from these teachers or sums. It is "
        "set at first use. Default: no limit.",
    )
    replace_budget: bool = setting(
        False,
        flag="new_budget_i_understand",
        advanced=True,
        help="Replace the budget by --epsilon_budget and --delta, which are both required. The "
        "ledger and every later statement record this forever.",
    )
    acknowledge_reset: bool = setting(
        False,
        flag="reset_ledger_i_understand",
        advanced=True,
        help="Continue even if the ledger or some of its rows are missing. The known cost of "
        "missing rows is charged again. The ledger and every later statement record this forever.",
    )
    planned_release: str | None = setting(
        None,
        choices=("sanitised", "smooth_sensitivity"),
        advanced=True,
        help="Kind of release of the data-dependent cost, if you release it later with `pate "
        "analysis`. It is set at first use, before there are votes. Default: sanitised.",
    )
    planned: PlannedRelease | None = None  # by default, set from `planned_release`
    insecure_seed: int | None = setting(
        None,
        least=0,
        advanced=True,
        help="Draw the privacy noise from this seed, for tests and demonstrations only. The "
        "results are then NOT private. The ledger and every statement record this forever.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.evaluate_epsilon and (self.epsilon or 0.0) >= (self.epsilon_budget or math.inf):
            raise ValueError(
                f"epsilon_budget={self.epsilon_budget} must be above epsilon={self.epsilon}, "
                "because evaluate_epsilon needs a part of it"
            )
        if self.planned_release is not None:
            is_smooth = self.planned_release == "smooth_sensitivity"
            planned = PlannedRelease(release="smooth_sensitivity" if is_smooth else "log_cost")
            object.__setattr__(self, "planned", planned)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublicLabelUse(Settings):
    """Public: setting for the use of labels of the public pool."""

    public_labels: str = setting(
        AUTO,
        group="method",
        choices=(AUTO, TRAIN, EVALUATE),
        help="train: the student also learns from the labels of public records, except for "
        "held-out records. This costs no privacy. evaluate: public labels are only used to choose "
        "settings and to measure quality. auto: train if there are at least "
        f"{MIN_JOINED} labels, or {MIN_PRECISE} with method pate, but evaluate if all images of a "
        "pool have labels.",
    )

    def trains_on_labels(self, pool: Pool, method: str) -> bool:
        """Whether the student also learns from labels of the pool. Depends on public values only.

        Args:
            pool: public pool.
            method: "pate" or "feature_sums".

        Raises:
            ValueError: if `public_labels` is "train" but this is not possible.
        """
        unsupported = ""
        if not pool.num_labeled:
            unsupported = "the public pool has no labels"
        elif pool.dataset.target != CLASS and method == PATE:
            unsupported = f"method pate does not support target {pool.dataset.target}"
        if self.public_labels == TRAIN and unsupported:
            raise ValueError(f"public_labels: {unsupported}. Use public_labels=evaluate.")
        # With method pate, public labels replace votes on the same inputs, so more public labels
        # are needed.
        is_enough = pool.num_labeled >= (MIN_PRECISE if method == PATE else MIN_JOINED)
        # For images, public labels replace labels of the same inputs. If all inputs had public
        # labels, the student would learn nothing from private data, except with a user's encoder.
        is_useful = pool.dataset.augmentation == "none" or pool.num_labeled < len(pool)
        is_default = self.public_labels == AUTO and is_enough and is_useful
        return not unsupported and (self.public_labels == TRAIN or is_default)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReleaseSettings(TeacherNumber, PublicLabelUse):
    """Public: settings of a release of labels. `planning.choose` completes them.

    If `budget.epsilon` is given, the noise is planned without reading private values. Otherwise,
    `mechanism` must be a mechanism with its noise. Settings that are None are planned.

    Attributes:
        budget: privacy budgets.
        queries: settings of the queries. Their `representation` is also used for teachers and sums.
            Their `seed` is used for everything except the noise.
        mechanism: mechanism with its noise; or, if epsilon is given, a type of mechanism.
    """

    restated: ClassVar = {
        "num_teachers": {
            "group": "method",
            "help": "Number of teachers of method pate. Default: chosen from the number of private "
            "records, or 100 in pate plan. Required with owners, because their number is private.",
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
        "each class's clipped feature vectors label all public inputs. auto: the plan chooses "
        "the method from public values, by its expected accuracy; with --unit=owner, feature_sums.",
    )
    margin: float = setting(
        DEFAULT_MARGIN,
        group="privacy",
        above=0.0,
        most=1.0,
        advanced=True,
        help="With --epsilon: vote margin that the plan assumes for every query, as a fraction of "
        "the teachers. It is never measured on votes.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        epsilon = self.budget.epsilon
        has_noise = self.mechanism is not None and not isinstance(self.mechanism, type)
        if self.method == FEATURE_SUMS and epsilon is None:
            raise ValueError("epsilon is required with method feature_sums: it sets the noise")
        if epsilon is None and not has_noise:
            raise ValueError("epsilon is required, or a mechanism with its noise")
        if epsilon is not None and has_noise:
            raise ValueError("epsilon must not be given with a mechanism that has its noise")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Output(PublicationSettings):
    """Public: settings for the output folders and formats of a run."""

    folder: pathlib.Path | None = setting(
        None,
        group="output",
        flag="train_dir",
        help="Run folder. `pate student` reads the settings of its teachers or feature sums. "
        "Default: runs/DATASET-NB_TEACHERS, or runs/DATASET-feature_sums.",
    )
    save_labels: bool = setting(
        True, group="output", help="Keep the noisy labels in TRAIN_DIR/released/labels.npz."
    )
    export_formats: tuple[str, ...] = setting(
        (),
        group="output",
        choices=("onnx", "litert"),
        help="Additional formats for a Keras student, which is always exported as a SavedModel: "
        "onnx (needs the package tf2onnx), litert, or both, separated by a comma. The files are in "
        "assets.extra of the exported version.",
    )
    report_file: str | None = setting(None, group="output", help="JSON file for the report.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSettings:
    """All settings of a run.

    Attributes:
        release: settings of the released labels and their cost.
        student: settings of the student, which learns from the labels.
        output: output folders and formats.
        is_published: whether the student is exported with its statement.
    """

    release: ReleaseSettings
    student: StudentSettings = dataclasses.field(default_factory=StudentSettings)
    output: Output = dataclasses.field(default_factory=Output)
    is_published: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublicNumbers(Settings, ProtectedUnit):
    """Public: numbers of records, classes and inputs, which a plan needs."""

    num_classes: int = setting(10, flag="nb_labels", least=2, help="Number of classes.")
    num_records: int | None = setting(
        None,
        flag="nb_records",
        least=1,
        help="Approximate number of private records, or of owners with --unit=owner, if this "
        "number is public. Without this number, there is no forecast for feature_sums.",
    )
    pool_size: int = setting(
        1_000,
        flag="stdnt_share",
        least=0,
        help="Number of public inputs in the student's pool; 0 without public inputs.",
    )
    has_augmentation: bool = setting(
        True,
        flag="augmented",
        help="Whether the inputs are images with an augmentation. Without augmentation, "
        "feature_sums can't count records in clusters of the pool.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Electorate(OnFeatures):
    """Public: facts about teachers, which may not be trained yet.

    Attributes:
        num_teachers: number of teachers that vote.
        model: model of the teachers, see `pate_tf.Teachers`; None for custom teachers.
        representation: features from which teachers learn; None for raw inputs.
        covers_pool: whether the teachers can vote on every input of the pool.
        is_planned: whether the plan chooses the teachers. If so, the plan checks that there are
            enough records for them.
    """

    num_teachers: int
    model: Named | None = None
    covers_pool: bool = True
    is_planned: bool = False

    @classmethod
    def of(cls, voter: Voter) -> Self:
        """Returns public facts about an ensemble of teachers."""
        return cls(
            num_teachers=voter.num_teachers,
            model=None if voter.config is None else voter.config.model,
            representation=voter.representation,
            covers_pool=voter.covers_pool,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Known(PublicNumbers):
    """Public: facts about the data, teachers and feature sums.

    Attributes:
        pool: public inputs.
        voters: trained teachers, or teachers with given settings; None without teachers.
        sums: feature sums, which may not be computed yet; None without feature sums.
    """

    pool: Pool
    voters: Electorate | None = None
    sums: FeatureSums | None = None

    @classmethod
    def of(cls, pool: Pool, **facts: Any) -> Self:
        """Returns public facts about a pool and private data.

        Args:
            pool: public inputs.
            **facts: `unit`, `voters`, `sums` and `num_records`. If owners are protected,
                `num_records` must be None, because the number of owners is private.
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
    """Public: plan of a release with its reasons. `choose` makes it from public values only.

    A `Labeller` draws noise from the planned mechanism, so the forecast describes the actual
    release.

    Attributes:
        mechanism: mechanism that draws the noise. None for silos that randomize their votes,
            because each silo has a separate epsilon.
        queries: settings for the choice of queries from the pool.
        voters: teachers that vote; None for feature sums and for silos.
        representation: representation for feature sums; None for votes.
        student: kind of student, a name in `pate_tf.students.student_kinds`; empty for silos.
        forecast: expected accuracy of the labels; None if there is no forecast.
        evaluate_epsilon: epsilon of an accuracy estimate on private records; None without an
            estimate.
        trains_on_labels: whether the student also learns from labels of the pool.
        reason: reason for the choice of mechanism and noise, for statements; None if the user chose
            both.
        choices: sentences for the user, one for each choice that was made.
        description: comparison of mechanisms as text; empty if there was no comparison.
    """

    mechanism: Any
    queries: QueryConfig
    voters: Electorate | None = None
    representation: Any = None
    student: str = ""
    forecast: Forecast | None = None
    evaluate_epsilon: float | None = None
    trains_on_labels: bool = False
    reason: str | None = None
    choices: tuple[str, ...] = ()
    description: str = ""

    @property
    def method(self) -> str:
        """The method that computes the labels: "pate" or "feature_sums"."""
        adds_up = self.mechanism is not None and self.mechanism.releases_feature_sums
        return FEATURE_SUMS if adds_up else PATE

    def notes(self, majority: float | None) -> tuple[str, ...]:
        """Returns the texts to show before privacy budget is spent.

        Args:
            majority: fraction of the pool's most frequent class; None if the pool has no labels.
        """
        if self.forecast is None:
            return *self.choices, str(self)
        forecast = f"Forecast, before privacy budget is spent: {self.forecast.in_words(majority)}"
        return *self.choices, str(self), forecast

    def __str__(self) -> str:
        number = self.queries.num_queries
        strategy = self.queries.strategy
        return self.description or f"{self.mechanism.summary()}, {number} queries by {strategy}"
