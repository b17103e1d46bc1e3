"""How teachers are trained: the settings of a person, and the configuration with all gaps filled.

What a teacher's result depends on besides its own share stands in `TeacherConfig`, no speed.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from pate_tf.core import validation
from pate_tf.core.dataset import Dataset
from pate_tf.core.validation import Settings, described, setting
from pate_tf.data.named_function import Named, name_of

BATCH_SIZE, LEARNING_RATE = 40, 0.005
PASSES = 25  # over a teacher's records
FEWEST_STEPS = 150
MOST_WEIGHT = 1e6  # of a class


@dataclasses.dataclass(frozen=True, kw_only=True)
class TeacherSettings(Settings):
    """How teachers are trained; None where the value follows from the data or the model."""

    model: Named | None = setting(
        None,
        help="What a teacher is. ridge, nearest_mean, nearest_neighbour: solved for in closed "
        "form. random_forest: scikit-learn's. cnn, wide_cnn, mlp, deeper, paper_mnist, paper_svhn: "
        "networks. module:function: your own, which takes the data set and returns a Keras model "
        "or any classifier of scikit-learn. Default: ridge for images; a network (cnn for images, "
        "mlp otherwise) for other data, on a cluster, and with settings that only networks have, "
        "such as --max_steps.",
    )
    representation: Named | None = setting(
        None,
        help="Input of ridge, nearest_mean, nearest_neighbour or a classifier of scikit-learn: "
        "a name, several joined by +, or a model of your own from raw inputs to features, none of "
        "whose weights depends on private records. contrastive: trained on the public pool alone, "
        "and stored in ~/.cache/pate_tf (or $PATE_TF_CACHE). patches: likewise. wavelets: scaled "
        "by the pool. raw: scaled by the pool. bins: raw, and bins of numbers. pairs: products of "
        "two numbers of raw. encoder:PATH: a .keras file or a SavedModel. encoder:NAME:PATH: "
        "weights of Keras Applications. module:function: a function that returns a Keras model. "
        "Default: of the closed forms, contrastive+patches for gray images, patches+wavelets for "
        "color ones, raw for all else; of feature sums bins for tables.",
    )
    max_steps: int | None = setting(
        None,
        least=1,
        most=validation.MOST_STEPS,
        help=f"Training steps of each teacher. Default: {PASSES} passes over the teacher's own "
        f"records, at least {FEWEST_STEPS}.",
    )
    batch_size: int | None = setting(
        None,
        least=1,
        most=validation.LARGEST_BATCH,
        help=f"Examples a training step. Default: {BATCH_SIZE}.",
    )
    learning_rate: float | None = setting(
        None,
        above=0.0,
        most=validation.HIGHEST_RATE,
        help="Learning rate of Adam; halfway it begins to fall. Default: "
        f"{LEARNING_RATE:g}. A compiled model has its own.",
    )
    class_weights: tuple[float, ...] | None = setting(
        None,
        advanced=True,
        help="How much a record of each class counts, in the order of the classes, from public "
        "knowledge of how rare they are, such as 1,20. Default: all the same.",
    )
    seed: int = setting(
        0,
        least=0,
        most=2**31 - 1,
        help="Seed of partition, initial weights, shuffling and augmentation. No privacy noise "
        "comes from it.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TeacherConfig(TeacherSettings):
    """Settings with nothing left open: what each teacher depends on besides its own share.

    After a trip through JSON, functions are the texts that they were called.

    Attributes:
        dataset: what is publicly known of the data.
        unit: what one teacher's share protects: "record", or "owner" for all records of one owner.
    """

    dataset: Dataset
    num_teachers: int
    model: Named
    batch_size: int = BATCH_SIZE
    learning_rate: float = LEARNING_RATE
    unit: str = "record"

    def __post_init__(self) -> None:
        for name, each in described(TeacherSettings).items():
            each.check(name, getattr(self, name))
        validation.whole(num_teachers=self.num_teachers)
        if self.class_weights is not None:
            validation.shape([self.dataset.num_classes], class_weights=np.array(self.class_weights))
            for weight in self.class_weights:
                validation.between(0.0, MOST_WEIGHT, ends="(]", class_weights=weight)

    def num_steps(self, num_records: int) -> int:
        """Returns the training steps of a teacher with so many records; 0 without any.

        They follow from the teacher's own share and public settings alone, so that no other record
        changes a teacher through them.
        """
        if not num_records:
            return 0
        if self.max_steps is not None:
            return self.max_steps
        return max(FEWEST_STEPS, -(-PASSES * num_records // self.batch_size))

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as JSON values; `from_dict` is its inverse."""
        fields: dict[str, Any] = {
            name: value for name, value in vars(self).items() if value is not None
        }
        for name in ("model", "representation"):
            if name in fields:
                fields[name] = name_of(fields[name])
        return {**fields, "dataset": self.dataset.to_dict()}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Rebuilds the configuration from `to_dict()`, also after a trip through JSON."""
        values = {**fields, "dataset": Dataset.from_dict(fields["dataset"])}
        if "class_weights" in values:
            values["class_weights"] = tuple(values["class_weights"])
        return cls(**values)
