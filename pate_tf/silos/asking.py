"""How a coordinator asks silos."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pate_tf.accounting.local.estimates import WEIGHTINGS
from pate_tf.core.validation import IntArray
from pate_tf.silos.messages import RANDOMISED_RESPONSE, SECURE_HISTOGRAM, checked_mechanism
from pate_tf.silos.roster import Roster

# Which silos are asked each query, N(x): drawn from public values alone.


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asking:
    """How silos are asked. Public.

    Attributes:
      mechanism: name and parameters, as of `QueryBatch.mechanism`. Without an epsilon each silo is
        asked at its own of the roster.
      subset: how many silos are asked each query; None for all. Under `secure_histogram` the same
        silos are asked all queries of a round.
      how: which ones, "random" or "balanced"; see `choose_silos`.
      seconds: how long a round waits for replies.
      least_answers: how many answers a label needs.
      weighting: how silos with different epsilons count, "likelihood" or "unbiased".
      seed: fixes the subsets.
    """

    mechanism: Mapping[str, Any] = dataclasses.field(
        default_factory=lambda: {"name": RANDOMISED_RESPONSE}
    )
    subset: int | None = None
    how: str = "random"
    seconds: float = 60.0
    least_answers: int = 1
    weighting: str = "likelihood"
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises ValueError if a value is out of its range."""
        if self.how not in SUBSETS:
            raise ValueError(f"how: expected one of {', '.join(SUBSETS)}, got {self.how!r}")
        if self.weighting not in WEIGHTINGS:
            raise ValueError(
                f"weighting: expected one of {', '.join(WEIGHTINGS)}, got {self.weighting!r}"
            )
        if not 0.0 < self.seconds < float("inf"):
            raise ValueError(f"seconds: expected above 0, got {self.seconds}")
        if self.least_answers < 1:
            raise ValueError(f"least_answers: expected at least 1, got {self.least_answers}")

    @property
    def is_secure(self) -> bool:
        """Whether votes are added up under secret sharing."""
        return self.mechanism.get("name") == SECURE_HISTOGRAM

    def mechanisms(self, roster: Roster) -> dict[str, dict[str, Any]]:
        """Returns what each silo is asked with.

        Raises:
          ValueError: if it is no mechanism.
        """
        found = {}
        for one in roster.members:
            fields = dict(self.mechanism)
            if not self.is_secure:
                fields.setdefault("epsilon", one.epsilon)
            found[one.name] = dict(checked_mechanism(fields))
        return found
