"""What is measured: each function takes a size and an empty folder, and returns numbers by name."""

import importlib
import json
import os
import pathlib
import subprocess
import sys
import time

import numpy as np
import numpy.typing as npt

RECORDS, FEATURES, CLASSES, QUERIES = 10, 64, 10, 1_000
STEPS = 10  # of contrastive learning, where 450 are the default
NEAREST, SHARD, SAMPLE = 10, 2**17, 200
INNER = 12  # dimensions in which features that are searched really differ
PART = 2**16  # records that are made at a time
SPREAD = 3.2  # of records about the mean of their class: teachers of ten of them err often


def synthetic(number: int, seed: int, path: pathlib.Path | None = None) -> tuple[npt.NDArray, ...]:
    """Returns records float32 `[number, FEATURES]` and labels; in a mapped file if one is named."""
    centres = np.random.default_rng(0).normal(size=(CLASSES, FEATURES)).astype(np.float32)
    shape = (number, FEATURES)
    inputs = (
        np.empty(shape, np.float32)
        if path is None
        else np.lib.format.open_memmap(path, "w+", np.float32, shape)
    )
    random = np.random.default_rng(seed)
    labels = random.integers(0, CLASSES, number)
    for start in range(0, number, PART):
        own = labels[start : start + PART]
        noise = random.standard_normal((len(own), FEATURES), np.float32)
        inputs[start : start + PART] = centres[own] + SPREAD * noise
    return inputs, labels


def teachers(number: int, folder: pathlib.Path) -> dict[str, float]:
    """Trains so many, and releases labels of `QUERIES` queries: all of it by the library."""
    from pate_tf.accounting.mechanisms import GaussianHistogram
    from pate_tf.aggregation.noise import SystemNoise
    from pate_tf.api.labelling import open_ledger, plan_release, release_labels
    from pate_tf.api.settings import Budget, LabelSettings
    from pate_tf.api.teacher_training import shares_of, train_teachers
    from pate_tf.core.dataset import Dataset
    from pate_tf.core.public import Pool
    from pate_tf.core.sensitive import PrivateExamples
    from pate_tf.ledger.rollback_guard import STATE_VARIABLE
    from pate_tf.teachers.kinds import Engine
    from pate_tf.teachers.settings import TeacherSettings

    os.environ[STATE_VARIABLE] = str(folder / "state")  # not the registry of the user
    dataset = Dataset(
        name="synthetic",
        kind="tabular",
        input_shape=(FEATURES,),
        value_range=(-20.0, 20.0),
        num_classes=CLASSES,
        pool_size=QUERIES,
    )
    queries, truth = synthetic(QUERIES, seed=1)
    pool = Pool(dataset, queries)
    examples = PrivateExamples(
        dataset, *synthetic(number * RECORDS, seed=2, path=folder / "records.npy")
    )
    began = time.process_time()
    done = train_teachers(
        TeacherSettings(model="ridge"),
        examples,
        shares_of(examples, num_teachers=number, seed=0),
        pool=pool,
        folder=folder / "run",
        engine=Engine(),
    )
    run, ensemble = done.directory.root, done.load()
    trained = time.process_time()
    settings = LabelSettings(mechanism=GaussianHistogram(sigma=number / 50), num_queries=QUERIES)
    budget = Budget(delta=1e-7)
    with open_ledger(run / "sensitive", teachers=ensemble, budget=budget) as ledger:
        plan = plan_release(settings, ensemble, pool, delta=budget.delta)
        labels = release_labels(
            plan, pool, teachers=ensemble, ledger=ledger, noise=SystemNoise()
        ).released
    right = labels.labels == truth[labels.query_indices]
    return {
        "train, save, load": trained - began,
        "votes, counted, and labels": time.process_time() - trained,
        "labels right": float(right.mean()),
    }


def pool(number: int, folder: pathlib.Path) -> dict[str, float]:
    """Learns a little from so many images of 28 x 28, and works out their features."""
    from pate_tf.core.public import Pool
    from pate_tf.data.tfds_source import MNIST
    from pate_tf.models.encoder import Encoder
    from pate_tf.representations import contrastive

    contrastive.STEPS = STEPS
    images = np.random.default_rng(0).integers(0, 256, (number, 28, 28, 1), np.uint8)
    public = Pool(MNIST, images)
    began = time.process_time()
    parts = contrastive.parts(public, 0)
    contrastive.train(parts, public, 0, folder=folder)
    learnt = time.process_time()
    encoder = Encoder(MNIST, parts, {})
    views = encoder.views(encoder.features(public.inputs))
    return {
        f"{STEPS} steps, directions": learnt - began,
        "features": time.process_time() - learnt,
        "bytes an input": sum(view.nbytes for view in views) / number,
    }


