"""One of the parties that add up shares: what it answers, step by step, and what it refuses.

A party gives its share of a sum out once for a batch, for one set of silos, with noise that was
drawn before. It is safe against a coordinator and up to `threshold` other parties that lie
together at every step, with any silos (docs/theory_secure.md, Theorem V4).
"""

from __future__ import annotations

import fcntl
import json
import os
import pathlib
import threading
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from pate_tf.accounting.local.secure_histogram import LATTICE
from pate_tf.aggregation.noise import NoiseSource, SystemNoise
from pate_tf.core import artifacts
from pate_tf.core.validation import check_name
from pate_tf.silos.secure import protocol
from pate_tf.silos.secure import shamir as field
from pate_tf.silos.secure import shares as sealing
from pate_tf.silos.secure.keys import PartyKeys
from pate_tf.silos.secure.messages import (
    STEPS,
    PartyMessage,
    PartyTask,
    ProtocolError,
    Step,
    round_digest,
    signed,
)
from pate_tf.silos.secure.shamir import Elements
from pate_tf.silos.secure.shares import open_share, split_shares
from pate_tf.silos.secure.terms import MOST_SILOS, BatchTerms, party_scale

# What a party did, on disk, before anybody hears of it.
#
# A step's message is written before it is sent, and given out again, to the last byte, when the
# same
# is asked again. Anything else asked about the same step is refused. So a party that is killed and
# started again can't draw noise twice or open the same shares in two ways.


Arrays = dict[str, npt.NDArray[Any]]


class AnsweredOtherwiseError(ValueError):
    """A party was asked the same step of a batch with other values before."""


class PartyJournal:
    """A party's folder: a folder for each batch, a file for each step. One process at a time.

    Attributes:
      folder: where it lies, mode 0700.

    Raises:
      ValueError: if another process has it open.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = artifacts.make_sensitive_folder(folder)
        self._lock: IO[str] | None = open(self.folder / "lock", "w")  # noqa: SIM115
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise ValueError(f"{folder}: expected a journal that no process has open") from None
        artifacts.remove_abandoned(self.folder)

    def close(self) -> None:
        """Lets another process open it."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def answered(self, task: PartyTask) -> PartyMessage | None:
        """Returns the message that a task got before; None if the step is new.

        Raises:
          AnsweredOtherwiseError: if the step was asked with other values, or out of order.
        """
        batch = self._batch(task.terms)
        done = [step for step in STEPS if (batch / f"{step.value}.step").exists()]
        if task.step not in done:
            if done != list(STEPS[: STEPS.index(task.step)]):
                raise AnsweredOtherwiseError(
                    f"{task.step.value}: expected the step after those of this batch that are "
                    "done, got another"
                )
            return None
        stored = _read(batch / f"{task.step.value}.step")
        if stored["task"].tobytes() != task.digest:
            raise AnsweredOtherwiseError(
                f"{task.step.value}: this step of the batch was answered for other values before"
            )
        return PartyMessage(
            terms_digest=task.terms.digest,
            step=task.step,
            party=int(stored["party"]),
            content=stored["content"].tobytes(),
            signature=stored["signature"].tobytes(),
        )

    def keep(self, task: PartyTask, message: PartyMessage, notes: Arrays | None = None) -> None:
        """Writes a step's message, and public notes for later steps, before it is sent."""
        batch = self._batch(task.terms)
        arrays = {
            "task": np.frombuffer(task.digest, np.uint8),
            "party": np.array(message.party),
            "content": np.frombuffer(message.content, np.uint8),
            "signature": np.frombuffer(message.signature, np.uint8),
            **(notes or {}),
        }
        _write(batch / f"{task.step.value}.step", arrays)

    def notes(self, terms: BatchTerms, step: Step) -> Arrays:
        """Returns what `keep` wrote."""
        return _read(self._batch(terms) / f"{step.value}.step")

    def keep_secret(self, terms: BatchTerms, step: Step, arrays: Arrays) -> None:
        """Writes what must stay with this party. Comes before `keep` of the same step."""
        _write(self._batch(terms) / f"{step.value}.secret", arrays)

    def secret(self, terms: BatchTerms, step: Step) -> Arrays:
        """Returns what `keep_secret` wrote."""
        return _read(self._batch(terms) / f"{step.value}.secret")

    def forget_secrets(self, terms: BatchTerms) -> None:
        """Deletes shares and noise of a batch, which nobody needs once it is released."""
        for path in self._batch(terms).glob("*.secret"):
            path.unlink(missing_ok=True)

    def _batch(self, terms: BatchTerms) -> pathlib.Path:
        return artifacts.make_sensitive_folder(self.folder / terms.digest.hex())


# Not NumPy's own files: their headers are parsed by `ast`, which fails now and then in threads
# (CPython 3.11, gh-106905).


