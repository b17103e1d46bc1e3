"""The Keras architectures that `--model` accepts by name.

Every model maps raw inputs `[batch, *input_shape]` to logits `[batch, num_classes]`. The model
scales its inputs itself, so an exported model needs no preprocessing.
"""

import contextlib
import functools
import hashlib
import inspect
import json
import pathlib
import random
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf.core import artifacts
from pate_tf.core.dataset import Dataset
from pate_tf.data.named_function import (
    Named,
    call_function,
    import_function,
    is_named_function,
    name_of,
)

layers = keras.layers
MIN_IMAGE_SIDE = 6  # pixels; minimum for three convolutions and a pooling layer
NO_SEED = 87654321  # TensorFlow's default for its global seed

Builder = Callable[[Dataset], keras.Model]


def _classifier(dataset: Dataset, *hidden: keras.Layer) -> keras.Model:
    """Builds a model that scales inputs, applies the layers `hidden`, and returns logits."""
    low, high = (np.asarray(values) for values in dataset.value_range)
    scale = 1.0 / (high - low)
    rescaling = layers.Rescaling(scale.tolist(), offset=(-low * scale).tolist())
    output = layers.Dense(dataset.num_classes)
    return keras.Sequential([keras.Input(dataset.input_shape), rescaling, *hidden, output])


def _check_image(dataset: Dataset, smallest: int = 0) -> None:
    if dataset.kind != "image":
        raise ValueError(f"model: this network needs images. Use mlp for {dataset.kind} data.")
    height, width = dataset.input_shape[:2]
    if min(height, width) < smallest:
        raise ValueError(
            f"model: this network needs images of at least {smallest} x {smallest}, got {height} x "
            f"{width}. Use mlp, which accepts inputs of any shape."
        )


