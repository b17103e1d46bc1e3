"""All teachers in one SavedModel: weights stacked `[num_teachers, ...]`, one loop over them.

Its signature `votes` takes inputs `[batch, *input_shape]` and returns labels int64 `[num_teachers,
batch]`.
"""

import functools
import hashlib
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf.core import artifacts
from pate_tf.core.dataset import Dataset
from pate_tf.data.preprocessing import input_spec, load_graph
from pate_tf.models import catalogue, closed_form
from pate_tf.models.encoder import BATCH, Encoder
from pate_tf.teachers.settings import TeacherConfig


def voting_module(
    config: TeacherConfig,
    stacked: Sequence[tf.Variable],
    prepared: Callable[[tf.Tensor], tf.Tensor],
    labels_of: Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor],
    *,
    together: int,
) -> tf.Module:
    """Returns the graph of all teachers, to be saved: `stacked` and `votes`.

    Args:
        config: what the teachers were trained with.
        stacked: what they learned.
        prepared: from raw inputs, float32, to what all teachers take.
        labels_of: from a teacher, the one to stop before and prepared inputs to labels int64
            `[num_chunk, batch]`.
        together: how many teachers `labels_of` is asked about at a time.
    """
    module = tf.Module()
    module.stacked = list(stacked)
    num_teachers, dataset = config.num_teachers, config.dataset
    starts = tf.range(0, num_teachers, together)

    @tf.function(input_signature=[input_spec(dataset)])
    def votes(inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        taken = prepared(tf.cast(inputs, tf.float32))
        parts = tf.TensorArray(tf.int64, tf.size(starts), infer_shape=False)
        for place in tf.range(tf.size(starts)):
            last = tf.minimum(starts[place] + together, num_teachers)
            parts = parts.write(place, labels_of(starts[place], last, taken))
        return {"votes": tf.ensure_shape(parts.concat(), [num_teachers, None])}

    module.votes = votes
    return module


def networks_module(config: TeacherConfig, stacked: Sequence[npt.NDArray[Any]]) -> tf.Module:
    """Returns the graph of all Keras teachers with their stacked weights, to be saved.

    A teacher whose training diverged votes too. A logit that is NaN counts as the least of all, so
    that where all are, the vote is for the first class.

    Args:
        config: what the teachers were trained with.
        stacked: weights, then buffers, each `[num_teachers, ...]`.
    """
    model = catalogue.build(config.model, config.dataset)
    num_weights = len(model.trainable_variables)
    variables = [tf.Variable(array, trainable=False) for array in stacked]

    @tf.autograph.experimental.do_not_convert
    def labels_of(teacher: tf.Tensor, _: tf.Tensor, inputs: tf.Tensor) -> tf.Tensor:
        arrays = [tf.gather(variable, teacher) for variable in variables]
        logits, _ = model.stateless_call(
            arrays[:num_weights], arrays[num_weights:], inputs, training=False
        )
        logits = tf.cast(logits, tf.float32)
        logits = tf.where(tf.math.is_nan(logits), logits.dtype.min, logits)
        return tf.argmax(logits, axis=1)[tf.newaxis]

    return voting_module(config, variables, tf.identity, labels_of, together=1)


CHUNK = 64  # teachers on features that vote together


def features_module(
    config: TeacherConfig, stacked: Sequence[npt.NDArray[Any]], encoder: Encoder
) -> tf.Module:
    """Returns the graph, the encoder and the arrays of all teachers solved for, to be saved.

    Args:
        config: what the teachers were trained with.
        stacked: what `closed_form.stack` returned.
        encoder: what features are.
    """
    variables = [tf.Variable(array, trainable=False) for array in stacked]
    of_kind = _linear_labels if closed_form.is_linear(str(config.model)) else _nearest_labels
    features_of = tf.autograph.experimental.do_not_convert(encoder)
    labels_of = functools.partial(of_kind, variables)
    module = voting_module(config, variables, features_of, labels_of, together=CHUNK)
    module.encoder, module.public_weights = encoder, encoder.learnt
    return module


@tf.autograph.experimental.do_not_convert
def _linear_labels(
    stacked: Sequence[tf.Variable], first: tf.Tensor, last: tf.Tensor, features: tf.Tensor
) -> tf.Tensor:
    weights, offsets = (
        tf.cast(tf.gather(array, tf.range(first, last)), tf.float32) for array in stacked
    )
    scores = tf.einsum("bf,tfc->tbc", features, weights) + offsets[:, tf.newaxis]
    return tf.argmax(scores, axis=2)


def _nearest_labels(
    stacked: Sequence[tf.Variable], first: tf.Tensor, last: tf.Tensor, features: tf.Tensor
) -> tf.Tensor:
    records, labels, starts = stacked
    votes = tf.TensorArray(tf.int64, last - first)
    for teacher in tf.range(first, last):
        rows = tf.range(tf.gather(starts, teacher), tf.gather(starts, teacher + 1))
        shard = tf.cast(tf.gather(records, rows), tf.float32)
        # Of |x - r|^2 the part that differs between records, as something to maximize. A record
        # that is never nearest stands in for an empty shard, and is of the first class.
        scores = 2.0 * tf.matmul(features, shard, transpose_b=True)
        scores -= tf.reduce_sum(tf.square(shard), axis=1)
        none = tf.fill([tf.shape(features)[0], 1], scores.dtype.min)
        nearest = tf.argmax(tf.concat([scores, none], axis=1), axis=1)
        named = tf.concat([tf.gather(labels, rows), tf.zeros([1], labels.dtype)], axis=0)
        votes = votes.write(teacher - first, tf.cast(tf.gather(named, nearest), tf.int64))
    return votes.stack()


# An encoder with teachers that are no SavedModel, so that their votes take raw inputs.


def learnt_digest(learnt: Iterable[tf.Variable]) -> str:
    """Returns SHA-256 of what an encoder learned, as hexadecimal digits."""
    return hashlib.sha256(artifacts.digest_arrays(learnt).encode()).hexdigest()


def save_encoder(folder: pathlib.Path, encoder: Encoder) -> None:
    """Writes an encoder as a SavedModel.

    Its signature `features` takes raw inputs, named as the data set names them.
    """
    module = tf.Module()
    module.encoder, module.learnt, dataset = encoder, encoder.learnt, encoder.dataset

    @tf.function(autograph=False, input_signature=[input_spec(dataset)])
    def features(inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        values = encoder(tf.cast(inputs, tf.float32))
        return {"features": tf.ensure_shape(values, [None, encoder.num_features])}

    module.features = features
    tf.saved_model.save(module, str(folder), signatures={"features": features})


class SavedEncoder:
    """Public: an encoder that `save_encoder` wrote.

    Attributes:
        dataset: the data whose inputs it takes.
        digest: SHA-256 of what it learned.
        num_features: how many features an input has.
        loaded: the SavedModel itself.
    """

    def __init__(self, folder: pathlib.Path, dataset: Dataset) -> None:
        """Loads it; ValueError if there is none at `folder`, or it is broken."""
        self.dataset = dataset
        try:
            self.loaded = load_graph(str(folder))
            self.digest = learnt_digest(self.loaded.learnt)
            shape = self.loaded.signatures["features"].structured_outputs["features"].shape
            self.num_features = int(shape[1])
            self.remember(np.zeros(0), np.zeros(0, np.float32))
        except Exception as error:  # TensorFlow raises its own kinds
            raise ValueError(f"expected a representation in {folder}, got none") from error

    def remember(self, inputs: npt.NDArray[Any], features: npt.NDArray[np.float32]) -> None:
        """Keeps the features of a pool's inputs, as `Encoder.remember`."""
        self._pool_inputs, self._pool_features = inputs, features

    def features(self, inputs: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Returns features `[num_inputs, num_features]` of raw inputs, worked out in parts."""
        if inputs is self._pool_inputs:
            return self._pool_features
        starts = range(0, max(1, len(inputs)), BATCH)
        return np.concatenate(
            [self.batch_features(inputs[start : start + BATCH]) for start in starts]
        )

    def batch_features(self, batch: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Returns features of one batch of raw inputs in a single call, as an `Encoder` does."""
        named = {self.dataset.input_name: tf.constant(batch, self.dataset.input_type)}
        features: npt.NDArray[np.float32] = self.loaded.signatures["features"](**named)[
            "features"
        ].numpy()
        return features
