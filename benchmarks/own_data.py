"""Ten data sets in everyday formats: `python -m benchmarks.own_data [--only NAME ...] [--publish]`.

Each is written as two files of separated values or two folders of images. It goes through `pate
schema` and `pate run` with their defaults, at epsilon 1 and 3 and delta 1e-5. The baseline is a
model without privacy: scikit-learn's gradient boosting on the private file's features (logistic
regression for texts). The accuracy of both is measured on the held-out part of the public file. The
table also compares the forecast that `pate run` prints before any charge with the accuracy of its
labels, for the default method and for the other one.

The defaults of `pate run` were chosen on the first five, and on public labels of `digits` and
`quantiles`.
"""

import argparse
import csv
import datetime
import inspect
import json
import os
import pathlib
import pkgutil
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import numpy.typing as npt
import sklearn.datasets
from matplotlib.figure import Figure
from PIL import Image, ImageDraw
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression

import pate_tf
from benchmarks.harness import markdown_table, provenance
from pate_tf.core import artifacts

EPSILONS = (1.0, 3.0)
METHODS = ("feature_sums", "pate")
OF_A_REPORT = ("method", "forecast", "label_accuracy", "student_accuracy")
DOCS = pathlib.Path(__file__).parents[1] / "docs" / "notes"
Rows = list[dict[str, Any]]


def shuffled(rows: Rows, seed: int = 0) -> Rows:
    """Returns rows in a random order that depends on the seed only."""
    return [rows[place] for place in np.random.default_rng(seed).permutation(len(rows))]


def _numbers(features: npt.NDArray[Any], labels: Sequence[Any]) -> Rows:
    return [
        {**{f"x{place}": f"{value:.4f}" for place, value in enumerate(row)}, "label": f"c{label}"}
        for row, label in zip(features, labels, strict=True)
    ]


def classification(number: int = 13_000) -> Rows:
    """Three classes of scikit-learn's generator, with 20 numbers."""
    features, labels = sklearn.datasets.make_classification(
        number, 20, n_informative=8, n_classes=3, class_sep=1.5, random_state=0
    )
    return _numbers(features, labels)


def hastie(number: int = 13_000) -> Rows:
    """Ten numbers. The label is whether the sum of their squares is large."""
    features, labels = sklearn.datasets.make_hastie_10_2(number, random_state=0)
    return _numbers(features, (labels > 0).astype(int))


def incomes(number: int = 13_000) -> Rows:
    """People with numbers and categories, some of them missing. A quarter has a high income."""
    random = np.random.default_rng(1)
    works = ["nurse", "clerk", "engineer", "driver", "manager", "teacher", "cook", "lawyer"]
    pay = dict(zip(works, [0.1, -0.4, 1.0, -0.9, 1.4, 0.3, -1.2, 1.6], strict=True))
    rows = []
    for _ in range(number):
        work, age = str(random.choice(works)), int(random.integers(18, 75))
        years, hours = int(random.integers(0, min(age - 17, 40))), int(random.normal(38, 9))
        score = pay[work] + 0.05 * years + 0.04 * (hours - 38) + random.normal(0, 0.6)
        rows.append(
            {
                "age": age,
                "occupation": work if random.random() > 0.03 else "",
                "years": years,
                "hours": hours if random.random() > 0.03 else "",
                "region": str(random.choice(["north", "south", "east", "west"])),
                "label": "much" if score > 1.9 else "little",
            }
        )
    return rows


def _sentences(modules: Sequence[str]) -> list[str]:
    """Returns sentences of at least six words from docstrings, without duplicates."""
    sentences = set()
    for name in modules:
        try:
            module = __import__(name, fromlist=["_"])
        except Exception:
            continue
        classes = [member for member in vars(module).values() if inspect.isclass(member)]
        for namespace in (module, *classes):
            for member in (namespace, *vars(namespace).values()):
                text = getattr(member, "__doc__", None)
                text = text if isinstance(text, str) else ""
                for sentence in re.split(r"(?<=[.:])\s+|\n\s*\n", text):
                    if len(re.findall(r"[A-Za-z]+", sentence)) >= 6 and ">>>" not in sentence:
                        sentences.add(" ".join(sentence.split())[:300])
    return sorted(sentences)


