"""Draws the noise of all mechanisms. No other module draws privacy noise.

Every draw of privacy noise is an integer that follows its distribution exactly. Floating-point
noise is never added to a count. Production code uses the operating system's entropy
(`SystemNoise`). `SeededNoise` is only for tests and demonstrations, and users are warned that its
results are not private.
"""

import abc
import functools
import math
import os
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.accounting.mechanisms.base import NoisyWinners, largest_sums
from pate_tf.core.checks import IntArray

WordArray = npt.NDArray[np.uint64]

MIN_SCALE: Final = 2.0**-30  # minimum scale in votes; smaller noise is almost always 0
# Up to this scale, the probability that count * LATTICE + noise overflows int64 is e^-1000.
MAX_SCALE: Final = 2.0**30

DRAWS_AT_ONCE: Final = 2**17


@functools.cache
def check_drawable(mechanism: Mechanism) -> None:
    """Checks that a mechanism draws noise, and that its noise can be drawn exactly.

    Raises:
        ValueError: if the mechanism draws no noise, or a scale is not from 2**-30 to 2**30 votes.
    """
    if "draw" in mechanism.lacks and not mechanism.releases_feature_sums:
        raise ValueError(
            f"mechanism must draw noise, but {mechanism.name} does not: {mechanism.lacks['draw']}"
        )
    for name, scale in mechanism.noise_scales.items():
        if not MIN_SCALE <= scale <= MAX_SCALE:
            raise ValueError(f"{name} must be from 2**-30 to 2**30 votes, got {scale}")


class NoiseSource(abc.ABC):
    """A source of random draws, all computed from one stream of random 64-bit words.

    A subclass defines the stream, and draws from the Laplace and Gaussian distributions on
    integers.

    Attributes:
        is_secure: whether the stream is unpredictable. The ledger records this value with every
            charge.
        noisy_winners: function that adds noise to vote counts and returns the winning classes; see
            `NoiseDraws`.
    """

    is_secure: ClassVar[bool]
    noisy_winners: NoisyWinners = staticmethod(largest_sums)

    @abc.abstractmethod
    def words(self, size: int) -> WordArray:
        """Returns independent uniform 64-bit words, uint64 `[size]`."""

    @abc.abstractmethod
    def laplace_integers(self, scale: float, size: int) -> IntArray:
        """Draws integers `[size]`; the probability of k is proportional to e^(-|k|/scale)."""

    @abc.abstractmethod
    def gaussian_integers(self, scale: float, size: int) -> IntArray:
        """Draws integers `[size]`; the probability of k is proportional to e^(-k^2/(2 scale^2))."""

    def discrete_gaussian(self, sigma: float) -> int:
        """Draws one integer; the probability of k is proportional to e^(-k^2/(2 sigma^2)).

        Raises:
            ValueError: if sigma is outside the range from 2**-30 to 2**30.
        """
        if not MIN_SCALE <= sigma <= MAX_SCALE:
            raise ValueError(f"sigma must be from 2**-30 to 2**30, got {sigma}")
        return int(self.gaussian_integers(sigma, 1)[0])

    def uniform_integers(self, bounds: IntArray) -> IntArray:
        """Draws exactly uniform integers from 0 to `bounds` - 1, one for each entry of `bounds`."""
        limits = bounds.astype(np.uint64)
        # Words below 2**64 mod bound are drawn again; all other words have uniform remainders.
        uneven = (np.uint64(0) - limits) % limits
        words = self.words(limits.size)
        while (redraw := np.flatnonzero(words < uneven)).size:
            words[redraw] = self.words(redraw.size)
        return (words % limits).astype(np.int64)

    def random_orders(self, num_queries: int, num_classes: int) -> IntArray:
        """Draws a uniformly random order of the classes for each query.

        The result is a permutation in each row, `[num_queries, num_classes]`, exactly uniform.
        """
        keys = self.words(num_queries * num_classes).reshape(num_queries, num_classes)
        while True:
            # Equal keys would favor low indices, so rows with equal keys are drawn again. If all
            # keys of a row differ, every order is equally likely.
            ordered = np.sort(keys, axis=1)
            equal = np.flatnonzero((ordered[:, 1:] == ordered[:, :-1]).any(axis=1))
            if not equal.size:
                return np.argsort(keys, axis=1)
            keys[equal] = self.words(equal.size * num_classes).reshape(-1, num_classes)


class SystemNoise(NoiseSource):
    """Noise from the operating system's entropy, which all real releases use.

    OpenDP's exact samplers draw the integer Laplace and Gaussian variables (Canonne, Kamath and
    Steinke 2020). The samplers use OpenSSL's cryptographic generator, which the operating system
    seeds, and which is seeded again in every forked process.
    """

    is_secure = True

    def words(self, size: int) -> WordArray:
        """Returns uniform words from `os.urandom`, uint64 `[size]`."""
        return np.frombuffer(os.urandom(8 * size), np.uint64).copy()

    def _draw_with_opendp(self, maker: str, scale: float, size: int) -> IntArray:
        # OpenDP is imported only here, so that accounting does not import it. Its module
        # `opendp.prelude` would also import scikit-learn.
        from opendp import domains, measurements, metrics, mod

        mod.enable_features("contrib")
        laplace = maker == "make_laplace"
        metric = metrics.l1_distance(T="i64") if laplace else metrics.l2_distance(T="f64")
        domain = domains.vector_domain(domains.atom_domain(T="i64"))
        add_noise = getattr(measurements, maker)(domain, metric, scale=scale)
        drawn = np.empty(size, np.int64)
        for start in range(0, size, DRAWS_AT_ONCE):
            stop = min(start + DRAWS_AT_ONCE, size)
            drawn[start:stop] = add_noise([0] * (stop - start))
        return drawn

    laplace_integers = functools.partialmethod(_draw_with_opendp, "make_laplace")
    gaussian_integers = functools.partialmethod(_draw_with_opendp, "make_gaussian")


class SeededNoise(NoiseSource):
    """Predictable noise for tests and demonstrations: anyone with the seed can subtract it.

    The integer distributions are computed in floating point and are correct up to rounding.

    Attributes:
        seed: the seed, at least 0.
    """

    is_secure = False

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._generator = np.random.default_rng(seed)

    def words(self, size: int) -> WordArray:
        """Returns words from the seeded generator, uint64 `[size]`."""
        return self._generator.integers(0, 2**64, size, np.uint64)

    def laplace_integers(self, scale: float, size: int) -> IntArray:
        """Draws discrete Laplace variables, `[size]`, as differences of geometric variables."""
        stop = -math.expm1(-1.0 / scale)
        return self._generator.geometric(stop, size) - self._generator.geometric(stop, size)

    def gaussian_integers(self, scale: float, size: int) -> IntArray:
        """Draws discrete Gaussian variables, `[size]`.

        The method is rejection sampling from the discrete Laplace distribution (Canonne, Kamath and
        Steinke 2020, Algorithm 3).
        """
        proposal_scale = math.floor(scale) + 1.0
        drawn = np.empty(0, np.int64)
        while drawn.size < size:
            proposed = self.laplace_integers(proposal_scale, 2 * size + 16)
            excess = np.abs(proposed) - scale**2 / proposal_scale
            accepted = self._generator.random(proposed.size) < np.exp(-((excess / scale) ** 2) / 2)
            drawn = np.concatenate([drawn, proposed[accepted]])
        return drawn[:size]
