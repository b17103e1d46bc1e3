"""Chooses settings on one data set's public pool, for another: `python -m benchmarks.instead.tune`.

The labels of the pool's inputs are used here, and no held-out sample. Batch, steps and noise are
those that the private records of `--num_records` would have, so that a step is as good or as bad.
"""

import argparse
import dataclasses
import os
import pathlib
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

from benchmarks.instead import dp_sgd, on_features
from benchmarks.instead.problem import Problem, data_dir_of
from pate_tf.aggregation.noise import SystemNoise
from pate_tf.api.run_folder import DataSource
from pate_tf.students.batches import outputs


def main() -> None:
    """Reads the flags, tries, prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", default="fashion_mnist")
    parser.add_argument("--data_dir", type=pathlib.Path)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--num_records", type=int, default=60_000)
    parser.add_argument("--rates", type=float, nargs="+", default=[])
    parser.add_argument("--batches", type=int, nargs="+", default=[dp_sgd.BATCH])
    parser.add_argument("--penalties", type=float, nargs="+", default=[])
    parser.add_argument("--head_rates", type=float, nargs="+", default=[])
    asked = parser.parse_args()
    source = DataSource(dataset=asked.dataset, data_dir=data_dir_of(asked.dataset, asked.data_dir))
    problem = Problem(source=source)
    is_image = problem.dataset.kind == "image"
    inputs = problem.pool.inputs if is_image else problem.pool_features
    labels = problem.public.pool_labels
    first = len(inputs) * 8 // 9
    sigma_of = {}
    for batch in asked.batches:
        for rate in asked.rates:
            training = dataclasses.replace(
                dp_sgd.training_for(asked.epsilon, num_records=asked.num_records),
                learning_rate=rate,
            )
            # The same number of records in all.
            steps = max(1, training.steps * training.batch // batch)
            training = dataclasses.replace(training, batch=batch, steps=steps)
            if batch not in sigma_of:
                sigma_of[batch] = dp_sgd.noise_multiplier(
                    asked.epsilon, training, asked.num_records
                )
            model = dp_sgd.network(problem.dataset, seed=1, inputs=inputs)
            began = time.monotonic()
            dp_sgd.fit(
                model,
                inputs[:first],
                labels[:first],
                training=training,
                sigma=sigma_of[batch],
                noise=SystemNoise(),
            )
            right = outputs(model, inputs[first:]).argmax(axis=1) == labels[first:]
            print(
                f"{asked.dataset} pool, epsilon {asked.epsilon:g}: batch {batch}, {steps} steps, "
                f"sigma {sigma_of[batch]:.2f}, rate {rate:g}: {right.mean():.4f} right "
                f"[{time.monotonic() - began:.0f} s]",
                flush=True,
            )
    if not (asked.penalties or asked.head_rates):
        return
    features = problem.pool_features
    # What noise does to sums of n records is what noise of less does to sums of fewer.
    shrunk = first / asked.num_records
    for name, values, solve in (
        ("penalty", asked.penalties, on_features.means_head),
        ("rate", asked.head_rates, on_features.trained_head),
    ):
        for value in values:
            heads = [
                solve(
                    features[:first],
                    labels[:first],
                    num_classes=problem.dataset.num_classes,
                    public=features[:first],
                    epsilon=asked.epsilon,
                    noise=SystemNoise(),
                    noise_share=shrunk,
                    **{name: value},
                )
                for _ in range(3)
            ]
            right = [(features[first:] @ one).argmax(axis=1) == labels[first:] for one in heads]
            print(
                f"{asked.dataset} pool, epsilon {asked.epsilon:g}: {solve.__name__}, {name} "
                f"{value:g}: {np.mean(right):.4f} right",
                flush=True,
            )


if __name__ == "__main__":
    main()
