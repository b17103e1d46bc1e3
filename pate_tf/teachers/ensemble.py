"""All teachers in one SavedModel: weights stacked `[num_teachers, ...]`, one loop over them.

Signatures: `votes` (inputs `[batch, *input_shape]` to labels int64 `[num_teachers, batch]`),
`counts` (to int64 `[batch, num_classes]`) and `probabilities` (inputs and a `temperature`, float32
scalar, to the teachers' mean, float32 `[batch, num_classes]`).
"""

import dataclasses
import gc
import hashlib
import json
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf.core import artifacts
from pate_tf.core.dataset import Dataset
from pate_tf.core.sensitive import FeatureSums, VoteCounts, Votes
from pate_tf.core.validation import IntArray
from pate_tf.data.named_function import name_of
from pate_tf.models import catalogue, closed_form
from pate_tf.models.encoder import Encoder
from pate_tf.teachers import on_features, records
from pate_tf.teachers.settings import TeacherConfig

# The graph of all Keras teachers: weights stacked `[num_teachers, ...]`, one loop over them.
#
# A teacher whose training diverged votes too. A logit that is NaN counts as the least of all, so
# that
# where all are, the vote is for the first class.


LARGEST = 1e30  # absolute value of a logit; softmax at any temperature that is of use holds it


class EnsembleModule(tf.Module):
    """The graph and the stacked weights that are saved."""

    def __init__(self, config: TeacherConfig, stacked: Sequence[npt.NDArray[Any]]) -> None:
        """Takes weights and buffers of all teachers, each `[num_teachers, ...]`."""
        super().__init__()
        model = catalogue.build(config.model, config.dataset)
        num_weights = len(model.trainable_variables)
        self.stacked = [tf.Variable(array, trainable=False) for array in stacked]

        @tf.autograph.experimental.do_not_convert
        def logits_of(teacher: tf.Tensor, inputs: tf.Tensor) -> tf.Tensor:
            arrays = [tf.gather(variable, teacher) for variable in self.stacked]
            logits, _ = model.stateless_call(
                arrays[:num_weights], arrays[num_weights:], inputs, training=False
            )
            logits = tf.cast(logits, tf.float32)
            logits = tf.where(tf.math.is_nan(logits), -LARGEST, logits)
            return tf.clip_by_value(logits, -LARGEST, LARGEST)

        @tf.autograph.experimental.do_not_convert
        def labels_of(teacher: tf.Tensor, inputs: tf.Tensor) -> tf.Tensor:
            return tf.argmax(logits_of(teacher, inputs), axis=1)

        signature = tf.TensorSpec(
            [None, *config.dataset.input_shape],
            config.dataset.input_type,
            name=config.dataset.input_name,
        )

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

        self.votes, self.counts, self.label = votes, counts, label
        self.probabilities = probabilities


CLASS_SUMS = "class_sums.npz"
VOTING_BATCH = 256  # inputs; larger batches fall out of the cache and take longer an input

Progress = Callable[[int], object]


def save(
    folder: pathlib.Path,
    config: TeacherConfig,
    stacked: Sequence[npt.NDArray[Any]],
    *,
    encoder: Encoder | None = None,
    class_sums: IntArray | None = None,
) -> None:
    """Writes the ensemble and its description at `folder`, whole or not at all.

    Args:
      folder: where the SavedModel goes; its parent must exist.
      config: what the teachers were trained with.
      stacked: weights, then buffers, each `[num_teachers, ...]`; for teachers on features what
        `closed_form.stack` returned.
      encoder: what makes features, for teachers on them. The SavedModel holds it too.
      class_sums: of all their records, `teachers.class_sums.class_sums`; None where there are none.
    """
    module: EnsembleModule | on_features.FeatureEnsembleModule
    if encoder is None:
        module = EnsembleModule(config, stacked)
        signatures = {"probabilities": module.probabilities}
    else:
        module = on_features.FeatureEnsembleModule(config, stacked, encoder)
        signatures = {"features": module.features}
    del stacked  # the module has a copy
    signatures |= {"votes": module.votes, "counts": module.counts}
    with artifacts.atomic_folder(folder) as temporary:
        tf.saved_model.save(module, str(temporary), signatures=signatures)
        artifacts.write_json(temporary / "ensemble.json", config.to_dict(), private=True)
        if class_sums is not None and encoder is not None:
            scale = np.ones(encoder.num_features) if encoder.scale is None else encoder.scale
            arrays = {"sums": class_sums, "scale": scale}
            artifacts.write_arrays(temporary / CLASS_SUMS, arrays, private=True)
        artifacts.make_private(temporary)
    # Graphs hold each other in cycles, and all teachers with them until Python looks for those.
    del module, signatures
    gc.collect()


