"""What a model computes, as far as Keras, scikit-learn and the user's source text tell.

A name says too little: its function may change between two runs. Other functions that a user's
function calls are not looked into.
"""

import contextlib
import functools
import hashlib
import inspect
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from pate_tf.core import artifacts
from pate_tf.core.dataset import Dataset
from pate_tf.data.named_function import Named, import_function, is_named_function
from pate_tf.models import catalogue

LIBRARIES = ("builtins", "keras", "numpy", "pate_tf", "scipy", "sklearn", "tensorflow")
DEEPEST = 8  # objects within objects; of what lies deeper the class counts


def model_definition(model: Named | keras.Model, dataset: Dataset) -> str:
    """Returns a digest of a Keras model, itself or as `catalogue.build` takes it.

    It covers settings and source text, and of the weights those that are not drawn by a seed.

    Raises:
        ValueError: as `catalogue.build`.
    """
    if isinstance(model, keras.Model):
        parts = [definition_of(model)]
    else:
        built = [catalogue.build(model, dataset, seed=seed) for seed in (0, 1)]
        weights = zip(*(each.get_weights() for each in built), strict=True)
        fixed = [first for first, second in weights if np.array_equal(first, second)]
        parts = [definition_of(built[0]), artifacts.digest_arrays(fixed)]
        parts += source_of(model) if is_named_function(model) else [model]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def source_of(function: Any, depth: int = 2) -> list[Any]:
    """Returns name and source text of a user's function or class, and values that it closes over.

    Values that are not plain may be private data, and do not count.
    """
    if isinstance(function, str):
        function = import_function(function, flag="model")
    name = str(getattr(function, "__qualname__", type(function).__qualname__))
    module = getattr(function, "__module__", None) or type(function).__module__
    text = ""
    # A lambda's text has the rest of its lines in it.
    if module.partition(".")[0] not in LIBRARIES and not name.endswith("<lambda>"):
        with contextlib.suppress(OSError, TypeError):  # no text is kept, or it is no function
            text = inspect.getsource(function)
    enclosed: list[Any] = []
    for cell in getattr(function, "__closure__", None) or () if depth else ():
        try:
            value = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
        if inspect.isfunction(value):
            enclosed.append(source_of(value, depth - 1))
        elif isinstance(value, (bool, int, float, str)):
            enclosed.append(repr(value))
    return [f"{module}.{name}", text, enclosed]


def definition_of(
    value: Any,
    of_array: Callable[[npt.NDArray[Any]], str] = lambda array: f"{array.dtype}{list(array.shape)}",
    depth: int = DEEPEST,
) -> Any:
    """Returns JSON values that say what an object is: its class, and what it holds.

    Addresses, random states and Keras' running numbers of layers do not count.

    Args:
        value: any object; a Keras layer counts without its weights' values.
        of_array: what arrays count by; by type and shape, as they may be private.
        depth: how many objects may lie within it.
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
        parts = [*value._flatten_layers()]
        try:
            text = json.dumps(keras.saving.serialize_keras_object(value), default=inner)
        except Exception:  # of any kind, from a class of the user's own
            text = json.dumps([definition_of(part, depth=1) for part in parts[1:]])
        names = dict.fromkeys(re.findall(r'"name": "([^"]*)"', text))
        for number, name in enumerate(names):  # Keras numbers names by what was made before
            text = text.replace(f'"{name}"', f'"part {number}"')
        settings = json.loads(text, object_hook=_without_bytecode)
        weights = [f"{weight.dtype} {list(weight.shape)}" for weight in value.weights]
        loss = getattr(value, "loss", None)  # of a compiled model, a function of the user's own
        return [settings, weights, [source_of(type(part)) for part in parts], inner(loss)]
    held = getattr(value, "__dict__", {})
    described = {name: inner(each) for name, each in held.items() if name != "random_state"}
    return {"class": source_of(type(value)), **described}


def _without_bytecode(node: dict[str, Any]) -> Any:
    return "lambda" if node.get("class_name") == "__lambda__" else node  # it names its file
