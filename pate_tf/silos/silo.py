"""One silo: it checks its policy, is charged, randomises, stores, and only then sends.

In this order a kill at any point leaves no answer that was not charged, and none that is drawn a
second time with fresh noise.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import pathlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pate_tf.accounting.charge import Charge
from pate_tf.accounting.composition import fits
from pate_tf.accounting.conversions import check_delta
from pate_tf.accounting.local import RandomisedResponse, SecureFeatureSums
from pate_tf.accounting.mechanisms.base import NoiseDraws
from pate_tf.core.source import PrivateSource
from pate_tf.core.validation import IntArray
from pate_tf.ledger.journal import fault_point
from pate_tf.ledger.rollback_guard import ACKNOWLEDGE, warn
from pate_tf.net.messages import encode
from pate_tf.net.retries import with_retries
from pate_tf.release.noise import SystemNoise
from pate_tf.silos.account import SiloAccount
from pate_tf.silos.messages import (
    Answer,
    BatchSource,
    QueryBatch,
    RandomisedVotes,
    Reason,
    Refusal,
    Reply,
    SealedShares,
    sums_query,
)
from pate_tf.silos.policy import Policy
from pate_tf.silos.roster import SiloRoster
from pate_tf.silos.teachers import SiloSums, SiloTeacher

if TYPE_CHECKING:
    from pate_tf.silos.secure.keys import Keys
    from pate_tf.silos.secure.protocol import BatchTerms


class RefusedError(Exception):
    """A batch is refused, by policy and public values alone."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.value)
        self.reason = reason


