"""Kinds of student by name: a file of this package with its `KIND`, and a line of `CHOICES`.

A kind is imported when it is used: flags know name and help without TensorFlow. It trains on
released labels and a pool of public inputs, and sees neither votes nor true labels.
"""

import contextlib
import dataclasses
import importlib
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

from pate_tf.core import checks
from pate_tf.core.dataset import CLASS, Dataset
from pate_tf.core.public import Pool, PoolLabels
from pate_tf.core.reporting import QUIET
from pate_tf.core.settings import FUNCTION, HIGHEST_RATE, LARGEST_BATCH, MOST_STEPS, Seeded, setting
from pate_tf.data.named_function import Named

AUTO: Final = "auto"
LINEAR_HEAD: Final = "linear_head"
# Below it most confident predictions of a network that trains on them would be wrong, and it would
# train on those as well.
MIN_LABEL_ACCURACY: Final = 0.5
# Those of `models.catalogue.BUILDERS`, which imports Keras.
NETWORKS: Final = ("cnn", "wide_cnn", "mlp", "deeper", "paper_mnist", "paper_svhn")
# Values of `--student` with their help.
CHOICES: Final = {
    AUTO: "linear_head of tables and texts with feature sums, and of images after several rounds "
    "of them; consistency for images whose data set names an "
    "augmentation and a model without batch normalization; supervised otherwise.",
    "consistency": "a Keras model that must agree with itself on changed images of the pool.",
    "gan": "PATE-G, an improved GAN on the labels and on all images of the pool.",
    LINEAR_HEAD: "the encoder of feature sums with the linear model that the released sums give.",
    "random_forest": "a random forest on the noisy labels, the same as --model=random_forest.",
    "supervised": "a Keras model by cross-entropy on the noisy labels alone.",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudentConfig(Seeded):
    """What a student's result depends on besides its labels and its pool; see `StudentSettings`.

    Attributes:
        linear_head: that came with the labels; None of other students than `linear_head`.
    """

    student: str = "supervised"
    model: Named
    max_steps: int
    batch_size: int
    learning_rate: float
    linear_head: Any = dataclasses.field(default=None, repr=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FitOptions:
    """What of a training is stored and shown; nothing here changes the result.

    Attributes:
        folder: logs and the state of an unfinished run lie below it; None for neither.
        callbacks: called as Keras calls them.
        progress_bar: as of `Reporting`.
    """

    folder: pathlib.Path | None = None
    callbacks: Sequence[Any] = ()
    progress_bar: Callable[..., Any] = QUIET.progress_bar


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudentKind:
    """One way to learn from released labels.

    Attributes:
        name: value of `--student`.
        fit: from configuration, labels of a pool, pool and options to a model that is called as a
            Keras model is, from raw inputs to logits.
        check: raises ValueError if a configuration does not fit a data set; called before labels
            are charged.
        default_model: name of the model where none is named.
        max_steps: training steps where no number is given.
        batch_size: labeled examples a step where no number is given.
        learning_rate: of Adam where no number is given.
        of_whole_table: other numbers of the three above for labels of every input of a table's
            pool, which follow from feature sums: single ones are not noisy.
        has_steps: whether it is trained in steps; a forest and a linear head are not.
        can_convert: whether it can be written in formats other than SavedModel.
    """

    name: str
    fit: Callable[[StudentConfig, PoolLabels, Pool, FitOptions], Any]
    check: Callable[[StudentConfig, Dataset], None]
    default_model: Callable[[Dataset], str]
    max_steps: int = 1_000
    batch_size: int = 64
    learning_rate: float = 0.002
    of_whole_table: Mapping[str, float] = dataclasses.field(default_factory=dict)
    has_steps: bool = True
    can_convert: bool = True

    def train(self, config: StudentConfig, released: PoolLabels, pool: Pool, **options: Any) -> Any:
        """Returns a model that is called as a Keras model is, from raw inputs to logits.

        Args:
            config: how it is trained.
            released: noisy labels of some of the pool; a model is taught their weights, where they
                have some.
            pool: public inputs `[num_inputs, *input_shape]`.
            **options: as of `FitOptions`; a forest calls no callbacks.

        Raises:
            ValueError: if there is no label, the labels do not belong to this pool, or the model
                does not fit.
            TrainingDivergedError: if a loss or weight became NaN or infinite.
        """
        if pool or self.name != LINEAR_HEAD:
            released.check_pool(pool)
        return self.fit(config, released, pool, FitOptions(**options))


def names() -> list[str]:
    """Returns the names of all kinds."""
    return [name for name in CHOICES if name != AUTO]


def kind_of(name: str) -> StudentKind:
    """Returns the kind of a name; ValueError if there is none."""
    checks.one_of(names(), student=name)
    kind: StudentKind = importlib.import_module(f"{__name__}.{name}").KIND
    return kind


TRAINING = ("max_steps", "batch_size", "learning_rate")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudentSettings(Seeded):
    """How a student learns; what is None is the kind's own: see `complete`."""

    restated: ClassVar = {
        "seed": {
            "help": "Seed of the choice of queries and of the student's initial weights, shuffling "
            "and augmentation. No privacy noise comes from it."
        }
    }
    student: str = setting(
        AUTO,
        choices=CHOICES.keys(),
        help="How the student learns. "
        + " ".join(f"{name}: {sentence}" for name, sentence in CHOICES.items()),
    )
    model: Named | None = setting(
        None,
        choices=(*NETWORKS, "random_forest", FUNCTION),
        help="Keras model of the student, from raw inputs to logits: cnn, wide_cnn, mlp, deeper, "
        "paper_mnist, paper_svhn or module:function. Default: wide_cnn for consistency on images, "
        "cnn for other students of images, mlp otherwise; gan has its own networks.",
    )
    max_steps: int | None = setting(
        None,
        least=1,
        most=MOST_STEPS,
        help="Training steps of the student at most; a Keras model, but for gan, stops once its "
        "predictions on the pool are stable. Default: the student's own, "
        f"{StudentKind.max_steps} for supervised.",
    )
    batch_size: int | None = setting(
        None,
        least=1,
        most=LARGEST_BATCH,
        help="Labeled examples a training step. Default: the student's own, "
        f"{StudentKind.batch_size} for supervised.",
    )
    learning_rate: float | None = setting(
        None,
        above=0.0,
        most=HIGHEST_RATE,
        help="Learning rate of Adam; it falls along a cosine, but for gan. Default: the student's "
        f"own, {StudentKind.learning_rate:g} for supervised.",
    )


def fitting(
    dataset: Dataset,
    *,
    of_sums: bool = False,
    has_pool: bool = True,
    is_frozen: bool = False,
    num_rounds: int = 1,
    label_accuracy: float | None = None,
) -> tuple[str, str]:
    """Returns the kind of student that fits, by public values alone; and why, in words.

    Args:
        dataset: what it learns from. Augmentation says which changes leave a label as it is.
        of_sums: whether labels follow from feature sums.
        has_pool: whether there are public inputs.
        is_frozen: whether features are those of an encoder that a person brought.
        num_rounds: of feature sums.
        label_accuracy: the fraction of correct labels by a trial, where the sums give a linear
            model; None without such a model or trial.
    """
    if dataset.target != CLASS:
        return LINEAR_HEAD, "the one that predicts numbers and several labels"
    if is_frozen:
        return LINEAR_HEAD, "on the features of the encoder that was brought"
    if of_sums and (dataset.kind != "image" or not has_pool):
        return LINEAR_HEAD, "which the sums give; no network is expected to be better"
    if of_sums and num_rounds > 1:
        return LINEAR_HEAD, "which several rounds of sums give; a network is not clearly better"
    if of_sums and label_accuracy is not None and label_accuracy < MIN_LABEL_ACCURACY:
        return LINEAR_HEAD, "which the sums give; most labels are too uncertain to train a network"
    if dataset.augmentation != "none":
        return "consistency", "which all images of the pool teach, too"
    return "supervised", "which learns from the labels"


def complete(
    settings: StudentSettings, dataset: Dataset, *, labels_whole_pool: bool = False
) -> StudentConfig:
    """Returns settings with a kind's own values where they are None.

    A forest as the model of the plain student makes it the forest student.

    Args:
        settings: what the user chose.
        dataset: what the student learns from; `auto` is the network that fits it.
        labels_whole_pool: whether every input of the pool has a label that follows from feature
            sums.

    Raises:
        ValueError: if there is no such student, or a setting does not fit it.
    """
    is_auto = settings.student == AUTO
    model = settings.model
    kind = kind_of(fitting(dataset)[0] if is_auto else settings.student)
    if model is not None and settings.student in (AUTO, "supervised"):
        from pate_tf.models import forest

        if forest.is_forest(model, dataset):
            kind = kind_of("random_forest")
    explicit = {name: value for name in TRAINING if (value := getattr(settings, name)) is not None}
    if explicit and not kind.has_steps:
        raise ValueError(
            f"{next(iter(explicit))}: expected none for student {kind.name}, which has no steps"
        )
    training: dict[str, Any] = {name: getattr(kind, name) for name in TRAINING}
    if labels_whole_pool and dataset.kind == "tabular":
        training |= kind.of_whole_table
    config = StudentConfig(
        student=kind.name,
        model=kind.default_model(dataset) if model is None else model,
        seed=settings.seed,
        **{**training, **explicit},
    )
    if is_auto and kind.name == "consistency" and model is not None:
        with contextlib.suppress(ValueError):  # of a model with batch statistics
            kind.check(config, dataset)
            return config
        plain = dataclasses.replace(settings, student="supervised")
        return complete(plain, dataset, labels_whole_pool=labels_whole_pool)
    return config


def find_student(config: StudentConfig, dataset: Dataset) -> StudentKind:
    """Returns the kind that a configuration names; ValueError if it does not fit the data set."""
    kind = kind_of(config.student)
    kind.check(config, dataset)
    return kind
