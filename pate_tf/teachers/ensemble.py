"""All teachers in one SavedModel: weights stacked `[num_teachers, ...]`, one loop over them.

Signatures: `votes` (inputs `[batch, *input_shape]` to labels int64 `[num_teachers, batch]`) and
`counts` (to int64 `[batch, num_classes]`); of networks also `probabilities` (inputs and a
`temperature`, float32 scalar, to the teachers' mean, float32 `[batch, num_classes]`).
"""

import dataclasses
import gc
import hashlib
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf.core import artifacts
from pate_tf.core.dataset import Dataset
from pate_tf.core.sensitive import VoteCounts, Votes
from pate_tf.core.validation import IntArray
from pate_tf.models import catalogue
from pate_tf.models.encoder import BATCH, Encoder
from pate_tf.teachers.settings import TeacherConfig
from pate_tf.teachers.voters import Ensemble, Progress, Saved

LARGEST = 1e30  # absolute value of a logit; softmax at any temperature that is of use holds it
VOTING_BATCH = 256  # inputs; larger batches fall out of the cache and take longer an input


def signature_of(dataset: Dataset) -> tf.TensorSpec:
    """Returns the specification of a batch of raw inputs."""
    return tf.TensorSpec([None, *dataset.input_shape], dataset.input_type, dataset.input_name)


