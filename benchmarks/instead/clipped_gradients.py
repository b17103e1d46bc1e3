"""Sums of per-example gradients, each clipped, of a Keras network.

The gradient of an example with respect to the kernel of a dense layer or a convolution is a product
of what enters the layer and of the loss' derivative by what leaves it, so that lengths of all
examples are known after one pass backward, and the sum of clipped gradients is one more product.
tensorflow-privacy, whose optimizers would do the same, pins NumPy 1 and Keras 2;
`tf.vectorized_map` of single examples, as in `pate_tf.selective_sgd`, takes many times as long for
convolutions.
"""

import keras
import tensorflow as tf

layers = keras.layers


def check_layers(model: keras.Sequential) -> None:
    """Checks that gradients of all parameters can be taken example by example.

    Raises:
        ValueError: if a layer with parameters is neither Dense nor Conv2D, or has an activation.
    """
    for layer in model.layers:
        if not layer.weights:
            continue
        if not isinstance(layer, layers.Dense | layers.Conv2D) or not layer.use_bias:
            raise ValueError(f"model: expected Dense and Conv2D with bias, got {layer.name}")
        if layer.activation is not keras.activations.linear:
            raise ValueError(f"model: expected activations as layers, got one in {layer.name}")


def _rows(layer: keras.layers.Layer, entering: tf.Tensor) -> tf.Tensor:
    """What a layer's kernel is multiplied with, `[batch, num_places, kernel_size]`."""
    if isinstance(layer, layers.Dense):
        return entering[:, tf.newaxis]
    height, width = layer.kernel_size
    patches = tf.image.extract_patches(
        entering,
        sizes=[1, height, width, 1],
        strides=[1, *layer.strides, 1],
        rates=[1, 1, 1, 1],
        padding=layer.padding.upper(),
    )
    return tf.reshape(patches, [tf.shape(entering)[0], -1, patches.shape[-1]])


def clipped_sum(
    model: keras.Sequential, inputs: tf.Tensor, labels: tf.Tensor, clip: float
) -> list[tf.Tensor]:
    """Returns the sum over examples of gradients of the cross-entropy clipped to a length.

    Args:
        model: from inputs to logits, as `check_layers` wants it.
        inputs: float32 `[batch, *input_shape]`.
        labels: `[batch]`.
        clip: the most that one example's gradient, of all parameters, may be long.

    Returns:
        One tensor for each of `model.trainable_variables`, in their order.
    """
    seen, taps = [], []
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        passing = inputs
        for layer in model.layers:
            entering, passing = passing, layer(passing)
            if layer.weights:
                tap = tf.zeros_like(passing)
                tape.watch(tap)
                passing = passing + tap
                seen.append((layer, entering))
                taps.append(tap)
        loss = tf.reduce_sum(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=passing)
        )
    batch = tf.shape(inputs)[0]
    squares, factors = tf.zeros([batch]), []
    for (layer, entering), derivative in zip(seen, tape.gradient(loss, taps), strict=True):
        rows = _rows(layer, entering)
        leaving = tf.reshape(derivative, [batch, -1, derivative.shape[-1]])
        if isinstance(layer, layers.Dense):
            kernel = tf.reduce_sum(rows**2, [1, 2]) * tf.reduce_sum(leaving**2, [1, 2])
        else:
            kernel = tf.reduce_sum(tf.matmul(rows, leaving, transpose_a=True) ** 2, [1, 2])
        squares += kernel + tf.reduce_sum(tf.reduce_sum(leaving, 1) ** 2, 1)
        factors.append((layer, rows, leaving))
    scale = clip / tf.maximum(tf.sqrt(squares), clip)
    sums = []
    for layer, rows, leaving in factors:
        scaled = tf.reshape(leaving * scale[:, tf.newaxis, tf.newaxis], [-1, leaving.shape[-1]])
        flat = tf.reshape(rows, [-1, rows.shape[-1]])
        sums.append(tf.reshape(tf.matmul(flat, scaled, transpose_a=True), layer.kernel.shape))
        sums.append(tf.reduce_sum(scaled, 0))
    return sums
