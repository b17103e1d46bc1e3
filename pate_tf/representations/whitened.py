"""Features whose directions weigh more alike: what a linear model learns in few noisy steps.

Features differ far more in some directions than in others, and gradient descent learns the others
last. Noise allows few steps. Whitening altogether would make all directions weigh the same, those
that hold nothing but accidents of the pool among them, and each direction gets noise. Half way
there, in as few directions, is what helped most on Fashion-MNIST.
"""

from typing import Any

import numpy as np
import tensorflow as tf

from pate_tf import artifacts
from pate_tf.models.encoder import Encoder, Part
from pate_tf.values.public import Pool

MOST_DIRECTIONS = 128
POWER = 0.5  # of the deviation in each direction that features are divided by; 1 whitens
LEAST = 1e-4  # of the largest variance; less counts as so much


def whitened(encoder: Encoder, pool: Pool) -> Encoder:
    """Returns an encoder's features, partly whitened by what they are like on a public pool.

    Args:
      encoder: learnt from public values.
      pool: public inputs, at least two.
    """
    description = {
        "whitened": encoder.description,
        "power": POWER,
        "directions": MOST_DIRECTIONS,
        "pool": artifacts.digest_array(pool.inputs),
    }
    return Encoder(encoder.dataset, [WhitenedPart(encoder, pool)], description)


class WhitenedPart(Part):
    """One view of length 1: features along the pool's foremost directions, weighed."""

    def __init__(self, encoder: Encoder, pool: Pool) -> None:
        """Takes mean and directions from a pool's features.

        Args:
          encoder: of raw inputs.
          pool: public inputs, at least two.
        """
        super().__init__()
        self._encoder = encoder
        features = encoder.features(pool.inputs).astype(np.float64)
        mean = features.mean(axis=0)
        variances, directions = np.linalg.eigh(np.cov(features - mean, rowvar=False))  # ascending
        variances, directions = variances[-MOST_DIRECTIONS:], directions[:, -MOST_DIRECTIONS:]
        least = max(LEAST * float(variances[-1]), float(np.finfo(np.float32).tiny))
        weights = np.maximum(variances, least) ** (-POWER / 2.0)
        self._mean, self._turn = (
            tf.Variable(values, trainable=False, dtype=tf.float32)
            for values in (mean, directions * weights)
        )
        self.widths = (len(variances),)

    @property
    def learnt(self) -> list[Any]:
        """What the encoder learnt, mean and directions."""
        return [*self._encoder.learnt, self._mean, self._turn]

    def __call__(self, inputs: tf.Tensor) -> list[tf.Tensor]:
        """Returns the view float32 `[batch, width]`."""
        turned = tf.matmul(self._encoder(inputs) - self._mean, self._turn)
        return [tf.math.l2_normalize(turned, axis=1)]
