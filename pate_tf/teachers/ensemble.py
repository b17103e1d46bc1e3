"""All teachers in one SavedModel: weights stacked `[num_teachers, ...]`, one loop over them.

Signatures: `votes` (inputs `[batch, *input_shape]` to labels int64 `[num_teachers, batch]`) and
`counts` (to int64 `[batch, num_classes]`); of networks also `probabilities` (inputs and a
`temperature`, float32 scalar, to the teachers' mean, float32 `[batch, num_classes]`).
"""

import dataclasses
import functools
import gc
import hashlib
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf.core import artifacts, validation
from pate_tf.core.dataset import Dataset
from pate_tf.core.sensitive import VoteCounts, Votes
from pate_tf.core.validation import IntArray
from pate_tf.models import catalogue, closed_form
from pate_tf.models.encoder import BATCH, Encoder
from pate_tf.teachers.settings import TeacherConfig
from pate_tf.teachers.voters import Ensemble, Progress, Saved

LARGEST = 1e30  # absolute value of a logit; softmax at any temperature that is of use holds it
VOTING_BATCH = 256  # inputs; larger batches fall out of the cache and take longer an input


def signature_of(dataset: Dataset) -> tf.TensorSpec:
    """Returns the specification of a batch of raw inputs."""
    return tf.TensorSpec([None, *dataset.input_shape], dataset.input_type, dataset.input_name)


