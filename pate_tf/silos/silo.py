"""One silo: it checks its policy, is charged, randomises, stores, and only then sends.

In this order a kill at any point leaves no answer that was not charged, and none that is drawn a
second time with fresh noise.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from pate_tf.accounting.charge import Charge
from pate_tf.accounting.delta import check_delta
from pate_tf.accounting.local import LocalNoise, LocalRandomiser, SecureFeatureSums
from pate_tf.aggregation.noise import SystemNoise
from pate_tf.core.source import PrivateSource
from pate_tf.ledger.chain import fault_point
from pate_tf.ledger.rollback_guard import ACKNOWLEDGE, warn
from pate_tf.net.retries import with_retries
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
from pate_tf.silos.teachers import SiloTeacher, as_sums, as_teacher, is_fitting, votes_of

if TYPE_CHECKING:
    from pate_tf.silos.secure.opening import PartySealer


class Silo:
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
            self._teacher = as_teacher(
                teacher, num_classes=num_classes, input_shape=input_shape, input_type=input_type
            )
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

    def __repr__(self) -> str:
        return f"Silo(<{self.name}>)"

    def close(self) -> None:
        """Closes the account."""
        self.account.close()

    def __enter__(self) -> Silo:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def answer(self, batch: QueryBatch) -> Reply:
        """Answers a batch, or refuses it by policy.

        What was answered before is answered again from the account without a charge. A teacher that
        fails votes for class 0: whether there is an answer does not depend on it.

        Raises LedgerError if the account can't be used; nothing is sent.
        """
        try:
            charge = batch.charge()
        except ValueError:
            return self._refusal(batch, Reason.MALFORMED)
        reason = self.policy.objection(batch, charge) or self._misfit(batch, charge)
        if reason is not None:
            return self._refusal(batch, reason)
        with self.account.exclusive():
            if not self._is_up_to_date(batch):
                return self._refusal(batch, Reason.UNKNOWN_WITNESS)
            if isinstance(charge, LocalRandomiser):
                return self._randomised(batch, charge)
            return self._shared(batch, charge)

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

    def _misfit(self, batch: QueryBatch, charge: Charge) -> Reason | None:
        """Why teacher or sums can't answer a batch, by public values alone; None if they can."""
        if self._sums is None or not isinstance(charge, SecureFeatureSums):
            if self._teacher is None or isinstance(charge, SecureFeatureSums):
                return Reason.MECHANISM_NOT_ALLOWED
            return None if is_fitting(self._teacher, batch) else Reason.MALFORMED
        shape = (charge.num_features + 1, batch.num_classes)
        asked = sums_query(self._sums.representation, self._sums.unit)
        is_same = np.array_equal(batch.queries, asked) and self._sums.sums.values.shape == shape
        return None if is_same else Reason.OTHER_SUMS

    def _refusal(self, batch: QueryBatch, reason: Reason) -> Refusal:
        return Refusal(**self._names(batch), reason=reason)

    def _randomised(self, batch: QueryBatch, charge: LocalRandomiser) -> Reply:
        account = self.account
        queries = list(dict.fromkeys(batch.digests))
        charged = {query: account.charge_of(query) for query in queries}
        if any(earlier not in (None, charge) for earlier in charged.values()):
            return self._refusal(batch, Reason.ANSWERED_OTHERWISE)
        new = [query for query in queries if charged[query] is None]
        if new:
            reason = self._cannot_charge(batch, charge, len(new))
            if reason is not None:
                return self._refusal(batch, reason)
            account.debit(charge, new, number=len(new))
            fault_point("silo_debited")
        stored = account.labels(queries)
        missing = [query for query in queries if query not in stored]
        if missing and self._teacher is not None:
            first = {query: place for place, query in reversed(list(enumerate(batch.digests)))}
            places = [first[query] for query in missing]
            votes = votes_of(self._teacher, batch.queries[places])
            drawn = charge.draw(votes, self._noise)
            fault_point("silo_drawn")
            fresh = dict(zip(missing, drawn.tolist(), strict=True))
            account.store_labels(fresh)
            fault_point("silo_stored")
            stored |= fresh
        return RandomisedVotes(
            **self._names(batch),
            labels=np.array([stored[query] for query in batch.digests]),
            witness=self._witness(),
        )

    def _shared(self, batch: QueryBatch, charge: Charge) -> Reply:
        account, key = self.account, _key(batch)
        sealed = account.sealed(key)
        if sealed is None:
            if self._sealer is None or not self._sealer.fits(batch):
                return self._refusal(batch, Reason.MECHANISM_NOT_ALLOWED)
            if not account.is_charged_batch(key):
                # Fresh noise is drawn for every batch: a query to a teacher may stand in one of
                # them alone, while feature sums are charged again.
                queries = batch.digests
                if isinstance(charge, SecureFeatureSums):
                    queries = (bytes.fromhex(key),)
                if len(set(queries)) != len(batch):
                    return self._refusal(batch, Reason.MALFORMED)
                if any(account.charge_of(query) is not None for query in queries):
                    return self._refusal(batch, Reason.ANSWERED_OTHERWISE)
                reason = self._cannot_charge(batch, charge, len(batch))
                if reason is not None:
                    return self._refusal(batch, reason)
                account.debit(charge, queries, number=len(batch), batch=key)
                fault_point("silo_debited")
            sealed = self._sealed(batch, self._sealer)
            fault_point("silo_drawn")
            account.store_sealed(key, sealed)
            fault_point("silo_stored")
        return SealedShares(**self._names(batch), sealed=sealed, witness=self._witness())

    def _sealed(self, batch: QueryBatch, sealer: PartySealer) -> tuple[bytes, ...]:
        """Draws the noise of a charged batch of sums, and shares it; or shares a batch's votes."""
        if self._sums is not None:
            return sealer.seal_sums(self._sums.sums, batch)
        if self._teacher is None:
            raise ValueError("teacher: expected one that votes, got none")
        votes = votes_of(self._teacher, batch.queries)
        return tuple(sealer.seal(votes, batch, silo=self.name))

    def _names(self, batch: QueryBatch) -> dict[str, str]:
        return {"run_id": batch.run_id, "batch_id": batch.batch_id, "silo": self.name}

    def _witness(self) -> bytes | None:
        return None if self.account.folder is None else self.account.witness()

    def _is_up_to_date(self, batch: QueryBatch) -> bool:
        """Whether the account holds all that the coordinator has a witness of; else warns."""
        account, witness = self.account, batch.witness
        if witness is None or account.folder is None or account.holds_witness(witness):
            return True
        if account.acknowledge_witness(witness):
            return True
        warn(
            f"{account.folder}: the coordinator has the witness of a row that is not here: this "
            f"account was restored from an older copy, or a copy of it or another account went on, "
            f"or the coordinator made it up; nothing is answered; put the newest one back; "
            f"{ACKNOWLEDGE}"
        )
        return False

    def _cannot_charge(self, batch: QueryBatch, charge: Charge, number: int) -> Reason | None:
        """Why new queries are refused. Debits follow from queries and policy, never from data."""
        if not batch.deadline > self._clock():
            return Reason.TOO_LATE
        if self.account.num_charged_within_a_day() + number > self.policy.queries_per_day:
            return Reason.DAILY_LIMIT
        if not self.account.can_charge(charge, number):
            return Reason.BUDGET_SPENT
        return None


def _key(batch: QueryBatch) -> str:
    """Returns what identifies a batch: everything in it but its deadline and its witness."""
    fields = [batch.run_id, batch.batch_id, batch.num_classes, dict(batch.mechanism)]
    digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode())
    digest.update(b"".join(batch.digests))
    return digest.hexdigest()