def _texts(packages: Mapping[str, Sequence[str]], most: int) -> Rows:
    """Returns at most this many sentences of each class."""
    rows = []
    for label, modules in packages.items():
        rows += shuffled([{"text": text, "label": label} for text in _sentences(modules)])[:most]
    return rows


def packages(most: int = 3_500) -> Rows:
    """Sentences of three packages' documentation, to be told apart."""
    names = {
        "numpy": ("", ".linalg", ".fft", ".ma", ".random", ".char"),
        "scipy": (".stats", ".signal", ".optimize", ".sparse", ".ndimage"),
        "keras": (".layers", ".ops", ".losses", ".metrics", ".callbacks"),
    }
    modules = {name: [f"{name}{part}" for part in parts] for name, parts in names.items()}
    return _texts(modules, most)


def shapes(number: int = 7_000) -> Rows:
    """Color images of circles, squares, triangles and stripes, with unequal class sizes."""
    random = np.random.default_rng(4)
    rows = []
    for _ in range(number):
        name = str(random.choice(["circle", "square", "triangle", "stripes"]))
        side = int(random.integers(28, 49))
        ground, ink = (tuple(map(int, random.integers(0, 256, 3))) for _ in range(2))
        image = Image.new("RGB", (side, side), ground)
        draw = ImageDraw.Draw(image)
        size = random.uniform(0.25, 0.42) * side
        x, y = random.uniform(size, side - size, 2)
        if name == "circle":
            draw.ellipse([x - size, y - size, x + size, y + size], fill=ink)
        elif name == "square":
            half = size * 0.85
            draw.rectangle([x - half, y - half, x + half, y + half], fill=ink)
        elif name == "triangle":
            corners = [(x, y - size), (x - size, y + size * 0.8), (x + size, y + size * 0.8)]
            draw.polygon(corners, ink)
        else:
            for place in range(0, side, 8):
                draw.rectangle([0, place, side, place + 3], fill=ink)
        noise = random.normal(0, 12, (side, side, 3))
        pixels = np.clip(np.asarray(image) + noise, 0, 255).astype(np.uint8)
        rows.append({"image": pixels, "label": name})
    return rows


def quantiles(number: int = 13_000) -> Rows:
    """Three nested shells of a Gaussian in six dimensions."""
    features, labels = sklearn.datasets.make_gaussian_quantiles(
        n_samples=number, n_features=6, n_classes=3, random_state=0
    )
    return _numbers(features, labels)


def breast_cancer() -> Rows:
    """scikit-learn's bundled table: 569 records of 30 numbers."""
    bunch = sklearn.datasets.load_breast_cancer()
    return shuffled(_numbers(bunch.data, bunch.target))


def digits() -> Rows:
    """scikit-learn's bundled digits as a table of 64 numbers: 1,797 records."""
    bunch = sklearn.datasets.load_digits()
    return shuffled(_numbers(bunch.data, bunch.target))


def clinic(number: int = 13_000) -> Rows:
    """Visits with dates, codes and categories. The label is whether the patient returns."""
    random = np.random.default_rng(7)
    wards = ["A", "B", "C", "D", "E", "F"]
    risk = dict(zip(wards, [0.9, -0.8, 0.1, 1.3, -1.1, 0.0], strict=True))
    first, rows = datetime.date(2020, 1, 1), []
    for _ in range(number):
        ward, day = str(random.choice(wards)), int(random.integers(0, 1500))
        age, pressure = int(random.integers(18, 95)), float(random.normal(128, 18))
        drugs = int(random.poisson(2))
        score = (
            risk[ward]
            + 0.03 * (age - 55)
            + 0.02 * (pressure - 128)
            + 0.35 * (drugs - 2)
            - 0.0006 * (day - 750)
            + (0.8 if ward in "AC" and age > 70 else 0.0)
            + random.logistic(0, 0.6)
        )
        rows.append(
            {
                "admitted": (first + datetime.timedelta(day)).strftime("%d.%m.%Y"),
                "age": age,
                "pressure": f"{pressure:.1f}" if random.random() > 0.05 else "",
                "drugs": drugs,
                "ward": ward,
                "sex": str(random.choice(["F", "M"])),
                "label": "back" if score > 0 else "stays away",
            }
        )
    return rows


