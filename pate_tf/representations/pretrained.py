"""Frozen encoders: pre-trained models that the user gives by name, as a file or as an object.

This module can't check on which data such a model was trained. The features of a model are public
only if none of its weights depends on private records. The user must guarantee this, and the
privacy statement contains a remark about it.
"""

import difflib
import importlib
import inspect
import os
import pathlib
import sys
import types
import warnings
from collections.abc import Callable, Collection, Container, Sequence
from typing import Any

import h5py
import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from keras.src.models.functional import Functional
from keras.src.ops import numpy as keras_numpy
from tqdm import tqdm

from pate_tf.core import artifacts
from pate_tf.core.dataset import Dataset
from pate_tf.core.public import Pool
from pate_tf.data.named_function import Named, call_function, name_of
from pate_tf.data.preprocessing import TOKENIZERS, refuse_state, texts_of_characters
from pate_tf.models.architectures import load_keras_file
from pate_tf.models.encoder import PLACES, Directions, Encoder, Part
from pate_tf.representations.images import colour_images
from pate_tf.students.student_kinds.linear_head import LinearHead

PREFIX = "encoder"
HUB = "hub"
# Image side in pixels for which the networks of Keras Applications were trained. It is also used
# for presets without an image size.
USUAL_SIDE = 224
MAX_FACTOR = 4  # maximum factor by which small images are enlarged
MIN_SIDE = 75  # minimum side in pixels that every network of Keras Applications accepts
ALPHAS = (1.0, 0.25, 0.35, 0.5, 0.75, 1.3, 1.4)  # width factors of MobileNets
ROOTS_OF_DEVIATIONS = np.sqrt([0.229, 0.224, 0.225])  # standard deviations of ImageNet's colors
# Number of inputs in one forward pass. Smaller batches would have fewer unused places, but would be
# less efficient on a GPU.
BATCH = 16
BATCH_ON_GPU = 64
MAX_DIRECTIONS = 256  # maximum number of directions; each additional direction adds noise
MAX_PROJECTED = 256  # maximum number of random projections, which are used without a pool

Outputs = Callable[[tf.Tensor], tf.Tensor]  # maps raw inputs, float32, to outputs
# A model for `ModelPart`: the function that computes its outputs, its variables, and whether it
# treats rows independently.
Encoding = tuple[Outputs, Sequence[Any], bool]


def applications() -> dict[str, Callable[..., keras.Model]]:
    """Maps the name of each network of Keras Applications to its constructor."""
    return {name: built for name, built in vars(keras.applications).items() if callable(built)}


def _parts(name: Named) -> tuple[str, str, str]:
    """Splits a name `NAME@SIDE:WHERE` into NAME, SIDE and WHERE; a missing part is empty."""
    head, _, where = (name if isinstance(name, str) else "").partition(":")
    head, _, side = head.partition("@")
    return head, side, where


def is_pretrained(name: Named) -> bool:
    """Whether a name refers to a frozen encoder: a known network, a file or a folder."""
    return _parts(name)[0] in {PREFIX, HUB, *applications()}


def suggestion(name: Named) -> str:
    """Returns a hint with similar names of Keras Applications; empty if no name is similar."""
    by_lower = {each.lower(): each for each in applications()}
    close = difflib.get_close_matches(_parts(name)[0].lower(), by_lower, cutoff=0.75)
    return f". Did you mean {' or '.join(by_lower[each] for each in close)}?" if close else ""


def resolved(name: str) -> str:
    """Checks the name of a frozen encoder, and makes its path absolute.

    Raises:
        ValueError: if the file does not exist, or the image side is not valid. No file is opened.
    """
    head, side, where = _parts(name)
    path = pathlib.Path(where)
    if side and (head in (PREFIX, HUB) or not (side.isdecimal() and int(side) >= MIN_SIDE)):
        raise ValueError(
            f"representation: in NAME@SIDE the name must be a network of Keras Applications, and "
            f"the side at least {MIN_SIDE} pixels; got {name!r}"
        )
    if head == PREFIX and (path.suffix != ".keras" or not path.is_file()):
        fault = "is not a .keras file" if path.is_file() else "is missing"
        raise ValueError(
            f"representation: {path} {fault}. Other encoders: NAME:FILE, {HUB}:FOLDER, "
            "module:function"
        )
    if head == HUB and not where:
        raise ValueError(f"representation must be {HUB}:PRESET or {HUB}:FOLDER, got {name!r}")
    if head not in (PREFIX, HUB) and where and not path.is_file():
        raise ValueError(f"representation: {path} is missing: weights of {head} (.keras or .h5)")
    absolute = os.path.abspath(where) if where and path.exists() else where
    return f"{name.removesuffix(where)}{absolute}"


