"""Simulated silos: `python -m benchmarks.silos [--only votes secure sums]`.

250 silos hold equal shards of MNIST's private records. `votes` and `secure` label the first inputs
of the pool by the silos' random forests. `votes` uses randomized response, with a charge to the
silo's account for each answer. `secure` uses secure aggregation with four aggregators. `sums`
compares feature sums of silos that hold all classes, or two each, with feature sums of a single
data holder at the same epsilon. Measurements are stored in `--folder`. `--quick` takes the embedded
digits.
"""

import argparse
import dataclasses
import functools
import math
import os
import pathlib
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

import pate_tf
from benchmarks.harness import (
    DELTA,
    Measurements,
    data_dir_of,
    markdown_table,
    percent,
    separate_registry,
)
from pate_tf.accounting.composition import smallest_epsilon
from pate_tf.accounting.conversions import LATTICE
from pate_tf.accounting.local import RandomisedResponse, SecureFeatureSums, SecureHistogram
from pate_tf.accounting.mechanisms import GaussianFeatureSums
from pate_tf.core import artifacts
from pate_tf.core.checks import IntArray
from pate_tf.core.sensitive import random_partition
from pate_tf.models.encoder import record_vectors
from pate_tf.postprocessing.regression import (
    NoisySums,
    labels_of,
    neighbourhood_averages,
    regress_sums,
)
from pate_tf.release.exact_sums import sums_by_class
from pate_tf.release.noise import SystemNoise
from pate_tf.representations.catalogue import default_of_sums, encoder_of, pool_features_by_name
from pate_tf.silos import Asking, Coordinator, Member, Policy, Silo, SiloRoster, SiloTeacher
from pate_tf.silos.aggregator import Aggregator
from pate_tf.silos.messages import Mechanism
from pate_tf.silos.protocol import Keys

EVEN, TWO_CLASSES, USERS = "of all classes", "of two classes each", "of one person each"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Simulation:
    """Silos of one data set.

    Attributes:
        measurements: stored results.
        folder: sensitive; holds votes.
        is_quick: whether to use few and small silos.
    """

    measurements: Measurements
    folder: pathlib.Path
    is_quick: bool

    @functools.cached_property
    def data(self) -> pate_tf.Data:
        """The private records and the pool."""
        name = "digits" if self.is_quick else "mnist"
        return pate_tf.Data.load(name, data_dir=data_dir_of(name, None))

    @property
    def truth(self) -> IntArray:
        """True labels of the pool."""
        if self.data.public.pool.true_labels is None:
            raise ValueError("data set: the pool must have labels")
        return self.data.public.pool.true_labels

    @functools.cached_property
    def votes(self) -> IntArray:
        """SENSITIVE: votes of each silo's forest, `[num_silos, num_queries]`."""
        num_silos, num_queries = (12, 60) if self.is_quick else (250, 1_000)
        path = self.folder / f"votes-{num_silos}.npz"
        if not path.exists():
            artifacts.make_sensitive_folder(self.folder)
            with separate_registry() as folder:
                teachers = pate_tf.Teachers(
                    "random_forest", num_teachers=num_silos, directory=folder / "run"
                ).fit(self.data.private)
                votes = teachers.votes(self.data.pool.inputs[:num_queries])
            artifacts.write_arrays(path, {"votes": votes}, private=True)
        return artifacts.read_arrays(path)["votes"]

    def label(self, mechanism: Mechanism, num_silos: int, num_queries: int) -> Any:
        """Labels the first inputs of the pool. Returns labels, and epsilon of each silo."""
        pool, votes = self.data.pool, self.votes[:num_silos]
        columns = {row.tobytes(): place for place, row in enumerate(pool.inputs[:num_queries])}
        names = [f"silo-{number}" for number in range(num_silos)]
        with separate_registry() as folder:
            number = getattr(mechanism, "num_parties", 0)
            keys = [Keys(f"aggregator-{place}") for place in range(number)]
            aggregators = [Aggregator(each, folder / each.identity.name) for each in keys]
            roster = SiloRoster(
                run="benchmark",
                delta=DELTA,
                members=tuple(Member(name=name) for name in names),
                aggregators=tuple(each.identity for each in keys),
            )
            silos = [
                Silo(
                    Policy(
                        silo=name,
                        epsilon_budget=1e9,
                        delta=DELTA,
                        queries_per_day=10**6,
                        allowed=(mechanism.name,),
                        most_epsilon=40.0,
                        least_sigma=1e-3,
                    ),
                    SiloTeacher(
                        lambda inputs, row=row: row[[columns[query.tobytes()] for query in inputs]],
                        num_classes=pool.dataset.num_classes,
                    ),
                    folder=None,
                    roster=roster,
                )
                for name, row in zip(names, votes, strict=True)
            ]
            with Coordinator(
                roster,
                folder=None,
                silos=silos,
                asking=Asking(mechanism=mechanism),
                aggregators=[aggregator.answer for aggregator in aggregators],
            ) as coordinator:
                labels = coordinator.label(pool, num_queries=num_queries, strategy="first")
        return labels.labels, smallest_epsilon({mechanism: num_queries}, DELTA)[0]

    def counts(self, num_silos: int, num_queries: int) -> IntArray:
        """SENSITIVE: returns votes for each class, `[num_queries, num_classes]`."""
        classes = range(self.data.dataset.num_classes)
        votes = self.votes[:num_silos, :num_queries]
        return np.stack([(votes == label).sum(axis=0) for label in classes], axis=1)

    @functools.cached_property
    def vectors(self) -> tuple[np.ndarray, np.ndarray, list[Any]]:
        """SENSITIVE: vectors of the private records and of the pool; averages of the pool."""
        pool = self.data.pool
        name = "raw" if self.is_quick else default_of_sums(self.data.dataset)
        encoder = encoder_of(pool, name, 0)
        private, public = (
            record_vectors(encoder.features(side.inputs), encoder.scale)
            for side in (self.data.private, pool)
        )
        averages = neighbourhood_averages(pool_features_by_name(pool, name, 0))
        return private, public.astype(np.float32), list(averages)


