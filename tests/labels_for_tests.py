"""Released labels as the labeller gives them, for tests that need no labeller."""

from pate_tf.accounting.charge import Cost, ReleasedLabels
from pate_tf.accounting.mechanisms import LaplaceNoisyMax
from pate_tf.core.checks import IntArray


def released_labels(indices: IntArray, labels: IntArray, num_classes: int = 10) -> ReleasedLabels:
    return ReleasedLabels(
        query_indices=indices,
        labels=labels,
        num_classes=num_classes,
        num_queries=len(indices),
        cost=Cost(charge=LaplaceNoisyMax(gamma=0.05), number=len(indices), epsilon=1.0, delta=1e-5),
        ledger_rows=(2,),
        secure_noise=True,
    ).checked()
