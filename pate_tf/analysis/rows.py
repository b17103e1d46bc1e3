"""What the tables of an analysis share: a row, and how an epsilon is shown.

A roof room, without TensorFlow.
"""

import math

from pate_tf.accounting.charge import rounded_up

Row = tuple[str, str]


def shown(epsilon: float) -> str:
    """Returns an epsilon as a table has it, rounded up."""
    return rounded_up(epsilon) if math.isfinite(epsilon) else "infinite"


def finite_or_none(value: float) -> float | None:
    """Returns a number as JSON has it: None stands for infinity."""
    return value if math.isfinite(value) else None
