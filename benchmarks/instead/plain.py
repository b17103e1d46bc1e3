"""No privacy: what the private records could teach without protection."""

import dataclasses

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier

from benchmarks.instead.problem import Problem
from pate_tf.core.public import Pool, PoolLabels
from pate_tf.students.batches import outputs
from pate_tf.students.config import StudentSettings, complete
from pate_tf.students.kinds import kind_of

STEPS, BATCH = 4_000, 128


def run(problem: Problem, repetition: int) -> dict[str, object]:
    """Trains the students' network, or gradient boosting for tables, on the private records."""
    dataset, labels = problem.dataset, problem.private.labels
    seed, (inputs, _) = problem.seed + repetition, problem.test
    if dataset.kind != "image":
        boosting = HistGradientBoostingClassifier(random_state=seed)
        boosting.fit(problem.private.inputs, labels)
        return {"accuracy": problem.accuracy(boosting.predict(inputs))}
    settings = StudentSettings(
        student="supervised",
        model="wide_cnn",
        max_steps=20 if problem.quick else STEPS,
        batch_size=BATCH,
        seed=seed,
    )
    config = complete(settings, dataset)
    model = kind_of(config.student).train(
        config,
        PoolLabels(
            query_indices=np.arange(len(labels)), labels=labels, num_classes=dataset.num_classes
        ),
        Pool(dataclasses.replace(dataset), problem.private.inputs),
    )
    return {"accuracy": problem.accuracy(outputs(model, inputs).argmax(axis=1))}
