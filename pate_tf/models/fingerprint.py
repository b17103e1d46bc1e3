"""What a model computes, as JSON values: a name says too little, for its function may change.

For a Keras model: the configuration of its layers, shapes and types of its weights, and a sketch of
the weights it begins with (a pretrained one is another model). A layer of the user's own, a
`Lambda`, or a model without a configuration do not say what they compute: for those the answers to
fixed inputs at fixed weights are added, in inference and in training, and the sum of their losses.
For a classifier of scikit-learn: its class and its parameters, without `random_state`, which every
teacher gets of its own.

A model is built twice, with one seed. What differs between the two, because its function draws at
random, is unknown, and equals anything.
"""

import functools
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from pate_tf.core import artifacts
from pate_tf.core.dataset import Dataset
from pate_tf.data.named_function import Named
from pate_tf.models import catalogue, forest

# Descriptions: JSON values that say what something is, to be stored and compared.
#
# Two kinds of values are compared in ways of their own: numbers made by `near` may differ by
# rounding, and `UNKNOWN` equals anything.


UNKNOWN = "unknown"
LONGEST_VALUE = 80  # characters of a value in a message
DEEPEST = 20  # objects within objects; what lies deeper counts by its class
DIGEST = re.compile(r"[0-9a-f]{64}")


def difference(found: Any, wanted: Any) -> str | None:
    """Says in a few words where two descriptions, JSON values, differ first; None if they do not.

    `found` is stored in a folder, `wanted` how it is now. Digests are told apart and never shown:
    that of private records would help to guess them.
    """
    path: list[str] = []
    while True:
        if _same(found, wanted):
            return None
        if isinstance(found, Mapping) and isinstance(wanted, Mapping) and "near" not in wanted:
            keys = [*wanted, *(key for key in found if key not in wanted)]
            key = next(key for key in keys if not _same_at(found, wanted, key))
            path.append(str(key))
            found, wanted = found.get(key), wanted.get(key)
        elif isinstance(found, list) and isinstance(wanted, list):
            pairs = enumerate(zip(found, wanted, strict=False))
            place = next((i for i, pair in pairs if not _same(*pair)), None)
            if place is None:
                found, wanted = len(found), len(wanted)
            else:
                path.append(str(place))
                found, wanted = found[place], wanted[place]
        else:
            values = (_shown(found), _shown(wanted))
            if "" in values or values[0] == values[1]:
                return f"{' '.join(path)}: others in this folder than now"
            return f"{' '.join(path)}: {values[0]} in this folder, {values[1]} now"


def _same_at(found: Mapping[str, Any], wanted: Mapping[str, Any], key: str) -> bool:
    return key in found and key in wanted and _same(found[key], wanted[key])


def _same(one: Any, other: Any) -> bool:
    if UNKNOWN in (one, other):
        return True
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        if one.keys() != other.keys():
            return False
        if "near" in one:
            return _is_near(one, other)
        return all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return type(one) is type(other) and bool(one == other)


