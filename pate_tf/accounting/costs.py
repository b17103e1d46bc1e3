"""Cost formulas of one query: alpha(l) from the probability that the label is not the plurality.

docs/theory.md, Theorems T0 to T3, of which T0 is that of Papernot et al. 2017, and Proposition D5,
the Gaussian formula of arXiv 1802.08908. Mechanisms name them; `pate_tf.accounting.moments` applies
them to counts.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from pate_tf.accounting.divergences import FloatArray, excess, exp_remainder


def paper_alpha(gamma: float, moments: FloatArray) -> FloatArray:
    """Returns min(2 gamma^2 l (l+1), 2 gamma l), [num_moments]: the PATE paper's (Theorem T0)."""
    return np.minimum(2.0 * gamma**2 * moments * (moments + 1.0), 2.0 * gamma * moments)


def _paper_costs(gamma: float, q: FloatArray, moments: FloatArray) -> FloatArray:
    """Theorem T0: ln[(1-q) ((1-q)/(1-Eq))^l + q E^l], as a sum of two positive excesses."""
    rise = np.expm1(2.0 * gamma)
    ratio = np.log1p(rise * q / (1.0 - (1.0 + rise) * q))
    return np.asarray(
        np.log1p(
            (1.0 - q)[:, None] * np.expm1(np.outer(ratio, moments))
            + _scaled_expm1(q[:, None], 2.0 * gamma * moments[None, :])
        )
    )


def _scaled_expm1(scale: FloatArray, exponent: FloatArray) -> FloatArray:
    """Returns scale * (e^exponent - 1), or a little more where e^exponent alone overflows."""
    return np.where(exponent < 700.0, scale * np.expm1(exponent), np.exp(np.log(scale) + exponent))


def _pair_excess(
    masses: tuple[FloatArray, ...],
    log_ratios: tuple[float, ...],
    moments: FloatArray,
    *,
    forward: bool,
    reverse: bool,
) -> FloatArray:
    """Returns the larger excess E[ratio^l] - 1 of the directions asked for.

    The pair: classes of probability `masses` ([num_queries] each) under P, each times
    e^log_ratio under P', and one more class that takes the rest of both.
    """
    ratios = np.array(log_ratios)
    here = np.stack(masses, axis=1)
    there = here * np.exp(ratios)
    winner = np.log1p(here @ np.expm1(ratios) / (1.0 - np.sum(there, axis=1)))
    largest = np.zeros((len(here), len(moments)))
    directions = [(there, winner, -ratios)] if forward else []
    directions += [(here, -winner, ratios)] if reverse else []
    for law, winner_ratio, other_ratios in directions:
        total = _outer_excess(winner_ratio, moments)
        total *= (1.0 - np.sum(law, axis=1))[:, None]
        total += law @ excess(other_ratios[:, None], moments)
        np.maximum(largest, np.where(np.isnan(total), np.inf, total), out=largest)
    return largest


def _outer_excess(log_ratios: FloatArray, moments: FloatArray) -> FloatArray:
    """Returns `excess` of every pair, [num_log_ratios, num_moments], for long arrays."""
    total = exp_remainder(np.outer(log_ratios, moments + 1.0))
    total -= np.outer(exp_remainder(log_ratios), moments + 1.0)
    return np.asarray(np.maximum(total, 0.0, out=total))


def _tight_costs(gamma: float, q: FloatArray, moments: FloatArray) -> FloatArray:
    """Theorem T1: ln max(f1(q), f2(q))."""
    up = _pair_excess((q,), (2.0 * gamma,), moments, forward=True, reverse=False)
    down = _pair_excess((q,), (-2.0 * gamma,), moments, forward=True, reverse=False)
    return np.asarray(np.log1p(np.maximum(up, down)))


def _two_sided_costs(gamma: float, q: FloatArray, moments: FloatArray) -> FloatArray:
    """Theorem T2: ln max(f1(Eq), f2(q)), the two directions of one pair."""
    return np.asarray(
        np.log1p(_pair_excess((q,), (2.0 * gamma,), moments, forward=True, reverse=True))
    )


