"""What a teacher's result depends on besides its own share; nothing about speed stands here."""

import dataclasses
from typing import Any

from pate_tf.core.dataset import Dataset
from pate_tf.core.validation import check_training
from pate_tf.data.named_function import Named, name_of

PASSES = 25  # over a teacher's records
FEWEST_STEPS = 150
MOST_WEIGHT = 1e6  # of a class

# Of the rules by which shares and seeds become teachers. In version 1 the number of steps, and in
# version 2 the number of teachers, could by default come from the number of all private records.
TRAINING_VERSION = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class TeacherConfig:
    """How each teacher is trained.

    Attributes:
      dataset: what is publicly known of the data.
      num_teachers: number of teachers that share the private records.
      model: name of the Keras architecture, or a function, itself or as `module:function`; after a
        trip through JSON what a function was called.
      max_steps: training steps of each teacher; None for 25 passes over the teacher's own share,
        at least 150 steps.
      batch_size: examples a step.
      learning_rate: of Adam, before the schedule.
      seed: fixes partition, initial weights, shuffling and augmentation; not the privacy noise.
      unit: what one teacher's share protects: "record", or "owner" for all records of one owner.
      representation: what teachers take for an input, by its name in `representations/catalogue.py`
        or as a function; None for the raw input.
      class_weights: how much the loss of a record of each class counts, from public knowledge of
        how rare the classes are; None for all alike. Not of compiled models and classifiers of
        scikit-learn, which have their own.
    """

    dataset: Dataset
    num_teachers: int
    model: Named
    max_steps: int | None
    batch_size: int
    learning_rate: float
    seed: int
    unit: str = "record"
    representation: Named | None = None
    class_weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.num_teachers < 1:
            raise ValueError(f"num_teachers: expected at least 1, got {self.num_teachers}")
        if self.class_weights is not None:
            _check_class_weights(self.class_weights, self.dataset.num_classes)
        check_training(
            max_steps=self.max_steps,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            seed=self.seed,
        )

    def num_steps(self, num_records: int) -> int:
        """Returns the training steps of a teacher that has so many records itself.

        The teacher's own share and public settings fix them, so that nobody else's records can
        change a teacher through them. A teacher without records does none.
        """
        if not num_records:
            return 0
        if self.max_steps is not None:
            return self.max_steps
        return max(FEWEST_STEPS, -(-PASSES * num_records // self.batch_size))

    @property
    def steps_in_words(self) -> str:
        """How long each teacher is trained; it says nothing about the sizes of shares."""
        if self.max_steps is not None:
            return f"{self.max_steps} steps each"
        return f"{PASSES} passes each over its own records, at least {FEWEST_STEPS} steps"

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as JSON values; `from_dict` is its inverse."""
        fields = {
            "training_version": TRAINING_VERSION,
            **dataclasses.asdict(self),
            "model": name_of(self.model),
            "dataset": self.dataset.to_dict(),
        }
        for name in ("representation", "class_weights"):
            if getattr(self, name) is None:  # as before there was a choice
                del fields[name]
        if self.representation is not None:
            fields["representation"] = name_of(self.representation)
        return fields

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "TeacherConfig":
        """Rebuilds a `TeacherConfig` from `to_dict()`, also after a trip through JSON.

        Raises:
          ValueError: if the teachers protect owners and are of an earlier training version: one
            owner more or less could change all of them, and no statement about owners would hold.
        """
        values = {**fields, "dataset": Dataset.from_dict(fields["dataset"])}
        version = values.pop("training_version", 1)
        if values.get("class_weights") is not None:
            values["class_weights"] = tuple(values["class_weights"])
        config = cls(**values)
        if config.unit == "owner" and version < TRAINING_VERSION:
            raise ValueError(
                f"training_version: expected at least {TRAINING_VERSION} where owners are "
                f"protected, got {version}, whose teachers could all depend on one owner; train "
                f"them again"
            )
        return config


def _check_class_weights(weights: tuple[float, ...], num_classes: int) -> None:
    if len(weights) != num_classes:
        raise ValueError(
            f"class_weights: expected one for each of {num_classes} classes, got {len(weights)}"
        )
    if not all(0.0 < weight <= MOST_WEIGHT for weight in weights):
        raise ValueError(f"class_weights: expected numbers above 0, up to {MOST_WEIGHT:g}")
