"""The student of a probability vector (Papernot et al. 2017, appendix B.1; Hinton et al. 2015).

NOT PRIVATE. What the ledger charges for covers one label a query, not the teachers' averaged
probabilities; no mechanism here releases those. This student is for comparison and is never
exported.
"""

import keras
import numpy.typing as npt
import tensorflow as tf

from pate_tf.models import catalogue
from pate_tf.students.config import StudentConfig
from pate_tf.students.supervised import fit_to_targets
from pate_tf.values.arrays import IntArray
from pate_tf.values.public import Pool


class SoftCrossEntropy(keras.losses.Loss):
    """Cross-entropy of softmax(logits / temperature) with given probabilities."""

    def __init__(self, temperature: float) -> None:
        """Takes the temperature that the probabilities were stated at."""
        super().__init__()
        self.temperature = temperature

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        """Returns the losses `[batch]` of logits `y_pred`, `[batch, num_classes]` as `y_true`."""
        return tf.nn.softmax_cross_entropy_with_logits(y_true, y_pred / self.temperature)


def train_distilled(
    config: StudentConfig,
    pool: Pool,
    *,
    query_indices: IntArray,
    probabilities: npt.NDArray,
    temperature: float,
    show_progress: bool = False,
) -> keras.Model:
    """Trains a Keras model on probabilities of classes.

    Args:
      config: how it is trained.
      pool: public inputs `[num_inputs, *input_shape]`.
      query_indices: int64 `[num_queries]`, positions in the pool.
      probabilities: `[num_queries, num_classes]`.
      temperature: that they were stated at.
      show_progress: whether `fit` draws its progress bar.

    Returns:
      A model from raw inputs to logits `[batch, num_classes]`.

    Raises:
      ValueError: if the probabilities have another shape.
      TrainingDivergedError: if a loss or weight became NaN or infinite.
    """
    if probabilities.shape != (len(query_indices), pool.dataset.num_classes):
        raise ValueError(
            f"probabilities: expected [{len(query_indices)}, {pool.dataset.num_classes}], got "
            f"{list(probabilities.shape)}"
        )
    model = catalogue.build(config.model, pool.dataset, seed=config.seed)
    fit_to_targets(
        model,
        config,
        pool.dataset,
        inputs=pool.inputs[query_indices],
        targets=probabilities,
        loss=SoftCrossEntropy(temperature),
        show_progress=show_progress,
    )
    return model
