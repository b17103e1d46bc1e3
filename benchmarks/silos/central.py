"""Secure aggregation: a trusted centre's labels, at noise half again as large in variance."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.silos.kept import Bench, Row
from benchmarks.silos.rounds import DELTA, Answered, answered
from benchmarks.silos.setting import EVEN
from benchmarks.silos.survival import counts_of
from pate_tf.accounting.mechanisms import GaussianHistogram
from pate_tf.core.public import Pool
from pate_tf.core.validation import IntArray

PARTIES, THRESHOLD = 4, 1
TRUSTED_DRAWS = 20


def secure(
    votes: IntArray, pool: Pool, sigma: float, *, num_queries: int, strategy: str = "first"
) -> Answered:
    """Puts queries to silos whose votes four parties in this process add up."""
    mechanism = {
        "name": "secure_histogram",
        "sigma": sigma,
        "num_parties": PARTIES,
        "threshold": THRESHOLD,
    }
    with tempfile.TemporaryDirectory() as folder:
        return answered(
            votes,
            pool,
            mechanism,
            num_queries=num_queries,
            strategy=strategy,
            folder=Path(folder),
        )


def rows(bench: Bench) -> Iterator[Row]:
    """Yields a row for each kind of teacher, number of queries and sigma."""
    setting = bench.setting
    for teacher in setting.teachers:
        for number in (setting.few_queries, setting.num_queries):
            for sigma in setting.sigmas:
                config = {"teacher": teacher, "queries": number, "sigma": sigma}
                yield bench.unit("secure", config, lambda config=config: _measured(bench, **config))


def _measured(bench: Bench, teacher: str, queries: int, sigma: float) -> Row:
    votes = bench.votes(EVEN, teacher, bench.setting.num_queries)
    truth, pool = bench.truth[:queries], bench.split.pool
    counts = counts_of(votes[:, :queries], pool.dataset.num_classes)
    found = secure(votes, pool, sigma, num_queries=queries)
    generator = np.random.default_rng(0)  # protects nothing: what a trusted centre would give

    def centre(variance: float) -> float:
        noise = generator.normal(0.0, sigma * variance**0.5, (TRUSTED_DRAWS, *counts.shape))
        return float(((counts + noise).argmax(axis=2) == truth).mean())

    trusted, _ = GaussianHistogram(sigma=sigma).data_independent_epsilon(
        num_queries=queries, delta=DELTA
    )
    return {
        "label_accuracy": float((found.labels.labels == truth).mean()),
        "centre_accuracy": centre(1.0),
        "centre_accuracy_louder": centre(PARTIES / (PARTIES - THRESHOLD)),
        "plurality_accuracy": float((counts.argmax(axis=1) == truth).mean()),
        "epsilon": found.epsilon,
        "centre_epsilon": trusted,
    }
