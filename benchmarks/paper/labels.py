"""Noisy labels, drawn by the labeller, and what they cost by every kind of accounting."""

import contextlib
import dataclasses
import os
import pathlib
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.paper.bench import Bench, Measured
from benchmarks.paper.ensembles import EnsembleName
from benchmarks.paper.setting import delta_of
from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.aggregation.noise import NoiseSource
from pate_tf.analysis.accounting import AnalysisConfig, analyse
from pate_tf.analysis.release import release_log_cost
from pate_tf.analysis.release_planning import GATE, SANITISED, ReleaseRequest
from pate_tf.analysis.votes import AnsweredVotes, VoteSource, order_free_digest
from pate_tf.api.labelling import open_ledger, plan_release, release_labels
from pate_tf.api.settings import Budget, LabelSettings
from pate_tf.core.public import PoolLabels
from pate_tf.core.sensitive import VoteCounts
from pate_tf.core.validation import IntArray
from pate_tf.ledger.rollback_guard import STATE_VARIABLE
from pate_tf.queries.strategies import find_strategy


@contextlib.contextmanager
def registry_in(folder: pathlib.Path) -> Iterator[None]:
    """Keeps what is measured on public data out of the user's registry of ledgers."""
    before = os.environ.get(STATE_VARIABLE)
    os.environ[STATE_VARIABLE] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ[STATE_VARIABLE]
        else:
            os.environ[STATE_VARIABLE] = before


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asking:
    """Which queries are put to whom, and what draws the labels.

    Attributes:
        ensemble: who votes.
        mechanism: what draws the labels and accounts for them.
        num_queries: how many samples of the pool are asked for.
        strategy: how they are chosen, by its name in `pate_tf.queries`.
        draw: number of the repetition: other noise, other queries, another training.
    """

    ensemble: EnsembleName
    mechanism: Mechanism
    num_queries: int
    strategy: str = "first"
    draw: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as JSON values."""
        return {**dataclasses.asdict(self), "mechanism": self.mechanism.to_dict()}

    def repeated(self, repetitions: int) -> list["Asking"]:
        """Returns that many of the same kind, each with a draw of its own."""
        return [dataclasses.replace(self, draw=number) for number in range(repetitions)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drawn:
    """Noisy labels, kept.

    Attributes:
        queries: int64 `[num_queries]`, positions in the pool.
        labels: what a student learns from.
        accuracy: share of right ones among the released labels; 0 where none left.
        num_inferred: labels that came without a query; `num_inferred_right` of them are right.
        learnt_accuracy: share of right ones among all that a student learns from.
        epsilon: data-independent, of these queries alone, at `delta_of` the data set.
        seconds: wall time of choosing, asking and drawing.
    """

    queries: IntArray
    labels: PoolLabels
    accuracy: float
    num_inferred: int
    num_inferred_right: int
    learnt_accuracy: float
    epsilon: float
    seconds: float

    @property
    def num_answered(self) -> int:
        """How many labels left; of a stability gate all or none."""
        return len(self.labels.labels) - self.num_inferred


def draw(bench: Bench, asking: Asking) -> Drawn:
    """Releases labels, of a ledger of its own, unless that was done before."""
    public = bench.workshop.split(asking.ensemble.dataset)
    num_classes = public.dataset.num_classes
    strategy, delta = find_strategy(asking.strategy), delta_of(asking.ensemble.dataset)

    def measure(noise: NoiseSource) -> dict[str, Any]:
        teachers = bench.voter(asking.ensemble)
        settings = LabelSettings(
            mechanism=asking.mechanism,
            strategy=asking.strategy,
            num_queries=asking.num_queries,
            rounds=bench.setting.active_rounds if strategy.is_adaptive else None,
            seed=bench.seed + asking.draw,
        )
        with (
            tempfile.TemporaryDirectory() as folder,
            registry_in(pathlib.Path(folder) / "state"),
            open_ledger(
                pathlib.Path(folder) / "sensitive", teachers=teachers, budget=Budget(delta=delta)
            ) as ledger,
        ):
            plan = plan_release(settings, teachers, public.pool, delta=ledger.delta)
            queried = release_labels(
                plan, public.pool, teachers=teachers, ledger=ledger, noise=noise
            )
        learnt, truth = queried.training_labels, public.pool_labels
        if truth is None:
            raise ValueError("labels: expected a data set with labels of its public side")

        def right(labels: PoolLabels) -> npt.NDArray[np.bool_]:
            return labels.labels == truth[labels.query_indices]

        def share(labels: PoolLabels) -> float:
            return float(right(labels).mean()) if len(labels.labels) else 0.0

        return {
            "queries": queried.queries.tolist(),
            "query_indices": learnt.query_indices.tolist(),
            "labels": learnt.labels.tolist(),
            "num_inferred": queried.num_inferred,
            "num_inferred_right": int(right(queried.inferred).sum()),
            "learnt_accuracy": share(learnt),
            "accuracy": share(queried.released),
            "epsilon": queried.released.cost.epsilon,
        }

    bench.ensemble(asking.ensemble)  # a unit of its own, with its own seconds
    measured = bench.unit("labels", asking.to_dict(), measure)
    result = measured.result
    return Drawn(
        queries=np.array(result["queries"], np.int64),
        labels=PoolLabels(
            query_indices=np.array(result["query_indices"], np.int64),
            labels=np.array(result["labels"], np.int64),
            num_classes=num_classes,
        ),
        accuracy=result["accuracy"],
        num_inferred=result["num_inferred"],
        num_inferred_right=result["num_inferred_right"],
        learnt_accuracy=result["learnt_accuracy"],
        epsilon=result["epsilon"],
        seconds=measured.seconds,
    )


def costs(bench: Bench, asking: Asking) -> Measured:
    """Returns what the labels cost, by kind of accounting; None where there is none.

    `paper`: its bound at moments 1 to 8, classic conversion. `tightest`: exact and two-sided.
    `sanitised` and `gated`: each as if it alone were published; `passed`: whether the gate
    let the labels out; `worst_case`: of labels and sanitised epsilon together, on all data.
    `data_independent`: the tightest composition.
    """
    queries = draw(bench, asking).queries

    def measure(noise: NoiseSource) -> dict[str, Any]:
        counts = bench.votes(asking.ensemble).counts().values[queries]
        return costs_of_counts(
            counts,
            asking.mechanism,
            noise,
            delta=delta_of(asking.ensemble.dataset),
            adaptive=find_strategy(asking.strategy).is_adaptive,
        )

    return bench.unit("costs", asking.to_dict(), measure)


def costs_of_counts(
    counts: IntArray, mechanism: Mechanism, noise: NoiseSource, *, delta: float, adaptive: bool
) -> dict[str, Any]:
    """Returns what `costs` describes for counts `[num_queries, num_classes]`."""
    source = VoteSource(
        groups=(AnsweredVotes(mechanism, VoteCounts(counts)),),
        num_charged={mechanism: mechanism.number_charged(len(counts))},
        identity=lambda: order_free_digest(counts),
    )
    independent = analyse(source, AnalysisConfig(delta=delta, bounds=())).data_independent
    found: dict[str, Any] = dict.fromkeys(
        ("paper", "tightest", "sanitised", "worst_case", "gated", "passed")
    )
    found["data_independent"] = independent.epsilon
    if "paper" in mechanism.bounds:
        as_paper = AnalysisConfig(
            delta=delta, num_moments=8, conversion="classic", bounds=("paper",)
        )
        found["paper"] = analyse(source, as_paper).bounds["paper"].epsilon
    if adaptive or not mechanism.bounds:
        return found  # what depends on the votes does not hold for them, or is not known
    exact = analyse(source, AnalysisConfig(delta=delta, bounds=("exact",))).bounds["exact"]
    found["tightest"] = min(exact.epsilon, independent.epsilon)
    for kind in (SANITISED, GATE):
        plan = ReleaseRequest(kinds=(kind,), delta=delta).plan(
            mechanism,
            num_queries=len(counts),
            num_teachers=int(counts[0].sum()),
            num_classes=counts.shape[1],
        )
        released = release_log_cost(
            counts, mechanism, plan, adaptive=False, noise=noise.discrete_gaussian
        )
        if kind == SANITISED:
            sanitised = released.sanitised_epsilon(delta)
            found["sanitised"] = sanitised.epsilon
            found["worst_case"] = sanitised.worst_case_epsilon
        else:
            gate = released.gate(delta)
            found["gated"], found["passed"] = gate.epsilon, gate.passed
    return found
