"""Kinds of students. Each has a file in this package that defines `KIND`, and a line in `CHOICES`.

A kind is imported when it is used, so that names and help of flags need no TensorFlow. A kind
trains on released labels and a pool of public inputs. It sees neither votes nor true labels.
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
from pate_tf.core.settings import FUNCTION, MAX_BATCH, MAX_RATE, MAX_STEPS, Seeded, setting
from pate_tf.data.named_function import Named

AUTO: Final = "auto"
LINEAR_HEAD: Final = "linear_head"
# If the accuracy of labels is below this value, most labels are wrong. A network would make
# confident wrong predictions, and would then train on these as well.
MIN_LABEL_ACCURACY: Final = 0.5
# The names of `architectures.BUILDERS`, which imports Keras.
NETWORKS: Final = ("cnn", "wide_cnn", "mlp", "deeper", "paper_mnist", "paper_svhn")
# Values of `--student` with their help.
CHOICES: Final = {
    AUTO: "linear_head for feature sums of tables and texts, and of images after several rounds; "
    "consistency for images whose data set names an augmentation, if the model has no batch "
    "normalization; supervised otherwise.",
    "consistency": "a Keras model, trained to agree with itself on augmented images of the pool.",
    "gan": "PATE-G, an improved GAN on the labels and on all images of the pool.",
    LINEAR_HEAD: "the encoder of the feature sums, and a linear model computed from these sums.",
    "random_forest": "a random forest on the noisy labels, the same as --model=random_forest.",
    "supervised": "a Keras model, trained with cross-entropy on the noisy labels only.",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudentConfig(Seeded):
    """Everything that a student depends on except its labels and its pool; see `StudentSettings`.

    Attributes:
        linear_head: the linear model that was computed together with the labels; None unless the
            student is `linear_head`.
    """

    student: str = "supervised"
    model: Named
    max_steps: int
    batch_size: int
    learning_rate: float
    linear_head: Any = dataclasses.field(default=None, repr=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FitOptions:
    """What to store and show during training. These options do not change the result.

    Attributes:
        folder: folder for logs and the state of an unfinished run; None to store nothing.
        callbacks: Keras callbacks.
        progress_bar: see `Reporting`.
    """

    folder: pathlib.Path | None = None
    callbacks: Sequence[Any] = ()
    progress_bar: Callable[..., Any] = QUIET.progress_bar


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudentKind:
    """One way to learn from released labels.

    Attributes:
        name: value of `--student`.
        fit: takes the configuration, the labels of a pool, the pool and the options, and returns a
            trained model. The model is called like a Keras model and maps raw inputs to logits.
        check: raises ValueError if a configuration does not fit a data set; called before labels
            are charged.
        default_model: name of the default model.
        max_steps: default number of training steps.
        batch_size: default number of labeled examples per step.
        learning_rate: default learning rate of Adam.
        of_whole_table: other defaults of these three numbers, used if feature sums of a table label
            the whole pool. Such labels have no independent noise.
        has_steps: whether the model is trained in steps; a forest and a linear head are not.
        can_convert: whether the model can be exported in formats other than SavedModel.
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
        """Returns a trained model; it is called like a Keras model and maps raw inputs to logits.

        Args:
            config: configuration of the training.
            released: noisy labels of some inputs of the pool. If they have weights, the model
                learns the weights.
            pool: public inputs `[num_inputs, *input_shape]`.
            **options: see `FitOptions`; a forest calls no callbacks.

        Raises:
            ValueError: if there is no label, the labels do not belong to this pool, or the model
                does not fit the data.
            TrainingDivergedError: if a loss or weight became NaN or infinite.
        """
        if pool or self.name != LINEAR_HEAD:
            released.check_pool(pool)
        return self.fit(config, released, pool, FitOptions(**options))


def names() -> list[str]:
    """Returns the names of all kinds."""
    return [name for name in CHOICES if name != AUTO]


def kind_of(name: str) -> StudentKind:
    """Returns the kind with the name `name`; raises ValueError if there is no such kind."""
    checks.one_of(names(), student=name)
    kind: StudentKind = importlib.import_module(f"{__name__}.{name}").KIND
    return kind


