"""Measurements that are kept: a run that was stopped repeats none."""

import dataclasses
import hashlib
import json
import pathlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from benchmarks.silos.setting import Setting
from benchmarks.silos.votes import kept_votes
from pate_tf.core import artifacts
from pate_tf.core.public import PublicSplit
from pate_tf.core.validation import IntArray
from pate_tf.data import catalogue

Row = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bench:
    """Where everything is measured.

    Attributes:
        setting: sizes.
        folder: holds `units/`, and below `sensitive/` the votes.
        data_dir: where the data lie.
        report: is told what takes long.
    """

    setting: Setting
    folder: pathlib.Path
    data_dir: pathlib.Path | None
    report: Callable[[str], None]
    _loaded: dict[str, Any] = dataclasses.field(default_factory=dict, repr=False)

    @property
    def split(self) -> PublicSplit:
        """The pool and the held-out samples."""
        if "split" not in self._loaded:
            name = self.setting.dataset
            public = catalogue.load_public(name, data_dir=self.data_dir)
            self._loaded["split"] = public.split(public.dataset.pool_size)
        found: PublicSplit = self._loaded["split"]
        return found

    @property
    def truth(self) -> IntArray:
        """The true label of all of the pool."""
        samples = catalogue.load_public(self.setting.dataset, data_dir=self.data_dir)
        if samples.labels is None:
            raise ValueError("dataset: expected public labels, got none")
        return np.asarray(samples.labels[: len(self.split.pool)])

    def votes(self, kind: str, teacher: str, number: int) -> IntArray:
        """Sensitive: every silo's votes on the first of the pool, `[num_silos, number]`."""
        return kept_votes(
            kind,
            teacher,
            number,
            self.setting,
            folder=self.folder / artifacts.SENSITIVE,
            data_dir=self.data_dir,
            report=self.report,
        )

    def unit(self, kind: str, config: Mapping[str, Any], measure: Callable[[], Row]) -> Row:
        """Returns what was measured before under this configuration, or measures and keeps it."""
        decided_by = {"kind": kind, "config": dict(config), "setting": self.setting.name}
        digest = hashlib.sha256(json.dumps(decided_by, sort_keys=True).encode()).hexdigest()[:16]
        path = self.folder / "units" / f"{kind}-{digest}.json"
        if not path.exists():
            self.report(f"{kind}: {' '.join(str(value) for value in config.values())}")
            began = time.monotonic()
            result = {**config, **measure(), "seconds": time.monotonic() - began}
            path.parent.mkdir(parents=True, exist_ok=True)
            artifacts.write_json(path, {**decided_by, "result": result})
        found: Row = artifacts.read_json(path)["result"]
        return found