def neighbours(number: int, folder: pathlib.Path) -> dict[str, float]:
    """Joins so many inputs to their nearest, in views as wide as those of MNIST."""
    from pate_tf.representations.label_propagation import neighbour_graph

    del folder
    random = np.random.default_rng(0)
    views = [random.standard_normal((number, width), np.float32) for width in (256, 64, 256, 64)]
    began = time.process_time()
    graph = neighbour_graph(views)
    return {"graph": time.process_time() - began, "bytes an input": 8 * graph.nnz / number}


def approximate(number: int, folder: pathlib.Path) -> dict[str, float]:
    """Finds neighbours by inverted lists: features lie in shards, numbers of one byte in memory."""
    faiss = importlib.import_module("faiss")
    directions = np.random.default_rng(0).normal(size=(INNER, FEATURES)).astype(np.float32)
    shards = [folder / f"features-{first}.npy" for first in range(0, number, SHARD)]
    for place, shard in enumerate(shards):
        random = np.random.default_rng(1 + place)
        inner = random.standard_normal((min(SHARD, number - place * SHARD), INNER), np.float32)
        np.save(shard, np.tanh(inner @ directions).astype(np.float16))

    def read(shard: pathlib.Path) -> npt.NDArray[np.float32]:
        return np.load(shard, mmap_mode="r").astype(np.float32)

    began = time.process_time()
    lists = 4 * int(number**0.5)
    index = faiss.index_factory(FEATURES, f"IVF{lists},SQ8")
    index.train(read(shards[0])[: 40 * lists])
    for shard in shards:
        index.add(read(shard))
    index.nprobe = 16
    for shard in shards:
        _, found = index.search(read(shard), NEAREST + 1)  # itself among them
        np.save(shard.with_suffix(".found.npy"), found.astype(np.int32))
    seconds = time.process_time() - began
    sample = read(shards[0])[:SAMPLE]
    each = [faiss.knn(sample, read(shard), NEAREST + 1) for shard in shards]
    distances = np.concatenate([one for one, _ in each], axis=1)
    places = np.concatenate([one + SHARD * place for place, (_, one) in enumerate(each)], axis=1)
    nearest = np.argsort(distances, axis=1)[:, : NEAREST + 1]
    truth = np.take_along_axis(places, nearest, axis=1)
    found = np.load(shards[0].with_suffix(".found.npy"), mmap_mode="r")[:SAMPLE]
    hits = [len({*one} & {*other}) - 1 for one, other in zip(found, truth, strict=True)]
    return {"search": seconds, "found of the nearest ten": float(np.mean(hits)) / NEAREST}


def ledger(number: int, folder: pathlib.Path) -> dict[str, float]:
    """Answers so many queries in batches of 1,000, as `benchmarks.ledger` does."""
    flags = [f"--queries={number}", f"--output_dir={folder}"]
    subprocess.run(
        [sys.executable, "-m", "benchmarks.ledger", *flags],
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(folder)},
    )
    found = json.loads((folder / "ledger.json").read_text())
    return {
        "label": found["seconds to label"],
        "verify on opening": found["seconds to verify on opening"],
        "bytes an answer": 1e6 * (found["ledger, MB"] + found["counts, MB"]) / number,
    }


def hosts(number: int, folder: pathlib.Path) -> dict[str, float]:
    """Prepares so many networks to be sent to workers, and trains the first two here."""
    import tensorflow as tf

    from pate_tf.api.teacher_training import complete_settings
    from pate_tf.core.partition import random_partition
    from pate_tf.core.sensitive import PrivateExamples
    from pate_tf.data.tfds_source import MNIST
    from pate_tf.teachers.settings import TeacherSettings
    from pate_tf.teachers.training import EnsembleParallelTrainer, TeacherData

    del folder
    random = np.random.default_rng(0)
    records = 240 * number
    images = random.integers(0, 256, (records, 28, 28, 1), np.uint8)
    examples = PrivateExamples(MNIST, images, random.integers(0, 10, records))
    shares = random_partition(num_records=records, num_teachers=number, seed=0)
    _, config = complete_settings(TeacherSettings(model="cnn"), MNIST, shares)
    data = TeacherData(config, examples, shares)
    began, sent = time.process_time(), 0
    for teacher in range(number):
        sent += sum(
            one.numpy().nbytes
            for one in tf.nest.flatten(data.arguments(teacher, data.initial_state(teacher)))
        )
    prepared = time.process_time()
    trainer = EnsembleParallelTrainer(data, tf.distribute.OneDeviceStrategy("/CPU:0"))
    steps, spent = data.num_steps(0), []
    for teacher in range(2):  # the first one traces
        begun = time.process_time()
        trainer.advance([teacher], [data.initial_state(teacher)], steps)
        spent.append(time.process_time() - begun)
    return {
        "chief, ms a network": 1e3 * (prepared - began) / number,
        "KiB a network": sent / number / 1024,
        "worker, s a network": spent[-1],
    }


MEASURES = {
    "teachers": teachers,
    "ledger": ledger,
    "pool": pool,
    "neighbours": neighbours,
    "hosts": hosts,
    "approximate": approximate,
}
