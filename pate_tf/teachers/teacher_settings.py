"""The user's settings for training teachers, and the complete configuration.

`TeacherConfig` contains everything that a teacher depends on, except the teacher's own shard of
records. Settings that only affect speed are not part of it.
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
PASSES = 25  # default number of passes over a teacher's records
MIN_STEPS = 150
MAX_WEIGHT = 1e6  # maximum weight of a class


@dataclasses.dataclass(frozen=True, kw_only=True)
class TeacherSettings(Seeded, OnFeatures):
    """The user's settings for training; None selects a default that depends on data or model."""

    restated: ClassVar = {
        "representation": {
            "help": "Features of inputs: a name, several joined by +, or your own model from raw "
            "inputs to features, which no private record may influence. contrastive, patches, "
            "wavelets, gradients: of images. raw, bins, coarse_bins, cosines, coarse_cosines, "
            "pairs: of tables. lsa, fine_lsa, raw: of texts. encoder:PATH: a file or SavedModel. "
            "encoder:NAME:PATH: weights of Keras Applications. module:function: a function that "
            f"returns a Keras model. Defaults: {checks.GUIDE}/how-to/small_teachers.html."
        },
        "seed": {
            "help": "Seed of partition, weights, shuffling and augmentation, not of privacy noise."
        },
    }
    model: Named | None = setting(
        None,
        help="Model of a teacher. ridge: solved in closed form. random_forest: by scikit-learn. "
        "cnn, wide_cnn, mlp, paper_mnist, paper_svhn: networks. module:function: your own "
        "function, which takes the data set and returns a Keras model or any classifier of "
        "scikit-learn. Default: ridge for images; a network (cnn for images, mlp otherwise) for "
        "other data, on a cluster, and if a network setting such as --max_steps is given.",
    )
    max_steps: int | None = setting(
        None,
        least=1,
        most=MAX_STEPS,
        help=f"Training steps of each teacher. Default: {PASSES} passes over the teacher's own "
        f"records, at least {MIN_STEPS}.",
    )
    batch_size: int | None = setting(
        None,
        least=1,
        most=MAX_BATCH,
        help=f"Number of records per training step. Default: {BATCH_SIZE}.",
    )
    learning_rate: float | None = setting(
        None,
        above=0.0,
        most=MAX_RATE,
        help="Learning rate of Adam. The rate falls in the second half of the training. Default: "
        f"{LEARNING_RATE:g}. Not used for a compiled model, which has its own learning rate.",
    )
    class_weights: tuple[float, ...] | None = setting(
        None,
        advanced=True,
        help="Weights of the records of each class, in the order of the classes, such as 1,20. "
        "Base them only on public knowledge of class frequencies. Default: equal weights.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TeacherConfig(TeacherSettings, Sharding):
    """The complete settings: everything that a teacher depends on, except its own records.

    After a JSON round trip, functions are represented by their names.

    Attributes:
        dataset: public facts about the data.
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
                checks.between(0.0, MAX_WEIGHT, ends="(]", class_weights=weight)

    def num_steps(self, num_records: int) -> int:
        """Returns the number of training steps of a teacher; 0 if it has no records.

        The number depends only on the size of the teacher's own shard and on public settings, so a
        record in another shard can't change it.
        """
        if not num_records:
            return 0
        if self.max_steps is not None:
            return self.max_steps
        return max(MIN_STEPS, -(-PASSES * num_records // self.batch_size))

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
        """Creates the configuration from the result of `to_dict()`, or from its JSON values."""
        values = {**fields, "dataset": Dataset.from_dict(fields["dataset"])}
        if "class_weights" in values:
            values["class_weights"] = tuple(values["class_weights"])
        return cls(**values)
