"""What a party did, on disk, before anybody hears of it.

A step's message is written before it is sent, and given out again, to the last byte, when the same
is asked again. Anything else asked about the same step is refused. So a party that is killed and
started again can't draw noise twice or open the same shares in two ways.
"""

from __future__ import annotations

import fcntl
import json
import pathlib
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from pate_tf import artifacts
from pate_tf.silos.secure.messages import STEPS, PartyMessage, PartyTask, Step
from pate_tf.silos.secure.terms import BatchTerms

Arrays = dict[str, npt.NDArray[Any]]


class AnsweredOtherwiseError(ValueError):
    """A party was asked the same step of a batch with other values before."""


class Journal:
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
