"""What has been published, with its sources; drawn apart from what was measured.

Their epsilons are not ours: against removal or replacement, data-dependent or not, as each says.
"""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """A published result.

    Attributes:
      what: what was done.
      epsilon: as published, at delta 1e-5.
      accuracy: share of right answers, as published.
      source: where it stands.
    """

    what: str
    epsilon: float
    accuracy: float
    source: str


PATE = "Papernot et al. 2017, arXiv 1610.05755"
DATA_DEPENDENT = "epsilon at the votes, itself private"
POINTS = {
    "mnist": (
        Point(
            what="DP-SGD, Abadi et al. 2016",
            epsilon=8.0,
            accuracy=0.97,
            source=f"as quoted in {PATE}, section 4.2",
        ),
        Point(
            what="PATE-G, 100 queries",
            epsilon=2.04,
            accuracy=0.98,
            source=f"{PATE}, figure 4; {DATA_DEPENDENT}",
        ),
        Point(
            what="PATE-G, 1,000 queries",
            epsilon=8.03,
            accuracy=0.981,
            source=f"{PATE}, figure 4; {DATA_DEPENDENT}",
        ),
    ),
    "adult": (
        Point(
            what="PATE, forests",
            epsilon=2.66,
            accuracy=0.83,
            source=f"{PATE}, appendix C; {DATA_DEPENDENT}",
        ),
    ),
}
