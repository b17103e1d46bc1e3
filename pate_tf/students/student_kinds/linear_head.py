"""The student linear_head: an encoder and a linear model that is computed from feature sums."""

import pathlib
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf.core.checks import FloatArray
from pate_tf.core.dataset import NUMBER, Dataset
from pate_tf.core.public import Pool, PoolLabels
from pate_tf.data.preprocessing import load_graph
from pate_tf.models.encoder import CONSTANT, CONSTANT_FRACTION
from pate_tf.students.student_kinds import LINEAR_HEAD, FitOptions, StudentConfig, StudentKind

EPS = float(np.finfo(np.float32).eps)
PENALTIES = np.geomspace(1e-3, 1e3, 13)  # in units of the squared norm of a feature vector


class LinearHead(tf.Module):
    """A linear model on features: maps raw inputs to logits.

    Features are scaled in the same way as in the feature sums, and then multiplied by weights.

    Attributes:
        is_frozen: whether the encoder is a user's model that was not trained on the pool.
    """

    is_frozen = False

    def __init__(
        self, encoder: Any, dataset: Dataset, scale: FloatArray, weights: FloatArray
    ) -> None:
        """Combines a loaded encoder with weights.

        Args:
            encoder: SavedModel with the signature "features" and with its weights in the attribute
                `learnt`.
            dataset: data set of the inputs.
            scale: factor that multiplies each feature, `[num_features]`.
            weights: weights `[num_features + 1, num_classes]`; the last row multiplies the constant
                that is appended to each feature vector. If the target is a number, see
                `target_functions`.
        """
        super().__init__()
        self._dataset = dataset
        self._encoder = encoder
        self._learnt = list(encoder.learnt)
        self._encode = encoder.signatures["features"]
        self._scale = tf.Variable(scale.astype(np.float32), trainable=False)
        self._weights = tf.Variable(weights.astype(np.float32), trainable=False)

    def __reduce__(self) -> tuple[Any, ...]:
        with tempfile.TemporaryDirectory() as folder:
            tf.saved_model.save(self._encoder, folder, signatures=self._encoder.signatures)
            root = pathlib.Path(folder)
            paths = filter(pathlib.Path.is_file, root.rglob("*"))
            files = {str(path.relative_to(root)): path.read_bytes() for path in paths}
        return _restored, (files, self._dataset, self._scale.numpy(), self._weights.numpy())

    def __call__(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Returns logits float32 `[batch, num_classes]`.

        If the target is a number, returns the position of the number in its range, from 0 to 1, and
        the standard deviation due to the noise, `[batch, 2]`. If the target is several labels,
        returns log odds.

        Args:
            inputs: finite inputs, float32 `[batch, *input_shape]`.
            training: unused; Keras models have this argument.
        """
        del training
        raw = {self._dataset.input_name: tf.cast(inputs, self._dataset.input_type)}
        scaled = self._encode(**raw)["features"] * self._scale
        norms = tf.norm(scaled, axis=1, keepdims=True)
        features = tf.math.divide_no_nan(scaled, norms) * (1.0 - CONSTANT_FRACTION) ** 0.5
        constant = tf.where(norms > 0.0, CONSTANT, 0.0)
        outputs = tf.matmul(tf.concat([features, constant], axis=1), self._weights)
        if self._dataset.target != NUMBER:
            return outputs
        deviation = tf.norm(outputs[:, 1:], axis=1, keepdims=True)
        return tf.concat([outputs[:, :1], deviation], axis=1)


def _restored(files: Mapping[str, bytes], *facts: Any) -> LinearHead:
    """Creates a linear head from the files of its encoder's SavedModel, for unpickling."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            path = pathlib.Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return LinearHead(load_graph(folder), *facts)


def weights_of_labels(vectors: FloatArray, targets: npt.NDArray[Any]) -> FloatArray:
    """Fits linear functions to labels by least squares; returns weights `[width, num_classes]`.

    The arguments are the same as in `functions_of_labels`. The result is scaled as in linear
    discriminant analysis, so that the softmax of the linear functions estimates the probabilities
    of the classes.
    """
    functions, error = functions_of_labels(vectors, targets)
    return (1.0 - 1.0 / targets.shape[1]) / max(error, EPS) * functions


def functions_of_labels(
    vectors: FloatArray, targets: npt.NDArray[Any], noise: FloatArray | None = None
) -> tuple[FloatArray, float]:
    """Fits linear functions to targets by penalized least squares; returns them and their error.

    The penalty is selected from `PENALTIES` by the smallest leave-one-out error.

    Args:
        vectors: feature vectors of the labeled inputs, from `record_vectors`, `[num_labels,
            width]`.
        targets: target values, such as the probability of each class, `[num_labels, num_classes]`.
        noise: simulated noise on the targets, `[num_labels, num_draws]`. A function is also fitted
            to each draw, and shows the error that such noise causes. The draws do not influence the
            choice of the penalty.

    Returns:
        The weights of the functions, `[width, num_classes + num_draws]`, and the mean squared
        leave-one-out error of the functions for the targets.
    """
    num_targets = targets.shape[1]
    if noise is not None:
        targets = np.hstack([targets, noise])
    vectors = vectors[:, :-1]
    mean = vectors.mean(axis=0)
    means = targets.mean(axis=0)
    left, roots, right = np.linalg.svd(vectors - mean, full_matrices=False)
    along = left.T @ (targets - means)
    best = np.inf
    for penalty in PENALTIES:
        kept = roots**2 / (roots**2 + penalty)
        leverage = left**2 @ kept + 1.0 / len(targets)  # influence of a label on its own prediction
        misses = (targets - means - left @ (kept[:, None] * along))[:, :num_targets]
        error = float(np.square(misses / np.maximum(1.0 - leverage, EPS)[:, None]).mean())
        if error < best:
            best = error
            weights = right.T @ ((roots / (roots**2 + penalty))[:, None] * along)
    return np.vstack([weights, (means - mean @ weights) / CONSTANT]), best


def fit(config: StudentConfig, released: PoolLabels, pool: Pool, options: FitOptions) -> LinearHead:
    """Returns `config.linear_head`, the linear model that was computed together with the labels.

    Raises:
        ValueError: if there is no linear model, because the labels are not from feature sums.
    """
    del released, pool, options
    if not isinstance(config.linear_head, LinearHead):
        raise ValueError(
            "student linear_head needs labels from feature sums of this run, with a linear model"
        )
    return config.linear_head


def check(config: StudentConfig, _: Dataset) -> None:
    """Raises ValueError if the user selected a model, because feature sums determine the model."""
    if config.model != LINEAR_HEAD:
        raise ValueError(f"model: remove {config.model!r}; linear_head comes from feature sums")


KIND = StudentKind(
    name=LINEAR_HEAD,
    fit=fit,
    check=check,
    default_model=lambda dataset: LINEAR_HEAD,
    has_steps=False,
    can_convert=False,
)
