"""Feature sums: for each class, the sum of the feature vectors of the private records.

No teacher is trained. A public representation maps each record to a vector with an L2 norm of at
most 1, and the vectors of each class are summed. The exact sums are stored in the sensitive part of
a run folder. `pate_tf.Labeller` charges their privacy cost, adds noise, and infers labels of the
public pool from the noisy sums.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import numpy.typing as npt

from pate_tf.accounting.conversions import LATTICE
from pate_tf.core import artifacts
from pate_tf.core.checks import IntArray
from pate_tf.core.dataset import CLASS, Dataset, check_inputs, target_rows
from pate_tf.core.public import Pool, cluster_numbers
from pate_tf.core.reporting import QUIET, Reporting, reporting
from pate_tf.core.sensitive import PrivateExamples, SumsByClass, owner_partition
from pate_tf.core.source import (
    Digests,
    PrivateSource,
    Records,
    check_same_settings,
    content_sum,
    record_digests,
)
from pate_tf.data.named_function import Named, name_of
from pate_tf.ledger.rollback_guard import warn_of_same_records
from pate_tf.models.encoder import (
    Encoder,
    SavedEncoder,
    learnt_digest,
    record_features,
    record_vectors,
    save_encoder,
)
from pate_tf.postprocessing.label_propagation import cluster_centres, nearest_centres
from pate_tf.postprocessing.regression import weights_of_rounds
from pate_tf.release import exact_sums
from pate_tf.representations import catalogue
from pate_tf.teachers.run_folder import RunDescription, described_run

if TYPE_CHECKING:
    from pate_tf.teachers.voters import Voter

PARTS: Final = 16  # number of groups of owners that are summed one after another, to limit memory
MAX_WITH_MOMENTS: Final = 1_024  # maximum number of features if second moments are released
PART: Final = 4_096  # number of public inputs that are processed together, to limit memory
SUMS = "sums.npz"
ENCODER = "encoder"
DESCRIPTION = "description.json"
VECTORS: Final = "vectors.npz"  # file with the vector of each record, for releases in rounds
IN_VECTORS: Final = ("steps", "labels", "moments")
EARLIER_COMMAND: Final = "Call fit(data.private, data.pool), or run `pate student` with the data."


def sums_folder(directory: artifacts.RunDirectory) -> pathlib.Path:
    """Returns the folder for the sums of a run: `sensitive/feature_sums`."""
    return directory.root / artifacts.SENSITIVE / "feature_sums"


def default_folder(dataset_name: str) -> pathlib.Path:
    """Returns the default run folder for feature sums."""
    return pathlib.Path(f"runs/{dataset_name}-feature_sums")


def digest_of(
    description: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]], encoder_digest: str
) -> str:
    """Returns the digest of stored sums, which covers all files in their folder."""
    text = json.dumps(description, sort_keys=True) + encoder_digest
    text += artifacts.digest_arrays(arrays[name] for name in sorted(arrays))
    return hashlib.sha256(text.encode()).hexdigest()


@functools.lru_cache(maxsize=1)
def pool_centres(encoder: Encoder, pool: Pool) -> dict[int, npt.NDArray[np.float64]]:
    """Clusters the features of the pool's inputs, once for each number of clusters.

    Returns:
        A dictionary from each number of clusters to the cluster centers, `[num_clusters,
        num_features]`. It is empty unless the data set has classes and an image augmentation, and
        the encoder is not a user's model.
    """
    is_class = pool.dataset.target == CLASS
    if not pool or encoder.is_frozen or pool.dataset.augmentation == "none" or not is_class:
        return {}
    vectors = record_vectors(encoder.features(pool.inputs), encoder.scale)[:, :-1]
    numbers = cluster_numbers(len(pool), pool.dataset.num_classes)
    return dict(zip(numbers, cluster_centres(vectors, numbers), strict=True))


@dataclasses.dataclass(frozen=True)
class Summands:
    """Defines the numbers that one record (or owner) adds to the table of feature sums.

    The table, int64 `[num_rows, num_classes]`, is the sum of all contributions. The table begins
    with the rows of `sums_by_class`. Then it contains, for each number of clusters, the counts of
    records by cluster and class, in units of 1 / LATTICE. A record adds 1 to a single cell of these
    counts. The n records of an owner together add at most 1: each record adds 1 / n, truncated to a
    multiple of 1 / LATTICE. So replacing a record or an owner changes the counts for one number of
    clusters by at most 2 in L1 norm. With second moments, the table is the result of
    `moments_by_class`.
    For numbers and several labels, the table contains sums of `target_rows` and no clusters.

    Attributes:
        dataset: data set of the records.
        scale: factor that multiplies each feature, `[num_features]`.
        centres: maps each number of clusters to the pool's cluster centers, `[num_clusters,
            num_features]`.
        has_moments: whether the table includes second moments. They are needed if there is no pool
            and the sums are released in one round.
        groups: see `Encoder.groups`.
    """

    dataset: Dataset
    scale: npt.NDArray[np.float64]
    centres: Mapping[int, npt.NDArray[np.float64]]
    has_moments: bool = False
    groups: IntArray | None = None

    @classmethod
    def of(cls, encoder: Encoder, pool: Pool | None) -> Self:
        """Defines the contributions of records to the table, given an encoder and a public pool.

        If `pool_centres` returns clusters, the table also contains the counts of records by cluster
        and class. For a user's encoder, `pool_centres` returns no clusters, because a linear model
        is more accurate than clusters.
        """
        dataset = encoder.dataset
        centres = {} if pool is None else pool_centres(encoder, pool)
        scale = np.ones(encoder.num_features) if encoder.scale is None else encoder.scale
        has_moments = pool is not None and not pool
        return cls(dataset, scale, centres, has_moments=has_moments, groups=encoder.groups)

    @property
    def num_classes(self) -> int:
        """Number of columns with sums by class."""
        return self.dataset.num_classes

    @property
    def num_rows(self) -> int:
        """Number of rows of the table."""
        return len(self.scale) + 1 + sum(self.centres)

    @property
    def num_columns(self) -> int:
        """Number of columns of the table."""
        return self.num_classes + self.has_moments * self.num_rows

    @property
    def has_products(self) -> bool:
        """Whether a record adds to several columns of the table instead of its class's column."""
        return self.has_moments or self.dataset.target != CLASS

    def of_products(
        self,
        vectors: npt.NDArray[np.float64],
        labels: npt.NDArray[Any],
        owners: npt.NDArray[np.generic] | None = None,
    ) -> IntArray:
        """Computes the table in the case that a record adds to several columns. SENSITIVE."""
        targets = target_rows(labels, self.dataset)
        add_up = exact_sums.moments_by_class if self.has_moments else exact_sums.sums_of_products
        return add_up(vectors, targets, owners)

    def of_records(self, vectors: npt.NDArray[np.float64], labels: npt.NDArray[Any]) -> IntArray:
        """Computes the table for records without owners. SENSITIVE.

        Args:
            vectors: feature vectors, from `record_vectors`, `[num_records, num_features + 1]`.
            labels: class of each record, `[num_records]`.
        """
        if self.has_products:
            return self.of_products(vectors, labels)
        tables = [exact_sums.sums_by_class(vectors, labels, num_classes=self.num_classes)]
        for centres in self.centres.values():
            counts = np.zeros((len(centres), self.num_classes), np.int64)
            np.add.at(counts, (nearest_centres(vectors[:, :-1], centres), labels), LATTICE)
            tables.append(counts)
        return np.concatenate(tables)

    def of_owned(self, features: npt.NDArray[np.float32]) -> IntArray:
        """Returns each record's contribution to its owner's total, `[num_records, num_rows]`."""
        vectors = record_vectors(features, self.scale)
        clusters = [
            np.eye(number, dtype=np.int64)[nearest_centres(vectors[:, :-1], centres)]
            for number, centres in self.centres.items()
        ]
        return np.concatenate([exact_sums.owner_steps(vectors), *clusters], axis=1)

    def of_owners(self, totals: IntArray, pairs: IntArray) -> IntArray:
        """Computes the table for owners; each owner adds a norm of at most 1. SENSITIVE.

        Args:
            totals: sums of `of_owned` over an owner's records of one class, `[num_pairs,
                num_rows]`. There is a row for each owner and each class of the owner's records.
            pairs: owner and class of each row of `totals`, as the index of the owner times
                `num_classes`, plus the class; ascending.
        """
        owners = pairs // self.num_classes
        classes = pairs % self.num_classes
        first = len(self.scale) + 1
        sums = exact_sums.sums_of_owners(
            totals[:, :first], owners, classes, num_classes=self.num_classes
        )
        if not self.centres:
            return sums
        counts = totals[:, first:]
        # For each number of clusters, a record is in exactly one cluster.
        records = np.zeros(owners.max(initial=-1) + 1, np.int64)
        np.add.at(records, owners, counts[:, : next(iter(self.centres))].sum(axis=1))
        shared = np.zeros((self.num_classes, counts.shape[1]), np.int64)
        np.add.at(shared, classes, counts * (LATTICE // np.maximum(records, 1))[owners, None])
        return np.concatenate([sums, shared.T])


def sums_of_records(
    examples: PrivateExamples,
    encoder: Encoder,
    summands: Summands,
    reporting: Reporting = QUIET,
    *,
    digests: Digests | None = None,
    vectors: npt.NDArray[np.int16] | None = None,
) -> IntArray:
    """SENSITIVE: computes the exact feature sums of private records, as the table of `Summands`.

    The contribution of a record depends only on that record and on public values. The contribution
    of an owner depends only on the owner's records and on public values, but not on the order of
    the records.

    Args:
        examples: private records. With owners, the contribution of each owner has a norm of at most
            1.
        encoder: encoder that computes features from raw inputs.
        summands: defines the contribution of each record.
        reporting: object that shows progress and warnings.
        digests: `record_digests` of the inputs; None to compute them if they are needed.
        vectors: array into which this function writes `vector_steps` of each record; None if they
            are not needed. It must be None with owners.
    """
    inputs = examples.inputs
    labels = examples.labels
    owners = examples.owners
    total = np.zeros((summands.num_rows, summands.num_columns), np.int64)
    # If the unit is an owner, the number of records is private, and no progress bar may show it.
    steps, unit = (len(examples), "record") if owners is None else (PARTS, "part")
    task = "summing features of records"
    if encoder.places == 1:
        task += " one by one, because the model may mix inputs of a batch"
    with reporting.progress_bar(desc=task, total=steps, unit=unit) as bar:
        if owners is None:
            for rows, features in record_features(encoder, inputs, digests=digests):
                some = record_vectors(features, summands.scale)
                total += summands.of_records(some, labels[rows])
                if vectors is not None:
                    vectors[rows] = exact_sums.vector_steps(some)
                bar.update(len(rows))
            return total
        parts = owner_partition(owners, num_teachers=PARTS, seed=0)
        for part in parts.all_records():
            _, owner = np.unique(owners[part], return_inverse=True)
            if summands.has_products:
                of_part = np.zeros((len(part), summands.num_rows))
                for rows, features in record_features(encoder, inputs, part, digests=digests):
                    of_part[np.searchsorted(part, rows)] = record_vectors(features, summands.scale)
                total += summands.of_products(of_part, labels[part], owner)
                bar.update()
                continue
            pairs, place = np.unique(
                owner * summands.num_classes + labels[part], return_inverse=True
            )
            totals = np.zeros((len(pairs), summands.num_rows), np.int64)
            for rows, features in record_features(encoder, inputs, part, digests=digests):
                np.add.at(totals, place[np.searchsorted(part, rows)], summands.of_owned(features))
            total += summands.of_owners(totals, pairs)
            bar.update()
    return total


class FeatureSums:
    """SENSITIVE: feature sums of private records, which a `Labeller` can use instead of teachers.

    >>> import pate_tf
    >>> data = pate_tf.Data.load("digits")
    >>> sums = pate_tf.FeatureSums(directory=folder / "sums", representation="raw")
    >>> sums = sums.fit(data.private, data.pool)
    >>> with pate_tf.Labeller(sums, epsilon=8.0, delta=1e-5) as labeller:
    ...     labels = labeller.label(data.pool)
    >>> labels.cost.epsilon <= 8.0
    True

    Each record adds a feature vector with an L2 norm of at most 1 to the sum of its class. With
    owners, the total contribution of all records of an owner has a norm of at most 1. The
    contribution of a record or owner depends only on this record or owner, the public pool and the
    settings (docs/proofs/theory.md, Proposition D8). Nothing is charged before a `Labeller`
    releases the sums with noise.

    Attributes:
        directory: run folder; the subfolder `sensitive/` contains the sums and the ledger.
        reporting: object that shows progress and warnings.
        dataset: public facts about the data. This and all following attributes exist only after
            `fit` or `load`.
        unit: unit of privacy, "record" or "owner". The contribution of a unit has an L2 norm of at
            most 1.
        digest: SHA-256 digest of everything that is stored. It identifies the sums in a ledger.
        num_records: number of records. SENSITIVE if the unit is an owner.
        source: the named private data source that is charged for releases; None if they are charged
            to the run folder itself.
        description: description of the sums as JSON values. SENSITIVE.
        representation: name of the representation.
        sums: exact sums, int64 `[num_features + 1, num_classes]`. SENSITIVE.
        cluster_counts: maps each number of clusters to exact counts of records, int64
            `[num_clusters, num_classes]`. SENSITIVE.
        encoder: encoder that computes features from raw inputs; public.
        encoder_digest: digest of the encoder's weights; public.
        representation_digest: digest of the encoder, including its description; public.
        summands: defines the contribution of each record; public.
        has_vectors: whether the vector of each record is stored, so that sums can be released in
            several rounds.
        num_teachers: always None, because there are no teachers.
    """

    num_teachers = None
    digest: str = ""
    source: PrivateSource | None

    def __init__(
        self,
        *,
        directory: str | os.PathLike[str] | None = None,
        representation: Named | catalogue.Representation | None = None,
        seed: int = 0,
        verbose: bool | Reporting = False,
    ) -> None:
        """Stores the settings. Nothing is computed or written before `fit`.

        Args:
            directory: run folder. Default: `runs/NAME-feature_sums` in the working directory.
            representation: maps inputs to features: a `pate_tf.Representation`, or a name or
                function that `pate_tf.Representation` accepts. Default: "contrastive+patches" for
                gray images, "patches+wavelets" for color images, "bins" for tables, "lsa" for
                texts. Without a pool, it is chosen as described in
                docs/explanation/feature_sums.md.
            seed: seed of a representation that is given by name. It does not affect the privacy
                noise.
            verbose: whether progress bars are shown.
        """
        self.directory = None if directory is None else pathlib.Path(directory)
        self._run = artifacts.RunDirectory(self.directory or pathlib.Path())
        self.reporting = reporting(verbose)
        # Identifies the records to which this object was fitted; None for sums that were loaded.
        self.split: tuple[object, bool] | None = None
        if isinstance(representation, catalogue.Representation):
            seed = representation.seed
        self._seed = seed
        self._name = catalogue.source_of(representation)

    def settle(self, dataset: Dataset, planned: Named | None = None) -> tuple[Named | None, int]:
        """Chooses the run folder and the representation if the user did not set them.

        Args:
            dataset: data set of the records.
            planned: representation to use if neither the settings nor stored sums name a
                representation.

        Returns:
            The representation, or None if it is not chosen yet; and its seed.
        """
        self.directory = self.directory or default_folder(dataset.name)
        self._run = artifacts.RunDirectory(self.directory)
        run = described_run(self.directory)
        if self._name is None and run is not None and run.method == "feature_sums":
            self._name = run.representation
        self._name = self._name or planned
        return self._name, self._seed

    def fit(
        self, private: PrivateExamples, pool: Pool, *, flags: Mapping[str, Any] | None = None
    ) -> Self:
        """Sums the features of private records, or loads sums from an earlier call; returns self.

        Stored sums are used even if the records have changed, because comparing the records would
        reveal something about private data. A warning shows the date of the stored sums. To sum
        other records, use another directory.

        Args:
            private: the private records, `data.private`. With owners, the total of each owner's
                records is clipped.
            pool: the public inputs, `data.pool`, on which the representation is trained. If the
                pool is empty, features are computed from declared ranges of values. For owners,
                numbers and several labels, second moments are then summed as well.
            flags: flags of the data for `run.json`, see `DataSource.flags`.

        Raises:
            ValueError: if the data do not match the settings or each other, or if the stored sums
                have different settings, a source with a different name or, without owners, a
                different number of records.
        """
        for name, value, kind in (("private", private, PrivateExamples), ("pool", pool, Pool)):
            if not isinstance(value, kind):
                raise ValueError(f"{name} must be data.{name}, got {type(value).__name__}")
        sensitive = self._run.sensitive
        owners = private.owners
        has_vectors = owners is None and private.dataset.target == CLASS
        encoder = self.encoder_for(private.dataset, pool, has_vectors=has_vectors)
        size = private.public_size
        described = self.described(encoder, has_owners=owners is not None)
        # The number of records is private if the unit is an owner.
        public = described if size is None else {**described, "num_records": size}
        earlier = self.digest
        if self.is_stored(public, private.source):
            # Other sums may be of other records.
            self.split = self.split if self.digest == earlier else None
            self.reporting.warn_of_stored(sums_folder(self._run) / DESCRIPTION, "feature sums")
            return self
        digests = record_digests(private.inputs)
        content = content_sum(digests, private.labels).tobytes()
        warn_of_same_records(private.source, content, sensitive)
        summands = Summands.of(encoder, pool)
        vectors = None
        for_rounds = dict[str, npt.NDArray[Any]]()
        if has_vectors:
            summands = dataclasses.replace(summands, has_moments=False)
            vectors = np.zeros((len(digests), len(summands.scale) + 1), np.int16)
        table = sums_of_records(
            private, encoder, summands, self.reporting, digests=digests, vectors=vectors
        )
        if vectors is not None:
            moments = np.zeros((0, 0))
            if pool:
                of_pool = record_vectors(encoder.features(pool.inputs), summands.scale)
                moments = of_pool.T @ of_pool / len(of_pool)
            for_rounds = {"steps": vectors, "labels": private.labels, "moments": moments}
        self.split = private.split
        stored = self.store(
            described,
            encoder,
            summands,
            table,
            for_rounds=for_rounds,
            records=Records(num_records=len(digests), source=private.source),
            pool_size=len(pool),
            flags=flags or {},
        )
        if pool:
            stored.encoder.remember(pool.inputs, encoder.features(pool.inputs))
        return stored

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> Self:
        """Returns the sums that `fit` or `pate student` stored in a directory.

        Raises:
            ValueError: if the directory contains no sums, or damaged sums.
        """
        return cls(directory=directory)._read()

    # Both `fit` and Beam pipelines use the following methods.

    def encoder_for(self, dataset: Dataset, pool: Pool, *, has_vectors: bool = False) -> Encoder:
        """Checks the pool and the folder, and returns the encoder that computes records' features.

        Args:
            dataset: data set of the records.
            pool: public pool, maybe empty.
            has_vectors: whether the vector of each record will be stored, for several rounds.
                Otherwise, second moments are summed if there is no pool.

        Raises:
            ValueError: for the same reasons as `fit`.
        """
        if difference := pool.dataset.difference(dataset):
            raise ValueError(f"pool must have the data set of the records, got {difference}")
        self.settle(dataset)
        self._name = self._name or catalogue.default_of_sums(
            dataset, has_pool=len(pool) > 0, in_rounds=has_vectors
        )
        catalogue.check_representation(self._name, dataset, has_pool=len(pool) > 0)
        folder = f"{artifacts.SENSITIVE}/{sums_folder(self._run).name}"
        self._run.check(files=[], folders=[artifacts.SENSITIVE, folder])
        with self.reporting.clock("training the representation"):
            encoder = catalogue.encoder_of(pool, self._name, self._seed)
        if not (pool or has_vectors) and encoder.num_features > MAX_WITH_MOMENTS:
            raise ValueError(
                f"representation must have at most {MAX_WITH_MOMENTS:,} features without public "
                f"inputs, because products of all pairs are released, got "
                f"{encoder.num_features:,}. In the schema, use `text = 512` or fewer categories."
            )
        return encoder

    def described(self, encoder: Encoder, *, has_owners: bool) -> dict[str, Any]:
        """Returns the public facts that define the sums, as JSON values.

        Args:
            encoder: encoder that computes features from raw inputs.
            has_owners: whether the unit of privacy is an owner.
        """
        described = {
            "dataset": encoder.dataset.to_dict(),
            "unit": "owner" if has_owners else "record",
            "representation": name_of(self._name or catalogue.default_of_sums(encoder.dataset)),
            "encoder": encoder.digest,
        }
        values: dict[str, Any] = json.loads(json.dumps(described))
        return values

    def is_stored(self, described: Mapping[str, Any], source: PrivateSource | None = None) -> bool:
        """Loads the sums in the run folder, if there are any; returns whether there are sums.

        Args:
            described: the expected result of the method `described`. Stored sums must have the same
                public facts. Records are not compared.
            source: data source of the records. If it has a name, the stored sums must have the same
                source.

        Raises:
            ValueError: if the settings or the named source of the stored sums differ.
        """
        folder = sums_folder(self._run)
        if not (folder / DESCRIPTION).exists():
            return False
        stored = artifacts.read_json(folder / DESCRIPTION)
        compared = {name: stored.get(name) for name in described}
        check_same_settings(compared, described, folder=folder, holds="feature sums")
        self._read()
        if source is not None:
            source.check_stored(self.source, folder)
        return True

    def store(
        self,
        described: Mapping[str, Any],
        encoder: Encoder,
        summands: Summands,
        table: IntArray,
        *,
        records: Records,
        pool_size: int | None,
        flags: Mapping[str, Any],
        num_left_out: int = 0,
        for_rounds: Mapping[str, npt.NDArray[Any]] | None = None,
    ) -> Self:
        """Writes feature sums to `sensitive/` atomically, and returns self.

        Args:
            described: public facts about the sums, from the method `described`.
            encoder: encoder of the features.
            summands: defines the contribution of each record.
            table: sum of the contributions of all records, see `Summands`.
            records: the number of records and their data source. The number includes records that
                were left out.
            pool_size: number of public samples in the pool.
            flags: flags of the data for `run.json`, see `DataSource.flags`.
            num_left_out: number of records that were left out because they do not fit the schema.
                They are counted as records that add 0, so that the public number of records does
                not reveal whether a record fits.
            for_rounds: the vector and label of each record, and the pool's second moments, for a
                release in several rounds. None or empty if only one round is possible.
        """
        artifacts.make_sensitive_folder(self._run.sensitive)
        artifacts.remove_abandoned(self._run.root)
        RunDescription(
            data_name=described["dataset"]["name"],
            unit=described["unit"],
            representation=described["representation"],
            pool_size=pool_size,
            source=flags,
        ).write(self._run)
        numbers = list(summands.centres)
        ends = len(summands.scale) + 1 + np.cumsum([0, *numbers])[:-1]
        sums, *counts = np.split(table, ends)
        arrays = {"sums": sums, "scale": summands.scale, "resolutions": np.array(numbers)}
        if summands.groups is not None:
            arrays["groups"] = summands.groups
        for number, counted in zip(numbers, counts, strict=True):
            arrays[f"centres_{number}"] = summands.centres[number]
            arrays[f"counts_{number}"] = counted
        # The random number ensures that the ledger never confuses these sums with other sums.
        named = {"records": [secrets.token_hex(32)], **described}
        target = sums_folder(self._run)
        with (
            contextlib.suppress(FileExistsError),  # if another process stored its sums first
            artifacts.atomic_folder(target, replace=False) as temporary,
        ):
            save_encoder(temporary / ENCODER, encoder)
            encoder_digest = learnt_digest(encoder.learnt)
            artifacts.write_arrays(temporary / SUMS, arrays, private=True)
            if for_rounds:
                artifacts.write_arrays(temporary / VECTORS, for_rounds, private=True)
            full = {**named, **dataclasses.asdict(records), "left_out": num_left_out}
            if for_rounds:
                full["steps"] = artifacts.digest_arrays(for_rounds[name] for name in IN_VECTORS)
            full["digest"] = digest_of(full, arrays, encoder_digest)
            artifacts.write_json(temporary / DESCRIPTION, full, private=True)
            artifacts.make_private(temporary)
        self._read()
        if self.description["records"] != named["records"]:
            self.split = None  # the other process may have summed other records
        return self

    def _read(self) -> Self:
        """Loads the files that `store` wrote; raises ValueError if they are missing or damaged."""
        folder = sums_folder(self._run)
        try:
            described = artifacts.read_json(folder / DESCRIPTION)
            arrays = artifacts.read_arrays(folder / SUMS)
            self.dataset = Dataset.from_dict(described["dataset"])
            self.encoder = SavedEncoder(folder / ENCODER, self.dataset)
            self.encoder_digest = self.encoder.digest
            self.unit = str(described["unit"])
            self.representation = str(described["representation"])
            self.representation_digest = str(described["encoder"])
            self.encoder.scale = arrays["scale"]
            self.encoder.groups = arrays.get("groups")
            self.encoder.is_frozen = self.is_frozen
            records = Records.from_dict(described)
            self.num_records = records.num_records
            self.source = records.source
            self.sums = SumsByClass(arrays["sums"])
            numbers = arrays["resolutions"].tolist()
            centres = {number: arrays[f"centres_{number}"] for number in numbers}
            has_moments = arrays["sums"].shape[1] > self.dataset.num_classes
            self.summands = Summands(
                dataset=self.dataset,
                scale=arrays["scale"],
                centres=centres,
                has_moments=has_moments,
                groups=arrays.get("groups"),
            )
            self.cluster_counts = {
                number: SumsByClass(arrays[f"counts_{number}"]) for number in numbers
            }
            digest = described.pop("digest")
            if digest != digest_of(described, arrays, self.encoder_digest):
                raise ValueError("sums do not match their digest")
        except FileNotFoundError as error:
            raise ValueError(f"{folder} contains no feature sums. {EARLIER_COMMAND}") from error
        except Exception as error:  # TensorFlow and JSON raise different exceptions.
            raise ValueError(f"the feature sums in {folder} are incomplete or damaged") from error
        self.description = described
        self.digest = digest
        self.has_vectors = "steps" in described
        self.__dict__.pop("_of_single_records", None)
        return self

    @property
    def has_stored_vectors(self) -> bool | None:
        """Whether the run folder has stored vectors of records; None if it has no sums yet."""
        path = sums_folder(self._run) / DESCRIPTION
        return "steps" in artifacts.read_json(path) if path.exists() else None

    @property
    def identified(self) -> Self:
        """This object, after a check that it was fitted.

        Raises:
            ValueError: if it was not fitted, so there is no digest that identifies it in a ledger.
        """
        if not self.digest:
            raise ValueError(f"feature sums are not fitted. {EARLIER_COMMAND}")
        return self

    def for_pool(self, pool: Pool) -> Self:
        """Returns this object for every pool; the method exists because `Teachers` also has it."""
        return self.identified

    @property
    def is_frozen(self) -> bool:
        """Whether the encoder is a user's model that was trained on other data."""
        return not catalogue.is_known(self.representation)

    def __repr__(self) -> str:
        state = f"{self.unit}s, sensitive" if self.digest else "not fitted yet"
        return f"FeatureSums(<{state}>)"

    @property
    def table(self) -> IntArray:
        """The exact sums and cluster counts as one table; see `Summands`. SENSITIVE."""
        counts = [counts.values for counts in self.cluster_counts.values()]
        return np.concatenate([self.sums.values, *counts])

    def vectors(self, inputs: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Maps public inputs to their `record_vectors`, `[num_inputs, num_features + 1]`.

        Raises:
            ValueError: if the shape of the inputs is wrong, or the inputs are not finite.
        """
        check_inputs(inputs, self.dataset)
        features = self.encoder.features(inputs)
        vectors = np.empty((len(features), features.shape[1] + 1), np.float32)
        for start in range(0, len(features), PART):
            part = slice(start, start + PART)
            vectors[part] = record_vectors(features[part], self.summands.scale)
        return vectors

    @functools.cached_property
    def _of_single_records(self) -> tuple[npt.NDArray[np.int16], IntArray, npt.NDArray[np.float64]]:
        """Loads the vectors and labels of all records, and the pool's second moments. SENSITIVE."""
        path = sums_folder(self._run) / VECTORS
        try:
            arrays = artifacts.read_arrays(path)
            vectors, labels, moments = (arrays[name] for name in IN_VECTORS)
        except Exception as error:
            raise ValueError(f"feature sums: {path} is missing or damaged") from error
        digest = artifacts.digest_arrays((vectors, labels, moments))
        if digest != self.description.get("steps"):
            raise ValueError(f"feature sums: {path} belongs to other sums")
        return vectors, labels, moments

    @property
    def moments(self) -> npt.NDArray[np.float64]:
        """The second moments of the pool's vectors, `[width, width]`; empty without a pool. Public.

        Raises:
            ValueError: if the stored vectors are damaged or do not belong to the sums.
        """
        return self._of_single_records[2]

    def residuals(self, values: IntArray, noise: float, num_rounds: int) -> IntArray:
        """Returns the exact sums that the next round releases with noise. SENSITIVE.

        Args:
            values: noisy sums of all earlier rounds, `[num_earlier, num_rows, num_classes]`.
            noise: standard deviation of the noise, in units of a record's maximum contribution.
            num_rounds: number of all rounds.
        """
        vectors, labels, moments = self._of_single_records
        weights = weights_of_rounds(values, moments, self.num_records, noise, num_rounds)
        return exact_sums.residual_sums(vectors, labels, weights)


def of_other_data(source: Voter | FeatureSums, pool: Pool) -> ValueError:
    """Returns the error for teachers or feature sums whose data set differs from the pool's."""
    what = "feature sums" if source.num_teachers is None else "teachers"
    return ValueError(
        f"{what} must have the data set {pool.dataset.name} of the pool, got "
        f"{source.dataset.name}: {source.dataset.difference(pool.dataset)}"
    )
