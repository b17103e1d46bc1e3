"""Feature sums of private records: computed once, stored in a run folder, released by a labeller.

No teacher is trained. Each record is mapped to a vector of L2 norm at most 1 by a public
representation; the vectors of each class are summed. `pate_tf.Labeller` charges the noisy sums and
works out labels of the public pool from them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf.aggregation.feature_sums import counts_by_cluster, sums_by_class
from pate_tf.api.reporting import QUIET, Reporting, reporting
from pate_tf.api.run_folder import DataSource, RunDescription, described_run
from pate_tf.core import artifacts, partition, sensitive
from pate_tf.core.dataset import Dataset, check_inputs
from pate_tf.core.public import Pool
from pate_tf.core.record_set import RecordSet
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.data.named_function import Named, name_of
from pate_tf.models import fingerprint
from pate_tf.models.encoder import (
    Encoder,
    nearest_centres,
    record_vectors,
)
from pate_tf.representations.catalogue import (
    Representation,
    check_representation,
    default_of_teachers,
    encoder_of,
    source_of,
)
from pate_tf.representations.label_propagation import cluster_centres
from pate_tf.teachers.on_features import features_of_shares

PARTS: Final = 16  # shares of the records; vectors of one are in memory in double precision
PART: Final = 4_096  # inputs of a pool whose vectors are in memory in double precision
BATCH: Final = 256  # inputs; larger batches fall out of the cache and take longer an input
SUMS, ENCODER, DESCRIPTION = "sums.npz", "encoder", "description.json"
EARLIER_COMMAND: Final = "call fit(data.private, data.pool), or train_student.py with the data"


def sums_folder(directory: artifacts.RunDirectory) -> pathlib.Path:
    """Returns where a run stores its sums: `sensitive/feature_sums`."""
    return directory.sensitive / "feature_sums"


def default_folder(dataset_name: str) -> pathlib.Path:
    """Returns the folder of a run of feature sums where the user names none."""
    return pathlib.Path(f"runs/{dataset_name}-feature_sums")


class StoredSums:
    """SENSITIVE: the feature sums of a run folder, with the encoder of their features.

    Attributes:
        dataset: what is publicly known of the data.
        unit: what adds vectors of an L2 norm of at most 1 together, "record" or "owner".
        digest: SHA-256 of all that is stored; the ledger knows the sums by it.
        records: which records were summed.
        representation: of the features, by its name.
        sums: int64 `[num_features + 1, num_classes]`, exact. SENSITIVE.
        cluster_counts: for each resolution of clusters, by their number, int64 `[num_clusters,
            num_classes]`, exact. SENSITIVE.
        centres: of these clusters, `[num_clusters, num_features]`; public.
        encoder_digest: of the weights of the features' encoder; public.
        representation_digest: of the encoder, its description included; public.
        scale: factors by which features vary about equally in the pool, `[num_features]`; public.
        num_teachers: None: no teacher was trained.
    """

    num_teachers: None = None

    def __init__(self, folder: pathlib.Path) -> None:
        """Reads what `FeatureSums.fit` stored.

        Raises:
            ValueError: if there is nothing at `folder`, or it is broken.
        """
        try:
            described = artifacts.read_json(folder / DESCRIPTION)
            arrays = artifacts.read_arrays(folder / SUMS)
            self._loaded = tf.saved_model.load(str(folder / ENCODER))
            weights = [one.numpy() for one in self._loaded.public_weights]
            self.dataset = Dataset.from_dict(described["dataset"])
            self.unit = str(described["unit"])
            self.representation = str(described["representation"])
            self.representation_digest = str(described["encoder"])
            self.records = RecordSet.from_dict(described["record_set"])
            self.sums = sensitive.FeatureSums(arrays["sums"])
            self.scale = arrays["scale"]
            numbers = arrays["resolutions"].tolist()
            self.centres = {one: arrays[f"centres_{one}"] for one in numbers}
            self.cluster_counts = {
                one: sensitive.FeatureSums(arrays[f"counts_{one}"]) for one in numbers
            }
        except FileNotFoundError as error:
            raise ValueError(
                f"feature sums: expected some in {folder}, got none; {EARLIER_COMMAND}"
            ) from error
        except Exception as error:  # TensorFlow and JSON each raise their own kinds
            raise ValueError(
                f"feature sums: expected complete ones in {folder}, got broken ones"
            ) from error
        self.encoder_digest = artifacts.digest_arrays(weights)
        text = json.dumps(described, sort_keys=True) + self.encoder_digest
        text += artifacts.digest_arrays(arrays[name] for name in sorted(arrays))
        self.digest = hashlib.sha256(text.encode()).hexdigest()

    @property
    def signature(self) -> Any:
        """The stored encoder's graph: raw inputs by name to `features` `[batch, num_features]`."""
        return self._loaded.signatures["features"]

    def features(self, inputs: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Returns features `[num_inputs, num_features]` of raw inputs `[num_inputs, *input_shape]`.

        Public, as the inputs are.

        Raises:
            ValueError: if the inputs have another shape, or are not finite.
        """
        check_inputs(inputs, self.dataset)
        encode, name = self.signature, self.dataset.input_name
        parts = [
            encode(**{name: tf.constant(inputs[start : start + BATCH], self.dataset.input_type)})
            for start in range(0, len(inputs), BATCH)
        ]
        return np.concatenate([part["features"].numpy() for part in parts])

    def vectors(self, inputs: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Returns what public inputs would add to sums, `[num_inputs, num_features + 1]`."""
        features = self.features(inputs)
        vectors = np.empty((len(features), features.shape[1] + 1), np.float32)
        for start in range(0, len(features), PART):
            part = slice(start, start + PART)
            vectors[part] = record_vectors(features[part], self.scale)
        return vectors


@dataclasses.dataclass(frozen=True)
class RecordSums:
    """SENSITIVE: exact sums of private records.

    Attributes:
        features: `sums_by_class` of their vectors.
        counts: `counts_by_cluster`, by number of clusters.
    """

    features: npt.NDArray[np.int64] = dataclasses.field(repr=False)
    counts: dict[int, npt.NDArray[np.int64]] = dataclasses.field(repr=False)


class _EncoderModule(tf.Module):
    """The graph that is saved: raw inputs to features float32 `[batch, num_features]`."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder, self.public_weights = encoder, encoder.learnt
        dataset = encoder.dataset
        features_of = tf.autograph.experimental.do_not_convert(encoder)
        signature = tf.TensorSpec(
            [None, *dataset.input_shape], dataset.input_type, name=dataset.input_name
        )

        @tf.function(input_signature=[signature])
        def features(inputs: tf.Tensor) -> dict[str, tf.Tensor]:
            found = features_of(tf.cast(inputs, tf.float32))
            return {"features": tf.ensure_shape(found, [None, encoder.num_features])}

        self.features = features


def sums_of_records(
    examples: PrivateExamples,
    encoder: Encoder,
    centres: Mapping[int, npt.NDArray[np.float64]],
    reporting: Reporting = QUIET,
) -> RecordSums:
    """SENSITIVE: returns the exact sums of private records.

    What a record adds depends on that record and on public values alone; what an owner's records
    add together depends on these records alone (`pate_tf.teachers.on_features`).

    Args:
        examples: the private records; with owners, what each owner adds has a norm of at most 1.
        encoder: of their features.
        centres: of clusters, by their number.
        reporting: how progress is shown.
    """
    owners = examples.owners
    # The number of parts is fixed: where owners are protected, it may not follow from the records.
    parts = (
        partition.Partition(np.arange(len(examples)) % PARTS, PARTS)
        if owners is None
        else partition.owner_partition(owners, num_teachers=PARTS, seed=0)
    )
    shares, num_classes = parts.all_records(), examples.dataset.num_classes
    total = np.zeros((encoder.num_features + 1, num_classes), np.int64)
    counts = {number: np.zeros((number, num_classes), np.int64) for number in centres}
    with reporting.progress_bar("summing features of records", PARTS, "part") as advance:
        for part, features, labels in features_of_shares(
            examples, parts, range(PARTS), encoder, num_slots=1
        ):
            vectors = record_vectors(features, encoder.scale)
            of_part = None if owners is None else owners[shares[part]]
            total += sums_by_class(vectors, labels, num_classes=num_classes, owners=of_part)
            for number, each in centres.items():
                counts[number] += counts_by_cluster(
                    nearest_centres(vectors[:, :-1], each),
                    labels,
                    num_clusters=number,
                    num_classes=num_classes,
                    owners=of_part,
                )
            advance(1)
    return RecordSums(total, counts)


def centres_of(pool: Pool, encoder: Encoder) -> dict[int, npt.NDArray[np.float64]]:
    """Returns centres of a pool's clusters, by their number; public."""
    vectors = record_vectors(encoder.features(pool.inputs), encoder.scale)[:, :-1]
    return {len(one): one for one in cluster_centres(vectors, pool.dataset.num_classes)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SumsSettings:
    """How records become feature sums.

    Attributes:
        representation: of the pool; None for the default of the kind of data.
        seed: of the representation.
    """

    representation: Named | None = None
    seed: int = 0


def fit(
    settings: SumsSettings,
    examples: PrivateExamples,
    pool: Pool,
    *,
    directory: artifacts.RunDirectory,
    source: DataSource | None = None,
    reporting: Reporting = QUIET,
) -> StoredSums:
    """Computes feature sums and stores them below `sensitive/`, or returns those stored before.

    Args:
        settings: how records become sums.
        examples: the private records, with owners or without.
        pool: public inputs that a representation is learnt from.
        directory: the run folder.
        source: where the data come from, for `run.json`; None for arrays.
        reporting: how progress is shown.

    Raises:
        ValueError: if pool and records are not of one data set, the representation does not fit,
            or the folder can't be written or holds sums of other records or settings.
    """
    dataset, folder = examples.dataset, sums_folder(directory)
    if difference := pool.dataset.difference(dataset):
        raise ValueError(
            f"pool: expected inputs of the records' data set, got others: {difference}"
        )
    name = source_of(settings.representation) or default_of_teachers(dataset)
    check_representation(name, dataset)
    directory.check(files=[], folders=[artifacts.SENSITIVE, f"{artifacts.SENSITIVE}/{folder.name}"])
    with reporting.clock("training the representation"):
        encoder = encoder_of(pool, name, settings.seed, show_progress=reporting.verbose)
    owners = examples.owners
    described = {
        "dataset": dataset.to_dict(),
        "unit": "record" if owners is None else "owner",
        "representation": name_of(name),
        "encoder": encoder.digest,
        "records": artifacts.digest_array(examples.inputs),
        "labels": artifacts.digest_array(examples.labels),
        "owners": None if owners is None else hashlib.sha256(owners.tobytes()).hexdigest(),
    }
    if (folder / DESCRIPTION).exists():
        stored = artifacts.read_json(folder / DESCRIPTION)
        stored.pop("record_set", None)  # it follows from the records
        if differs := fingerprint.difference(stored, json.loads(json.dumps(described))):
            raise ValueError(
                f"{folder} holds other feature sums ({differs}); choose another folder or remove it"
            )
        return StoredSums(folder)
    described["record_set"] = RecordSet.of(examples.inputs).to_dict()
    scale = np.ones(encoder.num_features) if encoder.scale is None else encoder.scale
    centres = centres_of(pool, encoder)
    sums = sums_of_records(examples, encoder, centres, reporting)
    arrays = {"sums": sums.features, "scale": scale, "resolutions": np.array(list(centres))}
    arrays |= {f"centres_{number}": each for number, each in centres.items()}
    arrays |= {f"counts_{number}": each for number, each in sums.counts.items()}
    artifacts.make_sensitive_folder(directory.sensitive)
    RunDescription(
        method="feature_sums",
        data_name=dataset.name,
        num_classes=dataset.num_classes,
        unit=str(described["unit"]),
        representation=name_of(name),
        pool_size=len(pool),
        source={} if source is None else source.flags,
    ).write(directory)
    with artifacts.atomic_folder(folder) as temporary:
        module = _EncoderModule(encoder)
        tf.saved_model.save(
            module, str(temporary / ENCODER), signatures={"features": module.features}
        )
        artifacts.write_arrays(temporary / SUMS, arrays, private=True)
        artifacts.write_json(temporary / DESCRIPTION, described, private=True)
        artifacts.make_private(temporary)
    return StoredSums(folder)


class FeatureSums:
    """SENSITIVE: feature sums of private records, for a `Labeller`; no teacher is trained.

    >>> import pate_tf
    >>> data = pate_tf.datasets.load("digits")
    >>> sums = pate_tf.FeatureSums(directory=folder / "sums", representation="raw")
    >>> sums = sums.fit(data.private, data.pool)
    >>> with pate_tf.Labeller(sums, epsilon=8.0, delta=1e-5) as labeller:
    ...     labels = labeller.label(data.pool)
    >>> labels.cost.epsilon <= 8.0
    True

    Each record adds a vector of L2 norm at most 1 to the sum of its class; with owners, all records
    of an owner together do. What one adds depends on no other record or owner, but on the public
    pool and settings (docs/theory.md, Proposition D8). Nothing is charged before a `Labeller`
    releases the sums with noise.

    Attributes:
        directory: the run folder; sums and ledger lie below its `sensitive/`.
    """

    def __init__(
        self,
        *,
        directory: str | os.PathLike[str] | None = None,
        representation: Named | Representation | None = None,
        seed: int = 0,
        verbose: bool = False,
    ) -> None:
        """Takes the settings; nothing is computed or written before `fit`.

        Args:
            directory: of the run. Default: `runs/NAME-feature_sums` in the working directory.
            representation: what maps an input to features: a `pate_tf.Representation`, or what one
                is made of. Default: "contrastive+patches" for images, "raw" otherwise.
            seed: of a representation that is given by name; not of the privacy noise.
            verbose: whether progress bars are shown.
        """
        self.directory = None if directory is None else pathlib.Path(directory)
        if isinstance(representation, Representation):
            seed = representation.seed
        self._settings = SumsSettings(representation=source_of(representation), seed=seed)
        self._verbose = verbose
        self._stored: StoredSums | None = None

    def fit(self, private: PrivateExamples, pool: Pool) -> Self:
        """Sums the records' features, or reads the sums that an earlier call stored; returns self.

        Args:
            private: `data.private`. With owners, what an owner's records add is clipped together.
            pool: `data.pool`, which the representation is learnt from.

        Raises:
            ValueError: if data, settings and directory do not fit each other.
        """
        for name, given, kind in (("private", private, PrivateExamples), ("pool", pool, Pool)):
            if not isinstance(given, kind):
                raise ValueError(f"{name}: expected data.{name}, got {type(given).__name__}")
        root = self.directory or default_folder(private.dataset.name)
        self._stored = fit(
            self._settings,
            private,
            pool,
            directory=artifacts.RunDirectory(root),
            reporting=reporting(self._verbose),
        )
        self.directory = root
        return self

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> Self:
        """Returns the sums that `fit` or `train_student.py` left in a directory.

        Raises:
            ValueError: if there are none.
        """
        found = cls(directory=directory)
        found._stored = StoredSums(sums_folder(artifacts.RunDirectory(pathlib.Path(directory))))
        return found

    @property
    def stored(self) -> StoredSums:
        """The sums, for `pate_tf.api`.

        Raises:
            ValueError: if they were not computed yet.
        """
        if self._stored is None:
            raise ValueError(f"feature sums: expected fitted ones, got none: {EARLIER_COMMAND}")
        return self._stored

    identified = stored  # what the ledger belongs to, for `Labeller`

    def for_pool(self, pool: Pool) -> StoredSums:
        """Returns what labels of a pool come from, for `Labeller`."""
        del pool
        return self.stored

    def __repr__(self) -> str:
        state = "not fitted yet" if self._stored is None else f"{self._stored.unit}s, sensitive"
        return f"FeatureSums(<{state}>)"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SumsSource:
    """Where a student's run takes feature sums from.

    Attributes:
        settings: how records become sums.
        data: where the private records are read; None for the sums that the folder stores.
        folder: the run folder; None for `runs/DATASET-feature_sums`.
    """

    settings: SumsSettings = SumsSettings()
    data: DataSource | None = None
    folder: pathlib.Path | None = None

    def directory(self, dataset_name: str) -> artifacts.RunDirectory:
        """Returns the run folder of the sums."""
        return artifacts.RunDirectory(self.folder or default_folder(dataset_name))

    def load(self, pool: Pool, reporting: Reporting) -> StoredSums:
        """Returns the sums; reads the private records where the data are named.

        Raises:
            ValueError: if there are none, or something does not fit.
        """
        directory = self.directory(pool.dataset.name)
        if self.data is None:
            stored = StoredSums(sums_folder(directory))
            name = source_of(self.settings.representation)
            if name not in (None, stored.representation):
                raise ValueError(
                    f"representation: expected {stored.representation}, of the sums in "
                    f"{directory.root}, got {name}"
                )
            return stored
        run = described_run(directory.root)
        if run is not None and run.method != "feature_sums":
            raise ValueError(
                f"method: expected pate for {directory.root}, a run of teachers, got feature_sums"
            )
        return fit(
            self.settings,
            self.data.load_private(reporting),
            pool,
            directory=directory,
            source=self.data,
            reporting=reporting,
        )
