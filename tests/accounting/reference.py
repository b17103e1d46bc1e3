"""Slow reference versions of the accounting, written from docs/proofs and the papers, one query at
a time.

The plain versions use floats and loops (the benchmark also compares with them). The other versions
use 50 digits. `continuous_laplace` is the law of the paper's Equation 1. The golden values of the
exact moments were computed for it; the library never runs it.
"""

import itertools
import math
from collections.abc import Callable, Iterator

import mpmath as mp
import numpy as np

from pate_tf.accounting.noisy_max_costs import FloatArray, IntArray, Quadrature

mp.mp.dps = 50

Histogram = tuple[int, ...]


def sorted_histograms(votes: int, classes: int, largest: int | None = None) -> Iterator[Histogram]:
    """Yields every histogram in descending order."""
    largest = votes if largest is None else largest
    if classes == 0:
        if votes == 0:
            yield ()
        return
    for first in range(min(votes, largest), -1, -1):
        for rest in sorted_histograms(votes - first, classes - 1, first):
            yield (first, *rest)


def neighbours(histogram: Histogram) -> Iterator[Histogram]:
    for lose, gain in itertools.permutations(range(len(histogram)), 2):
        if histogram[lose]:
            moved = list(histogram)
            moved[lose] -= 1
            moved[gain] += 1
            yield tuple(moved)


# ---- pairwise tails ---------------------------------------------------------------------------


def mp_laplace_tail(gap: int, gamma: float) -> mp.mpf:
    x = mp.mpf(gamma) * abs(gap)
    tail = (2 + x) * mp.exp(-x) / 4
    return tail if gap >= 0 else 1 - tail


def mp_discrete_laplace_tail(gap: int, gamma: float) -> mp.mpf:
    """Returns the tail by summing the difference law (Proposition D1) left of 400 / gamma."""
    p = mp.exp(-mp.mpf(gamma))
    scale = ((1 - p) / (1 + p)) ** 2
    total = mp.mpf(0)
    for k in range(gap, max(gap, 0) + int(60 / gamma) + 10):
        total += scale * p ** abs(k) * (abs(k) + (1 + p**2) / (1 - p**2))
    return total


# ---- costs ------------------------------------------------------------------------------------


def mp_cap(gamma: float, moment: float) -> mp.mpf:
    growth, power = mp.exp(2 * mp.mpf(gamma)), mp.mpf(moment)
    return mp.log((growth ** (power + 1) + growth**-power) / (growth + 1))


def mp_cost(bound: str, gamma: float, q: float, u: float, moment: float) -> mp.mpf:
    """Returns the cost by docs/proofs/theory.md, Theorems T0 to T3, formula by formula, without
    rearrangement.
    """
    g, power, q, u = mp.mpf(gamma), mp.mpf(moment), mp.mpf(q), mp.mpf(u)
    growth = mp.exp(2 * g)
    applies = q <= 1 / (growth + 1)

    def f1(z: mp.mpf) -> mp.mpf:
        return (1 - z) ** (power + 1) * (1 - z / growth) ** -power + z * growth**power

    def f2(z: mp.mpf) -> mp.mpf:
        return (1 - z) ** (power + 1) * (1 - growth * z) ** -power + z * growth**-power

    if bound == "paper":
        cap = min(2 * g**2 * power * (power + 1), 2 * g * power)
        if not applies:
            return cap
        return min(cap, mp.log((1 - q) * ((1 - q) / (1 - growth * q)) ** power + q * growth**power))
    cap = mp_cap(gamma, moment)
    if not applies:
        return cap
    if bound == "tight":
        return min(cap, mp.log(max(f1(q), f2(q))))
    if bound == "two_sided":
        return min(cap, mp.log(max(f1(growth * q), f2(q))))
    rest = q - u
    w = min(u, rest)
    thetas = []
    for masses in ((0, 0, q), (u, 0, rest), (0, u, rest), (u, w, rest - w), (w, u, rest - w)):
        for ratios in itertools.product((1 / growth, 1), (1, growth), (mp.exp(-g), mp.exp(g))):
            z = sum(masses)
            s = sum(m * r for m, r in zip(masses, ratios, strict=True))
            forward = (1 - z) ** (power + 1) * (1 - s) ** -power
            forward += sum(m * r**-power for m, r in zip(masses, ratios, strict=True))
            reverse = (1 - s) ** (power + 1) * (1 - z) ** -power
            reverse += sum(m * r ** (power + 1) for m, r in zip(masses, ratios, strict=True))
            thetas += [forward, reverse]
    return min(cap, mp.log(max(thetas)))


