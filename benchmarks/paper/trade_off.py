"""Expected accuracy of labels against their publishable epsilon. No training."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.paper.bench import Bench, Measured
from benchmarks.paper.ensembles import EnsembleName
from benchmarks.paper.setting import delta_of
from pate_tf.accounting.mechanisms import (
    ExponentialMechanism,
    GaussianNoisyMax,
    LaplaceNoisyMax,
    Mechanism,
    PermuteAndFlip,
)
from pate_tf.accounting.mechanisms.base import numbers
from pate_tf.accounting.planning import least_noise
from pate_tf.aggregation.noise import NoiseSource
from pate_tf.analysis.release import release_log_cost
from pate_tf.analysis.release_planning import SANITISED, ReleaseRequest
from pate_tf.core.validation import IntArray

KINDS = (LaplaceNoisyMax, PermuteAndFlip, ExponentialMechanism, GaussianNoisyMax)
TARGETS = (0.3, 0.6, 1.0, 1.5, 2.0, 3.0)  # data-independent epsilons that scales are made for


def trade_off(bench: Bench, ensemble: EnsembleName, num_queries: int) -> Measured:
    """Tries mechanisms and scales on the first samples of the pool.

    Its result: `offers`, each with mechanism, scale in votes, epsilons (the sanitised one at the
    median of its noise, the smaller of both as `epsilon`) and the expected share of right labels.
    """

    def measure(noise: NoiseSource) -> dict[str, Any]:
        del noise
        counts = bench.votes(ensemble).counts().values[:num_queries]
        truth = bench.workshop.public(ensemble.dataset).labels[:num_queries]
        delta = delta_of(ensemble.dataset)
        offers = []
        for kind in KINDS:
            for target in TARGETS:
                mechanism = least_noise(kind, num_queries=num_queries, epsilon=target, delta=delta)
                offers.append(_offer(mechanism, counts, truth, delta))
        return {"offers": offers}

    config = {
        "dataset": ensemble.dataset,
        "num_teachers": ensemble.num_teachers,
        "num_queries": num_queries,
    }
    bench.ensemble(ensemble)
    return bench.unit("trade_off", config, measure)


def _offer(
    mechanism: Mechanism, counts: IntArray, truth: IntArray, delta: float
) -> Mapping[str, Any]:
    law = mechanism.outcome_probabilities(counts)
    independent, _ = mechanism.data_independent_epsilon(num_queries=len(counts), delta=delta)
    plan = ReleaseRequest(kinds=(SANITISED,), delta=delta).plan(
        mechanism,
        num_queries=len(counts),
        num_teachers=int(counts[0].sum()),
        num_classes=counts.shape[1],
    )
    at_median = release_log_cost(counts, mechanism, plan, adaptive=False, noise=lambda sigma: 0)
    sanitised = at_median.sanitised_epsilon(delta).epsilon
    return {
        "mechanism": mechanism.name,
        "scale": scale_of(mechanism),
        "data_independent": independent,
        "sanitised": sanitised,
        "epsilon": min(independent, sanitised),
        "labels_right": float(law[np.arange(len(truth)), truth].mean()),
    }


def scale_of(mechanism: Mechanism) -> float:
    """The scale of a mechanism's noise, in votes.

    Raises:
        ValueError: if it has no single one.
    """
    if "calibration" in mechanism.lacks:
        raise ValueError(f"mechanism: expected one of a single scale, got {mechanism.name}")
    fields = numbers(mechanism)
    return fields["scale"] if "scale" in fields else fields["sigma"]
