"""Pictures of results, drawn from the JSON file."""

import pathlib
from collections.abc import Mapping
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.paper.runner import EXPERIMENTS
from pate_tf.core import artifacts

FOLDER = "pictures"


def draw(results: Mapping[str, Any], docs_dir: pathlib.Path) -> dict[str, str]:
    """Draws a picture for each experiment that has one; returns their paths from the page."""
    drawn = {}
    (docs_dir / FOLDER).mkdir(parents=True, exist_ok=True)
    for name, result in results["experiments"].items():
        experiment = EXPERIMENTS[name]
        if experiment.draw is None or not any(row["numbers"] for row in result["rows"]):
            continue
        figure = Figure(figsize=(10 if name == "frontier" else 6, 4), layout="constrained")
        FigureCanvasAgg(figure)
        experiment.draw(figure, result["rows"])
        drawn[name] = f"{FOLDER}/results_{name}.png"
        with artifacts.atomic_file(docs_dir / drawn[name]) as file:
            figure.savefig(file, dpi=80)
    return drawn
