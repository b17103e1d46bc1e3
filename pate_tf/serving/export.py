"""Exports a student as a numbered SavedModel that takes raw inputs and needs no Python.

Also in other formats: ONNX, which needs tf2onnx (`pip install "pate_tf[onnx]"`), and LiteRT. Both
take raw inputs by the name that `serving_default` gives them and return `probabilities` and
`label`. Forests can't be converted: they count in float64, and gather from variables inside a loop,
for which neither format has operations.
"""

import datetime
import importlib.util
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from pate_tf.core import artifacts, checks
from pate_tf.core.dataset import BACKGROUNDS, LIKELY, SEVERAL_LABELS, Dataset
from pate_tf.core.public import STANDARD_DEVIATIONS
from pate_tf.data.preprocessing import (
    TOKENIZERS,
    input_spec,
    ngram_features,
    refuse_state,
    text_inputs,
)
from pate_tf.data.schema import ISO_DATE, Schema, TableColumn, date_pattern
from pate_tf.serving.served import (
    DATASET,
    DIGESTS,
    EXTRA,
    FEATURES,
    KERAS,
    SCHEMA,
    SERVING_DEFAULT,
    STATEMENT,
    file_digests,
)

TEXT = "text"  # the input of SERVING_DEFAULT, of texts
ENCODED_IMAGES = "encoded_images"
PNG = b"\x89PNG"  # how such a file begins
IMAGE_BYTES = "image_bytes"  # the one input of ENCODED_IMAGES
GRAY = (19595, 38470, 7471)  # of red, green and blue, in 65,536ths: ITU-R BT.601, as in Pillow
STRINGS = tf.TensorSpec([None], tf.string)
OPSET = 18  # of ONNX; of 2022, so that runtimes in use know it

RawInputs = Callable[[dict[str, tf.Tensor]], tf.Tensor]  # of what a signature takes, by name


def signatures(model: keras.Model | tf.Module, dataset: Dataset) -> dict[str, Any]:
    """Returns the function behind each signature of a student, all preprocessing inside the graph.

    All return `probabilities` float32 `[batch, num_classes]`, `label` int64 `[batch]` and, where
    the data set names its classes, `class_name` string `[batch]`. Of a number they return `value`
    float32 `[batch]` in its unit, and `low` and `high`, between which the value without noise lies
    with a probability of 95 %; of several labels `probabilities` and `labels` int64 of 0 and 1,
    both `[batch, num_labels]`. Any batch size will do, 0 too.

    `serving_default` takes `image` uint8 or float32, or `features` float32, `[batch,
    *input_shape]`; floats that are NaN or infinite are an error. For texts it takes `text`
    string `[batch]`, and the signature `features` what `data.preprocessing` makes of them.
    Of a table with a schema it takes each column `[batch]` by its name, as `Schema.input_names`
    has it: numbers as float32, NaN where one is missing, all else as string, empty where it is
    missing; and `features` takes what the schema makes of them.
    `encoded_images`, of gray or color images, takes `image_bytes` string `[batch]`; see
    `decoded_images`.
    """
    # Traced once for all signatures.
    answer_of = tf.function(lambda inputs: answer(model, inputs, dataset), autograph=False)

    def serve(raw_inputs: RawInputs, specs: dict[str, tf.TensorSpec]) -> Any:
        @tf.function(autograph=False)
        def answered(**fields: tf.Tensor) -> dict[str, tf.Tensor]:
            inputs = raw_inputs(fields)
            if inputs.dtype.is_floating:
                name = dataset.input_name
                inputs = tf.debugging.check_numerics(inputs, f"{name}: expected finite numbers")
            # Some convolutions refuse an empty batch: it gets a sample, whose answer is dropped.
            size = tf.shape(inputs)[0]
            paddings = [[0, tf.cast(size == 0, tf.int32)], *([0, 0] for _ in inputs.shape[1:])]
            padded = answer_of(tf.pad(inputs, paddings))
            answers = {key: part[:size] for key, part in padded.items()}
            if dataset.class_names and "label" in answers:
                names = tf.constant(dataset.class_names)
                answers["class_name"] = tf.gather(names, answers["label"])
            return answers

        return answered.get_concrete_function(**specs)

    specs, raw_inputs = default_inputs(dataset)
    by_name = {SERVING_DEFAULT: serve(raw_inputs, specs)}
    if dataset.kind == "text" or dataset.schema is not None:
        raw = input_spec(dataset)
        by_name[FEATURES] = serve(
            lambda fields: tf.ensure_shape(fields[raw.name], raw.shape), {raw.name: raw}
        )
    if dataset.kind == "image" and dataset.input_shape[2] in (1, 3):
        by_name[ENCODED_IMAGES] = serve(
            lambda fields: decoded_images(fields[IMAGE_BYTES], dataset), {IMAGE_BYTES: STRINGS}
        )
    return by_name


