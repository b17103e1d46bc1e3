"""Released labels as the labeller gives them, for tests that need no labeller."""

from pate_tf.records import IntArray, ReleasedLabels


def released_labels(indices: IntArray, labels: IntArray, num_classes: int = 10) -> ReleasedLabels:
    return ReleasedLabels(
        query_indices=indices,
        labels=labels,
        num_classes=num_classes,
        num_queries=len(indices),
        mechanism={"name": "laplace_noisy_max", "gamma": 0.05},
        epsilon=1.0,
        delta=1e-5,
        ledger_rows=(2,),
        secure_noise=True,
    )
