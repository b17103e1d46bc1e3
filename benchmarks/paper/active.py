"""Appendix B.2: active learning of the student."""

from collections.abc import Iterator

from benchmarks.paper.bench import Bench
from benchmarks.paper.ensembles import EnsembleName
from benchmarks.paper.labels import Asking, Drawn, draw
from benchmarks.paper.rows import (
    OURS,
    PAPER,
    Experiment,
    Row,
    not_run,
    number,
    percent,
    with_interval,
)
from benchmarks.paper.training import train, unqueried
from pate_tf.accounting.mechanisms import LaplaceNoisyMax

ARBITRARY = "first"
GAINS = {"uncertain": (4.0, "4 to 10 points"), "binary_experts": (1.5, "1.5 to 2.5 points")}
STRATEGIES = (ARBITRARY, *GAINS, "siamese")


def _rows(bench: Bench) -> Iterator[Row]:
    setting = bench.setting
    for dataset in setting.images:
        if reason := bench.missing(dataset):
            yield not_run(dataset, reason)
            continue
        for num_queries in setting.active_queries:
            base = 0.0
            for strategy in STRATEGIES:
                asking = Asking(
                    ensemble=EnsembleName(dataset=dataset, num_teachers=setting.num_teachers),
                    mechanism=LaplaceNoisyMax(1.0 / setting.scale),
                    num_queries=num_queries,
                    strategy=strategy,
                )
                drawn = draw(bench, asking)
                student = train(bench, asking, "supervised")
                found = unqueried(student)
                base = found.value if strategy == ARBITRARY else base
                gain = 100 * (found.value - base)
                least, paper = GAINS.get(strategy, (0.0, "no gain"))
                is_base = strategy == ARBITRARY
                yield Row(
                    what=f"{dataset}, {num_queries} queries, {strategy}",
                    cells={
                        PAPER: "" if is_base else paper,
                        OURS: with_interval(found),
                        "gain in points": "" if is_base else f"{gain:+.2f}",
                        "labels right": percent(drawn.accuracy),
                        "labels inferred": str(drawn.num_inferred),
                        "epsilon": number(drawn.epsilon),
                    },
                    why="" if is_base or gain >= least else _why(strategy, drawn, base),
                    seconds=drawn.seconds + student.seconds,
                )


def _why(strategy: str, drawn: Drawn, base: float) -> str:
    if strategy in GAINS:
        return (
            f"The arbitrary queries leave only {100 * (1 - base):.2f} points to gain, and the "
            f"teachers' noisy labels of what is asked instead are {percent(1 - drawn.accuracy)} "
            f"wrong: what puzzles a student puzzles teachers."
        )
    wrong = drawn.num_inferred - drawn.num_inferred_right
    return f"Of the {drawn.num_inferred} labels that it infers {wrong} are wrong."


EXPERIMENT = Experiment(
    title="Appendix B.2: choosing queries",
    about=(
        "Supervised students at equal numbers of queries, asked in rounds, accuracy on all public "
        "samples that were not asked for. The paper's gains are those over arbitrary queries, on "
        "SVHN. Epsilon is data-independent: queries that depend on answers have no other."
    ),
    rows=_rows,
)
