"""Settings of students, completed by what a kind of student says. TensorFlow is not imported."""

import contextlib
import dataclasses
from typing import Any

from pate_tf.core.dataset import Dataset
from pate_tf.core.settings import PublicationSettings, Settings, setting
from pate_tf.core.validation import HIGHEST_RATE, LARGEST_BATCH, MOST_STEPS
from pate_tf.data.named_function import Named
from pate_tf.students.kinds import (
    AUTO,
    CHOICES,
    LINEAR_HEAD,
    StudentConfig,
    StudentKind,
    kind_of,
    recommended,
)

TRAINING = ("max_steps", "batch_size", "learning_rate")
HELD_OUT, ALL_UNQUERIED = "held_out", "all_unqueried"
FORMATS = ("onnx", "litert")
OWN = "the student's own"
# Mean confidence of labels, below which a student that learns from them for long learns their
# errors.
LEAST_CONFIDENCE = 0.85


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
        help=f"Training steps of the student. Default: {OWN}, {StudentKind.max_steps} for "
        "supervised; more where the whole pool has labels from feature sums.",
    )
    batch_size: int | None = setting(
        None,
        least=1,
        most=LARGEST_BATCH,
        help=f"Labelled examples a training step. Default: {OWN}, {StudentKind.batch_size} for "
        "supervised.",
    )
    learning_rate: float | None = setting(
        None,
        above=0.0,
        most=HIGHEST_RATE,
        help="Learning rate of Adam; it falls along a cosine, but for gan. Default: "
        f"{OWN}, {StudentKind.learning_rate:g} for supervised.",
    )
    seed: int = setting(
        0,
        least=0,
        most=2**31 - 1,
        help="Seed of the student's initial weights, shuffling and augmentation. No privacy noise "
        "comes from it.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputSettings(PublicationSettings):
    """What of a student's run is written and measured; nothing here changes the student."""

    evaluate_on: str | None = setting(
        None,
        choices=(HELD_OUT, ALL_UNQUERIED),
        help="Public samples that the student's accuracy is measured on: held_out for those "
        "outside of the pool; all_unqueried for these and all of the pool that was not put to the "
        "teachers, which a student may have learnt from without labels or with inferred ones; it "
        "flatters strategies that ask about hard samples. Default: held_out, if they have labels.",
    )
    save_labels: bool = setting(
        True, help="Keep the noisy labels in TRAIN_DIR/released/labels.npz."
    )
    export_formats: tuple[str, ...] = setting(
        (),
        help="Formats to write a Keras student in as well as a SavedModel: onnx (needs the package "
        "tf2onnx), litert, or both with a comma between; they lie in assets.extra of the exported "
        "version.",
    )


def is_left_open(settings: StudentSettings) -> bool:
    """Whether the student is `auto`, and no model and no training is named."""
    named = [getattr(settings, name) for name in ("model", *TRAINING)]
    return settings.student == AUTO and named == [None] * len(named)


def complete(
    settings: StudentSettings,
    dataset: Dataset,
    *,
    labels_whole_pool: bool = False,
    initial: Any = None,
    warm_start_from: Any = None,
    certainty: float | None = None,
) -> StudentConfig:
    """Returns settings with a kind's own values where they are None.

    A forest as the model of the plain student makes it the forest student.

    Args:
        settings: what was asked for.
        dataset: what the student learns from.
        labels_whole_pool: whether every input of the pool has a label that follows from feature
            sums.
        initial: as of `StudentConfig`.
        warm_start_from: `Labels.network`, which training begins with where no model and no initial
            network is named, and the kind takes it.
        certainty: `Labels.certainty`.

    Raises:
        ValueError: if there is no such student, or a setting does not fit it.
    """
    is_auto, model = settings.student == AUTO, settings.model
    explicit = {name: value for name in TRAINING if (value := getattr(settings, name)) is not None}
    kind = kind_of(recommended(dataset) if is_auto else settings.student)
    if model is not None and settings.student in (AUTO, "supervised"):
        from pate_tf.models import forest

        if forest.is_forest(model, dataset):
            kind = kind_of("random_forest")
    if explicit and not kind.has_steps:
        what = "a linear head" if kind.name == LINEAR_HEAD else "a forest"
        raise ValueError(f"{next(iter(explicit))}: expected none for {what}, which has no steps")
    training: dict[str, Any] = {name: getattr(kind, name) for name in TRAINING}
    if labels_whole_pool and dataset.kind == "tabular":
        training |= kind.of_whole_table
    are_coloured = labels_whole_pool and dataset.has_colours
    if are_coloured:
        training["max_steps"] = kind.steps_for(training["max_steps"], dataset)
    first_network, steps = initial, kind.warm_start_steps
    if steps is not None and model is None and initial is None and warm_start_from is not None:
        first_network = warm_start_from
        is_confident = certainty is None or certainty >= LEAST_CONFIDENCE
        long = are_coloured and is_confident
        training["max_steps"] = kind.steps_for(steps, dataset) if long else steps
    config = StudentConfig(
        student=kind.name,
        model=kind.default_model(dataset) if model is None else model,
        seed=settings.seed,
        initial=first_network,
        **{**training, **explicit},
    )
    if is_auto and kind.name == "consistency" and (model or initial) is not None:
        with contextlib.suppress(ValueError):  # of a model with batch statistics
            kind.check(config, dataset)
            return config
        plain = dataclasses.replace(settings, student="supervised")
        return complete(plain, dataset, labels_whole_pool=labels_whole_pool, initial=initial)
    return config


def find_student(config: StudentConfig, dataset: Dataset) -> StudentKind:
    """Returns the kind that a configuration names; ValueError if it does not fit the data set."""
    kind = kind_of(config.student)
    if config.initial is not None and not kind.takes_initial:
        raise ValueError(f"initial: expected none for student {kind.name}, got a network")
    kind.check(config, dataset)
    return kind
