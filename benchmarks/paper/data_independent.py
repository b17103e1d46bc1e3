"""Section 3.2: what labels cost whatever the votes."""

from collections.abc import Iterator

from benchmarks.paper.bench import Bench
from benchmarks.paper.rows import OURS, PAPER, Experiment, Row, number
from pate_tf.accounting.mechanisms import ExponentialMechanism, LaplaceNoisyMax, PermuteAndFlip
from pate_tf.analysis.accounting import AnalysisConfig, data_independent_guarantees

GAMMA = 0.05
SETTINGS = (
    ("the SVHN setting: 1,000 queries, delta 1e-6", 1000, 1e-6, "about 26"),
    ("the MNIST setting: 100 queries, delta 1e-5", 100, 1e-5, "about 5.80"),
)


def _rows(bench: Bench) -> Iterator[Row]:
    del bench  # a formula has one size
    for what, num_queries, delta, theirs in SETTINGS:
        config = AnalysisConfig(delta=delta)
        found = data_independent_guarantees({LaplaceNoisyMax(gamma=GAMMA): num_queries}, config)
        cells = {
            PAPER: theirs,
            OURS: number(found["strong_composition"].epsilon),
            "Theorem 2, all moments": number(found["moments_theorem_2"].epsilon),
            "exact composition": number(found["composition"].epsilon),
        }
        for kind in (PermuteAndFlip, ExponentialMechanism):
            epsilon, _ = kind(gamma=GAMMA).data_independent_epsilon(
                num_queries=num_queries, delta=delta
            )
            cells[f"exact, {kind.name}".replace("_", " ")] = number(epsilon)
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