def _three_convolutions(dataset: Dataset, channels: tuple[int, int, int]) -> keras.Model:
    """Builds a network of three small convolutions, which trains in about half a second."""
    _check_image(dataset, MIN_IMAGE_SIDE)
    size, stride = (4, 2) if min(dataset.input_shape[:2]) >= 16 else (3, 1)
    first, second, third = channels
    return _classifier(
        dataset,
        layers.Conv2D(first, size, strides=stride, padding="same", activation="relu"),
        layers.Conv2D(second, 3, padding="same", activation="relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(third, 3, activation="relu"),
        layers.Flatten(),
    )


def mlp(dataset: Dataset) -> keras.Model:
    """Builds a network with one hidden layer of 128 units, for inputs of any shape."""
    return _classifier(dataset, layers.Flatten(), layers.Dense(128, activation="relu"))


def _paper(dataset: Dataset, hidden: tuple[int, ...]) -> keras.Model:
    """Builds the PATE paper's network: two 5x5 convolutions with max-pooling, and dense layers."""
    _check_image(dataset)
    return _classifier(
        dataset,
        layers.Conv2D(64, 5, padding="same", activation="relu"),
        layers.MaxPooling2D(3, strides=2, padding="same"),
        layers.Conv2D(128, 5, padding="same", activation="relu"),
        layers.MaxPooling2D(3, strides=2, padding="same"),
        layers.Flatten(),
        *(layers.Dense(units, activation="relu") for units in hidden),
    )


BUILDERS: dict[str, Builder] = {
    "cnn": functools.partial(_three_convolutions, channels=(16, 32, 48)),
    # This network is for students, which learn from all inputs of the pool.
    "wide_cnn": functools.partial(_three_convolutions, channels=(32, 64, 96)),
    "mlp": mlp,
    "paper_mnist": functools.partial(_paper, hidden=(384,)),
    "paper_svhn": functools.partial(_paper, hidden=(384, 384, 192)),
}


def default_model(dataset: Dataset) -> str:
    """Returns the name of the default model for a data set."""
    return "cnn" if dataset.kind == "image" else "mlp"


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds the global random generators of Python, NumPy, TensorFlow and Keras.

    Library code such as Keras' `fit` uses these generators. At the end of the block, their earlier
    states are restored, except for TensorFlow's generator: TensorFlow does not expose its state, so
    it restarts from its earlier seed.
    """
    before = tf.compat.v1.get_seed(0)[0]
    state_of_python = random.getstate()
    state_of_numpy = np.random.get_state()
    keras.utils.set_random_seed(seed)
    try:
        yield
    finally:
        keras.utils.set_random_seed(seed)  # resets the state, which may depend on private records
        random.setstate(state_of_python)
        np.random.set_state(state_of_numpy)
        tf.random.set_seed(None if before == NO_SEED else before)


def build(name: Named, dataset: Dataset, *, seed: int = 0) -> keras.Model:
    """Builds a Keras model that maps raw inputs to logits, and checks its input and output shapes.

    Args:
        name: a key of `BUILDERS`; or a user's function, as an object or as `module:function`.
        dataset: data set with the shape of the inputs and the number of classes.
        seed: seed of the initial weights and of dropout.

    If a model is not compiled and ends with a softmax, a warning is issued, and the logarithms of
    its probabilities are used as logits. Layers that contain statistics of data also cause a
    warning.

    Raises:
        ValueError: if the model is unknown or does not map inputs of the data set to logits.
    """
    is_shipped = isinstance(name, str) and name in BUILDERS
    if not (is_shipped or is_named_function(name)):
        raise ValueError(f"model {name!r} is unknown; use {', '.join(BUILDERS)} or module:function")
    # Keras draws the seeds of initializers and dropout from Python's random generator, which is
    # seeded here.
    with seeded(seed):
        if is_shipped:
            model = BUILDERS[str(name)](dataset)
        else:
            model = call_function(name, dataset, flag="model")
    check_model(model, dataset, name_of(name))
    adapted = {type(layer).__name__ for layer in model._flatten_layers() if holds_statistics(layer)}
    if adapted:
        warnings.warn(
            f"model {name_of(name)}: {', '.join(sorted(adapted))} contains statistics of data. "
            "Compute them from public data only: they are not charged.",
            stacklevel=2,
        )
    if not model.compiled and ends_in_softmax(model):
        warnings.warn(
            f"model {name_of(name)} ends in a softmax. Its outputs' logarithms become logits.",
            stacklevel=2,
        )
        return with_logits(model)
    return model


def ends_in_softmax(model: keras.Model) -> bool:
    """Whether the last layer of a model, or of a model inside it, is a softmax."""
    # The operations of a functional model also include calls of `keras.ops`, which `layers` lacks.
    operations = getattr(model, "operations", model.layers)
    last = operations[-1] if operations else None
    if isinstance(last, keras.Model):
        return ends_in_softmax(last)
    is_activation = getattr(last, "activation", None) is keras.activations.softmax
    return is_activation or type(last).__name__ == "Softmax"


def with_logits(model: keras.Model) -> keras.Model:
    """Returns a model with logits: the logarithms of the probabilities that `model` returns."""
    probabilities = keras.ops.cast(model.outputs[0], "float32")
    smallest = float(np.finfo(np.float32).tiny)
    return keras.Model(model.inputs[0], keras.ops.log(keras.ops.maximum(probabilities, smallest)))


def holds_statistics(layer: keras.Layer) -> bool:
    """Whether a layer is a Keras preprocessing layer that contains statistics of data."""
    if isinstance(layer, layers.Normalization) and layer.input_mean is None:
        mean, variance = (np.asarray(each) for each in (layer.adapt_mean, layer.adapt_variance))
        return bool(mean.any() or (variance != 1.0).any())
    if isinstance(layer, layers.Discretization):
        return layer.bin_boundaries is not None
    if isinstance(layer, (layers.StringLookup, layers.IntegerLookup, layers.TextVectorization)):
        return bool(layer.get_vocabulary(include_special_tokens=False))
    return isinstance(layer, layers.Normalization)


def check_model(model: Any, dataset: Dataset, name: str) -> None:
    """Raises ValueError unless a Keras model maps raw inputs to a number for each class."""
    if not isinstance(model, keras.Model):
        raise ValueError(f"model {name} must be a Keras model, got {type(model).__name__}")
    if not (model.built and hasattr(model, "input_shape")):
        raise ValueError(
            f"model {name} must be a Sequential or functional Keras model with a known input "
            "shape. Begin with keras.Input(dataset.input_shape)."
        )
    if wrong := {weight.dtype for weight in model.trainable_weights} - {"float32"}:
        raise ValueError(
            f"model {name} needs float32 weights, got {', '.join(sorted(wrong))}. The policies "
            "mixed_float16 and mixed_bfloat16 are allowed."
        )
    expected_in = (None, *dataset.input_shape)
    expected_out = (None, dataset.num_classes)
    if tuple(model.input_shape) != expected_in or tuple(model.output_shape) != expected_out:
        raise ValueError(
            f"model {name} must map {list(expected_in)} to {list(expected_out)} for "
            f"{dataset.name}, but it maps {list(model.input_shape)} to {list(model.output_shape)}"
        )


def load_keras_file(path: pathlib.Path) -> Any:
    """Loads the model in a `.keras` file; refuses a model that contains code.

    Raises:
        ValueError: if there is no Keras model at this path, or if the model contains code.
    """
    try:
        return keras.saving.load_model(path, compile=False, safe_mode=True)
    except Exception as error:  # Keras and zipfile raise different exceptions
        raise ValueError(f"{path} is not a Keras model, is damaged, or contains code") from error


# The following functions check where a model draws random numbers: a layer may have a generator,
# but must not use a generator of the whole process.


# Names of TensorFlow operations that draw from a generator whose state is not a variable.
_SHARED_STATE = (
    "RandomUniform RandomUniformInt RandomStandardNormal TruncatedNormal "
    "ParameterizedTruncatedNormal RandomShuffle Multinomial RandomGamma RandomPoisson "
    "RandomPoissonV2"
)
SHARED_STATE = set(_SHARED_STATE.split())


def check_draws(model: keras.Model, *, training: bool) -> None:
    """Checks that the outputs of a model depend only on its inputs and its variables.

    All teachers in a process would share a global random generator, or a variable that Keras does
    not track. In addition, a model that uses such a generator or variable can't be exported.

    Args:
        model: a built model.
        training: True to check the model in training mode, False to check it in inference mode.

    Raises:
        ValueError: if the outputs depend on anything but inputs and variables.
    """
    signature = tf.TensorSpec([1, *model.input_shape[1:]], tf.float32)
    called = tf.function(lambda inputs: model(inputs, training=training), autograph=False)
    graph = called.get_concrete_function(signature).graph
    # With a distribution strategy, the graph reads the copies of a variable on each device, so
    # these copies also belong to the model.
    held = [variable.value for variable in model.variables]
    parts = [part for variable in held for part in getattr(variable, "values", ())]
    owned = {variable.ref() for variable in (*held, *parts)}
    others = [variable for variable in graph.variables if variable.ref() not in owned]
    definition = graph.as_graph_def()
    functions = [node for function in definition.library.function for node in function.node_def]
    if others or any(node.op in SHARED_STATE for node in (*definition.node, *functions)):
        raise ValueError(
            "model: it shares variables or random generators with other models of the process. "
            "Give each layer a keras.random.SeedGenerator, and pass it as `seed=` when you draw."
        )


LIBRARIES = ("builtins", "keras", "numpy", "pate_tf", "scipy", "sklearn", "tensorflow")
MAX_DEPTH = 8  # deeper objects are identified only by their class


def model_definition(model: Named | keras.Model, dataset: Dataset) -> str:
    """Returns a digest that identifies a Keras model, or the model that `build` would return.

    The digest covers the settings, the source code, and the weights that do not depend on a seed.

    Raises:
        ValueError: if the model is unknown or not valid, see `build`.
    """
    if isinstance(model, keras.Model):
        parts = [definition_of(model)]
    else:
        built = [build(model, dataset, seed=seed) for seed in (0, 1)]
        weights = zip(*(each.get_weights() for each in built), strict=True)
        fixed = [first for first, second in weights if np.array_equal(first, second)]
        parts = [definition_of(built[0]), artifacts.digest_arrays(fixed)]
        parts += source_of(model) if is_named_function(model) else [model]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def source_of(function: Any, depth: int = 2) -> list[Any]:
    """Returns the name and source code of a function or class, and plain values in its closure.

    Plain values are numbers and texts. All other values may be private data and are ignored.
    """
    if isinstance(function, str):
        function = import_function(function, flag="model")
    name = str(getattr(function, "__qualname__", type(function).__qualname__))
    module = getattr(function, "__module__", None) or type(function).__module__
    text = ""
    # The source code of a lambda would include the rest of its line, so it is ignored.
    if module.partition(".")[0] not in LIBRARIES and not name.endswith("<lambda>"):
        with contextlib.suppress(OSError, TypeError):  # it has no source code, or is no function
            text = inspect.getsource(function)
    enclosed: list[Any] = []
    for cell in getattr(function, "__closure__", None) or () if depth else ():
        try:
            value = cell.cell_contents
        except ValueError:  # the variable has no value yet
            continue
        if inspect.isfunction(value):
            enclosed.append(source_of(value, depth - 1))
        elif isinstance(value, (bool, int, float, str)):
            enclosed.append(repr(value))
    return [f"{module}.{name}", text, enclosed]


def definition_of(
    value: Any,
    of_array: Callable[[npt.NDArray[Any]], str] = lambda array: f"{array.dtype}{list(array.shape)}",
    depth: int = MAX_DEPTH,
) -> Any:
    """Returns JSON values that identify an object by its class and its contents.

    Memory addresses, random states and the numbers in Keras' layer names are ignored.

    Args:
        value: any object. If it is a Keras layer, the values of its weights are ignored.
        of_array: function that returns a text to identify an array. Default: the type and shape of
            the array, because the values may be private.
        depth: maximum depth of nested objects.
    """
    if value is None or isinstance(value, (bool, int, float, str, np.generic)):
        return repr(value)
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return of_array(value)
    if isinstance(value, type) or hasattr(value, "__name__"):
        return source_of(value)
    if depth == 0:
        return source_of(type(value))
    inner = functools.partial(definition_of, of_array=of_array, depth=depth - 1)
    if isinstance(value, Mapping):
        return {str(key): inner(each) for key, each in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [inner(each) for each in value]
    if isinstance(value, functools.partial):
        return inner([value.func, value.args, value.keywords])
    if isinstance(value, keras.Layer):
        loss = getattr(value, "loss", None)  # a compiled model may contain the user's function
        return [*_definition_of_layer(value, inner), inner(loss)]
    held = getattr(value, "__dict__", {})
    described = {name: inner(each) for name, each in held.items() if name != "random_state"}
    return {"class": source_of(type(value)), **described}


def _definition_of_layer(layer: keras.Layer, inner: Callable[[Any], Any]) -> list[Any]:
    """Returns the settings of a layer, the shapes of its weights, and the code of its sublayers.

    Args:
        layer: a Keras layer.
        inner: function that describes a setting that is not a JSON value.
    """
    parts = [*layer._flatten_layers()]
    try:
        text = json.dumps(keras.saving.serialize_keras_object(layer), default=inner)
    except Exception:  # the user's class may raise any exception
        text = json.dumps([definition_of(part, depth=1) for part in parts[1:]])
    names = dict.fromkeys(re.findall(r'"name": "([^"]*)"', text))
    for number, name in enumerate(names):  # Keras numbers all layers of the process
        text = text.replace(f'"{name}"', f'"part {number}"')
    settings = json.loads(
        text,
        # The stored code of a lambda contains the name of its file, so it is replaced by a
        # constant.
        object_hook=lambda node: "lambda" if node.get("class_name") == "__lambda__" else node,
    )
    weights = [f"{weight.dtype} {list(weight.shape)}" for weight in layer.weights]
    return [settings, weights, [source_of(type(part)) for part in parts]]
