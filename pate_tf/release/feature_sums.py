"""Feature sums of private records: computed once, stored in a run folder, released by a labeller.

No teacher is trained. Each record is mapped to a vector of L2 norm at most 1 by a public
representation; the vectors of each class are summed. `pate_tf.Labeller` charges the noisy sums and
works out labels of the public pool from them.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import shutil
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from pate_tf.accounting.conversions import LATTICE
from pate_tf.accounting.delta import check_delta
from pate_tf.accounting.planning import cluster_numbers
from pate_tf.core import artifacts, partition, sensitive
from pate_tf.core.dataset import Dataset, check_inputs
from pate_tf.core.private_digest import private_digest
from pate_tf.core.public import Pool
from pate_tf.core.record_set import (
    RECORD_KEY,
    Digests,
    keyed_sum,
    owner_digests,
    record_digests,
)
from pate_tf.core.reporting import QUIET, Reporting, reporting
from pate_tf.core.run_settings import check_same_settings
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.core.source import PrivateSource, Records
from pate_tf.core.validation import IntArray
from pate_tf.data.data_source import DataSource
from pate_tf.data.named_function import Named, name_of
from pate_tf.ledger.rollback_guard import warn_of_same_records
from pate_tf.models.encoder import (
    Encoder,
    nearest_centres,
    record_features,
    record_vectors,
)
from pate_tf.release.noisy_sums import (
    VECTOR_STEPS,
    counts_by_cluster,
    owner_steps,
    residual_sums,
    sums_by_class,
    sums_of_owners,
    sums_of_rounds,
    vector_steps,
    weights_of_rounds,
)
from pate_tf.representations.catalogue import (
    Representation,
    check_representation,
    default_of_sums,
    encoder_of,
    source_of,
)
from pate_tf.representations.label_propagation import cluster_centres
from pate_tf.students.kinds.linear_head import LinearHead
from pate_tf.teachers.ensemble import SavedEncoder, learnt_digest, save_encoder
from pate_tf.teachers.run_folder import RunDescription, described_run

PARTS: Final = 16  # of the owners; sums of each owner of one are in memory
PART: Final = 4_096  # inputs of a pool whose vectors are in memory in double precision
SUMS, ENCODER, DESCRIPTION = "sums.npz", "encoder", "description.json"
VECTORS: Final = "vectors.npz"  # of single records, for rounds of residual sums
# What sums must have in common to be merged.
COMMON: Final = ("dataset", "unit", "representation", "encoder")
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
        num_records: how many records were summed. SENSITIVE where owners are protected.
        source: that these are of; None where the run folder is its own.
        description: all that is stored of them but arrays, JSON values. SENSITIVE.
        representation: of the features, by its name.
        sums: int64 `[num_features + 1, num_classes]`, exact. SENSITIVE.
        cluster_counts: for each resolution of clusters, by their number, int64 `[num_clusters,
            num_classes]`, exact. SENSITIVE.
        centres: of these clusters, `[num_clusters, num_features]`; public.
        encoder: of the features; public.
        encoder_digest: of the weights of the features' encoder; public.
        representation_digest: of the encoder, its description included; public.
        scale: factors by which features vary about equally in the pool, `[num_features]`; public.
        groups: as of `Encoder.groups`; public.
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
            self.dataset = Dataset.from_dict(described["dataset"])
            self.encoder = SavedEncoder(folder / ENCODER, self.dataset)
            self.unit = str(described["unit"])
            self.representation = str(described["representation"])
            self.representation_digest = str(described["encoder"])
            records = Records.from_dict(described)
            self.num_records, self.source = records.num_records, records.source
            self.sums = sensitive.FeatureSums(arrays["sums"])
            self.scale, self.groups = arrays["scale"], tuple(arrays["groups"].tolist())
            if min(self.groups) < 0 or sum(self.groups) != len(self.scale):
                raise ValueError("groups: expected how many features each has, got others")
            numbers = arrays["resolutions"].tolist()
            self.centres = {one: arrays[f"centres_{one}"] for one in numbers}
            self.cluster_counts = {
                one: sensitive.FeatureSums(arrays[f"counts_{one}"]) for one in numbers
            }
            self.encoder_digest = self.encoder.digest
            described.pop("source", None)
            claimed = described.pop("digest")
            self.digest = digest_of(described, arrays, self.encoder_digest)
            if claimed != self.digest:
                raise ValueError("sums: expected those of the description, got others")
        except FileNotFoundError as error:
            raise ValueError(
                f"feature sums: expected some in {folder}, got none; {EARLIER_COMMAND}"
            ) from error
        except Exception as error:  # TensorFlow and JSON each raise their own kinds
            raise ValueError(
                f"feature sums: expected complete ones in {folder}, got broken ones"
            ) from error
        self.description = described
        self._vectors_file = folder / VECTORS

    @property
    def has_vectors(self) -> bool:
        """Whether records' vectors are stored, from which several rounds can be released."""
        return self._vectors_file.exists()

    @functools.cached_property
    def _vectors(self) -> dict[str, npt.NDArray[Any]]:
        try:
            arrays = artifacts.read_arrays(self._vectors_file)
            return {name: arrays[name] for name in ("vectors", "labels", "moments")}
        except Exception as error:
            raise ValueError(
                f"feature sums: expected the vectors of their records in {self._vectors_file}, got "
                f"broken ones"
            ) from error

    def check_vectors(self) -> None:
        """Raises ValueError if stored vectors are broken, or others than those summed."""
        stored = self._vectors
        width = len(self.sums.values)
        is_theirs = (
            stored["vectors"].shape == (len(stored["labels"]), width)
            and len(stored["labels"]) == self.num_records
            and stored["moments"].shape == (width, width)
        )
        for number, sums in enumerate(self.sums.values.T if is_theirs else ()):
            own = stored["vectors"][stored["labels"] == number]
            less = sums / LATTICE - own.sum(axis=0, dtype=np.int64) / VECTOR_STEPS
            # Both are cut off towards zero, by less than a step a record.
            is_theirs &= bool(np.abs(less).max() <= len(own) * (1 / VECTOR_STEPS + 1 / LATTICE))
        if not is_theirs:
            raise ValueError(
                f"feature sums: expected the vectors of their records in {self._vectors_file}, got "
                f"others"
            )

    def weights(self, values: IntArray, noise: float) -> npt.NDArray[np.float64]:
        """Returns what `weights_of_rounds` does, for noisy sums of each round. Public."""
        return weights_of_rounds(values, self._vectors["moments"], self.num_records, noise)

    def of_rounds(
        self, values: IntArray, vectors: npt.NDArray[np.floating], noise: float
    ) -> tuple[npt.NDArray[np.float64], float]:
        """Returns what `sums_of_rounds` does, of vectors of a pool. Public."""
        moments, number = self._vectors["moments"], self.num_records
        return sums_of_rounds(values, vectors, moments, number, noise)

    def are_vectors(
        self, records: IntArray, vectors: npt.NDArray[np.float64], labels: IntArray
    ) -> bool:
        """Whether these are the stored vectors and labels of records, by place. SENSITIVE."""
        try:
            stored = self._vectors["vectors"][records], self._vectors["labels"][records]
        except (ValueError, LookupError):  # broken, or too few
            return False
        return np.array_equal(stored[0], vector_steps(vectors)) and np.array_equal(
            stored[1], labels
        )

    def residuals(self, values: IntArray, noise: float) -> IntArray:
        """Returns the exact sums of the round that follows noisy ones. SENSITIVE."""
        stored = self._vectors
        return residual_sums(stored["vectors"], stored["labels"], self.weights(values, noise))

    def linear_head(self, weights: npt.NDArray[np.float64]) -> LinearHead:
        """Returns the encoder with weights `[num_features + 1, num_classes]`, as one model."""
        return LinearHead(self.encoder.loaded, self.dataset, self.scale, weights)

    @property
    def table(self) -> npt.NDArray[np.int64]:
        """Sums and counts, as `Summands` has them. SENSITIVE."""
        counts = [one.values for one in self.cluster_counts.values()]
        return np.concatenate([self.sums.values, *counts])

    def features(self, inputs: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Returns features `[num_inputs, num_features]` of raw inputs `[num_inputs, *input_shape]`.

        Public, as the inputs are.

        Raises:
            ValueError: if the inputs have another shape, or are not finite.
        """
        check_inputs(inputs, self.dataset)
        return self.encoder.features(inputs)

    def vectors(self, inputs: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Returns what public inputs would add to sums, `[num_inputs, num_features + 1]`."""
        features = self.features(inputs)
        vectors = np.empty((len(features), features.shape[1] + 1), np.float32)
        for start in range(0, len(features), PART):
            part = slice(start, start + PART)
            vectors[part] = record_vectors(features[part], self.scale)
        return vectors


def digest_of(
    described: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]], encoder_digest: str
) -> str:
    """Returns the digest of stored sums: of all that lies in their folder but vectors."""
    text = json.dumps(described, sort_keys=True) + encoder_digest
    text += artifacts.digest_arrays(arrays[name] for name in sorted(arrays))
    return hashlib.sha256(text.encode()).hexdigest()


