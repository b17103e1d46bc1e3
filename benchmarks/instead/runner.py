"""Runs methods cell by cell, and keeps what was found."""

import contextlib
import dataclasses
import os
import pathlib
import shutil
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from benchmarks.instead import library
from benchmarks.instead.methods import LEARNT, METHODS, SCATTERED, STRONG, WEAK, Method
from benchmarks.instead.problem import Features, Problem
from benchmarks.paper.bench import Bench
from pate_tf.aggregation.noise import NoiseSource

MODELS = {WEAK: library.WEAK, STRONG: library.STRONG}
FEATURES: dict[str, Callable[[Problem], Features]] = {
    LEARNT: lambda problem: problem.learnt,
    SCATTERED: lambda problem: problem.scattered,
}
Row = dict[str, object]


class NotMeasuredError(Exception):
    """A cell that is to be shown was never measured."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """What is compared.

    Attributes:
        problem: the data.
        bench: keeps results; tells what is measured.
        epsilons: at delta 1e-5, against replacement of a record.
        methods: names of `METHODS`.
        repetitions: of each cell.
        only_kept: whether cells that were not measured before are left out.
    """

    problem: Problem
    bench: Bench
    epsilons: Sequence[float]
    methods: Sequence[str]
    repetitions: int
    only_kept: bool = False

    def forget(self, names: Sequence[str]) -> None:
        """Removes what was measured of methods before, and the teachers of ours."""
        for name in names:
            for path in self.bench.folder.glob(f"{name}-*.json"):
                path.unlink()
        if any(METHODS[name].teachers for name in names):
            for kind in MODELS:
                shutil.rmtree(self._folder(kind), ignore_errors=True)
                for path in self.bench.folder.glob(f"teachers_{kind}-*.json"):
                    path.unlink()

    def rows(self) -> Iterator[Row]:
        """Yields a row for each method and epsilon: first what is cheap, for all epsilons."""
        for name in self.methods:
            method = METHODS[name]
            if not method.fits(self.problem.dataset.kind):
                continue
            for epsilon in self.epsilons if method.is_private else (None,):
                with contextlib.suppress(NotMeasuredError):
                    yield self._row(name, method, epsilon)

    def _unit(self, kind: str, config: Row, measure: Callable[[NoiseSource], Row]) -> Row:
        def refuse(noise: NoiseSource) -> Row:
            raise NotMeasuredError(kind)

        decided = {"dataset": self.problem.source.dataset, **config}
        measured = self.bench.unit(kind, decided, refuse if self.only_kept else measure)
        return {**measured.result, "seconds": measured.seconds}

    def _folder(self, kind: str) -> pathlib.Path:
        return self.bench.workshop.folder / f"teachers_{kind}"

    def _shared(self, method: Method) -> tuple[float, Row]:
        """Seconds of what all cells of a method share, and what was found about its teachers."""
        seconds, teachers = 0.0, {}
        if method.features is not None:
            seconds += float(
                self._unit(method.features, {}, lambda noise: self._features(method.features))[
                    "seconds"
                ]
            )
        if method.teachers is not None:
            kind, folder = method.teachers, self._folder(method.teachers)
            teachers = self._unit(
                f"teachers_{kind}",
                {"model": MODELS[kind]},
                lambda noise: library.train(self.problem, folder, MODELS[kind]),
            )
            seconds += float(teachers.pop("seconds"))
        return seconds, teachers

    def _features(self, kind: str) -> Row:
        taken = FEATURES[kind](self.problem)
        return {"features": taken.private.shape[1], "records": len(taken.private)}

    def _row(self, name: str, method: Method, epsilon: float | None) -> Row:
        shared, teachers = self._shared(method)
        cells = [self._cell(name, method, epsilon, 0)]
        for number in range(1, self.repetitions):
            with contextlib.suppress(NotMeasuredError):  # as many as are kept
                cells.append(self._cell(name, method, epsilon, number))
        right = [cell["accuracy"] for cell in cells if cell["accuracy"] is not None]
        return {
            "method": name,
            "title": method.title,
            "epsilon": epsilon,
            "accuracy": float(np.median(right)) if right else None,
            "seconds": float(np.median([cell["seconds"] for cell in cells])),
            "seconds_shared": shared,
            **teachers,
            "repetitions": cells,
        }

    def _cell(self, name: str, method: Method, epsilon: float | None, repetition: int) -> Row:
        def measure(noise: NoiseSource) -> Row:
            began = time.monotonic()
            if method.features is not None and method.teachers is None:
                # Taken up from where they were kept: their time is that of all cells.
                self._features(method.features)
            taken = time.monotonic() - began
            folder = self._folder(method.teachers) if method.teachers else self.bench.folder
            try:
                found = method.run(self.problem, epsilon or 0.0, noise, repetition, folder)
            except ValueError as error:
                if "epsilon: expected" not in str(error):
                    raise
                found = {"accuracy": None, "why": str(error)}  # no label at this epsilon
            cores = f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}"
            return {**found, "seconds_taking_up": taken, "cores": cores}

        cell = self._unit(name, {"epsilon": epsilon, "repetition": repetition}, measure)
        taken = float(cell.pop("seconds_taking_up", 0.0))
        return {**cell, "seconds": float(cell["seconds"]) - taken}
