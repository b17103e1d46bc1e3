"""How often the plurality of randomised votes is that of the votes, measured and expected."""

from collections.abc import Iterator

import numpy as np

from benchmarks.silos.kept import Bench, Row
from benchmarks.silos.rounds import answered
from benchmarks.silos.setting import EVEN
from pate_tf.accounting.local import RandomisedResponse, TruncatedGeometric
from pate_tf.accounting.local.estimates import survival
from pate_tf.core.validation import IntArray

SAMPLES = 400


def counts_of(votes: IntArray, num_classes: int) -> IntArray:
    """Returns votes for each class, `[num_queries, num_classes]`."""
    return np.stack([(votes == label).sum(axis=0) for label in range(num_classes)], axis=1)


def rows(bench: Bench) -> Iterator[Row]:
    """Yields a row for each kind of teacher, number of silos and epsilon."""
    setting = bench.setting
    for teacher in setting.teachers:
        for number in setting.groups:
            for epsilon in setting.epsilons:
                config = {"teacher": teacher, "silos": number, "epsilon": epsilon}
                yield bench.unit(
                    "survival", config, lambda config=config: _measured(bench, **config)
                )


def _measured(bench: Bench, teacher: str, silos: int, epsilon: float) -> Row:
    pool = bench.split.pool
    num_classes = pool.dataset.num_classes
    number = bench.setting.num_queries
    votes = bench.votes(EVEN, teacher, number)[:silos]
    truth = bench.truth[:number]
    counts = counts_of(votes, num_classes)
    plurality = counts.argmax(axis=1)
    found = answered(
        votes, pool, {"name": RandomisedResponse.name, "epsilon": epsilon}, num_queries=number
    )
    expected = survival(
        counts, RandomisedResponse(num_classes=num_classes, epsilon=epsilon), num_samples=SAMPLES
    )
    chance = expected.probability
    # Of the queries' own coins, and of the simulation that expects.
    error = np.sqrt((chance * (1 - chance)).sum() * (1 + 1 / SAMPLES)) / len(chance)
    geometric = TruncatedGeometric(num_classes=num_classes, epsilon=epsilon)
    likeliest = answered(
        votes, pool, {"name": geometric.name, "epsilon": epsilon}, num_queries=number
    )
    return {
        "survived": float((found.labels.labels == plurality).mean()),
        "expected": float(chance.mean()),
        "error": float(error),
        "label_accuracy": float((found.labels.labels == truth).mean()),
        "plurality_accuracy": float((plurality == truth).mean()),
        "teacher_accuracy": float((votes == truth).mean()),
        "top_share": float((counts.max(axis=1) / silos).mean()),
        "geometric_raw": float(
            survival(counts, geometric, num_samples=SAMPLES // 4).probability.mean()
        ),
        "geometric_likeliest": float((likeliest.labels.labels == plurality).mean()),
        "epsilon_all": found.epsilon,
    }