def default_inputs(dataset: Dataset) -> tuple[dict[str, tf.TensorSpec], RawInputs]:
    """Returns what `serving_default` takes, by name, and what makes raw inputs of it."""
    schema: Schema | None = dataset.schema
    if dataset.kind == "text":
        return {TEXT: STRINGS}, lambda fields: text_inputs(fields[TEXT], dataset)
    if schema is not None:
        names = schema.input_names()
        specs = {
            names[column.name]: tf.TensorSpec([None], tf.float32 if column.is_number else tf.string)
            for column in schema.columns
        }

        def features(fields: dict[str, tf.Tensor]) -> tf.Tensor:
            parts = [column_features(fields[names[each.name]], each) for each in schema.columns]
            return tf.concat(parts, axis=1)

        return specs, tf.function(features, autograph=False)  # traced once for all signatures
    raw = input_spec(dataset)
    return {raw.name: raw}, lambda fields: tf.ensure_shape(fields[raw.name], raw.shape)


def answer(
    model: keras.Model | tf.Module, inputs: tf.Tensor, dataset: Dataset
) -> dict[str, tf.Tensor]:
    """Returns what signatures return, of raw inputs `[batch, *input_shape]`; see `signatures`."""
    logits = tf.cast(model(tf.cast(inputs, tf.float32), training=False), tf.float32)
    if dataset.target_range is not None:
        lowest, highest = dataset.target_range
        share, deviation = tf.unstack(logits, axis=1)
        sides = {"value": 0.0, "low": -STANDARD_DEVIATIONS, "high": STANDARD_DEVIATIONS}
        return {
            name: lowest + (highest - lowest) * tf.clip_by_value(share + side * deviation, 0.0, 1.0)
            for name, side in sides.items()
        }
    if dataset.target == SEVERAL_LABELS:
        probabilities = tf.sigmoid(logits)
        labels = tf.cast(probabilities >= LIKELY, tf.int64)
        return {"probabilities": probabilities, "labels": labels}
    return {"probabilities": tf.nn.softmax(logits), "label": tf.argmax(logits, axis=1)}


# A schema inside of the graph: what `TableColumn.encode` does outside of it.


def column_features(values: tf.Tensor, column: TableColumn) -> tf.Tensor:
    """Returns features float32 `[batch, width]` of a column's raw values `[batch]`."""
    if column.is_number:
        if column.missing is not None:
            values = tf.where(tf.math.is_nan(values), float(column.missing), values)
        values = _checked(values, tf.math.is_finite(values), column, "a finite number")
        return tf.clip_by_value(values, column.low, column.high)[:, tf.newaxis]
    texts = tf.strings.strip(values)
    is_gap = tf.reduce_any(tf.equal(texts[:, tf.newaxis], column.gap_words), axis=1)
    texts = tf.where(is_gap, column.missing or "", texts)
    if column.text:
        return ngram_features(texts, column.text)
    if column.date:
        return _days(texts, column)[:, tf.newaxis]
    listed = tf.equal(texts[:, tf.newaxis], tf.constant(column.categories)[tf.newaxis, :])
    is_listed = tf.reduce_any(listed, axis=1)
    if column.other:
        listed = tf.concat([listed, ~is_listed[:, tf.newaxis]], axis=1)
        return tf.cast(listed, tf.float32)
    return tf.cast(_checked(listed, is_listed, column, "a category of the schema"), tf.float32)


def _checked(values: tf.Tensor, fits: tf.Tensor, column: TableColumn, expected: str) -> tf.Tensor:
    message = f"{column.name}: expected {expected}, got something else"
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(fits), [message])]):
        return tf.identity(values)