@dataclasses.dataclass(frozen=True)
class Summands:
    """What a record, or an owner, adds to one table of whole numbers: those of all add up.

    The table, int64 `[num_rows, num_classes]`, has the rows of `sums_by_class`, then those of
    `counts_by_cluster` for each resolution.

    Attributes:
        num_classes: number of classes.
        scale: of the features, `[num_features]`.
        groups: of the features, as of `Encoder.groups`.
        centres: of the pool's clusters, by their number.
    """

    num_classes: int
    scale: npt.NDArray[np.float64]
    groups: tuple[int, ...]
    centres: Mapping[int, npt.NDArray[np.float64]]

    @property
    def num_rows(self) -> int:
        """Rows of the table."""
        return len(self.scale) + 1 + sum(self.centres)

    def nothing(self) -> npt.NDArray[np.int64]:
        """Returns the table of no record."""
        return np.zeros((self.num_rows, self.num_classes), np.int64)

    def of_records(
        self, features: npt.NDArray[np.float32], labels: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Returns the table of single records. SENSITIVE."""
        vectors, num_classes = record_vectors(features, self.scale), self.num_classes
        parts = [sums_by_class(vectors, labels, num_classes=num_classes)]
        parts += [
            counts_by_cluster(
                nearest_centres(vectors[:, :-1], each),
                labels,
                num_clusters=number,
                num_classes=num_classes,
            )
            for number, each in self.centres.items()
        ]
        return np.concatenate(parts)

    def of_owned(self, features: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
        """Returns of each record what adds up to its owner's totals, `[num_records, num_rows]`."""
        vectors = record_vectors(features, self.scale)
        parts = [owner_steps(vectors)]
        parts += [
            np.eye(number, dtype=np.int64)[nearest_centres(vectors[:, :-1], each)]
            for number, each in self.centres.items()
        ]
        return np.concatenate(parts, axis=1)

    def of_owners(
        self, totals: npt.NDArray[np.int64], pairs: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Returns the table of owners, each of whom adds a norm of at most 1. SENSITIVE.

        Args:
            totals: of each owner and class that has records, `[num_pairs, num_rows]`.
            pairs: a number for the owner, times `num_classes`, plus the class, ascending.
        """
        owners, classes = pairs // self.num_classes, pairs % self.num_classes
        first = len(self.scale) + 1
        sums = sums_of_owners(totals[:, :first], owners, classes, num_classes=self.num_classes)
        if not self.centres:
            return sums
        counts = totals[:, first:]
        # Each record of an owner counts in one cluster of each resolution.
        records = np.zeros(owners.max(initial=-1) + 1, np.int64)
        np.add.at(records, owners, counts[:, : next(iter(self.centres))].sum(axis=1))
        shared = np.zeros((self.num_classes, counts.shape[1]), np.int64)
        np.add.at(shared, classes, counts * (LATTICE // np.maximum(records, 1))[owners, None])
        return np.concatenate([sums, shared.T])

    def arrays(self, table: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[Any]]:
        """Returns what is stored of a table, by name."""
        numbers = list(self.centres)
        ends = len(self.scale) + 1 + np.cumsum([0, *numbers[:-1]])
        sums, *counts = np.split(table, ends)
        found = {"sums": sums, "scale": self.scale, "groups": np.array(self.groups)}
        found["resolutions"] = np.array(numbers)
        found |= {f"centres_{number}": each for number, each in self.centres.items()}
        found |= {f"counts_{one}": each for one, each in zip(numbers, counts, strict=True)}
        return found


def summands_of(pool: Pool | None, encoder: Encoder) -> Summands:
    """Returns what records add, by public values alone; without a pool they count in no cluster."""
    num_classes, centres = encoder.dataset.num_classes, dict[int, npt.NDArray[np.float64]]()
    if pool is not None:
        vectors = record_vectors(encoder.features(pool.inputs), encoder.scale)[:, :-1]
        numbers = cluster_numbers(len(pool), num_classes)
        centres = dict(zip(numbers, cluster_centres(vectors, numbers), strict=True))
    scale = np.ones(encoder.num_features) if encoder.scale is None else encoder.scale
    return Summands(num_classes, scale, encoder.groups, centres)


def sums_of_records(
    examples: PrivateExamples,
    encoder: Encoder,
    summands: Summands,
    reporting: Reporting = QUIET,
    *,
    digests: Digests | None = None,
    vectors: npt.NDArray[np.int16] | None = None,
) -> npt.NDArray[np.int64]:
    """SENSITIVE: returns the exact sums of private records, the table of `Summands`.

    What a record adds depends on that record and on public values alone; what an owner's records
    add together depends on these records alone, and not on their order.

    Args:
        examples: the private records; with owners, what each owner adds has a norm of at most 1.
        encoder: of their features.
        summands: what they add.
        reporting: how progress is shown.
        digests: `record_digests` of the inputs, where they are known.
        vectors: what `vector_steps` of each record are written to, without owners.
    """
    inputs, labels, owners = examples.inputs, examples.labels, examples.owners
    total = summands.nothing()
    # How many records owners have is private: no bar tells.
    steps = (len(examples), "record") if owners is None else (PARTS, "part")
    with reporting.progress_bar("summing features of records", *steps) as advance:
        if owners is None:
            for rows, features in record_features(encoder, inputs, digests=digests):
                total += summands.of_records(features, labels[rows])
                if vectors is not None:
                    vectors[rows] = vector_steps(record_vectors(features, summands.scale))
                advance(len(rows))
            return total
        parts = partition.owner_partition(owners, num_teachers=PARTS, seed=0)
        for share in parts.all_records():
            _, owner = np.unique(owners[share], return_inverse=True)
            pairs, place = np.unique(
                owner * summands.num_classes + labels[share], return_inverse=True
            )
            totals = np.zeros((len(pairs), summands.num_rows), np.int64)
            some = record_features(encoder, inputs, share, digests=digests)
            for rows, features in some:
                np.add.at(totals, place[np.searchsorted(share, rows)], summands.of_owned(features))
            total += summands.of_owners(totals, pairs)
            advance(1)
    return total


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
    encoder = sums_encoder(settings, examples.dataset, pool, directory, reporting)
    digests, owners = record_digests(examples.inputs), None
    key = private_digest(directory.sensitive, RECORD_KEY).encode()
    if examples.owners is not None:
        owners = owner_digests(examples.owners, key)
    lanes = keyed_sum(key, digests, examples.labels, owners)
    described = described_sums(
        settings, encoder, [private_digest(directory.sensitive, lanes)], owners is not None
    )
    if (stored := stored_before(directory, described, examples.source)) is not None:
        return stored
    content = keyed_sum(b"", digests, examples.labels).tobytes()
    warn_of_same_records(examples.source, content, directory.sensitive)
    summands = summands_of(pool, encoder)
    vectors = None
    if owners is None:
        vectors = np.zeros((len(digests), len(summands.scale) + 1), np.int16)
    table = sums_of_records(
        examples, encoder, summands, reporting, digests=digests, vectors=vectors
    )
    for_rounds: dict[str, npt.NDArray[Any]] = {}
    if vectors is not None:
        of_pool = record_vectors(encoder.features(pool.inputs), summands.scale)
        moments = of_pool.T @ of_pool / len(of_pool)
        for_rounds = {"vectors": vectors, "labels": examples.labels, "moments": moments}
    return store(
        described,
        encoder,
        summands,
        table,
        for_rounds=for_rounds,
        directory=directory,
        records=Records(num_records=len(digests), source=examples.source),
        pool_size=len(pool),
        flags={} if source is None else source.flags,
    )


def sums_encoder(
    settings: SumsSettings,
    dataset: Dataset,
    pool: Pool,
    directory: artifacts.RunDirectory,
    reporting: Reporting,
) -> Encoder:
    """Returns the encoder of the records' features, once pool and folder are known to fit.

    Raises:
        ValueError: as `fit`.
    """
    if difference := pool.dataset.difference(dataset):
        raise ValueError(
            f"pool: expected inputs of the records' data set, got others: {difference}"
        )
    name = source_of(settings.representation) or default_of_sums(dataset)
    check_representation(name, dataset)
    folder = sums_folder(directory).name
    directory.check(files=[], folders=[artifacts.SENSITIVE, f"{artifacts.SENSITIVE}/{folder}"])
    with reporting.clock_or_bar("training the representation") as progress:
        return encoder_of(pool, name, settings.seed, progress=progress)


def described_sums(
    settings: SumsSettings,
    encoder: Encoder,
    records: Sequence[str],
    has_owners: bool,
) -> dict[str, Any]:
    """Returns what feature sums depend on, as JSON values. SENSITIVE.

    Args:
        settings: how records become sums.
        encoder: of the features.
        records: keyed digests of the private records, one for each part that was merged.
        has_owners: whether owners are protected.
    """
    name = source_of(settings.representation) or default_of_sums(encoder.dataset)
    described = {
        "dataset": encoder.dataset.to_dict(),
        "unit": "owner" if has_owners else "record",
        "representation": name_of(name),
        "encoder": encoder.digest,
        "records": list(records),
    }
    found: dict[str, Any] = json.loads(json.dumps(described))
    return found


def stored_before(
    directory: artifacts.RunDirectory,
    described: Mapping[str, Any],
    source: PrivateSource | None = None,
) -> StoredSums | None:
    """Returns the sums that a folder holds; None if there are none.

    Args:
        directory: of the run.
        described: `described_sums`.
        source: of the records; if a person named it, a ledger of another one refuses the sums.

    Raises:
        ValueError: if they are of other records or settings than `described`.
    """
    folder = sums_folder(directory)
    if not (folder / DESCRIPTION).exists():
        return None
    stored = artifacts.read_json(folder / DESCRIPTION)
    compared = {name: stored.get(name) for name in described}  # the rest follows from these
    check_same_settings(compared, described, folder=folder, holds="feature sums")
    sums = StoredSums(folder)
    if source is not None and source.is_named:
        sums.source = source
    return sums


def store(
    described: Mapping[str, Any],
    encoder: Encoder | pathlib.Path,
    summands: Summands,
    table: npt.NDArray[np.int64],
    *,
    directory: artifacts.RunDirectory,
    records: Records,
    pool_size: int | None,
    flags: Mapping[str, Any],
    num_left_out: int = 0,
    for_rounds: Mapping[str, npt.NDArray[Any]] | None = None,
) -> StoredSums:
    """Writes feature sums below `sensitive/`, whole or not at all, and returns them.

    Args:
        described: `described_sums`.
        encoder: of the features; or the folder of a stored one.
        summands: what records add.
        table: the sum of it over all records.
        directory: the run folder.
        records: how many there are, those left out among them, and of which source.
        pool_size: how many public samples form the pool.
        flags: `DataSource.flags`.
        num_left_out: records that do not fit the schema. They count as records that add nothing, so
            that the number of records, which is public, does not tell whether one fits.
        for_rounds: vectors and labels of single records, and the pool's second moments; None or
            empty where several rounds can't be released.
    """
    folder = sums_folder(directory)
    artifacts.make_sensitive_folder(directory.sensitive)
    RunDescription(
        method="feature_sums",
        data_name=described["dataset"]["name"],
        num_classes=described["dataset"]["num_classes"],
        unit=described["unit"],
        representation=described["representation"],
        pool_size=pool_size,
        source=flags,
    ).write(directory)
    with artifacts.atomic_folder(folder) as temporary:
        if isinstance(encoder, pathlib.Path):
            shutil.copytree(encoder, temporary / ENCODER)
            dataset = Dataset.from_dict(described["dataset"])
            encoder_digest = SavedEncoder(encoder, dataset).digest
        else:
            save_encoder(temporary / ENCODER, encoder)
            encoder_digest = learnt_digest(encoder.learnt)
        arrays = summands.arrays(table)
        artifacts.write_arrays(temporary / SUMS, arrays, private=True)
        if for_rounds:
            artifacts.write_arrays(temporary / VECTORS, for_rounds, private=True)
        full = {
            **described,
            "num_records": records.num_records,
            "left_out": num_left_out,
        }
        full["digest"] = digest_of(full, arrays, encoder_digest)
        # Not in the digest: sums are the same wherever the records lie.
        full["source"] = dataclasses.asdict(records)["source"]
        artifacts.write_json(temporary / DESCRIPTION, full, private=True)
        artifacts.make_private(temporary)
    return StoredSums(folder)


class FeatureSums:
    """SENSITIVE: feature sums of private records, for a `Labeller`; no teacher is trained.

    >>> import pate_tf
    >>> data = pate_tf.Data.load("digits")
    >>> sums = pate_tf.FeatureSums(directory=folder / "sums", representation="raw")
    >>> sums = sums.fit(data.private, data.pool)
    >>> with pate_tf.Labeller(sums, epsilon=8.0, delta=1e-5) as labeller:
    ...     labels = labeller.label(data.pool)
    >>> labels.cost.epsilon <= 8.0
    True

    Each record adds a vector of L2 norm at most 1 to the sum of its class; with owners, all records
    of an owner together do. What one adds depends on no other record or owner, but on the public
    pool and settings (docs/proofs/theory.md, Proposition D8). Nothing is charged before a
    `Labeller` releases the sums with noise.

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
                is made of. Default: "contrastive+patches" for grey images, "patches+wavelets" for
                colour ones, "bins" for tables, "lsa" for texts.
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

    @classmethod
    def merge(
        cls,
        parts: Sequence[str | os.PathLike[str]],
        *,
        directory: str | os.PathLike[str],
        name: str | None = None,
    ) -> Self:
        """Adds the sums of several run folders; stores those of all their records, to the last bit.

        They are the sums of the parts' records put one after another. Records of two parts are not
        compared: what merging does may not depend on them. Two equal ones count twice, as they do
        within a part; who has a record in each of two parts is protected as one with two records
        (docs/proofs/theory.md, Proposition D8). Only one round is released from merged sums, as
        vectors of single records are not merged.

        Args:
            parts: run folders of sums of single records, at least two, of one data set, pool and
                representation, each once. Sums of owners can't be merged: what an owner adds is
                clipped within a part, so that one in two parts would add twice as much.
            directory: the run folder of all.
            name: public name of the private data of all parts, as of `Data.from_arrays`. Default:
                that of the parts, if they have one, else none. What was released of a part adds up
                with what is released of all if their names are the same.

        Raises:
            ValueError: if parts protect owners, are broken, the same or of other settings, or the
                folder holds other sums.
        """
        if len(parts) < 2:
            raise ValueError(f"merge: expected at least two run folders, got {len(parts)}")
        roots = [artifacts.RunDirectory(pathlib.Path(part)) for part in parts]
        stored = [StoredSums(sums_folder(root)) for root in roots]
        first = stored[0]
        public = [
            (
                part.encoder_digest,
                artifacts.digest_arrays(
                    [part.scale, np.array(part.groups), *part.centres.values()]
                ),
            )
            for part in stored
        ]
        for root, part, representation in zip(roots, stored, public, strict=True):
            if part.unit != "record":
                raise ValueError(
                    f"merge: expected sums of single records, got sums of owners in {root.root}; "
                    f"sum all records of an owner in one pass"
                )
            for field in COMMON:
                if part.description[field] != first.description[field]:
                    raise ValueError(
                        f"merge: expected feature sums of one {field}, got another in {root.root}"
                    )
            if representation != public[0]:
                raise ValueError(
                    f"merge: expected feature sums of one representation, got another in "
                    f"{root.root}"
                )
        described = {field: first.description[field] for field in COMMON}
        described["records"] = sorted(
            digest for part in stored for digest in part.description["records"]
        )
        if len(set(described["records"])) < len(described["records"]):
            raise ValueError("merge: expected each part once, got one twice")
        merged, target = cls(directory=directory), artifacts.RunDirectory(pathlib.Path(directory))
        target.check(files=[], folders=[artifacts.SENSITIVE])
        named = None if name is None else PrivateSource.named(name)
        merged._stored = stored_before(target, described, named)
        if merged._stored is None:
            runs = [described_run(root.root) for root in roots]
            sources = [{} if run is None else {**run.source, "private": None} for run in runs]
            sizes = {None if run is None else run.pool_size for run in runs}
            charged_to = {part.source for part in stored}
            source = named or (charged_to.pop() if len(charged_to) == 1 else None)
            number = sum(part.num_records for part in stored)
            merged._stored = store(
                described,
                sums_folder(roots[0]) / ENCODER,
                Summands(first.dataset.num_classes, first.scale, first.groups, first.centres),
                np.sum([part.table for part in stored], axis=0, dtype=np.int64),
                directory=target,
                records=Records(num_records=number, source=source),
                num_left_out=sum(part.description["left_out"] for part in stored),
                pool_size=sizes.pop() if len(sizes) == 1 else None,
                # Without the private files; those of parts differ.
                flags=sources[0] if all(flags == sources[0] for flags in sources) else {},
            )
        return merged

    @property
    def stored(self) -> StoredSums:
        """The sums, for this package.

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

    def load(self, pool: Pool, reporting: Reporting, delta: float | None = None) -> StoredSums:
        """Returns the sums; reads the private records where the data are named.

        Args:
            pool: public inputs.
            reporting: how progress is shown.
            delta: of labels; None where it is not known yet.

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
        private = self.data.load_private(reporting)
        if delta is not None and private.owners is None:
            check_delta(delta, len(private))  # before a representation is trained
        return fit(
            self.settings,
            private,
            pool,
            directory=directory,
            source=self.data,
            reporting=reporting,
        )
