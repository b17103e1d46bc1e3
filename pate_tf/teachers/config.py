"""What a teacher's result depends on besides its records; nothing about speed stands here."""

import dataclasses
import math
from typing import Any

from pate_tf.records import Dataset

PASSES = 25  # over a teacher's records
FEWEST_STEPS = 150


@dataclasses.dataclass(frozen=True, kw_only=True)
class TeacherConfig:
    """How each teacher is trained.

    Attributes:
      dataset: what is publicly known of the data.
      num_teachers: number of teachers that share the private records.
      model: name of the Keras architecture, or `module:function`.
      max_steps: training steps of each teacher.
      batch_size: examples a step.
      learning_rate: of Adam, before the schedule.
      seed: fixes partition, initial weights, shuffling and augmentation; not the privacy noise.
      unit: what one teacher's share protects: "record", or "owner" for all records of one owner.
    """

    dataset: Dataset
    num_teachers: int
    model: str
    max_steps: int
    batch_size: int
    learning_rate: float
    seed: int
    unit: str = "record"

    def __post_init__(self) -> None:
        for name in ("num_teachers", "max_steps", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate: expected above 0, got {self.learning_rate}")
        if not 0 <= self.seed < 2**31:
            raise ValueError(f"seed: expected from 0 to 2**31 - 1, got {self.seed}")

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as JSON values; `from_dict` is its inverse."""
        return {**dataclasses.asdict(self), "dataset": self.dataset.to_dict()}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "TeacherConfig":
        """Rebuilds a `TeacherConfig` from `to_dict()`, also after a trip through JSON."""
        return cls(**{**fields, "dataset": Dataset.from_dict(fields["dataset"])})


def default_steps(*, num_records: int, num_teachers: int, batch_size: int) -> int:
    """Steps that pass 25 times over a teacher's average share, and at least 150.

    It looks at public sizes alone.
    """
    return max(FEWEST_STEPS, math.ceil(PASSES * num_records / num_teachers / batch_size))
