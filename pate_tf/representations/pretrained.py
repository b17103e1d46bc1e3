"""Frozen encoders that a person brings: by name, from a file or folder, from memory.

Nothing here can tell what such a model was trained on. Features are public only if none of its
weights depends on private records: the person vouches for that, and the statement says so.
"""

import difflib
import inspect
import os
import pathlib
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tqdm import tqdm

from pate_tf.core import artifacts
from pate_tf.core.dataset import Dataset
from pate_tf.core.public import Pool
from pate_tf.data.named_function import Named, call_function, name_of
from pate_tf.models.catalogue import load_keras_file
from pate_tf.models.encoder import Directions, Encoder, Part
from pate_tf.representations import hub
from pate_tf.representations.images import colour_images

PREFIX, HUB = "encoder", "hub"
USUAL_SIDE = 224  # pixels, of images that networks of Keras Applications were trained on
LARGEST_FACTOR = 4  # by which small images are enlarged
LEAST_SIDE = 75  # that each of these networks takes
ALPHAS = (1.0, 0.25, 0.35, 0.5, 0.75, 1.3, 1.4)  # widths of MobileNets
ROOTS_OF_DEVIATIONS = np.sqrt([0.229, 0.224, 0.225])  # of the colors of ImageNet
# Inputs of one forward pass. The fewer, the fewer places of private batches stay empty; a GPU is
# hardly busy with few.
TOGETHER, TOGETHER_ON_GPU = 16, 64
MOST_DIRECTIONS = 256  # each gets as much noise
MOST_PROJECTED = 256  # numbers that stand for an output where there is no pool

Outputs = Callable[[tf.Tensor], tf.Tensor]  # from raw inputs, float32, to outputs


def applications() -> dict[str, Callable[..., keras.Model]]:
    """Returns the networks of Keras Applications by name."""
    return {name: built for name, built in vars(keras.applications).items() if callable(built)}


def _parts(name: Named) -> tuple[str, str, str]:
    """Returns of `NAME@SIDE:WHERE` its parts, those empty that are not there."""
    head, _, where = (name if isinstance(name, str) else "").partition(":")
    head, _, side = head.partition("@")
    return head, side, where


def is_pretrained(name: Named) -> bool:
    """Whether a representation's name is that of a frozen encoder: of a network, file or folder."""
    return _parts(name)[0] in {PREFIX, HUB, *applications()}


def suggestion(name: Named) -> str:
    """Returns the networks of Keras Applications whose names are like a wrong one, in words."""
    by_lower = {each.lower(): each for each in applications()}
    close = difflib.get_close_matches(_parts(name)[0].lower(), by_lower, cutoff=0.75)
    return f"; is it {' or '.join(by_lower[each] for each in close)}?" if close else ""


def resolved(name: str) -> str:
    """Returns a name with an absolute path.

    Raises:
        ValueError: if there is no such file, or a side is no such number. No file is opened.
    """
    head, side, where = _parts(name)
    path = pathlib.Path(where)
    if side and (head in (PREFIX, HUB) or not (side.isdecimal() and int(side) >= LEAST_SIDE)):
        raise ValueError(
            f"representation: expected NAME@SIDE, a side of images in pixels, {LEAST_SIDE} or "
            f"more, after the name of a network of Keras Applications, got {name!r}"
        )
    if head == PREFIX and (path.suffix != ".keras" or not path.is_file()):
        raise ValueError(
            f"representation: expected a .keras file at {path}, got none; of other models take "
            f"NAME:FILE, {HUB}:FOLDER or module:function"
        )
    if head == HUB and not where:
        raise ValueError(f"representation: expected {HUB}:PRESET or {HUB}:FOLDER, got {name!r}")
    if head not in (PREFIX, HUB) and where and not path.is_file():
        raise ValueError(
            f"representation: expected a file of weights of {head}, .keras, .weights.h5 or .h5, at "
            f"{path}, got none"
        )
    absolute = os.path.abspath(where) if where and path.exists() else where
    return f"{name.removesuffix(where)}{absolute}"


def public_name(name: Named) -> str:
    """Returns what is published of a name: no folder of the holder's."""
    name = name_of(name)
    where = _parts(name)[2]
    is_path = pathlib.Path(where).is_absolute()
    shown = f"{name.removesuffix(where)}{pathlib.Path(where).name}" if is_path else name
    return shown.removeprefix(f"{PREFIX}:")


def function_of(model: keras.Model) -> Callable[[Dataset], keras.Model]:
    """Returns the function that gives a model for any data set, called after the model."""

    def build(dataset: Dataset) -> keras.Model:
        del dataset
        return model

    build.__name__ = model.name
    return build


