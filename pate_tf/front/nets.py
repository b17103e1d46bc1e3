"""What may be given as a teacher's model: a function that makes a new one, or a name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import keras

from pate_tf.values.dataset import Dataset

Net = Callable[[Dataset], Any]


def check_net(net: Any) -> None:
    """Raises ValueError unless `net` is None, a function of one argument, or a name."""
    if net is not None and (
        not (callable(net) or isinstance(net, str)) or isinstance(net, (type, keras.Model))
    ):
        raise ValueError(
            f"net: expected a function of the data set that returns a new model at each call, "
            f"or a name, got {type(net).__name__}"
        )
    if callable(net):
        _check_signature(net)


def _check_signature(net: Callable[..., Any]) -> None:
    try:
        signature = inspect.signature(net)
    except ValueError:  # compiled functions do not say
        return
    try:
        signature.bind(None)
    except TypeError as error:
        raise ValueError(
            f"net: expected a function of one argument, the data set, got one of {signature}"
        ) from error
