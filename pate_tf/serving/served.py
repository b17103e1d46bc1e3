"""Loads an exported student as a server does, verifies it, and makes predictions for files."""

import csv
import dataclasses
import functools
import io
import itertools
import os
import pathlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pate_tf.core import artifacts
from pate_tf.core.checks import MAX_FAULTS, raise_all
from pate_tf.core.dataset import CLASS, NUMBER, SEVERAL_LABELS, UNKNOWN, Dataset, is_labeled
from pate_tf.core.reporting import RunReport
from pate_tf.data import image_folders, tables
from pate_tf.data.schema import read_schema, texts_of

Path = str | os.PathLike[str]
BATCH = 500
EXTRA = "assets.extra"
STATEMENT = "privacy_statement.json"
DIGESTS = "digests.json"
GRAPH = "saved_model.pb"
KERAS = "student.keras"
SCHEMA = "schema.toml"
DATASET = "dataset.json"
SERVING_DEFAULT = "serving_default"
FEATURES = "features"  # signature that takes encoded strings or columns
PREDICTED = "predicted"
INTERVAL = ("lowest without noise", "highest without noise")  # limits of a 95 % interval
# For each type of target, the names of the outputs with predictions and with their confidence.
OUTPUTS = {
    CLASS: ("label", "probabilities"),
    NUMBER: ("value", "low", "high"),
    SEVERAL_LABELS: ("labels", "probabilities"),
}


def load_student(folder: pathlib.Path) -> Any:
    """Loads a SavedModel that `export_student` wrote; raises ValueError for any other folder."""
    from pate_tf.data.preprocessing import load_graph  # imports TensorFlow

    try:
        loaded = load_graph(str(folder))
        # A SavedModel that is not a student may lack a signature or the weights; both are read
        # here.
        _ = loaded.signatures["serving_default"], loaded.weights
    except Exception as error:  # TensorFlow raises different exceptions
        needs = ". Run pip install 'pate_tf[hub]'." if isinstance(error, ImportError) else ""
        raise ValueError(f"student: {folder} is not a published student{needs}") from error
    return loaded


def answers(
    serve: Callable[[npt.NDArray[Any]], Mapping[str, Any]],
    inputs: npt.NDArray[Any],
    dataset: Dataset,
) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32]]:
    """Returns predictions and their confidence; see `ServedStudent.answer`.

    Args:
        serve: function that takes a batch of raw inputs, which may be empty, and returns the
            outputs of a signature by name.
        inputs: raw inputs `[batch, *input_shape]`.
        dataset: data set of the inputs, which defines the type of target.
    """
    predicted, *others = OUTPUTS[dataset.target]
    labels = []
    confidence = []
    for start in range(0, len(inputs) or 1, BATCH):
        answer = serve(inputs[start : start + BATCH])
        labels.append(answer[predicted].numpy())
        confidence.append(np.column_stack([answer[name].numpy() for name in others]))
    return np.concatenate(labels), np.concatenate(confidence)


