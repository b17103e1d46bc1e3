"""Exports a student as a numbered SavedModel that takes raw inputs and needs no Python.

Students can also be exported as ONNX, which needs tf2onnx (`pip install "pate_tf[onnx]"`), and as
LiteRT. Models in both formats take raw inputs under the same name as the signature
`serving_default`, and return `probabilities` and `label`. Forests can't be converted: they use
float64 and gather from variables inside a loop, and neither format has such operations.
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
from pate_tf.data import preprocessing
from pate_tf.data.schema import ISO_DATE, Schema, TableColumn, date_pattern
from pate_tf.serving import served

TEXT = "text"  # name of the input of SERVING_DEFAULT if inputs are texts
ENCODED_IMAGES = "encoded_images"
PNG = b"\x89PNG"  # first bytes of a PNG file
IMAGE_BYTES = "image_bytes"  # name of the only input of ENCODED_IMAGES
GRAY = (19595, 38470, 7471)  # weights of red, green, blue * 65,536: ITU-R BT.601, as in Pillow
STRINGS = tf.TensorSpec([None], tf.string)
OPSET = 18  # ONNX operators as of 2022, which current runtimes support

RawInputs = Callable[[dict[str, tf.Tensor]], tf.Tensor]  # from a signature's named inputs


def signatures(model: keras.Model | tf.Module, dataset: Dataset) -> dict[str, Any]:
    """Returns the functions that a server calls, by signature name, with all preprocessing.

    For a class target, signatures return `probabilities` float32 `[batch, num_classes]`, `label`
    int64 `[batch]` and, if the data set names its classes, `class_name` string `[batch]`. For a
    numeric target, signatures return `value` float32 `[batch]` in the unit of the number, and `low`
    and `high`, the limits of a 95 % interval for the value that the model would predict without
    noise. For a target of several labels, signatures return `probabilities` and `labels` int64 with
    values 0 and 1, both `[batch, num_labels]`. The batch may have any size, including 0.

    `serving_default` takes `image` uint8 or float32, or `features` float32, `[batch,
    *input_shape]`; NaN and infinite values are errors. For texts, `serving_default` takes `text`
    string `[batch]`, and the signature `features` takes encoded texts. For a table with a schema,
    `serving_default` takes each column `[batch]` under its name in `Schema.input_names`: numbers as
    float32 (NaN if a number is missing), other columns as strings (empty if a value is missing).
    The signature `features` takes encoded columns. For gray or color images, the signature
    `encoded_images` takes `image_bytes` string `[batch]`; see `decoded_images`.
    """
    # All signatures share this function, so it is traced only once.
    answer_of = tf.function(lambda inputs: answer(model, inputs, dataset), autograph=False)

    def serve(raw_inputs: RawInputs, specs: dict[str, tf.TensorSpec]) -> Any:
        @tf.function(autograph=False)
        def answered(**fields: tf.Tensor) -> dict[str, tf.Tensor]:
            inputs = raw_inputs(fields)
            if inputs.dtype.is_floating:
                name = dataset.input_name
                inputs = tf.debugging.check_numerics(inputs, f"{name} must be finite numbers")
            # Some convolutions fail for an empty batch, so one input is added and its outputs are
            # dropped.
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
    by_name = {served.SERVING_DEFAULT: serve(raw_inputs, specs)}
    if dataset.kind == "text" or dataset.schema is not None:
        raw = preprocessing.input_spec(dataset)
        by_name[served.FEATURES] = serve(
            lambda fields: tf.ensure_shape(fields[raw.name], raw.shape), {raw.name: raw}
        )
    if dataset.kind == "image" and dataset.input_shape[2] in (1, 3):
        by_name[ENCODED_IMAGES] = serve(
            lambda fields: decoded_images(fields[IMAGE_BYTES], dataset), {IMAGE_BYTES: STRINGS}
        )
    return by_name


def default_inputs(dataset: Dataset) -> tuple[dict[str, tf.TensorSpec], RawInputs]:
    """Returns the named inputs of `serving_default`, and a function that encodes them."""
    schema: Schema | None = dataset.schema
    if dataset.kind == "text":
        return {TEXT: STRINGS}, lambda fields: preprocessing.text_inputs(fields[TEXT], dataset)
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
    raw = preprocessing.input_spec(dataset)
    return {raw.name: raw}, lambda fields: tf.ensure_shape(fields[raw.name], raw.shape)


def answer(
    model: keras.Model | tf.Module, inputs: tf.Tensor, dataset: Dataset
) -> dict[str, tf.Tensor]:
    """Returns the outputs of a signature by name, for raw inputs `[batch, *input_shape]`."""
    logits = tf.cast(model(tf.cast(inputs, tf.float32), training=False), tf.float32)
    if dataset.target_range is not None:
        lowest, highest = dataset.target_range
        mean, deviation = tf.unstack(logits, axis=1)
        sides = {"value": 0.0, "low": -STANDARD_DEVIATIONS, "high": STANDARD_DEVIATIONS}
        return {
            name: lowest + (highest - lowest) * tf.clip_by_value(mean + side * deviation, 0.0, 1.0)
            for name, side in sides.items()
        }
    if dataset.target == SEVERAL_LABELS:
        probabilities = tf.sigmoid(logits)
        labels = tf.cast(probabilities >= LIKELY, tf.int64)
        return {"probabilities": probabilities, "labels": labels}
    return {"probabilities": tf.nn.softmax(logits), "label": tf.argmax(logits, axis=1)}


# The functions below encode columns in TensorFlow, exactly as `TableColumn.encode` does in Python.


def column_features(values: tf.Tensor, column: TableColumn) -> tf.Tensor:
    """Encodes raw values of a column, `[batch]`, as features, float32 `[batch, width]`."""
    if column.is_number:
        if column.missing is not None:
            values = tf.where(tf.math.is_nan(values), float(column.missing), values)
        values = _checked(values, tf.math.is_finite(values), column, "a finite number")
        return tf.clip_by_value(values, column.low, column.high)[:, tf.newaxis]
    texts = tf.strings.strip(values)
    is_gap = tf.reduce_any(tf.equal(texts[:, tf.newaxis], column.gap_words), axis=1)
    texts = tf.where(is_gap, column.missing or "", texts)
    if column.text:
        return preprocessing.ngram_features(texts, column.text)
    if column.date:
        return _days(texts, column)[:, tf.newaxis]
    listed = tf.equal(texts[:, tf.newaxis], tf.constant(column.categories)[tf.newaxis, :])
    is_listed = tf.reduce_any(listed, axis=1)
    if column.other:
        listed = tf.concat([listed, ~is_listed[:, tf.newaxis]], axis=1)
        return tf.cast(listed, tf.float32)
    return tf.cast(_checked(listed, is_listed, column, "a category of the schema"), tf.float32)


def _checked(values: tf.Tensor, fits: tf.Tensor, column: TableColumn, expected: str) -> tf.Tensor:
    message = f"{column.name} must be {expected}"
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(fits), [message])]):
        return tf.identity(values)


def _days(texts: tf.Tensor, column: TableColumn) -> tf.Tensor:
    """Converts dates to days (`date.toordinal`), clipped to the range, float32 `[batch]`."""
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
        # January 1 of year 1 is day 1 of the Gregorian calendar. In this formula, years begin in
        # March, so that the leap day is the last day of a year.
        is_early = month <= 2
        leap = tf.where(is_early, year - 1, year)
        of_year = (153 * tf.where(is_early, month + 9, month - 3) + 2) // 5 + day
        ordinal = 365 * leap + leap // 4 - leap // 100 + leap // 400 + of_year - 306
        days = tf.where(is_of & ~fits, tf.cast(ordinal, tf.float32), days)
        fits |= is_of & (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)
    days = _checked(days, fits, column, f"a date {column.date}")
    return tf.clip_by_value(days, column.low, column.high)


def decoded_images(images: tf.Tensor, dataset: Dataset) -> tf.Tensor:
    """Decodes PNG or JPEG files `[batch]` of any size to raw inputs `[batch, *input_shape]`.

    Images are processed like images in folders: they are converted to gray or color, get a
    background behind transparent pixels, and are resized by a bilinear filter that averages when it
    shrinks an image. Finally, the range 0 to 255 is mapped to the data set's range. There are two
    differences from images in folders: EXIF rotations are ignored, and pixel values have 8 bits. If
    a file is not an image, the whole batch fails.
    """
    height, width, channels = dataset.input_shape
    low, high = (tf.constant(side, tf.float32) for side in dataset.value_range)

    def decoded(image: tf.Tensor) -> tf.Tensor:
        pixels = tf.cond(
            tf.equal(tf.strings.substr(image, 0, 4), PNG),
            lambda: _on_background(tf.io.decode_png(image, channels=4), dataset.background),
            # The method INTEGER_ACCURATE gives the same pixels as Pillow.
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
    """Replaces transparency by a background color; returns uint8 `[height, width, 3]`."""
    colors, alpha = tf.split(tf.cast(pixels, tf.int32), [3, 1], axis=2)
    ground = BACKGROUNDS[background]
    return tf.cast((colors * alpha + ground * (255 - alpha) + 127) // 255, tf.uint8)


def _variables(model: keras.Model | tf.Module) -> list[tf.Variable]:
    """Returns the weights of a student in the order in which `student_digest` hashes them."""
    if isinstance(model, keras.Model):
        return [weight.value for weight in model.weights]
    return list(model.variables)


def student_digest(model: keras.Model | tf.Module) -> str:
    """Returns the SHA-256 of a student's weights; the privacy statement contains this digest.

    The attribute `weights` of a SavedModel contains these weights in the same order.
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
    """Writes the next version of a student into `folder`, completely or not at all.

    A version is a SavedModel for TensorFlow Serving, with the signatures from `signatures`.
    `assets.extra` contains the privacy statement, `student.keras` for a Keras model,
    `dataset.json`, `schema.toml` for a table with a schema, the requested `formats`, and the
    manifest `digests.json`. The manifest contains the fields `model` and `version`, the SHA-256 of
    every other file, and a `seal` of all these values.

    Args:
        model: the student, which maps raw inputs to logits.
        dataset: data set of the inputs.
        folder: the model's folder, such as `released/student`.
        statement: privacy statement as JSON values, written to
            `assets.extra/privacy_statement.json`.
        formats: any of "onnx" and "litert", for `student.onnx` and `student.tflite` in
            `assets.extra`.
        seal: function that authenticates JSON values, `Ledger.mac` of the charged ledger; None if
            there is no ledger.

    Returns:
        The folder of the new version.

    Raises:
        ValueError: if a signature might store the inputs that it receives, if the statement
            contains NaN or infinity, or if the student can't be written in a requested format.
    """
    # A new module is saved instead of the Keras model: from a Keras model, a server without Python
    # would not restore the variables inside Keras' variables, and the LiteRT converter would read
    # NaN.
    module = tf.Module()
    by_name = signatures(model, dataset)
    for function in by_name.values():
        preprocessing.refuse_state(
            function, "student", {"CheckNumerics", *preprocessing.TOKENIZERS}
        )  # CheckNumerics checks inputs
    module.weights = _variables(model)
    folder.mkdir(parents=True, exist_ok=True)
    while True:
        target = folder / str(artifacts.next_version(folder))
        try:
            with artifacts.atomic_folder(target, replace=False) as temporary:
                tf.saved_model.save(module, str(temporary), signatures=by_name)
                extra = temporary / served.EXTRA
                extra.mkdir()
                artifacts.write_json(extra / served.STATEMENT, statement)
                artifacts.write_json(extra / served.DATASET, dataset.to_dict())
                if dataset.schema is not None:
                    artifacts.write_text(extra / served.SCHEMA, dataset.schema.to_toml())
                if isinstance(model, keras.Model):
                    model.save(extra / served.KERAS)
                write_formats(model, dataset, module, extra, formats)
                manifest = {
                    "model": folder.name,
                    "version": int(target.name),
                    "files": served.file_digests(temporary),
                }
                mark = None if seal is None else seal(manifest)
                artifacts.write_json(extra / served.DIGESTS, {**manifest, "seal": mark})
            return target
        except FileExistsError:  # another process created a version with this number
            continue