def _write(path: pathlib.Path, arrays: Arrays) -> None:
    header = {name: [array.dtype.str, list(array.shape)] for name, array in arrays.items()}
    with artifacts.atomic_file(path, private=True) as file:
        file.write(json.dumps(header).encode() + b"\n")
        for array in arrays.values():
            file.write(array.tobytes())


def _read(path: pathlib.Path) -> Arrays:
    """Returns the arrays that `_write` wrote.

    Raises:
      ValueError: if the file was cut or altered.
    """
    header, _, data = path.read_bytes().partition(b"\n")
    arrays: Arrays = {}
    place = 0
    try:
        for name, (dtype, shape) in json.loads(header).items():
            size = int(np.prod(shape))
            arrays[name] = np.frombuffer(data, dtype, size, place).reshape(shape)
            place += arrays[name].nbytes
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: expected a step of a party, got a broken file") from error
    if place != len(data):
        raise ValueError(f"{path}: expected a step of a party, got a broken file")
    return arrays


SEED_BYTES = 32


class Party:
    """A party with its keys and its journal. Safe to call from several threads.

    Args:
      keys: its own.
      folder: of its journal; whoever loses it must not go on with batches that are under way.
      noise: what its noise is drawn from; None for the operating system's entropy.
    """

    def __init__(
        self, keys: PartyKeys, folder: pathlib.Path, *, noise: NoiseSource | None = None
    ) -> None:
        self.identity = keys.identity
        self._keys = keys
        self._noise = noise or SystemNoise()
        self._journal = PartyJournal(folder)
        self._lock = threading.Lock()

    def close(self) -> None:
        """Closes the journal."""
        self._journal.close()

    def answer(self, task: PartyTask) -> PartyMessage:
        """Returns the message on a step; the same task always gets the same message.

        Raises:
          ProtocolError: if another party's message is missing, forged or contradicts others.
          AnsweredOtherwiseError: if the step was asked with other values before.
          ValueError: if this party is not in the terms.
        """
        number = self._number(task.terms)
        steps = {
            Step.COMMIT: self._commit,
            Step.REVEAL: self._reveal,
            Step.MASK: self._mask,
            Step.CHECK: self._check,
            Step.AGREE: self._agree,
            Step.RELEASE: self._release,
        }
        with self._lock:
            message = self._journal.answered(task)
            if message is None:
                content, notes = steps[task.step](task, number)
                message = signed(
                    content, step=task.step, terms=task.terms, party=number, keys=self._keys
                )
                self._journal.keep(task, message, notes)
            if task.step is Step.RELEASE:
                self._journal.forget_secrets(task.terms)
            return message

    def _number(self, terms: BatchTerms) -> int:
        for number, identity in zip(terms.numbers, terms.parties, strict=True):
            if identity == self.identity:
                return number
        raise ValueError(f"parties: expected {self.identity.name} with its keys among them")

    def _commit(self, task: PartyTask, number: int) -> tuple[bytes, Arrays]:
        terms = task.terms
        if not 1 <= len(task.sealed) <= MOST_SILOS or task.messages:
            raise ProtocolError(f"commit: expected shares of 1 to {MOST_SILOS} silos")
        held: dict[str, tuple[Elements, bytes]] = {}
        for silo in sorted(task.sealed):
            try:
                held[check_name(silo, "silo")] = open_share(
                    task.sealed[silo], terms, silo=silo, keys=self._keys
                )
            except ValueError:
                continue  # left out: it is missing among the silos of the commitment
        if not held:
            raise ProtocolError("commit: expected shares of at least one silo that open, got none")
        seed = os.urandom(SEED_BYTES)
        drawn = self._noise.gaussian_integers(
            party_scale(terms.mechanism), terms.num_queries * terms.num_classes
        )
        noise = field.share(
            field.from_integers(drawn),
            num_parties=len(terms.parties),
            degree=terms.threshold,
            words=self._noise.words,
        )
        self._journal.keep_secret(
            terms,
            Step.COMMIT,
            {
                "shares": np.stack([shares for shares, _ in held.values()]),
                "seed": np.frombuffer(seed, np.uint8),
                "noise": noise[number - 1],
            },
        )
        commitment = protocol.Commitment(
            dealings={silo: dealing for silo, (_, dealing) in held.items()},
            received=task.digest,
            seed=protocol.seed_digest(seed, number, terms),
            noise=tuple(
                b"" if other == number else self._sealed_noise(noise[other - 1], terms, other)
                for other in terms.numbers
            ),
        )
        return commitment.to_bytes(), {}

    def _sealed_noise(self, shares: Elements, terms: BatchTerms, other: int) -> bytes:
        name = self.identity.name
        return sealing.seal(field.to_bytes(shares), terms, sender=name, kind="noise", party=other)

    def _reveal(self, task: PartyTask, number: int) -> tuple[bytes, Arrays]:
        terms = task.terms
        committed = protocol.commitments(task.messages, terms)
        self._check_own(task, Step.COMMIT, number)
        secret = self._journal.secret(terms, Step.COMMIT)
        size = terms.num_queries * terms.num_classes
        noise = secret["noise"].astype(np.uint64)
        for other, commitment in zip(terms.numbers, committed, strict=True):
            if other != number:
                name = terms.parties[other - 1].name
                opened = sealing.unseal(
                    commitment.noise[number - 1], terms, sender=name, kind="noise", keys=self._keys
                )
                noise = field.add(noise, field.from_bytes(opened, (size,), f"noise of {name}"))
        silos = protocol.common_silos(committed)
        held = list(committed[number - 1].dealings)
        places = [held.index(silo) for silo in silos]
        self._journal.keep_secret(
            terms, Step.REVEAL, {"shares": secret["shares"][places], "noise": noise}
        )
        digest = round_digest(task.messages)
        notes = {
            "silos": np.array(silos, dtype=np.str_),
            "committed": np.frombuffer(digest, np.uint8),
            "seeds": np.array([list(each.seed) for each in committed], np.uint8),
        }
        return protocol.reveal_content(digest, secret["seed"].tobytes()), notes

    def _mask(self, task: PartyTask, number: int) -> tuple[bytes, Arrays]:
        terms = task.terms
        self._check_own(task, Step.REVEAL, number)
        notes = self._journal.notes(terms, Step.REVEAL)
        seed = protocol.challenge_seed_of(
            task.messages,
            terms,
            committed=notes["committed"].tobytes(),
            seed_digests=[row.tobytes() for row in notes["seeds"]],
        )
        challenge = protocol.Challenge.of_seed(seed, terms)
        shares = self._journal.secret(terms, Step.REVEAL)["shares"]
        values = np.empty((len(shares), terms.num_queries), np.uint64)
        for place, row in enumerate(shares):
            values[place] = challenge.masked(row)
        seen = round_digest(task.messages)
        notes = {
            "seen": np.frombuffer(seen, np.uint8),
            "challenge": np.frombuffer(seed, np.uint8),
        }
        return protocol.opening_content(seen, values), notes

    def _check(self, task: PartyTask, number: int) -> tuple[bytes, Arrays]:
        terms = task.terms
        self._check_own(task, Step.MASK, number)
        notes = self._journal.notes(terms, Step.MASK)
        shares = self._journal.secret(terms, Step.REVEAL)["shares"]
        masked = protocol.opened_values(
            task.messages,
            terms,
            Step.MASK,
            num_silos=len(shares),
            seen=notes["seen"].tobytes(),
        )
        challenge = protocol.Challenge.of_seed(notes["challenge"].tobytes(), terms)
        values = np.zeros((len(shares), 1), np.uint64)
        for place, opened in enumerate(masked):
            if opened is not None:  # else the silo is left out, and nothing more of it opens
                values[place] = challenge.check_value(shares[place], opened)
        seen = round_digest(task.messages)
        return protocol.opening_content(seen, values), {
            "seen": np.frombuffer(seen, np.uint8),
            "fits": np.array([opened is not None for opened in masked]),
        }

    def _agree(self, task: PartyTask, number: int) -> tuple[bytes, Arrays]:
        terms = task.terms
        self._check_own(task, Step.CHECK, number)
        silos = self._journal.notes(terms, Step.REVEAL)["silos"].tolist()
        notes = self._journal.notes(terms, Step.CHECK)
        checked = protocol.opened_values(
            task.messages,
            terms,
            Step.CHECK,
            num_silos=len(silos),
            seen=notes["seen"].tobytes(),
        )
        passing = protocol.passing_silos(silos, notes["fits"].tolist(), checked)
        places = np.array([silos.index(silo) for silo in passing], np.int64)
        content = protocol.agreed_content(round_digest(task.messages), passing)
        return content, {"places": places}

    def _release(self, task: PartyTask, number: int) -> tuple[bytes, Arrays]:
        terms = task.terms
        own = self._check_own(task, Step.AGREE, number)
        protocol.check_agreed(task.messages, terms, own.content)
        places = self._journal.notes(terms, Step.AGREE)["places"]
        secret = self._journal.secret(terms, Step.REVEAL)
        votes = np.zeros(terms.num_queries * terms.num_classes, np.uint64)
        for place in places:
            _, _, silo_votes = split_shares(secret["shares"][place], terms.shape)
            votes = field.add(votes, silo_votes.reshape(-1))
        sums = field.add(field.multiply(votes, np.uint64(LATTICE)), secret["noise"])
        return protocol.release_content(round_digest(task.messages), sums), {}

    def _check_own(self, task: PartyTask, step: Step, number: int) -> PartyMessage:
        """Returns this party's own message on the step before, as it stands among the others."""
        own = [message for message in task.messages if message.party == number]
        stored = self._journal.notes(task.terms, step)["content"].tobytes()
        if len(own) != 1 or own[0].content != stored:
            raise ProtocolError(f"{step.value}: expected this party's own message among them")
        return own[0]
