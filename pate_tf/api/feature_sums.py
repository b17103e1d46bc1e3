"""Labels of a whole pool from noisy sums of records by class, where an ensemble keeps such sums.

What a record says reaches a sum by itself, not as a part of one vote among thousands. So for the
same epsilon the pool's labels are worth more than those from votes, wherever the pool's features
tell classes apart and records are many beside the noise (docs/many_teachers.md).
"""

import dataclasses
from typing import Any, Final

import numpy as np

from pate_tf.accounting.charge import rounded_up
from pate_tf.accounting.divergences import LATTICE
from pate_tf.accounting.mechanisms import ClassSums, Mechanism
from pate_tf.accounting.released_labels import ReleasedLabels
from pate_tf.accounting.target import Target
from pate_tf.aggregation.feature_sums import release_sums
from pate_tf.aggregation.noise import NoiseSource, check_drawable, check_scales
from pate_tf.api.reporting import Reporting
from pate_tf.core import artifacts
from pate_tf.core.public import Pool
from pate_tf.core.sensitive import FeatureSums
from pate_tf.data.named_function import Named
from pate_tf.ledger import Ledger
from pate_tf.models.encoder import record_vectors
from pate_tf.queries.config import QueryConfig
from pate_tf.queries.propagation import infer_from_sums
from pate_tf.queries.queried import QueriedLabels
from pate_tf.teachers.ensemble import Ensemble
from pate_tf.teachers.voters import Voter

PART: Final = 4_096  # inputs whose vectors are in memory in double precision
STRATEGY: Final = "first"  # all of the pool, in its order


def with_sums(teachers: Voter) -> tuple[Ensemble, FeatureSums] | None:
    """Returns an ensemble with its records' sums; None if it has none."""
    if not isinstance(teachers, Ensemble) or teachers.class_sums is None:
        return None
    return teachers, teachers.class_sums


def ensemble_with_sums(teachers: Voter) -> tuple[Ensemble, FeatureSums]:
    """Returns the same.

    Raises:
      ValueError: if there are none.
    """
    found = with_sums(teachers)
    if found is None:
        raise ValueError(
            "mechanism: expected teachers on features for sums of records, which "
            "train_teachers.py keeps of such, got others; train ridge ones by this "
            "version"
        )
    return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class SumsPlan:
    """Noise on sums by class, from what they may cost. Public.

    Attributes:
      mechanism: with its noise.
      target: what it keeps to.
      num_queries: inputs that get labels: all of the pool.
      num_of_class: private records of a class, if all have as many; None where their number is not
        public.
    """

    mechanism: ClassSums
    target: Target
    num_queries: int
    num_of_class: float | None

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise on each number."""
        return self.mechanism.noise_scales["sigma"]

    @property
    def reason(self) -> str:
        """Why, and that no record had a say; for statements and reports."""
        found = (
            f"Noise was chosen from a plan, not from private data: the least for epsilon "
            f"{self.target.epsilon:g} at delta {self.target.delta:g}. No teacher was asked."
        )
        if self.num_of_class is None:
            return found
        return (
            f"{found} There are about {self.num_of_class:,.0f} private records of a class, which "
            f"is {self.num_of_class / self.sigma:,.1f} times the noise on a number of its sum."
        )

    def in_words(self) -> str:
        """Returns what is bought, as text."""
        return (
            f"Plan for epsilon {self.target.epsilon:g} at delta {self.target.delta:g}, for every "
            f"{self.target.unit}: noisy sums of the private records' features by class, with "
            f"noise of {rounded_up(self.sigma)} on each number. All {self.num_queries:,} "
            f"inputs of the pool get labels that are worked out from them; no teacher is asked. "
            f"Name a mechanism, a number of queries or a strategy to have teachers vote instead."
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values."""
        return {
            "target_epsilon": self.target.epsilon,
            "delta": self.target.delta,
            "unit": self.target.unit,
            "queries": self.num_queries,
            "queries_were_planned": True,
            "candidates": [
                {
                    "mechanism": self.mechanism.to_dict(),
                    "epsilon": self.target.epsilon_of(self.mechanism),
                }
            ],
            "records_of_a_class": self.num_of_class,
            "reason": self.reason,
        }

    @property
    def strategy(self) -> str:
        """How they are chosen, which they aren't."""
        return STRATEGY

    def queries(self, seed: int, representation: Named | None) -> QueryConfig:
        """Returns what is asked about: all of the pool."""
        return QueryConfig(
            strategy=self.strategy,
            num_queries=self.num_queries,
            seed=seed,
            representation=representation,
        )


