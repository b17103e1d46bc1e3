"""Settings of students, completed by what a kind of student says. TensorFlow is not imported."""

import contextlib
import dataclasses
from typing import Any

from pate_tf.core.dataset import Dataset
from pate_tf.core.settings import Settings, setting
from pate_tf.core.validation import HIGHEST_RATE, LARGEST_BATCH, MOST_STEPS
from pate_tf.data.named_function import Named
from pate_tf.students.kinds import AUTO, CHOICES, StudentConfig, StudentKind, kind_of

TRAINING = ("max_steps", "batch_size", "learning_rate")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudentSettings(Settings):
    """How a student learns; what is None is the kind's own: see `complete`."""

    student: str = setting(
        AUTO,
        choices=CHOICES.keys(),
        help="How the student learns. "
        + " ".join(f"{name}: {sentence}" for name, sentence in CHOICES.items()),
    )
    model: Named | None = setting(
        None,
        help="Keras model of the student, from raw inputs to logits: cnn, wide_cnn, mlp, deeper, "
        "paper_mnist, paper_svhn or module:function. Default: wide_cnn for consistency on images, "
        "cnn for other students of images, mlp otherwise; gan has its own networks.",
    )
    max_steps: int | None = setting(
        None,
        least=1,
        most=MOST_STEPS,
        help="Training steps of the student. Default: the student's own, "
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
    seed: int = setting(
        0,
        least=0,
        most=2**31 - 1,
        help="Seed of the choice of queries and of the student's initial weights, shuffling and "
        "augmentation. No privacy noise comes from it.",
    )

    @property
    def is_left_open(self) -> bool:
        """Whether the student is `auto`, and no model and no training is named."""
        named = [getattr(self, name) for name in ("model", *TRAINING)]
        return self.student == AUTO and named == [None] * len(named)


def complete(
    settings: StudentSettings,
    dataset: Dataset,
    *,
    labels_whole_pool: bool = False,
    warm_start_from: Any = None,
) -> StudentConfig:
    """Returns settings with a kind's own values where they are None.

    A forest as the model of the plain student makes it the forest student.

    Args:
        settings: what the user chose.
        dataset: what the student learns from. Augmentation says which changes leave a label as it
            is; without any, `auto` is the supervised student.
        labels_whole_pool: whether every input of the pool has a label that follows from feature
            sums.
        warm_start_from: `Labels.network`, which training begins with where no model is named and
            the kind takes it.

    Raises:
        ValueError: if there is no such student, or a setting does not fit it.
    """
    is_auto, model = settings.student == AUTO, settings.model
    recommended = "supervised" if dataset.augmentation == "none" else "consistency"
    kind = kind_of(recommended if is_auto else settings.student)
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
    initial = None
    if kind.warm_start_steps and model is None and warm_start_from is not None:
        initial, training["max_steps"] = warm_start_from, kind.warm_start_steps
    config = StudentConfig(
        student=kind.name,
        model=kind.default_model(dataset) if model is None else model,
        seed=settings.seed,
        initial=initial,
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
    if config.initial is not None and not kind.takes_initial:
        raise ValueError(f"initial: expected none for student {kind.name}, got a network")
    kind.check(config, dataset)
    return kind
