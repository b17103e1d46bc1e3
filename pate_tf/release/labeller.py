"""Releases labels of a public pool from teachers or feature sums, within one lasting budget."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf.accounting.charge import ReleasedLabels
from pate_tf.accounting.charges import PlannedRelease, check_recordable
from pate_tf.accounting.composition import Charge
from pate_tf.accounting.conversions import check_delta, default_delta
from pate_tf.accounting.mechanisms import LATTICE, LaplaceClusterCounts, Mechanism
from pate_tf.accounting.mechanisms.base import ReleasesFeatureSums, check_mechanism
from pate_tf.accounting.planning import DEFAULT_MARGIN
from pate_tf.core import artifacts
from pate_tf.core.public import Pool
from pate_tf.core.reporting import QUIET, Reporting, reporting
from pate_tf.core.sensitive import PrivateExamples, SumsByClass, VoteCounts
from pate_tf.core.source import PrivateSource
from pate_tf.core.validation import IntArray
from pate_tf.data.named_function import name_of
from pate_tf.ledger import Ledger, LedgerError, Spending
from pate_tf.ledger.journal import DATABASE
from pate_tf.queries import propagation
from pate_tf.queries.labels import Labels, QueryConfig, ask_in_rounds, asked_inputs, check_queries
from pate_tf.queries.strategies import AUTO, STRATEGIES, recommended
from pate_tf.release import plan as planning
from pate_tf.release.accuracy import EstimatedAccuracy, estimate_accuracy
from pate_tf.release.feature_sums import FeatureSums, LabelSource
from pate_tf.release.noise import SeededNoise, SystemNoise
from pate_tf.release.noisy_sums import release_sums
from pate_tf.release.plan import Budget, LabelPlan, LabelSettings
from pate_tf.release.pseudo_labels import labels_from_sums, released_with
from pate_tf.release.votes import VOTES, release_votes
from pate_tf.representations import catalogue
from pate_tf.students.kinds.linear_head import LinearHead
from pate_tf.teachers.teachers import Teachers
from pate_tf.teachers.voters import Voter


class VoteAggregation(tf.Module):
    """Counts votes and picks noisy winners, for any number of teachers and queries.

    Both functions are traced once, whatever the batch, and can be exported with
    `tf.saved_model.save`. They stay in int64 throughout.

    Attributes:
        num_classes: number of classes.
    """

    def __init__(self, num_classes: int) -> None:
        if not 1 <= num_classes < LATTICE:
            raise ValueError(
                f"num_classes: expected at least 1 and below {LATTICE}, got {num_classes}"
            )
        super().__init__(name="vote_aggregation")
        self.num_classes = num_classes

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, None], tf.int64, "labels")])
    def counts(self, labels: tf.Tensor) -> tf.Tensor:
        """Counts the votes of each query.

        Args:
            labels: the teachers' labels, int64 `[num_teachers, batch]`.

        Returns:
            Counts, int64 `[batch, num_classes]`; every row sums to num_teachers.

        Raises:
            tf.errors.InvalidArgumentError: if a label is not from 0 to num_classes - 1. The message
                carries no label.
        """
        in_range = tf.reduce_all((labels >= 0) & (labels < self.num_classes))
        check = tf.debugging.Assert(
            in_range, [f"labels: expected 0 to {self.num_classes - 1}, got others"]
        )
        with tf.control_dependencies([check]):
            batch = tf.shape(labels, tf.int64)[1]
            cells = tf.range(batch)[tf.newaxis, :] * self.num_classes + labels
        flat = tf.math.unsorted_segment_sum(tf.ones_like(cells), cells, batch * self.num_classes)
        return tf.reshape(flat, [batch, self.num_classes])

    @tf.function(
        autograph=False,
        input_signature=[
            tf.TensorSpec([None, None], tf.int64, "counts"),
            tf.TensorSpec([None, None], tf.int64, "noise"),
        ],
    )
    def noisy_winners(self, counts: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
        """Adds noise to counts and returns the class with the largest sum.

        Args:
            counts: int64 `[batch, num_classes]`, below 2**40.
            noise: int64 `[batch, num_classes]`, in units of 1/LATTICE votes, as drawn by
                `AdditiveNoisyMax.additive_noise`.

        Returns:
            Labels, int64 `[batch]`, the lowest index among equal sums.
        """
        sums = counts * LATTICE + noise
        # tf.argmax doesn't promise which of several equal maxima it returns.
        is_largest = sums == tf.reduce_max(sums, axis=1, keepdims=True)
        classes = tf.range(self.num_classes, dtype=tf.int64)
        return tf.reduce_min(tf.where(is_largest, classes, tf.int64.max), axis=1)


aggregation_of = functools.cache(VoteAggregation)  # each is traced once


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
        accept_forecast: bool = False,
        verbose: bool | Reporting = False,
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
            accept_forecast: goes on where labels within `epsilon` are not expected to be more often
                correct than the pool's most frequent class, or than guesses. Otherwise `plan` and
                `label` raise `pate_tf.ForecastError`, and nothing is charged.
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
        settings = LabelSettings(
            method="feature_sums" if isinstance(source, FeatureSums) else "pate",
            epsilon=epsilon,
            mechanism=mechanism,
            margin=margin,
            num_rounds=num_rounds,
            insecure_seed=insecure_seed,
            accept_forecast=accept_forecast,
        )
        budget = Budget(
            delta=delta,
            epsilon_budget=epsilon_budget,
            replace_budget=replace_budget,
            acknowledge_reset=acknowledge_reset,
            planned=planned_release,
        )
        self._take(source, settings, budget, reporting(verbose))
        self.open()

    @classmethod
    def from_settings(
        cls,
        source: Teachers | LabelSource,
        settings: LabelSettings,
        budget: Budget,
        *,
        directory: pathlib.Path | None = None,
        charged_to: PrivateSource | None = None,
        student_runs: Sequence[pathlib.Path] = (),
        reporting: Reporting = QUIET,
    ) -> Self:
        """Takes what flags say; no ledger is there before `open`, or the begin of `with`.

        Args:
            source: as above.
            settings: which labels `label` releases by default.
            budget: of everything that is released from the source.
            directory: run folder of the source, where it has none.
            charged_to: named data source; None for that of the records.
            student_runs: run folders that students go to, besides the source's own.
            reporting: how progress is shown.
        """
        labeller = cls.__new__(cls)
        labeller._take(
            source, settings, budget, reporting, directory, charged_to, student_runs=student_runs
        )
        return labeller

    def _take(
        self,
        source: Any,
        settings: LabelSettings,
        budget: Budget,
        reporting: Reporting,
        directory: pathlib.Path | None = None,
        charged_to: PrivateSource | None = None,
        student_runs: Sequence[pathlib.Path] = (),
    ) -> None:
        self.source = source
        self._identified = getattr(source, "identified", source)  # raises before `fit`
        directory = directory or source.directory
        if directory is None:
            raise ValueError(
                "directory: expected the folder of the one ledger that these teachers ever have, "
                "got none: give Teachers.from_votes or from_models a directory"
            )
        mechanism, identified = settings.mechanism, self._identified
        if mechanism is not None and not isinstance(mechanism, type):
            check_mechanism(mechanism)
            check_recordable(mechanism)
        method = "feature_sums" if identified.num_teachers is None else "pate"
        if settings.method != method:
            raise ValueError(
                f"method: expected {method} for what labels come from, got {settings.method}: pate "
                f"asks teachers, feature_sums asks none"
            )
        self._settings, self._budget, self._reporting = settings, budget, reporting
        seed = settings.insecure_seed
        self._noise = SystemNoise if seed is None else functools.partial(SeededNoise, seed)
        self._folder = artifacts.RunDirectory(directory).sensitive
        self._charged_to, self._student_runs = charged_to, student_runs
        self._ledger: Ledger | None = None
        delta = budget.delta
        number = identified.num_records if identified.unit == "record" else None  # else private
        if delta is None and (self._folder / DATABASE).exists():
            # One that can't be read is refused, or gone on with, where it is opened.
            with contextlib.suppress(LedgerError), Ledger.read(self._folder) as existing:
                delta = existing.delta
        self.delta = default_delta(number) if delta is None else delta
        check_delta(self.delta, number, identified.unit)
        if settings.epsilon is None:
            planning.check_answers(cast(Mechanism, mechanism), self.delta)

    def open(self) -> Self:
        """Opens the ledger, which the first call creates; returns self.

        Raises:
            ValueError: if a budget is to be replaced by none or by less than was spent, or the
                folder can't be written.
            LedgerError: if the ledger is damaged, belongs to others or has other numbers, or is not
                the one that was here.
        """
        if self._ledger is None:
            self._ledger = self._opened(self._budget)
            # A ledger is replaced, or gone on with, once.
            self._budget = dataclasses.replace(
                self._budget, replace_budget=False, acknowledge_reset=False
            )
        return self

    def _opened(self, budget: Budget) -> Ledger:
        for place in (self._folder, self._folder / VOTES):
            artifacts.check_can_hold_files(place)
        facts: dict[str, Any] = {
            "ensemble_digest": self._identified.digest,
            "source": self._charged_to or self._identified.source,
            "unit": self._identified.unit,
            "student_runs": self._student_runs,
            "acknowledge_reset": budget.acknowledge_reset,
            "planned_release": budget.planned,
        }
        epsilon_budget = budget.epsilon_budget
        if not budget.replace_budget or not (self._folder / DATABASE).exists():
            return Ledger.open(
                self._folder, delta=self.delta, epsilon_budget=epsilon_budget, **facts
            )
        if epsilon_budget is None:
            raise ValueError("replace_budget: expected a new epsilon_budget with it, got none")
        with Ledger.read(self._folder) as existing:
            delta, epsilon = existing.delta, existing.epsilon_budget
        ledger = Ledger.open(self._folder, delta=delta, epsilon_budget=epsilon, **facts)
        try:
            ledger.raise_budget(epsilon_budget=epsilon_budget, delta=self.delta)
        except BaseException:
            ledger.close()
            raise
        return ledger

    def plan(self, pool: Pool, num_queries: int | None = None, **choices: Any) -> LabelPlan:
        """Returns what `label` would release with the same arguments; nothing is charged.

        Raises:
            ForecastError: if the labels are not expected to be worth their cost.
            ValueError: if something does not fit.
        """
        if not isinstance(pool, Pool):
            raise ValueError(f"pool: expected data.pool, got {type(pool).__name__}")
        source, settings = self._identified.for_pool(pool), self._settings
        if source.dataset != pool.dataset:
            raise planning.of_other_data(source, pool)
        choices["num_queries"] = num_queries
        changes = {name: value for name, value in choices.items() if value is not None}
        if settings.epsilon is not None:
            changed = dataclasses.replace(settings, **changes)
            plan = planning.plan_release(changed, source, pool, delta=self.delta)
        else:
            names = [field.name for field in dataclasses.fields(QueryConfig)]
            wanted: dict[str, Any] = {name: getattr(settings, name) for name in names} | changes
            if wanted["num_queries"] is None:
                wanted["num_queries"] = planning.DEFAULT_NUM_QUERIES
            mechanism = cast(Mechanism, settings.mechanism)
            if wanted["strategy"] in (None, AUTO):
                wanted["strategy"] = recommended(
                    mechanism.query_strategy,
                    pool.dataset,
                    wanted["num_queries"],
                    is_whole_pool=source.covers(pool.inputs),
                )
            chosen = STRATEGIES.get(wanted["strategy"])
            if wanted["representation"] is None and chosen and chosen.uses_representation:
                features = planning.default_representation(source, wanted["strategy"])
                wanted["representation"] = features
            plan = LabelPlan(mechanism=mechanism, queries=QueryConfig(**wanted))
        if isinstance(source, Voter):
            with_students = plan.mechanism.uses_student_predictions
            check_queries(plan.queries, pool, with_students=with_students, covers=source.covers)
        return plan

    def label(
        self,
        pool: Pool,
        num_queries: int | None = None,
        *,
        strategy: str | None = None,
        rounds: int | None = None,
        seed: int | None = None,
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
            seed: of the choice, by default 0. Another seed asks other queries, which are charged.
            num_neighbours: with "medoids" or "diverse", how many nearest neighbors are asked with
                a query; each teacher votes once for all. Default: up to 20 with a stability gate on
                images, else 0.

        Where no query gets a label, as with a gate that stays shut, there is a warning that says
        what to do; what was charged stays charged.

        Raises:
            ForecastError: if the labels are not expected to be worth their cost, unless
                `accept_forecast`; nothing was charged then.
            ValueError: if something does not fit; nothing was charged then.
            BudgetExceeded: if the queries do not all fit into what is left; then none is charged,
                and the message says how many would fit.
            LedgerError: if the ledger can't be used.
        """
        plan = self.plan(
            pool,
            num_queries,
            strategy=strategy,
            rounds=rounds,
            seed=seed,
            num_neighbours=num_neighbours,
        )
        return self.release(plan, pool)

    def release(self, plan: LabelPlan, pool: Pool) -> Labels:
        """Charges what a plan says, and returns its labels; see `label`.

        What was released before is returned again from the ledger and not charged.
        """
        ledger, reporting = self._ledger, self._reporting
        if ledger is None:
            raise ValueError("labeller: expected an open one, got one that was closed")
        source, queries = self._identified.for_pool(pool), plan.queries
        uses_representation = STRATEGIES[queries.strategy].uses_representation
        if uses_representation or (isinstance(source, FeatureSums) and not source.is_frozen):
            with reporting.clock("training the representation"):
                catalogue.encoder_of(pool, queries.representation, queries.seed)
        if isinstance(source, FeatureSums):
            labels = self._label_by_sums(plan, pool, source, ledger)
        else:
            if source.encoder_weights:
                _check_encoder(source, pool)
            number = queries.num_neighbours
            if number is None:
                # Where one query decides about all, agreement is worth more than that each label is
                # right for its own input.
                is_useful = plan.mechanism.charged_per_batch and uses_representation
                is_useful = is_useful and source.covers(pool.inputs)
                number = propagation.default_number(pool, queries.num_queries) if is_useful else 0
            labels = self._label_by_votes(plan, pool, source, number, ledger)
        if not len(labels.released.labels) and pool:
            reporting.warn(
                f"labels: none of {labels.released.num_queries} queries got one, and "
                f"{labels.cost.in_words()} was charged: {plan.mechanism.unanswered_advice}"
            )
        labels = dataclasses.replace(labels, representation=source.representation)
        return dataclasses.replace(labels, seal=ledger.recognise(labels.record()), labeller=self)

    def _label_by_votes(
        self, plan: LabelPlan, pool: Pool, teachers: Voter, num_neighbours: int, ledger: Ledger
    ) -> Labels:
        queries, mechanism, reporting = plan.queries, plan.mechanism, self._reporting
        num_classes = pool.dataset.num_classes
        aggregation = aggregation_of(num_classes)

        def neighbours_of(indices: IntArray) -> IntArray | None:
            if not num_neighbours:
                return None
            return propagation.nearest(
                pool, indices, num_neighbours, queries.seed, representation=queries.representation
            )

        with reporting.progress_bar(
            desc="asking teachers", total=queries.num_queries, unit="query"
        ) as bar:

            def voter(inputs: npt.NDArray[Any]) -> VoteCounts:
                count = teachers.group_counts if num_neighbours else teachers.counts
                return count(inputs, bar.update)

            def answers(
                indices: IntArray, predictions: npt.NDArray[np.float64] | None = None
            ) -> ReleasedLabels:
                noise = self._noise()
                noise.noisy_winners = lambda counts, drawn: aggregation.noisy_winners(
                    tf.constant(counts), tf.constant(drawn)
                ).numpy()
                return release_votes(
                    asked_inputs(pool, indices, neighbours_of(indices)),
                    mechanism,
                    voter=voter,
                    ledger=ledger,
                    noise=noise,
                    num_classes=num_classes,
                    unit=teachers.unit,
                    query_indices=indices,
                    adaptive=STRATEGIES[queries.strategy].score is not None,
                    num_later=queries.num_queries - len(indices),
                    predictions=predictions,
                )

            labels = ask_in_rounds(
                queries,
                pool,
                answers,
                with_students=mechanism.uses_student_predictions,
                choosing=lambda: reporting.clock("choosing queries"),
            )
        neighbours = neighbours_of(labels.queries)
        return dataclasses.replace(labels, neighbours=neighbours, choice=plan.reason)

    def _label_by_sums(
        self, plan: LabelPlan, pool: Pool, sums: FeatureSums, ledger: Ledger
    ) -> Labels:
        mechanism, vectors = cast(ReleasesFeatureSums, plan.mechanism), sums.vectors(pool.inputs)
        number, deviation = mechanism.num_clusters, mechanism.standard_deviation
        table = sums.sums if number is None else sums.cluster_counts[number]
        moments, next_sums = None, None
        if number is None and sums.has_vectors:
            moments = sums.moments  # before anything is charged
        if mechanism.num_rounds > 1:
            next_sums = functools.partial(sums.residuals, noise=deviation)
        with self._reporting.clock("releasing sums"):
            released = release_sums(
                table,
                mechanism,
                ledger=ledger,
                noise=self._noise(),
                unit=sums.unit,
                next_sums=next_sums,
            )
        with self._reporting.clock("inferring labels of the pool"):
            labels, weights = labels_from_sums(
                pool,
                vectors,
                released.values.reshape(mechanism.num_rounds, *table.values.shape),
                deviation,
                centres=None if number is None else sums.summands.centres[number],
                moments=moments,
                num_records=sums.num_records if sums.unit == "record" else None,
                groups=sums.summands.groups,
                representation=plan.queries.representation,
                seed=plan.queries.seed,
                is_frozen=sums.is_frozen,
            )
        linear_head = None
        if weights is not None:
            scale = sums.summands.scale
            weights = sums.logit_factor * weights
            linear_head = LinearHead(sums.encoder.loaded, sums.dataset, scale, weights)
            linear_head.is_frozen = sums.is_frozen
        return released_with(labels, pool, released, choice=plan.reason, linear_head=linear_head)

    def estimate_accuracy(
        self,
        predictions: IntArray,
        held_back: PrivateExamples,
        epsilon: float,
        *,
        student_digest: str,
    ) -> EstimatedAccuracy:
        """Charges an estimate of a student's accuracy on records that nothing was learned from.

        Args:
            predictions: the student's, of each record, `[num_records]`.
            held_back: of `Data.hold_back`, whose other part the source is of.
            epsilon: what it may cost, in addition.
            student_digest: of the student's weights, for which the estimate is charged once.

        Raises:
            BudgetExceeded: if it does not fit into what is left.
        """

        def release(exact: IntArray, mechanism: LaplaceClusterCounts) -> IntArray:
            with self.ledger() as ledger:
                return release_sums(
                    SumsByClass(exact),
                    mechanism,
                    ledger=ledger,
                    noise=self._noise(),
                    unit=self._identified.unit,
                    about=f"answers to held-back records of {student_digest}",
                ).values

        return estimate_accuracy(
            predictions == held_back.labels, held_back.owners, epsilon, release
        )

    @contextlib.contextmanager
    def ledger(self) -> Iterator[Ledger]:
        """Gives the open ledger; once this is closed, the ledger opened anew for a moment."""
        if self._ledger is not None:
            yield self._ledger
            return
        with self._opened(self._budget) as ledger:
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

    def close(self, *exception: object) -> None:
        """Closes the ledger. What was spent can be read still, and labels published."""
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None

    __enter__ = open
    __exit__ = close

    def __repr__(self) -> str:
        mechanism, epsilon = self._settings.mechanism, self._settings.epsilon
        what = f"epsilon {epsilon}"
        if mechanism is not None and not isinstance(mechanism, type):
            what = mechanism.summary()
        return f"Labeller({self.source!r}, {what})"


def _check_encoder(teachers: Voter, pool: Pool) -> None:
    """Raises ValueError if the frozen encoder that teachers learned from has changed since.

    A student would contain what it is now, and its statement name what it was.
    """
    name, known = teachers.representation, [teachers.encoder_weights]
    if name is None or catalogue.is_known(name):
        return
    with contextlib.suppress(ValueError):  # without an encoder a student learns from raw inputs
        known.append(tuple(catalogue.encoder_of(pool, name).learnt))
    # The last three follow from the pool, which may be another.
    if len({artifacts.digest_arrays(weights[:-3]) for weights in known}) > 1:
        raise ValueError(f"representation: expected {name_of(name)} as teachers had it, got others")
