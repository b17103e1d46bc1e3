"""The kinds of students, such as consistency or linear_head, by name.

Each kind has an entry in `CHOICES` and a module in this package with the constant `KIND`. The
module is imported only when the kind is used, so names and help texts of flags are available
without TensorFlow. A student is trained on noisy released labels and a pool of public inputs. A
student has access neither to votes nor to true labels.
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
# Minimum accuracy of labels for training a network. Below this value, most labels are wrong, so a
# consistency student would make confident wrong predictions and learn from them.
MIN_LABEL_ACCURACY: Final = 0.5
# Names of the networks in `architectures.BUILDERS`. The names are repeated here, because that
# module imports Keras.
NETWORKS: Final = ("cnn", "wide_cnn", "mlp", "paper_mnist", "paper_svhn")
# Values of `--student` with their help.
CHOICES: Final = {
    AUTO: "linear_head for feature sums of tables and texts, and of images after several rounds; "
    "consistency for images with an augmentation, if the model has no batch normalization; "
    "supervised otherwise.",
    "consistency": "a Keras model, trained to predict the same for augmented images of the pool.",
    "gan": "PATE-G, an improved GAN, trained on the labels and all images of the pool.",
    LINEAR_HEAD: "the encoder of the feature sums, and a linear model computed from these sums.",
    "random_forest": "a random forest on the noisy labels, like --model=random_forest.",
    "supervised": "a Keras model, trained with cross-entropy on the noisy labels only.",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudentConfig(Seeded):
    """The complete settings of a student: everything it depends on, except labels and pool.

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
    """Options for storing and showing the progress of training; they do not change the result.

    Attributes:
        folder: folder for logs and the state of an unfinished run; None to store nothing.
        callbacks: Keras callbacks.
        progress_bar: shows a progress bar, see `Reporting`.
    """

    folder: pathlib.Path | None = None
    callbacks: Sequence[Any] = ()
    progress_bar: Callable[..., Any] = QUIET.progress_bar


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudentKind:
    """A kind of student: a way to learn a model from noisy labels and public inputs.

    Attributes:
        name: value of `--student` that selects the kind.
        fit: function that takes the configuration, the labels of a pool, the pool and the options,
            and returns a trained model, which is called like a Keras model and maps raw inputs to
            logits.
        check: function that raises ValueError if a configuration does not fit a data set. It is
            called before labels are charged.
        default_model: function that takes the data set and returns the name of the default model.
        max_steps: default number of training steps.
        batch_size: default number of labeled examples per step.
        learning_rate: default learning rate of Adam.
        of_whole_table: defaults that replace the three defaults above if all rows of a public table
            are labeled by feature sums. Such labels need other defaults, because their errors are
            not independent.
        has_steps: whether the model is trained in steps; False for a forest and a linear head.
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
        """Returns a trained student, which is called like a Keras model and returns logits.

        Args:
            config: settings of the student, such as model and number of steps.
            released: noisy labels of some inputs of the pool. If they have weights (a confidence in
                each class), the model learns the weights instead of the labels.
            pool: public inputs `[num_inputs, *input_shape]`.
            **options: fields of `FitOptions`. A forest ignores callbacks.

        Raises:
            ValueError: if there are no labels, if the labels do not belong to this pool, or if the
                model can't be used for the data.
            TrainingDivergedError: if a loss or weight became NaN or infinite.
        """
        if pool or self.name != LINEAR_HEAD:
            released.check_pool(pool)
        return self.fit(config, released, pool, FitOptions(**options))


def names() -> list[str]:
    """Returns the names of all kinds of students."""
    return [name for name in CHOICES if name != AUTO]


def kind_of(name: str) -> StudentKind:
    """Returns the kind of student with this name; raises ValueError for an unknown name."""
    checks.one_of(names(), student=name)
    kind: StudentKind = importlib.import_module(f"{__name__}.{name}").KIND
    return kind


TRAINING = ("max_steps", "batch_size", "learning_rate")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudentSettings(Seeded):
    """The user's settings of a student. `complete` replaces None by the kind's default value."""

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
        "paper_mnist, paper_svhn or module:function. Default: wide_cnn for consistency on "
        "images, cnn for other students on images, mlp otherwise; gan has its own networks.",
    )
    max_steps: int | None = setting(
        None,
        least=1,
        most=MAX_STEPS,
        help="Maximum number of training steps of the student. Keras models, except gan, stop when "
        "their predictions on the pool are stable. Default: depends on the student; "
        f"{StudentKind.max_steps} for supervised.",
    )
    batch_size: int | None = setting(
        None,
        least=1,
        most=MAX_BATCH,
        help="Labeled examples per training step. Default: depends on the student; "
        f"{StudentKind.batch_size} for supervised.",
    )
    learning_rate: float | None = setting(
        None,
        above=0.0,
        most=MAX_RATE,
        help="Learning rate of Adam, with cosine decay except for gan. Default: depends on the "
        f"student; {StudentKind.learning_rate:g} for supervised.",
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
    """Recommends a kind of student from public values; returns the kind's name and a reason.

    Args:
        dataset: data set of the labels. Its augmentation lists changes of an image that keep the
            label.
        of_sums: whether labels are computed from feature sums.
        has_pool: whether there are public inputs.
        is_frozen: whether a user's pre-trained encoder computes the features.
        num_rounds: number of rounds in which noisy sums are released. After the first round, each
            round releases sums of the errors of the linear model from earlier rounds.
        label_accuracy: fraction of correct labels in a simulation with the linear model from the
            sums; None if there is no linear model or no simulation.
    """
    if dataset.target != CLASS:
        return LINEAR_HEAD, "the only student for numbers and several labels"
    if is_frozen:
        return LINEAR_HEAD, "on the features of your encoder"
    if of_sums and (dataset.kind != "image" or not has_pool):
        return LINEAR_HEAD, "computed from the sums; no network is expected to be better"
    if of_sums and num_rounds > 1:
        return LINEAR_HEAD, "computed from sums of several rounds; a network is not clearly better"
    if of_sums and label_accuracy is not None and label_accuracy < MIN_LABEL_ACCURACY:
        return LINEAR_HEAD, "computed from the sums; too many labels are wrong for a network"
    if dataset.augmentation != "none":
        return "consistency", "which also learns from the unlabeled images"
    return "supervised", "which learns from the labels"


def complete(
    settings: StudentSettings, dataset: Dataset, *, labels_whole_pool: bool = False
) -> StudentConfig:
    """Returns complete settings: each None is replaced by the default of the kind of student.

    If the user selected a random forest as the model of a supervised student, the kind becomes
    random_forest.

    Args:
        settings: the user's settings.
        dataset: data set of the labels, which determines the kind of student that replaces `auto`.
        labels_whole_pool: whether feature sums label every input of the pool.

    Raises:
        ValueError: if the kind of student is unknown, or does not support a setting.
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
        with contextlib.suppress(ValueError):  # raised if the model has batch normalization
            kind.check(config, dataset)
            return config
        plain = dataclasses.replace(settings, student="supervised")
        return complete(plain, dataset, labels_whole_pool=labels_whole_pool)
    return config


def find_student(config: StudentConfig, dataset: Dataset) -> StudentKind:
    """Returns the configured kind of student; raises ValueError if it can't be used."""
    kind = kind_of(config.student)
    kind.check(config, dataset)
    return kind
