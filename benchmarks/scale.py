"""What grows with what: a cost model fitted on small sizes and held against larger ones.

`python -m benchmarks.scale [--only=teachers,ledger,pool] [--folder=runs/scale]`

- `teachers`: ridge teachers of ten records each on 64 numbers, trained, saved, and asked 1,000
  queries through the labeller and its ledger; at most 100,000 of them, with a million records.
- `ledger`: answers kept and verified, at most a million.
- `pool`: features of an image pool of 60,000, after the two networks were built, not learnt.

Each size runs in a process of its own. Seconds are those of all cores together, which other work
on the machine changes little; the model is a line through the small sizes, by least squares of
relative errors, and the last column says how far what it predicts is from what was found.
"""

import argparse
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
PART = 2**16  # records that are made at a time
SPREAD = 1.6  # of records about the mean of their class: a teacher of ten is right half the time

# Sizes that the model is fitted on, and those that it must predict.
SIZES = {
    "teachers": ((1_000, 4_000, 10_000), (30_000, 100_000)),
    "ledger": ((20_000, 50_000, 100_000), (300_000, 1_000_000)),
    "pool": ((2_000, 6_000, 12_000), (30_000, 60_000)),
}
UNITS = {"teachers": "teachers", "ledger": "answers", "pool": "inputs"}


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
    """Works out features of so many images of 28 x 28, by networks as they are built."""
    from pate_tf.data.tfds_images import MNIST
    from pate_tf.models.encoder import Encoder
    from pate_tf.representations import contrastive
    from pate_tf.values.public import Pool

    del folder
    images = np.random.default_rng(0).integers(0, 256, (number, 28, 28, 1), np.uint8)
    public = Pool(MNIST, images)
    began = time.process_time()
    parts = contrastive.unlearnt(MNIST, seed=0)
    for part in parts:
        part.find_directions(public)
    encoder = Encoder(MNIST, parts, {})
    views = encoder.views(encoder.features(public.inputs))
    return {
        "directions and features": time.process_time() - began,
        "bytes an input": sum(view.nbytes for view in views) / number,
    }


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


def line(sizes: npt.ArrayLike, values: npt.ArrayLike) -> tuple[float, float]:
    """Returns what is fixed and what each unit adds, by least squares of relative errors."""
    x, y = np.asarray(sizes, np.float64), np.asarray(values, np.float64)
    rows = np.stack([1.0 / y, x / y], axis=1)
    fixed, each = np.linalg.lstsq(rows, np.ones(len(y)), rcond=None)[0]
    return float(fixed), float(each)


def report(what: str, found: dict[int, dict[str, float]]) -> str:
    """Returns the part's table and its model, as Markdown."""
    small, large = SIZES[what]
    models = {
        name: line([n for n in small if n in found], [found[n][name] for n in small if n in found])
        for name in ("seconds", "MiB")
    }
    details = [name for name in found[small[0]] if name not in ("seconds", "MiB", "wall")]
    heads = ["seconds", "predicted", "MiB", "predicted", *details]
    lines = [f"| {UNITS[what]} | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for number in (*small, *large):
        if number not in found:
            continue
        cells = []
        for name in ("seconds", "MiB"):
            value, (fixed, each) = found[number][name], models[name]
            predicted = fixed + each * number
            off = "" if number in small else f" ({predicted / value - 1.0:+.0%})"
            cells += [f"{value:,.1f}", f"{predicted:,.1f}{off}"]
        cells += [f"{found[number][name]:.4g}" for name in details]
        lines.append(f"| {number:,} | {' | '.join(cells)} |")
    model = "; ".join(
        f"{name} = {fixed:.4g} + {each * 1e6:.4g} a million"
        for name, (fixed, each) in models.items()
    )
    return "\n".join([*lines, "", model])


def main() -> None:
    """Reads the flags, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(SIZES))
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("runs/scale"))
    parser.add_argument("--most", type=int, default=10**9, help="the largest size that is run")
    parser.add_argument("--child", help="internal: PART:SIZE measured in this process")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    if asked.child:
        what, _, number = asked.child.partition(":")
        measure = {"teachers": teachers, "ledger": ledger, "pool": pool}[what]
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
        print(f"\n{what}\n\n{report(what, kept)}", flush=True)


if __name__ == "__main__":
    main()
