"""How teachers are trained: the settings of a person, and the configuration with all gaps filled.

`TeacherConfig` has what a teacher depends on besides its own shard; nothing in it is about speed.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np

from pate_tf.core import checks
from pate_tf.core.dataset import Dataset
from pate_tf.core.sensitive import Sharding
from pate_tf.core.settings import MAX_BATCH, MAX_RATE, MAX_STEPS, Seeded, described, setting
from pate_tf.data.named_function import Named, OnFeatures, name_of

BATCH_SIZE = 40
LEARNING_RATE = 0.005
PASSES = 25  # over a teacher's records
FEWEST_STEPS = 150
MOST_WEIGHT = 1e6  # of a class


@dataclasses.dataclass(frozen=True, kw_only=True)
class TeacherSettings(Seeded, OnFeatures):
    """How teachers are trained; None where the value follows from the data or the model."""

    restated: ClassVar = {
        "representation": {
            "help": "Input of ridge or a classifier of scikit-learn: a name, several joined by +, "
            "or a model of your own from raw inputs to features, none of whose weights depends on "
            "private records. contrastive: trained on the public pool alone, and stored in "
            "~/.cache/pate_tf (or $PATE_TF_CACHE). patches: likewise. wavelets: scaled by the "
            "pool. raw: scaled by the pool. bins: raw, and bins of numbers. coarse_bins: the same "
            "with few bins. pairs: products of two numbers of raw. encoder:PATH: a .keras file or "
            "a SavedModel. encoder:NAME:PATH: weights of Keras Applications. module:function: a "
            "function that returns a Keras model. Default: of ridge, contrastive+patches for gray "
            "images, patches+wavelets for color ones, raw for all else; of feature sums bins for "
            "tables, or coarse_bins with much noise and no pool."
        },
        "seed": {
            "help": "Seed of partition, initial weights, shuffling and augmentation. No privacy "
            "noise comes from it."
        },
    }
    model: Named | None = setting(
        None,
        help="What a teacher is. ridge: solved for in closed form. random_forest: scikit-learn's. "
        "cnn, wide_cnn, mlp, deeper, paper_mnist, paper_svhn: networks. module:function: your own, "
        "which takes the data set and returns a Keras model or any classifier of scikit-learn. "
        "Default: ridge for images; a network (cnn for images, mlp otherwise) for other data, on a "
        "cluster, and with settings that only networks have, such as --max_steps.",
    )
    max_steps: int | None = setting(
        None,
        least=1,
        most=MAX_STEPS,
        help=f"Training steps of each teacher. Default: {PASSES} passes over the teacher's own "
        f"records, at least {FEWEST_STEPS}.",
    )
    batch_size: int | None = setting(
        None, least=1, most=MAX_BATCH, help=f"Examples a training step. Default: {BATCH_SIZE}."
    )
    learning_rate: float | None = setting(
        None,
        above=0.0,
        most=MAX_RATE,
        help="Learning rate of Adam; halfway it begins to fall. Default: "
        f"{LEARNING_RATE:g}. A compiled model has its own.",
    )
    class_weights: tuple[float, ...] | None = setting(
        None,
        advanced=True,
        help="How much a record of each class counts, in the order of the classes, from public "
        "knowledge of how rare they are, such as 1,20. Default: all the same.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TeacherConfig(TeacherSettings, Sharding):
    """Settings with nothing left open: what each teacher depends on besides its own shard.

    After a trip through JSON, functions are the texts that they were called.

    Attributes:
        dataset: what is publicly known of the data.
    """

    dataset: Dataset
    model: Named
    batch_size: int = BATCH_SIZE
    learning_rate: float = LEARNING_RATE

    def __post_init__(self) -> None:
        for name, each in described(TeacherSettings).items():
            each.check(name, getattr(self, name))
        checks.whole(num_teachers=self.num_teachers)
        if self.class_weights is not None:
            self.dataset.require_classes("class_weights")
            checks.shape([self.dataset.num_classes], class_weights=np.array(self.class_weights))
            for weight in self.class_weights:
                checks.between(0.0, MOST_WEIGHT, ends="(]", class_weights=weight)

    def num_steps(self, num_records: int) -> int:
        """Returns the training steps of a teacher with so many records; 0 without any.

        They follow from the teacher's own shard and public settings alone, so that no other record
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
