"""Keras models from files."""

import pathlib
from typing import Any

import keras


def load_keras_file(path: pathlib.Path) -> Any:
    """Returns the model of a `.keras` file; one that would run code of its own is refused.

    Raises:
      ValueError: if there is no such model.
    """
    try:
        return keras.saving.load_model(path, compile=False, safe_mode=True)
    except Exception as error:  # Keras and zipfile each raise their own kinds
        raise ValueError(
            f"{path}: expected a Keras model that needs no code of its own, got "
            f"{type(error).__name__}"
        ) from error
