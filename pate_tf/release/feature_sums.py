"""Feature sums of private records: computed once, stored in a run folder, released by a labeller.

No teacher is trained. Each record is mapped to a vector of L2 norm at most 1 by a public
representation; the vectors of each class are summed. `pate_tf.Labeller` charges the noisy sums and
infers labels of the public pool from them.
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

from pate_tf.accounting.conversions import LATTICE, default_delta
from pate_tf.accounting.mechanisms.base import Target
from pate_tf.accounting.planning import Forecast, cluster_numbers, planned_sums
from pate_tf.core import artifacts
from pate_tf.core.dataset import Dataset, check_inputs
from pate_tf.core.public import Pool
from pate_tf.core.reporting import QUIET, Reporting, reporting
from pate_tf.core.sensitive import PrivateExamples, SumsByClass, owner_partition
from pate_tf.core.source import (
    RECORD_KEY,
    Digests,
    PrivateSource,
    Records,
    check_same_settings,
    keyed_sum,
    owner_digests,
    private_digest,
    record_digests,
)
from pate_tf.core.validation import IntArray
from pate_tf.data.named_function import Named, name_of
from pate_tf.ledger.rollback_guard import warn_of_same_records
from pate_tf.models.encoder import Encoder, nearest_centres, record_features, record_vectors
from pate_tf.release.moments import moments_by_class
from pate_tf.release.noisy_sums import (
    VECTOR_STEPS,
    owner_steps,
    residual_sums,
    sums_by_class,
    sums_of_owners,
    vector_steps,
    weights_of_rounds,
)
from pate_tf.release.pseudo_labels import DRAWS, FEWEST_LABELED, trial
from pate_tf.representations.catalogue import (
    Representation,
    check_representation,
    default_of_sums,
    encoder_of,
    is_known,
    pool_features_by_name,
    source_of,
)
from pate_tf.representations.label_propagation import cluster_centres
from pate_tf.representations.raw import MOST_OF_PAIRS
from pate_tf.teachers.ensemble import SavedEncoder, learnt_digest, save_encoder
from pate_tf.teachers.run_folder import RunDescription, described_run
from pate_tf.teachers.voters import Voter

PARTS: Final = 16  # of the owners; sums of each owner of one are in memory
MOST_OF_MOMENTS: Final = 1_024  # features
PART: Final = 4_096  # inputs of a pool whose vectors are in memory in double precision
SUMS, ENCODER, DESCRIPTION = "sums.npz", "encoder", "description.json"
VECTORS: Final = "vectors.npz"  # of single records, for rounds of residual sums
EARLIER_COMMAND: Final = "call fit(data.private, data.pool), or train_student.py with the data"


def sums_folder(directory: artifacts.RunDirectory) -> pathlib.Path:
    """Returns where a run stores its sums: `sensitive/feature_sums`."""
    return directory.sensitive / "feature_sums"


def default_folder(dataset_name: str) -> pathlib.Path:
    """Returns the folder of a run of feature sums where the user names none."""
    return pathlib.Path(f"runs/{dataset_name}-feature_sums")


def digest_of(
    description: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]], encoder_digest: str
) -> str:
    """Returns the digest of stored sums: of all that lies in their folder but vectors."""
    text = json.dumps(description, sort_keys=True) + encoder_digest
    text += artifacts.digest_arrays(arrays[name] for name in sorted(arrays))
    return hashlib.sha256(text.encode()).hexdigest()


@dataclasses.dataclass(frozen=True)
class Summands:
    """What a record, or an owner, adds to one table of whole numbers: those of all add up.

    The table, int64 `[num_rows, num_classes]`, has the rows of `sums_by_class`, then for each
    resolution how many records of each class are in each cluster, in steps of 1 / LATTICE. A record
    counts 1 in one cell. An owner's records share 1: each counts one over their number, truncated
    to whole steps, so that a resolution's counts move by at most 2 in the L1 norm if a record, or
    an owner, is replaced. Where there is no pool, it is the table of `moments_by_class`.

    Attributes:
        num_classes: number of classes.
        scale: of the features, `[num_features]`.
        centres: of the pool's clusters, `[num_clusters, num_features]`, by their number.
        has_moments: whether second moments stand beside the sums, as no pool has any.
        groups: of one-hot features, `Encoder.groups`; None of others, and with a pool.
    """

    num_classes: int
    scale: npt.NDArray[np.float64]
    centres: Mapping[int, npt.NDArray[np.float64]]
    has_moments: bool = False
    groups: IntArray | None = None

    @classmethod
    def of(cls, encoder: Encoder, pool: Pool | None) -> Self:
        """Returns what records add; with a pool of images that has an augmentation, clusters too.

        A frozen encoder's features are worth a linear model more than clusters.
        """
        num_classes, centres = encoder.dataset.num_classes, dict[int, npt.NDArray[np.float64]]()
        if pool and not encoder.is_frozen and encoder.dataset.augmentation != "none":
            vectors = record_vectors(encoder.features(pool.inputs), encoder.scale)[:, :-1]
            numbers = cluster_numbers(len(pool), num_classes)
            centres = dict(zip(numbers, cluster_centres(vectors, numbers), strict=True))
        scale = np.ones(encoder.num_features) if encoder.scale is None else encoder.scale
        if pool is not None and not pool:
            return cls(num_classes, scale, centres, has_moments=True, groups=encoder.groups)
        return cls(num_classes, scale, centres)

    @property
    def num_rows(self) -> int:
        """Rows of the table."""
        return len(self.scale) + 1 + sum(self.centres)

    @property
    def num_columns(self) -> int:
        """Columns of the table."""
        return self.num_classes + self.has_moments * self.num_rows

    def of_records(self, vectors: npt.NDArray[np.float64], labels: IntArray) -> IntArray:
        """Returns the table of single records from their `record_vectors`. SENSITIVE."""
        if self.has_moments:
            return moments_by_class(vectors, labels, num_classes=self.num_classes)
        tables = [sums_by_class(vectors, labels, num_classes=self.num_classes)]
        for number, centres in self.centres.items():
            counts = np.zeros((number, self.num_classes), np.int64)
            np.add.at(counts, (nearest_centres(vectors[:, :-1], centres), labels), LATTICE)
            tables.append(counts)
        return np.concatenate(tables)

    def of_owned(self, features: npt.NDArray[np.float32]) -> IntArray:
        """Returns of each record what adds up to its owner's totals, `[num_records, num_rows]`."""
        vectors = record_vectors(features, self.scale)
        clusters = [
            np.eye(number, dtype=np.int64)[nearest_centres(vectors[:, :-1], centres)]
            for number, centres in self.centres.items()
        ]
        return np.concatenate([owner_steps(vectors), *clusters], axis=1)

    def of_owners(self, totals: IntArray, pairs: IntArray) -> IntArray:
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


