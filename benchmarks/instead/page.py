"""docs/notes/instead.md: table and picture of cells from several runs, in docs/notes/instead.json.

All cells of a data set take hours. A run that measured a few cells replaces their earlier versions.
The other cells stay, each with its command and date.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.harness import markdown_table, percent
from benchmarks.instead.methods import METHODS
from pate_tf.core import artifacts

Cells = Sequence[Mapping[str, Any]]
PATE = "Papernot et al. 2017, arXiv 1610.05755"
TEMPERED = "Papernot et al. 2021, arXiv 2007.14191; epsilon below 3, against removal"
DPSUR = (
    "Fu et al. 2024, arXiv 2311.14056, by their code's README; against removal, by an accounting "
    "that arXiv 2606.04384 disputes"
)
# Method, published accuracy and epsilon, and the source. Their neighboring relations differ.
PUBLISHED = {
    "mnist": (
        ("DP-SGD, Abadi et al. 2016", 0.97, 8.0, f"quoted in {PATE}, section 4.2"),
        ("PATE-G, 100 queries", 0.98, 2.04, f"{PATE}, figure 4; data-dependent, itself private"),
        ("PATE-G, 1,000 queries", 0.981, 8.03, f"{PATE}, figure 4; data-dependent"),
        ("DP-SGD, tempered sigmoids", 0.981, 3.0, TEMPERED),
        ("DPSUR on wavelets", 0.9793, 1.0, DPSUR),
        ("DPSUR on wavelets", 0.9888, 3.0, DPSUR),
    ),
    "fashion_mnist": (
        ("DP-SGD, tempered sigmoids", 0.861, 3.0, TEMPERED),
        ("DPSUR on wavelets", 0.8838, 1.0, DPSUR),
        ("DPSUR on wavelets", 0.8971, 3.0, DPSUR),
    ),
    "adult": (("PATE, forests", 0.83, 2.66, f"{PATE}, appendix C; data-dependent"),),
}
ERROR_TICKS = (0.5, 1, 2, 5, 10, 15, 20, 30, 50, 90)
# At most five lines can be told apart. The table has all methods.
DRAWN = ("no_privacy", "library", "library_noisy_max", "linear_head", "dp_sgd")


def table(cells: Cells) -> str:
    """Returns accuracies as a Markdown table: one row per method, one column per epsilon."""
    epsilons = sorted({cell["epsilon"] for cell in cells if cell["epsilon"] is not None})
    rows = []
    for name in dict.fromkeys(cell["method"] for cell in cells):
        of_method = {cell["epsilon"]: cell for cell in cells if cell["method"] == name}
        row = {"accuracy at epsilon": METHODS[name].title}
        for epsilon in epsilons:
            cell = of_method.get(epsilon, of_method.get(None))
            accuracies = [] if cell is None else _accuracies(cell)
            row[f"{epsilon:g}"] = "" if cell is None else "none"
            if accuracies:
                row[f"{epsilon:g}"] = percent(float(np.median(accuracies)), 1)
            if len(accuracies) > 1:
                low, high = min(accuracies), max(accuracies)
                row[f"{epsilon:g}"] += f" ({100 * low:.1f} to {100 * high:.1f})"
        rows.append(row)
    return markdown_table(rows)


def _accuracies(cell: Mapping[str, Any]) -> list[float]:
    """Returns accuracies of the repetitions that released a label."""
    results = [result["accuracy"] for result in cell["repetitions"]]
    return [accuracy for accuracy in results if accuracy is not None]


def draw(dataset: str, cells: Cells, path: pathlib.Path) -> None:
    """Draws test error against epsilon, both logarithmic."""
    figure = Figure(figsize=(8, 5.5), layout="constrained")
    axes = figure.subplots()
    measured = [cell for cell in cells if _accuracies(cell)]
    for place, name in enumerate(DRAWN):
        points = sorted(
            (cell["epsilon"] or 0.0, 100 * (1 - float(np.median(_accuracies(cell)))))
            for cell in measured
            if cell["method"] == name
        )
        title = METHODS[name].title
        if not METHODS[name].is_private:
            axes.axhline(points[0][1], color="gray", linestyle=":", label=title)
            continue
        style = f"C{place}-{'oDs^o'[place]}"
        width = 2.5 if name == "library" else 1.5
        axes.plot(*zip(*points, strict=True), style, linewidth=width, label=title)
    for number, (_, accuracy, epsilon, _) in enumerate(PUBLISHED.get(dataset, ()), start=1):
        point = epsilon, 100 * (1 - accuracy)
        axes.plot(*point, "k*", markerfacecolor="none")
        axes.annotate(str(number), point, textcoords="offset points", xytext=(6, 3))
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="epsilon at delta 1e-5, against replacement of a record",
        ylabel="error on held-out test samples, %",
        title=dataset,
    )
    ticks = sorted({cell["epsilon"] for cell in cells if cell["epsilon"] is not None})
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    low, high = axes.get_ylim()
    errors = [tick for tick in ERROR_TICKS if low <= tick <= high]
    axes.set_yticks(errors, [f"{tick:g}" for tick in errors])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)


def publish(dataset: str, cells: Cells, docs_dir: pathlib.Path) -> None:
    """Puts cells into the JSON file, the page and the picture of their data set.

    Args:
        dataset: name of the data set.
        cells: each has `method`, `epsilon`, `seconds`, `repetitions`, `command` and `date`.
        docs_dir: holds `instead.md`, and `instead.json` if anything was published.

    Raises:
        ValueError: if the page has no marks of the data set.
    """
    page, path = docs_dir / "instead.md", docs_dir / "instead.json"
    begin, end = f"<!-- measured: {dataset} -->\n", f"<!-- end: {dataset} -->\n"
    text = page.read_text()
    if begin not in text or end not in text:
        raise ValueError(f"docs_dir: expected {begin.strip()} and {end.strip()} in {page}")
    stored = artifacts.read_json(path) if path.exists() else {}
    places = {
        (cell["method"], cell["epsilon"]): cell
        for cell in (*stored.get(dataset, []), *cells)
        if cell["method"] in METHODS
    }
    order = list(METHODS)
    merged = sorted(
        places.values(), key=lambda cell: (order.index(cell["method"]), cell["epsilon"] or 0.0)
    )
    artifacts.write_json(path, {**stored, dataset: merged})
    file = f"pictures/instead_{dataset}.png"
    draw(dataset, merged, docs_dir / file)
    repetitions = max(len(cell["repetitions"]) for cell in merged)
    parts = [
        table(merged),
        f"`python -m benchmarks.instead --dataset={dataset} --repetitions={repetitions}`, some "
        f"cells at a time, the last on {max(cell['date'] for cell in merged)}.",
        f"![error against epsilon, {dataset}]({file})",
        "\n".join(
            f"{number}. {method}: {percent(accuracy, 1)} at epsilon {epsilon:g} ({where})"
            for number, (method, accuracy, epsilon, where) in enumerate(
                PUBLISHED.get(dataset, ()), start=1
            )
        ),
    ]
    before, after = text.split(begin)[0], text.split(end)[1]
    body = "\n\n".join(part.strip() for part in parts if part)
    artifacts.write_text(page, f"{before}{begin}\n{body}\n\n{end}{after}")
