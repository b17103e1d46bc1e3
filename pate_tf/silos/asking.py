"""How a coordinator asks silos."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from pate_tf.accounting.local.estimates import WEIGHTINGS
from pate_tf.silos.checks import RANDOMISED_RESPONSE, SECURE_HISTOGRAM, checked_mechanism
from pate_tf.silos.roster import Roster
from pate_tf.silos.subsets import SUBSETS


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
