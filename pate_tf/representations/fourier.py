"""Random Fourier features: what a linear function of them says need not be linear in the inputs."""

from typing import Any

import numpy as np
import tensorflow as tf

from pate_tf.core.public import Pool
from pate_tf.models import encoder
from pate_tf.representations.raw import RawPart

NUM_FEATURES = 600


class FourierPart(encoder.Part):
    """One view of norm 1: cosines of random projections of scaled inputs.

    Their products approach Gaussian kernels exp(-|x - y|^2 / 2 d) of inputs with d
    features, which are scaled by the pool as `RawPart` has them (Rahimi and Recht 2007, "Random
    Features for Large-Scale Kernel Machines").
    """

    def __init__(self, pool: Pool, seed: int) -> None:
        """Takes what is publicly known of at least one input, and a seed."""
        super().__init__()
        self._raw = RawPart(pool)
        width = self._raw.widths[0] - 1  # without the constant
        random = np.random.default_rng(seed)
        # Raw numbers are half of the standardised ones.
        turn = random.normal(0.0, 2.0 / np.sqrt(width), (width, NUM_FEATURES))
        phase = random.uniform(0.0, 2.0 * np.pi, NUM_FEATURES)
        self._turn, self._phase = encoder.constants(turn, phase)
        self.widths = (NUM_FEATURES,)

    @property
    def learnt(self) -> list[Any]:
        """What inputs are scaled by, and the projections."""
        return [*self._raw.learnt, self._turn, self._phase]

    def __call__(self, inputs: tf.Tensor) -> list[tf.Tensor]:
        """Returns the view float32 `[batch, width]`."""
        turned = tf.matmul(self._raw.scaled(inputs), self._turn) + self._phase
        return [tf.math.l2_normalize(tf.cos(turned), axis=1)]
