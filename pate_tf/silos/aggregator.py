"""The aggregator of secure aggregation: a server that adds up secret shares from the silos.

For each batch of queries, an aggregator sends its share of the sum only once, for one set of silos.
The aggregator draws its noise once, in the first step. The protocol is secure even if the
coordinator, up to `threshold` aggregators and any silos collude and lie in every step
(docs/proofs/secure.md, Theorem V4).
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import pathlib
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from pate_tf.accounting.conversions import LATTICE
from pate_tf.accounting.local import MAX_SILOS, SecureHistogram
from pate_tf.core import artifacts
from pate_tf.core.checks import check_name
from pate_tf.ledger.journal import Store
from pate_tf.ledger.ledger_file import LedgerError, LedgerRow
from pate_tf.ledger.rollback_guard import ACKNOWLEDGE
from pate_tf.net.wire_values import decode, digest, encode
from pate_tf.release.noise import NoiseSource, SystemNoise
from pate_tf.silos import sealing, shamir
from pate_tf.silos.protocol import (
    STEPS,
    AggregatorMessage,
    AggregatorTask,
    BatchTerms,
    Commitment,
    Identity,
    Keys,
    ProtocolError,
    Step,
    TooFewSilosError,
    Transcript,
    seed_digest,
    split_shares,
)
from pate_tf.silos.shamir import Elements

PART_BYTES = 32
_ROUNDED_UP = 1.0 + 2.0**-50


@dataclasses.dataclass(frozen=True)
class BatchSecrets:
    """SENSITIVE: an aggregator's secrets for one batch of queries, kept until the sum is released.

    Attributes:
        part: the aggregator's part of the random seed for checking votes; secret until all
            aggregators have committed to their parts.
        shares: maps the name of each silo to the secret share that the silo sent to this
            aggregator. Silos whose share could not be decrypted are missing.
    """

    part: bytes
    shares: Mapping[str, bytes]


class AggregatorJournal(Store):
    """SENSITIVE: the messages of an aggregator, stored on disk before they are sent.

    For each protocol step of a batch of queries, the journal has a row with the digest of a file.
    The file contains the aggregator's signed message, and the messages to which it responds. If the
    coordinator repeats a task, the aggregator sends the same message, byte for byte. The aggregator
    refuses a different task for the same step. So even if the aggregator is killed and restarted,
    it never draws noise twice for a batch, and sends only one message in each step. The journal is
    a `Store` with the aggregator's key as its identity, so a lost journal or an older copy of it is
    refused.

    Args:
        folder: folder of the journal, mode 0700.
        identity: name and public keys of the aggregator.

    Raises LedgerError if the journal is damaged, is outdated, or belongs to another aggregator.
    """

    name: ClassVar[str] = "journal"
    folder: pathlib.Path

    def __init__(self, folder: pathlib.Path, identity: Identity) -> None:
        key = identity.signing_key.hex()
        super().__init__(folder, identity=("party", key))
        self._steps: dict[tuple[str, str], LedgerRow] = {}
        self.latest: Transcript | None = None  # public results up to the last answered task
        try:
            self.open_or_verify({"party": identity.name, "key": key})
            if self.opened is None or self.opened.details["key"] != key:
                raise LedgerError(f"{folder} is not the journal of {identity.name}")
        except LedgerError as error:
            self.close()
            reason = str(error).replace(ACKNOWLEDGE, "or create new keys, as a new aggregator")
            raise LedgerError(reason) from error
        artifacts.remove_abandoned(folder)

    def answered(self, task: AggregatorTask) -> AggregatorMessage | None:
        """Returns the stored answer to a task; None if this step of the batch has no answer yet.

        Raises:
            ProtocolError: if the step was answered for a different task, or is out of order.
            LedgerError: if the stored message was changed.
        """
        batch = task.terms.digest.hex()
        row = self._steps.get((batch, task.step.value))
        if row is None:
            place = STEPS.index(task.step)
            done = [(batch, step.value) in self._steps for step in STEPS]
            if done != [True] * place + [False] * (len(STEPS) - place):
                raise ProtocolError(f"{task.step.value} is not the next step of this batch")
            return None
        if row.details["task"] != digest(task).hex():
            raise ProtocolError(f"{task.step.value}: this step was answered for a different task")
        return self.step(task.terms, task.step)[0]

    def transcript(self, task: AggregatorTask) -> Transcript:
        """Returns the public results of all messages so far, including those in a new task.

        Raises:
            ProtocolError: if a message is missing or forged.
        """
        transcript = self.latest
        if transcript is None or transcript.terms.digest != task.terms.digest:
            transcript = Transcript(task.terms)
        while (before := STEPS[transcript.place]) is not task.step:
            following = STEPS[transcript.place + 1]
            messages = task.messages
            if following is not task.step:
                messages = self.step(task.terms, following)[1:]
            elif self.step(task.terms, before)[0] not in messages:
                raise ProtocolError(f"{before.value}: the task lacks this aggregator's own message")
            transcript = transcript.after(messages)
        return transcript

    def keep(
        self, task: AggregatorTask, message: AggregatorMessage, transcript: Transcript
    ) -> None:
        """Stores an answer durably. Call this inside `with exclusive()`, before sending the answer.

        Args:
            task: the coordinator's new task.
            message: this aggregator's answer to the task.
            transcript: public results of all messages before the task.
        """
        content = encode((message, *task.messages))
        self.write_file(task.terms, task.step.value, content)
        details = {
            "batch": task.terms.digest.hex(),
            "step": task.step.value,
            "task": digest(task).hex(),
            "file": hashlib.sha256(content).hexdigest(),
        }
        self.write("step", details)
        self.latest = transcript

    def step(self, terms: BatchTerms, step: Step) -> tuple[AggregatorMessage, ...]:
        """Returns the stored messages of a step: this aggregator's message first, then its inputs.

        The inputs are the messages of the previous step. Raises LedgerError if the stored file was
        changed.
        """
        path = self.path_of(terms, step.value)
        content = path.read_bytes()
        row = self._steps[terms.digest.hex(), step.value]
        if hashlib.sha256(content).hexdigest() != row.details["file"]:
            raise LedgerError(f"{path}: this file was changed after it was written")
        messages: tuple[AggregatorMessage, ...] = decode(tuple[AggregatorMessage, ...], content)
        return messages

    def _record(self, row: LedgerRow) -> None:
        super()._record(row)
        if row.kind == "step":
            self._steps[row.details["batch"], row.details["step"]] = row

    def path_of(self, terms: BatchTerms, what: str) -> pathlib.Path:
        """Returns the path of a file that belongs to a batch.

        Args:
            terms: terms of the batch; their digest is the name of the folder.
            what: extension of the file, such as the name of a step.
        """
        return self.folder / terms.digest.hex() / f"batch.{what}"

    def write_file(self, terms: BatchTerms, what: str, content: bytes) -> None:
        """Writes the file `path_of(terms, what)` durably, readable only by the current user."""
        path = self.path_of(terms, what)
        artifacts.make_sensitive_folder(path.parent)
        with artifacts.atomic_file(path, private=True) as file:
            file.write(content)


def noise_scale(mechanism: SecureHistogram) -> float:
    """Returns the sigma of one aggregator's discrete Gaussian noise, in units of 1 / LATTICE.

    The value is rounded up slightly. If `threshold` aggregators add no noise, the noise of the
    other aggregators still has a total variance of at least the mechanism's sigma^2.
    """
    return float(mechanism.sigma * LATTICE / np.sqrt(mechanism.num_honest) * _ROUNDED_UP)


class Aggregator(contextlib.ExitStack):
    """An aggregator with its keys and its journal. Several threads and processes may call it.

    Args:
        keys: private keys of the aggregator.
        folder: folder of the aggregator's journal.
        noise: noise source; None for the operating system's entropy.

    Raises LedgerError if the journal can't be used; see `AggregatorJournal`.
    """

    def __init__(
        self, keys: Keys, folder: pathlib.Path, *, noise: NoiseSource | None = None
    ) -> None:
        super().__init__()
        self.identity = keys.identity
        self._keys = keys
        self._noise = noise or SystemNoise()
        self.journal = AggregatorJournal(folder, keys.identity)
        self.callback(self.journal.close)

    def answer(self, task: AggregatorTask) -> AggregatorMessage:
        """Returns this aggregator's message for a task; a repeated task gets the same message.

        Raises:
            ProtocolError: if a message in the task is missing, forged or contradictory, or if the
                step was answered for a different task before.
            ValueError: if `task.terms.aggregators` does not contain this aggregator.
            LedgerError: if the journal can't be used.
        """
        terms = task.terms
        if self.identity not in terms.aggregators:
            raise ValueError(f"aggregators must list {self.identity.name} with its keys")
        number = terms.aggregators.index(self.identity) + 1
        with self.journal.exclusive():
            message = self.journal.answered(task)
            if message is None:
                transcript = self.journal.transcript(task)
                if task.step is Step.COMMIT:
                    content = self._commit(task, number)
                else:
                    content = self._content(task.step, transcript, number)
                message = AggregatorMessage(
                    terms_digest=terms.digest,
                    step=task.step,
                    aggregator=number,
                    seen=transcript.seen,
                    content=content,
                ).signed(self._keys)
                self.journal.keep(task, message, transcript)
            if task.step is Step.RELEASE:
                # After the release, the secrets are no longer needed, so their file is deleted.
                self.journal.path_of(terms, "secret").unlink(missing_ok=True)
                self.journal.latest = None
            return message

    def _commit(self, task: AggregatorTask, number: int) -> bytes:
        """Decrypts silos' shares, draws noise and a seed, and returns the encoded commitment."""
        terms = task.terms
        if not 1 <= len(task.sealed) <= MAX_SILOS or task.messages:
            raise ProtocolError(f"commit: needs shares from 1 to {MAX_SILOS} silos only")
        shares: dict[str, bytes] = {}
        dealings: dict[str, bytes] = {}
        for silo in task.sealed:
            try:
                row, dealings[check_name(silo, "silo")] = sealing.open_share(
                    task.sealed[silo], terms, silo=silo, keys=self._keys
                )
            except ValueError:
                continue  # The commitment does not list a silo whose share can't be opened.
            shares[silo] = shamir.to_bytes(row)
        if not shares:
            raise TooFewSilosError("commit: no silo sent shares that this aggregator can open")
        noise: tuple[bytes, ...] = ()
        if isinstance(terms.mechanism, SecureHistogram):  # silos add noise to feature sums
            drawn = self._noise.gaussian_integers(noise_scale(terms.mechanism), terms.size)
            dealt = shamir.share(
                shamir.from_integers(drawn),
                num_parties=len(terms.aggregators),
                degree=terms.threshold,
                words=self._noise.words,
            )
            rows = [shamir.to_bytes(row) for row in dealt]
            noise = sealing.seal_each(rows, terms, sender=self.identity.name, kind="noise")
        part = os.urandom(PART_BYTES)
        self.journal.write_file(terms, "secret", encode(BatchSecrets(part, shares)))
        commitment = seed_digest(part, number, terms)
        return encode(Commitment(dealings=dealings, part_digest=commitment, noise=noise))

    def _content(self, step: Step, transcript: Transcript, number: int) -> bytes:
        """Returns the content of this aggregator's message in any step after the first one."""
        terms = transcript.terms
        path = self.journal.path_of(terms, "secret")
        held: BatchSecrets = decode(BatchSecrets, path.read_bytes())

        def shares_of(silos: tuple[str, ...]) -> list[Elements]:
            size = (terms.share_size,)
            return [shamir.from_bytes(held.shares[silo], size, "shares") for silo in silos]

        if step is Step.REVEAL:
            self._noise_share(transcript, number)  # raises if an aggregator's noise is unusable
            return held.part
        if step is Step.MASK:
            masked = [transcript.challenge.masked(row) for row in shares_of(transcript.silos)]
            return b"".join(map(shamir.to_bytes, masked))
        if step is Step.CHECK:
            # The check value is opened only for silos whose shares were consistent in step MASK.
            # For other silos, the aggregator sends 0.
            values = [
                np.uint64(0) if y is None else transcript.challenge.check_value(row, y)
                for row, y in zip(shares_of(transcript.silos), transcript.masked, strict=True)
            ]
            return shamir.to_bytes(np.array(values, np.uint64))
        if step is Step.AGREE:
            return encode(transcript.passing)
        sums = np.zeros(terms.size, np.uint64)
        for row in shares_of(transcript.passing):
            sums = shamir.add(sums, split_shares(row, terms.shape)[2].reshape(-1))
        if not terms.are_sums:
            noise = self._noise_share(transcript, number)
            sums = shamir.add(shamir.multiply(sums, np.uint64(LATTICE)), noise)
        return shamir.to_bytes(sums)

    def _noise_share(self, transcript: Transcript, number: int) -> Elements:
        """Returns this aggregator's share of the total noise, `[size]`; zeros for feature sums.

        Raises ValueError if some noise was not encrypted for this batch and this aggregator.
        """
        terms = transcript.terms
        total = np.zeros(terms.size, np.uint64)
        if terms.are_sums:
            return total
        for dealer, committed in zip(terms.aggregators, transcript.committed, strict=True):
            sealed = committed.noise[number - 1]
            share = sealing.unseal(sealed, terms, sender=dealer.name, kind="noise", keys=self._keys)
            noise = shamir.from_bytes(share, (terms.size,), f"noise of {dealer.name}")
            total = shamir.add(total, noise)
        return total