def voting_module(
    config: TeacherConfig,
    stacked: Sequence[tf.Variable],
    prepared: Callable[[tf.Tensor], tf.Tensor],
    labels_of: Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor],
    *,
    together: int,
) -> tf.Module:
    """Returns the graph of all teachers, to be saved: `stacked`, `votes` and `counts`.

    Args:
        config: what the teachers were trained with.
        stacked: what they learnt.
        prepared: from raw inputs, float32, to what all teachers take.
        labels_of: from a teacher, the one to stop before and prepared inputs to labels int64
            `[num_chunk, batch]`.
        together: how many teachers `labels_of` is asked about at a time.
    """
    module = tf.Module()
    module.stacked = list(stacked)
    num_teachers, num_classes = config.num_teachers, config.dataset.num_classes
    signature = signature_of(config.dataset)
    starts = tf.range(0, num_teachers, together)

    @tf.function(input_signature=[signature])
    def votes(inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        taken = prepared(tf.cast(inputs, tf.float32))
        parts = tf.TensorArray(tf.int64, tf.size(starts), infer_shape=False)
        for place in tf.range(tf.size(starts)):
            last = tf.minimum(starts[place] + together, num_teachers)
            parts = parts.write(place, labels_of(starts[place], last, taken))
        return {"votes": tf.ensure_shape(parts.concat(), [num_teachers, None])}

    @tf.function(input_signature=[signature])
    def counts(inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        taken = prepared(tf.cast(inputs, tf.float32))
        total = tf.zeros([tf.shape(inputs)[0], num_classes], tf.int64)
        for first in starts:
            labels = labels_of(first, tf.minimum(first + together, num_teachers), taken)
            total += tf.reduce_sum(tf.one_hot(labels, num_classes, dtype=tf.int64), 0)
        return {"counts": total}

    module.votes, module.counts = votes, counts
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
    signature = signature_of(config.dataset)

    @tf.autograph.experimental.do_not_convert
    def logits_of(teacher: tf.Tensor, inputs: tf.Tensor) -> tf.Tensor:
        arrays = [tf.gather(variable, teacher) for variable in variables]
        logits, _ = model.stateless_call(
            arrays[:num_weights], arrays[num_weights:], inputs, training=False
        )
        logits = tf.cast(logits, tf.float32)
        logits = tf.where(tf.math.is_nan(logits), -LARGEST, logits)
        return tf.clip_by_value(logits, -LARGEST, LARGEST)

    @tf.autograph.experimental.do_not_convert
    def labels_of(teacher: tf.Tensor, _: tf.Tensor, inputs: tf.Tensor) -> tf.Tensor:
        return tf.argmax(logits_of(teacher, inputs), axis=1)[tf.newaxis]

    @tf.function(input_signature=[signature, tf.TensorSpec([], tf.float32, name="temperature")])
    def probabilities(inputs: tf.Tensor, temperature: tf.Tensor) -> dict[str, tf.Tensor]:
        inputs = tf.cast(inputs, tf.float32)
        total = tf.zeros([tf.shape(inputs)[0], config.dataset.num_classes])
        for teacher in tf.range(config.num_teachers):
            total += tf.nn.softmax(logits_of(teacher, inputs) / temperature)
        return {"probabilities": total / config.num_teachers}

    @tf.function(autograph=False, input_signature=[signature])
    def label(inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"label": labels_of(tf.constant(0), tf.constant(1), tf.cast(inputs, tf.float32))[0]}

    module = voting_module(config, variables, tf.identity, labels_of, together=1)
    module.probabilities, module.label = probabilities, label
    return module


CHUNK = 64  # teachers on features that vote together
PART = 128  # rows that go into a variable together


def features_module(
    config: TeacherConfig, stacked: Sequence[npt.NDArray[Any]], encoder: Encoder
) -> tf.Module:
    """Returns the graph, the encoder and the arrays of all teachers solved for, to be saved.

    Args:
        config: what the teachers were trained with.
        stacked: what `closed_form.stack` returned.
        encoder: what features are.
    """
    variables = [_variable(array) for array in stacked]
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
        tf.cast(tf.gather(one, tf.range(first, last)), tf.float32) for one in stacked
    )
    scores = tf.einsum("bf,tfc->tbc", features, weights) + offsets[:, tf.newaxis]
    return tf.argmax(scores, axis=2)


def _nearest_labels(
    stacked: Sequence[tf.Variable], first: tf.Tensor, last: tf.Tensor, features: tf.Tensor
) -> tf.Tensor:
    records, labels, starts = stacked
    found = tf.TensorArray(tf.int64, last - first)
    for teacher in tf.range(first, last):
        rows = tf.range(tf.gather(starts, teacher), tf.gather(starts, teacher + 1))
        own = tf.cast(tf.gather(records, rows), tf.float32)
        # Of |x - r|^2 the part that differs between records, as something to maximise. A record
        # that is never nearest stands in for an empty share, and is of the first class.
        scores = 2.0 * tf.matmul(features, own, transpose_b=True)
        scores -= tf.reduce_sum(tf.square(own), axis=1)
        none = tf.fill([tf.shape(features)[0], 1], scores.dtype.min)
        nearest = tf.argmax(tf.concat([scores, none], axis=1), axis=1)
        known = tf.concat([tf.gather(labels, rows), tf.zeros([1], labels.dtype)], axis=0)
        found = found.write(teacher - first, tf.cast(tf.gather(known, nearest), tf.int64))
    return found.stack()


def _variable(array: npt.NDArray[Any]) -> tf.Variable:
    """Returns a variable with an array's values, given in parts: all at once are copied twice."""
    if not np.issubdtype(array.dtype, np.floating):  # small, and not all devices update their parts
        return tf.Variable(array, trainable=False)
    variable = tf.Variable(tf.zeros(array.shape, array.dtype), trainable=False)
    for start in range(0, len(array), PART):
        part = array[start : start + PART]
        variable.scatter_nd_update(np.arange(start, start + len(part))[:, None], part)
    return variable


def save_module(folder: pathlib.Path, module: tf.Module, signatures: Sequence[str]) -> None:
    """Writes a module with a function for each signature as the SavedModel of an ensemble.

    The folder exists and is empty.
    """
    functions = {name: getattr(module, name) for name in signatures}
    tf.saved_model.save(module, str(folder), signatures=functions)
    # Graphs hold each other in cycles, and all teachers with them until Python looks for those.
    del module, functions
    gc.collect()


def save_each(
    folder: pathlib.Path, config: TeacherConfig, stacked: Sequence[npt.NDArray[Any]]
) -> None:
    """Writes a SavedModel for each Keras teacher: `<folder>/<teacher, six digits>`.

    `serving_default` takes raw inputs, named as the data set names them, and returns `label` int64
    `[batch]`. Otherwise as `networks_module`.
    """
    for teacher in range(config.num_teachers):
        one = dataclasses.replace(config, num_teachers=1)
        module = networks_module(one, [array[teacher : teacher + 1] for array in stacked])
        path = str(folder / f"{teacher:06d}")
        tf.saved_model.save(module, path, signatures={"serving_default": module.label})


class SavedModelEnsemble(Ensemble):
    """SENSITIVE: teachers of a SavedModel, loaded to be asked for votes."""

    def __init__(self, saved: Saved) -> None:
        """Loads what `save_module` wrote; raises any exception if it is missing or broken."""
        self._loaded = tf.saved_model.load(str(saved.folder))
        self._signatures = self._loaded.signatures
        public = getattr(self._loaded, "public_weights", ())
        learnt = artifacts.digest_arrays(one.numpy() for one in (*self._loaded.stacked, *public))
        super().__init__(saved, learnt)
        if public:
            self.encoder_digest = artifacts.digest_arrays(one.numpy() for one in public)

    def votes(self, inputs: npt.NDArray[Any], progress: Progress | None = None) -> Votes:
        """See `Voter.votes`."""
        none: IntArray = np.empty((self.num_teachers, 0), np.int64)
        labels = self._answers("votes", inputs, progress, none)
        return Votes(labels, self.dataset.num_classes)

    def counts(self, inputs: npt.NDArray[Any], progress: Progress | None = None) -> VoteCounts:
        """See `Voter.counts`. Few teachers' votes on few inputs are in memory at a time."""
        none: IntArray = np.empty((0, self.dataset.num_classes), np.int64)
        return VoteCounts(self._answers("counts", inputs, progress, none))

    def _probabilities(
        self, inputs: npt.NDArray[Any], temperature: float, progress: Progress | None
    ) -> npt.NDArray[np.float32]:
        if "probabilities" not in self._signatures:
            return super()._probabilities(inputs, temperature, progress)
        none = np.empty((0, self.dataset.num_classes), np.float32)
        return self._answers("probabilities", inputs, progress, none, temperature=temperature)

    def _answers(
        self,
        name: str,
        inputs: npt.NDArray[Any],
        progress: Progress | None,
        none: npt.NDArray[Any],
        **others: float,
    ) -> npt.NDArray[Any]:
        """Returns what a signature answers to the inputs: `none` where there are none."""
        validation.shape(["num_queries", *self.dataset.input_shape], queries=inputs)
        constants = {other: tf.constant(value) for other, value in others.items()}
        answers = [none]
        for start in range(0, len(inputs), VOTING_BATCH):
            part = inputs[start : start + VOTING_BATCH]
            batch = tf.constant(part, self.dataset.input_type)
            named = {self.dataset.input_name: batch, **constants}
            answers.append(self._signatures[name](**named)[name].numpy())
            if progress is not None:
                progress(len(part))
        return np.concatenate(answers, axis=none.shape.index(0))


# An encoder with teachers that are no SavedModel, so that their votes take raw inputs.


def learnt_digest(learnt: Iterable[tf.Variable]) -> str:
    """Returns SHA-256 of what an encoder learnt, as hexadecimal digits."""
    digest = artifacts.digest_arrays(variable.numpy() for variable in learnt)
    return hashlib.sha256(digest.encode()).hexdigest()


def save_encoder(folder: pathlib.Path, encoder: Encoder) -> None:
    """Writes an encoder as a SavedModel.

    Its signature `features` takes raw inputs, named as the data set names them.
    """
    module = tf.Module()
    module.encoder, module.learnt = encoder, encoder.learnt

    @tf.function(autograph=False, input_signature=[signature_of(encoder.dataset)])
    def features(inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        found = encoder(tf.cast(inputs, tf.float32))
        return {"features": tf.ensure_shape(found, [None, encoder.num_features])}

    module.features = features
    tf.saved_model.save(module, str(folder), signatures={"features": features})


class SavedEncoder:
    """Public: an encoder that `save_encoder` wrote.

    Attributes:
        dataset: the data whose inputs it takes.
        digest: SHA-256 of what it learnt.
        num_features: how many features an input has.
        loaded: the SavedModel itself.
    """

    def __init__(self, folder: pathlib.Path, dataset: Dataset) -> None:
        """Loads it; ValueError if there is none at `folder`, or it is broken."""
        self.dataset = dataset
        try:
            self.loaded = tf.saved_model.load(str(folder))
            self.digest = learnt_digest(self.loaded.learnt)
            shape = self.loaded.signatures["features"].structured_outputs["features"].shape
            self.num_features = int(shape[1])
        except Exception as error:  # TensorFlow raises its own kinds
            raise ValueError(f"expected a representation in {folder}, got none") from error

    def features(self, inputs: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Returns features `[num_inputs, num_features]` of raw inputs, worked out in parts."""
        found = np.empty((len(inputs), self.num_features), np.float32)
        for start in range(0, len(inputs), BATCH):
            found[start : start + BATCH] = self.batch_features(inputs[start : start + BATCH])
        return found

    def batch_features(self, batch: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Returns features of one batch of raw inputs in a single call, as an `Encoder` does."""
        given = tf.constant(batch, self.dataset.input_type)
        encode = self.loaded.signatures["features"]
        features: npt.NDArray[np.float32] = encode(**{self.dataset.input_name: given})[
            "features"
        ].numpy()
        return features
