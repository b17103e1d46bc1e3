"""A user's own public encoder: a Keras model that knows nothing of private records."""

from typing import Any

import keras
import tensorflow as tf

from pate_tf.data.named_function import Named, import_function, name_of
from pate_tf.models import encoder
from pate_tf.values.dataset import Dataset


class OwnPart(encoder.Part):
    """One view: the outputs of a Keras model, flattened and divided by their length."""

    def __init__(self, name: Named, dataset: Dataset) -> None:
        """Builds the model.

        Args:
          name: a function, itself or as `module:function`, from a `Dataset` to a Keras model that
            takes raw inputs. Its weights are the user's to vouch for: none may depend on private
            records.
          dataset: the data the model is for.

        Raises:
          ValueError: if there is no such function, or the model does not take such inputs.
        """
        super().__init__()
        model = import_function(name, flag="representation")(dataset)
        if not isinstance(model, keras.Model) or not hasattr(model, "output_shape"):
            raise ValueError(
                f"representation {name_of(name)}: expected a Keras model that knows its input, got "
                f"{type(model).__name__}"
            )
        expected = (None, *dataset.input_shape)
        width = tf.TensorShape(model.output_shape[1:]).num_elements()
        if tuple(model.input_shape) != expected or not width:
            raise ValueError(
                f"representation {name_of(name)}: expected {list(expected)} to features of one "
                f"number, got {list(model.input_shape)} to {list(model.output_shape)}"
            )
        self.model = model
        self.widths = (int(width),)

    @property
    def learnt(self) -> list[Any]:
        """The model's weights."""
        return list(self.model.variables)

    def __call__(self, inputs: tf.Tensor) -> list[tf.Tensor]:
        """Returns the view float32 `[batch, width]`."""
        flat = tf.reshape(self.model(inputs, training=False), [-1, self.widths[0]])
        return [tf.math.l2_normalize(tf.cast(flat, tf.float32), axis=1)]
