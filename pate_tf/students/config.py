"""What a student's result depends on besides its labels and its pool."""

import dataclasses
import math


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudentConfig:
    """How a student is trained.

    Attributes:
      student: its name in `students/catalogue.py`.
      model: name of the Keras architecture, or `module:function`.
      max_steps: training steps.
      batch_size: labelled examples a step.
      learning_rate: of Adam, before the schedule.
      seed: fixes initial weights, shuffling and augmentation; not the privacy noise.
    """

    student: str = "supervised"
    model: str
    max_steps: int
    batch_size: int
    learning_rate: float
    seed: int

    def __post_init__(self) -> None:
        for name in ("max_steps", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate: expected above 0, got {self.learning_rate}")
        if not 0 <= self.seed < 2**31:
            raise ValueError(f"seed: expected from 0 to 2**31 - 1, got {self.seed}")
