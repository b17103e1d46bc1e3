"""How good the students are: `python benchmarks/students.py --data_dir=../shared/tfds`.

Prints, for MNIST with 250 teachers and Laplace scale 20, the accuracy of each student at 100, 500
and 1,000 queries on the held-out samples and on all that were not asked for, and its wall time:
median and range over three seeds of training and noise. The ensemble is trained once in
`--teachers_dir`; its votes are kept below `sensitive/` there. `--quick` does the same in two
minutes with the embedded digits, few teachers and short training: it shows that everything runs.
"""

import argparse
import json
import os
import pathlib
import platform
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from pate_tf import artifacts
from pate_tf.accounting.mechanisms import LaplaceNoisyMax
from pate_tf.aggregation.graph import VoteAggregation
from pate_tf.aggregation.noise import SeededNoise
from pate_tf.data import catalogue as data
from pate_tf.models.catalogue import default_model
from pate_tf.partition import random_partition
from pate_tf.records import PublicExamples, ReleasedLabels, VoteCounts, Votes
from pate_tf.students.catalogue import STUDENTS, find_student
from pate_tf.students.config import StudentConfig
from pate_tf.students.evaluation import accuracy
from pate_tf.teachers import devices, run
from pate_tf.teachers.config import TeacherConfig
from pate_tf.teachers.ensemble import Ensemble

COMPARED = ("supervised", "gan", "consistency")
DELTA = 1e-5
BATCH = 500


def train_ensemble(
    name: str, data_dir: pathlib.Path | None, directory: artifacts.RunDirectory, num_teachers: int
) -> Ensemble:
    """Trains an ensemble as train_teachers.py does, unless it is there already."""
    examples = data.load_private(name, data_dir=data_dir)
    config = TeacherConfig(
        dataset=examples.dataset,
        num_teachers=num_teachers,
        model=default_model(examples.dataset),
        max_steps=150,
        batch_size=40,
        learning_rate=0.005,
        seed=0,
    )
    run.train(
        config=config,
        examples=examples,
        partition=random_partition(num_records=len(examples), num_teachers=num_teachers, seed=0),
        teachers=range(num_teachers),
        run_directory=directory,
        devices=devices.choose_strategy(),
        progress=lambda done: None,
    )
    return Ensemble(run.ensemble_folder(directory))


def cached_counts(
    ensemble: Ensemble, directory: artifacts.RunDirectory, public: PublicExamples, num_queries: int
) -> VoteCounts:
    """The votes on the first of the public samples, asked for once."""
    path = directory.sensitive / f"votes-{ensemble.digest[:16]}-{num_queries}.npz"
    if not path.exists():
        votes = ensemble.votes(public.inputs[:num_queries])
        artifacts.write_arrays(path, {"labels": votes.labels}, private=True)
    labels = artifacts.read_arrays(path)["labels"]
    return Votes(labels, public.dataset.num_classes).counts()


def noisy_labels(
    counts: VoteCounts, aggregation: VoteAggregation, num_queries: int, scale: float, seed: int
) -> ReleasedLabels:
    """Labels as the labeller draws them, with noise that the seed decides."""
    mechanism = LaplaceNoisyMax(1.0 / scale)
    noise = SeededNoise(seed).additive_noise(
        mechanism, num_queries=counts.num_queries, num_classes=counts.num_classes
    )
    winners = aggregation.label(counts.values, noise)
    epsilon, _ = mechanism.data_independent_epsilon(num_queries=num_queries, delta=DELTA)
    return ReleasedLabels(
        query_indices=np.arange(num_queries),
        labels=np.asarray(winners)[:num_queries],
        num_classes=counts.num_classes,
        num_queries=num_queries,
        mechanism=mechanism.to_dict(),
        epsilon=epsilon,
        delta=DELTA,
        ledger_rows=(),
        secure_noise=False,
    )


