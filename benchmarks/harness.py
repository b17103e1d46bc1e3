"""Shared code of the benchmarks: stored measurements, tables, data folders, a registry."""

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import time
import unittest.mock
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

import pate_tf
from pate_tf.core import artifacts
from pate_tf.ledger.rollback_guard import STATE_VARIABLE

LIBRARIES = ("tensorflow", "keras", "numpy", "scipy", "scikit-learn", "opendp")
DELTA = 1e-5  # for all epsilons that the pages compare


class NotStoredError(Exception):
    """A measurement to be shown does not exist yet."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measurement:
    """A stored measurement.

    Attributes:
        result: JSON values.
        seconds: wall time of the measurement.
    """

    result: Mapping[str, Any]
    seconds: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measurements:
    """Measurements in a folder. A run that was stopped repeats no measurement.

    Attributes:
        folder: holds a JSON file for each measurement.
        setting: "full" or "quick".
        seed: seed of training, partition and choices; the privacy noise has no seed.
        only_stored: raises `NotStoredError` instead of measuring.
    """

    folder: pathlib.Path
    setting: str = "full"
    seed: int = 0
    only_stored: bool = False

    def of(
        self, kind: str, config: Mapping[str, Any], measure: Callable[[], Mapping[str, Any]]
    ) -> Measurement:
        """Returns the measurement of a kind and configuration; calls `measure` if it is new."""
        identity = {
            "kind": kind,
            "config": dict(config),
            "setting": self.setting,
            "seed": self.seed,
            "version": pate_tf.__version__,
        }
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
        path = self.folder / f"{kind}-{digest}.json"
        if not path.exists():
            if self.only_stored:
                raise NotStoredError(kind)
            print(f"  ... {kind}: {json.dumps(config)}", file=sys.stderr, flush=True)
            began = time.monotonic()
            result = dict(measure())
            self.folder.mkdir(parents=True, exist_ok=True)
            seconds = time.monotonic() - began
            artifacts.write_json(path, {**identity, "result": result, "seconds": seconds})
        stored = artifacts.read_json(path)
        return Measurement(result=stored["result"], seconds=stored["seconds"])


@contextlib.contextmanager
def separate_registry() -> Iterator[pathlib.Path]:
    """Yields an empty folder. Ledgers made within the context are not in the user's registry."""
    with (
        tempfile.TemporaryDirectory() as name,
        unittest.mock.patch.dict(os.environ, {STATE_VARIABLE: f"{name}/state"}),
    ):
        yield pathlib.Path(name)


def data_dir_of(dataset: str, data_dir: pathlib.Path | None) -> pathlib.Path | None:
    """Returns the folder of a data set: the given one, or a folder next to the checkout."""
    if data_dir is not None or dataset == "digits" or ":" in dataset:
        return data_dir
    tables = pathlib.Path("../shared/data")
    return tables if (tables / dataset).is_dir() else pathlib.Path("../shared/tfds")


def percent(share: float, digits: int = 2) -> str:
    """Returns a fraction in percent."""
    return f"{share:.{digits}%}"


def median_and_range(shares: Sequence[float]) -> str:
    """Returns the median of fractions in percent, and their range if they differ."""
    low, high = (f"{100 * extreme:.2f}" for extreme in (min(shares), max(shares)))
    return percent(float(np.median(shares))) + (f" ({low} to {high})" if low != high else "")


def markdown_table(rows: Sequence[Mapping[str, str]]) -> str:
    """Returns rows as a Markdown table, without columns whose cells are all empty."""
    known = dict.fromkeys(heading for row in rows for heading in row)
    headings = [name for name in known if not name or any(row.get(name) for row in rows)]
    lines = [headings, ["---"] * len(headings)]
    lines += [[row.get(heading, "") for heading in headings] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def provenance() -> dict[str, Any]:
    """Returns date, commit, machine and versions for a measurement."""
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    versions = {name: importlib.metadata.version(name) for name in LIBRARIES}
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": f", commit {head.stdout.strip()}",
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "versions": {"python": platform.python_version(), **versions},
    }
