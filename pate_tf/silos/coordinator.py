"""The untrusted coordinator: it sends queries to silos and computes labels from their answers.

The coordinator sees only answers for which each silo has charged its privacy budget.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from pate_tf.accounting.charge import Cost, ReleasedLabels
from pate_tf.accounting.composition import Charge, delta_of_chosen_kinds, smallest_epsilon
from pate_tf.accounting.conversions import LATTICE
from pate_tf.accounting.local import RandomisedResponse, SecureFeatureSums, class_scores
from pate_tf.core import checks
from pate_tf.core.checks import IntArray
from pate_tf.core.public import Pool
from pate_tf.core.settings import PublicationSettings
from pate_tf.ledger.ledger_file import BudgetExceeded, fault_point
from pate_tf.silos import protocol, shamir
from pate_tf.silos.messages import (
    Mechanism,
    QueryBatch,
    RandomisedVotes,
    Reason,
    Refusal,
    SealedShares,
    SecureMechanism,
    query_digest,
    sums_query,
)
from pate_tf.silos.roster import Asking, SiloRoster
from pate_tf.silos.round_journal import CoordinatorJournal, Round, RoundCollected, RoundResult
from pate_tf.silos.silo import Silo
from pate_tf.statement.several_holders import SiloSpending, SilosStatement

# Sends a task to one aggregator and returns its message. Raises ConnectionError or TimeoutError if
# the aggregator can't be reached.
Ask = Callable[[protocol.AggregatorTask], protocol.AggregatorMessage]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class OpenedHistogram:
    """The noisy sum of the silos' votes or feature sums; it may be published.

    The aggregators reveal nothing else about votes or feature sums.

    Attributes:
        noisy_counts: for votes, int64 `[num_queries, num_classes]`, in units of 1 / LATTICE votes;
            for feature sums, int64 `[1, size]`, in units of 1 / LATTICE.
        silos: sorted names of the silos whose votes or sums are included.
        left_out: sorted names of the silos that are not included. They stay charged.
    """

    noisy_counts: IntArray
    silos: tuple[str, ...]
    left_out: tuple[str, ...]


def open_histogram(
    terms: protocol.BatchTerms, sealed: Mapping[str, Sequence[bytes]], aggregators: Sequence[Ask]
) -> OpenedHistogram:
    """Runs the secure aggregation of votes or feature sums and returns the noisy histogram.

    The coordinator relays messages between aggregators, which refuse messages that were altered.
    After any failure, you can call this function again with the same arguments. Each aggregator
    then sends its earlier messages again. The last step needs `2 * threshold + 1` aggregators; the
    other steps need all aggregators.

    Args:
        terms: public terms of the secure sum.
        sealed: maps each silo's name to its sealed shares, one for each aggregator. Keep these
            shares until the histogram is returned.
        aggregators: functions that send a task to an aggregator and return its message, one for
            each aggregator in the order of their numbers.

    Raises:
        ConnectionError: if an aggregator can't be reached. In this case, no histogram was opened.
            Call again when the aggregator is reachable; the batch resumes from this step.
        ProtocolError: if an aggregator's message violates the protocol.
        TooFewSilosError: if too few silos have valid shares. In this case, the histogram of this
            batch can never be opened.
        ValueError: if an aggregator refuses its task.
    """
    transcript = protocol.Transcript(terms)
    messages: tuple[protocol.AggregatorMessage, ...] = ()

    def ask(number: int) -> protocol.AggregatorMessage | None:
        """Returns an aggregator's message in this step; None if the aggregator can't be reached."""
        dealt = sealed if step is protocol.Step.COMMIT else {}
        task = protocol.AggregatorTask(
            step=step,
            terms=terms,
            sealed={silo: shares[number - 1] for silo, shares in dealt.items()},
            messages=messages,
        )
        try:
            message = aggregators[number - 1](task)
        except (ConnectionError, TimeoutError):
            return None
        if message.aggregator != number:
            raise protocol.ProtocolError(f"{step.value}: a message is not from aggregator {number}")
        return message

    with ThreadPoolExecutor(len(terms.aggregators)) as pool:
        for step in protocol.STEPS:
            answers = list(pool.map(ask, terms.numbers))
            messages = tuple(message for message in answers if message is not None)
            is_last = step is protocol.Step.RELEASE
            if len(messages) < (2 * terms.threshold + 1 if is_last else len(answers)):
                raise ConnectionError(
                    f"{terms.aggregators[answers.index(None)].name} could not be reached at the "
                    f"step {step.value}. No sum was opened. Start this aggregator again with its "
                    "own folder and repeat the call."
                )
            transcript = transcript.after(messages)
    return OpenedHistogram(
        noisy_counts=shamir.to_integers(transcript.total),
        silos=transcript.passing,
        left_out=tuple(sorted(set(sealed) - set(transcript.passing))),
    )


UNIT = "silo"
# Time limit of a round if all silos are in the same process, where they answer one after another.
IN_PROCESS_SECONDS = 7.0 * 24 * 60 * 60

# Bound of `check_total` on the noise in the sums of one class, in standard deviations. The noise
# is below this bound with a probability above 1 - 1e-10.
MAX_DEVIATIONS = 7.0


def plurality(round_: Round, least_answers: int) -> IntArray | None:
    """Returns a label for each query from randomized votes; None if too few silos answered.

    The labels are int64 `[num_queries]`. Each label is the class with the highest likelihood, given
    the votes. Ties are broken at random, with the number of the round as the seed.

    Args:
        round_: the queries that all silos got, and the silos' randomized votes in `replies`.
        least_answers: minimum number of silos that must answer, at least 1.
    """
    replies = round_.replies.items()
    voting = {name: reply for name, reply in replies if isinstance(reply, RandomisedVotes)}
    if len(voting) < least_answers:
        return None
    randomisers: list[Any] = [round_.mechanisms[name] for name in voting]
    scores = class_scores(np.stack([reply.labels for reply in voting.values()]), randomisers)
    order = np.random.default_rng(round_.number).permutation(round_.batch.num_classes)
    return order[np.argmax(np.round(scores[:, order], 9), axis=1)]


def in_words(round_: Round) -> str:
    """Returns a one-line summary of the silos' answers and refusals in a round.

    The summary also names silos whose clocks are wrong: if a silo refuses a batch as too late, but
    the coordinator receives the refusal before the deadline, the silo's clock is ahead.
    """
    replies = round_.replies.values()
    outcomes = Counter(
        f"refused: {reply.reason.value}" if isinstance(reply, Refusal) else "answered"
        for reply in replies
    )
    counts = [f"{number} {outcome}" for outcome, number in sorted(outcomes.items())]
    clocks = [
        f"; the clock of {reply.silo} is at least {reply.time - round_.batch.deadline:.0f} seconds "
        f"ahead of the clock of this machine. Set both clocks by NTP."
        for reply in replies
        if isinstance(reply, Refusal) and reply.time is not None
    ]
    return f"replies of silos: {', '.join(counts) or 'none'}{''.join(clocks)}"


def check_total(total: npt.NDArray[np.float64], noise: float) -> None:
    """Checks that an opened total is possible as a sum of records' feature vectors.

    The last entry of every feature vector is the same constant, so the last entry of a sum of
    vectors bounds the norm of the sum. The same bound holds for a column of second moments, which
    is a sum of feature vectors multiplied by nonnegative numbers. A silo can still add wrong sums
    that stay within this bound. The check uses only public values.

    Args:
        total: the opened sums of feature vectors, one sum in each column, `[num_features + 1,
            num_columns]`, in units of the maximum L2 norm of a feature vector.
        noise: standard deviation of the noise on each entry of the total.

    Raises ValueError if no set of records can have this total.
    """
    from pate_tf.models.encoder import CONSTANT, CONSTANT_FRACTION

    ratio = (1.0 - CONSTANT_FRACTION) ** 0.5 / CONSTANT
    lengths = np.linalg.norm(total[:-1], axis=0)
    of_noise = noise * (len(total) ** 0.5 + (1.0 + ratio) * MAX_DEVIATIONS)
    # Truncating the constant entries to multiples of 2^-10 changes them by less than 0.5 %, so the
    # bound on the norm is 0.5 % larger.
    excess = lengths - (1.005 * ratio * total[-1] + of_noise)
    if (excess > 0.0).any():
        column = int(excess.argmax())
        raise ValueError(
            f"silos: no records can have this sum of features (column {column}: norm "
            f"{lengths[column]:.3g} for about {total[-1, column] / CONSTANT:.3g} records). A silo "
            "sent wrong sums, so labels would be useless. Start a new run with other silos."
        )


class Coordinator(contextlib.ExitStack):
    """Chooses queries from a public pool, sends them to silos, and computes labels from replies.

        coordinator = Coordinator("roster.toml", silos=silos, folder="runs/mine")
        labels = coordinator.label(data.pool, num_queries=100)

    Feature sums need no queries: see `label_from_sums`.

    Attributes:
        roster: names and keys of silos and aggregators.
        asking: settings for sending queries, such as the mechanism and the waiting time.
        journal: stores all queries and replies, and is the interface that silos call; see
            `silos.transport.coordinator_services`.
    """

    def __init__(
        self,
        roster: SiloRoster | str | os.PathLike[str],
        *,
        folder: str | os.PathLike[str] | None,
        silos: Sequence[Silo] | None = None,
        asking: Asking | None = None,
        aggregators: Sequence[Ask] = (),
        on_event: Callable[[str], None] = lambda event: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Creates or opens the coordinator's journal, and resumes an interrupted run.

        Args:
            roster: the roster, or the path of its file.
            folder: folder of the journal; None to keep the journal in memory.
            silos: for a simulation, the silos of the roster as objects in this process; None if
                silos connect over a network.
            asking: settings for sending queries; default: randomized response with all silos.
            aggregators: for secure aggregation, functions that send a task to an aggregator and
                return its message; one for each aggregator of the roster, in the order of their
                numbers.
            on_event: function that is called with each message for the user, such as a message that
                a silo is missing, refused its queries or was left out of a sum.
            clock: function that returns the time in seconds since 1970.

        Raises:
            ValueError: if the roster, the silos and the mechanism do not match.
            LedgerError: if the journal can't be used or belongs to another run.
        """
        super().__init__()
        if not isinstance(roster, SiloRoster):
            roster = SiloRoster.read(pathlib.Path(roster))
        self.roster = roster
        self.asking = Asking() if asking is None else asking
        self._aggregators = aggregators
        self._is_secure = isinstance(self.asking.mechanism, SecureMechanism)
        # Feature sums are opened only if at least this many silos share their sums; 0 for votes.
        self._least_silos = int(getattr(self.asking.mechanism, "least_silos", 0))
        self._unit = getattr(self.asking.mechanism, "unit", UNIT) if self._least_silos else UNIT
        self._on_event = on_event
        if self._is_secure and len(aggregators) != len(roster.aggregators):
            raise ValueError(
                f"aggregators must have {len(roster.aggregators)} functions, got {len(aggregators)}"
            )
        checks.whole(0, len(roster.names), least_silos=self._least_silos)
        if silos is not None and {silo.name for silo in silos} != set(self.roster.names):
            raise ValueError("silos must have exactly the names on the roster")
        path = None if folder is None else pathlib.Path(folder)
        self.journal = CoordinatorJournal(
            roster.run, roster.names, path, clock=clock, on_event=on_event
        )
        self.callback(self.journal.close)
        self._silos = silos
        self._round_seconds = self.asking.seconds if silos is None else IN_PROCESS_SECONDS

    def label(self, pool: Pool, *, num_queries: int, strategy: str = "first", seed: int = 0) -> Any:
        """Chooses queries from a pool and returns the silos' labels for them.

        Args:
            pool: public inputs.
            num_queries: number of public inputs that the silos label.
            strategy: name of the strategy that chooses these inputs, from
                `pate_tf.queries.strategies`.
            seed: seed of the choice of inputs.

        Returns:
            `pate_tf.Labels` with the silos' labels, from which a student can learn, and their cost.

        Raises ValueError if the queries, the pool and the silos do not match. No silo is queried in
        this case.
        """
        # Imported here because strategies may need TensorFlow, but collecting answers does not.
        from pate_tf.queries.strategies import QueryConfig, ask_once, check_queries

        pool.dataset.require_classes("votes of silos")
        config = QueryConfig(strategy=strategy, num_queries=num_queries, seed=seed)
        check_queries(config, pool)
        labels = ask_once(config, pool, lambda indices: self.ask(pool, indices))
        return dataclasses.replace(labels, labeller=self)

    def ask(self, pool: Pool, indices: IntArray) -> ReleasedLabels:
        """Returns the silos' labels of public inputs; queries only inputs without a label.

        If the coordinator was killed while it waited for replies, it first finishes these queries.
        Silos that have not replied yet get another `asking.seconds` to reply, however long the
        coordinator was stopped.

        Args:
            pool: public inputs.
            indices: positions of the queried inputs in the pool, int64 `[num_queries]`.
        """
        self._finish_open_rounds()
        queries = np.ascontiguousarray(pool.inputs[indices])
        digests = [query_digest(query) for query in queries]
        known = self._results()
        first = {digest: place for place, digest in reversed([*enumerate(digests)])}
        if new := sorted(place for digest, place in first.items() if digest not in known):
            self._open(queries[new], pool.dataset.num_classes)
            known = self._results()
        results = [known[digest] for digest in digests]
        answered = [place for place, result in enumerate(results) if result is not None]
        labels = np.array([results[place] for place in answered], np.int64)
        counts = None
        if self._is_secure:
            counts = labels.reshape(len(answered), pool.dataset.num_classes)
            labels = counts.argmax(axis=1)
        return ReleasedLabels(
            query_indices=np.asarray(indices)[answered],
            labels=labels,
            num_classes=pool.dataset.num_classes,
            num_queries=len(indices),
            cost=self.cost(),
            ledger_rows=(),
            secure_noise=True,
            noisy_counts=counts,
        ).checked()

    def label_from_sums(
        self, pool: Pool, representation: Any, *, trains_on_labels: bool = False
    ) -> Any:
        """Opens the noisy total of all silos' feature sums, and labels a public pool with it.

        If this run opened the total before, the total is read from the journal, and no silo is
        charged again.

        Args:
            pool: public inputs. If the pool is empty, `has_moments` of the mechanism must be True.
            representation: the fitted `pate_tf.Representation`, which all silos must use, too.
            trains_on_labels: whether the linear model is fitted to the public labels of the pool
                in addition to the sums.

        Returns:
            `pate_tf.Labels` of the whole pool, with the cost and the resulting linear model.

        Raises:
            ValueError: if the mechanism does not match the pool or the representation; if fewer
                than `least_silos` silos shared their sums (then no total is opened, but these silos
                stay charged); or if the total is impossible because a silo sent wrong sums.
            ConnectionError: if an aggregator can't be reached. In this case, no total was opened,
                and you can call this method again.
        """
        from pate_tf.models.encoder import record_vectors
        from pate_tf.postprocessing.label_inference import labels_from_sums
        from pate_tf.postprocessing.targets import NUM_REDRAWN
        from pate_tf.release.noisy_sums import ReleasedSums, linear_head_of, released_with

        encoder = representation.encoder_
        if getattr(self.asking.mechanism, "has_moments", False) is (len(pool) > 0):
            raise ValueError("mechanism: `has_moments` must be True only if the pool is empty")
        round_ = self.open_total(pool, encoder)
        totals: Any = round_.result
        charge: Any = round_.batch.mechanism
        num_silos = sum(isinstance(reply, SealedShares) for reply in round_.replies.values())
        noise = charge.total_sigma(num_silos)
        check_total(totals[0] / LATTICE, noise)
        vectors = record_vectors(encoder.features(pool.inputs), encoder.scale).astype(np.float32)
        labels, weights = labels_from_sums(
            pool,
            vectors,
            totals,
            noise,
            groups=encoder.groups,
            representation=representation.source,
            seed=representation.seed,
            num_redrawn=NUM_REDRAWN,
            public_labels=pool.true_labels if trains_on_labels else None,
        )
        released = ReleasedSums(
            values=totals[0], cost=self.cost(), ledger_rows=(), secure_noise=True
        )
        linear_head = None if weights is None else linear_head_of(encoder, weights)
        return released_with(labels, pool, released, labeller=self, linear_head=linear_head)

    def open_total(self, pool: Pool, encoder: Any) -> Round:
        """Returns the round in which the noisy total was computed; first runs it if necessary.

        This is the first step of `label_from_sums` and raises the same errors.

        Args:
            pool: public inputs; the silos' records must have the same classes.
            encoder: the public encoder that all silos use to compute features.
        """
        mechanism = self.asking.mechanism
        if getattr(mechanism, "num_features", None) != encoder.num_features:
            raise ValueError(
                f"mechanism must have sums of {encoder.num_features} features, got {mechanism}"
            )
        self._finish_open_rounds()
        query = sums_query(encoder.digest, self._unit)
        for earlier in self.journal.rounds:
            if np.array_equal(earlier.batch.queries, query) and earlier.result is not None:
                return earlier
        round_ = self._open(query, pool.dataset.num_classes)
        if round_.result is None:
            raise ValueError(
                f"silos: matching shares of at least {self._least_silos} silos are needed, got "
                f"{in_words(round_)}. No total was opened. If you call again, silos must send "
                "new sums, and each silo that answers is charged again."
            )
        return round_

    def spending(self) -> tuple[SiloSpending, ...]:
        """Returns each silo's total privacy cost in this run."""
        charged: dict[str, Counter[Charge]] = {name: Counter() for name in self.roster.names}
        num_refused: Counter[str] = Counter()
        for round_ in self.journal.rounds:  # Each query is in only one round.
            for name, reply in round_.replies.items():
                if isinstance(reply, Refusal):
                    num_refused[name] += len(round_.batch.queries)
                else:
                    charged[name][round_.mechanisms[name]] += len(round_.batch.queries)
        epsilons = {  # computed once for silos with the same charges
            key: smallest_epsilon(dict(key), self.roster.delta)[0]
            for key in {frozenset(charges.items()) for charges in charged.values()}
        }
        return tuple(
            SiloSpending(
                name=member.name,
                charged=tuple(charged[member.name].items()),
                num_refused=num_refused[member.name],
                epsilon=epsilons[frozenset(charged[member.name].items())],
                delta=delta_of_chosen_kinds(charged[member.name], self.roster.delta),
            )
            for member in self.roster.members
        )

    def cost(self) -> Cost:
        """Returns the privacy cost of this run for the silo that has the highest cost.

        Raises ValueError if no queries were sent yet.
        """
        if not self.journal.rounds:
            raise ValueError("the run has no cost: no silo was queried yet")
        most = max(self.spending(), key=lambda spent: spent.epsilon)
        charge = max(most.charges, key=lambda kind: most.charges[kind], default=None)
        return Cost(
            charge=charge or self.journal.rounds[-1].batch.mechanism,
            number=sum(most.charges.values()),
            epsilon=most.epsilon,
            delta=self.roster.delta,
            unit=self._unit,
        )

    def gave(self, labels: ReleasedLabels, pool: Pool) -> bool:
        """Whether this run produced the given labels, or the sums that they were computed from."""
        if labels.noisy_sums is not None:
            totals = [each.result[0] for each in self.journal.rounds if each.result is not None]
            return any(np.array_equal(labels.noisy_sums, total) for total in totals)
        known = self._results()
        for index, label in zip(labels.query_indices, labels.labels.tolist(), strict=True):
            result = known.get(query_digest(pool.inputs[index]))
            if result is None or label != int(np.argmax(result) if np.ndim(result) else result):
                return False
        return labels.cost.unit == UNIT

    def statement(self, **facts: Any) -> SilosStatement:
        """Returns the privacy statement for a student that is trained on this run's labels.

        Args:
            **facts: the attributes of `SilosStatement` that this run does not determine.
        """
        facts.setdefault("query_strategy", "first")
        return SilosStatement(
            run_id=self.roster.run,
            delta=self.roster.delta,
            unit=self._unit,
            num_queries=sum(len(each.batch.queries) for each in self.journal.rounds),
            num_answered=sum(result is not None for result in self._results().values()),
            silos=self.spending(),
            **facts,
        )

    def publish(
        self,
        model: Any,
        labels: Any,
        *,
        folder: pathlib.Path,
        export_formats: Sequence[str],
        publication: PublicationSettings,
        quality: Mapping[str, float],
        **estimate: Any,
    ) -> Any:
        """Exports a student's model with a privacy statement that lists each silo's charges.

        See `Student.publish` for the arguments.

        Raises:
            ValueError: if the labels come from another run.
        """
        from pate_tf.serving.export import student_digest
        from pate_tf.statement.publishing import export_with, facts_of, publication_facts

        if not self.gave(labels.released, labels.pool):
            raise ValueError("labels must come from this coordinator's run")
        statement = self.statement(
            pool_name=labels.pool.dataset.name,
            query_strategy=labels.strategy,
            student_digest=student_digest(model),
            quality=quality,
            **facts_of(labels),
            **publication_facts(publication, folder / "student"),
        )
        return export_with(statement, model, labels, folder, export_formats=export_formats)

    def _open(self, queries: npt.NDArray[Any], num_classes: int) -> Round:
        """Sends queries to all silos, waits for the replies, and returns both as a closed round.

        Raises BudgetExceeded if there is no result because silos' budgets are used up.
        """
        mechanisms: dict[str, Mechanism] = {
            member.name: self.asking.mechanism
            or RandomisedResponse(num_classes=num_classes, epsilon=member.epsilon)
            for member in self.roster.members
        }
        number = 1 + max((earlier.number for earlier in self.journal.rounds), default=0)
        batch = QueryBatch(
            run_id=self.roster.run,
            batch_id=f"round-{number}",
            queries=queries,
            num_classes=num_classes,
            mechanism=mechanisms[self.roster.names[0]],
            deadline=self.journal.clock() + self._round_seconds,
        )
        round_ = Round(number=number, batch=batch, mechanisms=mechanisms)
        self.journal.keep(round_)
        self._finish(round_)
        replies = round_.replies.items()
        spent = Reason.BUDGET_SPENT
        halted = [name for name, reply in replies if getattr(reply, "reason", None) is spent]
        if round_.result is None and halted:
            raise BudgetExceeded(
                f"Nothing was released: the privacy budget of {', '.join(halted)} does not allow "
                f"these queries ({in_words(round_)}). Only these silos can raise their budget.",
                num_affordable=0,
            )
        return round_

    def _finish_open_rounds(self) -> None:
        for round_ in self.journal.rounds:
            if round_.is_waiting:
                self.journal.reopen(round_, self._round_seconds)
            if round_.is_open:
                self._finish(round_)

    def _finish(self, round_: Round) -> None:
        """Collects the replies of a round, computes its result and closes the round."""
        if self._silos is None and round_.is_waiting:
            asked = round_.mechanisms.keys()
            deadline = round_.batch.deadline
            self.journal.wait(asked, round_.replies.keys(), deadline, "silos replied")
        for silo in self._silos or ():
            batch = self.journal.poll(silo.name)
            if batch is not None:
                reply = silo.answer(batch)
                fault_point("silo_answered")
                self.journal.submit(reply)
                fault_point("silo_submitted")
        if round_.is_waiting:
            self.journal.keep(RoundCollected(number=round_.number))
        self._on_event(in_words(round_))
        if isinstance(round_.batch.mechanism, SecureMechanism):
            values = self._open_histogram(round_)
        else:
            values = plurality(round_, self.asking.least_answers)
        self.journal.keep(RoundResult(number=round_.number, values=values))

    def _open_histogram(self, round_: Round) -> IntArray | None:
        """Runs secure aggregation and returns the sum; None if too few silos sent valid shares.

        The result is int64: for votes `[num_queries, num_classes]`, for feature sums a single
        table in the mechanism's `shape`, `[1, num_features + 1, num_columns]`.
        """
        sealed = {
            name: reply.sealed
            for name, reply in round_.replies.items()
            if isinstance(reply, SealedShares)
        }
        if len(sealed) < max(self.asking.least_answers, self._least_silos):
            return None
        roster = self.roster
        terms = protocol.BatchTerms.of_batch(round_.batch, roster.aggregators, roster.identities)
        try:
            opened = open_histogram(terms, sealed, self._aggregators)
        except protocol.TooFewSilosError:
            return None  # This batch can never be opened.
        self._on_event(f"opened a sum; silos left out: {', '.join(opened.left_out) or 'none'}")
        if isinstance(terms.mechanism, SecureFeatureSums):
            table = terms.mechanism.shape(round_.batch.num_classes)
            return opened.noisy_counts.reshape(1, *table)
        return opened.noisy_counts

    def _results(self) -> dict[bytes, Any]:
        """Maps the digest of each query in a closed round to its label or row of noisy counts."""
        results: dict[bytes, Any] = {}
        for round_ in self.journal.rounds:
            if not round_.is_open:
                digests = round_.batch.digests
                rows = [None] * len(digests) if round_.result is None else round_.result
                results.update(zip(digests, rows, strict=True))
        return results
