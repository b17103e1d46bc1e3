"""Silos that see mostly two classes and differ in size: what it costs, and what helps."""

from collections.abc import Iterator

import numpy as np

from benchmarks.silos.central import secure
from benchmarks.silos.kept import Bench, Row
from benchmarks.silos.rounds import answered
from benchmarks.silos.setting import BALANCED, EVEN, FOREST, SKEWED
from benchmarks.silos.survival import counts_of
from pate_tf.accounting.conversions import FloatArray
from pate_tf.accounting.local import RandomisedResponse
from pate_tf.accounting.local.estimates import debiased_counts
from pate_tf.core.validation import IntArray
from pate_tf.data import catalogue

MOST_STEPS = 50


def by_similarity(histograms: FloatArray) -> IntArray:
    """Returns a class for each histogram of votes by which others it is like, `[num_queries]`.

    Histograms of one class lie around a mean of their own: silos that never saw a class answer in
    ways of their own, all equal. Lloyd's algorithm, begun at the pluralities. It reads what
    was released, at no cost.
    """
    num_classes = histograms.shape[1]
    labels = histograms.argmax(axis=1)
    for _ in range(MOST_STEPS):
        means = np.stack(
            [
                histograms[labels == one].mean(axis=0)
                if (labels == one).any()
                else np.full(num_classes, np.inf)
                for one in range(num_classes)
            ]
        )
        distances = np.square(histograms[:, None, :] - means[None]).sum(axis=2)
        found = distances.argmin(axis=1)
        if np.array_equal(found, labels):
            break
        labels = found
    return labels


def rows(bench: Bench) -> Iterator[Row]:
    """Yields a row for each kind of shares and of teacher."""
    teachers = bench.setting.teachers
    pairs = [(EVEN, one) for one in teachers] + [(SKEWED, one) for one in teachers]
    if FOREST in teachers:
        pairs.append((SKEWED, BALANCED))
    epsilon, sigmas = bench.setting.epsilons[-2], bench.setting.sigmas
    for kind, teacher in pairs:
        config = {
            "kind": kind,
            "teacher": teacher,
            "epsilon": epsilon,
            "sigma": sigmas[len(sigmas) // 2],
        }
        yield bench.unit("skew", config, lambda config=config: _measured(bench, **config))


def _measured(bench: Bench, kind: str, teacher: str, epsilon: float, sigma: float) -> Row:
    pool, number = bench.split.pool, bench.setting.num_queries
    votes = bench.votes(kind, teacher, number)
    truth, num_classes = bench.truth[:number], pool.dataset.num_classes
    counts = counts_of(votes, num_classes)
    mechanism = {"name": RandomisedResponse.name, "epsilon": epsilon}
    local = answered(votes, pool, mechanism, num_queries=number)
    if local.answers is None:
        raise ValueError("answers: expected those of silos, got none")
    debiased = debiased_counts(
        local.answers, [RandomisedResponse(num_classes=num_classes, epsilon=epsilon)] * len(votes)
    )
    central = secure(votes, pool, sigma, num_queries=number)
    histograms = central.labels.released.noisy_counts
    if histograms is None:
        raise ValueError("labels: expected noisy counts, got none")

    def right(labels: IntArray) -> float:
        return float((labels == truth).mean())

    accuracies = (votes == truth).mean(axis=1)
    return {
        "teacher_accuracy": float(accuracies.mean()),
        "worst_teacher": float(accuracies.min()),
        "best_teacher": float(accuracies.max()),
        "top_share": float((counts.max(axis=1) / len(votes)).mean()),
        "plurality": right(counts.argmax(axis=1)),
        "local": right(local.labels),
        "secure": right(central.labels),
        "plurality_by_similarity": right(by_similarity(counts.astype(np.float64))),
        "local_by_similarity": right(by_similarity(debiased)),
        "secure_by_similarity": right(by_similarity(histograms.astype(np.float64))),
        "local_epsilon": local.epsilon,
        "secure_epsilon": central.epsilon,
    }


def sizes(bench: Bench) -> tuple[int, int, int]:
    """Returns the fewest, the median and the most records of a skewed silo."""
    from benchmarks.silos.shares import shares

    private = catalogue.load_private(bench.setting.dataset, data_dir=bench.data_dir)
    parts = shares(SKEWED, private.labels, bench.setting.num_silos, private.dataset.num_classes)
    numbers = sorted(len(one) for one in parts)
    return numbers[0], numbers[len(numbers) // 2], numbers[-1]
