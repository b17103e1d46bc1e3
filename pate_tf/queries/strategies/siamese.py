"""Saves queries: an input that matches a labeled one with confidence takes its label.

Two networks with the same weights (Bromley et al. 1993; Koch 2015) learn from the labeled inputs
whether two of them are of one class: the second variant of Papernot et al. 2017, appendix B.2,
where it was "too complicated to be an effective means".
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from pate_tf.accounting.charge import ReleasedLabels
from pate_tf.core.public import Pool, PoolLabels
from pate_tf.core.validation import IntArray
from pate_tf.queries.strategies import simple
from pate_tf.queries.strategies.simple import FloatArray

CONFIDENT = 0.99  # probability of one class from which a pair counts as a match
FIRST_OFFSET = 5.0  # at which inputs in one place match, and the twins push others apart


def match_logits(
    inputs: npt.NDArray[Any], dataset: Any, labelled: IntArray, labels: IntArray, seed: int
) -> npt.NDArray[np.float32]:
    """Trains the twins; returns logits of being of one class, `[num_inputs, num_labels]`.

    Two inputs match with probability sigmoid(offset - |distance of their places|^2); the offset is
    learned. Inputs are raw, `labelled` positions of those with labels.
    """
    import keras

    from pate_tf.models import catalogue
    from pate_tf.students.batches import outputs
    from pate_tf.students.training import fit_to_targets

    ops = keras.ops

    class Twins(keras.Model):
        """From raw inputs to places `[batch, num_dimensions]`."""

        def __init__(self, twin: keras.Model) -> None:
            super().__init__()
            self.twin = twin
            self.offset = self.add_weight(
                name="offset", initializer=keras.initializers.Constant(FIRST_OFFSET)
            )
            self.built = True

        def call(self, inputs: Any, training: bool = False) -> Any:
            return self.twin(inputs, training=training)

        def match(self, places: Any, others: Any) -> Any:
            squares = ops.sum(places**2, axis=1)[:, None] + ops.sum(others**2, axis=1)
            return self.offset - (squares - 2.0 * ops.matmul(places, ops.transpose(others)))

        def compute_loss(self, x: Any, y: Any, y_pred: Any, *_: Any, **named: Any) -> Any:
            """Mean cross-entropy of pairs of one class, plus that of other pairs."""
            del x, named
            same = ops.cast(y[:, None] == y, "float32")
            losses = ops.binary_crossentropy(same, self.match(y_pred, y_pred), from_logits=True)
            kinds = (same * (1.0 - ops.eye(ops.shape(y)[0])), 1.0 - same)
            means = [ops.sum(kind * losses) / ops.maximum(ops.sum(kind), 1.0) for kind in kinds]
            return means[0] + means[1]

    config = simple.training_config(dataset, seed)
    twins = Twins(catalogue.build(config.model, dataset, seed=seed))
    fit_to_targets(twins, config, dataset, inputs=inputs[labelled], targets=labels)
    places = outputs(twins, inputs).astype(np.float32)
    return np.asarray(twins.match(places, places[labelled]))


def match(pool: Pool, released: ReleasedLabels, seed: int) -> PoolLabels:
    """Returns labels of other inputs: those of their best matches among the labeled ones.

    Only inputs whose best match is confident get one. Post-processing of the released labels.
    """
    released.check_pool(pool)
    queries = released.query_indices
    logits = match_logits(pool.inputs, pool.dataset, queries, released.labels, seed)
    is_match = logits.max(axis=1) >= np.log(CONFIDENT / (1.0 - CONFIDENT))
    is_match[queries] = False
    matched = np.flatnonzero(is_match)
    return PoolLabels(
        query_indices=matched,
        labels=released.labels[logits.argmax(axis=1)[matched]],
        num_classes=released.num_classes,
    )


def infer(pool: Pool, released: ReleasedLabels, seed: int) -> PoolLabels:
    """Returns the released labels, and after them those of all inputs that match."""
    parts = (released, match(pool, released, seed))
    return PoolLabels(
        query_indices=np.concatenate([part.query_indices for part in parts]),
        labels=np.concatenate([part.labels for part in parts]),
        num_classes=released.num_classes,
    )


def score(pool: Pool, released: ReleasedLabels, seed: int) -> FloatArray:
    """Returns the order of asking, `[num_inputs]`: a random one, what matches last."""
    places = np.empty(len(pool))
    places[simple.random_order(pool, seed)] = np.arange(len(pool))
    places[match(pool, released, seed).query_indices] += len(pool)
    return places
