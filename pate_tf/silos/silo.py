"""One silo: it checks its policy, is charged, randomises, stores, and only then sends.

In this order a kill at any point leaves no answer that was not charged, and none that is drawn a
second time with fresh noise.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pate_tf.accounting.charge import Charge
from pate_tf.accounting.composition import fits
from pate_tf.accounting.delta import check_delta
from pate_tf.accounting.local import LocalNoise, LocalRandomiser, SecureFeatureSums
from pate_tf.core.source import PrivateSource
from pate_tf.core.validation import IntArray
from pate_tf.ledger.journal import fault_point
from pate_tf.ledger.rollback_guard import ACKNOWLEDGE, warn
from pate_tf.net.retries import with_retries
from pate_tf.release.noise import SystemNoise
from pate_tf.silos.account import SiloAccount
from pate_tf.silos.messages import (
    Answer,
    Connection,
    QueryBatch,
    RandomisedVotes,
    Reason,
    Refusal,
    Reply,
    SealedShares,
    sums_query,
)
from pate_tf.silos.policy import Policy
from pate_tf.silos.teachers import SiloTeacher, as_sums

if TYPE_CHECKING:
    from pate_tf.silos.secure.opening import PartySealer


class RefusedError(Exception):
    """A batch is refused, by policy and public values alone."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.value)
        self.reason = reason