def _class_aware_costs(
    gamma: float, q: FloatArray, u: FloatArray, moments: FloatArray
) -> FloatArray:
    """Theorem T3: the largest of both directions over its mass vectors and corner ratios."""
    none, rest = np.zeros_like(q), np.maximum(q - u, 0.0)
    second = np.minimum(u, rest)
    remaining = np.maximum(rest - second, 0.0)
    vectors = (
        (none, none, q),
        (u, none, rest),
        (none, u, rest),
        (u, second, remaining),
        (second, u, remaining),
    )
    corners = tuple(product((-2.0 * gamma, 0.0), (0.0, 2.0 * gamma), (-gamma, gamma)))
    largest = np.zeros((len(q), len(moments)))
    for masses in vectors:
        different = {
            tuple(
                0.0 if mass is none else ratio for mass, ratio in zip(masses, corner, strict=True)
            )
            for corner in corners
        }
        for ratios in different:
            cost = _pair_excess(masses, ratios, moments, forward=True, reverse=True)
            np.maximum(largest, cost, out=largest)
    return np.asarray(np.log1p(largest))


def pure_costs(
    bound: str, gamma: float, q: FloatArray, u: FloatArray, moments: FloatArray
) -> FloatArray:
    """Returns the costs of a mechanism with tail F(D - s) <= e^{gamma s} F(D), of each query.

    Args:
        bound: "paper", "tight", "two_sided" or "class_aware".
        gamma: inverse scale of the noise, per vote.
        q: Pr[label != plurality] or a bound on it, [num_queries], above 0 and up to 1/(E+1).
        u: largest single term of q, [num_queries]; read by "class_aware" alone.
        moments: [num_moments].
    """
    if bound == "paper":
        return _paper_costs(gamma, q, moments)
    if bound == "tight":
        return _tight_costs(gamma, q, moments)
    if bound == "two_sided":
        return _two_sided_costs(gamma, q, moments)
    return _class_aware_costs(gamma, q, u, moments)


def gaussian_costs(sigma: float, q: FloatArray, moments: FloatArray) -> FloatArray:
    """Proposition D5: arXiv 1802.08908, Theorem 6 with Propositions 7 and 10, rewritten.

    With h = 1/sigma and q = e^{-s^2}, mu_2 = s/h, mu_1 = mu_2 + 1 and eps_i = mu_i h^2, so that
    A^l (1-q) = (1 - e^{-s^2})^{l+1} (1 - e^{-(s-h)^2})^{-l} and q B^l = e^{-s^2 + 2lsh + lh^2}; the
    conditions are s > h, s >= lh and (s-h) e^{2sh-h^2} >= s + h, all of which hold from some s on.

    The sum falls in s, so the cost is nondecreasing in q: with P, Q the two brackets, y = P/Q >= 1,
    b = (s-lh) e^{2lsh+lh^2}, its derivative has the sign of (l+1)s - l(s-h)e^{2sh-h^2} y - b y^-l
    <= (l+1)s - l(s+h)y - b y^-l. If b <= s+h this is largest at y = 1 and b >= s - lh makes it
    <= 0; otherwise l(s+h)y + b y^-l >= (l+1)((s+h)^l b)^{1/(l+1)} >= (l+1)s.
    """
    step = 1.0 / sigma
    depth = np.sqrt(np.maximum(-np.log(q), 0.0))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        applies = (depth > step) & (
            np.log(depth - step) + 2.0 * depth * step - step**2 >= np.log(depth + step)
        )
        log_a = np.log1p(-q) - np.log1p(-np.exp(-((depth - step) ** 2)))
        log_b = 2.0 * depth * step + step**2
        total = (1.0 - q)[:, None] * np.expm1(np.outer(log_a, moments))
        total += _scaled_expm1(q[:, None], np.outer(log_b, moments))
        valid = applies[:, None] & (depth[:, None] >= moments[None, :] * step)
        return np.where(valid & ~np.isnan(total), np.log1p(total), np.inf)
