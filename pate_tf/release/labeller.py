"""Releases labels of a public pool from teachers or feature sums, within one lasting budget."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator
from typing import Any, Self

from pate_tf.accounting.charge import Charge
from pate_tf.accounting.cost_release import PlannedRelease
from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.accounting.planning import DEFAULT_MARGIN
from pate_tf.core import artifacts
from pate_tf.core.public import Pool
from pate_tf.core.reporting import reporting
from pate_tf.ledger import Ledger, Spending
from pate_tf.queries.labels import Labels
from pate_tf.release.feature_sums import FeatureSums
from pate_tf.release.labelling import ReleasePlan, open_ledger, plan_release, release_labels
from pate_tf.release.settings import Budget, LabelSettings
from pate_tf.teachers.teachers import Teachers


class Labeller:
    """Charges noisy labels, then draws them: the only way from votes or sums to public labels.

    >>> import pate_tf
    >>> with pate_tf.Labeller(teachers, epsilon=20.0, delta=1e-5) as labeller:
    ...     labels = labeller.label(data.pool)
    >>> labels.save(folder / "labels")
    >>> labels.cost.epsilon <= 20.0
    True

    `pate_tf.Teachers` answer queries; from `pate_tf.FeatureSums`, which need an `epsilon`, labels
    of the whole pool are worked out. With `epsilon`, mechanism, noise and number of queries are
    planned from public values (`pate_tf.plan`); `print(labeller.plan(data.pool))` shows the
    comparison. A mechanism with its noise, such as `pate_tf.LaplaceNoisyMax(scale=5.0)`, costs
    what it costs.

    What was charged stands in a ledger below their directory, for good: a second `Labeller` goes on
    with what is left, in this process or another. What was released once is returned again without
    a charge.

    The guarantee is differential privacy at (epsilon, delta) for every record, or owner, of the
    private data, whatever the data; `pate_tf.ledger.ledger.Ledger` says under which assumptions.

    Attributes:
        source: the teachers, or the feature sums.
    """

    def __init__(
        self,
        source: Teachers | FeatureSums,
        mechanism: Mechanism | type[Mechanism] | None = None,
        *,
        delta: float | None = None,
        epsilon: float | None = None,
        epsilon_budget: float | None = None,
        margin: float = DEFAULT_MARGIN,
        num_rounds: int | None = None,
        replace_budget: bool = False,
        acknowledge_reset: bool = False,
        planned_release: PlannedRelease | None = None,
        insecure_seed: int | None = None,
        verbose: bool = False,
    ) -> None:
        """Opens the ledger of the source, which the first call creates.

        Args:
            source: trained teachers, teachers from elsewhere with a directory, or fitted feature
                sums.
            mechanism: one with its noise; or, with `epsilon`, the class to find the noise of. None
                for the best one within `epsilon`.
            delta: the delta that all epsilons hold at, at most one over the number of records; 0
                for pure differential privacy. Fixed for these teachers by the first call. Default:
                what was fixed, at first a tenth of one over that number, or less, up to 1e-5.
            epsilon: what the labels of one call of `label` may cost; another call costs more.
            epsilon_budget: what everything released from these teachers may ever cost; fixed by the
                first call that gives one. Default: no limit; what is spent is recorded.
            margin: as of `pate_tf.plan`.
            num_rounds: of feature sums: how many rounds are released within `epsilon`, each later
                one of what a linear model of the earlier ones misses. Default: planned from
                epsilon and the number of records.
            replace_budget: puts `epsilon_budget` and `delta` in the place of those that were fixed.
                It weakens what was promised, and every later statement says so.
            acknowledge_reset: goes on although an earlier ledger of these teachers, or rows of this
                one, are gone. What is known of their cost is charged again, and the ledger and
                every later statement say so.
            planned_release: how the data-dependent cost will be released, if ever; fixed by the
                first call, before there are votes. Default: a sanitised epsilon.
            insecure_seed: for tests alone: noise from this seed, which can be subtracted again.
                Nothing of these teachers is private from then on, and every statement says so.
            verbose: whether progress bars are shown.

        Raises:
            ValueError: if the source is not fitted or has no directory, neither or both of an
                epsilon and a mechanism with noise are given, or a number is out of range.
            LedgerError: if the ledger is damaged, belongs to other teachers or other numbers, or is
                not the one that was here.
        """
        if not isinstance(source, Teachers | FeatureSums):
            raise ValueError(
                f"source: expected pate_tf.Teachers or FeatureSums, got {type(source).__name__}; "
                f"Teachers.from_votes and from_models take others"
            )
        self.source = source
        identified = source.identified  # raises where it is not fitted
        if source.directory is None:
            raise ValueError(
                "directory: expected the folder of the one ledger that these teachers ever have, "
                "got none: give Teachers.from_votes or from_models a directory"
            )
        self._settings = LabelSettings(
            method="feature_sums" if isinstance(source, FeatureSums) else "pate",
            epsilon=epsilon,
            mechanism=mechanism,
            margin=margin,
            num_rounds=num_rounds,
            insecure_seed=insecure_seed,
        )
        self._reporting = reporting(verbose)
        self._folder = artifacts.RunDirectory(source.directory).sensitive
        self._budget = Budget(delta=delta, epsilon_budget=epsilon_budget)
        first = dataclasses.replace(
            self._budget,
            replace_budget=replace_budget,
            acknowledge_reset=acknowledge_reset,
            planned_release=planned_release,
        )
        self._ledger: Ledger | None = open_ledger(self._folder, teachers=identified, budget=first)
        self._delta = self._ledger.delta

    def plan(self, pool: Pool, num_queries: int | None = None, **choices: Any) -> ReleasePlan:
        """Returns what `label` would release with the same arguments; nothing is charged.

        Raises:
            ValueError: if something does not fit, or nothing worth its cost can be had.
        """
        if not isinstance(pool, Pool):
            raise ValueError(f"pool: expected data.pool, got {type(pool).__name__}")
        settings = dataclasses.replace(self._settings, num_queries=num_queries, **choices)
        return plan_release(settings, self.source.for_pool(pool), pool, delta=self._delta)

    def label(
        self,
        pool: Pool,
        num_queries: int | None = None,
        *,
        strategy: str | None = None,
        rounds: int | None = None,
        seed: int = 0,
        num_neighbours: int | None = None,
    ) -> Labels:
        """Chooses queries of a pool, charges those without an answer, and returns noisy labels.

        Args:
            pool: `data.pool`.
            num_queries: how many of its inputs the teachers label. Default: planned within
                `epsilon`, else 100.
            strategy: how they are chosen, a name in `pate_tf.queries.strategies`. Default: the
                planned or the mechanism's own. Those that look at earlier noisy labels are as
                private; no data-dependent cost is known for them.
            rounds: in how many parts they are chosen. Default: the strategy's own number.
            seed: of the choice. Another seed asks other queries, which are charged.
            num_neighbours: with "medoids" or "diverse", how many nearest neighbours are asked with
                a query; each teacher votes once for all. Default: up to 20 with a stability gate on
                images, else 0.

        Where no query gets a label, as with a gate that stays shut, there is a warning that says
        what to do; what was charged stays charged.

        Raises:
            ValueError: if something does not fit; nothing was charged then.
            BudgetExceeded: if the queries do not all fit into what is left; then none is charged,
                and the message says how many would fit.
            LedgerError: if the ledger can't be used.
        """
        if self._ledger is None:
            raise ValueError("labeller: expected an open one, got one that was closed")
        plan = self.plan(
            pool,
            num_queries,
            strategy=strategy,
            rounds=rounds,
            seed=seed,
            num_neighbours=num_neighbours,
        )
        labels = release_labels(
            plan,
            pool,
            teachers=self.source.for_pool(pool),
            ledger=self._ledger,
            noise=self._settings.noise(),
            reporting=self._reporting,
            labeller=self,
        )
        if not len(labels):
            warnings.warn(
                f"labels: none of {labels.released.num_queries} queries got one, and "
                f"{labels.cost.in_words()} was charged: {plan.mechanism.unanswered_advice}",
                stacklevel=2,
            )
        return labels

    @contextlib.contextmanager
    def ledger(self) -> Iterator[Ledger]:
        """Gives the open ledger; once this is closed, the ledger opened anew for a moment."""
        if self._ledger is not None:
            yield self._ledger
            return
        with open_ledger(
            self._folder, teachers=self.source.identified, budget=self._budget
        ) as ledger:
            yield ledger

    def spent(self) -> Spending:
        """Returns what everything released from these teachers costs: `epsilon`, `num_queries`."""
        with self.ledger() as ledger:
            return ledger.spent()

    @property
    def remaining(self) -> float | None:
        """The budget less what was spent; None without a budget. `affordable` says what fits."""
        with self.ledger() as ledger:
            return ledger.remaining()

    def affordable(self, charge: Charge | None = None) -> int | None:
        """Returns how many more queries fit into the budget; None without a budget.

        Args:
            charge: of what mechanism; default this labeller's own, if it was given with its noise.
        """
        wanted = charge or self._settings.mechanism
        if wanted is None or isinstance(wanted, type):
            raise ValueError("charge: expected a mechanism with its noise, got none")
        with self.ledger() as ledger:
            return ledger.affordable(wanted)

    def close(self) -> None:
        """Closes the ledger. What was spent can be read still, and labels published."""
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        mechanism, epsilon = self._settings.mechanism, self._settings.epsilon
        what = f"epsilon {epsilon}"
        if mechanism is not None and not isinstance(mechanism, type):
            what = mechanism.summary()
        return f"Labeller({self.source!r}, {what})"