def save_each(
    folder: pathlib.Path, config: TeacherConfig, stacked: Sequence[npt.NDArray[Any]]
) -> None:
    """Writes a SavedModel for each teacher: `<folder>/<teacher, six digits>`.

    `serving_default` takes raw inputs, named as the data set names them, and returns `label` int64
    `[batch]`.

    Args:
      folder: exists and is empty.
      config: what the teachers were trained with.
      stacked: weights, then buffers, each `[num_teachers, ...]`.
    """
    for teacher in range(config.num_teachers):
        module = EnsembleModule(
            dataclasses.replace(config, num_teachers=1),
            [array[teacher : teacher + 1] for array in stacked],
        )
        tf.saved_model.save(
            module,
            str(folder / f"{teacher:06d}"),
            signatures={"serving_default": module.label},
        )
    artifacts.make_private(folder)


class Ensemble:
    """Sensitive: a saved ensemble, loaded to be asked for votes.

    Attributes:
      config: what the teachers were trained with.
      digest: SHA-256 of configuration and weights; the ledger knows the ensemble by it.
      records: what they learnt from; None if that was not kept.
      class_sums: of the vectors of all their records, by class; None if there are none.
      scale: what `models.record_vectors.record_vectors` scales features by; None likewise. Public.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        """Loads an ensemble that `save` wrote.

        Raises:
          ValueError: if there is none at `folder`, or it is broken.
        """
        try:
            description = artifacts.read_json(folder / "ensemble.json")
            self.config = TeacherConfig.from_dict(description)
            loaded = tf.saved_model.load(str(folder))
            self._votes = loaded.signatures["votes"]
            learnt = [*loaded.stacked, *getattr(loaded, "public_weights", ())]
            sums = {}
            if (folder / CLASS_SUMS).exists():
                sums = artifacts.read_arrays(folder / CLASS_SUMS)
        except FileNotFoundError as error:
            raise ValueError(
                f"teachers: expected a trained ensemble in {folder}, got none; "
                f"run train_teachers.py first"
            ) from error
        except Exception as error:  # TensorFlow and JSON each raise their own kinds
            raise ValueError(
                f"teachers: expected a complete ensemble in {folder}, got a broken one"
            ) from error
        self._loaded = loaded  # holds the variables that the signature reads
        weights = artifacts.digest_arrays(variable.numpy() for variable in learnt)
        text = json.dumps(description, sort_keys=True) + weights
        self.class_sums = FeatureSums(sums["sums"]) if sums else None
        self.scale: npt.NDArray[np.float64] | None = sums.get("scale")
        if sums:
            text += artifacts.digest_arrays(sums[name] for name in ("sums", "scale"))
        self.digest = hashlib.sha256(text.encode()).hexdigest()
        self.records = records.beside(folder)

    @property
    def dataset(self) -> Dataset:
        """What is publicly known of the data."""
        return self.config.dataset

    @property
    def num_teachers(self) -> int:
        """Number of teachers."""
        return self.config.num_teachers

    @property
    def unit(self) -> str:
        """What one teacher's share protects, "record" or "owner"."""
        return self.config.unit

    def votes(self, inputs: npt.NDArray[Any], progress: Progress | None = None) -> Votes:
        """Asks every teacher for a label of every input.

        Args:
          inputs: `[num_queries, *input_shape]`, raw as the data set holds them.
          progress: called with the number of queries done since its last call.
        """
        parts = [np.empty((self.num_teachers, 0), np.int64)]
        for batch in _batches(self.dataset, inputs, progress):
            parts.append(self._votes(**{self.dataset.input_name: batch})["votes"].numpy())
        return Votes(np.concatenate(parts, axis=1), self.dataset.num_classes)

    def counts(self, inputs: npt.NDArray[Any], progress: Progress | None = None) -> VoteCounts:
        """Returns what `votes(inputs).counts()` does, counted where the votes are made.

        Few teachers' votes on few inputs are in memory at a time.
        """
        parts = [np.empty((0, self.dataset.num_classes), np.int64)]
        count = self._loaded.signatures["counts"]
        for batch in _batches(self.dataset, inputs, progress):
            parts.append(count(**{self.dataset.input_name: batch})["counts"].numpy())
        return VoteCounts(np.concatenate(parts))

    def features(self, inputs: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Returns what teachers on features take for inputs, `[num_inputs, num_features]`.

        Public, as the inputs are: no teacher has a part in it.

        Args:
          inputs: `[num_inputs, *input_shape]`, raw as the data set holds them.

        Raises:
          ValueError: if the inputs have another shape, or the ensemble was saved without this.
        """
        if "features" not in self._loaded.signatures:
            raise ValueError("teachers: expected teachers on features, got others")
        encode = self._loaded.signatures["features"]
        parts = [
            encode(**{self.dataset.input_name: batch})["features"].numpy()
            for batch in _batches(self.dataset, inputs, None)
        ]
        return np.concatenate(parts)

    def probabilities(
        self, inputs: npt.NDArray[Any], temperature: float, progress: Progress | None = None
    ) -> npt.NDArray[np.float32]:
        """Returns what the teachers state on average, `[num_queries, num_classes]`.

        SENSITIVE, and not covered by any mechanism here: for comparisons alone.

        Args:
          inputs: `[num_queries, *input_shape]`, raw as the data set holds them.
          temperature: logits are divided by it; the larger, the smoother.
          progress: called with the number of queries done since its last call.

        Raises:
          ValueError: if the inputs have another shape, or the ensemble was saved without this.
        """
        if "probabilities" not in self._loaded.signatures:
            if self.config.representation is not None:
                raise ValueError(
                    f"teachers: expected an ensemble that states probabilities, got "
                    f"{name_of(self.config.model)}, which answers with labels alone"
                )
            raise ValueError(
                "teachers: expected an ensemble that states probabilities, got one of an earlier "
                "version; remove its folder and run train_teachers.py again, which trains nothing "
                "anew"
            )
        state = self._loaded.signatures["probabilities"]
        parts = [np.empty((0, self.dataset.num_classes), np.float32)]
        for batch in _batches(self.dataset, inputs, progress):
            named = {self.dataset.input_name: batch, "temperature": tf.constant(temperature)}
            parts.append(state(**named)["probabilities"].numpy())
        return np.concatenate(parts)


def votes_of(
    config: TeacherConfig,
    teachers: Sequence[Sequence[npt.NDArray[Any]]],
    inputs: npt.NDArray[Any],
    progress: Progress | None = None,
    *,
    encoder: Encoder | None = None,
) -> Votes:
    """Asks teachers that are saved in no ensemble yet, as `Ensemble.votes` does.

    Args:
      config: what the teachers were trained with; some of its `num_teachers`.
      teachers: weights, then buffers, of each of them, at least one.
      inputs: `[num_queries, *input_shape]`, raw as the data set holds them.
      progress: called with the number of queries done since its last call.
      encoder: what makes features, for teachers on them.
    """
    some = dataclasses.replace(config, num_teachers=len(teachers))
    module: EnsembleModule | on_features.FeatureEnsembleModule
    if encoder is None:
        module = EnsembleModule(some, [np.stack(arrays) for arrays in zip(*teachers, strict=True)])
    else:
        stacked = closed_form.stack(str(config.model), teachers)
        module = on_features.FeatureEnsembleModule(some, stacked, encoder)
    parts = [np.empty((len(teachers), 0), np.int64)]
    for batch in _batches(config.dataset, inputs, progress):
        parts.append(module.votes(batch)["votes"].numpy())
    return Votes(np.concatenate(parts, axis=1), config.dataset.num_classes)


def _batches(
    dataset: Dataset, inputs: npt.NDArray[Any], progress: Progress | None
) -> Iterator[tf.Tensor]:
    """Yields the inputs in parts, and tells of each when it is done."""
    if inputs.shape[1:] != dataset.input_shape:
        raise ValueError(
            f"queries: expected [num_queries, {', '.join(map(str, dataset.input_shape))}], got "
            f"{list(inputs.shape)}"
        )
    for start in range(0, len(inputs), VOTING_BATCH):
        batch = tf.constant(inputs[start : start + VOTING_BATCH], dataset.input_type)
        yield batch
        if progress is not None:
            progress(len(batch))
