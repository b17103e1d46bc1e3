"""What silos' feature sums give, beside those of one holder at the same epsilon.

All silos take part. Each adds a share of the noise such that four fifths of them, of which a tenth
of all may collude, suffice. What opens is simulated, in the same whole numbers as over the network.
Labels of the first pass are those of regression alone, the mean over several draws of noise. For
the first draw it is verified that the total is the same whichever silo holds which records. With
`--networks 1 5` the first draw of one holder and of five silos goes on as
`Coordinator.label_from_sums` does: a second pass, which trains a network, and a student with the
default configuration.
"""

import dataclasses
import functools
import math
from collections.abc import Collection, Iterator

import numpy as np
import numpy.typing as npt

from benchmarks.silos.kept import Bench, Row
from pate_tf.accounting.conversions import LATTICE
from pate_tf.accounting.local import SecureFeatureSums
from pate_tf.accounting.mechanisms import GaussianFeatureSums
from pate_tf.aggregation.feature_sums import sums_by_class
from pate_tf.aggregation.noise import SeededNoise
from pate_tf.core import artifacts
from pate_tf.core.public import PoolLabels
from pate_tf.core.validation import IntArray
from pate_tf.data import catalogue
from pate_tf.models.encoder import record_vectors
from pate_tf.queries.propagation import infer_from_sums
from pate_tf.representations.catalogue import (
    default_of_sums,
    encoder_of,
    pool_features_by_name,
)
from pate_tf.representations.regression import (
    Averages,
    NoisySums,
    labels_of,
    neighbourhood_averages,
    regress_sums,
)
from pate_tf.students.batches import outputs
from pate_tf.students.config import StudentSettings, complete, find_student
from pate_tf.students.evaluation import accuracy, true_labels

DELTA = 1e-5
DRAWS, DRAWS_QUICK = 3, 10  # of the noise
ONE_HOLDER, EVEN, TWO_CLASSES, TENTH = "one holder", "even", "two classes", "half a tenth"
USERS = "users"


def rows(bench: Bench, networks: Collection[int] = ()) -> Iterator[Row]:
    """Yields a row for each way to share the records out.

    Args:
        bench: where it is measured.
        networks: numbers of silos whose first draw of noise is followed to a student.
    """
    quick, problem = bench.setting.name == "quick", _Problem(bench)
    epsilon = 2.0 if quick else 0.1
    numbers = (5, 50) if quick else (5, 50, 1_000)
    ways = [(ONE_HOLDER, 1, epsilon), *((EVEN, number, epsilon) for number in numbers)]
    ways.append((USERS, 120, epsilon) if quick else (USERS, 6_000, 1.0))
    for kind, number, its_epsilon in ways:
        config = {"silos": kind, "number": number, "epsilon": its_epsilon}
        draws = [
            bench.unit(
                "sums",
                {**config, "seed": seed},
                functools.partial(problem.draw, **config, seed=seed),
            )
            for seed in range(DRAWS_QUICK if quick else DRAWS)
        ]
        for other in (TWO_CLASSES, TENTH) if kind == EVEN else ():
            changed = {**config, "silos": other}
            same = bench.unit(
                "total", changed, functools.partial(problem.digest, **changed, seed=0)
            )
            if same["total"] != draws[0]["total"]:
                raise ValueError(f"total: expected that of {kind} silos, got another: {other}")
        student: Row = {}
        if number in networks:
            follow = functools.partial(problem.student, **config, seed=0)
            student = bench.unit("network", config, follow)
        right = [one["right"] for one in draws]
        yield {**config, "noise": draws[0]["noise"], **student, "right": right}


