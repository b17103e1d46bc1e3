"""How participants train together: the settings of distributed selective SGD."""

import dataclasses
from math import inf
from typing import Any

PROTOCOLS = ("round_robin", "random", "asynchronous", "synchronous")
SELECTIONS = ("largest", "random")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of distributed selective SGD (Shokri and Shmatikov 2015). Public.

    What the paper leaves open has a default here, and a sentence.

    Attributes:
      num_participants: how many train together.
      rounds: how often each participant takes its turn.
      upload: theta_u, the share of its parameters' changes that a participant uploads.
      download: theta_d, the share of the parameters that it downloads before it trains.
      gamma: uploaded changes are clipped to [-gamma, gamma]. Default: no clipping, which promises
        nothing either way.
      selection: "largest" uploads the changes of largest absolute value (the paper does not say
        that it takes absolute values; changes downwards count as much here); "random" a random
        subset of those above tau in absolute value.
      tau: the threshold of "random".
      protocol: "round_robin", "random" (a new random order every round; each participant sees what
        came before), "asynchronous" (each trains on what it downloaded at the end of its last turn,
        in random order, so that its upload is about `num_participants` - 1 uploads stale) or
        "synchronous" (all train on the same parameters, and what they upload is averaged).
      stat_decay: beta, what the server multiplies its counts of updates by, once a `stat_period`.
      stat_period: uploads between two decays. Default: one of each participant.
      damping: the server multiplies an upload that is s uploads stale by (1 + s)^-damping.
        Default: 1, which keeps asynchronous training from diverging where a lower server rate
        or smaller steps did not (docs/selective_sgd.md); fresh uploads are not damped.
      server_rate: the server multiplies every upload by it. Default: 1, as the paper adds; for
        "synchronous" one over the number of participants, which makes the sum an average.
      optimizer: a name that Keras knows; every participant has its own, whose state stays local.
      learning_rate: of it, in the first round.
      final_learning_rate: share of it in the last round; between them it falls linearly.
      batch_size: records of a local step.
      local_epochs: passes over a participant's records between download and upload.
      seed: of initial parameters, orders and choices; no privacy noise comes from it.

    Raises:
      ValueError: if a setting is out of range.
    """

    num_participants: int = 30
    rounds: int = 10
    upload: float = 0.1
    download: float = 1.0
    gamma: float = inf
    selection: str = "largest"
    tau: float = 0.0
    protocol: str = "round_robin"
    stat_decay: float = 0.9
    stat_period: int | None = None
    damping: float = 1.0
    server_rate: float | None = None
    optimizer: str = "sgd"
    learning_rate: float = 0.05
    final_learning_rate: float = 0.1
    batch_size: int = 10
    local_epochs: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("num_participants", "rounds", "batch_size", "local_epochs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if self.stat_period is not None and self.stat_period < 1:
            raise ValueError(f"stat_period: expected at least 1, got {self.stat_period}")
        for name in ("upload", "download", "stat_decay", "final_learning_rate"):
            if not 0.0 < getattr(self, name) <= 1.0:
                raise ValueError(
                    f"{name}: expected above 0 and at most 1, got {getattr(self, name)}"
                )
        if not self.gamma > 0.0:
            raise ValueError(f"gamma: expected above 0, got {self.gamma}")
        for name in ("tau", "damping"):
            if not 0.0 <= getattr(self, name) < inf:
                raise ValueError(f"{name}: expected at least 0, got {getattr(self, name)}")
        if not 0.0 < self.learning_rate < inf:
            raise ValueError(f"learning_rate: expected above 0, got {self.learning_rate}")
        if self.server_rate is not None and not 0.0 < self.server_rate < inf:
            raise ValueError(f"server_rate: expected above 0, got {self.server_rate}")
        if self.protocol not in PROTOCOLS:
            raise ValueError(
                f"protocol: expected one of {', '.join(PROTOCOLS)}, got {self.protocol!r}"
            )
        if self.selection not in SELECTIONS:
            raise ValueError(
                f"selection: expected one of {', '.join(SELECTIONS)}, got {self.selection!r}"
            )

    def num_uploaded(self, num_parameters: int) -> int:
        """Returns how many changes an upload holds at most: at least one."""
        return max(1, int(self.upload * num_parameters))

    def num_downloaded(self, num_parameters: int) -> int:
        """Returns how many parameters a download holds: at least one."""
        return max(1, int(self.download * num_parameters))

    @property
    def rate_of_server(self) -> float:
        """What the server multiplies every upload by."""
        if self.server_rate is not None:
            return self.server_rate
        return 1.0 / self.num_participants if self.protocol == "synchronous" else 1.0

    def learning_rate_at(self, round_number: int) -> float:
        """Returns the learning rate of a round, from 0."""
        progress = round_number / max(1, self.rounds - 1)
        return self.learning_rate * (1.0 - (1.0 - self.final_learning_rate) * progress)

    def to_dict(self) -> dict[str, Any]:
        """Returns the settings as JSON values; no clipping is None."""
        fields = dataclasses.asdict(self)
        return {**fields, "gamma": None if self.gamma == inf else self.gamma}
