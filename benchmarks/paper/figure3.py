"""Figure 3: how certain is the aggregation of teacher predictions?"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.paper.bench import Bench
from benchmarks.paper.ensembles import EnsembleName
from benchmarks.paper.rows import OURS, PAPER, Experiment, Row, not_run, percent
from pate_tf.aggregation.noise import NoiseSource

AT_LEAST = 0.6  # what the paper's text says of all its ensembles


def _rows(bench: Bench) -> Iterator[Row]:
    for dataset in bench.setting.images:
        if reason := bench.missing(dataset):
            yield not_run(dataset, reason, paper=f"above {percent(AT_LEAST)}")
            continue
        for num_teachers in bench.setting.ensembles:
            name = EnsembleName(dataset=dataset, num_teachers=num_teachers)

            def measure(noise: NoiseSource, name: EnsembleName = name) -> dict[str, Any]:
                del noise
                ordered = np.sort(bench.votes(name).counts().values, axis=1)
                gaps = (ordered[:, -1] - ordered[:, -2]) / name.num_teachers
                return {"mean": float(gaps.mean()), "tenth": float(np.quantile(gaps, 0.1))}

            config = {"dataset": dataset, "num_teachers": num_teachers}
            bench.ensemble(name)
            measured = bench.unit("gap", config, measure)
            gap = measured.result["mean"]
            yield Row(
                what=f"{dataset}, {num_teachers} teachers",
                cells={
                    PAPER: f"above {percent(AT_LEAST)}",
                    OURS: percent(gap),
                    "ours, lowest tenth of the samples": percent(measured.result["tenth"]),
                },
                why="Our teachers of this many agree less than the paper's." * (gap < AT_LEAST),
                numbers={"dataset": dataset, "teachers": num_teachers, "gap": gap},
                seconds=measured.seconds,
            )


def _draw(figure: Figure, rows: Sequence[Mapping[str, Any]]) -> None:
    axes = figure.subplots()
    numbers = [row["numbers"] for row in rows if row["numbers"]]
    for dataset in dict.fromkeys(one["dataset"] for one in numbers):
        points = [(one["teachers"], one["gap"]) for one in numbers if one["dataset"] == dataset]
        axes.plot(*zip(*points, strict=True), "o-", label=dataset)
    axes.axhline(AT_LEAST, linestyle="--", color="gray", label="the paper: above")
    axes.set(xscale="log", ylim=(0, 1), xlabel="teachers", ylabel="mean gap / teachers")
    axes.legend()


EXPERIMENT = Experiment(
    title="Figure 3: gap between the first and the second class",
    about=(
        "Votes for the first class less votes for the second, divided by the number of teachers, "
        "averaged over all public samples."
    ),
    rows=_rows,
    draw=_draw,
)
