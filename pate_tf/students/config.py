"""What a user says of a student, and what its training depends on. TensorFlow is not imported."""

import dataclasses
from typing import Any

from pate_tf.core.settings import Settings, setting
from pate_tf.core.validation import HIGHEST_RATE, LARGEST_BATCH, MOST_STEPS, check_training
from pate_tf.data.named_function import Named, name_of

DISTILLATION = "distillation"  # no student that anybody may publish: see `ComparisonSettings`
HELD_OUT, ALL_UNQUERIED = "held_out", "all_unqueried"
FORMATS = ("onnx", "litert")


NAMES = {
    "supervised": "a Keras model by cross-entropy on the noisy labels.",
    "gan": "PATE-G, an improved GAN on them and on all images of the pool.",
    "consistency": "a Keras model that must agree with itself on changed images of the pool.",
    "random_forest": "a random forest on the noisy labels (short for --model=random_forest).",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudentConfig:
    """What a student's result depends on besides its labels and its pool, as `StudentSettings`."""

    student: str = "supervised"
    model: Named
    max_steps: int
    batch_size: int
    learning_rate: float
    seed: int

    def __post_init__(self) -> None:
        check_training(
            max_steps=self.max_steps,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            seed=self.seed,
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as JSON values; a function by its name."""
        return {**dataclasses.asdict(self), "model": name_of(self.model)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudentSettings(Settings):
    """How a student learns; what is None is the student's own (`students.catalogue.complete`)."""

    student: str = setting(
        "supervised",
        choices=(*NAMES, DISTILLATION),
        help="How the student learns. "
        + " ".join(f"{name}: {sentence}" for name, sentence in NAMES.items())
        + f" {DISTILLATION}: NOT PRIVATE, see --non_private_comparison.",
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
        help="Training steps of the student. Default: the student's own, 1000 for supervised; 3000 "
        "for it on a table whose whole pool has labels from feature sums.",
    )
    batch_size: int | None = setting(
        None,
        least=1,
        most=LARGEST_BATCH,
        help="Labelled examples a training step. Default: the student's own, 64 for supervised; "
        "256 where it takes 3000 steps.",
    )
    learning_rate: float | None = setting(
        None,
        above=0.0,
        most=HIGHEST_RATE,
        help="Learning rate of Adam; it falls along a cosine, but for gan. Default: the student's "
        "own, 0.002 for supervised; 0.005 where it takes 3000 steps.",
    )
    seed: int = setting(
        0,
        least=0,
        most=2**31 - 1,
        help="Seed of the student's initial weights, shuffling and augmentation. No privacy noise "
        "comes from it.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputSettings(Settings):
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
        help="Formats to write a Keras student in besides the SavedModel: onnx (needs the package "
        "tf2onnx), litert, or both with a comma between; they lie in assets.extra of the exported "
        "version.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComparisonSettings(Settings):
    """A comparison of students without any privacy, which releases and charges nothing."""

    non_private_comparison: bool = setting(
        False,
        help="With --student=distillation: compare a student of the teachers' averaged "
        "probabilities with one of labels by plurality, both without noise. NOTHING of it is "
        "private, nothing is exported and nothing is charged; the result goes to "
        "TRAIN_DIR/sensitive.",
    )
    temperature: float = setting(
        1.0, above=0.0, help="What distillation divides logits by; the larger, the smoother."
    )
