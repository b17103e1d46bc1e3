"""Which silos are asked each query, N(x): drawn from public values alone."""

import numpy as np
import numpy.typing as npt

from pate_tf.values.arrays import IntArray

SUBSETS = ("random", "balanced")


def choose_silos(
    num_queries: int,
    left: IntArray,
    *,
    subset: int | None,
    how: str,
    seed: tuple[int, ...],
) -> npt.NDArray[np.bool_]:
    """Returns who is asked what, `[num_silos, num_queries]`.

    Args:
      num_queries: number of queries.
      left: how many queries each silo declared and was not asked yet, int64 `[num_silos]`.
      subset: how many silos are asked each query, fewer where fewer have queries left; None for
        all of them.
      how: "random", every subset as likely; or "balanced", those with most queries left, ties at
        random.
      seed: fixes the choice, which is public, so that a coordinator that was killed asks the same
        silos again.

    Raises:
      ValueError: if there is no such way, or nobody is left to ask a query.
    """
    if how not in SUBSETS:
        raise ValueError(f"subset: expected one of {', '.join(SUBSETS)}, got {how!r}")
    if subset is not None and not 1 <= subset <= len(left):
        raise ValueError(f"subset: expected 1 to {len(left)} silos, got {subset}")
    size = len(left) if subset is None else subset
    generator = np.random.default_rng(seed)
    asked = np.zeros((len(left), num_queries), np.bool_)
    remaining = left.astype(np.int64)
    for query in range(num_queries):
        keys = generator.random(len(left))
        if how == "balanced":
            keys = keys - remaining
        keys[remaining <= 0] = np.inf
        chosen = np.argsort(keys, kind="stable")[:size]
        chosen = chosen[np.isfinite(keys[chosen])]
        if not len(chosen):
            raise ValueError(
                f"queries: expected silos that declared at least {num_queries} more queries, got "
                f"enough for {query}"
            )
        asked[chosen, query] = True
        remaining[chosen] -= 1
    return asked
