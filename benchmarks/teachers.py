"""What training an ensemble costs: `python benchmarks/teachers.py --data_dir=../shared/tfds`.

Prints, for MNIST on this machine, seconds a teacher for training, saving and voting, accuracies,
peak memory, and the ratio to a naive baseline measured in the same run: the paper's network, batch
128, a fresh process and trace a teacher, 3,000 steps extrapolated from 100. `--only=variants`
compares ways to run the loop, `--only=scaling` plots cost against the number of teachers.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import platform
import resource
import subprocess
import sys
import tempfile
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

from pate_tf.accounting.mechanisms import LaplaceNoisyMax
from pate_tf.aggregation.graph import VoteAggregation
from pate_tf.aggregation.noise import SeededNoise
from pate_tf.api import teacher_training as run
from pate_tf.core import artifacts
from pate_tf.core.partition import Partition, random_partition
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.data import catalogue
from pate_tf.teachers import cluster
from pate_tf.teachers.kinds import load_ensemble
from pate_tf.teachers.settings import TeacherConfig
from pate_tf.teachers.training import EnsembleParallelTrainer, TeacherData, TrainingLoop

NUM_QUERIES = 9_000
NAIVE_STEPS, NAIVE_MEASURED = 3_000, 100
RECORDS_A_TEACHER = 240

NAIVE_TEACHER = """
import sys, time
import numpy as np, keras
from pate_tf.data.tfds_source import MNIST
from pate_tf.models.catalogue import paper_mnist
records, steps, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
with np.load(records) as arrays:
    inputs, labels = arrays["inputs"].astype("float32"), arrays["labels"]
order = np.resize(np.arange(len(labels)), steps * 128)
model = paper_mnist(MNIST)
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.train_on_batch(inputs[order[:128]], labels[order[:128]])
began = time.monotonic()
for step in range(steps):
    batch = order[step * 128 : (step + 1) * 128]
    model.train_on_batch(inputs[batch], labels[batch])
