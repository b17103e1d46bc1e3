"""What grows with what: a cost model fitted on small sizes and held against larger ones.

`python -m benchmarks.scale [--only=teachers,ledger,pool,neighbours,hosts] [--folder=runs/scale]`

- `teachers`: ridge teachers of ten records each on 64 numbers, trained, saved, and asked 1,000
  queries through the labeller and its ledger; at most 100,000 of them, with a million records.
- `ledger`: answers kept and verified, at most a million.
- `pool`: a contrastive representation of up to 60,000 images of 28 x 28, and their features; the
  networks do `STEPS` steps, as memory does not depend on how many, and seconds a step are constant.
- `neighbours`: the graph that labels are spread over, which compares all inputs with all.
- `hosts`: what the chief of a cluster does for each network that a worker trains, 240 images of
  28 x 28 each, and what one worker does for one.
- `approximate`: the ten nearest of each of up to a million inputs, whose features lie in shards, by
  faiss (`pip install faiss-cpu`; no part of pate_tf). Asked for by `--only`.

Each size runs in a process of its own. Seconds are those of all cores together, which other work
on the machine changes little. The model is a constant and a power of the size (1 for most; 2 where
all are compared with all, 1.5 for the inverted lists of faiss), fitted to the small sizes by least
squares of relative errors. For larger sizes stands in brackets by how much it is off.
"""

import argparse
import importlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import numpy.typing as npt

RECORDS, FEATURES, CLASSES, QUERIES = 10, 64, 10, 1_000
STEPS = 10  # of contrastive learning, where 450 are the default
NEAREST, SHARD = 10, 2**17
INNER = 12  # dimensions in which features that are searched really differ
PART = 2**16  # records that are made at a time
SPREAD = 1.6  # of records about the mean of their class: a teacher of ten is right half the time

# Sizes that the model is fitted on, and those that it must predict.
SIZES = {
    "teachers": ((1_000, 4_000, 10_000), (30_000, 100_000)),
    "ledger": ((20_000, 50_000, 100_000), (300_000, 1_000_000)),
    "pool": ((2_000, 6_000, 12_000), (30_000, 60_000)),
    "neighbours": ((2_000, 4_000, 8_000), (16_000,)),
    "hosts": ((10, 20, 40), (100, 200)),
    "approximate": ((30_000, 60_000, 120_000), (500_000, 1_000_000)),
}
UNITS = {"teachers": "teachers", "ledger": "answers", "hosts": "networks"}  # "inputs" for others
POWERS = {"neighbours": 2.0, "approximate": 1.5}  # of seconds; 1 for others


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
        inputs[start : start + PART] = centres[own] + SPREAD * 2.0 * noise
    return inputs, labels


def teachers(number: int, folder: pathlib.Path) -> dict[str, float]:
    """Trains so many, and buys labels of `QUERIES` queries: all of it by the library."""
    from pate_tf.accounting.mechanisms import GaussianHistogram
    from pate_tf.ledger.registry_file import STATE_VARIABLE
    from pate_tf.noise import SystemNoise
    from pate_tf.queries.config import QueryConfig
    from pate_tf.runs import labels, train_teachers
    from pate_tf.runs.teacher_settings import TeacherSettings
    from pate_tf.values.dataset import Dataset
    from pate_tf.values.public import Pool
    from pate_tf.values.sensitive import PrivateExamples

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
    run, ensemble = train_teachers.fit(
        TeacherSettings(model="ridge"),
        examples,
        num_teachers=number,
        pool=pool,
        folder=folder / "run",
        engine=train_teachers.Engine(),
    )
    trained = time.process_time()
    request = labels.LabelRequest(
        queries=QueryConfig(num_queries=QUERIES),
        mechanism=GaussianHistogram(sigma=number / 50),
        noise=SystemNoise(),
    )
    budget = labels.Budget(delta=1e-7)
    with labels.open_ledger(run / "sensitive", teachers=ensemble, budget=budget) as ledger:
        bought = labels.ask(request, pool, teachers=ensemble, ledger=ledger)
    right = bought.released.labels == truth[bought.released.query_indices]
    return {
        "train, save, load": trained - began,
        "votes, counted, and labels": time.process_time() - trained,
        "labels right": float(right.mean()),
    }


