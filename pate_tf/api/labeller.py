"""Who buys labels from teachers, within a budget that lasts as long as the teachers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Self

from pate_tf.accounting.charge import Charge
from pate_tf.accounting.mechanisms import Mechanism, base
from pate_tf.accounting.planning import DEFAULT_MARGIN, PlannedRelease, Recommendation
from pate_tf.aggregation.noise import NoiseSource, SeededNoise, SystemNoise
from pate_tf.api.feature_sums import SumsPlan, check_mechanism
from pate_tf.api.label_requests import Budget, LabelRequest, ask, open_ledger
from pate_tf.api.labels import Labels
from pate_tf.api.planned_labels import TargetRequest
from pate_tf.api.reporting import reporting
from pate_tf.api.teachers import Teachers
from pate_tf.core import artifacts
from pate_tf.core.public import Pool
from pate_tf.ledger import Ledger, Spending
from pate_tf.queries.config import QueryConfig


class Labeller:
    """Pays for noisy labels, then has them drawn. The only way from votes to anything public.

    >>> import pate_tf
    >>> mechanism = pate_tf.LaplaceNoisyMax.of_scale(5.0)
    >>> with pate_tf.Labeller(teachers, mechanism, epsilon_budget=30.0, delta=1e-5) as labeller:
    ...     labels = labeller.label(data.pool, num_queries=10)
    >>> labels.save(folder / "labels")
    >>> labels.cost.epsilon <= labeller.spent().epsilon <= 30.0
    True

    What was paid stands in a ledger below the teachers' directory, for good: a second `Labeller`
    goes on with what is left, in this process or another. What was answered once is answered again
    for nothing.

    The guarantee is differential privacy at (epsilon, delta) for every record, or owner, of the
    private data, whatever the data; `pate_tf.ledger.ledger.Ledger` says under which assumptions.

    Attributes:
      teachers: who is asked.
      mechanism: draws the labels, and says what they cost.
      plan: what `for_target` chose them by; None otherwise.
    """

    def __init__(
        self,
        teachers: Teachers,
        mechanism: Mechanism,
        *,
        delta: float,
        epsilon_budget: float | None = None,
        replace_budget: bool = False,
        acknowledge_reset: bool = False,
        planned_release: PlannedRelease | None = None,
        insecure_seed: int | None = None,
        verbose: bool = False,
    ) -> None:
        """Opens the ledger of the teachers, which the first call makes.

        Args:
          teachers: trained, or brought along with a directory.
          mechanism: such as `pate_tf.LaplaceNoisyMax.of_scale(5.0)`.
          delta: the delta that all epsilons hold at; well below one over the number of records.
            Fixed for these teachers by the first call.
          epsilon_budget: what everything that these teachers ever answer may cost; fixed by the
            first call that gives one. Default: no limit; what is spent is counted all the same.
          replace_budget: puts `epsilon_budget` and `delta` in the place of those that were fixed
            before. It weakens what was promised, and every later statement says so.
          acknowledge_reset: goes on although an earlier ledger of these teachers, or rows of this
            one, are gone. What is known of their cost is charged again, and the ledger and every
            later statement say so for ever.
          planned_release: how the data-dependent cost will be released, if ever; fixed by the first
            call, before there are votes. Default: a sanitised epsilon; see `PlannedRelease`.
          insecure_seed: for tests alone: draws noise that whoever knows the seed can take away.
            Nothing of these teachers is private from then on, and every statement says so.
          verbose: whether progress bars are shown.

        Raises:
          ValueError: if the teachers are not trained or have no directory, the mechanism draws no
            noise, or a number is out of range.
          LedgerError: if the ledger is damaged, belongs to other teachers or other numbers, or is
            not the one that was here.
        """
        _check_teachers(teachers)
        base.check_mechanism(mechanism)
        check_mechanism(mechanism)
        known = teachers.known
        if teachers.directory is None:
            raise ValueError(
                "directory: expected the folder of the one ledger that these teachers ever have, "
                "got none: give Teachers.from_votes or from_models a directory"
            )
        self.teachers = teachers
        self.mechanism = mechanism
        self.plan: Recommendation | SumsPlan | None = None
        self._strategy = mechanism.query_strategy
        self._noise: NoiseSource = (
            SystemNoise() if insecure_seed is None else SeededNoise(insecure_seed)
        )
        self._folder = artifacts.RunDirectory(teachers.directory).sensitive
        self._budget = Budget(delta=delta, epsilon_budget=epsilon_budget)
        self._verbose = verbose
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

    @classmethod
    def for_target(
        cls,
        teachers: Teachers,
        pool: Pool,
        *,
        target_epsilon: float,
        delta: float,
        num_queries: int | None = None,
        mechanism: type[Mechanism] | None = None,
        margin: float = DEFAULT_MARGIN,
        num_exceptions: int = 0,
        **settings: Any,
    ) -> Self:
        """Returns a labeller with the mechanism and the noise that a plan finds best.

        >>> import pate_tf
        >>> with pate_tf.Labeller.for_target(
        ...     teachers, data.pool, target_epsilon=20.0, delta=1e-5
        ... ) as labeller:
        ...     labels = labeller.label(data.pool)
        >>> labels.cost.epsilon <= 20.0
        True

        The plan reads no votes: see `pate_tf.recommend`. `print(labeller.plan)` shows it.

        Args:
          teachers: as of `Labeller`.
          pool: that will be asked about.
          target_epsilon: what the labels of one batch may cost, whatever the data; a second batch
            costs more. `epsilon_budget` limits everything together.
          delta: as of `Labeller`.
          num_queries: how many labels; None for the planned number.
          mechanism: the only one to find the noise of, such as `pate_tf.GaussianNoisyMax`; None
            for the best one.
          margin: as of `pate_tf.recommend`.
          num_exceptions: likewise.
          **settings: what else `Labeller` takes.

        Raises:
          ValueError: if something does not fit, or nothing worth its cost can be had for it.
          LedgerError: as `Labeller`.
        """
        asked = TargetRequest(
            target_epsilon=target_epsilon,
            noise=SystemNoise(),
            mechanism=mechanism,
            num_queries=num_queries,
            margin=margin,
            num_exceptions=num_exceptions,
        )
        _check_teachers(teachers)
        _check_pool(pool)
        plan = asked.plan_for(teachers.known.voter(pool), pool, delta=delta)
        labeller = cls(teachers, plan.mechanism, delta=delta, **settings)
        labeller.plan = plan
        labeller._strategy = asked.planned(plan).queries.strategy
        return labeller

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
        """Chooses queries of a pool, pays for those without an answer, and returns noisy labels.

        Args:
          pool: `data.pool`.
          num_queries: how many of its inputs are put to the teachers; needed but where the
            labeller has a plan, which says how many at most.
          strategy: how they are chosen, a name in `pate_tf.queries.strategies`; None for the
            planned or the mechanism's own. Those that look at earlier noisy labels are as private;
            no data-dependent cost is known for them.
          rounds: in how many parts they are chosen; None for the strategy's own number.
          seed: of the choice. Another seed asks other queries, which are paid for.
          num_neighbours: how many inputs that look most like a query go with it, "medoids" or
            "diverse"; each teacher votes once for all. None for up to 20 with a stability gate on
            images, else 0.

        Raises:
          ValueError: if something does not fit; nothing was charged then.
          BudgetExceeded: if the queries do not all fit into what is left; then none is charged, and
            the message says how many would fit.
          LedgerError: if the ledger can't be used.
        """
        _check_pool(pool)
        if self._ledger is None:
            raise ValueError("labeller: expected an open one, got one that was closed")
        request = LabelRequest(
            queries=QueryConfig(
                strategy=strategy or self._strategy,
                num_queries=self._number(num_queries),
                rounds=rounds,
                seed=seed,
                num_neighbours=num_neighbours,
            ),
            mechanism=self.mechanism,
            noise=self._noise,
            choice=None if self.plan is None else self.plan.reason,
        )
        voter, told = self.teachers.known.voter(pool), reporting(self._verbose)
        queried = ask(request, pool, teachers=voter, ledger=self._ledger, reporting=told)
        return Labels(queried, pool)

    def _number(self, num_queries: int | None) -> int:
        """Returns how many queries are asked: what was said, or planned."""
        if self.plan is None:
            if num_queries is None:
                raise ValueError("num_queries: expected a number, got none, and there is no plan")
            return num_queries
        if num_queries is not None and num_queries > self.plan.num_queries:
            raise ValueError(
                f"num_queries: expected at most the {self.plan.num_queries} that were planned for, "
                f"got {num_queries}"
            )
        return num_queries or self.plan.num_queries

    def spent(self) -> Spending:
        """Returns what everything that these teachers answered costs: `epsilon`, `num_queries`."""
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
          charge: of another mechanism than this labeller's.
        """
        with self.ledger() as ledger:
            return ledger.affordable(self.mechanism if charge is None else charge)

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
        return f"Labeller(<{len(self.teachers)} teachers, {self.mechanism.summary()}>)"


def _check_teachers(teachers: Any) -> None:
    if not isinstance(teachers, Teachers):
        raise ValueError(
            f"teachers: expected pate_tf.Teachers, got {type(teachers).__name__}; "
            f"Teachers.from_votes and from_models take others"
        )


def _check_pool(pool: Any) -> None:
    if not isinstance(pool, Pool):
        raise ValueError(f"pool: expected data.pool, got {type(pool).__name__}")
