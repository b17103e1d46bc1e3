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
TEMPERED = "Papernot et al. 2021, arXiv 2007.14191; epsilon below 3, against removal"
SELECTIVE = (
    "Fu et al. 2024, arXiv 2311.14056, as their code's README has it; against removal, by an "
    "accounting that arXiv 2606.04384 disputes"
)
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
        Point(what="DP-SGD, tempered sigmoids", epsilon=3.0, accuracy=0.981, source=TEMPERED),
        Point(what="DPSUR on wavelets", epsilon=1.0, accuracy=0.9793, source=SELECTIVE),
        Point(what="DPSUR on wavelets", epsilon=3.0, accuracy=0.9888, source=SELECTIVE),
    ),
    "fashion_mnist": (
        Point(what="DP-SGD, tempered sigmoids", epsilon=3.0, accuracy=0.861, source=TEMPERED),
        Point(what="DPSUR on wavelets", epsilon=1.0, accuracy=0.8838, source=SELECTIVE),
        Point(what="DPSUR on wavelets", epsilon=3.0, accuracy=0.8971, source=SELECTIVE),
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
