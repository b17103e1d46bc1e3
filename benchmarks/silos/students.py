"""What a student learns from labels of silos, against what each silo was charged."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

import pate_tf
from benchmarks.silos.central import PARTIES, THRESHOLD, secure
from benchmarks.silos.kept import Bench, Row
from benchmarks.silos.rounds import answered
from benchmarks.silos.setting import EVEN

LOCAL, SECURE = "local", "secure"


def rows(bench: Bench) -> Iterator[Row]:
    """Yields a row for each mode, number of queries and amount of noise."""
    setting = bench.setting
    numbers = (setting.few_queries, setting.num_queries)
    for queries, epsilons, sigmas in zip(
        numbers, setting.student_epsilons, setting.student_sigmas, strict=True
    ):
        for mode, amounts in ((LOCAL, epsilons), (SECURE, sigmas)):
            for amount in amounts:
                for repetition in range(setting.repetitions):
                    config = {
                        "teacher": setting.teachers[0],
                        "mode": mode,
                        "queries": queries,
                        "amount": amount,
                        "repetition": repetition,
                    }
                    yield bench.unit(
                        "student", config, lambda config=config: _measured(bench, config)
                    )


def _measured(bench: Bench, config: Mapping[str, Any]) -> Row:
    split, amount = bench.split, config["amount"]
    votes = bench.votes(EVEN, config["teacher"], len(split.pool))
    asked = {"num_queries": config["queries"], "strategy": bench.setting.strategy}
    if config["mode"] == LOCAL:
        mechanism = {"name": "randomised_response", "epsilon": amount}
        found = answered(votes, split.pool, mechanism, **asked)
    else:
        found = secure(votes, split.pool, amount, **asked)
    labels = found.labels
    student = pate_tf.Student("supervised", steps=bench.setting.student_steps)
    student.fit(split.pool, labels)
    return {
        "epsilon": found.epsilon,
        "label_accuracy": found.right(bench.truth),
        "student_accuracy": float(student.evaluate(split.held_out)),
        "parties": None if config["mode"] == LOCAL else [PARTIES, THRESHOLD],
        "held_out": int(np.size(split.held_out.labels)),
    }