@dataclasses.dataclass(frozen=True)
class ServedStudent:
    """An exported student: predictions of its SavedModel, and public facts about its data.

    Attributes:
        folder: folder of a version that `export_student` wrote. The SavedModel in it is loaded when
            it is first needed.
    """

    folder: pathlib.Path

    @functools.cached_property
    def _serve(self) -> Any:
        signatures = load_student(self.folder).signatures
        # In this package, "raw inputs" of texts and tables are arrays of already encoded texts and
        # columns. So the signature that takes encoded inputs is preferred.
        return signatures[FEATURES if FEATURES in signatures else SERVING_DEFAULT]

    @functools.cached_property
    def dataset(self) -> Dataset:
        """The public facts about the data, including the schema if the data are a table."""
        fields = artifacts.read_json(self.folder / EXTRA / DATASET)
        schema = self.folder / EXTRA / SCHEMA
        by = read_schema(schema) if schema.is_file() else None
        return dataclasses.replace(Dataset.from_dict(fields), schema=by)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes; their numbers if the data set has no names."""
        return tuple(map(self.dataset.class_name, range(self.dataset.num_classes)))

    def answer(self, inputs: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32]]:
        """Returns predictions and their confidence.

        For a class target, returns labels int64 `[batch]` and probabilities float32 `[batch,
        num_classes]`. For a target of several labels, both have the shape `[batch, num_labels]`.
        For a numeric target, returns values float32 `[batch]` and the limits of their 95 %
        intervals, `[batch, 2]`.

        Args:
            inputs: raw inputs `[batch, *input_shape]`.

        Raises:
            ValueError: if the student refuses an input, such as features that are not finite.
        """
        import tensorflow as tf

        ((name, spec),) = self._serve.structured_input_signature[1].items()
        try:
            return answers(
                lambda batch: self._serve(**{name: tf.constant(batch, spec.dtype)}),
                inputs,
                self.dataset,
            )
        except tf.errors.InvalidArgumentError as error:
            raise ValueError(f"student: {name} must be finite and of exported shape") from error

    def form(self, path: Path) -> tables.TextForm:
        """Returns the format of a table's file, from the schema or detected from the file."""
        source = pathlib.Path(path)
        schema = self.dataset.schema
        if schema is None or source.suffix.lower() in tables.PARQUET or source.is_dir():
            return tables.TextForm()
        return tables.text_form(source, schema)

    def read(
        self, path: Path, *, strict: bool = False
    ) -> tuple[dict[str, Sequence[str]], npt.NDArray[Any]]:
        """Reads a table or a folder of images; returns columns by name, and raw inputs.

        Args:
            path: a table with the columns of the schema, or a folder of images, with or without
                class folders. The columns of images are `file` and, with class folders, `label`.
            strict: whether a record that does not fit the schema is an error. If False, the record
                is left out, and a warning names its line.

        Raises:
            ValueError: if the path can't be read, if no record fits, or if `strict` is true and a
                record does not fit.
        """
        source = pathlib.Path(path)
        dataset = self.dataset
        if dataset.kind == "image":
            paths, _ = image_folders.image_files(source)
            if not paths:
                raise ValueError(f"inputs: {source} contains no images")
            inputs, broken = image_folders.read_images(paths, dataset)
            faults = [f"{path}: {fault}" for path, fault in sorted(broken.items())]
            if strict or len(broken) == len(paths):
                raise_all("inputs", faults)
            if broken:
                left_out = "; ".join(faults[:MAX_FAULTS])
                warnings.warn(f"{len(broken):,} images were left out: {left_out}", stacklevel=2)
            is_whole = [path not in broken for path in paths]
            inputs = inputs[is_whole]
            places = [path.relative_to(source) for path in itertools.compress(paths, is_whole)]
            fields = {"file": list(map(str, places))}
            labels = [set(place.parts[:-1]) & set(self.class_names) for place in places]
            if all(len(names) == 1 for names in labels):
                fields["label"] = [names.pop() for names in labels]
            return dict(fields), inputs
        if dataset.schema is None:
            raise ValueError("student: this student takes arrays, not files; call its SavedModel")
        table = tables.read_table(source, self.form(source))
        skip = tables.REFUSE if strict else tables.SKIP
        by = dataset.schema.with_decimals(table.fields)
        features, kept = table.inputs(by, on_bad_record=skip)
        rows = np.flatnonzero(kept)
        texts = {name: texts_of(column.take(rows)) for name, column in table.fields.items()}
        return {name: column.to_pylist() for name, column in texts.items()}, features


# The following functions compute digests of weights and files, which connect an exported version
# with its privacy statement.


def file_digests(folder: pathlib.Path) -> dict[str, str]:
    """Maps the path of each file except the manifest to its hexadecimal SHA-256 digest.

    Args:
        folder: folder of a SavedModel, whose `assets.extra` may contain other formats.

    Raises:
        ValueError: if the folder contains no SavedModel.
    """
    if not (folder / GRAPH).is_file():
        raise ValueError(f"student: {folder} is not a SavedModel")
    files = artifacts.file_digests(folder)
    files.pop(f"{EXTRA}/{DIGESTS}", None)
    return files


def matches_statement(folder: pathlib.Path) -> bool:
    """Whether all files are unchanged since the export, and the weights match the statement.

    This function compares the weights with the statement, and the files with the manifest
    `assets.extra/digests.json`. The comparison detects files that were damaged or replaced, unless
    the manifest was changed as well. Only `pate audit run` detects a changed manifest, because it
    has the ledger whose key authenticates the manifest. If a file was changed, the model is not
    loaded.

    Args:
        folder: a version that `export_student` wrote.

    Raises:
        ValueError: if the SavedModel, its manifest or its statement is missing, or the statement
            contains no digest.
    """
    statement, digests = (folder / EXTRA / name for name in (STATEMENT, DIGESTS))
    for path, name in ((statement, "privacy statement"), (digests, "manifest of digests")):
        if not path.is_file():
            raise ValueError(f"student: there is no {name} at {path}")
    stated = artifacts.read_json(statement).get("student_digest")
    if not isinstance(stated, str):
        raise ValueError(f"{statement} has no student_digest")
    if artifacts.read_json(digests).get("files") != file_digests(folder):
        return False
    return artifacts.digest_arrays(load_student(folder).weights) == stated


# The following functions predict the labels of files, and measure quality on files with labels.


def newest_version(folder: pathlib.Path) -> pathlib.Path:
    """Returns the folder of the newest version of a student.

    Args:
        folder: a run folder, its subfolder `released/` or `released/student/`, or a version.

    Raises:
        ValueError: if the folder contains no published student.
    """
    for place in (folder, folder / "student", folder / artifacts.RELEASED / "student"):
        versions = [path for path in place.glob("*") if path.name.isdecimal()]
        newest = max(versions, key=lambda path: int(path.name), default=place)
        for found in (place, newest):
            if (found / EXTRA).is_dir():
                return found
    raise ValueError(f"student: {folder} contains no published student")


