"""How the plots of an analysis look, and how they are kept.

A roof room, without TensorFlow; Matplotlib is imported when the first plot is drawn.
"""

from __future__ import annotations

import io
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pate_tf import artifacts
from pate_tf.accounting import moments

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

EVENTS = "events.out.tfevents.0.analysis"
# Okabe and Ito's colours, told apart by colour-blind readers; dashes tell them apart in print.
STYLES: tuple[Mapping[str, Any], ...] = (
    {"color": "#0072B2", "linestyle": "-"},
    {"color": "#E69F00", "linestyle": (0, (5, 1, 1, 1, 1, 1))},
    {"color": "#D55E00", "linestyle": "--"},
    {"color": "#009E73", "linestyle": "-."},
    {"color": "#CC79A7", "linestyle": ":"},
)
BOUND_STYLES = dict(zip(moments.BOUNDS, STYLES, strict=True))
LIMIT_STYLE: Mapping[str, Any] = {"color": "#555555", "linestyle": (0, (1, 3))}
SENSITIVE_COLOR, PUBLISHABLE_COLOR = "#B00020", "#333333"


def new_figure(title: str, x_label: str, y_label: str, *, sensitive: bool) -> tuple[Figure, Axes]:
    """Returns an empty figure that says whether it may be published, and its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 5.0), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    mark = "SENSITIVE, do not publish" if sensitive else "publishable"
    color = SENSITIVE_COLOR if sensitive else PUBLISHABLE_COLOR
    axes.set_title(title, loc="left", fontsize=11)
    figure.supxlabel(mark, x=0.995, ha="right", fontsize=9, color=color)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(visible=True, which="major", color="#DDDDDD", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def bound_style(bound: str) -> dict[str, Any]:
    """Returns how the line of a bound looks, and its name in the legend."""
    direction = "both directions" if moments.is_two_sided(bound) else "forward"
    return {"label": f"{bound} ({direction})", "linewidth": 1.8, **BOUND_STYLES[bound]}


def plain_numbers(axis: Axis) -> None:
    """Puts plain numbers, such as 0.1 and 1,000, on an axis."""
    from matplotlib.ticker import FuncFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))


def legend(axes: Axes) -> None:
    """Draws the legend."""
    axes.legend(frameon=False, fontsize=9)


def save(
    folder: pathlib.Path, figures: Mapping[str, Figure], *, private: bool
) -> Sequence[pathlib.Path]:
    """Writes figures as PNG files by their names, and all of them for TensorBoard.

    Raises:
      OSError: if a file can't be written; it is not there then.
    """
    pictures = {}
    for name, figure in figures.items():
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png")
        pictures[name] = buffer.getvalue()
    paths = []
    for name, picture in pictures.items():
        paths.append(folder / f"{name}.png")
        with artifacts.atomic_file(paths[-1], private=private) as file:
            file.write(picture)
    if pictures:
        _write_events(folder / EVENTS, pictures, private=private)
    return paths


def _write_events(path: pathlib.Path, pictures: Mapping[str, bytes], *, private: bool) -> None:
    # TensorBoard's own writer of event files would import TensorFlow.
    from tensorboard.compat.proto import event_pb2, summary_pb2
    from tensorboard.summary.writer.record_writer import (
        RecordWriter,
    )

    with artifacts.atomic_file(path, private=private) as file:
        writer = RecordWriter(file)
        writer.write(event_pb2.Event(file_version="brain.Event:2").SerializeToString())
        for name, picture in pictures.items():
            image = summary_pb2.Summary.Image(encoded_image_string=picture)
            value = summary_pb2.Summary.Value(tag=name, image=image)
            event = event_pb2.Event(step=0, summary=summary_pb2.Summary(value=[value]))
            writer.write(event.SerializeToString())
