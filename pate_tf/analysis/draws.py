"""Where the one draw from some votes is kept: in the ledger that paid for their labels, or a file.

A ledger charges for the draw before there is any. Votes of a file have no ledger; their draw lies
in the sensitive folder of the results. A roof room, without TensorFlow.
"""

import contextlib
import fcntl
import os
import pathlib
import secrets
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from pate_tf import artifacts
from pate_tf.accounting.plan import ReleasePlan, plan_from_dict
from pate_tf.accounting.release import DiscreteGaussian
from pate_tf.ledger import Ledger

FOLDER = "releases"

# Draws with the noise that it is given, and returns what is to be kept.
Draw = Callable[[DiscreteGaussian], dict[str, Any]]


class Draws(Protocol):
    """Sensitive: the draws from one source of votes, while no other process may draw."""

    place: str
    kept: Mapping[str, Any] | None

    def keep(self, plan: ReleasePlan, draw: Draw, noise: DiscreteGaussian) -> Mapping[str, Any]:
        """Draws, makes it durable in place of an earlier one, and returns it."""

    def epsilon(self, delta: float) -> float:
        """Returns what is known to have been paid so far, data-independent; 0 for nothing."""


class LedgerDraws:
    """Draws kept in a ledger, paid for through it; every one of them, discarded or not.

    Attributes:
      place: where they are kept, in words that tell nothing of the votes.
      kept: the last one; None if there is none.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.place = f"the ledger in {ledger.folder}"
        self.kept = ledger.kept_release()
        self._ledger = ledger

    def keep(self, plan: ReleasePlan, draw: Draw, noise: DiscreteGaussian) -> Mapping[str, Any]:
        """Pays when noise is asked for the first time, so that what can't be drawn costs nothing.

        Raises:
          LedgerError: if it does not fit the budget, or can't be made durable.
        """
        debits: list[int] = []

        def paid_noise(sigma: float) -> int:
            if not debits:
                debits.append(self._ledger.debit_release(plan))
            return noise(sigma)

        kept = draw(paid_noise)
        self._ledger.store_release(debits[0], kept)
        return kept

    def epsilon(self, delta: float) -> float:
        """Returns what all labels and draws of the ledger cost, data-independent."""
        return self._ledger.spent(delta).epsilon


class FileDraws:
    """Draws kept in a folder of files, one for each source of votes.

    Attributes:
      place: as of `LedgerDraws`; the file's name tells nothing of the votes either.
      kept: the draw from this source; None if there is none.
    """

    def __init__(self, folder: pathlib.Path, identity: str) -> None:
        self._path = folder / f"{secrets.token_hex(8)}.json"
        self.kept: Mapping[str, Any] | None = None
        self._identity = identity
        for path in sorted(folder.glob("*.json")):
            found = _read(path)
            if found["source"] == identity:
                self._path, self.kept = path, found
        self.place = str(self._path)

    def keep(self, plan: ReleasePlan, draw: Draw, noise: DiscreteGaussian) -> Mapping[str, Any]:
        """Draws and writes the file.

        Raises:
          OSError: if it can't be written.
        """
        del plan
        kept = {"source": self._identity, **draw(noise)}
        artifacts.write_json(self._path, kept, private=True)
        return kept

    def epsilon(self, delta: float) -> float:
        """Returns 0: nobody keeps accounts of files."""
        del delta
        return 0.0


@contextlib.contextmanager
def in_ledger(folder: pathlib.Path, identity: str) -> Iterator[LedgerDraws]:
    """Opens the draws of a ledger's votes.

    A draw kept in a file beside the ledger, as before ledgers charged for them, is paid for and
    taken over.

    Args:
      folder: the ledger's.
      identity: digest of the source.

    Raises:
      ValueError: if such a file is damaged.
      LedgerError: if the ledger is damaged or can't be written, or that file does not fit the
        budget.
    """
    with Ledger.read(folder) as known:
        ensemble_digest, delta = known.ensemble_digest, known.delta
    with (
        Ledger.open(folder, ensemble_digest=ensemble_digest, delta=delta) as ledger,
        ledger.exclusive(),
    ):
        unpaid = FileDraws(folder / FOLDER, identity).kept
        if unpaid is not None and ledger.kept_release() is None:
            debit = ledger.debit_release(plan_from_dict(unpaid["key"]["plan"]))
            ledger.store_release(debit, unpaid)
        yield LedgerDraws(ledger)


@contextlib.contextmanager
def in_files(folder: pathlib.Path, identity: str) -> Iterator[FileDraws]:
    """Opens the draws from a source of votes that has no ledger.

    Args:
      folder: a sensitive folder; draws go to `releases/` in it.
      identity: digest of the source.

    Raises:
      ValueError: if a kept draw is damaged.
    """
    folder = artifacts.make_sensitive_folder(folder / FOLDER)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield FileDraws(folder, identity)
    finally:
        os.close(descriptor)


def _read(path: pathlib.Path) -> dict[str, Any]:
    kept = artifacts.read_json(path)
    fields = {"source": str, "key": dict, "drawn": dict, "num_discarded": int, "failure": float}
    if not all(isinstance(kept.get(name), kind) for name, kind in fields.items()):
        raise ValueError(f"{path}: expected a kept release, got something else")
    return kept