# The rest of this module exports formats other than SavedModel.

FORMATS = ("onnx", "litert")


def check_formats(formats: Sequence[str]) -> None:
    """Raises ValueError if a format is unknown or its package is missing."""
    for name in formats:
        checks.one_of(FORMATS, export_formats=name)
    if "onnx" in formats and importlib.util.find_spec("tf2onnx") is None:
        raise ValueError("export_formats: onnx needs tf2onnx: pip install 'pate_tf[onnx]'")


def write_formats(
    model: keras.Model | tf.Module,
    dataset: Dataset,
    module: tf.Module,
    folder: pathlib.Path,
    formats: Sequence[str],
) -> None:
    """Writes a student as ONNX or LiteRT; raises ValueError if it can't be converted."""
    signature = [preprocessing.input_spec(dataset)]
    function = tf.function(
        lambda inputs: answer(model, inputs, dataset), autograph=False, input_signature=signature
    )
    for name in formats:
        try:
            if name == "onnx":
                import onnx
                import tf2onnx

                converted, _ = tf2onnx.convert.from_function(function, signature, opset=OPSET)
                # tf2onnx leaves unsupported operations in the graph and only logs them, so the
                # graph is checked.
                onnx.checker.check_model(converted)
                (folder / "student.onnx").write_bytes(converted.SerializeToString())
            else:
                converter = tf.lite.TFLiteConverter.from_concrete_functions(
                    [function.get_concrete_function()], module
                )
                (folder / "student.tflite").write_bytes(converter.convert())
        except Exception as error:  # the converters raise different exceptions
            raise ValueError(f"{name} can't convert an operation of the student") from error
