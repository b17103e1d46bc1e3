"""Slow reference versions of smooth_sensitivity.py and release.py, straight from
docs/proofs/theory.md.

They use plain loops over plain tuples, in mpmath or by enumerating whole universes of vote tables.
They share no code with the library.
"""

import functools
from collections.abc import Callable, Iterator

import mpmath as mp
from reference import mp_cost

Histogram = tuple[int, ...]
Table = tuple[Histogram, ...]  # one histogram per query; see `tables`
Tail = Callable[[int], mp.mpf]
DIGITS = 50


# ---- tails F(D), docs/proofs/theory.md, Lemma 0 --------------------------------------------------


def continuous_laplace_tail(gamma: float) -> Tail:
    def tail(gap: int) -> mp.mpf:
        x = mp.mpf(gamma) * abs(gap)
        half = (2 + x) * mp.exp(-x) / 4
        return half if gap >= 0 else 1 - half

    return tail


def discrete_laplace_tail(gamma: float) -> Tail:
    p = mp.exp(-mp.mpf(gamma))

    def upper(gap: int) -> mp.mpf:
        return p**gap * (1 - p) / (1 + p) ** 2 * (gap + (1 + p + 2 * p**2) / (1 - p**2))

    return lambda gap: upper(gap) if gap >= 0 else 1 - upper(1 - gap)


def gaussian_tail(sigma: float) -> Tail:
    return lambda gap: mp.erfc(mp.mpf(gap) / (2 * mp.mpf(sigma))) / 2


# ---- costs of one query --------------------------------------------------------------------------


def union_bound(counts: Histogram, tail: Tail) -> tuple[mp.mpf, mp.mpf]:
    """Returns (q, u): the union bound and its largest term."""
    first, *others = sorted(counts, reverse=True)
    terms = [tail(first - other) for other in others]
    return mp.fsum(terms), max(terms, default=mp.mpf(0))


def gaussian_forward_cost(q: mp.mpf, moment: float, sigma: float) -> mp.mpf:
    """Returns the forward formula of arXiv 1802.08908, times the moment, with its conditions."""
    order, s = mp.mpf(moment) + 1, mp.mpf(sigma)
    cap = mp.mpf(moment) * order / s**2
    if not 0 < q < 1:
        return cap
    mu_2 = s * mp.sqrt(mp.log(1 / q))
    mu_1 = mu_2 + 1
    eps_1, eps_2 = mu_1 / s**2, mu_2 / s**2
    if mu_2 <= 1 or order > mu_1 or mp.log(1 / q) <= eps_2:
        return cap
    limit = mp.exp((mu_2 - 1) * eps_2) / ((mu_1 / (mu_1 - 1)) * (mu_2 / (mu_2 - 1))) ** mu_2
    if q > limit:
        return cap
    big_a = (1 - q) / (1 - (q * mp.exp(eps_2)) ** ((mu_2 - 1) / mu_2))
    big_b = mp.exp(eps_1) * q ** (-1 / (mu_1 - 1))
    return min(cap, mp.log((1 - q) * big_a ** (order - 1) + q * big_b ** (order - 1)))


# ---- balls of vote changes, docs/proofs/theory.md, Lemma 2 ---------------------------------------


def histograms(num_teachers: int, num_classes: int) -> Iterator[Histogram]:
    if num_classes == 1:
        yield (num_teachers,)
        return
    for first in range(num_teachers + 1):
        for rest in histograms(num_teachers - first, num_classes - 1):
            yield (first, *rest)


def ball_maximum(counts: Histogram, steps: int, tail: Tail) -> mp.mpf:
    """Returns the maximum of Lemma 2."""
    first, *others = sorted(counts, reverse=True)
    if not others:
        return mp.mpf(0)
    if first - others[0] < 2 * steps:
        return mp.mpf(1)
    near = tail(first - others[0] - 2 * steps)
    return near + mp.fsum(tail(first - other - steps) for other in others[1:])


def ball_minimum(counts: Histogram, steps: int, tail: Tail) -> mp.mpf:
    """Returns the minimum of Lemma 2, by one greedy step after another."""
    first, *others = sorted(counts, reverse=True)
    for _ in range(steps):
        largest = max(range(len(others)), key=others.__getitem__, default=None)
        if largest is None or not others[largest]:
            break
        others[largest] -= 1
        first += 1
    return mp.fsum(tail(first - other) for other in others)


def flat_from(bound: str, moment: float, gamma: float) -> mp.mpf:
    """Returns q0 of Lemma 3, by bisection."""
    big_e = mp.exp(2 * mp.mpf(gamma))
    cap = mp_cost(bound, gamma, 1, 1, moment)
    low, high = mp.mpf(0), 1 / (big_e + 1)
    for _ in range(150):
        middle = (low + high) / 2
        if mp_cost(bound, gamma, middle, middle, moment) >= cap:
            high = middle
        else:
            low = middle
    return low


def local_sensitivity_bound(
    counts: Histogram, steps: int, bound: str, moment: float, gamma: float, tail: Tail
) -> mp.mpf:
    """Returns the bound (A1)."""
    big_e = mp.exp(2 * mp.mpf(gamma))
    high = ball_maximum(counts, steps + 1, tail)
    low = max(
        min(flat_from_cached(bound, moment, gamma), high) / big_e,
        ball_minimum(counts, steps + 1, tail),
    )
    costs = [mp_cost(bound, gamma, q, q, moment) for q in (high, low)]
    return max(costs[0] - costs[1], mp.mpf(0))


flat_from_cached = functools.cache(flat_from)


def log_smooth_cost(
    table: Table, eta: float, cost_at: Callable[[Histogram, int], mp.mpf]
) -> tuple[mp.mpf, int]:
    """Returns max_k e^{-eta k} K_k of (B2) without its floor, and the maximizing k."""
    best, where = mp.mpf(-1), -1
    for steps in range(sum(table[0]) + 1):
        value = mp.exp(-mp.mpf(eta) * steps) * mp.fsum(cost_at(row, steps) for row in table)
        if value > best:
            best, where = value, steps
    return best, where


# ---- Gaussian noise of two scales, docs/proofs/theory.md, Theorem B1 -----------------------------


def gaussian_divergence(order: float, mean: float, scale: float, mean_2: float, scale_2: float):
    """Returns the Renyi divergence of N(mean, scale^2) from N(mean_2, scale_2^2) by integration."""

    def integrand(x: mp.mpf) -> mp.mpf:
        log_p = -((x - mean) ** 2) / (2 * scale**2) - mp.log(scale)
        log_q = -((x - mean_2) ** 2) / (2 * scale_2**2) - mp.log(scale_2)
        return mp.exp(order * log_p + (1 - order) * log_q)

    mixed = order / scale**2 + (1 - order) / scale_2**2
    centre = (order * mean / scale**2 + (1 - order) * mean_2 / scale_2**2) / mixed
    width = 1 / mp.sqrt(mixed)
    points = [centre + width * k for k in range(-14, 15, 2)]
    total = mp.quad(integrand, points) / mp.sqrt(2 * mp.pi)
    return mp.log(total) / (order - 1)
