"""One of the parties that add up shares: what it answers, step by step, and what it refuses.

A party sends its share of a sum once for a batch, for one set of silos, with noise that was drawn
before. It is safe against a coordinator and up to `threshold` other parties that lie together at
every step, with any silos (docs/proofs/secure.md, Theorem V4).
"""

from __future__ import annotations

import hashlib
import os
import pathlib
from typing import ClassVar

import numpy as np

from pate_tf.accounting.conversions import LATTICE
from pate_tf.accounting.local import SecureHistogram
from pate_tf.core import artifacts
from pate_tf.core.validation import check_name
from pate_tf.ledger.journal import LedgerError, LedgerRow, Store
from pate_tf.ledger.rollback_guard import ACKNOWLEDGE
from pate_tf.release.noise import NoiseSource, SystemNoise
from pate_tf.silos.secure import shamir, shares
from pate_tf.silos.secure.keys import PartyIdentity, PartyKeys
from pate_tf.silos.secure.protocol import (
    STEPS,
    Commitment,
    PartyMessage,
    PartyTask,
    ProtocolError,
    Step,
    TooFewSilosError,
    Transcript,
    seed_digest,
    signed,
    split,
)
from pate_tf.silos.secure.shamir import Elements
from pate_tf.silos.secure.terms import (
    MOST_SILOS,
    BatchTerms,
    joined,
    party_scale,
    share_size,
    split_shares,
)

SEED_BYTES = 32


class AnsweredOtherwiseError(ValueError):
    """A party was asked the same step of a batch with other values before."""


class PartyJournal(Store):
    """SENSITIVE: what a party did, on disk before another process hears of it.

    A row for each step of a batch, with the digest of a file that holds the message which was
    signed and those that it followed from. The same task gets the same message, to the last byte;
    another task on the same step is refused. So a party that is killed and started again draws no
    noise twice and opens the same shares in one way. A journal that was restored from an older
    copy, or lost, is refused, as a `Store` with the party's key as its identity.

    Args:
        folder: where it lies, mode 0700.
        identity: of the party.

    Raises LedgerError if it is damaged, of another party, or not the newest.
    """

    name: ClassVar[str] = "journal"
    folder: pathlib.Path

    def __init__(self, folder: pathlib.Path, identity: PartyIdentity) -> None:
        key = identity.signing_key.hex()
        super().__init__(folder, identity=("party", key))
        self._steps: dict[tuple[str, str], LedgerRow] = {}
        self._latest: tuple[str, int, Transcript] | None = None  # batch, number of its rounds
        try:
            self.open_or_verify({"party": identity.name, "key": key})
            if self.opened is None or self.opened.details["key"] != key:
                raise LedgerError(f"{folder}: expected the journal of {identity.name}, got another")
        except LedgerError as error:
            self.close()
            reason = str(error).replace(ACKNOWLEDGE, "or make new keys and be another party")
            raise LedgerError(reason) from error
        artifacts.remove_abandoned(folder)

    def answered(self, task: PartyTask) -> PartyMessage | None:
        """Returns the message that a task got before; None if the step is new.

        Raises:
            AnsweredOtherwiseError: if the step was asked with other values, or out of order.
            LedgerError: if the message is not as it was written.
        """
        done = self._done(task.terms)
        if task.step not in done:
            if done != list(STEPS[: STEPS.index(task.step)]):
                raise AnsweredOtherwiseError(
                    f"{task.step.value}: expected the step after those of this batch that are "
                    "done, got another"
                )
            return None
        if self._steps[task.terms.digest.hex(), task.step.value].details["task"] != (
            task.digest.hex()
        ):
            raise AnsweredOtherwiseError(
                f"{task.step.value}: this step of the batch was answered for other values before"
            )
        return self._messages(task.terms, task.step)[0]

    def transcript(self, task: PartyTask) -> Transcript:
        """Returns what all parties said before a new task, its own messages included.

        Raises:
            ProtocolError: if messages are missing or forged, or the party's own is not among them.
        """
        number, transcript, done = 0, Transcript(task.terms), self._done(task.terms)
        if self._latest is not None and self._latest[0] == task.terms.digest.hex():
            _, number, transcript = self._latest
        for step, following in zip(done[number:-1], done[number + 1 :], strict=True):
            transcript = transcript.after(step, self._messages(task.terms, following)[1:])
        if done:
            kept = self._messages(task.terms, done[-1])[0]
            same = [message.content for message in task.messages if message.party == kept.party]
            if same != [kept.content]:
                raise ProtocolError(
                    f"{done[-1].value}: expected this party's own message among them"
                )
            transcript = transcript.after(done[-1], task.messages)
        return transcript

    def keep(self, task: PartyTask, message: PartyMessage, transcript: Transcript) -> None:
        """Makes a message durable before it is sent; call it inside `exclusive`.

        Args:
            task: new one that it answers.
            message: this party's.
            transcript: of the task.
        """
        parts = [str(message.party).encode()]
        for each in (message, *task.messages):
            parts += [each.content, each.signature]
        content = joined(*parts)
        with artifacts.atomic_file(self._path_of(task.terms, task.step), private=True) as file:
            file.write(content)
        details = {
            "batch": task.terms.digest.hex(),
            "step": task.step.value,
            "task": task.digest.hex(),
            "file": hashlib.sha256(content).hexdigest(),
        }
        self.write("step", details)
        self._latest = (details["batch"], STEPS.index(task.step), transcript)

    def keep_secret(self, terms: BatchTerms, content: bytes) -> None:
        """Writes what must stay with this party. Comes before `keep` of the first step."""
        with artifacts.atomic_file(self._path_of(terms), private=True) as file:
            file.write(content)

    def secret(self, terms: BatchTerms) -> bytes:
        """Returns what `keep_secret` wrote."""
        return self._path_of(terms).read_bytes()

    def forget_secret(self, terms: BatchTerms) -> None:
        """Deletes shares and noise of a batch, which are of no use once it is released."""
        self._path_of(terms).unlink(missing_ok=True)
        self._latest = None

    def _record(self, row: LedgerRow) -> None:
        if row.kind == "step":
            self._steps[row.details["batch"], row.details["step"]] = row

    def _done(self, terms: BatchTerms) -> list[Step]:
        return [step for step in STEPS if (terms.digest.hex(), step.value) in self._steps]

    def _messages(self, terms: BatchTerms, step: Step) -> list[PartyMessage]:
        """Returns the party's own message on a step, and those of all on the step before."""
        path = self._path_of(terms, step)
        content = path.read_bytes()
        row = self._steps[terms.digest.hex(), step.value]
        if hashlib.sha256(content).hexdigest() != row.details["file"]:
            raise LedgerError(f"{path}: expected a step of a party, got a file that was changed")
        number, *parts = split(content)
        before = STEPS[STEPS.index(step) - 1]
        places = [(step, int(number)), *((before, each) for each in terms.numbers)]
        return [
            PartyMessage(
                **{"terms_digest": terms.digest, "step": of_step, "party": party},  # type: ignore[arg-type]
                content=content,
                signature=signature,
            )
            for (of_step, party), content, signature in zip(
                places, parts[::2], parts[1::2], strict=False
            )
        ]

    def _path_of(self, terms: BatchTerms, step: Step | None = None) -> pathlib.Path:
        batch = artifacts.make_sensitive_folder(self.folder / terms.digest.hex())
        return batch / ("shares.secret" if step is None else f"{step.value}.step")


