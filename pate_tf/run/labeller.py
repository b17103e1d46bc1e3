"""Releases noisy labels of a public pool, and charges their cost to a privacy ledger."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
import numpy.typing as npt

from pate_tf.accounting.charge import PlannedRelease, ReleasedLabels, check_recordable
from pate_tf.accounting.composition import Charge
from pate_tf.accounting.conversions import LATTICE, check_delta, default_delta
from pate_tf.accounting.mechanisms import GaussianMoments, LaplaceClusterCounts, Mechanism
from pate_tf.accounting.mechanisms.base import ReleasesFeatureSums, check_mechanism
from pate_tf.core import artifacts
from pate_tf.core.checks import IntArray
from pate_tf.core.dataset import CLASS, is_labeled
from pate_tf.core.public import Pool, PoolLabels
from pate_tf.core.reporting import QUIET, Reporting, reporting
from pate_tf.core.sensitive import PrivateExamples, SumsByClass, VoteCounts, Votes
from pate_tf.core.source import PrivateSource
from pate_tf.data.named_function import name_of
from pate_tf.ledger import Ledger, LedgerError, Spending
from pate_tf.ledger.ledger_file import DATABASE
from pate_tf.models.encoder import record_vectors
from pate_tf.planning.choose import check_answers, choose
from pate_tf.planning.forecast import HELPS
from pate_tf.planning.release_settings import (
    AUTO,
    DEFAULT_MARGIN,
    FEATURE_SUMS,
    PATE,
    Budget,
    Electorate,
    Known,
    ReleasePlan,
    ReleaseSettings,
)
from pate_tf.postprocessing.label_inference import exceed_noise, labels_from_sums
from pate_tf.postprocessing.targets import NUM_REDRAWN, functions_of_votes
from pate_tf.queries.labels import Labels
from pate_tf.queries.strategies import STRATEGIES, ask_once, inputs_at
from pate_tf.release.feature_sums import FeatureSums, of_other_data
from pate_tf.release.noise import SeededNoise, SystemNoise
from pate_tf.release.noisy_sums import (
    EstimatedAccuracy,
    estimate_accuracy,
    linear_head_of,
    release_sums,
    released_with,
    sums_in_ledger,
)
from pate_tf.release.votes import VOTES, release_votes
from pate_tf.representations import catalogue
from pate_tf.statement.labels_statement import LabelsStatement
from pate_tf.statement.publishing import Published, publish_model
from pate_tf.students.student_kinds.linear_head import LinearHead

if TYPE_CHECKING:
    from pate_tf.teachers.teacher_set import Teachers
    from pate_tf.teachers.voters import Voter


def delta_of(
    budget: Budget, directories: Sequence[pathlib.Path], num_records: int | None, unit: str
) -> float:
    """Returns the delta of a run: the user's delta, the delta of the run's ledger, or the default.

    Args:
        budget: the user's settings of epsilon, delta and budget.
        directories: run folders that may contain the ledger.
        num_records: number of private records; None if this number is private.
        unit: unit of privacy, "record" or "owner".

    Raises:
        ValueError: if delta is above 1 / number of records.
    """
    delta = budget.delta
    for directory in directories if delta is None else ():
        folder = directory / artifacts.SENSITIVE
        if delta is None and (folder / DATABASE).exists():
            # If the ledger can't be read, an error is raised later, when it is opened.
            with contextlib.suppress(LedgerError), Ledger.read(folder) as existing:
                delta = existing.delta
    delta = default_delta(num_records) if delta is None else delta
    check_delta(delta, num_records, unit)
    return delta


def ledger_home(source: Any, directory: pathlib.Path | None) -> pathlib.Path:
    """Returns the folder of a ledger: `directory`, or the run folder of the teachers or sums.

    Raises ValueError if both are missing.
    """
    home: pathlib.Path | None = directory or getattr(source, "directory", None)
    if home is None:
        raise ValueError(
            "directory is required for Teachers.from_votes and from_models: the folder for "
            "the only privacy ledger of these teachers"
        )
    return home


class Labeller:
    """Releases noisy labels from teachers or feature sums, and charges a privacy ledger.

    The charge is written to the ledger before the noise is drawn.

    >>> import pate_tf
    >>> with pate_tf.Labeller(teachers, epsilon=20.0, delta=1e-5) as labeller:
    ...     labels = labeller.label(data.pool)
    >>> labels.save(folder / "labels")
    >>> labels.cost.epsilon <= 20.0
    True

    The source of the labels is `pate_tf.Teachers` or `pate_tf.FeatureSums`. With teachers, a
    labeller releases labels of some inputs of the pool, the queries. With feature sums, which need
    an `epsilon`, it releases labels of the whole pool. If you pass `epsilon`, the mechanism, its
    noise and the number of queries are chosen based on public values (`pate_tf.plan`);
    `print(labeller.plan(data.pool))` shows the comparison. Otherwise, pass a mechanism with its
    noise, such as `pate_tf.LaplaceNoisyMax(scale=5.0)`.

    The ledger in the folder of the source records all charges permanently. A later `Labeller` for
    the same source, in any process, continues with the remaining budget. Labels that were already
    released are returned again without a charge.

    The guarantee is worst-case differential privacy at (epsilon, delta) for every record, or for
    every owner, of the private data. `pate_tf.ledger.Ledger` lists the assumptions.

    Attributes:
        source: the teachers or feature sums.
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
        public_labels: str = AUTO,
        replace_budget: bool = False,
        acknowledge_reset: bool = False,
        planned_release: PlannedRelease | None = None,
        insecure_seed: int | None = None,
        accept_forecast: bool = False,
        verbose: bool | Reporting = False,
    ) -> None:
        """Opens the privacy ledger of the teachers or sums, or creates it if it does not exist.

        Args:
            source: trained teachers, fitted feature sums, or teachers from your own votes or
                models, which need a directory.
            mechanism: a mechanism with its noise or, if you pass `epsilon`, only the type of the
                mechanism. Default: the best mechanism within `epsilon`.
            delta: delta of the guarantee, at most 1 / number of records; 0 for pure differential
                privacy. The first labeller of teachers or sums fixes their delta. Default for the
                first labeller: at most 0.1 / number of records and at most 1e-5.
            epsilon: maximum epsilon of the labels from one call of `label`. Each further call costs
                more.
            epsilon_budget: maximum total epsilon of all releases from these teachers or sums. The
                first labeller that gets a budget fixes it. Default: no limit; the ledger still
                records the cost.
            margin: assumed vote margin for planning, see `pate_tf.plan`.
            public_labels: "train" if the student also learns from public labels of the pool, which
                costs no privacy; "evaluate" if these labels are used only to choose settings and to
                measure accuracy. Default: "train" for tables and texts with at least 100 public
                labels, or at least 625 if teachers vote.
            replace_budget: whether `epsilon_budget` and `delta` replace the budget and delta that
                were fixed before. This weakens an earlier promise, so every later privacy statement
                records the change.
            acknowledge_reset: whether to continue even if an earlier ledger of this source, or rows
                of this ledger, are missing. Their known cost is charged again. The ledger and every
                later privacy statement record this.
            planned_release: form in which the data-dependent privacy cost may be released later.
                The first labeller fixes this, before there are votes. Default: as an epsilon with
                noise ("sanitised").
            insecure_seed: seed of the noise, for tests only: anyone with the seed can subtract the
                noise. After the first release with a seed, nothing about this source is private,
                and every privacy statement records this.
            accept_forecast: whether to continue even if labels within `epsilon` are not expected to
                be more accurate than always predicting the pool's most frequent class, or than
                guessing. If False, `plan` and `label` raise `pate_tf.ForecastError`, and nothing is
                charged.
            verbose: whether progress bars are shown.

        Raises:
            ValueError: if the source is not fitted or has no directory; if neither or both of
                `epsilon` and a mechanism with its noise are given; or if a number is out of range.
            LedgerError: if the ledger is damaged, belongs to another source, has a different budget
                or delta, or was replaced by another ledger.
        """
        if not hasattr(source, "identified"):
            raise ValueError(
                f"source must be pate_tf.Teachers or FeatureSums, got {type(source).__name__}. For "
                f"custom teachers, use Teachers.from_votes or from_models."
            )
        budget = Budget(
            epsilon=epsilon,
            delta=delta,
            epsilon_budget=epsilon_budget,
            replace_budget=replace_budget,
            acknowledge_reset=acknowledge_reset,
            planned=planned_release,
            insecure_seed=insecure_seed,
            accept_forecast=accept_forecast,
        )
        settings = ReleaseSettings(
            budget=budget,
            method=PATE if source.num_teachers else FEATURE_SUMS,
            mechanism=mechanism,
            margin=margin,
            public_labels=public_labels,
        )
        self._take(source, settings, reporting(verbose))
        self.open()

    @classmethod
    def from_settings(
        cls,
        source: Teachers | Voter | FeatureSums,
        settings: ReleaseSettings,
        *,
        directory: pathlib.Path | None = None,
        charged_to: PrivateSource | None = None,
        student_runs: Sequence[pathlib.Path] = (),
        reporting: Reporting = QUIET,
    ) -> Self:
        """Creates a labeller from the settings of a command; its ledger is not open yet.

        Call `open`, or use the labeller in a `with` block, to open the ledger.

        Args:
            source: teachers or feature sums, see `Labeller`.
            settings: settings of the release, which are the defaults of `label`.
            directory: run folder for a source without a folder.
            charged_to: data source that is charged, if the user named one; None to charge the data
                source of the records.
            student_runs: other run folders that contain students, which were trained on labels of
                this source.
            reporting: object that shows progress and warnings.
        """
        labeller = cls.__new__(cls)
        labeller._take(
            source, settings, reporting, directory, charged_to, student_runs=student_runs
        )
        return labeller

    def _take(
        self,
        source: Any,
        settings: ReleaseSettings,
        reporting: Reporting,
        directory: pathlib.Path | None = None,
        charged_to: PrivateSource | None = None,
        student_runs: Sequence[pathlib.Path] = (),
    ) -> None:
        self.source = source
        self._identified = getattr(source, "identified", source)  # raises if not fitted
        directory = ledger_home(source, directory)
        mechanism = settings.mechanism
        identified = self._identified
        if mechanism is not None and not isinstance(mechanism, type):
            check_mechanism(mechanism)
            check_recordable(mechanism)
        method = "feature_sums" if identified.num_teachers is None else "pate"
        if settings.method not in (AUTO, method):
            raise ValueError(
                f"method must be {method} for this source, got {settings.method}. Method pate uses "
                f"teachers, and feature_sums uses feature sums."
            )
        self._settings = dataclasses.replace(settings, method=method)
        self._reporting = reporting
        seed = settings.budget.insecure_seed
        self._noise = SystemNoise if seed is None else functools.partial(SeededNoise, seed)
        self._folder = artifacts.RunDirectory(directory).sensitive
        self._charged_to = charged_to
        self._student_runs = student_runs
        self._ledger: Ledger | None = None
        # With owners, the number of records is private.
        number = identified.num_records if identified.unit == "record" else None
        self._num_records = number
        self.delta = delta_of(settings.budget, [directory], number, identified.unit)
        if settings.budget.epsilon is None:
            check_answers(cast(Mechanism, mechanism), self.delta)

    def open(self) -> Self:
        """Opens the ledger, or creates it if it does not exist; returns self.

        Raises:
            ValueError: if a new budget is missing or less than the spent epsilon, or the folder
                can't be written.
            LedgerError: if the ledger is damaged, belongs to another source, has a different budget
                or delta, or was replaced by another ledger.
        """
        if self._ledger is None:
            self._ledger = self._opened(self._settings.budget)
            # The settings below apply only when the ledger is opened for the first time.
            budget = dataclasses.replace(
                self._settings.budget, replace_budget=False, acknowledge_reset=False
            )
            self._settings = dataclasses.replace(self._settings, budget=budget)
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
            raise ValueError("replace_budget needs a new budget in `epsilon_budget`")
        with Ledger.read(self._folder) as existing:
            delta = existing.delta
            epsilon = existing.epsilon_budget
        ledger = Ledger.open(self._folder, delta=delta, epsilon_budget=epsilon, **facts)
        with contextlib.ExitStack() as undo:
            undo.callback(ledger.close)  # if an error is raised
            ledger.raise_budget(epsilon_budget=epsilon_budget, delta=self.delta)
            undo.pop_all()
        return ledger

    def plan(self, pool: Pool, num_queries: int | None = None, **choices: Any) -> ReleasePlan:
        """Returns the plan for a call of `label` with the same arguments. Charges nothing.

        A plan consists of the mechanism, its noise, the queries and an accuracy forecast.

        Raises:
            ForecastError: if the labels are not expected to be better than guessing, or if private
                data are not expected to improve on public labels, unless `accept_forecast` is set.
            ValueError: if arguments and data contradict each other.
        """
        if not isinstance(pool, Pool):
            raise ValueError(f"pool must be data.pool, got {type(pool).__name__}")
        source = self._identified.for_pool(pool)
        settings = self._settings
        if source.dataset != pool.dataset:
            raise of_other_data(source, pool)
        choices["num_queries"] = num_queries
        changes = {name: value for name, value in choices.items() if value is not None}
        queries = dataclasses.replace(settings.queries, **changes)
        known = Known.of(
            pool,
            unit=source.unit,
            num_records=self._num_records,
            voters=None if isinstance(source, FeatureSums) else Electorate.of(source),
            sums=source if isinstance(source, FeatureSums) else None,
        )
        budget = dataclasses.replace(settings.budget, delta=self.delta)
        settings = dataclasses.replace(settings, budget=budget, queries=queries)
        return choose(known, settings, self._reporting)

    def label(
        self,
        pool: Pool,
        num_queries: int | None = None,
        *,
        strategy: str | None = None,
        seed: int | None = None,
    ) -> Labels:
        """Chooses inputs of the pool as queries, charges new queries, and returns noisy labels.

        Queries that were answered before get their stored label without a charge. If no query gets
        a label, a warning is shown, and the charge remains.

        Args:
            pool: the public inputs, `data.pool`.
            num_queries: number of inputs that the teachers label. Default: chosen within `epsilon`;
                100 if there is no `epsilon`.
            strategy: name of the strategy that chooses queries, see `pate_tf.queries.strategies`.
                Default: the strategy in the plan.
            seed: seed of the choice of queries, by default 0. With a different seed, different
                queries are chosen and charged.

        Raises:
            ForecastError: if the labels are not expected to be better than guessing, or if private
                data are not expected to improve on public labels, unless `accept_forecast` is set.
                In this case, nothing was charged.
            ValueError: if arguments and data contradict each other. In this case, nothing was
                charged.
            BudgetExceeded: if the remaining budget does not cover all queries. In this case,
                nothing was charged. The message contains the number of queries that the budget
                covers.
            LedgerError: if the ledger can't be used.
        """
        plan = self.plan(pool, num_queries, strategy=strategy, seed=seed)
        return self.release(plan, pool)

    def release(self, plan: ReleasePlan, pool: Pool) -> Labels:
        """Charges the privacy cost of a plan and returns the noisy labels; see `label`.

        Labels that were released before are returned from the ledger without a charge.
        """
        ledger = self._ledger
        reporting = self._reporting
        if ledger is None:
            raise ValueError("labeller must be open: use it in a `with` block, or call `open`")
        source = self._identified.for_pool(pool)
        queries = plan.queries
        compares_inputs = STRATEGIES[queries.strategy].infer is not None
        if compares_inputs or (isinstance(source, FeatureSums) and not source.is_frozen):
            with reporting.clock("training the representation"):
                catalogue.encoder_of(pool, queries.representation, queries.seed)
        if isinstance(source, FeatureSums):
            labels = self._label_by_sums(plan, pool, source, ledger)
        else:
            name = source.representation
            if source.encoder_weights and name is not None and not catalogue.is_known(name):
                # The student contains the current encoder, but its privacy statement names the
                # encoder that the teachers used. The two encoders must be identical.
                known = [source.encoder_weights]
                with contextlib.suppress(ValueError):  # without an encoder, students use raw inputs
                    known.append(tuple(catalogue.encoder_of(pool, name).learnt))
                # The last three arrays depend on the pool, which may differ from the pool of the
                # teachers. So these arrays are not compared.
                if len({artifacts.digest_arrays(weights[:-3]) for weights in known}) > 1:
                    raise ValueError(
                        f"representation: {name_of(name)} has changed since the teachers were "
                        f"trained. Restore it, or train new teachers."
                    )
            labels = self._label_by_votes(plan, pool, source, ledger)
        if not len(labels.released.labels) and pool:
            reporting.warn(
                f"the mechanism withheld the labels of all {labels.released.num_queries} queries. "
                f"The charge was {labels.cost.in_words()}."
            )
        if plan.trains_on_labels:
            labels = with_public_labels(labels)
        labels = dataclasses.replace(
            labels, representation=source.representation, forecast=plan.forecast
        )
        return dataclasses.replace(labels, seal=ledger.mac(labels.record()), labeller=self)

    def _label_by_votes(
        self, plan: ReleasePlan, pool: Pool, teachers: Voter, ledger: Ledger
    ) -> Labels:
        import tensorflow as tf

        from pate_tf.release.vote_aggregation import aggregation_of

        queries = plan.queries
        mechanism = plan.mechanism
        reporting = self._reporting
        num_classes = pool.dataset.num_classes
        aggregation = aggregation_of(num_classes)
        encoder = None
        if pool.dataset.target != CLASS:  # an encoder may fail, so it is built before the charge
            name = teachers.representation or catalogue.default_of_sums(pool.dataset)
            encoder = catalogue.encoder_of(pool, name, queries.seed)

        with reporting.progress_bar(
            desc="querying teachers", total=queries.num_queries, unit="input"
        ) as bar:

            def voter(inputs: npt.NDArray[Any]) -> VoteCounts | Votes:
                return teachers.counts(inputs, bar.update)

            def answers(indices: IntArray) -> ReleasedLabels:
                noise = self._noise()
                noise.noisy_winners = lambda counts, drawn: aggregation.noisy_winners(
                    tf.constant(counts), tf.constant(drawn)
                ).numpy()
                return release_votes(
                    inputs_at(pool, indices),
                    mechanism,
                    voter=voter,
                    ledger=ledger,
                    noise=noise,
                    num_classes=num_classes,
                    unit=teachers.unit,
                    query_indices=indices,
                    target="" if encoder is None else pool.dataset.target_in_words,
                )

            labels = ask_once(
                queries, pool, answers, choosing=lambda: reporting.clock("choosing queries")
            )
        linear_head = None
        if encoder is not None:
            features = encoder.features(pool.inputs[labels.query_indices])
            vectors = record_vectors(features, encoder.scale)
            released = labels.released
            weights = functions_of_votes(pool.dataset, vectors, released, teachers.num_teachers)
            linear_head = linear_head_of(encoder, weights)
        return dataclasses.replace(labels, choice=plan.reason, linear_head=linear_head)

    def _label_by_sums(
        self, plan: ReleasePlan, pool: Pool, sums: FeatureSums, ledger: Ledger
    ) -> Labels:
        mechanism = cast(ReleasesFeatureSums, plan.mechanism)
        if sums.summands.has_moments != isinstance(mechanism, GaussianMoments):
            raise ValueError("pool must be the pool of the feature sums; or both must be empty")
        vectors = sums.vectors(pool.inputs)
        number = mechanism.num_clusters
        deviation = mechanism.standard_deviation
        table = sums.sums if number is None else sums.cluster_counts[number]
        moments = None
        next_sums = None
        if number is None and (sums.has_vectors or mechanism.num_rounds > 1):
            moments = sums.moments  # may fail, so they are read before the charge
        if mechanism.num_rounds > 1:
            next_sums = functools.partial(
                sums.residuals, noise=deviation, num_rounds=mechanism.num_rounds
            )
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
                num_redrawn=NUM_REDRAWN,
                public_labels=pool.true_labels if plan.trains_on_labels else None,
            )
        linear_head = None
        if weights is not None:
            scale = sums.summands.scale
            linear_head = LinearHead(sums.encoder.loaded, sums.dataset, scale, weights)
            linear_head.is_frozen = sums.is_frozen
        of_classes = released.values[: number or len(sums.sums.values), : pool.dataset.num_classes]
        exceeds_noise = exceed_noise(of_classes / LATTICE, mechanism, has_pool=len(pool) > 0)
        if exceeds_noise is False:
            self._reporting.warn(
                "The released sums of the classes differ by no more than the noise could cause. "
                f"The student may be no better than a guess: measure it on labeled records. {HELPS}"
            )
        return released_with(
            labels,
            pool,
            released,
            choice=plan.reason,
            linear_head=linear_head,
            exceeds_noise=exceeds_noise,
        )

    def estimate_accuracy(
        self,
        is_correct: npt.NDArray[Any],
        held_back: PrivateExamples,
        epsilon: float,
        *,
        student_digest: str,
    ) -> tuple[EstimatedAccuracy, bool]:
        """Estimates a student's accuracy on held-out private records, with noise and a charge.

        Args:
            is_correct: whether the prediction for each record is correct, see
                `noisy_sums.estimate_accuracy`. SENSITIVE.
            held_back: the held-out records from `Data.hold_back`. Teachers or sums were fitted to
                the other records.
            epsilon: epsilon of the estimate, which is charged in addition to the labels.
            student_digest: digest of the student's weights. An estimate for the same weights is
                charged only once.

        Returns:
            The estimate, and whether this call drew the noise of the estimate. If not, the function
            returns a stored estimate, which may have been computed from other held-out records.

        Raises:
            ValueError: if the units of privacy differ: one of the labels and the estimate protects
                owners, the other protects records.
            BudgetExceeded: if the estimate costs more than the remaining budget.
        """
        unit = self._identified.unit
        if (held_back.owners is None) == (unit == "owner"):
            raise ValueError(
                f"held_back must protect the same unit as the labels, which protect each {unit}. "
                f"Pass the second result of Data.hold_back."
            )
        about = f"answers to held-back records of {student_digest}"
        is_new = True

        def release(exact: IntArray, mechanism: LaplaceClusterCounts) -> IntArray:
            nonlocal is_new
            with self.ledger() as ledger:
                with ledger.exclusive():
                    stored = sums_in_ledger(ledger, mechanism, about)[0]
                if stored:  # perhaps by an earlier version, with fewer counts
                    is_new = False
                    return np.array([stored], np.int64)
                released = release_sums(
                    SumsByClass(exact),
                    mechanism,
                    ledger=ledger,
                    noise=self._noise(),
                    unit=unit,
                    about=about,
                )
            is_new = released.is_new  # another process may have been faster
            return released.values

        has_two = held_back.dataset.target == CLASS and held_back.dataset.num_classes == 2
        labels = held_back.labels if has_two else None
        return estimate_accuracy(is_correct, held_back.owners, epsilon, release, labels), is_new

    def publish(self, model: Any, labels: Labels, **options: Any) -> Published[LabelsStatement]:
        """Exports a student's model with its privacy statement; see `Student.publish`."""
        with self.ledger() as ledger:
            source = self.source.for_pool(labels.pool)
            return publish_model(model, labels, teachers=source, ledger=ledger, **options)

    @contextlib.contextmanager
    def ledger(self) -> Iterator[Ledger]:
        """Yields the open ledger. A closed ledger is opened only for the `with` block."""
        if self._ledger is not None:
            yield self._ledger
            return
        with self._opened(self._settings.budget) as ledger:
            yield ledger

    def spent(self) -> Spending:
        """Returns the total privacy cost of all releases from the teachers or feature sums."""
        with self.ledger() as ledger:
            return ledger.spent()

    @property
    def remaining(self) -> float | None:
        """The remaining epsilon of the budget; None without a budget. See also `affordable`."""
        with self.ledger() as ledger:
            return ledger.remaining()

    def affordable(self, charge: Charge | None = None) -> int | None:
        """Returns the number of queries that the remaining budget covers; None without a budget.

        Args:
            charge: mechanism with its noise. Default: the mechanism of this labeller.
        """
        wanted = charge or self._settings.mechanism
        if wanted is None or isinstance(wanted, type):
            raise ValueError("charge must be a mechanism with its noise")
        with self.ledger() as ledger:
            return ledger.affordable(wanted)

    def close(self, *exception: object) -> None:
        """Closes the ledger. You can still call `spent` and `publish`."""
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None

    __enter__ = open
    __exit__ = close

    def __repr__(self) -> str:
        mechanism = self._settings.mechanism
        epsilon = self._settings.budget.epsilon
        what = f"epsilon {epsilon}"
        if mechanism is not None and not isinstance(mechanism, type):
            what = mechanism.summary()
        return f"Labeller({self.source!r}, {what})"