def standard_library(most: int = 3_000) -> Rows:
    """Sentences of Python's documentation, about networks or about other topics."""
    network = ("asyncio", "email", "http", "socket", "ssl", "urllib", "xmlrpc", "smtplib", "ftplib")
    left_out = (*network, "antigravity", "this", "idlelib", "turtledemo")
    names = [module.name for module in pkgutil.iter_modules()]
    others = [
        name
        for name in names
        if name in sys.stdlib_module_names and not name.startswith("_") and name not in left_out
    ]
    modules = []
    for name in network:
        parts = pkgutil.iter_modules(getattr(__import__(name), "__path__", []))
        modules += [name, *(f"{name}.{part.name}" for part in parts)]
    return _texts({"network": modules, "other": others}, most)


DATA_SETS: Mapping[str, Callable[[], Rows]] = {
    data_set.__name__: data_set
    for data_set in (
        *(classification, hastie, incomes, packages, shapes),  # the defaults were chosen on these
        *(quantiles, breast_cancer, digits, clinic, standard_library),
    )
}
PUBLIC = 3_000  # maximum, and at most three tenths


def write(rows: Rows, folder: pathlib.Path) -> tuple[list[str], int]:
    """Writes both sides. Returns their flags, and the number of private records."""
    rows = shuffled(rows)
    number = min(PUBLIC, round(0.3 * len(rows)))
    sides = {"public": rows[:number], "private": rows[number:]}
    if "image" in rows[0]:
        for side, images in sides.items():
            for place, row in enumerate(images):
                path = folder / side / row["label"]
                path.mkdir(parents=True, exist_ok=True)
                Image.fromarray(row["image"]).save(path / f"{place:05}.png")
        return ["--private=private", "--public=public", "--image_size=32"], len(sides["private"])
    for side, lines in sides.items():
        write_table(lines, folder / f"{side}.csv")
    run_pate(folder, "schema", "--public=public.csv", "--label=label")
    files = ["--private=private.csv", "--public=public.csv", "--schema=schema.toml"]
    return files, len(sides["private"])


def write_table(rows: Rows, path: pathlib.Path) -> None:
    """Writes rows as a file of comma-separated values."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)


def run_pate(folder: pathlib.Path, *arguments: str) -> None:
    """Runs a command of `pate`. Exits with its error if it fails."""
    command = [sys.executable, "-m", "pate_tf.cli.main", *arguments]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if ended.returncode:
        raise SystemExit(f"{' '.join(arguments)}: {ended.stderr[-2000:]}")


def without_privacy(folder: pathlib.Path, files: Sequence[str]) -> float:
    """Returns the accuracy of a model trained directly on the private records."""
    if "--schema=schema.toml" in files:
        schema = folder / "schema.toml"
        data = pate_tf.Data.from_csv(folder / "private.csv", folder / "public.csv", schema=schema)
    else:
        data = pate_tf.Data.from_folders(folder / "private", folder / "public", image_size=(32, 32))
    is_text = data.dataset.kind == "text"
    model = LogisticRegression(C=30.0) if is_text else HistGradientBoostingClassifier()
    private, held_out = data.private, data.held_out
    model.fit(private.inputs.reshape(len(private), -1), private.labels)
    predictions = model.predict(held_out.inputs.reshape(len(held_out), -1))
    return float((predictions == held_out.labels).mean())


def measure(name: str, epsilons: Sequence[float], *, both: bool) -> dict[str, Any]:
    """Returns the reports of `pate run`, by epsilon: the default method first.

    Args:
        name: name of the data set.
        epsilons: epsilons of the runs.
        both: whether the other method runs, too.
    """
    with tempfile.TemporaryDirectory(prefix="own-data-") as place:
        folder = pathlib.Path(place)
        files, number = write(DATA_SETS[name](), folder)
        results: dict[str, Any] = {"records": number, "without": without_privacy(folder, files)}

        def report(epsilon: float, *flags: str) -> dict[str, Any]:
            run = f"{epsilon:g}{''.join(flags)}"
            named = [f"--epsilon={epsilon:g}", f"--train_dir={run}", f"--report_file={run}.json"]
            run_pate(folder, "run", *files, *named, "--accept_forecast", *flags)
            values = json.loads((folder / f"{run}.json").read_text())
            return {field: values[field] for field in OF_A_REPORT}

        for epsilon in epsilons:
            reports = [report(epsilon)]
            if both:
                (other,) = set(METHODS) - {reports[0]["method"]}
                reports.append(report(epsilon, f"--method={other}"))
            results[f"{epsilon:g}"] = reports
        return results


def page(results: Mapping[str, Any], date: str) -> str:
    """Returns the page of the results."""
    rows, forecasts = [], []
    for name, result in results.items():
        row = {"data set": name, "private records": f"{result['records']:,}"}
        for epsilon in EPSILONS:
            reports = result.get(f"{epsilon:g}", [])
            forecasts += [report for report in reports if report["forecast"]]
            row["method"] = reports[0]["method"] if reports else ""
            row[f"epsilon {epsilon:g}"] = f"{reports[0]['student_accuracy']:.1%}" if reports else ""
        rows.append({**row, "without privacy": f"{result['without']:.1%}"})
    within = sum(
        report["forecast"][0] <= report["label_accuracy"] <= report["forecast"][1]
        for report in forecasts
    )
    errors = [abs(sum(report["forecast"]) / 2 - report["label_accuracy"]) for report in forecasts]
    return f"""# Ten data sets in everyday formats

