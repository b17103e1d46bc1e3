"""A silo: it answers queries from its records, within the privacy budget of its policy.

For each answer, the silo checks its policy, charges its ledger, draws the noise, stores the answer
and then sends it. Because of this order, a silo that is killed at any point has never sent an
answer without a charge, and never draws an answer twice with fresh noise.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import datetime
import os
import pathlib
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pate_tf.accounting.charge import charge_from_dict
from pate_tf.accounting.composition import Charge, fits
from pate_tf.accounting.conversions import check_delta
from pate_tf.accounting.local import RandomisedResponse, SecureFeatureSums
from pate_tf.accounting.mechanisms.base import NoiseDraws
from pate_tf.core.checks import IntArray
from pate_tf.core.sensitive import SensitiveWarning
from pate_tf.core.settings import ProtectedUnit
from pate_tf.core.source import PrivateSource, Records
from pate_tf.ledger.journal import Store
from pate_tf.ledger.ledger_file import LedgerError, LedgerRow, fault_point
from pate_tf.ledger.rollback_guard import ACKNOWLEDGE, warn
from pate_tf.release.noise import SystemNoise
from pate_tf.silos.messages import (
    QueryBatch,
    RandomisedVotes,
    Reason,
    Refusal,
    Reply,
    SealedShares,
    sums_query,
)
from pate_tf.silos.protocol import BatchTerms, Keys
from pate_tf.silos.roster import Policy, SiloRoster

DAY_SECONDS = 24 * 60 * 60


class SiloAccount(Store):
    """SENSITIVE: the privacy ledger of a silo, with its charges and its stored answers.

    A silo has exactly one account. An account can't be opened if an earlier account was deleted, if
    it was restored from an older copy, if a copy of it was used, or if the silo has another
    account; see `Store`.

    Attributes:
        silo: name of the silo.
        charge_of: maps the digest of each charged query to its charge.
        debits: time of each charge in seconds since 1970, and the number of charged queries.
        charged_batches: hexadecimal digests of the batches whose encrypted shares were charged,
            whether or not they were sent.
        sealed: maps the digest of each batch to the encrypted shares that were stored for it.
    """

    epsilon_budget: float  # every account has a budget

    def __init__(
        self,
        folder: pathlib.Path | None,
        policy: Policy,
        *,
        source: PrivateSource | None = None,
        acknowledge_reset: bool = False,
    ) -> None:
        """Opens an account; creates it if it does not exist.

        Args:
            folder: sensitive folder of the account; gets mode 0700. None for a simulation, which
                stores nothing and therefore protects nothing.
            policy: policy of the silo. The account uses three parts of the policy: the silo's name,
                which is fixed at the first use; the budget and delta, whose changes are recorded;
                and the unit (record or owner) that feature sums protect. Charges for votes always
                protect all records of the silo.
            source: named data source that is charged for the silo's releases; None for the
                account's folder.
            acknowledge_reset: whether to continue even if an earlier account of the silo, or later
                rows of this account, are missing. The ledger records this permanently, and the
                known costs are charged again.

        Raises:
            LedgerError: if the account is damaged, was changed or belongs to another silo, or if
                an earlier account of the silo or later rows are missing.
        """
        unit = policy.unit
        super().__init__(
            folder,
            source=source,
            identity=("silo", policy.silo),
            unit=unit,
            acknowledge_reset=acknowledge_reset,
        )
        self.silo = policy.silo
        self.charge_of: dict[bytes, Charge] = {}
        self._debit_of: dict[bytes, int] = {}
        self.debits: list[tuple[float, int]] = []
        self.charged_batches: set[str] = set()
        self.sealed: dict[str, tuple[bytes, ...]] = {}
        numbers = {"epsilon_budget": policy.epsilon_budget, "delta": policy.delta}
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)  # if an error is raised
            self.open_or_verify({"silo": policy.silo, **numbers})
            if unit != "owner" and any(charge.unit == "owner" for charge in self.charges):
                raise LedgerError(f"unit: charges in this ledger protect owners, not {unit}s")
            with self.exclusive():
                if (self.epsilon_budget, self.delta) != (policy.epsilon_budget, policy.delta):
                    self.write("budget", numbers)
            undo.pop_all()

    def debit(self, charge: Charge, queries: Sequence[bytes], *, batch: str | None = None) -> None:
        """Writes the privacy cost of queries to the ledger, durably, before any noise is drawn.

        Call this method inside `with exclusive()`.

        Args:
            charge: privacy cost of each query.
            queries: digests of the queries, which are distinct and not charged yet.
            batch: for encrypted shares, the digest of the batch; None for labels.

        Raises LedgerError if the row can't be stored durably. Even then, the queries may have been
        charged.
        """
        details = {
            "charge": charge.to_dict(),
            "number": len(queries),
            "queries": [query.hex() for query in queries],
            "batch": batch,
        }
        self.write("debit", details)

    def store_labels(self, labels: Mapping[bytes, int]) -> None:
        """Stores the labels of charged queries durably. Call this inside `with exclusive()`.

        Args:
            labels: maps the digest of each query to its label.

        Raises:
            LedgerError: if a query was not charged or already has an answer, or if the rows can't
                be stored durably. In this case, the caller must not send any answer.
        """
        by_debit: dict[int, list[bytes]] = {}
        for query in labels:
            if query not in self._debit_of:
                raise LedgerError("account: a query was not charged")
            by_debit.setdefault(self._debit_of[query], []).append(query)
        for debit, queries in by_debit.items():
            self.store_answers(debit, queries, [labels[query] for query in queries])

    def store_sealed(self, batch: str, sealed: Sequence[bytes]) -> None:
        """Stores the encrypted shares of a charged batch durably.

        Call this method inside `with exclusive()`.

        Raises LedgerError if the batch was not charged or already has shares, or if the row can't
        be stored.
        """
        if batch not in self.charged_batches or batch in self.sealed:
            raise LedgerError("account: the batch was not charged, or already has stored shares")
        texts = [base64.b64encode(share).decode() for share in sealed]
        self.write("sealed", {"batch": batch, "sealed": texts})

    def _record(self, row: LedgerRow) -> None:
        super()._record(row)
        details = row.details
        if row.kind == "opened" and details.get("silo") != self.silo:
            raise LedgerError(f"account: this account does not belong to {self.silo}")
        if row.kind == "debit":
            charge = charge_from_dict(details["charge"])
            when = datetime.datetime.fromisoformat(row.time).timestamp()
            self.debits.append((when, int(details["number"])))
            for query in details.get("queries", ()):  # only rows with charges list queries
                self.charge_of[bytes.fromhex(query)] = charge
                self._debit_of[bytes.fromhex(query)] = row.sequence
            if details.get("batch") is not None:
                self.charged_batches.add(details["batch"])
        elif row.kind == "sealed":
            sealed = tuple(base64.b64decode(share) for share in details["sealed"])
            self.sealed[details["batch"]] = sealed
        elif row.kind == "acknowledged":
            # A copy of this account may have sent answers that are missing here, so queries without
            # an answer are charged again. Encrypted shares need no second charge, because
            # aggregators use the shares of a batch only once.
            known = self.stored_answers(list(self.charge_of))
            for query, charge in tuple(self.charge_of.items()):
                if isinstance(charge, RandomisedResponse) and query not in known:
                    del self.charge_of[query]


FALLBACK: Final = 0  # class of the vote if the teacher fails on a query


@dataclasses.dataclass(frozen=True, kw_only=True)
class SiloSums(Records, ProtectedUnit):
    """SENSITIVE: the exact feature sums of a silo; the method feature_sums needs no teacher.

    Attributes:
        values: sums of the feature vectors of each class's records, int64 `[num_features + 1,
            num_classes]`, in units of 1 / LATTICE. Without a public pool, the columns of the second
            moments follow the columns of the classes.
        encoder_digest: `Encoder.digest` of the public encoder that computed the feature vectors.
    """

    values: IntArray = dataclasses.field(repr=False)
    encoder_digest: str


class SiloTeacher:
    """SENSITIVE: the teacher of a silo, a model that votes on every query.

    Args:
        model: a function from queries `[num_queries, *input_shape]` to labels `[num_queries]`; or
            a model that `pate_tf.teachers.voters` accepts: an object with `predict`, a Keras or
            scikit-learn model, the path of a `.keras` file, or the folder of a SavedModel.
        num_classes: number of classes.
        input_shape: shape of one query; None for any shape.
        input_type: type of queries, "uint8" or "float32"; None to accept both.

    Raises ValueError if the model can't be loaded.
    """

    def __init__(
        self,
        model: Any,
        *,
        num_classes: int,
        input_shape: tuple[int, ...] | None = None,
        input_type: str | None = None,
    ) -> None:
        self.num_classes = num_classes
        self.input_shape = input_shape
        self.input_type = input_type
        self._answers = model
        if isinstance(model, pathlib.Path) or not callable(model) or hasattr(model, "predict"):
            from pate_tf.teachers.foreign import ForeignModels

            models = ForeignModels([model], num_classes=num_classes)
            self._answers = lambda queries: models.votes(queries).labels[0]

    def takes(self, batch: QueryBatch) -> bool:
        """Whether a batch matches the teacher's number of classes, input shape and input type."""
        return (
            batch.num_classes == self.num_classes
            and self.input_shape in (None, batch.queries.shape[1:])
            and self.input_type in (None, str(batch.queries.dtype))
        )

    def votes(self, queries: npt.NDArray[Any]) -> IntArray:
        """Returns a vote on each query, int64 `[num_queries]`, even if the model fails.

        A failure may depend on the records that the model was trained on, so it must not decide
        whether the silo answers. If the model does not return a valid label for a query, the vote
        is the class `FALLBACK`. The silo's operator gets a warning without the model's output or
        error message, because these may quote records.
        """
        answers: npt.NDArray[Any]
        try:
            answers = np.asarray(self._answers(queries))
        except Exception:  # The user's model may raise any exception.
            answers = np.zeros(0)
        votes = np.full(len(queries), FALLBACK)
        is_label = np.zeros(len(queries), np.bool_)
        if answers.dtype.kind in "iuf" and answers.shape == (len(queries),):
            is_label = (answers >= 0) & (answers < self.num_classes)
            is_label &= answers == np.floor(answers)
            votes[is_label] = answers[is_label]
        if not is_label.all():
            warnings.warn(
                f"sensitive, only for the data holder: the teacher returned no label from 0 to "
                f"{self.num_classes - 1} for some queries, which now vote for class {FALLBACK}",
                SensitiveWarning,
                stacklevel=2,
            )
        return votes


class RefusedError(Exception):
    """Raised if a silo refuses a batch of queries.

    Args:
        reason: reason that is sent to the coordinator.
        why: explanation that is shown only to the silo's operator.
    """

    def __init__(self, reason: Reason, why: str = "") -> None:
        super().__init__(f"{reason.value}: {why}" if why else reason.value)
        self.reason = reason


class Silo(contextlib.ExitStack):
    """SENSITIVE: a silo with a teacher or feature sums, a policy and a privacy ledger.

        silo = Silo("policy.toml", SiloTeacher(classifier, num_classes=10), folder="silo/sensitive")
        reply = silo.answer(batch)

    Attributes:
        name: name of the silo.
        policy: rules by which the silo accepts or refuses batches.
        account: privacy ledger of the silo, with its charges and answers.
        refusal: for the operator, the reason why the last batch was refused; None if it was
            answered.
    """

    refusal: str | None = None

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
            policy: rules by which the silo accepts or refuses batches, or the path of their file.
            content: the teacher that votes, or the feature sums.
            folder: sensitive folder with the ledger. None for a simulation, which stores nothing.
            roster: roster that lists the aggregators and their keys; None without secure
                aggregation.
            keys: private keys of the silo, whose public keys are on the roster; only needed for
                feature sums.
            noise: noise source; default: the operating system's entropy. Only tests need another
                source.
            clock: function that returns the time in seconds since 1970.
            source: named data source that is charged for the silo's releases; None for the silo's
                folder.
            acknowledge_reset: see `SiloAccount`.

        Raises:
            ValueError: if the policy is invalid, or the unit of the sums differs from the policy.
            LedgerError: if the ledger is damaged, belongs to another silo, was restored from an
                older copy, or is new although the silo had a ledger before.
        """
        super().__init__()
        self.policy = policy if isinstance(policy, Policy) else Policy.read(pathlib.Path(policy))
        self.name = self.policy.silo
        self._content = content
        self._roster = roster
        self._keys = keys
        if isinstance(content, SiloSums):
            if content.unit != self.policy.unit:
                raise ValueError(
                    f"unit must be {self.policy.unit}, as in the policy, not {content.unit}"
                )
            source = content.source if source is None else source
            if self.policy.unit == "record":
                check_delta(self.policy.delta, content.num_records)
        self._noise = SystemNoise() if noise is None else noise
        self._clock = clock
        self.account = SiloAccount(
            None if folder is None else pathlib.Path(folder),
            self.policy,
            source=source,
            acknowledge_reset=acknowledge_reset,
        )
        self.callback(self.account.close)

    def answer(self, batch: QueryBatch) -> Reply:
        """Returns the silo's answer to a batch, or its refusal.

        A repeated query gets the stored answer from the ledger without another charge. If the
        teacher fails, its vote is class 0, so a failure never decides whether the silo answers.

        Raises LedgerError if the ledger can't be used. In this case, the caller must not send
        anything.
        """
        names: Any = {"run_id": batch.run_id, "batch_id": batch.batch_id, "silo": self.name}
        self.refusal = None
        try:
            self._check_allowed(batch)
            with self.account.exclusive():
                self._check_commitment(batch)
                kind: type[Reply] = SealedShares
                if isinstance(batch.mechanism, RandomisedResponse):
                    kind = RandomisedVotes
                    names["labels"] = self._randomised(batch, batch.mechanism)
                else:
                    names["sealed"] = self._shared(batch)
                if self.account.folder is not None:
                    names["commitment"] = self.account.witness()
                return kind(**names)
        except RefusedError as refused:
            self.refusal = str(refused)
            time_of_late = self._clock() if refused.reason is Reason.TOO_LATE else None
            return Refusal(**names, reason=refused.reason, time=time_of_late)

    def result(self, batch: QueryBatch) -> tuple[Reply, str]:
        """Returns the reply to a batch, and a description of the reply for the log."""
        reply = self.answer(batch)
        done = "answered" if self.refusal is None else f"refused: {self.refusal}"
        return reply, f"a batch was {done}"

    def _check_allowed(self, batch: QueryBatch) -> None:
        """Checks a batch against the policy; raises RefusedError. Uses only public values."""
        objection = self.policy.objection(batch)
        if objection is not None:
            raise RefusedError(*objection)
        charge = batch.mechanism
        content = self._content
        if isinstance(charge, SecureFeatureSums) != isinstance(content, SiloSums):
            needed = "feature sums" if isinstance(charge, SecureFeatureSums) else "a teacher"
            raise RefusedError(Reason.MECHANISM_NOT_ALLOWED, f"{charge.name} needs {needed}")
        if isinstance(content, SiloTeacher) and not content.takes(batch):
            raise RefusedError(Reason.MALFORMED, "inputs or classes do not match the teacher")
        if isinstance(content, SiloSums) and isinstance(charge, SecureFeatureSums):
            query = sums_query(content.encoder_digest, content.unit)
            shape = charge.shape(batch.num_classes)
            is_other = charge.unit != content.unit or content.values.shape != shape
            if is_other or not np.array_equal(batch.queries, query):
                raise RefusedError(Reason.OTHER_SUMS, "the silo's encoder, unit or classes differ")

    def _check_commitment(self, batch: QueryBatch) -> None:
        """Checks that the ledger contains the row to which the batch's commitment belongs.

        If the row is missing, the ledger is outdated. The method then warns the operator and raises
        RefusedError.
        """
        account = self.account
        commitment = batch.commitment
        if commitment is None or account.folder is None or account.holds_witness(commitment):
            return
        if not account.acknowledge_witness(commitment):
            warn(
                f"{account.folder}: the coordinator knows of a row that this ledger lacks. "
                f"Either the ledger was restored from an older copy, a copy of it was used, or the "
                f"coordinator made the row up. Put the newest ledger back; {ACKNOWLEDGE}"
            )
            raise RefusedError(Reason.UNKNOWN_COMMITMENT)

    def _randomised(self, batch: QueryBatch, charge: RandomisedResponse) -> IntArray:
        """Returns randomized labels for all queries, int64 `[num_queries]`; charges new queries."""
        account = self.account
        first = {query: place for place, query in reversed([*enumerate(batch.digests)])}
        charged = {query: account.charge_of.get(query) for query in dict.fromkeys(batch.digests)}
        if not set(charged.values()) <= {None, charge}:
            raise RefusedError(Reason.ANSWERED_OTHERWISE)
        if new := [query for query, earlier in charged.items() if earlier is None]:
            self._debit(batch, new)
        stored = account.stored_answers(list(charged))
        answers = {query: answer.label for query, answer in stored.items()}
        missing = [query for query in charged if query not in answers]
        if missing and isinstance(self._content, SiloTeacher):
            # If there are more missing answers than new queries, a crash left charged queries
            # without answers. Only one copy of the ledger may resume and answer them.
            if len(missing) > len(new):
                account.resume()
            votes = self._content.votes(batch.queries[[first[query] for query in missing]])
            drawn = charge.draw(votes, self._noise)
            fault_point("silo_drawn")
            fresh = dict(zip(missing, drawn.tolist(), strict=True))
            account.store_labels(fresh)
            fault_point("silo_stored")
            answers |= fresh
        return np.array([answers[query] for query in batch.digests])

    def _shared(self, batch: QueryBatch) -> tuple[bytes, ...]:
        """Returns the encrypted shares of a batch; charges and stores them at the first call."""
        account = self.account
        key = batch.question.hex()
        sealed = account.sealed.get(key)
        if sealed is not None:
            return sealed
        terms = self._terms(batch)
        if key not in account.charged_batches:
            # Every batch gets fresh noise. Therefore, a teacher votes on each query in only one
            # batch, whereas feature sums are charged again for every batch.
            queries = (batch.question,) if terms.are_sums else batch.digests
            if len(set(queries)) != len(batch.queries):
                raise RefusedError(Reason.MALFORMED)
            if any(query in account.charge_of for query in queries):
                raise RefusedError(Reason.ANSWERED_OTHERWISE)
            self._debit(batch, queries, key=key)
        from pate_tf.silos import sealing  # needs cryptography

        if isinstance(self._content, SiloTeacher):
            votes = self._content.votes(batch.queries)
            sealed = sealing.seal_votes(votes, terms, silo=self.name)
        elif self._keys is not None:
            sealed = sealing.seal_sums(self._content.values, terms, keys=self._keys)
        else:
            raise ValueError("keys: feature sums need the silo's private keys")
        fault_point("silo_drawn")
        account.store_sealed(key, sealed)
        fault_point("silo_stored")
        return sealed

    def _terms(self, batch: QueryBatch) -> BatchTerms:
        """Returns the terms of a batch, with keys from the silo's own roster."""
        if self._roster is None:
            raise RefusedError(Reason.MECHANISM_NOT_ALLOWED, "secure aggregation needs a roster")
        try:
            terms = BatchTerms.of_batch(batch, self._roster.aggregators, self._roster.identities)
        except ValueError as error:
            raise RefusedError(Reason.MECHANISM_NOT_ALLOWED, f"roster: {error}") from None
        if terms.are_sums and (self._keys is None or self._keys.identity not in terms.silos):
            raise RefusedError(Reason.MECHANISM_NOT_ALLOWED, "the roster lacks this silo's keys")
        return terms

    def _debit(
        self, batch: QueryBatch, queries: Sequence[bytes], *, key: str | None = None
    ) -> None:
        """Charges new queries, or raises RefusedError if they exceed the policy's limits.

        The decision depends only on the queries, the policy and the ledger.
        """
        account = self.account
        number = len(queries)
        late = self._clock() - batch.deadline
        if late >= 0.0:
            why = (
                f"by this machine's clock the deadline passed {late:.0f} seconds ago. If the "
                f"coordinator still waits, the clocks differ: synchronize both with NTP"
            )
            raise RefusedError(Reason.TOO_LATE, why)
        since = time.time() - DAY_SECONDS  # by this machine's clock
        of_day = number + sum(charged for when, charged in account.debits if when >= since)
        if of_day > self.policy.queries_per_day:
            raise RefusedError(Reason.DAILY_LIMIT, self.policy.line("queries_per_day", of_day))
        charges = account.charges + Counter({batch.mechanism: number})
        if not fits(charges, account.delta, account.epsilon_budget):
            raise RefusedError(Reason.BUDGET_SPENT, self.policy.line("epsilon_budget", "more"))
        account.debit(batch.mechanism, queries, batch=key)
        fault_point("silo_debited")