def sums_plan(target: Target, *, teachers: Voter, pool: Pool) -> SumsPlan:
    """Returns the plan by sums, whatever they are worth.

    Args:
      target: what they may cost.
      teachers: the ensemble.
      pool: that gets labels.

    Raises:
      ValueError: if there are no sums, or the epsilon can't be reached.
    """
    ensemble, _ = ensemble_with_sums(teachers)
    # The number of owners is no public value, nor is that of their records.
    records = ensemble.records if ensemble.unit == "record" else None
    return SumsPlan(
        mechanism=dataclasses.replace(target, num_queries=1).least_noise(ClassSums.of_scale),
        target=target,
        num_queries=len(pool),
        num_of_class=None if records is None else records.num_records / pool.dataset.num_classes,
    )


def worthwhile_sums_plan(target: Target, *, teachers: Voter, pool: Pool) -> SumsPlan | None:
    """Returns the plan by sums; None where there are none, or their noise may drown them.

    Args:
      target: what they may cost.
      teachers: the ensemble.
      pool: that gets labels.
    """
    if with_sums(teachers) is None:
        return None
    found = sums_plan(target, teachers=teachers, pool=pool)
    if found.num_of_class is None or found.num_of_class < found.mechanism.fewest_of_class:
        return None
    return found


def check_mechanism(mechanism: Mechanism) -> None:
    """Checks that a mechanism's noise can be drawn, for labels of votes or for sums.

    Raises:
      ValueError: if it draws none, or its scale is out of range.
    """
    if mechanism.adds_records:
        check_scales(mechanism)
    else:
        check_drawable(mechanism)


def check_sums(queries: QueryConfig, teachers: Voter, pool: Pool) -> None:
    """Checks that labels can be worked out from sums of an ensemble's records.

    Raises:
      ValueError: if it has none, or a part of the pool is asked for.
    """
    ensemble_with_sums(teachers)
    if (queries.strategy, queries.num_queries) != (STRATEGY, len(pool)):
        raise ValueError(
            f"queries: expected all {len(pool)} of the pool for sums of records, by strategy "
            f"{STRATEGY}, got {queries.num_queries} by {queries.strategy}"
        )


def labels_by_sums(
    pool: Pool,
    teachers: Voter,
    mechanism: Mechanism,
    queries: QueryConfig,
    *,
    ledger: Ledger,
    noise: NoiseSource,
    reporting: Reporting,
) -> QueriedLabels:
    """Pays for noisy sums and works out labels of all of a pool.

    Args:
      pool: public inputs.
      teachers: the ensemble, whose teachers are not asked.
      mechanism: with its noise.
      queries: the seed, and what says which inputs are alike.
      ledger: the ensemble's, open.
      noise: where privacy noise comes from.
      reporting: how progress is shown.

    Returns:
      As released, the labels that follow at once, with what was paid for; and those that a student
      learns from.

    Raises:
      ValueError: if the ensemble keeps no sums; nothing was charged then.
      LedgerError: if the budget does not suffice or the ledger can't be used.
    """
    check_sums(queries, teachers, pool)
    ensemble, sums = ensemble_with_sums(teachers)
    features = ensemble.features(pool.inputs)
    known = np.empty((len(pool), features.shape[1] + 1), np.float32)
    for start in range(0, len(pool), PART):
        part = slice(start, start + PART)
        known[part] = record_vectors(features[part], ensemble.scale)
    paid = release_sums(sums, mechanism, ledger=ledger, noise=noise, unit=teachers.unit)
    with reporting.clock("working out labels of the pool"):
        inferred = infer_from_sums(
            pool,
            known,
            paid.values / LATTICE,
            mechanism.noise_scales["sigma"],
            queries.seed,
            representation=queries.representation,
        )
    released = ReleasedLabels(
        query_indices=inferred.first.query_indices,
        labels=inferred.first.labels,
        num_classes=inferred.first.num_classes,
        num_queries=len(pool),
        cost=paid.cost,
        ledger_rows=paid.ledger_rows,
        secure_noise=paid.secure_noise,
        noisy_sums=paid.values,
    )
    return QueriedLabels(
        queries=released.query_indices,
        released=released,
        labels=inferred.learnt,
        certainty=inferred.certainty,
        strategy=queries.strategy,
        pool_digest=artifacts.digest_array(pool.inputs),
    )
