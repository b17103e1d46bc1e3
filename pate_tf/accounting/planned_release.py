"""What a user fixes of a release before there are votes, so that no vote can advise it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from math import inf
from typing import Any

DEFAULT_PROFILE = 0.8
KINDS = ("log_cost", "smooth_sensitivity")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedRelease:
    """How the data-dependent cost of a ledger's labels will be released, if ever. Public.

    The ledger keeps it from when it is opened. With mechanism, number of labels, classes and
    teachers, all public, it decides the `ReleasePlan`.

    Attributes:
        release: "log_cost" (a sanitised epsilon) or "smooth_sensitivity".
        profile: lead of the first class over the second, as a share of the teachers, in the
            hypothetical votes that the plan is made for.
        moment: of the plan; this and the following default to what planning finds best.
        smoothness: eta, or beta for "smooth_sensitivity".
        sigma: of the release's noise, in sensitivities.
        confidence: that the released epsilon is not too low.

    Raises:
        ValueError: if a value is out of range.
    """

    release: str = "log_cost"
    profile: float = DEFAULT_PROFILE
    moment: float | None = None
    smoothness: float | None = None
    sigma: float | None = None
    confidence: float | None = None

    def __post_init__(self) -> None:
        if self.release not in KINDS:
            raise ValueError(f"release: expected one of {', '.join(KINDS)}, got {self.release!r}")
        if not 0.0 < self.profile <= 1.0:
            raise ValueError(f"profile: expected in (0, 1], got {self.profile}")
        for name in ("moment", "smoothness", "sigma"):
            value = getattr(self, name)
            if value is not None and not 0.0 < value < inf:
                raise ValueError(f"{name}: expected above 0 and finite, got {value}")
        if self.confidence is not None and not 0.5 < self.confidence < 1.0:
            raise ValueError(f"confidence: expected in (0.5, 1), got {self.confidence}")

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values; see `from_dict`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> PlannedRelease:
        """Rebuilds what `to_dict` returned.

        Raises:
            ValueError: if it is none.
        """
        try:
            return cls(**fields)
        except TypeError as error:
            raise ValueError(
                f"expected the plan of a release, got something else: {error}"
            ) from None
