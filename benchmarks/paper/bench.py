"""What all experiments work with: sizes, ensembles, noise, and results that are kept.

A unit is what is measured at one go: an ensemble, a set of noisy labels, a student. Its result is
kept as JSON under the digest of what decides it, so that a run that was stopped measures no unit
twice and experiments share them.
"""

import dataclasses
import hashlib
import json
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pate_tf
from benchmarks.paper.ensembles import EnsembleName, Workshop
from benchmarks.paper.setting import Setting
from pate_tf.aggregation.noise import NoiseSource, SeededNoise, SystemNoise
from pate_tf.core import artifacts
from pate_tf.core.public import Pool
from pate_tf.core.sensitive import Votes
from pate_tf.data.tfds_source import SOURCES
from pate_tf.teachers.voters import StoredVotes, Voter

Report = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Measured:
    """The result of a unit.

    Attributes:
        result: JSON values.
        seconds: wall time that it took, whenever that was.
    """

    result: Mapping[str, Any]
    seconds: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bench:
    """Where experiments are run.

    Attributes:
        setting: how large they are.
        workshop: makes ensembles; its seed is that of all training.
        folder: kept results.
        insecure_seed: of the noise, for tests; None for the operating system's entropy.
        report: is told, in a line, what is being measured.
    """

    setting: Setting
    workshop: Workshop
    folder: pathlib.Path
    insecure_seed: int | None
    report: Report

    @property
    def seed(self) -> int:
        """Of training, partition and choices; not of the noise."""
        return self.workshop.seed

    def missing(self, dataset: str) -> str:
        """Returns why a data set can't be used here; empty if it can."""
        folder = self.workshop.data_dirs[dataset]
        if folder is None:
            return ""
        place = folder / (SOURCES[dataset].builder if dataset in SOURCES else dataset)
        return "" if place.is_dir() else f"{dataset} is not prepared in {folder}"

    def unit(
        self,
        kind: str,
        config: Mapping[str, Any],
        measure: Callable[[NoiseSource], Mapping[str, Any]],
    ) -> Measured:
        """Returns what was measured before under the same configuration, or measures and keeps.

        Args:
            kind: what is measured; with the configuration it decides the result.
            config: JSON values.
            measure: takes where noise comes from; called if there is no result.
        """
        decided_by = {
            "kind": kind,
            "config": dict(config),
            "setting": self.setting.name,
            "seed": self.seed,
            "insecure_seed": self.insecure_seed,
            "version": pate_tf.__version__,
        }
        digest = hashlib.sha256(json.dumps(decided_by, sort_keys=True).encode()).hexdigest()[:16]
        path = self.folder / f"{kind}-{digest}.json"
        if not path.exists():
            self.report(f"{kind}: {' '.join(_leaves(config))}")
            began = time.monotonic()
            result = measure(self._noise(digest))
            seconds = time.monotonic() - began
            self.folder.mkdir(parents=True, exist_ok=True)
            artifacts.write_json(path, {**decided_by, "result": dict(result), "seconds": seconds})
        kept = artifacts.read_json(path)
        return Measured(kept["result"], kept["seconds"])

    def _noise(self, digest: str) -> NoiseSource:
        # By unit, so that noise does not depend on what was measured before.
        if self.insecure_seed is None:
            return SystemNoise()
        return SeededNoise(int(digest, 16) ^ self.insecure_seed)

    def ensemble(self, name: EnsembleName) -> Measured:
        """Trains an ensemble and asks it for all votes, unless that was done before.

        Its result: mean, worst and best accuracy of a teacher, and that of the plurality, on all
        public samples, `mean_held_out` on those outside of the student's pool alone.
        """

        def measure(noise: NoiseSource) -> dict[str, Any]:
            del noise
            votes = self.workshop.votes(name)
            public = self.workshop.public(name.dataset)
            right = votes.labels == public.labels
            accuracies = right.mean(axis=1)
            plurality = votes.counts().values.argmax(axis=1)
            return {
                "mean": float(accuracies.mean()),
                "worst": float(accuracies.min()),
                "best": float(accuracies.max()),
                "plurality": float((plurality == public.labels).mean()),
                "mean_held_out": float(right[:, public.dataset.pool_size :].mean()),
            }

        return self.unit("ensemble", dataclasses.asdict(name), measure)

    def votes(self, name: EnsembleName) -> Votes:
        """Returns every teacher's vote on every public sample. Sensitive for private data."""
        self.ensemble(name)
        return self.workshop.votes(name)

    def voter(self, name: EnsembleName) -> Voter:
        """Returns an ensemble that answers from its kept votes. Sensitive for private data."""
        public = self.workshop.public(name.dataset)
        return StoredVotes(self.votes(name), Pool(public.dataset, public.inputs))


def _leaves(values: Mapping[str, Any]) -> Iterator[str]:
    for value in values.values():
        if isinstance(value, Mapping):
            yield from _leaves(value)
        else:
            yield str(value)
