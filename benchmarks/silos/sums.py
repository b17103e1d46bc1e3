"""Labels of the pool from feature sums of silos, against those of one holder at the same epsilon.

All silos take part. Each adds a share of the noise such that four fifths of them, of which a tenth
of all may collude, suffice. What opens is simulated, in the same whole numbers as over the network.
Labels are those of the first pass, of regression alone: the second one trains a network.
"""

import functools
import math
import pathlib
import tempfile
import time
import types
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from benchmarks.silos.kept import Bench, Row
from pate_tf.accounting.conversions import LATTICE
from pate_tf.accounting.local import SecureFeatureSums
from pate_tf.accounting.mechanisms import GaussianFeatureSums
from pate_tf.aggregation.feature_sums import sums_by_class
from pate_tf.aggregation.noise import SeededNoise
from pate_tf.core import artifacts
from pate_tf.core.sensitive import FeatureSums
from pate_tf.core.validation import IntArray
from pate_tf.data import catalogue
from pate_tf.models.encoder import record_vectors
from pate_tf.representations.catalogue import (
    default_of_teachers,
    encoder_of,
    pool_features_by_name,
)
from pate_tf.representations.regression import labels_of, neighbourhood_averages, regress_sums
from pate_tf.silos import (
    Asking,
    Coordinator,
    Member,
    Policy,
    Roster,
    Silo,
    SiloSums,
    simulated_total,
)
from pate_tf.silos.secure.keys import PartyKeys
from pate_tf.silos.secure.opening import simulated_parties
from pate_tf.silos.wire import reply_to_wire

DELTA = 1e-5
ONE_HOLDER, EVEN, TWO_CLASSES, USERS = "one holder", "even", "two classes", "users"


def rows(bench: Bench) -> Iterator[Row]:
    """Yields a row for each way to share the records out."""
    quick = bench.setting.name == "quick"
    epsilon = 2.0 if quick else 0.1
    ways = [(ONE_HOLDER, 1), (EVEN, 5), (TWO_CLASSES, 5), (EVEN, 50), (TWO_CLASSES, 50)]
    ways += [(USERS, 120)] if quick else [(EVEN, 1_000), (USERS, 6_000)]
    for kind, number in ways:
        config = {"silos": kind, "number": number, "epsilon": epsilon}
        yield bench.unit("sums", config, functools.partial(_row, bench, kind, number, epsilon))


def _row(bench: Bench, kind: str, number: int, epsilon: float) -> Row:
    pool, truth, noise = bench.split.pool, bench.truth, SeededNoise(1)
    name = "raw" if bench.setting.name == "quick" else default_of_teachers(pool.dataset)
    encoder = encoder_of(pool, name, 0)
    vectors, labels = _vectors(bench, name)
    least = max(2, math.ceil(0.8 * number))
    release = SecureFeatureSums.for_epsilon(
        epsilon,
        delta=DELTA,
        num_features=encoder.num_features,
        least_silos=least,
        colluding=max(1, number // 10),
        num_parties=4,
        threshold=1,
    )
    if kind == ONE_HOLDER:
        sums = sums_by_class(vectors, labels, num_classes=pool.dataset.num_classes)
        total, deviation = GaussianFeatureSums(release.sigma).draw_sums(sums, noise), release.sigma
    else:
        found = simulated_total(
            vectors,
            labels,
            silos_of(kind, labels, number),
            release,
            num_classes=pool.dataset.num_classes,
            noise=noise,
            unit="owner" if kind == USERS else "record",
        )
        if found is None:
            raise ValueError("silos: expected enough of them, got fewer")
        total, deviation = found, release.total_sigma(number)
    of_pool = record_vectors(encoder.features(pool.inputs), encoder.scale).astype(np.float32)
    views = neighbourhood_averages(pool_features_by_name(pool, name, 0))
    labels_of_pool = labels_of(regress_sums(views, of_pool, total / LATTICE, deviation))
    right = labels_of_pool.labels == truth[labels_of_pool.query_indices]
    return {"noise": deviation, "right": float(right.mean())}


def round_in_words(num_silos: int = 5, num_features: int = 1_152, num_classes: int = 10) -> str:
    """Returns what one round takes in one process, with four parties and their journals.

    Features and sums of records are known; made-up sums are shared, checked and opened.
    """
    names = [f"silo-{number}" for number in range(num_silos)]
    keys = {name: PartyKeys.generate(name) for name in names}
    release = SecureFeatureSums.for_epsilon(
        0.1,
        delta=DELTA,
        num_features=num_features,
        least_silos=num_silos - 1,
        colluding=1,
        num_parties=4,
        threshold=1,
    )
    made_up = np.full((num_features + 1, num_classes), 10**9)
    own = SiloSums(sums=FeatureSums(made_up), representation="made up")
    encoder = types.SimpleNamespace(digest="made up", num_features=num_features)
    pool = types.SimpleNamespace(dataset=types.SimpleNamespace(num_classes=num_classes))
    members = tuple(Member(name=name, epsilon=1.0, queries=1) for name in names)
    with tempfile.TemporaryDirectory() as root:
        folder = pathlib.Path(root)
        listed = [one.identity for one in keys.values()]
        sealer, parties = simulated_parties(folder / "parties", silos=listed)
        silos = [
            Silo(
                Policy(silo=name, epsilon_budget=1.0, delta=DELTA, allowed=(release.name,)),
                own,
                folder=None,  # an account on disk would be the silo's only one for ever
                sealer=sealer.with_keys(keys[name]),
            )
            for name in names
        ]
        roster = Roster(run_id="benchmark", delta=DELTA, members=members)
        asking = Asking(mechanism=release.to_dict())
        with Coordinator(
            roster, silos=silos, folder=folder / "c", asking=asking, secure=parties
        ) as coordinator:
            began, processor = time.monotonic(), time.process_time()
            one = coordinator.open_total(pool, encoder)
            seconds, processor = time.monotonic() - began, time.process_time() - processor
            reply = coordinator.queue.replies(one)[names[0]]
    size = reply_to_wire(reply).ByteSize()
    return (
        f"a round of {num_silos} silos and 4 parties, {made_up.size:,} numbers: {seconds:.1f} s, "
        f"{processor:.1f} s of processor time of all together; {size:,} bytes from each silo"
    )


def silos_of(kind: str, labels: IntArray, number: int) -> IntArray:
    """Returns whose each record is, `[num_records]`: at random, or of two classes or so each."""
    found = np.empty(len(labels), np.int64)
    if kind != TWO_CLASSES:
        found[np.random.default_rng(0).permutation(len(labels))] = np.arange(len(labels)) % number
        return found
    for place, block in enumerate(np.array_split(np.argsort(labels, kind="stable"), 2 * number)):
        found[block] = place % number
    return found


def _vectors(bench: Bench, name: str) -> tuple[npt.NDArray[np.float64], IntArray]:
    """SENSITIVE: returns vectors and labels of the private records; worked out once."""
    path = bench.folder / artifacts.SENSITIVE / f"vectors-{bench.setting.name}.npz"
    if not path.exists():
        bench.report("features of the private records")
        private = catalogue.load_private(bench.setting.dataset, data_dir=bench.data_dir)
        encoder = encoder_of(bench.split.pool, name, 0)
        found = record_vectors(encoder.features(private.inputs), encoder.scale)
        artifacts.make_sensitive_folder(path.parent)
        artifacts.write_arrays(path, {"vectors": found, "labels": private.labels}, private=True)
    arrays = artifacts.read_arrays(path)
    return arrays["vectors"], arrays["labels"]
