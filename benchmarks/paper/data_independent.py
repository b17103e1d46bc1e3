"""Section 3.2: what labels cost whatever the votes."""

from collections.abc import Iterator

from benchmarks.paper.bench import Bench
from benchmarks.paper.rows import OURS, PAPER, Experiment, Row, number
from pate_tf.accounting import conversions, moments
from pate_tf.accounting.mechanisms import ExponentialMechanism, LaplaceNoisyMax, PermuteAndFlip
from pate_tf.analysis.accounting import AnalysisConfig

GAMMA = 0.05
SETTINGS = (
    ("the SVHN setting: 1,000 queries, delta 1e-6", 1000, 1e-6, "about 26"),
    ("the MNIST setting: 100 queries, delta 1e-5", 100, 1e-5, "about 5.80"),
)


def _rows(bench: Bench) -> Iterator[Row]:
    del bench  # a formula has one size
    for what, num_queries, delta, theirs in SETTINGS:
        config = AnalysisConfig(delta=delta)
        theorem_2 = config.guarantee(num_queries * moments.paper_alpha(GAMMA, config.moments))
        cells = {
            PAPER: theirs,
            OURS: number(conversions.strong_composition_epsilon(GAMMA, num_queries, delta)),
            "Theorem 2, all moments": number(theorem_2.epsilon),
        }
        for kind, title in (
            (LaplaceNoisyMax, "exact composition"),
            (PermuteAndFlip, "exact, permute and flip"),
            (ExponentialMechanism, "exact, exponential mechanism"),
        ):
            epsilon, _ = kind(gamma=GAMMA).data_independent_epsilon(
                num_queries=num_queries, delta=delta
            )
            cells[title] = number(epsilon)
        yield Row(what=what, cells=cells)


EXPERIMENT = Experiment(
    title="Section 3.2: data-independent epsilon",
    about=(
        "Gamma 0.05. Ours is the paper's formula for strong composition; beside it the same labels "
        "by Theorem 2, by the optimal composition of 2 gamma-private mechanisms, and other "
        "mechanisms of the same gamma."
    ),
    rows=_rows,
)