def pool(number: int, folder: pathlib.Path) -> dict[str, float]:
    """Learns a little from so many images of 28 x 28, and works out their features."""
    from pate_tf.data.tfds_images import MNIST
    from pate_tf.models.encoder import Encoder
    from pate_tf.representations import contrastive
    from pate_tf.values.public import Pool

    contrastive.STEPS = STEPS
    images = np.random.default_rng(0).integers(0, 256, (number, 28, 28, 1), np.uint8)
    public = Pool(MNIST, images)
    began = time.process_time()
    parts = contrastive.learn(public, seed=0, folder=folder)
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
    from pate_tf.representations.neighbours import neighbour_graph

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
    found = [index.search(read(shard), NEAREST + 1)[1] for shard in shards]
    seconds = time.process_time() - began
    exact, sample = faiss.IndexFlatL2(FEATURES), read(shards[0])[:200]
    for shard in shards:
        exact.add(read(shard))
    _, truth = exact.search(sample, NEAREST + 1)
    hits = [len({*one} & {*other}) - 1 for one, other in zip(found[0], truth, strict=False)]
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

    from pate_tf.data.tfds_images import MNIST
    from pate_tf.partition import random_partition
    from pate_tf.runs.teacher_settings import TeacherSettings
    from pate_tf.teachers.training import EnsembleParallelTrainer, TeacherData
    from pate_tf.values.sensitive import PrivateExamples

    del folder
    random = np.random.default_rng(0)
    records = 240 * number
    images = random.integers(0, 256, (records, 28, 28, 1), np.uint8)
    examples = PrivateExamples(MNIST, images, random.integers(0, 10, records))
    shares = random_partition(num_records=records, num_teachers=number, seed=0)
    data = TeacherData(TeacherSettings().complete(examples, shares), examples, shares)
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


def apart(what: str, number: int) -> dict[str, float]:
    """Measures one size in a process of its own."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        flags = [f"--child={what}:{number}", f"--folder={folder}"]
        child = subprocess.Popen([sys.executable, "-m", "benchmarks.scale", *flags])
        _, status, used = os.wait4(child.pid, 0)
        if status:
            raise SystemExit(f"{what} of {number} ended with {os.waitstatus_to_exitcode(status)}")
        found: dict[str, float] = json.loads((pathlib.Path(folder) / "found.json").read_text())
    unit = 2**20 if sys.platform == "darwin" else 2**10  # of ru_maxrss
    found["seconds"] = used.ru_utime + used.ru_stime
    found["MiB"] = used.ru_maxrss / unit
    found["wall"] = time.monotonic() - began
    return found


def fitted(sizes: npt.ArrayLike, values: npt.ArrayLike, power: float) -> tuple[float, float]:
    """Returns a constant and the factor of `size ** power`, by least squares of relative errors."""
    x, y = np.asarray(sizes, np.float64) ** power, np.asarray(values, np.float64)
    rows = np.stack([1.0 / y, x / y], axis=1)
    fixed, each = np.linalg.lstsq(rows, np.ones(len(y)), rcond=None)[0]
    return float(fixed), float(each)


def report(what: str, found: dict[int, dict[str, float]]) -> str:
    """Returns the part's table and its model, as Markdown."""
    small, large = SIZES[what]
    powers = {"seconds": POWERS.get(what, 1.0), "MiB": 1.0}
    models = {
        name: fitted(small, [found[size][name] for size in small], power)
        for name, power in powers.items()
    }
    details = [name for name in found[small[0]] if name not in ("seconds", "MiB", "wall")]
    heads = ["seconds", "predicted", "MiB", "predicted", *details]
    lines = [
        f"| {UNITS.get(what, 'inputs')} | {' | '.join(heads)} |",
        "|---" * (len(heads) + 1) + "|",
    ]
    for number in (*small, *large):
        if number not in found:
            continue
        cells = []
        for name in ("seconds", "MiB"):
            value, (fixed, each) = found[number][name], models[name]
            predicted = fixed + each * number ** powers[name]
            off = "" if number in small else f" ({predicted / value - 1.0:+.0%})"
            cells += [f"{value:,.1f}", f"{predicted:,.1f}{off}"]
        cells += [f"{found[number][name]:.4g}" for name in details]
        lines.append(f"| {number:,} | {' | '.join(cells)} |")
    model = "; ".join(
        f"{name} = {fixed:.4g} + {each * 1e6 ** powers[name]:.4g} (size / 1,000,000)"
        + ("" if powers[name] == 1.0 else f" ** {powers[name]:g}")
        for name, (fixed, each) in models.items()
    )
    return "\n".join([*lines, "", model])


def main() -> None:
    """Reads the flags, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="teachers,ledger,pool,neighbours,hosts")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("runs/scale"))
    parser.add_argument("--most", type=int, default=10**9, help="the largest size that is run")
    parser.add_argument("--child", help="internal: PART:SIZE measured in this process")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    if asked.child:
        what, _, number = asked.child.partition(":")
        measure = {
            "teachers": teachers,
            "ledger": ledger,
            "pool": pool,
            "neighbours": neighbours,
            "hosts": hosts,
            "approximate": approximate,
        }[what]
        found = measure(int(number), asked.folder)
        (asked.folder / "found.json").write_text(json.dumps(found))
        return
    for what in asked.only.split(","):
        path = asked.folder / f"{what}.json"  # kept, so that a stopped run goes on
        kept = (
            {int(n): one for n, one in json.loads(path.read_text()).items()}
            if path.exists()
            else {}
        )
        for number in (size for sizes in SIZES[what] for size in sizes):
            if number not in kept and number <= asked.most:
                kept[number] = apart(what, number)
                path.write_text(json.dumps(kept, indent=2) + "\n")
        if all(size in kept for size in SIZES[what][0]):
            print(f"\n{what}\n\n{report(what, kept)}", flush=True)


if __name__ == "__main__":
    main()