def mp_gaussian_cost(sigma: float, q: float, moment: float) -> mp.mpf:
    """Returns the cost of arXiv 1802.08908 as the issue states it, times the moment."""
    sigma, q, order = mp.mpf(sigma), mp.mpf(q), mp.mpf(moment) + 1
    cap = moment * order / sigma**2
    if q >= 1:
        return cap
    mu_2 = sigma * mp.sqrt(mp.log(1 / q))
    mu_1 = mu_2 + 1
    eps_1, eps_2 = mu_1 / sigma**2, mu_2 / sigma**2
    if not (mu_2 > 1 and order <= mu_1 and mp.log(1 / q) > eps_2):
        return cap
    limit = mp.exp((mu_2 - 1) * eps_2) / (mu_1 / (mu_1 - 1) * mu_2 / (mu_2 - 1)) ** mu_2
    if q > limit:
        return cap
    a = (1 - q) / (1 - (q * mp.exp(eps_2)) ** ((mu_2 - 1) / mu_2))
    b = mp.exp(eps_1) * q ** (-1 / (mu_1 - 1))
    return min(cap, mp.log((1 - q) * a**moment + q * b**moment))


# ---- winning probabilities --------------------------------------------------------------------


def mp_discrete_laplace_law(counts: Histogram, gamma: float) -> list[mp.mpf]:
    """Returns the law under random priority by summing over every set of classes that may tie with
    the winner.
    """
    p = mp.exp(-mp.mpf(gamma))

    def mass(k: int) -> mp.mpf:
        return (1 - p) / (1 + p) * p ** abs(k)

    def below(k: int) -> mp.mpf:
        return p**-k * p / (1 + p) if k < 0 else 1 - p**k / (1 + p)

    reach = int(50 / gamma) + 3
    law = []
    for j, own in enumerate(counts):
        others = [n for k, n in enumerate(counts) if k != j]
        total = mp.mpf(0)
        for v in range(min(counts) - reach, max(counts) + reach):
            ways = [mp.mpf(1)]
            for n in others:
                tie, under = mass(v - n), below(v - n)
                ways = [
                    (ways[i] * under if i < len(ways) else 0) + (ways[i - 1] * tie if i else 0)
                    for i in range(len(ways) + 1)
                ]
            total += mass(v - own) * sum(way / (i + 1) for i, way in enumerate(ways))
        law.append(total)
    return law


def lowest_index_law(counts: Histogram, gamma: float) -> list[float]:
    """Returns the law of discrete Laplace noise with ties broken toward the lowest index, by plain
    summation.
    """
    p, reach = math.exp(-gamma), int(60 / gamma) + 3
    v = np.arange(min(counts) - reach, max(counts) + reach)

    def mass(k: IntArray) -> FloatArray:
        return (1 - p) / (1 + p) * p ** np.abs(k)

    def upto(k: IntArray) -> FloatArray:
        return np.where(k < 0, p ** -np.minimum(k, 0) / (1 + p), 1 - p ** (np.abs(k) + 1) / (1 + p))

    law = []
    for j, own in enumerate(counts):
        term = mass(v - own)
        for k, n in enumerate(counts):
            if k != j:
                term = term * upto(v - n - (1 if k < j else 0))
        law.append(float(np.sum(term)))
    return law


