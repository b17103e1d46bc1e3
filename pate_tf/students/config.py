"""What a student's result depends on besides its labels and its pool."""

import dataclasses
from typing import Any

from pate_tf.core.validation import check_training
from pate_tf.data.named_function import Named, name_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudentConfig:
    """How a student is trained.

    Attributes:
      student: its name in `students/catalogue.py`.
      model: name of the Keras architecture, or a function, itself or as `module:function`.
      max_steps: training steps.
      batch_size: labelled examples a step.
      learning_rate: of Adam, before the schedule.
      seed: fixes initial weights, shuffling and augmentation; not the privacy noise.
    """

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
class StudentSettings:
    """What a user says about a student; what is None is the student's own.

    `students.catalogue.complete` makes a `StudentConfig` of it, which names the attributes.
    """

    student: str = "supervised"
    model: Named | None = None
    max_steps: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    seed: int = 0