def sums_of_records(
    examples: PrivateExamples,
    encoder: Encoder,
    summands: Summands,
    reporting: Reporting = QUIET,
    *,
    digests: Digests | None = None,
    vectors: npt.NDArray[np.int16] | None = None,
) -> IntArray:
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
    total = np.zeros((summands.num_rows, summands.num_columns), np.int64)
    # How many records owners have is private: no bar tells.
    steps, unit = (len(examples), "record") if owners is None else (PARTS, "part")
    with reporting.progress_bar(desc="summing features of records", total=steps, unit=unit) as bar:
        if owners is None:
            for rows, features in record_features(encoder, inputs, digests=digests):
                some = record_vectors(features, summands.scale)
                total += summands.of_records(some, labels[rows])
                if vectors is not None:
                    vectors[rows] = vector_steps(some)
                bar.update(len(rows))
            return total
        parts = owner_partition(owners, num_teachers=PARTS, seed=0)
        for part in parts.all_records():
            _, owner = np.unique(owners[part], return_inverse=True)
            if summands.has_moments:
                of_part = np.zeros((len(part), summands.num_rows))
                for rows, features in record_features(encoder, inputs, part, digests=digests):
                    of_part[np.searchsorted(part, rows)] = record_vectors(features, summands.scale)
                total += moments_by_class(
                    of_part, labels[part], num_classes=summands.num_classes, owners=owner
                )
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
        reporting: how progress is shown.
        dataset: from here on after `fit` or `load`: what is publicly known of the data.
        unit: what adds vectors of an L2 norm of at most 1 together, "record" or "owner".
        digest: SHA-256 of all that is stored; the ledger knows the sums by it.
        num_records: how many records were summed. SENSITIVE where owners are protected.
        source: that these are of; None where the run folder is its own.
        description: all that is stored of them but arrays, JSON values. SENSITIVE.
        representation: of the features, by its name.
        sums: int64 `[num_features + 1, num_classes]`, exact. SENSITIVE.
        cluster_counts: for each resolution of clusters, by their number, int64 `[num_clusters,
            num_classes]`, exact. SENSITIVE.
        encoder: of the features; public.
        encoder_digest: of the weights of the features' encoder; public.
        representation_digest: of the encoder, its description included; public.
        summands: what each record adds, by public values.
        has_vectors: whether vectors of records are stored, from which several rounds can be
            released.
        num_teachers: None: no teacher was trained.
        forecast: of the trial of `choose_representation`; None without one. Public.
        logit_factor: of the linear model, by that trial, so that its probabilities are calibrated.
    """

    num_teachers: None = None
    digest: str = ""
    forecast: Forecast | None = None
    logit_factor = 1.0
    source: PrivateSource | None

    def __init__(
        self,
        *,
        directory: str | os.PathLike[str] | None = None,
        representation: Named | Representation | None = None,
        seed: int = 0,
        verbose: bool | Reporting = False,
    ) -> None:
        """Takes the settings; nothing is computed or written before `fit`.

        Args:
            directory: of the run. Default: `runs/NAME-feature_sums` in the working directory.
            representation: what maps an input to features: a `pate_tf.Representation`, or what one
                is made of. Default: "contrastive+patches" for gray images, "patches+wavelets" for
                color ones, "bins" for tables, "lsa" for texts.
            seed: of a representation that is given by name; not of the privacy noise.
            verbose: whether progress bars are shown.
        """
        self.directory = None if directory is None else pathlib.Path(directory)
        self._run = artifacts.RunDirectory(self.directory or pathlib.Path())
        self.reporting = reporting(verbose)
        if isinstance(representation, Representation):
            seed = representation.seed
        self._seed = seed
        self._name = source_of(representation)

    def choose_representation(
        self,
        pool: Pool,
        num_records: int | None,
        epsilon: float,
        delta: float | None,
        num_rounds: int | None = None,
    ) -> None:
        """Takes the representation that labels the pool best in a trial.

        Of tables bins, raw features and, of narrow tables, pairs label each third of the pool's
        labeled samples from noisy sums of the others (`trial`); the best accuracy is the
        `forecast`. It costs no privacy: the labels and, without owners, the number of private
        records are public. A representation that is named, that of stored sums, and that of texts
        or images are tried alone. Nothing is tried if owners are protected or fewer than
        `FEWEST_LABELED` samples have a label.

        Args:
            pool: public, with labels.
            num_records: private records; None where owners are protected, as their number is
                private then.
            epsilon: what the sums will cost.
            delta: of epsilon; None for the default.
            num_rounds: as of `Labeller`.
        """
        self._settle(pool.dataset)
        if num_records is None or pool.num_labeled < FEWEST_LABELED:
            return
        delta = default_delta(num_records) if delta is None else delta
        mechanism = planned_sums(
            Target(epsilon=epsilon, delta=delta),
            num_records,
            pool.dataset.num_classes,
            (),
            num_rounds,
            accept_forecast=True,  # whether labels are worth their cost is checked by the forecast
        )
        names: tuple[Any, ...] = ("bins", "raw")
        if self._name or pool.dataset.kind != "tabular":
            names = (self._name or default_of_sums(pool.dataset),)
        with self.reporting.clock("training the representation"):
            encoders = {name: encoder_of(pool, name, self._seed) for name in names}
        if "raw" in names[1:] and encoders["raw"].num_features - 1 <= MOST_OF_PAIRS:
            encoders["pairs"] = encoder_of(pool, "pairs", self._seed)

        def tried(name: Any, num_draws: int) -> tuple[Forecast, float]:
            has_views = pool.dataset.augmentation != "none" and not encoders[name].is_frozen
            views = pool_features_by_name(pool, name, self._seed) if has_views else ()
            return trial(pool, encoders[name], mechanism, num_records, views, num_draws)

        with self.reporting.clock("trying representations on labeled samples of the pool"):
            (self._name, *others) = encoders
            if others:
                trials = {name: tried(name, 1)[0] for name in encoders}
                self._name = max(encoders, key=lambda name: trials[name].accuracy)
                shown = ", ".join(f"{name} {of.accuracy:.1%}" for name, of in trials.items())
                self.reporting.note(f"Representation, by labels of the pool: {shown}.")
            self.forecast, self.logit_factor = tried(self._name, DRAWS)

    def _settle(self, dataset: Dataset) -> None:
        """Takes the default folder, and the representation of sums stored there, unless named."""
        self.directory = self.directory or default_folder(dataset.name)
        self._run = artifacts.RunDirectory(self.directory)
        run = described_run(self.directory)
        if self._name is None and run is not None and run.method == "feature_sums":
            self._name = run.representation

    def fit(
        self, private: PrivateExamples, pool: Pool, *, flags: Mapping[str, Any] | None = None
    ) -> Self:
        """Sums the records' features, or reads the sums that an earlier call stored; returns self.

        Args:
            private: `data.private`. With owners, what an owner's records add is clipped together.
            pool: `data.pool`, which the representation is learned from; without inputs where there
                is none: features follow from declared ranges then, and second moments of the
                records' vectors stand beside the sums.
            flags: of commands that name the data, `DataSource.flags`, for `run.json`.

        Raises:
            ValueError: if data, settings and directory do not fit each other, or the folder holds
                sums of other records or settings.
        """
        for name, value, kind in (("private", private, PrivateExamples), ("pool", pool, Pool)):
            if not isinstance(value, kind):
                raise ValueError(f"{name}: expected data.{name}, got {type(value).__name__}")
        encoder = self.encoder_for(private.dataset, pool)
        sensitive = self._run.sensitive
        digests, owners = record_digests(private.inputs), None
        key = private_digest(sensitive, RECORD_KEY).encode()
        if private.owners is not None:
            owners = owner_digests(private.owners, key)
        lanes = keyed_sum(key, digests, private.labels, owners)
        described = self.described(
            encoder, [private_digest(sensitive, lanes)], has_owners=owners is not None
        )
        if self.is_stored(described, private.source):
            return self
        content = keyed_sum(b"", digests, private.labels).tobytes()
        warn_of_same_records(private.source, content, sensitive)
        summands = Summands.of(encoder, pool)
        vectors, for_rounds = None, dict[str, npt.NDArray[Any]]()
        if owners is None and pool:
            vectors = np.zeros((len(digests), len(summands.scale) + 1), np.int16)
        table = sums_of_records(
            private, encoder, summands, self.reporting, digests=digests, vectors=vectors
        )
        if vectors is not None:
            of_pool = record_vectors(encoder.features(pool.inputs), summands.scale)
            moments = of_pool.T @ of_pool / len(of_pool)
            for_rounds = {"vectors": vectors, "labels": private.labels, "moments": moments}
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
        """Returns the sums that `fit` or `train_student.py` left in a directory.

        Raises:
            ValueError: if there are none, or they are broken.
        """
        return cls(directory=directory)._read()

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
        loaded = [cls.load(part) for part in parts]
        first = loaded[0]
        for part in loaded:
            if part.unit != "record":
                raise ValueError(
                    f"merge: expected sums of single records, got sums of owners in "
                    f"{part.directory}; sum all records of an owner in one pass"
                )
            if part._public != first._public:
                raise ValueError(
                    f"merge: expected feature sums of one data set, pool and representation, got "
                    f"others in {part.directory}"
                )
        records = sorted(digest for part in loaded for digest in part.description["records"])
        if len(set(records)) < len(records):
            raise ValueError("merge: expected each part once, got one twice")
        common = ("dataset", "unit", "representation", "encoder")
        described = {field: first.description[field] for field in common} | {"records": records}
        source = None if name is None else PrivateSource.named(name)
        merged = cls(directory=directory)
        merged._run.check(files=[], folders=[artifacts.SENSITIVE])
        if merged.is_stored(described, source):
            return merged
        runs = [described_run(part.directory) for part in loaded]
        sizes = {None if run is None else run.pool_size for run in runs}
        # Without the private files; those of parts differ.
        flags = [{} if run is None else {**run.source, "private": None} for run in runs]
        charged_to = {part.source for part in loaded}
        source = source or (charged_to.pop() if len(charged_to) == 1 else None)
        number = sum(part.num_records for part in loaded)
        return merged.store(
            described,
            sums_folder(first._run) / ENCODER,
            first.summands,
            np.sum([part.table for part in loaded], axis=0, dtype=np.int64),
            records=Records(num_records=number, source=source),
            num_left_out=sum(part.description["left_out"] for part in loaded),
            pool_size=sizes.pop() if len(sizes) == 1 else None,
            flags=flags[0] if all(each == flags[0] for each in flags) else {},
        )

    # For `fit`, and for a pipeline that sums in another way.

    def encoder_for(self, dataset: Dataset, pool: Pool) -> Encoder:
        """Returns the encoder of the records' features, once pool and folder are known to fit.

        Raises:
            ValueError: as `fit`.
        """
        if difference := pool.dataset.difference(dataset):
            raise ValueError(f"pool: expected inputs of the records' data set, got {difference}")
        self._settle(dataset)
        self._name = self._name or default_of_sums(dataset, has_pool=len(pool) > 0)
        check_representation(self._name, dataset, has_pool=len(pool) > 0)
        folder = f"{artifacts.SENSITIVE}/{sums_folder(self._run).name}"
        self._run.check(files=[], folders=[artifacts.SENSITIVE, folder])
        with self.reporting.clock("training the representation"):
            encoder = encoder_of(pool, self._name, self._seed)
        if not pool and encoder.num_features > MOST_OF_MOMENTS:
            raise ValueError(
                f"representation: expected at most {MOST_OF_MOMENTS:,} features without public "
                f"inputs, as every product of two is released, got {encoder.num_features:,}; a "
                f"schema says fewer with `text = 512` or less, or fewer categories"
            )
        return encoder

    def described(
        self, encoder: Encoder, records: Sequence[str], *, has_owners: bool
    ) -> dict[str, Any]:
        """Returns what feature sums depend on, as JSON values. SENSITIVE.

        Args:
            encoder: of the features.
            records: keyed digests of the private records, one for each part that was merged.
            has_owners: whether owners are protected.
        """
        described = {
            "dataset": encoder.dataset.to_dict(),
            "unit": "owner" if has_owners else "record",
            "representation": name_of(self._name or default_of_sums(encoder.dataset)),
            "encoder": encoder.digest,
            "records": list(records),
        }
        values: dict[str, Any] = json.loads(json.dumps(described))
        return values

    def is_stored(self, described: Mapping[str, Any], source: PrivateSource | None = None) -> bool:
        """Reads the sums that the folder holds; False if there are none.

        Args:
            described: what `described` returned, or a part of it.
            source: of the records; if a person named it, a ledger of another one refuses the sums.

        Raises:
            ValueError: if they are of other records or settings.
        """
        folder = sums_folder(self._run)
        if not (folder / DESCRIPTION).exists():
            return False
        stored = artifacts.read_json(folder / DESCRIPTION)
        compared = {name: stored.get(name) for name in described}  # all else follows from these
        check_same_settings(compared, described, folder=folder, holds="feature sums")
        self._read()
        if source is not None and source.is_named:
            self.source = source
        return True

    def store(
        self,
        described: Mapping[str, Any],
        encoder: Encoder | pathlib.Path,
        summands: Summands,
        table: IntArray,
        *,
        records: Records,
        pool_size: int | None,
        flags: Mapping[str, Any],
        num_left_out: int = 0,
        for_rounds: Mapping[str, npt.NDArray[Any]] | None = None,
    ) -> Self:
        """Writes feature sums below `sensitive/`, whole or not at all, and returns self.

        Args:
            described: what `described` returned.
            encoder: of the features; or the folder of a stored one.
            summands: what records add.
            table: the sum of it over all records.
            records: how many there are, those left out among them, and of which source.
            pool_size: how many public samples form the pool.
            flags: `DataSource.flags`.
            num_left_out: records that do not fit the schema. They count as records that add
                nothing, so that the number of records, which is public, does not tell whether one
                fits.
            for_rounds: vectors and labels of single records, and the pool's second moments; None or
                empty where several rounds can't be released.
        """
        artifacts.make_sensitive_folder(self._run.sensitive)
        RunDescription(
            method="feature_sums",
            data_name=described["dataset"]["name"],
            num_classes=described["dataset"]["num_classes"],
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
        with artifacts.atomic_folder(sums_folder(self._run)) as temporary:
            if isinstance(encoder, pathlib.Path):
                shutil.copytree(encoder, temporary / ENCODER)
                dataset = Dataset.from_dict(described["dataset"])
                encoder_digest = SavedEncoder(encoder, dataset).digest
            else:
                save_encoder(temporary / ENCODER, encoder)
                encoder_digest = learnt_digest(encoder.learnt)
            artifacts.write_arrays(temporary / SUMS, arrays, private=True)
            if for_rounds:
                artifacts.write_arrays(temporary / VECTORS, for_rounds, private=True)
            full = {**described, "num_records": records.num_records, "left_out": num_left_out}
            full["digest"] = digest_of(full, arrays, encoder_digest)
            # Not in the digest: sums are the same wherever the records lie.
            full["source"] = dataclasses.asdict(records)["source"]
            artifacts.write_json(temporary / DESCRIPTION, full, private=True)
            artifacts.make_private(temporary)
        return self._read()

    def _read(self) -> Self:
        """Reads what `store` wrote; ValueError if there is nothing, or it is broken."""
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
            records = Records.from_dict(described)
            self.num_records, self.source = records.num_records, records.source
            self.sums = SumsByClass(arrays["sums"])
            numbers = arrays["resolutions"].tolist()
            centres = {number: arrays[f"centres_{number}"] for number in numbers}
            has_moments = arrays["sums"].shape[1] > self.dataset.num_classes
            self.summands = Summands(
                num_classes=self.dataset.num_classes,
                scale=arrays["scale"],
                centres=centres,
                has_moments=has_moments,
                groups=arrays.get("groups"),
            )
            self.cluster_counts = {
                number: SumsByClass(arrays[f"counts_{number}"]) for number in numbers
            }
            described.pop("source", None)
            digest = described.pop("digest")
            if digest != digest_of(described, arrays, self.encoder_digest):
                raise ValueError("sums: expected those of the description, got others")
        except FileNotFoundError as error:
            raise ValueError(
                f"feature sums: expected some in {folder}, got none; {EARLIER_COMMAND}"
            ) from error
        except Exception as error:  # TensorFlow and JSON each raise their own kinds
            raise ValueError(
                f"feature sums: expected complete ones in {folder}, got broken ones"
            ) from error
        self.description, self.digest = described, digest
        self.has_vectors = (folder / VECTORS).exists()
        self.__dict__.pop("_of_single_records", None)
        return self

    @property
    def _public(self) -> tuple[Any, ...]:
        """What sums must have in common to be added."""
        summands = self.summands
        arrays = [summands.scale, *summands.centres.values()]
        fields = [self.description[field] for field in ("dataset", "representation", "encoder")]
        return (*fields, self.encoder_digest, artifacts.digest_arrays(arrays))

    @property
    def identified(self) -> Self:
        """These, whose digest the ledger belongs to; ValueError before `fit`."""
        if not self.digest:
            raise ValueError(f"feature sums: expected fitted ones, got none: {EARLIER_COMMAND}")
        return self

    def for_pool(self, pool: Pool) -> Self:
        """Returns what labels of a pool come from, for `Labeller`."""
        del pool
        return self.identified

    @property
    def is_frozen(self) -> bool:
        """Whether a person brought the encoder, trained on other data."""
        return not is_known(self.representation)

    def __repr__(self) -> str:
        state = f"{self.unit}s, sensitive" if self.digest else "not fitted yet"
        return f"FeatureSums(<{state}>)"

    @property
    def table(self) -> IntArray:
        """Sums and counts, as `Summands` has them. SENSITIVE."""
        counts = [counts.values for counts in self.cluster_counts.values()]
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
            vectors[part] = record_vectors(features[part], self.summands.scale)
        return vectors

    @functools.cached_property
    def _of_single_records(self) -> tuple[npt.NDArray[np.int16], IntArray, npt.NDArray[np.float64]]:
        """Vectors and labels of records, SENSITIVE, and the pool's second moments."""
        path, sums = sums_folder(self._run) / VECTORS, self.sums.values
        refused = f"feature sums: expected the vectors of their records in {path}, got"
        try:
            arrays = artifacts.read_arrays(path)
            vectors, labels, moments = (arrays[name] for name in ("vectors", "labels", "moments"))
        except Exception as error:
            raise ValueError(f"{refused} broken ones") from error
        width = len(sums)
        is_theirs = (
            vectors.shape == (self.num_records, width)
            and labels.shape == (self.num_records,)
            and moments.shape == (width, width)
        )
        for number, exact in enumerate(sums.T if is_theirs else ()):
            of_class = vectors[labels == number]
            less = exact / LATTICE - of_class.sum(axis=0, dtype=np.int64) / VECTOR_STEPS
            # Both are cut off toward zero, by less than a step a record.
            largest = len(of_class) * (1 / VECTOR_STEPS + 1 / LATTICE)
            is_theirs &= bool(np.abs(less).max() <= largest)
        if not is_theirs:
            raise ValueError(f"{refused} others")
        return vectors, labels, moments

    @property
    def moments(self) -> npt.NDArray[np.float64]:
        """Means of the products of two numbers of a vector of the pool, `[width, width]`; public.

        Raises:
            ValueError: if the stored vectors are broken, or others than those summed.
        """
        return self._of_single_records[2]

    def residuals(self, values: IntArray, noise: float) -> IntArray:
        """Returns the exact sums of the round that follows noisy ones. SENSITIVE."""
        vectors, labels, moments = self._of_single_records
        weights = weights_of_rounds(values, moments, self.num_records, noise)
        return residual_sums(vectors, labels, weights)


LabelSource = Voter | FeatureSums  # what labels come from