def mp_gaussian_law(counts: Histogram, sigma: float) -> list[mp.mpf]:
    low, high = min(counts) - 12 * sigma, max(counts) + 12 * sigma
    edges = list(np.linspace(low, high, 25))

    def winning(j: int) -> Callable[[mp.mpf], mp.mpf]:
        def density(v: mp.mpf) -> mp.mpf:
            term = mp.npdf(v, counts[j], sigma)
            for k, n in enumerate(counts):
                if k != j:
                    term *= mp.ncdf(v, n, sigma)
            return term

        return density

    with mp.workdps(45):
        return [mp.quad(winning(j), edges) for j in range(len(counts))]


# The law of one label, by mechanism name.
TWINS: dict[str, Callable[..., list[mp.mpf]]] = {
    "laplace_noisy_max": lambda one, counts: mp_discrete_laplace_law(counts, one.gamma),
    "gaussian_noisy_max": lambda one, counts: mp_gaussian_law(counts, one.sigma),
    "gaussian_histogram": lambda one, counts: mp_gaussian_law(counts, one.sigma),
    "confident_gaussian_noisy_max": lambda one, counts: mp_gaussian_law(counts, one.sigma),
}


def mp_alphas(
    law: Callable[[Histogram], list[mp.mpf]], counts: Histogram, moment: float
) -> tuple[mp.mpf, mp.mpf]:
    """Returns the forward and reverse alpha at the counts: every neighbor, no grouping, no
    rearrangement.
    """
    here, power = law(counts), mp.mpf(moment)
    forward, reverse = mp.mpf(0), mp.mpf(0)
    for neighbour in neighbours(counts):
        there = law(neighbour)
        pairs = list(zip(here, there, strict=True))
        forward = max(forward, mp.log(sum(p * (p / r) ** power for p, r in pairs)))
        reverse = max(reverse, mp.log(sum(r * (r / p) ** power for p, r in pairs)))
    return forward, reverse


def continuous_laplace(gamma: float, values: IntArray, num_classes: int, total: int) -> Quadrature:
    """Returns the law of Equation 1 of the paper: Laplace noise of scale 1 / gamma."""
    points, weights = np.polynomial.legendre.leggauss(40)
    longest = 6.0 / (gamma * max(1.0, num_classes / 4.0))
    all_points, all_weights = [], []
    for start, stop in itertools.pairwise(values):
        pieces = math.ceil((stop - start) / longest)
        edges = np.linspace(start, stop, pieces + 1)
        for left, right in itertools.pairwise(edges):
            all_points.append(left + (points + 1.0) * (right - left) / 2.0)
            all_weights.append(weights * (right - left) / 2.0)
    falls, fall_weights = np.polynomial.legendre.leggauss(num_classes // 2 + 2)
    falls, fall_weights = (falls + 1.0) / 2.0, fall_weights / 2.0
    all_points.append(values[-1] - np.log(falls) / gamma)
    all_weights.append(fall_weights / (gamma * falls))
    below = math.exp(-gamma * (total - num_classes * values[0])) / 2.0**num_classes

    def log_law(distances: FloatArray, priority: float) -> tuple[FloatArray, FloatArray]:
        tail = np.exp(-gamma * np.abs(distances)) / 2.0
        log_cdf = np.where(distances < 0, np.log(tail), np.log1p(-tail))
        return math.log(gamma / 2.0) - gamma * np.abs(distances), log_cdf

    return Quadrature(
        np.concatenate(all_points),
        np.log(np.concatenate(all_weights)),
        below / num_classes,
        (np.full(1, 0.5), np.ones(1)),
        log_law,
    )


def honest_law(scale, honest, reach):
    """Returns the law of the sum of the honest aggregators' noise, in lattice steps around 0."""
    support = np.arange(-reach, reach + 1)
    one = np.exp(-(support**2) / (2.0 * scale**2))
    one /= one.sum()
    total = np.ones(1)
    for _ in range(honest):
        total = np.convolve(total, one)
    return total
