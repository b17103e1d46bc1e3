"""One of the aggregators that add up shares: what it answers, step by step, and what it refuses.

An aggregator sends its share of a sum once for a batch, for one set of silos, with noise that was
drawn before. It is safe against a coordinator and up to `threshold` other aggregators that lie
together at every step, with any silos (docs/proofs/secure.md, Theorem V4).
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
from pate_tf.accounting.local import SecureHistogram
from pate_tf.core import artifacts
from pate_tf.core.validation import check_name
from pate_tf.ledger.journal import LedgerError, LedgerRow, Store
from pate_tf.ledger.rollback_guard import ACKNOWLEDGE
from pate_tf.net.messages import decode, encode
from pate_tf.release.noise import NoiseSource, SystemNoise
from pate_tf.silos import sealing, shamir
from pate_tf.silos.protocol import (
    MOST_SILOS,
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
    joined,
    seed_digest,
    signed,
    split_shares,
)
from pate_tf.silos.shamir import Elements

SEED_BYTES = 32
_ROUNDED_UP = 1.0 + 2.0**-50


@dataclasses.dataclass(frozen=True)
class BatchSecrets:
    """SENSITIVE: what an aggregator holds of a batch until it is released.

    Attributes:
        seed: its part of the challenge.
        noise: its share of its own noise; empty of feature sums.
        shares: of each silo that it could open, by name.
    """

    seed: bytes
    noise: bytes
    shares: Mapping[str, bytes]


class AggregatorJournal(Store):
    """SENSITIVE: what an aggregator did, on disk before another process hears of it.

    A row for each step of a batch, with the digest of a file that holds the message which was
    signed and those that it followed from. The same task gets the same message, to the last byte;
    another task on the same step is refused. So an aggregator that is killed and started again
    draws no noise twice and opens the same shares in one way. A journal that was restored from an
    older copy, or lost, is refused, as a `Store` with the aggregator's key as its identity.

    Args:
        folder: where it lies, mode 0700.
        identity: of the aggregator.

    Raises LedgerError if it is damaged, of another aggregator, or not the newest.
    """

    name: ClassVar[str] = "journal"
    folder: pathlib.Path

    def __init__(self, folder: pathlib.Path, identity: Identity) -> None:
        key = identity.signing_key.hex()
        super().__init__(folder, identity=("party", key))
        self._steps: dict[tuple[str, str], LedgerRow] = {}
        self.latest: tuple[bytes, Step, Transcript] | None = None  # batch and step of a transcript
        try:
            self.open_or_verify({"party": identity.name, "key": key})
            if self.opened is None or self.opened.details["key"] != key:
                raise LedgerError(f"{folder}: expected the journal of {identity.name}, got another")
        except LedgerError as error:
            self.close()
            reason = str(error).replace(ACKNOWLEDGE, "or make new keys and be another aggregator")
            raise LedgerError(reason) from error
        artifacts.remove_abandoned(folder)

    def answered(self, task: AggregatorTask) -> AggregatorMessage | None:
        """Returns the message that a task got before; None if the step is new.

        Raises:
            ProtocolError: if the step was asked with other values, or out of order.
            LedgerError: if the message is not as it was written.
        """
        batch, place = task.terms.digest.hex(), STEPS.index(task.step)
        row = self._steps.get((batch, task.step.value))
        if row is None:
            due = [(batch, step.value) in self._steps for step in STEPS]
            if due != [True] * place + [False] * (len(STEPS) - place):
                raise ProtocolError(
                    f"{task.step.value}: expected the step after those of this batch that are "
                    "done, got another"
                )
            return None
        if row.details["task"] != task.digest.hex():
            raise ProtocolError(
                f"{task.step.value}: this step of the batch was answered for other values before"
            )
        return self.step(task.terms, task.step)[0]

    def transcript(self, task: AggregatorTask) -> Transcript:
        """Returns what all said before a new task, this aggregator's own messages included.

        Raises:
            ProtocolError: if messages are missing or forged, or its own is not among them.
        """
        done = STEPS[: STEPS.index(task.step)]
        number, transcript = 0, Transcript(task.terms)
        if self.latest is not None and self.latest[0] == task.terms.digest:
            number, transcript = STEPS.index(self.latest[1]), self.latest[2]
        for step, following in zip(done[number:-1], done[number + 1 :], strict=True):
            transcript = transcript.after(step, self.step(task.terms, following)[1:])
        if done:
            if self.step(task.terms, done[-1])[0] not in task.messages:
                raise ProtocolError(
                    f"{done[-1].value}: expected this aggregator's own message among them"
                )
            transcript = transcript.after(done[-1], task.messages)
        return transcript

    def keep(
        self, task: AggregatorTask, message: AggregatorMessage, transcript: Transcript
    ) -> None:
        """Makes a message durable before it is sent; call it inside `exclusive`.

        Args:
            task: new one that it answers.
            message: this aggregator's.
            transcript: of the task.
        """
        content = encode((message, *task.messages))
        self.write_file(task.terms, task.step.value, content)
        details = {
            "batch": task.terms.digest.hex(),
            "step": task.step.value,
            "task": task.digest.hex(),
            "file": hashlib.sha256(content).hexdigest(),
        }
        self.write("step", details)
        self.latest = (task.terms.digest, task.step, transcript)

    def step(self, terms: BatchTerms, step: Step) -> tuple[AggregatorMessage, ...]:
        """Returns the message that was signed on a step, and those that it followed from.

        Raises LedgerError if they were changed.
        """
        path = self.path_of(terms, step.value)
        content = path.read_bytes()
        row = self._steps[terms.digest.hex(), step.value]
        if hashlib.sha256(content).hexdigest() != row.details["file"]:
            raise LedgerError(f"{path}: expected a step of a batch, got a file that was changed")
        messages: tuple[AggregatorMessage, ...] = decode(tuple[AggregatorMessage, ...], content)
        return messages

    def secrets(self, terms: BatchTerms) -> BatchSecrets:
        """Returns what must stay with this aggregator; written before `keep` of the first step."""
        held: BatchSecrets = decode(BatchSecrets, self.path_of(terms, "secret").read_bytes())
        return held

    def _record(self, row: LedgerRow) -> None:
        if row.kind == "step":
            self._steps[row.details["batch"], row.details["step"]] = row

    def path_of(self, terms: BatchTerms, what: str) -> pathlib.Path:
        """Returns where something of a batch is kept."""
        return self.folder / terms.digest.hex() / f"batch.{what}"

    def write_file(self, terms: BatchTerms, what: str, content: bytes) -> None:
        """Writes a file of a batch durably, for this user alone."""
        path = self.path_of(terms, what)
        artifacts.make_sensitive_folder(path.parent)
        with artifacts.atomic_file(path, private=True) as file:
            file.write(content)


def noise_scale(mechanism: SecureHistogram) -> float:
    """Returns the scale of one aggregator's discrete Gaussian, in lattice steps, rounded up.

    num_parties - threshold of them have a variance of at least sigma^2 together.
    """
    return float(mechanism.sigma * LATTICE / np.sqrt(mechanism.num_honest) * _ROUNDED_UP)


class Aggregator(contextlib.ExitStack):
    """An aggregator with its keys and its journal. Safe to call from threads and processes.

    Args:
        keys: its own.
        folder: of its journal.
        noise: what its noise is drawn from; None for the operating system's entropy.

    Raises LedgerError if the journal can't be used, see `AggregatorJournal`.
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
        """Returns the message on a step; the same task always gets the same message.

        Raises:
            ProtocolError: if another's message is missing, forged or contradicts others.
            ProtocolError: if the step was asked with other values before.
            ValueError: if this aggregator is not in the terms.
            LedgerError: if the journal can't be used.
        """
        terms, step = task.terms, task.step
        if self.identity not in terms.aggregators:
            raise ValueError(f"aggregators: expected {self.identity.name} with its keys among them")
        number = terms.aggregators.index(self.identity) + 1
        with self.journal.exclusive():
            message = self.journal.answered(task)
            if message is None:
                transcript = self.journal.transcript(task)
                if step is Step.COMMIT:
                    content = self._commit(task, number)
                else:
                    content = joined(transcript.seen, *self._parts(step, transcript, number))
                message = signed(
                    content, step=step, terms=terms, aggregator=number, keys=self._keys
                )
                self.journal.keep(task, message, transcript)
            if step is Step.RELEASE:
                # Shares and noise of a batch are of no use once it is released.
                self.journal.path_of(terms, "secret").unlink(missing_ok=True)
                self.journal.latest = None
            return message

    def _commit(self, task: AggregatorTask, number: int) -> bytes:
        """Takes the shares of silos and draws noise and a seed; returns what is committed to."""
        terms = task.terms
        if not 1 <= len(task.sealed) <= MOST_SILOS or task.messages:
            raise ProtocolError(f"commit: expected shares of 1 to {MOST_SILOS} silos")
        shares, dealings = {}, {}
        for silo in task.sealed:
            try:
                row, dealings[check_name(silo, "silo")] = sealing.open_share(
                    task.sealed[silo], terms, silo=silo, keys=self._keys
                )
            except ValueError:
                continue  # left out: it is missing among the silos of the commitment
            shares[silo] = shamir.to_bytes(row)
        if not shares:
            raise TooFewSilosError("commit: expected shares of at least one silo that open, got 0")
        rows, sealed = [b""] * len(terms.aggregators), [b""] * len(terms.aggregators)
        if isinstance(terms.mechanism, SecureHistogram):  # silos added theirs to feature sums
            drawn = self._noise.gaussian_integers(noise_scale(terms.mechanism), terms.size)
            dealt = shamir.share(
                shamir.from_integers(drawn),
                num_parties=len(terms.aggregators),
                degree=terms.threshold,
                words=self._noise.words,
            )
            rows = [shamir.to_bytes(row) for row in dealt]
            for other in terms.numbers:
                if other != number:
                    sealed[other - 1] = sealing.seal(
                        rows[other - 1],
                        terms,
                        sender=self.identity.name,
                        kind="noise",
                        aggregator=other,
                    )
        seed = os.urandom(SEED_BYTES)
        held = BatchSecrets(seed, rows[number - 1], shares)
        self.journal.write_file(terms, "secret", encode(held))
        return encode(
            Commitment(
                dealings=dealings,
                received=task.digest,
                seed=seed_digest(seed, number, terms),
                noise=tuple(sealed),
            )
        )

    def _parts(self, step: Step, transcript: Transcript, number: int) -> list[bytes]:
        """Returns what is said on a step after the first, beside what was seen."""
        terms, held = transcript.terms, self.journal.secrets(transcript.terms)

        def shares_of(silos: tuple[str, ...]) -> list[Elements]:
            size = (terms.share_size,)
            return [shamir.from_bytes(held.shares[silo], size, "shares") for silo in silos]

        if step is Step.REVEAL:
            self._noise_share(transcript, number, held)  # a batch without all noise ends here
            return [held.seed]
        if step is Step.MASK:
            masked = [transcript.challenge.masked(row) for row in shares_of(transcript.silos)]
            return [b"".join(map(shamir.to_bytes, masked))]
        if step is Step.CHECK:
            # Of a silo whose masked sums don't fit each other nothing more opens: it is left out.
            values = [
                np.uint64(0) if y is None else transcript.challenge.check_value(row, y)
                for row, y in zip(shares_of(transcript.silos), transcript.masked, strict=True)
            ]
            return [shamir.to_bytes(np.array(values, np.uint64))]
        if step is Step.AGREE:
            return [silo.encode() for silo in transcript.passing]
        counts = np.zeros(terms.shape, np.uint64)
        for row in shares_of(transcript.passing):
            counts = shamir.add(counts, split_shares(row, terms.shape)[2])
        sums = counts.reshape(-1)
        if not terms.are_sums:
            noise = self._noise_share(transcript, number, held)
            sums = shamir.add(shamir.multiply(sums, np.uint64(LATTICE)), noise)
        return [shamir.to_bytes(sums)]

    def _noise_share(self, transcript: Transcript, number: int, held: BatchSecrets) -> Elements:
        """Returns this aggregator's share of all noise, `[size of the sum]`.

        Raises ValueError if noise was not sealed for this batch and aggregator.
        """
        terms, total = transcript.terms, np.zeros(transcript.terms.size, np.uint64)
        if terms.are_sums:
            return total
        for dealer, committed in zip(terms.aggregators, transcript.committed, strict=True):
            share = held.noise
            if dealer != self.identity:
                share = sealing.unseal(
                    committed.noise[number - 1],
                    terms,
                    sender=dealer.name,
                    kind="noise",
                    keys=self._keys,
                )
            noise = shamir.from_bytes(share, (terms.size,), f"noise of {dealer.name}")
            total = shamir.add(total, noise)
        return total
