"""A round of queries through the silos' own accounts, in one process."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

from pate_tf.accounting.composition import smallest_epsilon
from pate_tf.core.public import Pool
from pate_tf.core.validation import IntArray
from pate_tf.queries.labels import Labels
from pate_tf.silos import Asking, Coordinator, Member, Policy, Roster, Silo
from pate_tf.silos.coordinator import answers_of
from pate_tf.silos.secure.opening import simulated_parties

DELTA = 1e-5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answered:
    """What came of a round. Public.

    Attributes:
        labels: released, with their cost.
        epsilon: of each silo, at `DELTA`.
        answers: randomised, `[num_silos, num_queries]`; None under secure aggregation.
    """

    labels: Labels
    epsilon: float
    answers: IntArray | None

    def right(self, truth: IntArray) -> float:
        """Returns the share of right labels.

        Args:
            truth: of all of the pool.
        """
        return float((self.labels.labels == truth[self.labels.query_indices]).mean())


def answered(
    votes: IntArray,
    pool: Pool,
    mechanism: Mapping[str, Any],
    *,
    num_queries: int,
    strategy: str = "first",
    folder: pathlib.Path | None = None,
) -> Answered:
    """Puts queries of a pool to silos.

    Args:
        votes: sensitive; of each silo's teacher, on the first of the pool.
        pool: public inputs.
        mechanism: as of `Asking.mechanism`.
        num_queries: how many.
        strategy: how they are chosen.
        folder: of the simulated parties, sensitive; None without secure aggregation.
    """
    columns = {row.tobytes(): place for place, row in enumerate(pool.inputs[: votes.shape[1]])}
    sealer, sums = (None, None) if folder is None else simulated_parties(folder)
    names = [f"silo-{number}" for number in range(len(votes))]

    def teacher(row: IntArray) -> Any:
        return lambda queries: row[[columns[query.tobytes()] for query in queries]]

    silos = [
        Silo(
            Policy(
                silo=name,
                epsilon_budget=1e9,
                delta=DELTA,
                queries_per_day=10**6,
                allowed=(mechanism["name"],),
                most_epsilon_per_query=40.0,
                least_sigma=1e-3,
            ),
            teacher(row),
            folder=None,
            num_classes=pool.dataset.num_classes,
            sealer=sealer,
        )
        for name, row in zip(names, votes, strict=True)
    ]
    members = tuple(Member(name=name, epsilon=1.0, queries=10**6) for name in names)
    roster = Roster(run_id="benchmark", delta=DELTA, members=members)
    with Coordinator(
        roster, folder=None, silos=silos, asking=Asking(mechanism=mechanism), secure=sums
    ) as coordinator:
        labels = coordinator.label(pool, num_queries=num_queries, strategy=strategy)
        (one,) = coordinator.queue.rounds()
        answers = None
        if sums is None:
            answers = answers_of(one, coordinator.queue.replies(one.number), roster)
        charge = one.charge_of(names[0])
    epsilon, _ = smallest_epsilon({charge: num_queries}, DELTA)
    if len(labels.labels) != num_queries:
        raise ValueError("queries: expected a label of each, got fewer")
    return Answered(labels=labels, epsilon=epsilon, answers=answers)