def measure(
    name: str,
    released: ReleasedLabels,
    public: PublicExamples,
    pool_size: int,
    *,
    seed: int,
    max_steps: int | None,
) -> dict[str, float]:
    """Trains one student and evaluates it."""
    defaults = STUDENTS[name]
    config = StudentConfig(
        student=name,
        model=defaults.default_model(public.dataset),
        max_steps=max_steps or defaults.max_steps,
        batch_size=defaults.batch_size,
        learning_rate=defaults.learning_rate,
        seed=seed,
    )
    student_side, held_out = public.split(pool_size)
    student = find_student(config, public.dataset)
    began = time.monotonic()
    model = student.train(config, released, student_side.pool())
    seconds = time.monotonic() - began

    def accuracy_on(examples: PublicExamples) -> float:
        given = [
            np.argmax(
                model(tf.constant(examples.inputs[start : start + BATCH], tf.float32)), axis=1
            )
            for start in range(0, len(examples), BATCH)
        ]
        return accuracy(np.concatenate(given), examples.labels).value

    return {
        "label accuracy": accuracy(released.labels, public.labels[: released.num_queries]).value,
        "held-out": accuracy_on(held_out),
        "all unqueried": accuracy_on(public.split(released.num_queries)[1]),
        "seconds": seconds,
    }


def summary(values: list[float], form: str) -> str:
    """Median and range."""
    low, middle, high = (format(f(values), form) for f in (np.min, np.median, np.max))
    return f"{middle} ({low} to {high})"


def main() -> None:
    """Prints the table, a row as soon as it is measured, and writes all numbers as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data_dir", type=pathlib.Path, default="../shared/tfds")
    parser.add_argument("--teachers_dir", type=pathlib.Path)
    parser.add_argument("--nb_teachers", type=int)
    parser.add_argument("--students", nargs="+", choices=COMPARED, default=COMPARED)
    parser.add_argument("--queries", nargs="+", type=int)
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--max_steps", type=int, help="default: each student's own")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--output_dir", type=pathlib.Path, default="runs/benchmarks")
    flags = parser.parse_args()
    name, num_teachers, queries, seeds, scale, max_steps = (
        "mnist",
        250,
        [100, 500, 1000],
        3,
        20,
        None,
    )
    if flags.quick:
        name, num_teachers, queries, seeds, scale, max_steps = "digits", 30, [50, 100], 1, 3, 200
    num_teachers = flags.nb_teachers or num_teachers
    queries, seeds = flags.queries or queries, flags.seeds or seeds
    max_steps = flags.max_steps or max_steps
    data_dir = None if flags.quick else flags.data_dir

    public = data.load_public(name, data_dir=data_dir)
    pool_size = public.dataset.pool_size
    root = flags.teachers_dir or flags.output_dir / f"{name}-{num_teachers}"
    directory = artifacts.RunDirectory(root)
    print(f"{os.cpu_count()} cores, {platform.machine()}, TensorFlow {tf.__version__}")
    ensemble = train_ensemble(name, data_dir, directory, num_teachers)
    counts = cached_counts(ensemble, directory, public, max(queries))
    aggregation = VoteAggregation(counts.num_classes)
    print(
        f"{name}, {num_teachers} teachers, Laplace scale {scale}, pool {pool_size}, {seeds} seeds"
    )
    print("\n| student | queries | labels right | held-out | all unqueried | seconds |")
    print("|---|---|---|---|---|---|", flush=True)
    results: dict[str, list[dict[str, float]]] = {}
    flags.output_dir.mkdir(parents=True, exist_ok=True)
    for student in flags.students:
        for num_queries in queries:
            rows = [
                measure(
                    student,
                    noisy_labels(counts, aggregation, num_queries, scale, seed),
                    public,
                    pool_size,
                    seed=seed,
                    max_steps=max_steps,
                )
                for seed in range(seeds)
            ]
            results[f"{student}, {num_queries} queries"] = rows
            shares = ("label accuracy", "held-out", "all unqueried")
            cells = [summary([row[share] for row in rows], ".2%") for share in shares]
            cells.append(summary([row["seconds"] for row in rows], ".0f"))
            print(f"| {student} | {num_queries} | {' | '.join(cells)} |", flush=True)
            (flags.output_dir / f"students_{name}.json").write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
