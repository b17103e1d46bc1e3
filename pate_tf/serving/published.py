"""A published student on files: predictions, and how good it is where a file has labels."""

import csv
import dataclasses
import io
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pate_tf.core import artifacts
from pate_tf.core.dataset import Dataset
from pate_tf.core.reporting import RunReport
from pate_tf.data import image_folders, tables
from pate_tf.data.schema import read_schema
from pate_tf.serving.served import DATASET, EXTRA, SCHEMA, ServedStudent
from pate_tf.students import evaluation

Path = str | os.PathLike[str]
PREDICTED = "predicted"


class PublishedStudent:
    """A version of an exported student, with what it says of the data that it takes.

    Attributes:
        folder: the version.
        dataset: what is publicly known of the data, with the schema of a table.
    """

    def __init__(self, folder: Path) -> None:
        """Takes a version, or the newest one in a run folder, its `released/` or `student/`.

        Raises:
            ValueError: if there is none.
        """
        self.folder = newest_version(pathlib.Path(folder))
        path = self.folder / EXTRA / DATASET
        if not path.is_file():
            raise ValueError(f"student: expected {path}, as an exported student has it, got none")
        fields, schema = artifacts.read_json(path), self.folder / EXTRA / SCHEMA
        by = read_schema(schema) if schema.is_file() else None
        self.dataset = Dataset(**{**vars(Dataset.from_dict(fields)), "schema": by})
        self._served = ServedStudent(self.folder)

    @property
    def class_names(self) -> tuple[str, ...]:
        """A name for each class: its number where the data set names none."""
        return self.dataset.class_names or tuple(map(str, range(self.dataset.num_classes)))

    def answer(
        self, inputs: npt.NDArray[Any]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Returns labels and probabilities of features or pixels, as `ServedStudent.answer`."""
        return self._served.answer(inputs)

    def form(self, path: Path) -> tables.TextForm:
        """Returns how a table is written, by the schema or by itself; the usual form of others."""
        source, schema = pathlib.Path(path), self.dataset.schema
        if schema is None or source.suffix.lower() in tables.PARQUET or source.is_dir():
            return tables.TextForm()
        return tables.text_form(source, schema)

    def read(self, path: Path) -> tuple[dict[str, Sequence[str]], npt.NDArray[Any]]:
        """Returns what stands in a table or a folder of images, by column, and raw inputs of it.

        Args:
            path: of a table whose columns the schema names, or a folder of images, which may lie in
                folders of their classes. Columns are `file` then, and `label` where there are such.

        Raises:
            ValueError: if it can't be read, or a record does not fit; the message names its place.
        """
        source, dataset = pathlib.Path(path), self.dataset
        if dataset.kind == "image":
            height, width, channels = dataset.input_shape
            paths = sorted(
                one for one in source.rglob("*") if one.suffix.lower() in image_folders.SUFFIXES
            )
            if not source.is_dir() or not paths:
                raise ValueError(f"inputs: expected a folder of images, got {source}")
            inputs = np.stack(
                [
                    image_folders.read_image(one, (height, width, channels), str(one))
                    for one in paths
                ]
            )
            places = [one.relative_to(source) for one in paths]
            fields = {"file": list(map(str, places))}
            if all(one.parent.name in self.class_names for one in places):
                fields["label"] = [one.parent.name for one in places]
            return dict(fields), inputs
        if dataset.schema is None:
            raise ValueError(
                "student: expected one of a table with a schema, or of images, whose files can be "
                "read; got one of arrays: call its SavedModel"
            )
        table = tables.read_table(source, self.form(source))
        return dict(table.fields), dataset.schema.encode_columns(
            table.fields, table.what, table.places
        )


def newest_version(folder: pathlib.Path) -> pathlib.Path:
    """Returns the newest version of a student in a run folder, its `released/` or `student/`.

    Raises:
        ValueError: if there is none.
    """
    for place in (folder, folder / "student", folder / artifacts.RELEASED / "student"):
        if (place / EXTRA).is_dir():
            return place
        numbers = [int(one.name) for one in place.glob("*") if one.name.isdecimal()]
        if numbers and (place / str(max(numbers)) / EXTRA).is_dir():
            return place / str(max(numbers))
    raise ValueError(f"student: expected a student in {folder}, got none")


def predict(student: Path, inputs: Path, output: Path) -> RunReport:
    """Writes the columns of a file, with the predicted class and the probability of each.

    The output is written as the inputs are: delimiter, encoding and decimal comma.

    Args:
        student: as of `PublishedStudent`.
        inputs: a table, with or without labels, or a folder of images.
        output: a file of separated values that is not there yet.

    Raises:
        ValueError: if something can't be read or written, or a record does not fit the schema.
    """
    target = pathlib.Path(output)
    if target.exists():
        raise ValueError(f"output: expected a file that is not there yet, got {target}")
    artifacts.check_can_hold_files(target.parent)
    published = PublishedStudent(student)
    fields, raw = published.read(inputs)
    labels, probabilities = published.answer(raw)
    own = [PREDICTED, *(f"probability of {name}" for name in published.class_names)]
    if strange := sorted(set(own) & set(fields)):
        raise ValueError(f"inputs: expected no column {strange[0]!r}, which is written, got one")
    form = published.form(inputs)
    if form.decimal != ".":  # as they stand there
        as_written = dataclasses.replace(form, decimal=".")
        fields = dict(tables.read_table(pathlib.Path(inputs), as_written).fields)
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n", delimiter=form.delimiter)
    writer.writerow([*fields, *own])
    for place, (label, row) in enumerate(zip(labels, probabilities, strict=True)):
        given = [values[place] for values in fields.values()]
        numbers = [f"{one:.6g}".replace(".", form.decimal) for one in row]
        writer.writerow([*given, published.class_names[label], *numbers])
    try:
        content = text.getvalue().encode(form.encoding)
    except UnicodeEncodeError:
        raise ValueError(
            f"output: expected classes that can be written in {form.encoding}, as the inputs are, "
            f"got others; write the inputs in UTF-8"
        ) from None
    with artifacts.atomic_file(target) as file:
        file.write(content)
    rows = [("inputs", f"{len(labels):,}"), ("output", str(target))]
    return RunReport(values={"inputs": len(labels), "output": str(target)}, rows=rows)


def evaluate(student: Path, inputs: Path, *, label: str | None = None) -> RunReport:
    """Returns how good a published student is on a labelled PUBLIC file.

    Accuracy with its 95 % interval, recall of each class, and calibration: mean confidence beside
    accuracy, and the expected calibration error. No part of it is private, nor sensitive.

    Args:
        student: as of `PublishedStudent`.
        inputs: a table, or a folder of images in folders of their classes.
        label: the label's column. Default: the schema's; `label` where it names none.

    Raises:
        ValueError: if something can't be read, or no record has a label.
    """
    published = PublishedStudent(student)
    fields, raw = published.read(inputs)
    schema = published.dataset.schema
    column = label or (schema.label if schema is not None else None) or "label"
    if column not in fields:
        raise ValueError(f"inputs: expected labels in a column {column}, got none")
    number = {"": -1, **{name: place for place, name in enumerate(published.class_names)}}
    if strange := set(fields[column]) - set(number):
        raise ValueError(
            f"inputs: expected labels of {', '.join(published.class_names[:12])} in {column}, got "
            f"{sorted(strange)[0]!r}"
        )
    truth = np.array([number[one] for one in fields[column]], np.int64)
    known = truth >= 0
    if not known.any():
        raise ValueError(f"inputs: expected a label in {column} at least once, got none")
    truth, raw = truth[known], raw[known]
    labels, probabilities = published.answer(raw)
    measured = evaluation.measure(labels, truth, probabilities)
    recall = dict(zip(published.class_names, measured["recall"], strict=True))
    values = {"student": str(published.folder), **measured, "recall": recall}
    low, high = measured["accuracy_interval"]
    rows = [
        ("student", str(published.folder)),
        (
            "accuracy",
            f"{measured['accuracy']:.2%} of {len(truth):,} (95 % interval {low:.2%} to {high:.2%})",
        ),
        ("the majority class", f"{measured['majority_accuracy']:.2%}"),
        *(
            (f"recall of {name}", "no sample" if share is None else f"{share:.1%}")
            for name, share in recall.items()
        ),
        ("balanced accuracy", f"{measured['balanced_accuracy']:.2%}"),
        ("mean confidence", f"{measured['mean_confidence']:.2%}"),
        ("calibration error", f"{measured['calibration_error']:.2%} expected, over bins"),
    ]
    return RunReport(values=values, rows=rows)
