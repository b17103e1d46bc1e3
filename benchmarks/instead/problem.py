"""What all methods are given: the same private records, public pool and test samples."""

import dataclasses
import functools
import pathlib

import numpy as np
import numpy.typing as npt

from pate_tf.api.reporting import QUIET
from pate_tf.api.run_folder import DataSource
from pate_tf.core.dataset import Dataset
from pate_tf.core.public import Pool, PoolLabels, PublicSplit
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.core.validation import IntArray
from pate_tf.models.encoder import Encoder
from pate_tf.representations.catalogue import default_of_sums, encoder_of
from pate_tf.representations.wavelets import scattering
from pate_tf.students.batches import outputs
from pate_tf.students.config import StudentSettings, complete
from pate_tf.students.kinds import kind_of

DELTA = 1e-5
LEAST_DEVIATION = 1e-3  # of a feature in the pool, as a share of the largest one


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Features:
    """Features of length at most 1.

    Attributes:
        private: SENSITIVE: of the private records, each of its own record alone.
        pool: of the public pool.
        test: of the held-out samples.
    """

    private: npt.NDArray[np.float32]
    pool: npt.NDArray[np.float32]
    test: npt.NDArray[np.float32]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """A data set with its two sides; what is read or learnt once is kept.

    Attributes:
        source: the data set.
        seed: of the representation, and of what is trained, beside the repetition.
        quick: whether to train a few steps only, to show that everything runs.
    """

    source: DataSource
    seed: int = 0
    quick: bool = False

    @functools.cached_property
    def private(self) -> PrivateExamples:
        """SENSITIVE for private data: the records that are to be protected."""
        return self.source.load_private(QUIET)

    @functools.cached_property
    def public(self) -> PublicSplit:
        """The pool, and the held-out samples that every method is tested on."""
        examples = self.source.load_public(QUIET)
        return examples.split(examples.dataset.pool_size)

    @property
    def dataset(self) -> Dataset:
        """What is publicly known of the data."""
        return self.public.dataset

    @property
    def pool(self) -> Pool:
        """Unlabelled public inputs."""
        return self.public.pool

    @functools.cached_property
    def encoder(self) -> Encoder:
        """What the library's own sums are of, learnt from the pool alone."""
        return encoder_of(self.pool, default_of_sums(self.dataset), self.seed)

    def features(self, inputs: npt.NDArray) -> npt.NDArray[np.float32]:
        """Returns features of length at most 1, `[num_inputs, num_features]`.

        Representations that were joined count as they do in the library's own teachers.
        """
        parts = self.encoder.parts
        weights = np.repeat([part.weight for part in parts], [sum(part.widths) for part in parts])
        total = sum(part.weight * len(part.widths) for part in parts)
        found = self.encoder.features(inputs) * np.sqrt(weights / total, dtype=np.float32)
        return found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1.0)

    @functools.cached_property
    def private_features(self) -> npt.NDArray[np.float32]:
        """SENSITIVE: of the private records; each depends on its own record alone."""
        return self.features(self.private.inputs)

    @functools.cached_property
    def pool_features(self) -> npt.NDArray[np.float32]:
        """Of the pool."""
        return self.features(self.pool.inputs)

    @functools.cached_property
    def test_features(self) -> npt.NDArray[np.float32]:
        """Of the held-out samples."""
        return self.features(self.test[0])

    @property
    def learnt(self) -> Features:
        """What the pool's inputs taught."""
        return Features(
            private=self.private_features, pool=self.pool_features, test=self.test_features
        )

    @functools.cached_property
    def scattered(self) -> Features:
        """Of images: fixed wavelets, of which the pool tells the mean and deviations alone."""
        found = [
            scattering(inputs) for inputs in (self.pool.inputs, self.private.inputs, self.test[0])
        ]
        mean, deviations = found[0].mean(axis=0), found[0].std(axis=0)
        tiny = np.finfo(np.float32).tiny  # where inputs are all equal
        deviations += max(LEAST_DEVIATION * deviations.max(), tiny)
        for one in found:
            one -= mean
            one /= deviations
            one /= np.maximum(np.linalg.norm(one, axis=1, keepdims=True), tiny)
        pool, private, test = found
        return Features(private=private, pool=pool, test=test)

    @property
    def test(self) -> tuple[npt.NDArray, IntArray]:
        """Held-out inputs and their labels."""
        held_out = self.public.held_out.labelled()
        if held_out is None:
            raise ValueError(f"dataset {self.dataset.name}: expected labels of held-out samples")
        return held_out.inputs, held_out.labels

    def accuracy(self, labels: npt.NDArray) -> float:
        """Returns the share of right labels `[num_test]`."""
        return float((labels == self.test[1]).mean())

    def student_settings(self, repetition: int) -> StudentSettings:
        """How students learn, from any method's labels: the library's own defaults."""
        return StudentSettings(
            student="consistency" if self.dataset.kind == "image" else "supervised",
            max_steps=20 if self.quick else None,
            seed=self.seed + repetition,
        )

    def student_accuracy(self, labels: PoolLabels, repetition: int) -> float:
        """Trains a student on labels of the pool; returns its accuracy on the test samples."""
        config = complete(
            self.student_settings(repetition),
            self.dataset,
            labels_whole_pool=len(labels.labels) == len(self.pool),
        )
        student = kind_of(config.student).train(config, labels, self.pool)
        return self.accuracy(outputs(student, self.test[0]).argmax(axis=1))


def data_dir_of(dataset: str, asked: pathlib.Path | None) -> pathlib.Path | None:
    """Where a data set lies: as asked, else in the folders that the other benchmarks take."""
    if asked is not None or dataset == "digits" or ":" in dataset:
        return asked
    tables = pathlib.Path("../shared/data")
    return tables if (tables / dataset).is_dir() else pathlib.Path("../shared/tfds")