class Party:
    """A party with its keys and its journal. Safe to call from several threads and processes.

    Args:
        keys: its own.
        folder: of its journal.
        noise: what its noise is drawn from; None for the operating system's entropy.

    Raises LedgerError if the journal can't be used, see `PartyJournal`.
    """

    def __init__(
        self, keys: PartyKeys, folder: pathlib.Path, *, noise: NoiseSource | None = None
    ) -> None:
        self.identity = keys.identity
        self._keys = keys
        self._noise = noise or SystemNoise()
        self.journal = PartyJournal(folder, keys.identity)

    def close(self) -> None:
        """Closes the journal."""
        self.journal.close()

    def answer(self, task: PartyTask) -> PartyMessage:
        """Returns the message on a step; the same task always gets the same message.

        Raises:
            ProtocolError: if another party's message is missing, forged or contradicts others.
            AnsweredOtherwiseError: if the step was asked with other values before.
            ValueError: if this party is not in the terms.
            LedgerError: if the journal can't be used.
        """
        terms, step = task.terms, task.step
        if self.identity not in terms.parties:
            raise ValueError(f"parties: expected {self.identity.name} with its keys among them")
        number = terms.parties.index(self.identity) + 1
        with self.journal.exclusive():
            message = self.journal.answered(task)
            if message is None:
                transcript = self.journal.transcript(task)
                if step is Step.COMMIT:
                    content = self._commit(task, number)
                else:
                    parts = getattr(self, f"_{step.value}")(transcript, number)
                    content = joined(transcript.seen, *parts)
                message = signed(content, step=step, terms=terms, party=number, keys=self._keys)
                self.journal.keep(task, message, transcript)
            if step is Step.RELEASE:
                self.journal.forget_secret(terms)
            return message

    def _commit(self, task: PartyTask, number: int) -> bytes:
        terms = task.terms
        if not 1 <= len(task.sealed) <= MOST_SILOS or task.messages:
            raise ProtocolError(f"commit: expected shares of 1 to {MOST_SILOS} silos")
        held: dict[str, tuple[Elements, bytes]] = {}
        for silo in sorted(task.sealed):
            try:
                held[check_name(silo, "silo")] = shares.open_share(
                    task.sealed[silo], terms, silo=silo, keys=self._keys
                )
            except ValueError:
                continue  # left out: it is missing among the silos of the commitment
        if not held:
            raise TooFewSilosError("commit: expected shares of at least one silo that open, got 0")
        seed = os.urandom(SEED_BYTES)
        noise = np.zeros((len(terms.parties), 0), np.uint64)  # silos added theirs to feature sums
        if isinstance(terms.mechanism, SecureHistogram):
            drawn = self._noise.gaussian_integers(party_scale(terms.mechanism), terms.size)
            noise = shamir.share(
                shamir.from_integers(drawn),
                num_parties=len(terms.parties),
                degree=terms.threshold,
                words=self._noise.words,
            )
        kept = [noise[number - 1], *(row for row, _ in held.values())]
        self.journal.keep_secret(terms, joined(seed, *map(shamir.to_bytes, kept)))
        sealed = [b""] * len(terms.parties)
        for other in terms.numbers if not terms.are_sums else ():
            if other != number:
                row = shamir.to_bytes(noise[other - 1])
                sealed[other - 1] = shares.seal(
                    row, terms, sender=self.identity.name, kind="noise", party=other
                )
        return Commitment(
            dealings={silo: dealing for silo, (_, dealing) in held.items()},
            received=task.digest,
            seed=seed_digest(seed, number, terms),
            noise=tuple(sealed),
        ).to_bytes()

    def _reveal(self, transcript: Transcript, number: int) -> list[bytes]:
        self._noise_share(transcript, number)  # a batch without all noise ends here
        return split(self.journal.secret(transcript.terms))[:1]

    def _mask(self, transcript: Transcript, number: int) -> list[bytes]:
        rows = self._held(transcript, number, transcript.silos)
        return [b"".join(shamir.to_bytes(transcript.challenge.masked(row)) for row in rows)]

    def _check(self, transcript: Transcript, number: int) -> list[bytes]:
        # Of a silo whose masked sums don't fit each other nothing more opens: it is left out.
        values = [
            np.uint64(0) if y is None else transcript.challenge.check_value(row, y)
            for row, y in zip(
                self._held(transcript, number, transcript.silos), transcript.masked, strict=True
            )
        ]
        return [shamir.to_bytes(np.array(values, np.uint64))]

    def _agree(self, transcript: Transcript, number: int) -> list[bytes]:
        return [silo.encode() for silo in transcript.passing]

    def _release(self, transcript: Transcript, number: int) -> list[bytes]:
        counts = np.zeros(transcript.terms.shape, np.uint64)
        for row in self._held(transcript, number, transcript.passing):
            counts = shamir.add(counts, split_shares(row, transcript.terms.shape)[2])
        if transcript.terms.are_sums:
            return [shamir.to_bytes(counts.reshape(-1))]
        sums = shamir.multiply(counts, np.uint64(LATTICE)).reshape(-1)
        return [shamir.to_bytes(shamir.add(sums, self._noise_share(transcript, number)))]

    def _held(self, transcript: Transcript, number: int, silos: tuple[str, ...]) -> list[Elements]:
        """Returns this party's shares of each of some silos, `[share_size(terms)]`."""
        _, _, *rows = split(self.journal.secret(transcript.terms))
        held = dict(zip(transcript.committed[number - 1].dealings, rows, strict=True))
        size = (share_size(transcript.terms),)
        return [shamir.from_bytes(held[silo], size, "shares") for silo in silos]

    def _noise_share(self, transcript: Transcript, number: int) -> Elements:
        """Returns this party's share of all parties' noise, `[size of the sum]`.

        Raises ValueError if a party's noise was not sealed for this batch and party.
        """
        terms, total = transcript.terms, np.zeros(transcript.terms.size, np.uint64)
        if terms.are_sums:
            return total
        for party, committed in zip(terms.parties, transcript.committed, strict=True):
            if party == self.identity:
                share = split(self.journal.secret(terms))[1]
            else:
                sealed = committed.noise[number - 1]
                share = shares.unseal(
                    sealed, terms, sender=party.name, kind="noise", keys=self._keys
                )
            noise = shamir.from_bytes(share, (terms.size,), f"noise of {party.name}")
            total = shamir.add(total, noise)
        return total
