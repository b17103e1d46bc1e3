"""Data of all methods: the same private records, public pool and test samples."""

import dataclasses
import functools
import pathlib

import numpy as np
import numpy.typing as npt
import tensorflow as tf

import pate_tf
from benchmarks import uci
from benchmarks.harness import DELTA
from pate_tf.core.checks import IntArray
from pate_tf.core.public import Pool, PoolLabels, PublicExamples
from pate_tf.models.encoder import Encoder
from pate_tf.representations.catalogue import default_of_sums, encoder_of
from pate_tf.representations.images import IMAGE_CHUNK, transform
from pate_tf.students.student_kinds import StudentSettings, complete, kind_of
from pate_tf.students.student_training import outputs

Array = npt.NDArray[np.floating]
LEAST_DEVIATION = 1e-3  # of a feature in the pool, as a fraction of the largest one
LEARNED, WAVELETS = "representation", "wavelets"


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Features:
    """Features of length at most 1, float32 `[num_inputs, num_features]` each.

    Attributes:
        private: SENSITIVE: features of the private records; each depends on its own record only.
        pool: features of the public pool.
        test: features of the held-out samples.
    """

    private: Array
    pool: Array
    test: Array


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """A data set with its two sides.

    Attributes:
        name: name of the data set.
        data_dir: folder of the data set; None for data sets that need no folder.
        seed: seed of all training, together with the repetition.
        is_quick: whether to train only a few steps, to show that everything runs.
        delta: delta of all epsilons.
        split: choice of the held-out public samples: 0 for the data set's own, otherwise a seed.
        has_pool: whether methods may use the pool; otherwise they know only declared values.
    """

    name: str
    data_dir: pathlib.Path | None
    seed: int = 0
    is_quick: bool = False
    delta: float = DELTA
    split: int = 0
    has_pool: bool = True

    @functools.cached_property
    def data(self) -> pate_tf.Data:
        """The private records, and the public split."""
        name = uci.FUNCTIONS.get(self.name, self.name)
        data = pate_tf.Data.load(name, data_dir=self.data_dir)
        public = data.public
        if self.split:
            inputs = np.concatenate([data.pool.inputs, data.held_out.inputs])
            labels = np.concatenate([data.pool.true_labels, data.held_out.labels])
            order = np.random.default_rng(self.split).permutation(len(labels))
            order[: len(data.pool)].sort()  # the pool keeps its order
            samples = PublicExamples(data.dataset, inputs[order], labels[order])
            public = samples.split(len(data.pool))
        if not self.has_pool:
            empty = Pool(data.dataset, data.pool.inputs[:0])
            public = dataclasses.replace(public, pool=empty)
        return pate_tf.Data(private=data.private, public=public)

    @property
    def is_image(self) -> bool:
        """Whether inputs are images."""
        return self.data.dataset.kind == "image"

    @functools.cached_property
    def encoder(self) -> Encoder:
        """The representation of the library's own sums, learned from the pool only."""
        name = default_of_sums(self.data.dataset, has_pool=self.has_pool)
        return encoder_of(self.data.pool, name, self.seed)

    @functools.cached_property
    def learned(self) -> Features:
        """Features of the representation; joined ones are weighted as in the library's teachers."""
        parts = self.encoder.parts
        weights = np.repeat([part.weight for part in parts], [sum(part.widths) for part in parts])
        total = sum(part.weight * len(part.widths) for part in parts)
        scale = np.sqrt(weights / total, dtype=np.float32)

        def features(inputs: npt.NDArray) -> Array:
            scaled = self.encoder.features(inputs) * scale
            return scaled / np.maximum(np.linalg.norm(scaled, axis=1, keepdims=True), 1.0)

        data = self.data
        return Features(
            private=features(data.private.inputs),
            pool=features(data.pool.inputs),
            test=features(data.held_out.inputs),
        )

    @functools.cached_property
    def wavelets(self) -> Features:
        """Fixed wavelets for images. The pool determines only their mean and deviations."""
        data = self.data
        compiled = tf.function(transform, autograph=False, reduce_retracing=True)
        sides = []
        for side in (data.pool, data.private, data.held_out):
            inputs = side.inputs.astype(np.float32)
            parts = np.array_split(inputs, -(-len(inputs) // IMAGE_CHUNK))
            features = np.concatenate([compiled(part).numpy() for part in parts])
            sides.append(features.reshape(len(features), -1))
        mean, deviations = sides[0].mean(axis=0), sides[0].std(axis=0)
        tiny = np.finfo(np.float32).tiny  # where inputs are all equal
        deviations += max(LEAST_DEVIATION * deviations.max(), tiny)
        for side in sides:
            side -= mean
            side /= deviations
            side /= np.maximum(np.linalg.norm(side, axis=1, keepdims=True), tiny)
        pool, private, test = sides
        return Features(private=private, pool=pool, test=test)

    def features(self, kind: str) -> Features:
        """Returns features of a kind, `LEARNED` or `WAVELETS`."""
        return self.learned if kind == LEARNED else self.wavelets

    def accuracy(self, labels: IntArray) -> float:
        """Returns the accuracy on the held-out samples."""
        return float((labels == self.data.held_out.labels).mean())

    def student(self, labels: PoolLabels, repetition: int) -> dict[str, object]:
        """Trains the library's default student on labels of the pool; returns accuracies."""
        data = self.data
        settings = StudentSettings(
            student="consistency" if self.is_image else "supervised",
            max_steps=20 if self.is_quick else None,
            seed=self.seed + repetition,
        )
        whole_pool = len(labels.labels) == len(data.pool)
        config = complete(settings, data.dataset, labels_whole_pool=whole_pool)
        model = kind_of(config.student).train(config, labels, data.pool)
        result: dict[str, object] = {
            "accuracy": self.accuracy(outputs(model, data.held_out.inputs).argmax(axis=1)),
            "labels": len(labels.labels),
        }
        if data.public.pool.true_labels is not None:
            truth = data.public.pool.true_labels[labels.query_indices]
            result["labels_right"] = float((labels.labels == truth).mean())
        return result