@dataclasses.dataclass(frozen=True)
class _Problem:
    """SENSITIVE: records that silos share, and the pool that gets labels."""

    bench: Bench

    def digest(self, silos: str, number: int, epsilon: float, *, seed: int) -> Row:
        """Returns the digest of a total."""
        return {"total": artifacts.digest_array(self.total(silos, number, epsilon, seed)[0])}

    def draw(self, silos: str, number: int, epsilon: float, *, seed: int) -> Row:
        """Returns a total's digest, its noise, and the share of right labels of the pool."""
        total, noise = self.total(silos, number, epsilon, seed)
        labels = labels_of(regress_sums(self.averages, self.noisy(total, noise)))
        right = float((labels.labels == self.bench.truth[labels.query_indices]).mean())
        return {"total": artifacts.digest_array(total), "noise": noise, "right": right}

    def student(self, silos: str, number: int, epsilon: float, *, seed: int) -> Row:
        """Returns the share of right labels after the second pass, and of a student's."""
        split = self.bench.split
        learnt = self.learnt(*self.total(silos, number, epsilon, seed))
        config = complete(StudentSettings(), split.dataset, labels_whole_pool=True)
        model = find_student(config, split.dataset).train(config, learnt, split.pool)
        given = outputs(model, split.held_out.inputs).argmax(axis=1)
        of_pool = np.full(len(split.pool), -1)  # an input without a label counts as wrong
        of_pool[learnt.query_indices] = learnt.labels
        return {
            "learnt": float((of_pool == self.bench.truth).mean()),
            "student": accuracy(given, true_labels(split.held_out)).value,
        }

    def learnt(self, total: IntArray, noise: float) -> PoolLabels:
        """Returns what a student learns from; worked out once."""
        path = self.bench.folder / f"learnt-{artifacts.digest_array(total)[:16]}.npz"
        if not path.exists():
            self.bench.report("second pass")
            noisy = self.noisy(total, noise)
            found = infer_from_sums(self.bench.split.pool, noisy, 0, representation=self.name)
            labels = dataclasses.asdict(found.learnt)
            artifacts.write_arrays(
                path, {k: np.asarray(v) for k, v in labels.items() if v is not None}
            )
        stored = artifacts.read_arrays(path)
        return PoolLabels(
            query_indices=stored["query_indices"],
            labels=stored["labels"],
            num_classes=int(stored["num_classes"]),
            weights=stored.get("weights"),
        )

    def total(self, kind: str, number: int, epsilon: float, seed: int) -> tuple[IntArray, float]:
        """Returns what opens, int64 `[num_features + 1, num_classes]`, and the noise on each."""
        vectors, labels = self.vectors
        num_classes, noise = self.bench.split.dataset.num_classes, SeededNoise(seed)
        release = SecureFeatureSums.for_epsilon(
            epsilon,
            delta=DELTA,
            num_features=vectors.shape[1] - 1,
            least_silos=max(2, math.ceil(0.8 * number)),
            colluding=max(1, number // 10),
            num_parties=4,
            threshold=1,
        )
        if kind == ONE_HOLDER:
            sums = sums_by_class(vectors, labels, num_classes=num_classes)
            return GaussianFeatureSums(release.sigma).draw_sums(sums, noise), release.sigma
        silos = silos_of(kind, labels, number)
        owners = silos if kind == USERS else None
        total = sums_by_class(vectors, labels, num_classes=num_classes, owners=owners)
        num_silos = len(np.unique(silos))
        if num_silos < release.least_silos:
            raise ValueError("silos: expected enough of them, got fewer")
        for _ in range(num_silos):
            total += noise.gaussian_integers(release.share_scale, total.size).reshape(total.shape)
        return total, release.total_sigma(number)

    def noisy(self, total: IntArray, deviation: float) -> NoisySums:
        return NoisySums.of_features(self.of_pool, total / LATTICE, deviation)

    @property
    def name(self) -> str:
        """Of the representation."""
        split = self.bench.split
        return "raw" if self.bench.setting.name == "quick" else default_of_sums(split.dataset)

    @functools.cached_property
    def averages(self) -> list[Averages]:
        views = pool_features_by_name(self.bench.split.pool, self.name, 0)
        return list(neighbourhood_averages(views))

    @functools.cached_property
    def of_pool(self) -> npt.NDArray[np.float32]:
        pool = self.bench.split.pool
        encoder = encoder_of(pool, self.name, 0)
        return record_vectors(encoder.features(pool.inputs), encoder.scale).astype(np.float32)

    @functools.cached_property
    def vectors(self) -> tuple[npt.NDArray[np.float64], IntArray]:
        """SENSITIVE: vectors and labels of the private records; worked out once."""
        bench = self.bench
        path = bench.folder / artifacts.SENSITIVE / f"vectors-{bench.setting.name}.npz"
        if not path.exists():
            bench.report("features of the private records")
            private = catalogue.load_private(bench.setting.dataset, data_dir=bench.data_dir)
            encoder = encoder_of(bench.split.pool, self.name, 0)
            found = record_vectors(encoder.features(private.inputs), encoder.scale)
            artifacts.make_sensitive_folder(path.parent)
            artifacts.write_arrays(path, {"vectors": found, "labels": private.labels}, private=True)
        arrays = artifacts.read_arrays(path)
        return arrays["vectors"], arrays["labels"]


def silos_of(kind: str, labels: IntArray, number: int) -> IntArray:
    """Returns whose each record is, `[num_records]`.

    At random in equal parts; of two classes or so each; or at random where every other silo holds a
    tenth of what the others do.
    """
    found = np.empty(len(labels), np.int64)
    if kind == TWO_CLASSES:
        blocks = np.array_split(np.argsort(labels, kind="stable"), 2 * number)
        for place, block in enumerate(blocks):
            found[block] = place % number
        return found
    order = np.random.default_rng(0).permutation(len(labels))
    shares = np.where(np.arange(number) % 2, 0.1, 1.0) if kind == TENTH else np.ones(number)
    ends = np.round(np.cumsum(shares) / shares.sum() * len(labels)).astype(np.int64)
    found[order] = np.searchsorted(ends, np.arange(len(labels)), side="right")
    return found
