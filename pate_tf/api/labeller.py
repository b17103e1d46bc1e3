"""Releases labels of a public pool from teachers, within a budget that lasts as long as these."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Self

from pate_tf.accounting.charge import Charge
from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.accounting.planning import DEFAULT_MARGIN, PlannedRelease
from pate_tf.api.labelling import ReleasePlan, open_ledger, plan_release, release_labels
from pate_tf.api.labels import Labels
from pate_tf.api.reporting import reporting
from pate_tf.api.settings import Budget, LabelSettings
from pate_tf.api.teachers import Teachers
from pate_tf.core import artifacts
from pate_tf.core.public import Pool
from pate_tf.ledger import Ledger, Spending


class Labeller:
    """Charges noisy labels, then has them drawn. The only way from votes to anything public.

    >>> import pate_tf
    >>> with pate_tf.Labeller(teachers, epsilon=20.0, delta=1e-5) as labeller:
    ...     labels = labeller.label(data.pool)
    >>> labels.save(folder / "labels")
    >>> labels.cost.epsilon <= 20.0
    True

    With `epsilon`, mechanism, noise and number of queries are planned from public values
    (`pate_tf.recommend`); `print(labeller.plan(data.pool))` shows the comparison. With a mechanism
    that has its noise, such as `pate_tf.LaplaceNoisyMax.of_scale(5.0)`, labels cost what they cost.

    What was charged stands in a ledger below the teachers' directory, for good: a second `Labeller`
    goes on with what is left, in this process or another. A query that was answered once is
    answered again without a charge.

    The guarantee is differential privacy at (epsilon, delta) for every record, or owner, of the
    private data, whatever the data; `pate_tf.ledger.ledger.Ledger` says under which assumptions.

    Attributes:
        teachers: who vote.
    """

    def __init__(
        self,
        teachers: Teachers,
        mechanism: Mechanism | type[Mechanism] | None = None,
        *,
        delta: float,
        epsilon: float | None = None,
        method: str = "pate",
        epsilon_budget: float | None = None,
        margin: float = DEFAULT_MARGIN,
        num_exceptions: int = 0,
        replace_budget: bool = False,
        acknowledge_reset: bool = False,
        planned_release: PlannedRelease | None = None,
        insecure_seed: int | None = None,
        verbose: bool = False,
    ) -> None:
        """Opens the ledger of the teachers, which the first call makes.

        Args:
            teachers: trained, or brought along with a directory.
            mechanism: one with its noise; or, with `epsilon`, the class to find the noise of. None
                for the best one within `epsilon`.
            delta: the delta that all epsilons hold at; well below one over the number of records.
                Fixed for these teachers by the first call.
            epsilon: what the labels of one call of `label` may cost; another call costs more.
            method: "pate", or "feature_sums" of teachers on features.
            epsilon_budget: what everything released from these teachers may ever cost; fixed by the
                first call that gives one. Default: no limit; what is spent is recorded.
            margin: as of `pate_tf.recommend`.
            num_exceptions: as of `pate_tf.recommend`.
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
            ValueError: if the teachers are not trained or have no directory, neither or both of an
                epsilon and a mechanism with noise are given, or a number is out of range.
            LedgerError: if the ledger is damaged, belongs to other teachers or other numbers, or is
                not the one that was here.
        """
        if not isinstance(teachers, Teachers):
            raise ValueError(
                f"teachers: expected pate_tf.Teachers, got {type(teachers).__name__}; "
                f"Teachers.from_votes and from_models take others"
            )
        known = teachers.known
        if teachers.directory is None:
            raise ValueError(
                "directory: expected the folder of the one ledger that these teachers ever have, "
                "got none: give Teachers.from_votes or from_models a directory"
            )
        self.teachers = teachers
        self._settings = LabelSettings(
            method=method,
            epsilon=epsilon,
            mechanism=mechanism,
            margin=margin,
            num_exceptions=num_exceptions,
            insecure_seed=insecure_seed,
        )
        self._verbose = verbose
        self._folder = artifacts.RunDirectory(teachers.directory).sensitive
        self._budget = Budget(delta=delta, epsilon_budget=epsilon_budget)
        first = Budget(
            delta=delta,
            epsilon_budget=epsilon_budget,
            replace_budget=replace_budget,
            acknowledge_reset=acknowledge_reset,
            planned_release=planned_release,
        )
        self._ledger: Ledger | None = open_ledger(
            self._folder, teachers=known.identified, budget=first
        )

    def plan(self, pool: Pool, num_queries: int | None = None, **choices: Any) -> ReleasePlan:
        """Returns what `label` would release with the same arguments; nothing is charged.

        Raises:
            ValueError: if something does not fit, or nothing worth its cost can be had.
        """
        if not isinstance(pool, Pool):
            raise ValueError(f"pool: expected data.pool, got {type(pool).__name__}")
        settings = self._settings.with_choices(num_queries=num_queries, **choices)
        voter = self.teachers.known.voter(pool)
        return plan_release(settings, voter, pool, delta=self._budget.delta)

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
        queried = release_labels(
            plan,
            pool,
            teachers=self.teachers.known.voter(pool),
            ledger=self._ledger,
            noise=self._settings.noise(),
            reporting=reporting(self._verbose),
        )
        return Labels(queried, pool)

    @contextlib.contextmanager
    def ledger(self) -> Iterator[Ledger]:
        """Gives the open ledger; once this is closed, the ledger opened anew for a moment."""
        if self._ledger is not None:
            yield self._ledger
            return
        with open_ledger(
            self._folder, teachers=self.teachers.known.identified, budget=self._budget
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
        return f"Labeller(<{len(self.teachers)} teachers, {what}>)"