def _days(texts: tf.Tensor, column: TableColumn) -> tf.Tensor:
    """Returns the days of dates, clipped: float32 `[batch]`, as `date.toordinal` counts them."""
    days = tf.zeros_like(texts, tf.float32)
    fits = tf.zeros_like(texts, tf.bool)
    for form in (column.date, ISO_DATE):
        pattern = date_pattern(form)
        order = re.findall("%[dmY]", form)
        is_of = tf.strings.regex_full_match(texts, pattern)
        dates = tf.where(is_of, texts, datetime.date(2000, 1, 1).strftime(form))
        year, month, day = (
            tf.strings.to_number(
                tf.strings.regex_replace(dates, f"^{pattern}$", rf"\{order.index(part) + 1}"),
                tf.int32,
            )
            for part in ("%Y", "%m", "%d")
        )
        # Days of the Gregorian calendar, 1 for the first of January of the year 1. Years begin in
        # March, so that the leap day is the last of one.
        is_early = month <= 2
        leap = tf.where(is_early, year - 1, year)
        of_year = (153 * tf.where(is_early, month + 9, month - 3) + 2) // 5 + day
        ordinal = 365 * leap + leap // 4 - leap // 100 + leap // 400 + of_year - 306
        days = tf.where(is_of & ~fits, tf.cast(ordinal, tf.float32), days)
        fits |= is_of & (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)
    days = _checked(days, fits, column, f"a date {column.date}")
    return tf.clip_by_value(days, column.low, column.high)


def decoded_images(images: tf.Tensor, dataset: Dataset) -> tf.Tensor:
    """Returns raw inputs `[batch, *input_shape]` of PNG or JPEG files `[batch]`, of any sizes.

    As images in folders are read: gray or in color, on a background where they are
    transparent, scaled by a bilinear filter that averages where an image becomes smaller; but not
    turned as EXIF says, and of 8 bits.
    Then 0 to 255 become the data set's range. What is no image is an error for the whole batch.
    """
    height, width, channels = dataset.input_shape
    low, high = (tf.constant(side, tf.float32) for side in dataset.value_range)

    def decoded(image: tf.Tensor) -> tf.Tensor:
        pixels = tf.cond(
            tf.equal(tf.strings.substr(image, 0, 4), PNG),
            lambda: _on_background(tf.io.decode_png(image, channels=4), dataset.background),
            # Accurately, as Pillow does.
            lambda: tf.io.decode_jpeg(image, channels=3, dct_method="INTEGER_ACCURATE"),
        )
        if channels == 1:
            weighted = tf.reduce_sum(tf.cast(pixels, tf.int32) * GRAY, axis=2, keepdims=True)
            pixels = (weighted + 2**15) // 2**16
        return tf.image.resize(tf.cast(pixels, tf.float32), [height, width], antialias=True)

    specification = tf.TensorSpec(dataset.input_shape, tf.float32)
    pixels = tf.map_fn(decoded, images, fn_output_signature=specification)
    scaled = low + tf.round(pixels) * ((high - low) / 255.0)
    if dataset.input_type == "uint8":
        scaled = tf.round(scaled)
    return tf.cast(scaled, dataset.input_type)


