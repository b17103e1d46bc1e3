"""A run of shared training in a ledger of its own: one charge, one course."""

import dataclasses
import hashlib
import pathlib
import secrets

import numpy as np
import numpy.typing as npt

from pate_tf.accounting.noisy_training import Training
from pate_tf.ledger import EnsembleMismatch, Head, Ledger, LedgerError
from pate_tf.selective_sgd.privacy import Privacy
from pate_tf.statement.beyond_the_ledger import facts_beyond_the_ledger
from pate_tf.values.record_set import RecordSet

LEDGER = "ledger"  # the folder below `sensitive/`
# In the state of a run: what names the run, stored before it is charged, and what names the state.
NONCE, TOKEN = "nonce", "token"
NONCE_BYTES = 32


def new_nonce() -> npt.NDArray[np.uint8]:
    """Returns random bytes that name a run or a state."""
    return np.frombuffer(secrets.token_bytes(NONCE_BYTES), np.uint8)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Payment:
    """What a ledger says of a run and of everything else that it charged. Public.

    Attributes:
      charge: what was charged: all rounds of the run.
      epsilon: of all that the ledger ever charged, at `delta`.
      delta: of the ledger.
      ledger_head: sequence and digest of the last row of the ledger.
      secure_noise: False if anything was charged that used predictable noise.
      was_reset: whether an earlier ledger, or rows of it, were gone.
      epsilon_all_ensembles: of all ensembles and runs of the same records that this user's registry
        knows of, at `delta_all_ensembles`; None if nothing kept account of them.
      delta_all_ensembles: see `statement.facts.StatedFacts`.
      num_ledgers: how many ledgers were counted for it.
    """

    charge: Training
    epsilon: float
    delta: float
    ledger_head: tuple[int, str]
    secure_noise: bool
    was_reset: bool
    epsilon_all_ensembles: float | None = None
    delta_all_ensembles: float | None = None
    num_ledgers: int | None = None


class ChargedRun:
    """One run of shared training in its ledger, which knows it by random bytes of its state.

    Guarantee. All rounds of the run are charged once, durably, before any noise is drawn. Where the
    state after each round is stored, and then noted, before anything of the round leaves, each
    round leaves once: of copies and processes that go on from the same state, one at most gets past
    `note`, and `begin` refuses a state that is older than the one noted last, or another of the
    same round. Where rows of the ledger are gone and its user acknowledged that, the run is charged
    again (docs/theory_selective_sgd.md, Proposition F5).

    Assumptions. Those of `Ledger`: copies are told apart by the registry of this user; nothing
    notices one on another machine.

    Use it in one thread.

    Args:
      folder: of the ledger, below `sensitive/`.
      records: the raw records that the run learns from, by which other runs and ensembles of the
        same records are recognised.
      privacy: gives budget and delta.
      nonce: random bytes that name the run, stored with its state. Default: new ones.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        records: RecordSet,
        privacy: Privacy,
        *,
        nonce: bytes | None = None,
    ) -> None:
        self._folder, self._records, self._privacy = folder, records, privacy
        self._nonce = new_nonce().tobytes() if nonce is None else nonce
        self._ledger: Ledger | None = None
        self._charge: Training | None = None
        self._known = _Known()  # as of the row that is the head
        self._head: Head | None = None

    def begin(
        self, charge: Training, *, secure_noise: bool, round_number: int = 0, token: bytes = b""
    ) -> Payment:
        """Charges the run, unless it was charged before.

        Args:
          charge: all rounds of the run.
          secure_noise: whether the noise is unpredictable.
          round_number: how many rounds its state has behind it.
          token: random bytes that name that state, where there is one.

        Returns:
          What the ledger says now.

        Raises:
          LedgerError: if the ledger can't be used, does not suffice, or has noted a later round;
            nothing may be uploaded then.
        """
        self.close()
        try:
            ledger = self._ledger = Ledger.open(
                self._folder,
                ensemble_digest=hashlib.sha256(self._nonce).hexdigest(),
                delta=self._privacy.delta,
                epsilon_budget=self._privacy.target_epsilon,
                records=self._records,
            )
        except EnsembleMismatch as error:
            raise LedgerError(
                f"{self._folder}: expected the ledger of this run, got that of another one; choose "
                f"another folder"
            ) from error
        with ledger.exclusive():
            known = _known(ledger)
            if known.debit is not None and (
                round_number < known.round or (round_number == known.round and token != known.token)
            ):
                raise LedgerError(
                    f"{self._folder}: this run was restored from an older copy: another state was "
                    f"released after {known.round} rounds than the one of {round_number} that is "
                    f"here; put that one back, or begin in another folder, which is charged anew"
                )
            if known.debit is None:
                known = _Known(debit=ledger.debit(charge, secure_noise=secure_noise))
        self._charge, self._known, self._head = charge, known, ledger.head
        if round_number > known.round:
            # The process that stored this state ended before anything of it left.
            self.note(round_number, token)
        return self.payment()

    def note(self, round_number: int, token: bytes) -> None:
        """Notes durably that a state is about to be released, before anything of it leaves.

        Args:
          round_number: how many rounds it has behind it.
          token: random bytes that name it, and are stored with it.

        Raises:
          LedgerError: if a copy of this run or another process went on with it, or it can't be
            noted; then nothing may leave.
        """
        ledger, debit = self._opened(), self._known.debit
        if debit is None:
            raise ValueError("run: expected one that was charged, got another")
        with ledger.exclusive():
            if ledger.head != self._head and _known(ledger) != self._known:
                raise LedgerError(f"{self._folder}: another process went on with this run")
            ledger.store_release(debit, {"round": round_number, "token": token.hex()})
            self._known = _Known(debit=debit, round=round_number, token=token)
            self._head = ledger.head
        with ledger.exclusive():
            pass  # of two copies that noted at the same time, one at least sees the other's row

    def payment(self) -> Payment:
        """Returns what the ledger says now, once the run has begun."""
        ledger = self._opened()
        if self._charge is None:
            raise ValueError("run: expected one that was charged, got another")
        found = facts_beyond_the_ledger(ledger)
        return Payment(
            charge=self._charge,
            epsilon=ledger.spent().epsilon,
            delta=ledger.delta,
            ledger_head=(ledger.head.sequence, ledger.head.digest),
            secure_noise=ledger.is_secure,
            was_reset=ledger.was_reset,
            epsilon_all_ensembles=found["epsilon_all_ensembles"],
            delta_all_ensembles=found["delta_all_ensembles"],
            num_ledgers=found["num_ledgers"],
        )

    def close(self) -> None:
        """Closes the ledger."""
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None

    def __enter__(self) -> "ChargedRun":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _opened(self) -> Ledger:
        if self._ledger is None:
            raise ValueError("run: expected one that has begun, got one that has not")
        return self._ledger


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Known:
    """What a ledger knows of its run: the row that charged it, and the state noted last."""

    debit: int | None = None
    round: int = 0
    token: bytes = b""


def _known(ledger: Ledger) -> _Known:
    """Returns what a ledger knows of its run.

    Nothing, once it was acknowledged that rows are gone: they may have been of rounds that no state
    here knows.
    """
    found = _Known()
    for row in ledger.history():
        if row.kind == "debit" and not row.details["past"]:
            found = _Known(debit=row.sequence)
        elif row.kind == "acknowledged":
            found = _Known()
        elif row.kind == "released":
            kept = row.details["kept"]
            token = bytes.fromhex(kept["token"])
            found = dataclasses.replace(found, round=int(kept["round"]), token=token)
    return found