def public_name(name: Named) -> str:
    """Returns a name that may be published, because it contains no folder of the data holder."""
    name = name_of(name)
    where = _parts(name)[2]
    is_path = pathlib.Path(where).is_absolute()
    shown = f"{name.removesuffix(where)}{pathlib.Path(where).name}" if is_path else name
    return shown.removeprefix(f"{PREFIX}:")


def encoder(name: Named, pool: Pool) -> Encoder:
    """Returns an encoder for a frozen model; encodes each input of the pool once.

    Args:
        name: a name from `resolved`; or a function that takes a `Dataset` and returns a Keras
            model, given as an object or by its name `module:function`.
        pool: public inputs; may be empty. The encoder takes raw inputs of the same data set.

    Raises:
        ValueError: if the model can't be loaded, or does not accept such inputs.
    """
    dataset = pool.dataset
    head, side, where = _parts(name)
    description = {"representation": name_of(name)}
    if not is_pretrained(name):
        model = call_function(name, dataset, flag="representation")
        encoding = _raw_outputs(model, name_of(name), dataset)
    else:
        shown = public_name(resolved(str(name)))
        description["representation"] = shown
        if head == HUB:
            encoding = hub_outputs(where, dataset)
        elif head == PREFIX:
            encoding = _raw_outputs(load_keras_file(pathlib.Path(where)), shown, dataset)
        else:
            encoding = _application(head, side, where, dataset)
        if pathlib.Path(where).is_file():
            description["file"] = artifacts.digest_paths([pathlib.Path(where)])
    part = ModelPart(*encoding, pool, TOKENIZERS if head == HUB else ())
    frozen = Encoder(dataset, [part], description)
    if pool:
        frozen.remember(pool.inputs, part.fit(pool))
    return frozen


