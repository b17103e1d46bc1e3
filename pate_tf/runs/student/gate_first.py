"""What a stability gate is given of a budget before noisy counts are bought, by public values.

Exact labels of inputs that nearly all teachers agree on are worth more than noisy counts of many,
and cost little where there are many teachers. Whether teachers agree nobody knows beforehand, for
groups in the pool need not be classes. So a small part of the budget tries a gate, and the rest
buys noisy counts if it stays shut.
"""

from typing import Final

from pate_tf.accounting.mechanisms.stability_gate import SHARE_OF_DELTA
from pate_tf.accounting.pass_function import least_epsilon

# Of the teachers, by how many the first class leads the second on each query of a batch that leaves
# as often as `OPENS`. Chosen by votes of 2,000 ridge teachers on MNIST's pool, query seeds 0 to 2:
# of 50 typical queries the least is led by 28 to 38 % of them. On Fashion-MNIST the least is led by
# next to none, and no part of a budget opens the gate.
LEAD: Final = 0.25
OPENS: Final = 0.99
# Of the budget: where more would be needed, teachers that don't agree would cost too much.
LARGEST_SHARE: Final = 0.2


def gate_epsilon(target_epsilon: float, *, num_teachers: int, delta: float) -> float | None:
    """Returns what a gate may cost; None where that is more than `LARGEST_SHARE` of the budget.

    Args:
      target_epsilon: what all labels may cost together.
      num_teachers: who vote.
      delta: of all of them.
    """
    distance = int(LEAD * num_teachers / 2)  # teachers that would have to change
    enough = least_epsilon(distance=distance, delta=SHARE_OF_DELTA * delta, pass_probability=OPENS)
    return enough if enough <= LARGEST_SHARE * target_epsilon else None
