"""No privacy: what the private records could teach without protection."""

import dataclasses

import numpy as np

from benchmarks.instead.problem import Problem
from pate_tf.core.public import Pool, PoolLabels
from pate_tf.students.batches import outputs
from pate_tf.students.config import StudentSettings, complete
from pate_tf.students.kinds import kind_of

STEPS, BATCH = 4_000, 128


def run(problem: Problem, repetition: int) -> dict[str, object]:
    """Trains the students' network, or a forest for tables, on the private records themselves."""
    dataset = problem.dataset
    if dataset.kind == "image":
        settings = StudentSettings(
            student="supervised",
            model="wide_cnn",
            max_steps=20 if problem.quick else STEPS,
            batch_size=BATCH,
            seed=problem.seed + repetition,
        )
    else:
        settings = StudentSettings(student="random_forest", seed=problem.seed + repetition)
    config = complete(settings, dataset)
    labels = problem.private.labels
    model = kind_of(config.student).train(
        config,
        PoolLabels(
            query_indices=np.arange(len(labels)), labels=labels, num_classes=dataset.num_classes
        ),
        Pool(dataclasses.replace(dataset), problem.private.inputs),
    )
    return {"accuracy": problem.accuracy(outputs(model, problem.test[0]).argmax(axis=1))}