TRAINING = ("max_steps", "batch_size", "learning_rate")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudentSettings(Seeded):
    """Settings of a student; `complete` replaces None by the default of the kind."""

    restated: ClassVar = {
        "seed": {
            "help": "Seed for the choice of queries, and for the student's initial weights, "
            "shuffling and augmentation. Privacy noise never uses it."
        }
    }
    student: str = setting(
        AUTO,
        choices=CHOICES.keys(),
        help="Kind of student. "
        + " ".join(f"{name}: {sentence}" for name, sentence in CHOICES.items()),
    )
    model: Named | None = setting(
        None,
        choices=(*NETWORKS, "random_forest", FUNCTION),
        help="Keras model of the student, which maps raw inputs to logits: cnn, wide_cnn, mlp, "
        "deeper, paper_mnist, paper_svhn or module:function. Default: wide_cnn for consistency on "
        "images, cnn for other students on images, mlp otherwise; gan has its own networks.",
    )
    max_steps: int | None = setting(
        None,
        least=1,
        most=MAX_STEPS,
        help="Maximum number of training steps of the student. Keras models, except gan, stop when "
        "their predictions on the pool are stable. Default: depends on the student, "
        f"{StudentKind.max_steps} for supervised.",
    )
    batch_size: int | None = setting(
        None,
        least=1,
        most=MAX_BATCH,
        help="Labeled examples per training step. Default: depends on the student, "
        f"{StudentKind.batch_size} for supervised.",
    )
    learning_rate: float | None = setting(
        None,
        above=0.0,
        most=MAX_RATE,
        help="Learning rate of Adam, with cosine decay except for gan. Default: depends on the "
        f"student, {StudentKind.learning_rate:g} for supervised.",
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
    """Returns the recommended kind of student, from public values only, and the reason in words.

    Args:
        dataset: data set of the labels; its augmentation names the changes that keep a label.
        of_sums: whether labels are computed from feature sums.
        has_pool: whether there are public inputs.
        is_frozen: whether the features come from the user's encoder.
        num_rounds: number of rounds of feature sums.
        label_accuracy: fraction of correct labels in a trial, if the sums provide a linear model;
            None if there is no such model or no trial.
    """
    if dataset.target != CLASS:
        return LINEAR_HEAD, "the only student for numbers and several labels"
    if is_frozen:
        return LINEAR_HEAD, "on the features of your encoder"
    if of_sums and (dataset.kind != "image" or not has_pool):
        return LINEAR_HEAD, "computed from the sums; no network is expected to be better"
    if of_sums and num_rounds > 1:
        return LINEAR_HEAD, "computed from several rounds; a network is not clearly better"
    if of_sums and label_accuracy is not None and label_accuracy < MIN_LABEL_ACCURACY:
        return LINEAR_HEAD, "computed from the sums; too many labels are wrong for a network"
    if dataset.augmentation != "none":
        return "consistency", "which also learns from the unlabeled images"
    return "supervised", "which learns from the labels"


def complete(
    settings: StudentSettings, dataset: Dataset, *, labels_whole_pool: bool = False
) -> StudentConfig:
    """Returns the configuration: the settings, in which defaults of the kind replace None.

    If the model of a supervised student is a forest, the student becomes a forest student.

    Args:
        settings: the user's choices.
        dataset: data set of the labels; it determines the student that replaces `auto`.
        labels_whole_pool: whether feature sums label every input of the pool.

    Raises:
        ValueError: if there is no such student, or a setting does not fit the student.
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
            f"{next(iter(explicit))}: remove it; the student {kind.name} is not trained in steps"
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
        with contextlib.suppress(ValueError):  # the model has batch statistics
            kind.check(config, dataset)
            return config
        plain = dataclasses.replace(settings, student="supervised")
        return complete(plain, dataset, labels_whole_pool=labels_whole_pool)
    return config


def find_student(config: StudentConfig, dataset: Dataset) -> StudentKind:
    """Returns a configuration's kind; raises ValueError if that does not fit the data set."""
    kind = kind_of(config.student)
    kind.check(config, dataset)
    return kind