class Silo(contextlib.AbstractContextManager["Silo"]):
    """SENSITIVE: a teacher or feature sums that never leave their owner, with policy and ledger.

        silo = Silo("policy.toml", SiloTeacher(classifier, num_classes=10), folder="silo/sensitive")
        reply = silo.answer(batch)

    Attributes:
        policy: what it allows.
        account: its privacy ledger: what it was charged and answered.
    """

    def __init__(
        self,
        policy: Policy | str | os.PathLike[str],
        content: SiloTeacher | SiloSums,
        *,
        folder: str | os.PathLike[str] | None,
        roster: SiloRoster | None = None,
        keys: Keys | None = None,
        noise: NoiseDraws | None = None,
        clock: Callable[[], float] = time.time,
        source: PrivateSource | None = None,
        acknowledge_reset: bool = False,
    ) -> None:
        """Opens the silo's ledger.

        Args:
            policy: what the silo allows, or the file that says so.
            content: what it votes by; or its feature sums.
            folder: sensitive; holds the ledger. None for a simulation alone, which stores none.
            roster: names the aggregators that votes or sums are sealed to; None if the silo takes
                no part in secure aggregation.
            keys: of the silo, which stand on the roster, to share feature sums.
            noise: default: the operating system's entropy. Anything else is for tests.
            clock: seconds since 1970.
            source: that the silo's releases are charged to; None for its own folder.
            acknowledge_reset: see `SiloAccount`.

        Raises:
            ValueError: if the policy is none, or sums are of another unit than the policy's.
            LedgerError: if the ledger is damaged, belongs to another silo, was restored from an
                older copy, or is new where the silo had one.
        """
        self.policy = policy if isinstance(policy, Policy) else Policy.read(pathlib.Path(policy))
        self._content, self._roster, self._keys = content, roster, keys
        if isinstance(content, SiloSums):
            if content.unit != self.policy.unit:
                raise ValueError(
                    f"unit: expected sums of each {self.policy.unit}, which the policy protects, "
                    f"got those of each {content.unit}"
                )
            source = content.source if source is None else source
            if content.num_records is not None and self.policy.unit == "record":
                check_delta(self.policy.delta, content.num_records)
        self._noise = SystemNoise() if noise is None else noise
        self._clock = clock
        self.account = SiloAccount(
            None if folder is None else pathlib.Path(folder),
            silo=self.policy.silo,
            epsilon_budget=self.policy.epsilon_budget,
            delta=self.policy.delta,
            source=source,
            unit=self.policy.unit,
            acknowledge_reset=acknowledge_reset,
        )

    @property
    def name(self) -> str:
        """The silo's name."""
        return self.policy.silo

    def close(self) -> None:
        """Closes the ledger."""
        self.account.close()

    def __exit__(self, *exception: object) -> None:
        self.close()

    def answer(self, batch: QueryBatch) -> Reply:
        """Answers a batch, or refuses it by policy.

        What was answered before is answered again from the ledger without a charge. A teacher that
        fails votes for class 0: whether there is an answer does not depend on it.

        Raises LedgerError if the ledger can't be used; nothing is sent.
        """
        names: Any = {"run_id": batch.run_id, "batch_id": batch.batch_id, "silo": self.name}
        account = self.account
        try:
            self._check_allowed(batch)
            with account.exclusive():
                self._check_commitment(batch)
                if isinstance(batch.mechanism, RandomisedResponse):
                    values: Any = {"labels": self._randomised(batch, batch.mechanism)}
                    kind: type[Reply] = RandomisedVotes
                else:
                    values, kind = {"sealed": self._shared(batch)}, SealedShares
                commitment = None if account.folder is None else account.witness()
                return kind(**names, **values, commitment=commitment)
        except RefusedError as refused:
            return Refusal(**names, reason=refused.reason)

    def step(self, coordinator: BatchSource) -> Answer | None:
        """Polls once; answers and submits what there was. Returns what came of it, or None.

        Raises:
            ConnectionError: if the coordinator can't be reached. The reply is stored and sent
                again, unchanged, when the batch is polled again.
        """
        batch = coordinator.poll()
        if batch is None:
            return None
        reply = self.answer(batch)
        fault_point("silo_answered")
        answer = coordinator.submit(reply)
        fault_point("silo_submitted")
        return answer

    def serve(
        self,
        coordinator: BatchSource,
        *,
        on_event: Callable[[str], None] = lambda event: None,
        **waiting: Any,
    ) -> None:
        """Polls and answers until it is stopped; for `until` and `sleep` see `with_retries`.

        Args:
            coordinator: or a connection to it.
            on_event: called with what happened, in words without anything of the data.
            **waiting: of `pate_tf.net.retries.with_retries`.
        """

        def step() -> bool | None:
            answer = self.step(coordinator)
            if answer is None:
                return None
            on_event(f"a batch was answered: {answer.value}")
            return True

        with_retries(step, on_event=on_event, **waiting)

    def _check_allowed(self, batch: QueryBatch) -> None:
        """Raises RefusedError, by public values alone, unless the silo may and can answer."""
        objection = self.policy.objection(batch)
        if objection is not None:
            raise RefusedError(objection)
        charge, content = batch.mechanism, self._content
        if isinstance(charge, SecureFeatureSums) != isinstance(content, SiloSums):
            raise RefusedError(Reason.MECHANISM_NOT_ALLOWED)
        if isinstance(content, SiloTeacher) and not content.takes(batch):
            raise RefusedError(Reason.MALFORMED)
        if isinstance(content, SiloSums) and isinstance(charge, SecureFeatureSums):
            query = sums_query(content.representation, content.unit)
            shape = (charge.num_features + 1, batch.num_classes)
            if not np.array_equal(batch.queries, query) or content.values.shape != shape:
                raise RefusedError(Reason.OTHER_SUMS)

    def _check_commitment(self, batch: QueryBatch) -> None:
        """Refuses and warns unless the ledger holds the row that the coordinator was sent."""
        account, commitment = self.account, batch.commitment
        if commitment is None or account.folder is None or account.holds_witness(commitment):
            return
        if not account.acknowledge_witness(commitment):
            warn(
                f"{account.folder}: the coordinator has the commitment to a row that is not here: "
                f"this ledger was restored from an older copy, or a copy of it or another ledger "
                f"went on, or the coordinator made it up; nothing is answered; put the newest one "
                f"back; {ACKNOWLEDGE}"
            )
            raise RefusedError(Reason.UNKNOWN_COMMITMENT)

    def _randomised(self, batch: QueryBatch, charge: RandomisedResponse) -> IntArray:
        """Returns the answer to each query, int64 `[num_queries]`; new ones are charged first."""
        account = self.account
        first = {query: place for place, query in reversed([*enumerate(batch.digests)])}
        charged = {query: account.charge_of(query) for query in dict.fromkeys(batch.digests)}
        if not set(charged.values()) <= {None, charge}:
            raise RefusedError(Reason.ANSWERED_OTHERWISE)
        if new := [query for query, earlier in charged.items() if earlier is None]:
            self._debit(batch, charge, new)
        answers = account.labels(list(charged))
        missing = [query for query in charged if query not in answers]
        if missing and isinstance(self._content, SiloTeacher):
            votes = self._content.votes(batch.queries[[first[query] for query in missing]])
            drawn = charge.draw(votes, self._noise)
            fault_point("silo_drawn")
            fresh = dict(zip(missing, drawn.tolist(), strict=True))
            account.store_labels(fresh)
            fault_point("silo_stored")
            answers |= fresh
        return np.array([answers[query] for query in batch.digests])

    def _shared(self, batch: QueryBatch) -> tuple[bytes, ...]:
        """Returns a batch's sealed shares; they are charged, dealt and stored once."""
        account, are_sums = self.account, isinstance(self._content, SiloSums)
        asked = dataclasses.replace(batch, deadline=0.0, commitment=None)
        key = hashlib.sha256(encode(asked)).hexdigest()
        sealed = account.sealed(key)
        if sealed is not None:
            return sealed
        terms = self._terms(batch)
        if not account.is_charged_batch(key):
            # Fresh noise is drawn for every batch: a query to a teacher may stand in one of them
            # alone, while feature sums are charged again.
            queries = (bytes.fromhex(key),) if are_sums else batch.digests
            if len(set(queries)) != len(batch):
                raise RefusedError(Reason.MALFORMED)
            if any(account.charge_of(query) is not None for query in queries):
                raise RefusedError(Reason.ANSWERED_OTHERWISE)
            self._debit(batch, batch.mechanism, queries, key=key)
        sealed = self._sealed(terms, batch)
        fault_point("silo_drawn")
        account.store_sealed(key, sealed)
        fault_point("silo_stored")
        return sealed

    def _terms(self, batch: QueryBatch) -> BatchTerms:
        """Returns the terms of a batch with the keys of the silo's own roster."""
        if self._roster is None:
            raise RefusedError(Reason.MECHANISM_NOT_ALLOWED)
        from pate_tf.silos.secure.protocol import BatchTerms

        try:
            terms = BatchTerms.of_batch(batch, self._roster.aggregators, self._roster.identities)
        except ValueError:
            raise RefusedError(Reason.MECHANISM_NOT_ALLOWED) from None
        if terms.are_sums and (self._keys is None or self._keys.identity not in terms.silos):
            raise RefusedError(Reason.MECHANISM_NOT_ALLOWED)
        return terms

    def _sealed(self, terms: BatchTerms, batch: QueryBatch) -> tuple[bytes, ...]:
        """Draws the noise of a charged batch of sums, and shares it; or shares votes."""
        from pate_tf.silos.secure import sealing  # needs cryptography

        if isinstance(self._content, SiloTeacher):
            return sealing.seal_votes(self._content.votes(batch.queries), terms, silo=self.name)
        if self._keys is None:
            raise ValueError("keys: expected those of the silo, got none")
        return sealing.seal_sums(self._content.values, terms, keys=self._keys)

    def _debit(
        self, batch: QueryBatch, charge: Charge, queries: Sequence[bytes], *, key: str | None = None
    ) -> None:
        """Charges new queries, or refuses them by queries and policy, never by data."""
        account, number = self.account, len(queries)
        if not batch.deadline > self._clock():
            raise RefusedError(Reason.TOO_LATE)
        if account.num_charged_within_a_day() + number > self.policy.queries_per_day:
            raise RefusedError(Reason.DAILY_LIMIT)
        if not fits(
            account.charges + Counter({charge: number}), account.delta, account.epsilon_budget
        ):
            raise RefusedError(Reason.BUDGET_SPENT)
        account.debit(charge, queries, batch=key)
        fault_point("silo_debited")