def predict(student: Path, inputs: Path, output: Path, *, strict: bool = False) -> RunReport:
    """Writes a student's predictions for a table or a folder of images to a new table.

    The new table contains the columns of the input table, or the file names of the images, followed
    by the predictions. For a class target, these are the predicted class and the probability of
    each class. The delimiter, the encoding and the decimal separator are the same as in
    the input table.

    Args:
        student: folder of a student; see `newest_version`.
        inputs: a table, with or without labels, or a folder of images.
        output: path of the new table, which must not exist yet.
        strict: whether a record that does not fit the schema is an error. Default: the record is
            left out, with a warning.

    Raises:
        ValueError: if a file can't be read or written.
    """
    file = pathlib.Path(output)
    if file.exists():
        raise ValueError(f"output: {file} already exists; delete it or choose another name")
    if not file.parent.is_dir():
        raise ValueError(f"output: the folder {file.parent} does not exist")
    artifacts.check_can_hold_files(file.parent)
    published = ServedStudent(newest_version(pathlib.Path(student)))
    fields, raw = published.read(inputs, strict=strict)
    labels, probabilities = published.answer(raw)
    target = published.dataset.target
    names = published.class_names
    several = [f"{PREDICTED} {name}" for name in names if target == SEVERAL_LABELS]
    written = [*(several or [PREDICTED]), *(f"probability of {name}" for name in names)]
    if target == NUMBER:
        written = [PREDICTED, *INTERVAL]
    while set(written) & set(fields):  # the inputs contain earlier predictions, for example
        written = [f"{name} 2" for name in written]
    form = published.form(inputs)
    schema = published.dataset.schema
    marks = [column.decimal for column in schema.with_decimals(fields).columns] if schema else []
    decimal = "," if "," in marks else "."
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n", delimiter=form.delimiter)
    writer.writerow([*fields, *written])
    for place, (label, row) in enumerate(zip(labels, probabilities, strict=True)):
        values_read = [values[place] for values in fields.values()]
        answers = [*np.ravel(label), *row] if target != CLASS else row
        numbers = [f"{number:.9g}".replace(".", decimal) for number in answers]
        named = [published.class_names[label]] if target == CLASS else []
        writer.writerow([*values_read, *named, *numbers])
    try:
        content = text.getvalue().encode(form.encoding)
    except UnicodeEncodeError:
        raise ValueError(
            f"output: some class names can't be written in {form.encoding}, the encoding of the "
            f"inputs; convert the inputs to UTF-8"
        ) from None
    with artifacts.atomic_file(file) as handle:
        handle.write(content)
    rows = [("inputs", f"{len(labels):,}"), ("output", str(file))]
    return RunReport(values={"inputs": len(labels), "output": str(file)}, rows=rows)


def evaluate(student: Path, inputs: Path, *, label: str | None = None) -> RunReport:
    """Measures the quality of a published student on a labeled PUBLIC file.

    For a class target, returns the accuracy with its 95 % interval, the recall of each class, AUC,
    and the expected calibration error. The result is not sensitive.

    Args:
        student: folder of a student; see `newest_version`.
        inputs: a table, or a folder with class folders of images.
        label: name of the column with labels. Default: the label column of the schema; without a
            schema, `label`.

    Raises:
        ValueError: if a file can't be read, or no record has a label.
    """
    published = ServedStudent(newest_version(pathlib.Path(student)))
    fields, raw = published.read(inputs)
    schema = published.dataset.schema
    columns = schema.label_names(label) if schema is not None else (label or "label",)
    columns = columns or ("label",)
    named = ", ".join(map(repr, columns))
    if not set(columns) <= set(fields):
        raise ValueError(f"inputs has no label column {named}. To predict labels, set `output`.")
    expected = ", ".join(published.class_names[:12])
    if schema is not None:
        truth, fits = schema.labels(*map(fields.get, columns), may_be_empty=True)
        expected = schema.expected_label(may_be_empty=True)
    else:
        numbers = {"": UNKNOWN, **{name: place for place, name in enumerate(published.class_names)}}
        fits = np.array([[name in numbers] for name in fields[columns[0]]])
        truth = np.array([numbers.get(name, UNKNOWN) for name in fields[columns[0]]], np.int64)
    for column, fits_there in zip(columns, fits.T, strict=True):
        if not fits_there.all():
            raise ValueError(
                f"inputs: {column} must be {expected}, got "
                f"{min(itertools.compress(fields[column], ~fits_there))!r}"
            )
    has_label = is_labeled(truth)
    if not has_label.any():
        raise ValueError(f"inputs: no record has a label in {named}")
    from pate_tf.students.measures import measure, rows_of_measure

    predictions, probabilities = published.answer(raw[has_label])
    names = published.class_names
    measured = measure(predictions, truth[has_label], probabilities, published.dataset)
    rows = [("student", str(published.folder)), *rows_of_measure(measured, names)]
    values = {"student": str(published.folder), **measured}
    values |= {
        name: dict(zip(names, value, strict=True))
        for name, value in measured.items()
        if name in ("recall", "label_auc", "label_recall", "label_share")
    }
    return RunReport(values=values, rows=rows)
