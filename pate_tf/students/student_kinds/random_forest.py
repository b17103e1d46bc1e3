"""The student random_forest: a random forest that is fitted to the noisy labels.

The forest is converted to a TensorFlow graph, so a server needs no scikit-learn. Unlabeled inputs
are not used.
"""

import functools

import numpy as np
import tensorflow as tf

from pate_tf.core.dataset import Dataset
from pate_tf.core.public import Pool, PoolLabels
from pate_tf.models import forest
from pate_tf.models.forest import LEAF, Forest
from pate_tf.students.student_kinds import FitOptions, StudentConfig, StudentKind


class ForestModel(tf.Module):
    """A forest as a TensorFlow graph, which is called like a Keras model and returns logits."""

    def __init__(self, fitted: Forest) -> None:
        """Stores the arrays of a fitted forest as TensorFlow variables."""
        super().__init__()
        constant = functools.partial(tf.Variable, trainable=False)
        starts = fitted.starts[:-1]
        first_nodes = np.repeat(starts, np.diff(fitted.starts))[:, np.newaxis]
        is_leaf = fitted.children == LEAF
        itself = np.arange(len(is_leaf))[:, np.newaxis]
        # Converts indices within a tree to indices within the whole forest. The child of a leaf is
        # the leaf itself.
        children = np.where(is_leaf, itself, first_nodes + fitted.children)
        self._roots = constant(starts.astype(np.int32))
        self._children = constant(children.astype(np.int32))
        self._features = constant(fitted.features)
        self._thresholds = constant(fitted.thresholds)
        self._probabilities = constant(fitted.probabilities)

    def __call__(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Returns logits float32 `[batch, num_classes]`: the logarithms of the probabilities.

        The largest logit always belongs to the label that scikit-learn predicts, because
        probabilities are added in float64 and in the same order of trees as in scikit-learn.

        Args:
            inputs: finite inputs, float32 `[batch, ...]`.
            training: unused; Keras models have this argument.
        """
        del training
        num_trees = self._roots.shape[0]
        rows = tf.reshape(inputs, [tf.shape(inputs)[0], -1])
        nodes = tf.tile(self._roots[tf.newaxis, :], [tf.shape(rows)[0], 1])
        (nodes,) = tf.while_loop(
            lambda nodes: tf.reduce_any(self._step(rows, nodes) != nodes),
            lambda nodes: (self._step(rows, nodes),),
            (nodes,),
        )
        total = tf.zeros([tf.shape(rows)[0], self._probabilities.shape[1]], tf.float64)
        _, total = tf.while_loop(
            lambda tree, _: tree < num_trees,
            lambda tree, total: (
                tree + 1,
                total + tf.gather(self._probabilities, tf.gather(nodes, tree, axis=1)),
            ),
            (tf.constant(0), total),
        )
        probabilities = total / num_trees
        winners = tf.one_hot(tf.argmax(probabilities, axis=1), probabilities.shape[1])
        # In float32, the logits of two classes can become equal, so a millionth is added to the
        # logit of the predicted class.
        return tf.cast(tf.math.log(probabilities), tf.float32) + 1e-6 * winners

    def _step(self, rows: tf.Tensor, nodes: tf.Tensor) -> tf.Tensor:
        """Moves each input from its node to the next child node, in all trees at once.

        The argument `nodes` and the result contain indices of nodes, `[batch, num_trees]`.
        """
        values = tf.gather(rows, tf.gather(self._features, nodes), batch_dims=1)
        goes_right = tf.cast(values, tf.float64) > tf.gather(self._thresholds, nodes)
        return tf.gather_nd(
            self._children, tf.stack([nodes, tf.cast(goes_right, tf.int32)], axis=-1)
        )


def fit(config: StudentConfig, released: PoolLabels, pool: Pool, _: FitOptions) -> ForestModel:
    """Fits a random forest to the noisy labels; see `StudentKind.train`.

    Only the model and the seed of `config` are used, and no logs are written. If labels have
    weights, the forest learns the class with the largest weight.
    """
    inputs = pool.inputs[released.query_indices]
    return ForestModel(
        forest.fit(config.model, pool.dataset, inputs, released.labels, seed=config.seed)
    )


def check(config: StudentConfig, dataset: Dataset) -> None:
    """Raises ValueError unless the model is a forest."""
    if not forest.is_forest(config.model, dataset):
        raise ValueError(f"model: {config.model!r} is not a forest")


KIND = StudentKind(
    name="random_forest",
    fit=fit,
    check=check,
    default_model=lambda dataset: forest.RANDOM_FOREST,
    has_steps=False,
    can_convert=False,
)