def _on_background(pixels: tf.Tensor, background: str) -> tf.Tensor:
    """Returns the colors uint8 `[height, width, 3]` of pixels with transparency."""
    colors, alpha = tf.split(tf.cast(pixels, tf.int32), [3, 1], axis=2)
    ground = BACKGROUNDS[background]
    return tf.cast((colors * alpha + ground * (255 - alpha) + 127) // 255, tf.uint8)


def _variables(model: keras.Model | tf.Module) -> list[tf.Variable]:
    """Returns the weights of a student in the order that their digest takes them in."""
    if isinstance(model, keras.Model):
        return [weight.value for weight in model.weights]
    return list(model.variables)


def student_digest(model: keras.Model | tf.Module) -> str:
    """SHA-256 of a student's weights: the `student_digest` of its privacy statement.

    A SavedModel has them as its `weights`, in their order.
    """
    return artifacts.digest_arrays(_variables(model))


def export_student(
    model: keras.Model | tf.Module,
    dataset: Dataset,
    folder: pathlib.Path,
    statement: dict[str, Any],
    *,
    formats: Sequence[str] = (),
    seal: Callable[[Mapping[str, Any]], str] | None = None,
) -> pathlib.Path:
    """Writes the next version below `folder`, whole or not at all.

    A version is what TensorFlow Serving loads: `signatures`, and in `assets.extra` the privacy
    statement, `student.keras` where the student is a Keras model, `dataset.json`, `schema.toml`
    where a table has a schema, what `formats` asks for, and the manifest `digests.json`: `model`
    and `version`, the SHA-256 of every other file, and their `seal`.

    Args:
        model: from raw inputs to logits.
        dataset: names and shapes the input.
        folder: the model's folder, e.g. `released/student`.
        statement: JSON values that travel in `assets.extra/privacy_statement.json`.
        formats: of "onnx" and "litert"; `student.onnx` and `student.tflite` in `assets.extra`.
        seal: `Ledger.mac` of the ledger that was charged; None where there is none.

    Returns:
        The folder of the new version.

    Raises:
        ValueError: if a signature could keep what goes through it, the statement holds NaN or
            infinity, or the student can't be written in one of the formats.
    """
    # Not the Keras model: TensorFlow's variables inside of Keras' own would not be restored by a
    # server without Python, and be NaN for the LiteRT converter.
    module = tf.Module()
    by_name = signatures(model, dataset)
    for function in by_name.values():
        refuse_state(function, "student", {"CheckNumerics", *TOKENIZERS})  # inputs are checked
    module.weights = _variables(model)
    folder.mkdir(parents=True, exist_ok=True)
    while True:
        target = folder / str(artifacts.next_version(folder))
        try:
            with artifacts.atomic_folder(target, replace=False) as temporary:
                tf.saved_model.save(module, str(temporary), signatures=by_name)
                extra = temporary / EXTRA
                extra.mkdir()
                artifacts.write_json(extra / STATEMENT, statement)
                artifacts.write_json(extra / DATASET, dataset.to_dict())
                if dataset.schema is not None:
                    artifacts.write_text(extra / SCHEMA, dataset.schema.to_toml())
                if isinstance(model, keras.Model):
                    model.save(extra / KERAS)
                write_formats(model, dataset, module, extra, formats)
                manifest = {
                    "model": folder.name,
                    "version": int(target.name),
                    "files": file_digests(temporary),
                }
                mark = None if seal is None else seal(manifest)
                artifacts.write_json(extra / DIGESTS, {**manifest, "seal": mark})
            return target
        except FileExistsError:  # another process took the number meanwhile
            continue


# Formats other than SavedModel.

FORMATS = ("onnx", "litert")


def check_formats(formats: Sequence[str]) -> None:
    """Raises ValueError unless there are such formats, and the packages that write them."""
    for name in formats:
        checks.one_of(FORMATS, export_formats=name)
    if "onnx" in formats and importlib.util.find_spec("tf2onnx") is None:
        raise ValueError("export_formats: expected tf2onnx to be installed for onnx, got none")


def write_formats(
    model: keras.Model | tf.Module,
    dataset: Dataset,
    module: tf.Module,
    folder: pathlib.Path,
    formats: Sequence[str],
) -> None:
    """Writes `student.onnx` and `student.tflite`, as asked for; ValueError if it can't be done."""
    signature = [input_spec(dataset)]
    function = tf.function(
        lambda inputs: answer(model, inputs, dataset), autograph=False, input_signature=signature
    )
    for name in formats:
        try:
            if name == "onnx":
                import onnx
                import tf2onnx

                converted, _ = tf2onnx.convert.from_function(function, signature, opset=OPSET)
                # tf2onnx leaves operations in that ONNX does not have, and only logs them.
                onnx.checker.check_model(converted)
                (folder / "student.onnx").write_bytes(converted.SerializeToString())
            else:
                converter = tf.lite.TFLiteConverter.from_concrete_functions(
                    [function.get_concrete_function()], module
                )
                (folder / "student.tflite").write_bytes(converter.convert())
        except Exception as error:  # the converters raise many kinds
            raise ValueError(
                f"{name}: expected a student of operations that can be converted, got others"
            ) from error