class Silo(contextlib.AbstractContextManager["Silo"]):
    """SENSITIVE: a teacher or feature sums that never leave their owner, with policy and account.

        silo = Silo("policy.toml", teacher=classifier, num_classes=10, folder="silo/sensitive")
        reply = silo.answer(batch)

    Attributes:
        policy: what it allows.
        account: what it was charged and answered.
    """

    def __init__(
        self,
        policy: Policy | str | os.PathLike[str],
        teacher: Any,
        *,
        folder: str | os.PathLike[str] | None,
        num_classes: int | None = None,
        input_shape: tuple[int, ...] | None = None,
        input_type: str | None = None,
        sealer: PartySealer | None = None,
        noise: LocalNoise | None = None,
        clock: Callable[[], float] = time.time,
        source: PrivateSource | None = None,
        acknowledge_reset: bool = False,
    ) -> None:
        """Opens the silo's account.

        Args:
            policy: what the silo allows, or the file that says so.
            teacher: a function or object with `predict`, a path, or a `SiloTeacher`; or, for method
                feature_sums, fitted `pate_tf.FeatureSums` or `SiloSums`.
            folder: sensitive; holds the account. None for a simulation alone, which stores none.
            num_classes: number of classes; None where the teacher knows, as the two below.
            input_shape: shape of one query; None for any.
            input_type: "uint8" or "float32"; None for either.
            sealer: seals votes to parties; None if the silo takes no part in secure aggregation.
                With feature sums it holds the silo's keys.
            noise: default: the operating system's entropy. Anything else is for tests.
            clock: seconds since 1970.
            source: that the silo's releases are charged to; None for its own folder.
            acknowledge_reset: see `SiloAccount`.

        Raises:
            ValueError: if policy or teacher are none, or sums are of another unit than the
                policy's.
            LedgerError: if the account is damaged, belongs to another silo, was restored from an
                older copy, or is new where the silo had one.
        """
        self.policy = policy if isinstance(policy, Policy) else Policy.read(pathlib.Path(policy))
        self._sums = as_sums(teacher)
        self._teacher: SiloTeacher | None = None
        if self._sums is None:
            if not isinstance(teacher, SiloTeacher):
                teacher = SiloTeacher(
                    teacher, num_classes=num_classes, input_shape=input_shape, input_type=input_type
                )
            self._teacher = teacher
        elif self._sums.unit != self.policy.unit:
            raise ValueError(
                f"unit: expected sums of each {self.policy.unit}, which the policy protects, got "
                f"those of each {self._sums.unit}"
            )
        else:
            source = self._sums.source if source is None else source
            if self._sums.num_records is not None and self.policy.unit == "record":
                check_delta(self.policy.delta, self._sums.num_records)
        self._sealer = sealer
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
        """Closes the account."""
        self.account.close()

    def __exit__(self, *exception: object) -> None:
        self.close()

    def answer(self, batch: QueryBatch) -> Reply:
        """Answers a batch, or refuses it by policy.

        What was answered before is answered again from the account without a charge. A teacher that
        fails votes for class 0: whether there is an answer does not depend on it.

        Raises LedgerError if the account can't be used; nothing is sent.
        """
        names: Any = {"run_id": batch.run_id, "batch_id": batch.batch_id, "silo": self.name}
        try:
            charge = self._allowed_charge(batch)
            with self.account.exclusive():
                self._check_witness(batch)
                if isinstance(charge, LocalRandomiser):
                    labels = self._randomised(batch, charge)
                    return RandomisedVotes(**names, labels=labels, witness=self._witness())
                sealed = self._shared(batch, charge)
                return SealedShares(**names, sealed=sealed, witness=self._witness())
        except RefusedError as refused:
            return Refusal(**names, reason=refused.reason)

    def step(self, connection: Connection) -> Answer | None:
        """Polls once; answers and submits what there was. Returns what came of it, or None.

        Raises:
            ConnectionError: if the coordinator can't be reached. The reply is stored and sent
                again, unchanged, when the batch is polled again.
        """
        batch = connection.poll()
        if batch is None:
            return None
        reply = self.answer(batch)
        fault_point("silo_answered")
        answer = connection.submit(reply)
        fault_point("silo_submitted")
        return answer

    def serve(
        self,
        connection: Connection,
        *,
        on_event: Callable[[str], None] = lambda event: None,
        **waiting: Any,
    ) -> None:
        """Polls and answers until it is stopped; for `until` and `sleep` see `with_retries`.

        Args:
            connection: to the coordinator.
            on_event: called with what happened, in words without anything of the data.
            **waiting: of `pate_tf.net.retries.with_retries`.
        """

        def step() -> bool | None:
            answer = self.step(connection)
            if answer is not None:
                on_event(f"a batch was answered: {answer.value}")
            return None if answer is None else True

        with_retries(step, on_event=on_event, **waiting)

    def _allowed_charge(self, batch: QueryBatch) -> Charge:
        """Returns what a query is charged as, if the policy allows it and the silo can answer it.

        Raises RefusedError by public values alone.
        """
        try:
            charge = batch.charge()
        except ValueError:
            raise RefusedError(Reason.MALFORMED) from None
        objection = self.policy.objection(batch, charge)
        if objection is not None:
            raise RefusedError(objection)
        if isinstance(charge, SecureFeatureSums) == (self._sums is None):
            raise RefusedError(Reason.MECHANISM_NOT_ALLOWED)
        if self._teacher is not None and not self._teacher.takes(batch):
            raise RefusedError(Reason.MALFORMED)
        if self._sums is not None and isinstance(charge, SecureFeatureSums):
            query = sums_query(self._sums.representation, self._sums.unit)
            shape = (charge.num_features + 1, batch.num_classes)
            if not np.array_equal(batch.queries, query) or self._sums.sums.values.shape != shape:
                raise RefusedError(Reason.OTHER_SUMS)
        return charge

    def _randomised(self, batch: QueryBatch, charge: LocalRandomiser) -> IntArray:
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
        if missing and self._teacher is not None:
            votes = self._teacher.votes(batch.queries[[first[query] for query in missing]])
            drawn = charge.draw(votes, self._noise)
            fault_point("silo_drawn")
            fresh = dict(zip(missing, drawn.tolist(), strict=True))
            account.store_labels(fresh)
            fault_point("silo_stored")
            answers |= fresh
        return np.array([answers[query] for query in batch.digests])

    def _shared(self, batch: QueryBatch, charge: Charge) -> tuple[bytes, ...]:
        """Returns a batch's sealed shares; they are charged, dealt and stored once."""
        fields = [batch.run_id, batch.batch_id, batch.num_classes, dict(batch.mechanism)]
        digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode())
        digest.update(b"".join(batch.digests))
        key = digest.hexdigest()  # of everything but deadline and witness
        sealed = self.account.sealed(key)
        if sealed is not None:
            return sealed
        if self._sealer is None or not self._sealer.fits(batch):
            raise RefusedError(Reason.MECHANISM_NOT_ALLOWED)
        if not self.account.is_charged_batch(key):
            # Fresh noise is drawn for every batch: a query to a teacher may stand in one of them
            # alone, while feature sums are charged again.
            queries = batch.digests if self._sums is None else (bytes.fromhex(key),)
            if len(set(queries)) != len(batch):
                raise RefusedError(Reason.MALFORMED)
            if any(self.account.charge_of(query) is not None for query in queries):
                raise RefusedError(Reason.ANSWERED_OTHERWISE)
            self._debit(batch, charge, queries, key=key)
        sealed = self._sealed(batch, self._sealer)
        fault_point("silo_drawn")
        self.account.store_sealed(key, sealed)
        fault_point("silo_stored")
        return sealed

    def _sealed(self, batch: QueryBatch, sealer: PartySealer) -> tuple[bytes, ...]:
        """Draws the noise of a charged batch of sums, and shares it; or shares a batch's votes."""
        if self._teacher is not None:
            votes = self._teacher.votes(batch.queries)
            return tuple(sealer.seal(votes, batch, silo=self.name))
        if self._sums is None:
            raise ValueError("teacher: expected one that votes, got none")
        return sealer.seal_sums(self._sums.sums, batch)

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

    def _witness(self) -> bytes | None:
        return None if self.account.folder is None else self.account.witness()

    def _check_witness(self, batch: QueryBatch) -> None:
        """Refuses and warns unless the account holds all that the coordinator has a witness of."""
        account, witness = self.account, batch.witness
        if witness is None or account.folder is None or account.holds_witness(witness):
            return
        if not account.acknowledge_witness(witness):
            warn(
                f"{account.folder}: the coordinator has the witness of a row that is not here: "
                f"this account was restored from an older copy, or a copy of it or another account "
                f"went on, or the coordinator made it up; nothing is answered; put the newest one "
                f"back; {ACKNOWLEDGE}"
            )
            raise RefusedError(Reason.UNKNOWN_WITNESS)