print("seconds", time.monotonic() - began)
model.export(folder, verbose=False)
"""


def naive_seconds(examples: PrivateExamples) -> float:
    """Seconds that one teacher takes in a process of its own, its steps extrapolated."""
    with tempfile.TemporaryDirectory() as folder:
        records = pathlib.Path(folder) / "records.npz"
        part = slice(0, RECORDS_A_TEACHER)
        np.savez(records, inputs=examples.inputs[part], labels=examples.labels[part])
        began = time.monotonic()
        output = subprocess.run(
            [sys.executable, "-c", NAIVE_TEACHER, records, str(NAIVE_MEASURED), f"{folder}/model"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        whole = time.monotonic() - began
    (stepping,) = (float(line.split()[1]) for line in output.splitlines() if "seconds" in line)
    return whole + stepping * (NAIVE_STEPS / NAIVE_MEASURED - 1)


def config_of(examples: PrivateExamples, num_teachers: int, max_steps: int) -> TeacherConfig:
    """The defaults of train_teachers.py."""
    return TeacherConfig(
        dataset=examples.dataset,
        num_teachers=num_teachers,
        model="cnn",
        max_steps=max_steps,
        batch_size=40,
        learning_rate=0.005,
        seed=0,
    )


def main_row(data_dir: pathlib.Path, num_teachers: int) -> dict[str, float]:
    """Trains, saves and asks an ensemble; measures the naive baseline beside it."""
    examples = catalogue.load_private("mnist", data_dir=data_dir)
    public = catalogue.load_public("mnist", data_dir=data_dir)
    config = config_of(examples, num_teachers, max_steps=150)
    partition = random_partition(num_records=len(examples), num_teachers=num_teachers, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        directory = artifacts.RunDirectory(pathlib.Path(folder))
        began = time.monotonic()
        run.train(
            config=config,
            examples=examples,
            partition=partition,
            teachers=range(num_teachers),
            run_directory=directory,
            progress=lambda done: None,
        )
        trained = time.monotonic()
        ensemble = load_ensemble(run.ensemble_folder(directory))
        votes = ensemble.votes(public.inputs[:NUM_QUERIES])
        asked = time.monotonic()
        rest = ensemble.votes(public.inputs[NUM_QUERIES:])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    labels = np.concatenate([votes.labels, rest.labels], axis=1)
    accuracies = (labels == public.labels).mean(axis=1)
    counts = np.concatenate([votes.counts().values, rest.counts().values])
    noise = LaplaceNoisyMax(gamma=1 / 20).additive_noise(
        SeededNoise(0), num_queries=len(counts), num_classes=10
    )
    noisy = VoteAggregation(10).label(counts, noise)
    naive = naive_seconds(examples)
    ours = (asked - began) / num_teachers
    return {
        "teachers": num_teachers,
        "seconds in all": asked - began,
        "seconds a teacher, training and saving": (trained - began) / num_teachers,
        "seconds a teacher, loading and voting on 9,000": (asked - trained) / num_teachers,
        "mean teacher accuracy": accuracies.mean(),
        "worst teacher accuracy": accuracies.min(),
        "best teacher accuracy": accuracies.max(),
        "accuracy of noisy aggregation, scale 20": (noisy == public.labels).mean(),
        "peak memory, GiB": peak / 2**30,
        "seconds a teacher, naive baseline": naive,
        "ratio": naive / ours,
    }


def variants(data_dir: pathlib.Path) -> dict[str, float]:
    """Milliseconds a step and teacher of several ways to run the loop, tracing left out."""
    examples = catalogue.load_private("mnist", data_dir=data_dir)
    partition = random_partition(num_records=len(examples), num_teachers=250, seed=0)
    config = config_of(examples, 250, max_steps=50)
    plain = dataclasses.replace(examples.dataset, augmentation="none")
    plain_examples = PrivateExamples(plain, examples.inputs, examples.labels)
    plain_config = dataclasses.replace(config, dataset=plain)
    data = {
        True: TeacherData(config, examples, partition),
        False: TeacherData(plain_config, plain_examples, partition),
    }
    rows = {}

    def measure(name: str, graph: Any, *, augmented: bool, steps: int, together: int = 1) -> None:
        some = data[augmented]
        group = [
            some.arguments(teacher, some.initial_state(teacher)) for teacher in range(together)
        ]
        arguments = group[0]
        if together > 1:
            arguments = tf.nest.map_structure(lambda *values: tf.stack(values), *group)
        seconds = []
        for _ in range(4):
            began = time.monotonic()
            # XLA wants the number of losses when it compiles, hence a Python number.
            tf.nest.map_structure(lambda value: value.numpy(), graph(arguments, steps))
            seconds.append(time.monotonic() - began)
        rows[name] = 1000 * float(np.median(seconds[1:])) / steps / together
        print(f"  {name}: {rows[name]:.2f} ms (first call {seconds[0]:.1f} s)", flush=True)

    augmented_loop, loop = TrainingLoop(config), TrainingLoop(plain_config)
    measure(
        "one after another (what we use)",
        tf.function(lambda arguments, steps: augmented_loop.run(*arguments, 0, steps)),
        augmented=True,
        steps=50,
    )
    single = tf.function(lambda arguments, steps: loop.run(*arguments, 0, steps))
    measure("the same without augmentation", single, augmented=False, steps=50)
    vectorised = tf.function(
        lambda arguments, steps: tf.vectorized_map(lambda one: loop.run(*one, 0, steps), arguments)
    )
    measure(
        "four vectorised, without augmentation", vectorised, augmented=False, steps=10, together=4
    )
    compiled = tf.function(
        lambda arguments, steps: loop.run(*arguments, 0, steps), jit_compile=True
    )
    measure("XLA, without augmentation", compiled, augmented=False, steps=2)
    return rows


def scaling(data_dir: pathlib.Path, plot: pathlib.Path) -> dict[str, float]:
    """Seconds for 10 to 1,000 teachers of 240 images each, 30 steps; images are reused."""
    examples = catalogue.load_private("mnist", data_dir=data_dir)
    rows = {}
    for num_teachers in (10, 30, 100, 300, 1_000):
        chosen = np.resize(np.arange(len(examples)), num_teachers * RECORDS_A_TEACHER)
        some = PrivateExamples(examples.dataset, examples.inputs[chosen], examples.labels[chosen])
        assignment = np.repeat(np.arange(num_teachers), RECORDS_A_TEACHER)
        config = config_of(some, num_teachers, max_steps=30)
        data = TeacherData(config, some, Partition(assignment, num_teachers))
        trainer = EnsembleParallelTrainer(data, cluster.choose_strategy())
        trainer.advance([0], [data.initial_state(0)], 30)  # traced once a run
        began = time.monotonic()
        for teacher in range(num_teachers):
            trainer.advance([teacher], [data.initial_state(teacher)], 30)
        rows[f"{num_teachers} teachers, seconds"] = time.monotonic() - began
        print(f"  {num_teachers} teachers: {rows[f'{num_teachers} teachers, seconds']:.1f} s")
    numbers = [int(name.split()[0]) for name in rows]
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    axes.loglog(numbers, rows.values(), "o-", label="measured")
    slope = list(rows.values())[-1] / numbers[-1]
    axes.loglog(numbers, [slope * n for n in numbers], "--", label="proportional")
    axes.set(xlabel="teachers", ylabel="seconds", title="240 images and 30 steps a teacher")
    axes.legend()
    figure.savefig(plot)
    return rows


def main() -> None:
    """Prints the rows asked for, and writes them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data_dir", type=pathlib.Path, default="../shared/tfds")
    parser.add_argument("--nb_teachers", type=int, default=250)
    parser.add_argument("--only", choices=["main", "variants", "scaling"])
    parser.add_argument("--output_dir", type=pathlib.Path, default="runs/benchmarks")
    flags = parser.parse_args()
    flags.output_dir.mkdir(parents=True, exist_ok=True)
    parts = {
        "main": lambda: main_row(flags.data_dir, flags.nb_teachers),
        "variants": lambda: variants(flags.data_dir),
        "scaling": lambda: scaling(flags.data_dir, flags.output_dir / "teachers_scaling.png"),
    }
    print(f"{os.cpu_count()} cores, {platform.machine()}, TensorFlow {tf.__version__}")
    for name in [flags.only] if flags.only else parts:
        print(name)
        rows = {key: float(value) for key, value in parts[name]().items()}
        for key, value in rows.items():
            print(f"  {key:50} {value:10.4g}")
        (flags.output_dir / f"teachers_{name}.json").write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