def encoder(name: Named, pool: Pool) -> Encoder:
    """Returns the encoder of a frozen model; each input of the pool goes through it once.

    Args:
        name: as of `resolved`; or a function, itself or as `module:function`, from a `Dataset` to a
            Keras model.
        pool: public inputs, maybe none, of the data set whose raw inputs the encoder takes.

    Raises:
        ValueError: if the model can't be had, or does not take such inputs.
    """
    dataset, (head, side, where) = pool.dataset, _parts(name)
    shown, description = name_of(name), dict[str, Any]()
    if not is_pretrained(name):
        model = call_function(name, dataset, flag="representation")
        outputs, variables = _raw_outputs(model, shown, dataset)
    else:
        name = resolved(str(name))
        shown = public_name(name)
        if head == HUB:
            outputs, variables = hub.outputs(where, dataset)
        elif head == PREFIX:
            outputs, variables = _raw_outputs(load_keras_file(pathlib.Path(where)), shown, dataset)
        else:
            outputs, variables = _application(head, side, where, dataset)
        if pathlib.Path(where).is_file():
            description["file"] = artifacts.digest_paths([pathlib.Path(where)])
    part = ModelPart(outputs, variables, pool)
    frozen = Encoder(dataset, [part], {"representation": shown, **description})
    if pool:
        frozen.remember(pool.inputs, part.fit(pool))
    return frozen