def votes(simulation: Simulation) -> Iterator[dict[str, str]]:
    """Compares how often randomized response keeps the plurality with the expected frequency."""
    num_classes = simulation.data.dataset.num_classes
    num_queries = simulation.votes.shape[1]
    for num_silos in (4, 12) if simulation.is_quick else (10, 50, 250):
        for epsilon in (2.0, 4.0) if simulation.is_quick else (0.5, 1.0, 2.0, 4.0):

            def measure(num_silos: int = num_silos, epsilon: float = epsilon) -> dict[str, float]:
                counts = simulation.counts(num_silos, num_queries)
                plurality, truth = counts.argmax(axis=1), simulation.truth[:num_queries]
                law = RandomisedResponse(num_classes=num_classes, epsilon=epsilon)
                labels, _ = simulation.label(law, num_silos, num_queries)
                return {
                    "survives": float((labels == plurality).mean()),
                    "labels": float((labels == truth).mean()),
                    "plurality": float((plurality == truth).mean()),
                }

            config = {"silos": num_silos, "epsilon": epsilon}
            result = simulation.measurements.of("silo_votes", config, measure).result
            yield {
                "silos": str(num_silos),
                "epsilon of one answer": f"{epsilon:g}",
                "survives": f"{result['survives']:.3f}",
                "labels correct": percent(result["labels"], 1),
                "without noise": percent(result["plurality"], 1),
            }


def secure(simulation: Simulation) -> Iterator[dict[str, str]]:
    """Labels by secure aggregation of four aggregators, one of which may be corrupt."""
    num_silos, most = simulation.votes.shape
    for num_queries in (20, most) if simulation.is_quick else (100, most):
        for sigma in (1.0,) if simulation.is_quick else (20.0, 40.0, 80.0):

            def measure(num_queries: int = num_queries, sigma: float = sigma) -> dict[str, float]:
                mechanism = SecureHistogram(sigma=sigma, num_parties=4, threshold=1)
                labels, epsilon = simulation.label(mechanism, num_silos, num_queries)
                truth = simulation.truth[:num_queries]
                plurality = simulation.counts(num_silos, num_queries).argmax(axis=1)
                return {
                    "epsilon": epsilon,
                    "labels": float((labels == truth).mean()),
                    "plurality": float((plurality == truth).mean()),
                }

            config = {"queries": num_queries, "sigma": sigma}
            result = simulation.measurements.of("silo_secure", config, measure).result
            yield {
                "queries": f"{num_queries:,}",
                "sigma": f"{sigma:g}",
                "epsilon of each silo": f"{result['epsilon']:.2f}",
                "labels correct": percent(result["labels"], 1),
                "without noise": percent(result["plurality"], 1),
            }