def _is_near(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    numbers = np.array(one["near"]), np.array(other["near"])
    if numbers[0].shape != numbers[1].shape:
        return False
    return bool((np.abs(numbers[0] - numbers[1]) <= max(one["within"], other["within"])).all())


def _shown(value: Any) -> str:
    """A value as a message shows it; empty if it shows none."""
    if isinstance(value, str):
        return "" if DIGEST.fullmatch(value) else value[:LONGEST_VALUE]
    if isinstance(value, Mapping):
        return str(value.get("class", ""))[:LONGEST_VALUE]
    text = "none" if value is None else json.dumps(value)
    return text if len(text) <= LONGEST_VALUE else ""


def certain(describe: Callable[[], Any]) -> dict[str, Any]:
    """Describes twice, as JSON values; what differs, since it is drawn at random, is `UNKNOWN`."""
    # A trip through JSON turns tuples into lists, as they are read back.
    one, other = (json.loads(json.dumps(describe())) for _ in range(2))
    common = _common(one, other)
    return common if isinstance(common, dict) else {"class": UNKNOWN}


def _common(one: Any, other: Any) -> Any:
    if _same(one, other):
        return one
    are_objects = isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys()
    if are_objects and "near" not in one:
        return {key: _common(one[key], other[key]) for key in one}
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [_common(*pair) for pair in zip(one, other, strict=True)]
    return UNKNOWN


def near(numbers: npt.NDArray[Any], within: float) -> Any:
    """Describes numbers that may differ by up to `within`; `UNKNOWN` if one is not finite."""
    if not (np.isfinite(numbers).all() and math.isfinite(within)):
        return UNKNOWN
    return {"near": np.ravel(numbers).astype(np.float64).tolist(), "within": within}


def plain(value: Any, depth: int = 0) -> Any:
    """Describes any value, without addresses: objects by their class and what they hold.

    Functions go by their names, arrays by their digests. `random_state` is left out. `depth` is how
    many objects it lies within.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, np.generic):
        return plain(value.item(), depth)
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return artifacts.digest_array(value)
    if isinstance(value, type) or hasattr(value, "__name__"):
        return qualified_name(value)
    kind = qualified_name(type(value))
    if depth == DEEPEST:
        return kind
    inner = functools.partial(plain, depth=depth + 1)
    if isinstance(value, Mapping):
        return {str(key): inner(each) for key, each in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(map(inner, value), key=json.dumps)
    if isinstance(value, (list, tuple, range, np.ndarray)):
        return [inner(each) for each in value]
    if isinstance(value, functools.partial):
        return {"class": inner(value.func), "args": inner(value.args), **inner(value.keywords)}
    if hasattr(value, "get_params"):
        held = value.get_params(deep=False)
    else:
        held = getattr(value, "__dict__", {})
    values = {str(key): inner(each) for key, each in held.items() if key != "random_state"}
    return {"class": kind, **values}


def qualified_name(named: Any) -> str:
    """Returns `module.name` of a class or a function."""
    name = getattr(named, "__qualname__", None) or named.__name__
    return f"{getattr(named, '__module__', None) or type(named).__module__}.{name}"


NUM_INPUTS = 4  # that a model of unknown code is asked with
# Shares of the largest number. Devices round differently, most of all where they multiply in
# reduced precision.
ANSWER_TOLERANCE = 1e-3
WEIGHT_TOLERANCE = 1e-5


def architecture_of(name: Named, dataset: Dataset) -> dict[str, Any]:
    """Describes what a Keras model, as `catalogue.build` takes it, computes.

    Returns:
        JSON values: `class`, `layers` and other settings, `weights`, `first_weights`, and for code
        that no setting tells, `answers`.

    Raises:
        ValueError: as `catalogue.build`.
    """
    return certain(lambda: _architecture(catalogue.build(name, dataset), dataset))


def estimator_of(name: Named, dataset: Dataset) -> dict[str, Any]:
    """Describes what a classifier, as of `forest.fit`, computes: `class`, and each parameter."""
    return certain(lambda: plain(forest.unfitted(name, dataset)))


def _architecture(model: keras.Model, dataset: Dataset) -> dict[str, Any]:
    variables = [*model.trainable_variables, *model.non_trainable_variables]
    described: dict[str, Any] = {
        **settings_of(model),
        "weights": [f"{variable.dtype} {list(variable.shape)}" for variable in variables],
        "num_trained": len(model.trainable_variables),
        "first_weights": [_sketch(keras.ops.convert_to_numpy(each)) for each in variables],
    }
    if not _is_told(described):
        described["answers"] = _answers(model, dataset)
        if model.compiled:
            described["loss"] = _loss(model, dataset)
    return described


def settings_of(layer: keras.Layer) -> dict[str, Any]:
    """Describes a layer's or a model's settings; where it can't say them, its class.

    Weights and code of the user's own are not in it.
    """
    own = {"class": qualified_name(type(layer))}
    try:
        described = _settings(keras.saving.serialize_keras_object(layer), {})
    except Exception:  # of any kind, from a class of the user's own
        described = own
    if not isinstance(described, dict):
        described = own
    inside = getattr(layer, "layers", ())
    if inside and "layers" not in described:
        described["layers"] = [settings_of(each) for each in inside]
    return described


def _settings(value: Any, places: Mapping[str, str]) -> Any:
    """Keras' own configuration without what differs between equal models.

    That is the counter at the end of a name, and the bytecode of a lambda, which names its file.
    `places` are from the name of a layer to its place in the model.
    """
    if isinstance(value, (list, tuple)):
        return [_settings(each, places) for each in value]
    if not isinstance(value, Mapping):
        return places.get(value, value) if isinstance(value, str) else plain(value)
    if "class_name" not in value or "config" not in value:
        return {str(key): _setting(str(key), each, places) for key, each in value.items()}
    module, kind, config = value.get("module"), str(value["class_name"]), value["config"]
    is_own = kind.startswith("__") or str(module).split(".")[0] == "keras"
    described: dict[str, Any] = {"class": kind if is_own else f"{module}.{kind}"}
    if kind == "__lambda__":
        return described
    inner: Mapping[str, str] = {}
    if isinstance(config, Mapping) and isinstance(config.get("layers"), list):
        names = [each.get("name") for each in config["layers"] if isinstance(each, Mapping)]
        inner = {name: f"layer {place}" for place, name in enumerate(names) if name}
    if isinstance(config, Mapping):
        # Of a layer, its own settings; how it is joined to others stands apart.
        within = places if kind == "__keras_tensor__" else inner
        described |= {str(key): _setting(str(key), each, within) for key, each in config.items()}
    else:
        described["config"] = _settings(config, {})
    for key in ("inbound_nodes", "compile_config"):
        if value.get(key):
            described[key] = _settings(value[key], places)
    return described


def _setting(key: str, value: Any, places: Mapping[str, str]) -> Any:
    if key == "name" and isinstance(value, str):
        return re.sub(r"_\d+$", "", value)
    joins = key in ("keras_history", "input_layers", "output_layers", "layers", "args", "kwargs")
    return _settings(value, places if joins else {})


def _is_told(described: Any) -> bool:
    """Whether Keras' own classes alone stand in a description, whose settings say everything."""
    if isinstance(described, Mapping):
        kind = str(described.get("class", ""))
        return (
            "." not in kind
            and kind not in ("__lambda__", "function")
            and all(_is_told(each) for each in described.values())
        )
    return not isinstance(described, list) or all(_is_told(each) for each in described)


def _sketch(array: npt.NDArray[Any]) -> Any:
    """Size and one fixed random projection of a weight; whole numbers by their digest."""
    if array.dtype.kind in "iub":
        return artifacts.digest_array(array)
    numbers = array.astype(np.float64).ravel()
    norm = float(np.linalg.norm(numbers))
    projection = float(numbers @ np.random.default_rng(0).standard_normal(numbers.size))
    return near(np.array([norm, projection]), WEIGHT_TOLERANCE * norm)


def _loss(model: keras.Model, dataset: Dataset) -> Any:
    """What the loss of a compiled model says to fixed probabilities and labels."""
    drawn = np.random.default_rng(0).uniform(size=(NUM_INPUTS, dataset.num_classes))
    labels = np.arange(NUM_INPUTS) % dataset.num_classes
    answers = keras.ops.convert_to_tensor(drawn / drawn.sum(axis=1, keepdims=True), "float32")
    for targets in (labels, np.eye(dataset.num_classes)[labels]):
        try:
            targets = keras.ops.convert_to_tensor(targets)
            loss = float(model.compute_loss(y=targets, y_pred=answers))
        except Exception:  # a loss takes labels or one-hot targets
            continue
        return near(np.array([loss]), ANSWER_TOLERANCE * abs(loss))
    return UNKNOWN


def _answers(model: keras.Model, dataset: Dataset) -> Any:
    """What a model says to inputs out of the public value range, at weights drawn by a seed."""
    generator = np.random.default_rng(0)
    low, high = (np.asarray(values) for values in dataset.value_range)
    inputs = low + (high - low) * generator.uniform(size=(NUM_INPUTS, *dataset.input_shape))
    weights = [
        keras.ops.convert_to_tensor(
            generator.normal(0.0, max(1, math.prod(each.shape[:-1])) ** -0.5, each.shape),
            each.dtype,
        )
        for each in model.trainable_variables
    ]
    numbers: list[Any] = []
    try:
        for training in (False, True):
            logits, _, losses = model.stateless_call(
                weights,
                [each.value for each in model.non_trainable_variables],
                keras.ops.convert_to_tensor(inputs, "float32"),
                training=training,
                return_losses=True,
            )
            numbers += np.ravel(keras.ops.convert_to_numpy(logits)).tolist()
            numbers.append(sum(float(loss) for loss in losses))
    except Exception:  # of any kind, from a layer that does not take such inputs
        return UNKNOWN
    array = np.array(numbers, np.float64)
    return near(array, ANSWER_TOLERANCE * float(np.abs(array).max()))