class ModelPart(Part):
    """Features from the flattened outputs of a frozen model, with L2 norm 1.

    With a pool, outputs are centered and projected onto the pool's first principal directions.
    Without a pool, outputs are divided by their norm and projected onto random directions (Johnson
    and Lindenstrauss 1984). Each of these projections becomes two features, its positive and its
    negative part, because noisy second moments need nonnegative features.
    """

    is_frozen = True
    least_variance = 30.0

    def __init__(
        self,
        outputs: Outputs,
        variables: Sequence[Any],
        by_row: bool,
        pool: Pool,
        allowed: Container[str] = (),
    ) -> None:
        """Checks the model.

        Args:
            outputs: function that maps raw inputs to the outputs of the model.
            variables: variables of the model.
            by_row: whether it is certain that each row of outputs depends only on the same row of
                inputs.
            pool: public inputs; may be empty.
            allowed: names of stateful operations that the model may contain; see `refuse_state`.

        Raises:
            ValueError: if the model is stateful, or does not return the same number of outputs for
                each raw input.
        """
        super().__init__()
        batch = BATCH_ON_GPU if tf.config.list_physical_devices("GPU") else BATCH
        self.places = batch if by_row else 1
        self._outputs = outputs
        self.learnt = list(variables)
        spec = tf.TensorSpec([None, *pool.dataset.input_shape], tf.float32)
        try:
            self._graph = tf.function(self.raw, autograph=False).get_concrete_function(spec)
            refuse_state(self._graph, "representation", allowed)
            self._check_outputs(pool)
        except Exception as error:  # a model may raise any exception
            if str(error).startswith("representation"):
                raise
            raise ValueError(
                f"representation: the model fails on {self.places} inputs: {_reason(error)}"
            ) from None
        width = self._graph.structured_outputs.shape[1]
        self.view = Directions(width, min(MAX_DIRECTIONS, max(1, len(pool) - 1)))
        self._projection = None
        if pool:
            self.widths = (self.view.width,)
            self.variances = [self.view.variances]
            self.learnt = [*variables, *self.view.learnt]
        else:
            number = min(MAX_PROJECTED, width)
            drawn = np.random.default_rng(0).standard_normal((width, number))
            self._projection = tf.constant(np.linalg.qr(drawn)[0], tf.float32)
            self.widths = (2 * number,)

    def _check_outputs(self, pool: Pool) -> None:
        """Checks the model's outputs for public inputs and for random values in the public range.

        Raises:
            ValueError: if no row of outputs is finite, or if all rows are identical.
        """
        low, high = (np.asarray(values, np.float32) for values in pool.dataset.value_range)
        shape = (BATCH, *pool.dataset.input_shape)
        rows = np.random.default_rng(0).uniform(low, high, shape).astype(np.float32)
        rows[0] = low
        rows[1] = high
        if pool:
            chosen = np.linspace(0, len(pool) - 1, BATCH // 2).astype(int)
            rows[::2] = pool.inputs[chosen]
        starts = range(0, BATCH, self.places)
        outputs = np.concatenate(
            [self._graph(tf.constant(rows[start : start + self.places])) for start in starts]
        )
        if not np.isfinite(outputs).all(axis=1).any():
            raise ValueError("representation: the model's outputs aren't finite; use another model")
        if (outputs == outputs[0]).all():
            raise ValueError("representation: all inputs have the same outputs; use another model")

    def fit(self, pool: Pool) -> npt.NDArray[np.float32]:
        """Computes principal directions from a pool; returns its features `[num_inputs, width]`."""
        outputs = list[npt.NDArray[np.float32]]()
        task = "encoding the pool"
        if self.places == 1:
            task += " one input at a time, because the model may mix inputs of a batch"
        # With `disable=None`, the progress bar is shown only on terminals.
        with tqdm(total=len(pool), desc=task, unit="input", disable=None) as bar:
            for start in range(0, len(pool), self.places):
                batch = pool.inputs[start : start + self.places]
                outputs.append(self._graph(tf.constant(batch, tf.float32)).numpy())
                bar.update(len(batch))
        raw = np.concatenate(outputs)
        is_finite = np.isfinite(raw).all(axis=1)
        if not is_finite.all():
            message = (
                f"representation: the outputs of {(~is_finite).sum():,} of {len(raw):,} public "
                f"inputs are not finite and are ignored"
            )
            if not is_finite.any():
                raise ValueError(message)
            warnings.warn(message, stacklevel=3)
        raw[~is_finite] = 0.0
        mean = raw.mean(axis=0, dtype=np.float64)
        unit = max(float(np.abs(raw - mean).max()), float(np.finfo(np.float32).tiny))
        self.view.find_in(((raw - mean) / unit).astype(np.float32))
        self.view.mean.assign(mean.astype(np.float32))
        self.view.directions.assign(self.view.directions / unit)  # correct even for tiny outputs
        return np.asarray(self.view(tf.constant(raw)))

    def raw(self, inputs: tf.Tensor) -> tf.Tensor:
        """Returns the model's flattened outputs, float32 `[batch, num_outputs]`."""
        outputs = tf.cast(self._outputs(inputs), tf.float32)
        width = outputs.shape[1:].num_elements()
        if not width:
            raise ValueError(
                f"representation: the model must return the same number of outputs for each input, "
                f"got outputs of shape {list(outputs.shape)}"
            )
        return tf.reshape(outputs, [-1, width])

    def __call__(self, inputs: tf.Tensor) -> list[tf.Tensor]:
        """Maps raw inputs to features, float32 `[batch, width]`, in batches of `places` inputs."""
        number = tf.shape(inputs)[0]
        (width,) = self.widths
        parts = tf.TensorArray(
            tf.float32, 0, dynamic_size=True, infer_shape=False, element_shape=[None, width]
        )
        _, parts = tf.while_loop(
            lambda start, _: start < number,
            lambda start, parts: (
                start + self.places,
                parts.write(start // self.places, self._view(inputs[start : start + self.places])),
            ),
            (0, parts),
            parallel_iterations=1,
        )
        return [tf.reshape(parts.concat(), [-1, width])]

    def _view(self, inputs: tf.Tensor) -> tf.Tensor:
        raw = self._graph(inputs)
        if self._projection is None:
            return self.view(raw)
        largest = tf.reduce_max(tf.abs(raw), axis=1, keepdims=True)
        projected = tf.matmul(tf.math.divide_no_nan(raw, largest), self._projection)
        signs = tf.concat([tf.nn.relu(projected), tf.nn.relu(-projected)], axis=1)
        return tf.math.l2_normalize(signs, axis=1)


def _reason(error: Exception) -> str:
    """Returns the type of an error and the first line of its message that describes the error."""
    # Messages of TensorFlow and Keras begin with lines about the location of the error, which are
    # skipped.
    where = ("Graph execution", "Detected at", "Exception encountered", "Node:", " ", "\t")
    lines = [line for line in str(error).splitlines() if line and not line.startswith(where)]
    return f"{type(error).__name__} ({' '.join(lines[:1]).strip()})"


def _raw_outputs(model: Any, what: str, dataset: Dataset) -> Encoding:
    """Returns an `Encoding` (outputs, variables, row independence) for a Keras model.

    The returned function takes raw inputs. If the model needs images of another size, images are
    resized by a bilinear filter. If the model needs three channels, the channel of gray images is
    repeated.

    Raises:
        ValueError: if the model does not accept the inputs of the data set.
    """
    shape, output = (getattr(model, f"{side}_shape", None) for side in ("input", "output"))
    if not (
        isinstance(model, keras.Model) and isinstance(shape, tuple) and isinstance(output, tuple)
    ):
        raise ValueError(
            f"representation {what} must be a Keras model with one input, of known shape, and one "
            f"output; got {type(model).__name__}"
        )
    expected = dataset.input_shape
    size = tuple(fixed or free for fixed, free in zip(shape[1:], expected, strict=False))
    is_image = dataset.kind == "image" and len(shape) == 4
    fits = is_image and (expected[2] == size[2] or (expected[2], size[2]) == (1, 3))
    if (size != expected and not fits) or not tf.TensorShape(output[1:]).num_elements():
        raise ValueError(
            f"representation {what} must map {[None, *expected]} to a fixed number of features; "
            f"it maps {list(shape)} to {list(output)}"
        )

    def outputs(inputs: tf.Tensor) -> tf.Tensor:
        if size != expected:
            inputs = tf.image.resize(inputs, size[:2])
            inputs = tf.repeat(inputs, size[2] // expected[2], axis=3)
        return tf.nest.flatten(model(inputs, training=False))[0]

    return outputs, model.variables, is_row_wise(model)


# The following functions load networks of Keras Applications.


def _application(name: str, side: str, where: str, dataset: Dataset) -> Encoding:
    """Returns an `Encoding` for a network of Keras Applications, with average-pooled outputs.

    Args:
        name: name of the network.
        side: length in pixels of the longer side of the network's images. Empty for the default:
            `MAX_FACTOR` times the longer side of the data set's images, but at most `USUAL_SIDE`.
        where: file with the weights; empty for ImageNet's weights, which Keras downloads.
        dataset: data set of the images.
    """
    # Raises an error for unsuitable data sets before weights are downloaded.
    colour_images(tf.zeros([1, *dataset.input_shape]), dataset, (1, 1))
    height, width, _ = dataset.input_shape
    longest = int(side) if side else min(USUAL_SIDE, MAX_FACTOR * max(height, width))
    size: tuple[int, ...] = tuple(
        max(MIN_SIDE, round(each * longest / max(height, width))) for each in (height, width)
    )
    path = pathlib.Path(where)
    if path.suffix == ".keras":
        model = _without_top(load_keras_file(path), name)
        size = tuple(
            fixed or free for fixed, free in zip(model.input_shape[1:3], size, strict=True)
        )
    elif where:
        model = _with_weights(name, size, path)
    else:
        # The weights of a NASNet need a fixed image size, which Keras chooses if `shape` is None.
        shape = None if name.startswith("NASNet") else (*size, 3)
        try:
            model = applications()[name](include_top=False, pooling="avg", input_shape=shape)
        except Exception as error:  # a download may raise any exception
            raise ValueError(
                f"representation {name}: Keras can't download the weights: {_reason(error)}. "
                f"Without a network connection use {name}:FILE, a file with the weights."
            ) from None
    preprocess = sys.modules[applications()[name].__module__].preprocess_input
    means = [layer.adapt_mean for layer in model.layers if hasattr(layer, "adapt_mean")]
    # If Keras downloads weights, its model also divides colors by `ROOTS_OF_DEVIATIONS`. A model
    # with weights from a file does not, so `outputs` divides the colors.
    lacks_roots = path.suffix == ".h5" and preprocess.__module__.endswith(".efficientnet")
    middle = 255.0 * np.ravel(means[0]) if lacks_roots and np.any(means[0]) else None

    def outputs(images: tf.Tensor) -> tf.Tensor:
        pictures = colour_images(images, dataset, size)
        if middle is not None:
            pictures = middle + (pictures - middle) / ROOTS_OF_DEVIATIONS
        return model(preprocess(pictures), training=False)

    # Networks that Keras builds treat rows independently, and loading weights does not change
    # layers. However, a .keras file may contain other layers, so its model is checked.
    return outputs, model.variables, path.suffix != ".keras" or is_row_wise(model)


def _with_weights(name: str, size: tuple[int, ...], path: pathlib.Path) -> keras.Model:
    """Loads a network's weights from a `.weights.h5` or `.h5` file."""
    build = applications()[name]
    takes_alpha = "alpha" in inspect.signature(build).parameters
    refused = ValueError(
        f"representation {name}: {path} does not contain weights of this network (a top of "
        f"1,000 classes is allowed). You can save the whole model as .keras instead."
    )
    kernels: list[str] = []  # kernels of convolutions; networks of all widths have equally many
    try:
        with h5py.File(path) as file:
            file.visititems(
                lambda key, item: (
                    kernels.append(key)
                    if len(getattr(item, "shape", ())) == 4 and "optimizer" not in key
                    else None
                )
            )
    except OSError:
        raise refused from None
    for has_top in (False, True):
        top: dict[str, Any] = {} if has_top else {"pooling": "avg"}
        for width in [{"alpha": alpha} for alpha in ALPHAS] if takes_alpha else [{}]:
            try:
                model = build(
                    include_top=has_top, weights=None, input_shape=(*size, 3), **top, **width
                )
                if sum(len(weight.shape) == 4 for weight in model.weights) != len(kernels):
                    break  # no network has this number of kernels
                model.set_weights([np.full(weight.shape, np.nan) for weight in model.weights])
                with warnings.catch_warnings():
                    # Hides Keras' warnings about unused weights of classification layers.
                    warnings.simplefilter("ignore")
                    model.load_weights(path)
            except Exception:  # h5py and Keras raise different exceptions
                continue
            if all(np.isfinite(weight).all() for weight in model.get_weights()):
                return _without_top(model, name)
    raise refused


def _without_top(model: Any, name: str) -> keras.Model:
    """Removes the classification layers; the new outputs are means of the last feature maps."""
    shape = getattr(model, "input_shape", None)
    if not isinstance(shape, tuple) or len(shape) != 4 or shape[3] != 3:
        raise ValueError(f"representation {name}: the model does not take color images")
    names = {each: "".join(filter(str.isalnum, each.lower())) for each in applications()}
    given = "".join(filter(str.isalnum, model.name.lower()))
    # Uses the longest match, because some names begin with another name. The check below also
    # accepts NASNet, the name that the models of both NASNets have.
    fitting = [each for each, short in names.items() if given.startswith(short)]
    other = max(fitting, key=len, default=name)
    if other != name:
        raise ValueError(f"representation {name}: the file contains {other}. Use {other}:FILE.")
    if not given.startswith(names[name]) and given != names[name][:6]:
        warnings.warn(
            f"representation {name}: the file contains {model.name!r}. It gets the preprocessing "
            f"of {name}. For another model use {PREFIX}:FILE.",
            stacklevel=4,
        )
    average = keras.layers.GlobalAveragePooling2D
    layers = model.layers
    pooling = [number for number, layer in enumerate(layers) if isinstance(layer, average)]
    if len(model.output_shape) == 4:
        maps = model.output
    elif pooling:
        last, *after = layers[pooling[-1] :]
        is_norm = isinstance(after[0] if after else None, keras.layers.LayerNormalization)
        if len(last.output.shape) == 2:
            return keras.Model(model.inputs, after[0].output if is_norm else last.output)
        maps = last.input
    else:
        maps = [layer.output for layer in layers if len(layer.output.shape) == 4][-1]
    return keras.Model(model.inputs, average()(maps))


# The functions below check an unknown model before private records are passed to it.
# They search the model's traced graph for state. A model gets batches of several inputs only if it
# certainly treats the rows of a batch independently.


# Built-in layers that treat the rows of a batch independently: each row of outputs depends only on
# the same row of inputs. Each key states why the layers in its value are independent. This holds if
# `training` is false and `_is_by_row` finds no layer that works along the batch axis.
REASONS = {
    "one function of each number, or of the numbers at one position": (
        "InputLayer Rescaling Normalization Activation ReLU LeakyReLU ELU PReLU Add Subtract "
        "Multiply Average Maximum Minimum"
    ),
    "outside of training, nothing is dropped and stored statistics are used": (
        "Dropout SpatialDropout1D SpatialDropout2D SpatialDropout3D GaussianDropout GaussianNoise "
        "BatchNormalization"
    ),
    "sums, means or maxima over axes of a row": (
        "Dense Embedding Conv1D Conv2D Conv3D DepthwiseConv1D DepthwiseConv2D SeparableConv1D "
        "SeparableConv2D LayerNormalization Softmax MaxPooling1D MaxPooling2D MaxPooling3D "
        "AveragePooling1D AveragePooling2D AveragePooling3D GlobalAveragePooling1D "
        "GlobalAveragePooling2D GlobalAveragePooling3D GlobalMaxPooling1D GlobalMaxPooling2D "
        "GlobalMaxPooling3D"
    ),
    "numbers of a row that are reordered, repeated, or padded with zeros": (
        "Flatten Reshape Permute RepeatVector ZeroPadding1D ZeroPadding2D ZeroPadding3D Cropping1D "
        "Cropping2D Cropping3D UpSampling1D UpSampling2D UpSampling3D Concatenate"
    ),
}
ROW_WISE = {name for names in REASONS.values() for name in names.split()}
LAYERS = {getattr(keras.layers, name) for name in ROW_WISE}
# Operations that are allowed on a tensor and a number, or on two tensors of the same rank.
ARITHMETIC = {keras_numpy.Add, keras_numpy.Subtract, keras_numpy.Multiply, keras_numpy.TrueDivide}
ACTIVATIONS = {each for each in vars(keras.activations).values() if callable(each)}
# Encoders of keras-hub in which attention and convolution work within a row. The code of keras-hub
# builds all their layers.
_HUB_MODELS = (
    "albert bert deberta_v3 densenet distil_bert efficientnet electra mobilenet resnet "
    "roberta vit xlm_roberta"
)
HUB_MODELS = set(_HUB_MODELS.split())


def answering(model: Any, dataset: Dataset) -> Any:
    """Wraps a student as an encoder for `record_features`, whose features are its outputs.

    Args:
        model: the model of a student, which may be a user's model.
        dataset: data set of the student's raw inputs.

    Raises:
        ValueError: if the model could store its inputs.
    """
    spec = tf.TensorSpec([None, *dataset.input_shape], tf.float32)
    call = tf.function(lambda inputs: model(inputs, training=False), autograph=False)
    function = call.get_concrete_function(spec)
    is_linear_head = isinstance(model, LinearHead)
    # The encoder of a linear head was checked when it was created, so operations of tokenizers are
    # allowed in it. It divides inputs into batches itself.
    refuse_state(function, "student", TOKENIZERS if is_linear_head else ())

    def batch_features(batch: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.asarray(function(tf.constant(batch, tf.float32)))

    by_row = is_linear_head or is_row_wise(model)
    return types.SimpleNamespace(batch_features=batch_features, places=PLACES if by_row else 1)


def is_row_wise(model: Any) -> bool:
    """Whether a Keras model consists only of built-in layers that treat rows independently."""
    if type(model) is keras.Sequential:
        model = model._functional
    if type(model) is not Functional or "call" in vars(model):
        return False
    nodes = [node for some in model._nodes_by_depth.values() for node in some]
    return all(_is_by_row(node) for node in nodes)


def _is_by_row(node: Any) -> bool:
    """Whether a node of a model's graph (a layer or an operation) treats rows independently."""
    layer = node.operation
    kind = type(layer)
    leaves = tf.nest.flatten(node.arguments.args)
    tensors = [each for each in leaves if isinstance(each, keras.KerasTensor)]
    ranks = {len(each.shape) for each in tensors}
    # If a tensor has only one axis, this is the batch axis, so an operation such as softmax would
    # mix all rows.
    ranked = [*tensors, *node.outputs]
    if any(len(each.shape) < 2 or each.shape[0] is not None for each in ranked):
        return False  # the tensors do not consist of rows
    if any(value not in (None, False) for value in node.arguments.kwargs.values()):
        return False  # for example, training=True or a mask
    others = [each for each in leaves if not isinstance(each, keras.KerasTensor)]
    if kind in ARITHMETIC:
        return len(ranks) == 1 and all(type(each) in (int, float) for each in others)
    if others or "call" in vars(layer):
        return False
    if kind not in LAYERS:
        return is_row_wise(layer)
    # The activation must be a function of Keras.
    activation = getattr(layer, "activation", None)
    return (
        _has_axes_of_rows(layer, ranks)
        and (activation is None or activation in ACTIVATIONS)
        and getattr(layer, "quantization_mode", None) is None
        and len(ranks) <= 1
    )


def _has_axes_of_rows(layer: Any, ranks: Collection[int]) -> bool:
    """Whether a built-in layer leaves the batch axis separate for inputs of these ranks."""
    axes = tf.nest.flatten(getattr(layer, "axis", None))
    if type(layer) is keras.layers.Softmax and None in axes:
        return False  # the layer mixes all numbers of a batch
    # Broadcasting with an array of higher rank would move the batch to another axis, so such layers
    # are not accepted.
    if any(np.ndim(getattr(layer, name, 0.0)) > 1 for name in ("scale", "offset")):
        return False
    return not any(axis is not None and (axis == 0 or -axis in ranks) for axis in axes)


def is_row_wise_of_hub(backbone: Any, preprocessing: Any) -> bool:
    """Whether a backbone and its preprocessing consist only of layers that keras-hub builds."""
    if type(backbone).__module__.split(".")[:3] != ["keras_hub", "src", "models"]:
        return False
    # BERT uses this activation of keras-hub, because the same function in Keras needs an argument.
    gelu = sys.modules["keras_hub.src.utils.keras_utils"].gelu_approximate
    for made in (backbone, preprocessing):
        modules = type(made).__module__.split(".")
        if modules[:2] != ["keras_hub", "src"]:
            return False
        if modules[2] == "models" and modules[3] not in {*HUB_MODELS, "preprocessor"}:
            return False
        for layer in made._flatten_layers(include_self=False, recursive=True):
            # A folder could describe a different graph or a different activation, so each layer is
            # checked.
            is_foreign = not type(layer).__module__.startswith(("keras.src.", "keras_hub.src."))
            if is_foreign or type(layer) in (Functional, keras.Sequential):
                return False
            if getattr(layer, "activation", None) not in {None, gelu, *ACTIVATIONS}:
                return False
    return True


# The following functions load frozen encoders of keras-hub: presets of keras-hub, and folders in
# the format of Hugging Face.


MAX_TOKENS = 128
CHARACTERS_PER_TOKEN = 3  # a lower bound that is valid for most texts


def hub_outputs(where: str, dataset: Dataset) -> Encoding:
    """Returns an `Encoding` for a keras-hub backbone, with pooled outputs.

    Args:
        where: name of a preset; a folder that keras-hub saved; or a folder with `config.json`,
            `model.safetensors` and, for texts, the files of the tokenizer.
        dataset: data set of images with one or three channels, or of texts as characters.

    Raises:
        ValueError: if the encoder can't be loaded, or if it takes a different type of data.
    """
    what = f"representation hub:{where}"
    try:
        importlib.import_module("tensorflow_text")  # registers operations for texts
        hub: Any = importlib.import_module("keras_hub")
    except ImportError as error:
        if error.name in ("tensorflow_text", "keras_hub"):
            raise ValueError(f"{what}: keras-hub is missing: pip install 'pate_tf[hub]'") from None
        raise ValueError(f"{what}: keras-hub can't be imported: {error}") from None
    try:
        backbone = hub.models.Backbone.from_preset(where)
        make = _of_images if dataset.kind == "image" else _of_texts
        encode, preprocessing = make(hub, backbone, where, dataset)
        return encode, backbone.variables, is_row_wise_of_hub(backbone, preprocessing)
    except Exception as error:  # keras-hub, Kaggle and safetensors raise different exceptions
        reason = " ".join(str(error).split())[:300]
        raise ValueError(
            f"{what}: keras-hub can't load it as an encoder of {dataset.kind} data: "
            f"{type(error).__name__} ({reason})"
        ) from None


def _of_images(hub: Any, backbone: Any, where: str, dataset: Dataset) -> Any:
    """Returns a function from images to mean outputs, and the preset's image converter."""
    convert = hub.layers.ImageConverter.from_preset(where)
    size = tuple(getattr(backbone, "image_shape", None) or ())[:2]
    size = tuple(side or USUAL_SIDE for side in size or convert.image_size or (None, None))

    def encode(images: tf.Tensor) -> tf.Tensor:
        pictures = colour_images(images, dataset, size)
        return _pooled(backbone(convert(pictures), training=False), None)

    return encode, convert


def _of_texts(hub: Any, backbone: Any, where: str, dataset: Dataset) -> Any:
    """Returns a function from texts to mean outputs of tokens, and the preset's preprocessing."""
    if not dataset.has_characters:
        raise ValueError(
            "texts must be kept as characters: pass characters=512 to Data.from_arrays, or write "
            "text = 512 and characters = true in a schema"
        )
    length = min(MAX_TOKENS, max(8, dataset.input_shape[0] // CHARACTERS_PER_TOKEN))
    tokens = hub.models.TextClassifierPreprocessor.from_preset(where, sequence_length=length)
    if isinstance(tokens.tokenizer, hub.tokenizers.BytePairTokenizer):
        raise ValueError(
            "its byte-pair tokenizer stores words of texts in a table. Use a preset with a "
            "WordPiece or SentencePiece tokenizer, such as BERT or XLM-RoBERTa."
        )

    def encode(characters: tf.Tensor) -> tf.Tensor:
        prepared = tokens(texts_of_characters(characters))
        mask = prepared["padding_mask"] if isinstance(prepared, dict) else prepared != 0
        return _pooled(backbone(prepared, training=False), mask)

    return encode, tokens


def _pooled(outputs: Any, mask: tf.Tensor | None) -> tf.Tensor:
    """Returns the mean of a backbone's outputs over tokens or positions, `[batch, outputs]`."""
    if isinstance(outputs, dict):
        names = ("sequence_output", "encoder_sequence_output", "pooled_output")
        outputs = next(outputs[name] for name in (*names, *outputs) if name in outputs)
    if outputs.shape.rank == 3 and mask is not None:
        weights = tf.cast(mask, outputs.dtype)[:, :, tf.newaxis]
        total = tf.reduce_sum(outputs * weights, axis=1)
        return total / tf.maximum(tf.reduce_sum(weights, axis=1), 1.0)
    return tf.reduce_mean(outputs, axis=list(range(1, outputs.shape.rank - 1)))