def sums(simulation: Simulation) -> Iterator[dict[str, str]]:
    """Labels from noisy feature sums, by linear regression, for several draws of the noise."""
    quick = simulation.is_quick
    epsilon, numbers = (2.0, (5, 50)) if quick else (0.1, (5, 50, 1_000))
    designs = [("one holder", 1, epsilon)]
    designs += [(kind, number, epsilon) for number in numbers for kind in (EVEN, TWO_CLASSES)]
    designs.append((USERS, 120, 2.0) if quick else (USERS, 6_000, 1.0))
    for kind, number, target in designs:

        def measure(
            kind: str = kind, number: int = number, target: float = target
        ) -> dict[str, Any]:
            totals = [
                noisy_total(simulation, kind, number, target) for _ in range(10 if quick else 3)
            ]
            _, public, averages = simulation.vectors
            shares = []
            for total, deviation in totals:
                noisy = NoisySums.of_features(public, total / LATTICE, deviation)
                labels = labels_of(regress_sums(averages, noisy)[0].means)
                truth = simulation.truth[labels.query_indices]
                shares.append(float((labels.labels == truth).mean()))
            return {"shares": shares, "noise": totals[0][1]}

        config = {"records": kind, "silos": number, "epsilon": target}
        result = simulation.measurements.of("silo_sums", config, measure).result
        shares = result["shares"]
        error = 100 * float(np.std(shares, ddof=1)) / len(shares) ** 0.5
        yield {
            "records": kind,
            "silos": f"{number:,}",
            "epsilon": f"{target:g}",
            "noise on a number": f"{result['noise']:.1f}",
            "labels correct": f"{percent(float(np.mean(shares)))} ± {error:.2f}",
        }


def noisy_total(
    simulation: Simulation, kind: str, number: int, epsilon: float
) -> tuple[IntArray, float]:
    """Returns the opened total, int64 `[num_features + 1, num_classes]`, and its noise.

    Each silo adds a noise share. Four fifths of the silos must suffice, although a tenth of all may
    collude. All silos take part.
    """
    private, _, _ = simulation.vectors
    labels, num_classes = simulation.data.private.labels, simulation.data.dataset.num_classes
    release = SecureFeatureSums.for_epsilon(
        epsilon,
        delta=DELTA,
        num_features=private.shape[1] - 1,
        least_silos=max(2, math.ceil(0.8 * number)),
        colluding=max(1, number // 10),
        num_parties=4,
        threshold=1,
    )
    if number == 1:
        exact = sums_by_class(private, labels, num_classes=num_classes)
        mechanism = GaussianFeatureSums(sigma=release.sigma)
        return mechanism.draw_sums(exact, SystemNoise()), release.sigma
    silo_of = np.empty(len(labels), np.int64)
    if kind == TWO_CLASSES:
        blocks = np.array_split(np.argsort(labels, kind="stable"), 2 * number)
        for place, block in enumerate(blocks):
            silo_of[block] = place % number
    else:
        partition = random_partition(num_records=len(labels), num_teachers=number, seed=0)
        for silo, records in enumerate(partition.all_records()):
            silo_of[records] = silo
    owners = silo_of if kind == USERS else None
    total = sums_by_class(private, labels, num_classes=num_classes, owners=owners)
    num_silos, noise = len(np.unique(silo_of)), SystemNoise()
    if num_silos < release.least_silos:
        raise ValueError("silos: there are too few silos")
    for _ in range(num_silos):  # each adds its own noise
        total += noise.gaussian_integers(release.share_scale, total.size).reshape(total.shape)
    return total, release.total_sigma(num_silos)


PARTS = {part.__name__: part for part in (votes, secure, sums)}


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("runs/silos"))
    flags = parser.parse_args()
    setting = "quick" if flags.quick else "full"
    simulation = Simulation(
        measurements=Measurements(folder=flags.folder / "measurements", setting=setting),
        folder=flags.folder / artifacts.SENSITIVE,
        is_quick=flags.quick,
    )
    for name in flags.only:
        print(f"\n{name}\n\n{markdown_table(list(PARTS[name](simulation)))}", flush=True)


if __name__ == "__main__":
    main()
