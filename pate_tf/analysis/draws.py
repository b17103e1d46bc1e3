"""Where the one draw from some votes is kept: in the ledger that paid for their labels, or a file.

A ledger charges for the draw before there is any. Votes of a file have no ledger; their draw lies
in the sensitive folder of the results. A roof room, without TensorFlow.
"""

import contextlib
import hashlib
import pathlib
import secrets
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from pate_tf import artifacts
from pate_tf.accounting.planned_release import PlannedRelease
from pate_tf.accounting.release_plan import ReleasePlan, plan_from_dict
from pate_tf.ledger import Ledger, LedgerError
from pate_tf.noise import NoiseSource
from pate_tf.releases.release import DiscreteGaussian

FOLDER = "releases"

Draw = Callable[[DiscreteGaussian], dict[str, Any]]


class Draws(Protocol):
    """Sensitive: the draws from one source of votes, while no other process may draw."""

    place: str
    kept: Mapping[str, Any] | None

    def keep(
        self,
        plan: ReleasePlan,
        num_queries: int,
        facts: Mapping[str, Any],
        draw: Draw,
        noise: NoiseSource,
    ) -> Mapping[str, Any]:
        """Draws, makes it durable in place of an earlier one, and returns it."""

    def fix(self, planned: PlannedRelease) -> bool:
        """Fixes how it is drawn, for good where a ledger keeps it.

        Returns whether that had been fixed before there were votes.
        """

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

    def keep(
        self,
        plan: ReleasePlan,
        num_queries: int,
        facts: Mapping[str, Any],
        draw: Draw,
        noise: NoiseSource,
    ) -> Mapping[str, Any]:
        """Pays, draws and keeps, if `num_queries` are still all that were answered.

        Raises:
          LedgerError: if more were answered since the votes were read, it does not fit the budget,
            or can't be made durable.
        """
        if self._ledger.num_answered != num_queries:
            raise LedgerError(
                f"release: expected {num_queries} answered queries, got "
                f"{self._ledger.num_answered}: others were answered meanwhile; run it again"
            )
        debit = self._ledger.debit(plan, secure_noise=noise.is_secure)
        kept = {**facts, "drawn": draw(noise.discrete_gaussian)}
        self._ledger.store_release(debit, kept)
        return kept

    def fix(self, planned: PlannedRelease) -> bool:
        """Fixes how it is drawn in the ledger.

        Raises:
          BudgetMismatch: if something else was fixed.
        """
        self._ledger.plan_release(planned)
        return not self._ledger.plan_is_late

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

    def keep(
        self,
        plan: ReleasePlan,
        num_queries: int,
        facts: Mapping[str, Any],
        draw: Draw,
        noise: NoiseSource,
    ) -> Mapping[str, Any]:
        """Draws and writes the file.

        Raises:
          OSError: if it can't be written.
        """
        del plan, num_queries
        drawn = draw(noise.discrete_gaussian)
        kept = {"source": self._identity, **facts, "drawn": drawn}
        artifacts.write_json(self._path, kept, private=True)
        return kept

    def fix(self, planned: PlannedRelease) -> bool:
        """Returns False: files fix nothing before there are votes."""
        del planned
        return False

    def epsilon(self, delta: float) -> float:
        """Returns 0: nobody keeps accounts of files."""
        del delta
        return 0.0


@contextlib.contextmanager
def in_ledger(folder: pathlib.Path, identity: str) -> Iterator[LedgerDraws]:
    """Opens the draws of a ledger's votes.

    A draw kept in a file beside the ledger, as before ledgers charged for them, is paid for and
    taken over, also above the budget: it has left.

    Args:
      folder: the ledger's.
      identity: digest of the source.

    Raises:
      ValueError: if such a file is damaged.
      LedgerError: if the ledger is damaged or can't be written.
    """
    with Ledger.read(folder) as known:
        ensemble_digest, delta = known.ensemble_digest, known.delta
    with (
        Ledger.open(folder, ensemble_digest=ensemble_digest, delta=delta) as ledger,
        ledger.exclusive(),
    ):
        unpaid = _unpaid(ledger, identity)
        if unpaid is not None:
            debit = ledger.debit(
                plan_from_dict(unpaid["key"]["plan"]),
                secure_noise=unpaid.get("secure_noise", True),
                has_left=True,
            )
            ledger.store_release(debit, unpaid)
        yield LedgerDraws(ledger)


def is_unpaid(ledger: Ledger) -> bool:
    """Whether a draw lies beside a ledger that was never charged for it.

    Only versions before ledgers charged for draws left such; only in the ledger's own folder are
    they found.
    """
    return _unpaid(ledger, identity_of(ledger.ensemble_digest)) is not None


def identity_of(votes: str) -> str:
    """Returns the digest that draws are kept by, from what `VoteSource.identity` gives."""
    return hashlib.sha256(votes.encode()).hexdigest()


def _unpaid(ledger: Ledger, identity: str) -> Mapping[str, Any] | None:
    if ledger.kept_release() is not None:
        return None
    return FileDraws(ledger.folder / FOLDER, identity).kept


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
    with artifacts.one_at_a_time(folder):
        yield FileDraws(folder, identity)


def _read(path: pathlib.Path) -> dict[str, Any]:
    kept = artifacts.read_json(path)
    fields = {"source": str, "key": dict, "drawn": dict, "num_discarded": int, "failure": float}
    if not all(isinstance(kept.get(name), kind) for name, kind in fields.items()):
        raise ValueError(f"{path}: expected a kept release, got something else")
    return kept