class ModelPart(Part):
    """One view of norm 1: outputs of a frozen model, flattened.

    With a pool, its mean is subtracted, and they are taken along its foremost directions. Without,
    they are divided by their norm and projected (Johnson and Lindenstrauss 1984); what is positive
    and what is negative become two features, as sums of moments take no negative number.
    """

    is_frozen = True
    least_variance = 30.0

    def __init__(self, outputs: Outputs, variables: Sequence[Any], pool: Pool) -> None:
        """Takes a model; ValueError unless it maps raw inputs to numbers, as many for each."""
        super().__init__()
        self.places = TOGETHER_ON_GPU if tf.config.list_physical_devices("GPU") else TOGETHER
        self._outputs, self._variables = outputs, list(variables)
        spec = tf.TensorSpec([None, *pool.dataset.input_shape], tf.float32)
        try:
            self._graph = tf.function(self.raw, autograph=False).get_concrete_function(spec)
            self._check_rows(pool)
        except Exception as error:  # of any kind, from the model
            if str(error).startswith("representation"):
                raise
            raise ValueError(
                f"representation: expected a model that takes {self.places} inputs together, got "
                f"{_reason(error)}"
            ) from None
        width = self._graph.structured_outputs.shape[1]
        self.view = Directions(width, min(MOST_DIRECTIONS, max(1, len(pool) - 1)))
        self._projection = None
        self.widths = (self.view.width,)
        if not pool:
            number = min(MOST_PROJECTED, width)
            drawn = np.random.default_rng(0).standard_normal((width, number))
            self._projection = tf.constant(np.linalg.qr(drawn)[0], tf.float32)
            self.widths = (2 * number,)

    def _check_rows(self, pool: Pool) -> None:
        """Checks that an input's outputs do not depend on its batch, which would be other records.

        Raises:
            ValueError: if they do, as with batch statistics, or are drawn at random; or if they do
                not depend on the input either.
        """
        low, high = (np.asarray(values, np.float32) for values in pool.dataset.value_range)
        shape, number = pool.dataset.input_shape, np.arange(self.places)
        random = np.random.default_rng(0)
        rows, noise = random.uniform(low, high, (2, self.places, *shape)).astype(np.float32)
        if pool:
            rows[::2] = pool.inputs[np.linspace(0, len(pool) - 1, self.places // 2).astype(int)]
        # What stands for a row: 0 for itself, then the lowest values, the highest, noise. Any two
        # rows differ in a bit of their numbers, by which one stays there and the other does not.
        bits = range((self.places - 1).bit_length())
        sides = [number >> bit & 1 == side for bit in bits for side in (0, 1)]
        of_several = [side * random.integers(1, 4, self.places) for side in sides]
        of_one = [side * kind for side in sides[:2] for kind in (1, 2, 3)]
        kinds = np.stack([0 * number, 0 * number, *of_several, *of_one])
        choices = kinds.reshape(*kinds.shape, *np.ones_like(shape))
        batches = (np.choose(each, [rows, low, high, noise]) for each in choices)
        outputs = np.stack([self._graph(tf.constant(batch)) for batch in batches])
        first = np.broadcast_to(outputs[0], outputs.shape)
        is_own = np.array_equal(outputs[kinds == 0], first[kinds == 0], equal_nan=True)
        faults = {
            "others; a layer takes statistics of the batch or draws at random": not is_own,
            "none that are finite": not np.isfinite(first).all(axis=2).any(),
            "the same of different inputs": (outputs == outputs[0, 0]).all(),
        }
        if got := [fault for fault, is_there in faults.items() if is_there]:
            raise ValueError(f"representation: expected outputs of each input alone, got {got[0]}")

    @property
    def variances(self) -> list[Any] | None:
        """As of `Directions`; None without a pool."""
        return [self.view.variances] if self._projection is None else None

    @property
    def learnt(self) -> list[Any]:
        """The model's weights, then mean, directions and variances of the pool."""
        of_pool = [self.view.mean, self.view.directions, self.view.variances]
        return [*self._variables, *(of_pool if self._projection is None else ())]

    def fit(self, pool: Pool) -> npt.NDArray[np.float32]:
        """Takes the directions from a pool's outputs; returns features `[num_inputs, width]`."""
        outputs = list[npt.NDArray[np.float32]]()
        # `None`: a bar on a terminal alone.
        with tqdm(total=len(pool), desc="encoding the pool", unit="input", disable=None) as bar:
            for start in range(0, len(pool), self.places):
                batch = pool.inputs[start : start + self.places]
                outputs.append(self._graph(tf.constant(batch, tf.float32)).numpy())
                bar.update(len(batch))
        raw = np.concatenate(outputs)
        is_finite = np.isfinite(raw).all(axis=1)
        if not is_finite.all():
            message = (
                f"representation: outputs of {(~is_finite).sum():,} of {len(raw):,} public inputs "
                f"are not finite and count for nothing"
            )
            if not is_finite.any():
                raise ValueError(message)
            warnings.warn(message, stacklevel=3)
        raw[~is_finite] = 0.0
        mean = raw.mean(axis=0, dtype=np.float64)
        unit = max(float(np.abs(raw - mean).max()), float(np.finfo(np.float32).tiny))
        self.view.find_in(((raw - mean) / unit).astype(np.float32))
        self.view.mean.assign(mean.astype(np.float32))
        self.view.directions.assign(self.view.directions / unit)  # however small outputs are
        return np.asarray(self.view(tf.constant(raw)))

    def raw(self, inputs: tf.Tensor) -> tf.Tensor:
        """Returns the model's outputs, flattened, float32 `[batch, num_outputs]`."""
        outputs = tf.cast(self._outputs(inputs), tf.float32)
        width = outputs.shape[1:].num_elements()
        if not width:
            raise ValueError(
                f"representation: expected a model with a number of outputs that is fixed for an "
                f"input, got {list(outputs.shape)}"
            )
        return tf.reshape(outputs, [-1, width])

    def __call__(self, inputs: tf.Tensor) -> list[tf.Tensor]:
        """Returns the view float32 `[batch, width]`, computed for `places` inputs at a time."""
        number, (width,) = tf.shape(inputs)[0], self.widths
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
    """Returns an error's kind, and its first line that says what is wrong."""
    # Of TensorFlow and Keras, the lines before it say where.
    where = ("Graph execution", "Detected at", "Exception encountered", "Node:", " ", "\t")
    lines = [line for line in str(error).splitlines() if line and not line.startswith(where)]
    return f"{type(error).__name__} ({' '.join(lines[:1]).strip()})"


def _raw_outputs(model: Any, what: str, dataset: Dataset) -> tuple[Outputs, Sequence[Any]]:
    """Returns the call of a Keras model that takes raw inputs, and its variables.

    Images are brought to the model's size (bilinear) and colors, where it has fixed ones.

    Raises:
        ValueError: if it takes others.
    """
    shape, output = (getattr(model, f"{side}_shape", None) for side in ("input", "output"))
    if not (
        isinstance(model, keras.Model) and isinstance(shape, tuple) and isinstance(output, tuple)
    ):
        raise ValueError(
            f"representation {what}: expected a Keras model of one input and one output that knows "
            f"its input, got {type(model).__name__}"
        )
    expected = dataset.input_shape
    size = tuple(fixed or free for fixed, free in zip(shape[1:], expected, strict=False))
    is_image = dataset.kind == "image" and len(shape) == 4
    fits = is_image and (expected[2] == size[2] or (expected[2], size[2]) == (1, 3))
    if (size != expected and not fits) or not tf.TensorShape(output[1:]).num_elements():
        raise ValueError(
            f"representation {what}: expected {[None, *expected]} to features of one number, got "
            f"{list(shape)} to {list(output)}"
        )

    def outputs(inputs: tf.Tensor) -> tf.Tensor:
        if size != expected:
            inputs = tf.image.resize(inputs, size[:2])
            inputs = tf.repeat(inputs, size[2] // expected[2], axis=3)
        return tf.nest.flatten(model(inputs, training=False))[0]

    return outputs, model.variables


# Networks of Keras Applications.


def _application(
    name: str, side: str, where: str, dataset: Dataset
) -> tuple[Outputs, Sequence[Any]]:
    """Returns a network's average-pooled outputs with its preprocessing, and its variables.

    Args:
        name: of the network.
        side: of its images in pixels, the longer one; empty for four times that of the data set's
            images, at most `USUAL_SIDE`.
        where: file of its weights; empty for those of ImageNet, which Keras downloads.
        dataset: whose images it takes.
    """
    colour_images(tf.zeros([1, *dataset.input_shape]), dataset, (1, 1))  # before a download
    height, width, _ = dataset.input_shape
    longest = int(side) if side else min(USUAL_SIDE, LARGEST_FACTOR * max(height, width))
    size: tuple[int, ...] = tuple(
        max(LEAST_SIDE, round(each * longest / max(height, width))) for each in (height, width)
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
        # A NASNet's weights are for one size.
        shape = None if name.startswith("NASNet") else (*size, 3)
        try:
            model = applications()[name](include_top=False, pooling="avg", input_shape=shape)
        except Exception as error:  # of any kind, from the network
            raise ValueError(
                f"representation {name}: expected weights that Keras can download, got "
                f"{_reason(error)}; without a network take {name}:FILE, a file of its weights"
            ) from None
    preprocess = sys.modules[applications()[name].__module__].preprocess_input
    means = [layer.adapt_mean for layer in model.layers if hasattr(layer, "adapt_mean")]
    # Keras divides colors by these roots too, but for weights of ImageNet from a file.
    lacks_roots = path.suffix == ".h5" and preprocess.__module__.endswith(".efficientnet")
    middle = 255.0 * np.ravel(means[0]) if lacks_roots and np.any(means[0]) else None

    def outputs(images: tf.Tensor) -> tf.Tensor:
        pictures = colour_images(images, dataset, size)
        if middle is not None:
            pictures = middle + (pictures - middle) / ROOTS_OF_DEVIATIONS
        return model(preprocess(pictures), training=False)

    return outputs, model.variables


def _with_weights(name: str, size: tuple[int, ...], path: pathlib.Path) -> keras.Model:
    """Returns a network with the weights of a file, `.weights.h5` or `.h5`, with or without top."""
    build = applications()[name]
    takes_alpha = "alpha" in inspect.signature(build).parameters
    for width in [{"alpha": alpha} for alpha in ALPHAS] if takes_alpha else [{}]:
        for has_top in (False, True):
            top: dict[str, Any] = {} if has_top else {"pooling": "avg"}
            try:
                model = build(
                    include_top=has_top, weights=None, input_shape=(*size, 3), **top, **width
                )
                model.set_weights([np.full(weight.shape, np.nan) for weight in model.weights])
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of parts of the file that are its top
                    model.load_weights(path)
            except Exception:  # h5py and Keras each raise their own kinds
                continue
            if all(np.isfinite(weight).all() for weight in model.get_weights()):
                return _without_top(model, name)
    raise ValueError(
        f"representation {name}: expected weights of this network in {path}, with its top of 1,000 "
        f"classes or without, got others; a whole model may be saved as .keras"
    )


def _without_top(model: Any, name: str) -> keras.Model:
    """Returns a network up to the averages of its last feature maps."""
    shape, layers = getattr(model, "input_shape", None), getattr(model, "layers", ())
    if not isinstance(shape, tuple) or len(shape) != 4 or shape[3] != 3:
        raise ValueError(f"representation {name}: expected a network of color images, got another")
    own, given = ("".join(filter(str.isalnum, each.lower())) for each in (name, model.name))
    if not given.startswith(own) and given != own[:6]:  # both NASNets have one name
        warnings.warn(
            f"representation {name}: expected this network, got {model.name!r}, which gets inputs "
            f"as {name} does; of other models take {PREFIX}:FILE",
            stacklevel=4,
        )
    average = keras.layers.GlobalAveragePooling2D
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
