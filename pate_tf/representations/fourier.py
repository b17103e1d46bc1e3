"""Random Fourier features: what a linear function of them says need not be linear in the inputs."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from pate_tf.core.public import Pool
from pate_tf.models import encoder
from pate_tf.representations import Kind, register
from pate_tf.representations.raw import RawPart

# Of a distance. Chosen on the pools of the first data sets of benchmarks/own_data.py, where 300
# were up to a point worse and 1,200 up to two points better, for twice the time.
NUM_FEATURES = 600


class FourierPart(encoder.Part):
    """One view of norm 1: cosines of random projections of scaled inputs.

    Their products approach the mean of Gaussian kernels exp(-|x - y|^2 / 2 d a^2) of inputs with d
    features, which are scaled by the pool as `RawPart` has them (Rahimi and Recht 2007, "Random
    Features for Large-Scale Kernel Machines"). Each distance a has `NUM_FEATURES`.
    """

    def __init__(self, pool: Pool, seed: int, distances: Sequence[float]) -> None:
        """Takes what is publicly known of at least one input, a seed and distances."""
        super().__init__()
        self._raw = RawPart(pool)
        width = self._raw.widths[0] - 1  # without the constant
        random = np.random.default_rng(seed)
        # Raw numbers are half of the standardised ones.
        deviations = 2.0 / np.sqrt(width) / np.repeat(distances, NUM_FEATURES)
        turn = random.normal(0.0, 1.0, (width, len(deviations))) * deviations
        phase = random.uniform(0.0, 2.0 * np.pi, len(deviations))
        self._turn, self._phase = encoder.constants(turn, phase)
        self.widths = (len(deviations),)

    @property
    def learnt(self) -> list[Any]:
        """What inputs are scaled by, and the projections."""
        return [*self._raw.learnt, self._turn, self._phase]

    def __call__(self, inputs: tf.Tensor) -> list[tf.Tensor]:
        """Returns the view float32 `[batch, width]`."""
        turned = tf.matmul(self._raw.scaled(inputs), self._turn) + self._phase
        return [tf.math.l2_normalize(tf.cos(turned), axis=1)]


register(Kind(name="fourier", parts=lambda pool, seed: [FourierPart(pool, seed, [1.0])]))
register(Kind(name="fourier_fine", parts=lambda pool, seed: [FourierPart(pool, seed, [0.5, 1.0])]))