Held-out accuracy of the student that `pate schema` and `pate run` publish by default, at delta
1e-5, with one run for each cell. The last column shows gradient boosting, or logistic regression
for texts. Defaults, and the widths of forecast ranges, were chosen on the first five data sets, and
on public labels of `digits` and `quantiles`.

{markdown_table(rows)}
`python -m benchmarks.own_data --publish`, {date}.

`pate run` also forecasts the accuracy of its labels. For both methods and both epsilons, {within}
of {len(forecasts)} accuracies are in the forecast range, whose middle differs from them by
{np.mean(errors):.1%} on average.

![Forecast and label accuracy](pictures/own_data.png)
"""


def draw(results: Mapping[str, Any], path: pathlib.Path) -> None:
    """Draws forecasts, with their ranges, against the accuracy of the labels."""
    figure = Figure(figsize=(6.0, 5.0), layout="constrained")
    axes = figure.subplots()
    axes.plot([0.3, 1], [0.3, 1], color="gray", linewidth=1)
    for method in METHODS:
        reports = [
            report
            for result in results.values()
            for epsilon in EPSILONS
            for report in result.get(f"{epsilon:g}", [])
            if report["method"] == method and report["forecast"]
        ]
        if reports:
            low, high = np.array([report["forecast"] for report in reports]).T
            middle = (low + high) / 2
            accuracies = [report["label_accuracy"] for report in reports]
            axes.errorbar(accuracies, middle, [middle - low, high - middle], fmt="o", label=method)
    axes.set(xlabel="label accuracy", ylabel="forecast")
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measures, prints, and publishes on request."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=DATA_SETS, default=list(DATA_SETS))
    parser.add_argument("--quick", action="store_true", help="one epsilon and method")
    parser.add_argument("--publish", action="store_true", help="write docs/notes/own_data.md")
    parser.add_argument("--docs_dir", type=pathlib.Path, default=DOCS)
    flags = parser.parse_args()
    path = flags.docs_dir / "own_data.json"
    stored = artifacts.read_json(path) if flags.publish and path.exists() else {"results": {}}
    results = stored["results"]
    for name in flags.only:
        epsilons = EPSILONS[-1:] if flags.quick else EPSILONS
        results[name] = measure(name, epsilons, both=not flags.quick)
        print(name, json.dumps(results[name]), flush=True)
    results = {name: results[name] for name in DATA_SETS if name in results}
    date = provenance()["date"] if flags.only else stored["date"]
    text = page(results, date)
    print(text)
    if flags.publish:
        artifacts.write_json(path, {**stored, "date": date, "results": results})
        artifacts.write_text(flags.docs_dir / "own_data.md", text)
        draw(results, flags.docs_dir / "pictures" / "own_data.png")


if __name__ == "__main__":
    main()