def networks_module(config: TeacherConfig, stacked: Sequence[npt.NDArray[Any]]) -> tf.Module:
    """Returns the graph of all Keras teachers with their stacked weights, to be saved.

    A teacher whose training diverged votes too. A logit that is NaN counts as the least of all, so
    that where all are, the vote is for the first class.

    Args:
        config: what the teachers were trained with.
        stacked: weights, then buffers, each `[num_teachers, ...]`.
    """
    module = tf.Module()
    model = catalogue.build(config.model, config.dataset)
    num_weights = len(model.trainable_variables)
    module.stacked = [tf.Variable(array, trainable=False) for array in stacked]
    signature = signature_of(config.dataset)

    @tf.autograph.experimental.do_not_convert
    def logits_of(teacher: tf.Tensor, inputs: tf.Tensor) -> tf.Tensor:
        arrays = [tf.gather(variable, teacher) for variable in module.stacked]
        logits, _ = model.stateless_call(
            arrays[:num_weights], arrays[num_weights:], inputs, training=False
        )
        logits = tf.cast(logits, tf.float32)
        logits = tf.where(tf.math.is_nan(logits), -LARGEST, logits)
        return tf.clip_by_value(logits, -LARGEST, LARGEST)

    @tf.autograph.experimental.do_not_convert
    def labels_of(teacher: tf.Tensor, inputs: tf.Tensor) -> tf.Tensor:
        return tf.argmax(logits_of(teacher, inputs), axis=1)

    @tf.function(input_signature=[signature])
    def votes(inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        inputs = tf.cast(inputs, tf.float32)
        labels = tf.TensorArray(tf.int64, config.num_teachers)
        for teacher in tf.range(config.num_teachers):
            labels = labels.write(teacher, labels_of(teacher, inputs))
        return {"votes": tf.ensure_shape(labels.stack(), [config.num_teachers, None])}

    @tf.function(input_signature=[signature])
    def counts(inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        inputs = tf.cast(inputs, tf.float32)
        num_classes = config.dataset.num_classes
        total = tf.zeros([tf.shape(inputs)[0], num_classes], tf.int64)
        for teacher in tf.range(config.num_teachers):
            total += tf.one_hot(labels_of(teacher, inputs), num_classes, dtype=tf.int64)
        return {"counts": total}

    @tf.function(input_signature=[signature, tf.TensorSpec([], tf.float32, name="temperature")])
    def probabilities(inputs: tf.Tensor, temperature: tf.Tensor) -> dict[str, tf.Tensor]:
        inputs = tf.cast(inputs, tf.float32)
        total = tf.zeros([tf.shape(inputs)[0], config.dataset.num_classes])
        for teacher in tf.range(config.num_teachers):
            total += tf.nn.softmax(logits_of(teacher, inputs) / temperature)
        return {"probabilities": total / config.num_teachers}

    @tf.function(autograph=False, input_signature=[signature])
    def label(inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"label": labels_of(tf.constant(0), tf.cast(inputs, tf.float32))}

    module.votes, module.counts, module.label = votes, counts, label
    module.probabilities = probabilities
    return module


def save_module(folder: pathlib.Path, module: tf.Module, signatures: Sequence[str]) -> None:
    """Writes a module as the SavedModel of an ensemble.

    Args:
        folder: exists and is empty.
        module: with `stacked`, and a function for each signature.
        signatures: their names.
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
    `[batch]`.

    Args:
        folder: exists and is empty.
        config: what the teachers were trained with.
        stacked: weights, then buffers, each `[num_teachers, ...]`.
    """
    for teacher in range(config.num_teachers):
        one = dataclasses.replace(config, num_teachers=1)
        module = networks_module(one, [array[teacher : teacher + 1] for array in stacked])
        path = str(folder / f"{teacher:06d}")
        tf.saved_model.save(module, path, signatures={"serving_default": module.label})


class SavedModelEnsemble(Ensemble):
    """SENSITIVE: teachers of a SavedModel, loaded to be asked for votes."""

    def __init__(self, saved: Saved) -> None:
        """Loads what `save_module` wrote.

        Raises:
            Exception: of TensorFlow or Python, if there is none, or it is broken.
        """
        self._loaded = tf.saved_model.load(str(saved.folder))
        self._signatures = self._loaded.signatures
        public = getattr(self._loaded, "public_weights", ())
        learnt = artifacts.digest_arrays(one.numpy() for one in (*self._loaded.stacked, *public))
        super().__init__(saved, learnt)
        if public:
            self.encoder_digest = artifacts.digest_arrays(one.numpy() for one in public)

    def _votes(self, inputs: npt.NDArray[Any], progress: Progress | None) -> Votes:
        none: IntArray = np.empty((self.num_teachers, 0), np.int64)
        parts = [none, *self._answers("votes", inputs, progress)]
        return Votes(np.concatenate(parts, axis=1), self.dataset.num_classes)

    def counts(self, inputs: npt.NDArray[Any], progress: Progress | None = None) -> VoteCounts:
        """See `Voter.counts`. Few teachers' votes on few inputs are in memory at a time."""
        none: IntArray = np.empty((0, self.dataset.num_classes), np.int64)
        return VoteCounts(np.concatenate([none, *self._answers("counts", inputs, progress)]))

    def _probabilities(
        self, inputs: npt.NDArray[Any], temperature: float, progress: Progress | None
    ) -> npt.NDArray[np.float32]:
        if "probabilities" not in self._signatures:
            return super()._probabilities(inputs, temperature, progress)
        found = self._answers("probabilities", inputs, progress, temperature=temperature)
        none = np.empty((0, self.dataset.num_classes), np.float32)
        return np.concatenate([none, *found])

    def _answers(
        self, name: str, inputs: npt.NDArray[Any], progress: Progress | None, **others: float
    ) -> Iterator[npt.NDArray[Any]]:
        """Yields what a signature answers to the inputs, in parts."""
        self._check_shape(inputs)
        constants = {other: tf.constant(value) for other, value in others.items()}
        for start in range(0, len(inputs), VOTING_BATCH):
            part = inputs[start : start + VOTING_BATCH]
            batch = tf.constant(part, self.dataset.input_type)
            named = {self.dataset.input_name: batch, **constants}
            yield self._signatures[name](**named)[name].numpy()
            if progress is not None:
                progress(len(part))


# An encoder with teachers that are no SavedModel, so that their votes take raw inputs.


def save_encoder(folder: pathlib.Path, encoder: Encoder) -> None:
    """Writes an encoder as a SavedModel.

    Its signature `features` takes raw inputs, named as the data set names them, and returns
    `features` float32 `[batch, num_features]`.
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
    """

    def __init__(self, folder: pathlib.Path, dataset: Dataset) -> None:
        """Loads it; ValueError if there is none at `folder`, or it is broken."""
        self.dataset = dataset
        try:
            self._loaded = tf.saved_model.load(str(folder))
            learnt = [variable.numpy() for variable in self._loaded.learnt]
            shape = self._loaded.signatures["features"].structured_outputs["features"].shape
            self.num_features = int(shape[1])
        except Exception as error:  # TensorFlow raises its own kinds
            raise ValueError(f"expected a representation in {folder}, got none") from error
        self.digest = hashlib.sha256(artifacts.digest_arrays(learnt).encode()).hexdigest()

    def features(self, inputs: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Returns features `[num_inputs, num_features]` of raw inputs, worked out in parts."""
        found = np.empty((len(inputs), self.num_features), np.float32)
        encode = self._loaded.signatures["features"]
        for start in range(0, len(inputs), BATCH):
            part = tf.constant(inputs[start : start + BATCH], self.dataset.input_type)
            found[start : start + BATCH] = encode(**{self.dataset.input_name: part})["features"]
        return found