def with_public_labels(labels: Labels) -> Labels:
    """Adds the public labels of the pool to the labels that a student learns from.

    Public labels replace inferred labels of the same inputs. Nothing is replaced if there is a
    linear model for tables or texts, or for a target that is a number or several labels, because
    this model has already learned from the public labels.
    """
    dataset = labels.pool.dataset
    inferred = labels.training_labels
    is_joined = dataset.augmentation == "none" or dataset.target != CLASS
    if labels.linear_head is not None and is_joined:
        return dataclasses.replace(labels, has_public_labels=True)
    true_labels = np.asarray(labels.pool.true_labels)
    public = np.flatnonzero(is_labeled(true_labels))
    is_rest = ~np.isin(inferred.query_indices, public)
    weights = inferred.weights
    if weights is not None:
        one_hot = np.eye(inferred.num_classes, dtype=np.float32)[true_labels[public]]
        weights = np.concatenate([one_hot, weights[is_rest]])
    taught = PoolLabels(
        query_indices=np.concatenate([public, inferred.query_indices[is_rest]]),
        labels=np.concatenate([true_labels[public], inferred.labels[is_rest]]),
        num_classes=inferred.num_classes,
        weights=weights,
    )
    return dataclasses.replace(labels, training_labels=taught, has_public_labels=True)
