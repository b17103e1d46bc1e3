"""Saves queries: an input that surely matches a labelled one takes its label.

Two networks with the same weights (Bromley et al. 1993; Koch 2015) learn from the labelled inputs
whether two of them are of one class: the second variant of Papernot et al. 2017, appendix B.2,
where it was "too complicated to be an effective means".
"""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pate_tf.accounting.released_labels import ReleasedLabels
from pate_tf.core.public import Pool, PoolLabels
from pate_tf.models import catalogue
from pate_tf.queries import simple
from pate_tf.queries.simple import random_order
from pate_tf.students.batches import FloatArray, outputs
from pate_tf.students.supervised import fit_to_targets

SURE = 0.99  # probability of one class from which a pair counts as a match
FIRST_OFFSET = 5.0  # at which inputs in one place match surely, and the twins push others apart


class SiameseNetwork(keras.Model):
    """Twins that place inputs so that those of one class lie together.

    Two inputs match with probability sigmoid(offset - |distance of their places|^2).
    """

    def __init__(self, twin: keras.Model, **kwargs: Any) -> None:
        """Takes over a network.

        Args:
          twin: from raw inputs `[batch, *input_shape]` to places `[batch, num_dimensions]`.
          **kwargs: of `keras.Model`.
        """
        super().__init__(**kwargs)
        self.twin = twin
        self.offset = self.add_weight(
            name="offset", initializer=keras.initializers.Constant(FIRST_OFFSET)
        )
        self.built = True

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Returns the places `[batch, num_dimensions]`."""
        return self.twin(inputs, training=training)

    def match_logits(self, places: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
        """Returns the logits `[num_places, num_others]` of being of one class."""
        squares = (tf.reduce_sum(tf.square(points), axis=1) for points in (places, others))
        own, theirs = squares
        products = tf.matmul(places, others, transpose_b=True)
        return self.offset - (own[:, tf.newaxis] + theirs - 2.0 * products)

    def compute_loss(
        self,
        x: tf.Tensor = None,
        y: tf.Tensor = None,
        y_pred: tf.Tensor = None,
        sample_weight: tf.Tensor = None,
        training: bool = True,
    ) -> tf.Tensor:
        """Cross-entropy over all pairs of a batch; pairs of one class weigh as much as others.

        An input is no pair with itself.
        """
        del x, sample_weight, training
        same = tf.cast(y[:, tf.newaxis] == y, tf.float32)
        pairs = 1.0 - tf.eye(tf.shape(y)[0])
        losses = tf.nn.sigmoid_cross_entropy_with_logits(same, self.match_logits(y_pred, y_pred))
        kinds = (same * pairs, (1.0 - same) * pairs)
        return tf.add_n(
            [
                tf.math.divide_no_nan(tf.reduce_sum(kind * losses), tf.reduce_sum(kind))
                for kind in kinds
            ]
        )


def match(pool: Pool, released: ReleasedLabels, seed: int) -> PoolLabels:
    """Infers labels of inputs that were not asked for: post-processing of the released labels.

    Args:
      pool: public inputs `[num_inputs, *input_shape]`.
      released: the labels so far.
      seed: of the networks.

    Returns:
      For each other input whose best match among the labelled ones is sure, the label of that one.
    """
    released.check_pool(pool)
    config = simple.training_config(pool.dataset, seed)
    network = SiameseNetwork(catalogue.build(config.model, pool.dataset, seed=seed))
    fit_to_targets(
        network,
        config,
        pool.dataset,
        inputs=pool.inputs[released.query_indices],
        targets=released.labels,
    )
    places = tf.constant(outputs(network, pool.inputs), tf.float32)
    logits = network.match_logits(places, tf.gather(places, released.query_indices)).numpy()
    best = logits.argmax(axis=1)
    is_match = logits.max(axis=1) >= np.log(SURE / (1.0 - SURE))
    is_match[released.query_indices] = False
    matched = np.flatnonzero(is_match)
    return PoolLabels(
        query_indices=matched,
        labels=released.labels[best[matched]],
        num_classes=released.num_classes,
    )


def infer(pool: Pool, released: ReleasedLabels, seed: int) -> PoolLabels:
    """Returns the released labels, and after them those of all inputs that match.

    Args:
      pool: public inputs `[num_inputs, *input_shape]`.
      released: the labels that were paid for.
      seed: of the networks.
    """
    parts = (released, match(pool, released, seed))
    return PoolLabels(
        query_indices=np.concatenate([part.query_indices for part in parts]),
        labels=np.concatenate([part.labels for part in parts]),
        num_classes=released.num_classes,
    )


def score(pool: Pool, released: ReleasedLabels, seed: int) -> FloatArray:
    """Returns the order of asking, `[num_inputs]`: a random one, what matches last.

    Args:
      pool: public inputs `[num_inputs, *input_shape]`.
      released: the labels so far.
      seed: of the order and of the networks.
    """
    places = np.empty(len(pool))
    places[random_order(pool, seed)] = np.arange(len(pool))
    places[match(pool, released, seed).query_indices] += len(pool)
    return places
