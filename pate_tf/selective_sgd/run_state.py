"""A run on disk: its state, and the ledger that is charged once and notes each released state."""

import dataclasses
import functools
import hashlib
import pathlib
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pate_tf.accounting.charge import rounded_up
from pate_tf.accounting.composition import fits, smallest_epsilon
from pate_tf.accounting.noisy_training import Training
from pate_tf.core import artifacts
from pate_tf.core.source import PRIVATE_RECORDS, PrivateSource, check_same_settings, private_digest
from pate_tf.ledger import EnsembleMismatch, Ledger, LedgerError
from pate_tf.ledger.ledger import source_facts
from pate_tf.release.noise import NoiseSource
from pate_tf.selective_sgd.settings import Privacy

LEDGER = "ledger"  # the folder below `sensitive/`
# In the state of a run: what names the run, stored before it is charged, and what names the state.
NONCE, TOKEN, ROUND = "nonce", "token", "round"
NONCE_BYTES = 32
SECONDS_BETWEEN_SAVES = 10.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class LedgerFacts:
    """What a ledger says of a run and of everything else that it charged. Public.

    Attributes:
        epsilon: of all that the ledger ever charged, at `delta`.
        delta: of the ledger.
        ledger_head: sequence and digest of the last row of the ledger.
        secure_noise: False if anything was charged that used predictable noise.
        was_reset: whether an earlier ledger, or rows of it, were gone.
        epsilon_source: of all that was charged to the same named source, as far as this user's
            registry knows, at `delta_source`; None if that is not known.
        delta_source: see `ledger.source_facts`.
        num_ledgers: how many ledgers were counted for it.
        num_records: how many the participant has, where it tells others; None otherwise.
    """

    epsilon: float
    delta: float
    ledger_head: tuple[int, str]
    secure_noise: bool
    was_reset: bool
    epsilon_source: float | None = None
    delta_source: float | None = None
    num_ledgers: int | None = None
    num_records: int | None = None


class ChargedRun:
    """One run of shared training in its ledger, which knows it by random bytes of its state.

    Guarantee. All rounds of the run are charged once, durably, before any noise is drawn. Where the
    state after each round is stored, and then noted, before anything of the round leaves, each
    round leaves once: of copies and processes that go on from the same state, one at most gets past
    `note`, and `begin` refuses a state that is older than the one noted last, or another of the
    same round. Where rows of the ledger are gone and its user acknowledged that, the run is charged
    again (docs/proofs/selective_sgd.md, Proposition F5).

    Assumptions. Those of `Ledger`: copies are told apart by the registry of this user; nothing
    notices one on another machine. Use it in one thread.

    Args:
        folder: of the ledger, below `sensitive/`.
        source: that the run is charged to; None for its own folder.
        privacy: gives budget and delta.
        nonce: random bytes that name the run, stored with its state. Default: new ones.
        round_number: how many rounds its state has behind it.
        token: random bytes that name that state, where there is one.
        acknowledge_reset: goes on although the ledger, or rows of it, are gone. What is known of
            them is charged, the run too, and the budget raised to that, on record for ever.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        source: PrivateSource | None,
        privacy: Privacy,
        *,
        nonce: bytes | None = None,
        round_number: int = 0,
        token: bytes = b"",
        acknowledge_reset: bool = False,
    ) -> None:
        self._folder, self._source, self._privacy = folder, source, privacy
        self._round, self._token = round_number, token
        self._nonce = secrets.token_bytes(NONCE_BYTES) if nonce is None else nonce
        self._acknowledge_reset = acknowledge_reset
        self._ledger: Ledger | None = None
        self._noted = _Noted()  # as of the row that is the head

    def beginning(self, noise: NoiseSource) -> Callable[[Training], LedgerFacts]:
        """Returns `begin` for noise of a source."""
        return functools.partial(self.begin, secure_noise=noise.is_secure)

    def begin(self, charge: Training, *, secure_noise: bool) -> LedgerFacts:
        """Charges the run, unless it was charged before.

        Args:
            charge: all rounds of the run.
            secure_noise: whether the noise is unpredictable.

        Returns:
            What the ledger says now.

        Raises:
            LedgerError: if the ledger can't be used, does not suffice, or has noted a later round;
                nothing may be uploaded then.
        """
        self.close()
        delta, target = self._privacy.delta, self._privacy.target_epsilon
        round_number, token = self._round, self._token
        digest = hashlib.sha256(self._nonce).hexdigest()
        try:
            ledger = self._ledger = Ledger.open(
                self._folder,
                ensemble_digest=digest,
                delta=delta,
                source=self._source,
                identity=("run", digest),
                unit=self._privacy.unit,
                acknowledge_reset=self._acknowledge_reset,
            )
        except EnsembleMismatch as error:
            raise LedgerError(
                f"{self._folder}: expected the ledger of this run, got that of another one; choose "
                f"another folder"
            ) from error
        with ledger.exclusive():
            noted = _noted(ledger)
            if noted.debit is not None and (
                round_number < noted.round or (round_number == noted.round and token != noted.token)
            ):
                raise LedgerError(
                    f"{self._folder}: this run was restored from an older copy: another state was "
                    f"released after {noted.round} rounds than the one of {round_number} that is "
                    f"here; put that one back, or begin in another folder, which is charged anew"
                )
            if ledger.epsilon_budget is None and target is not None:
                ledger.replace_budget(target, delta)
            if noted.debit is None:
                if ledger.was_reset:
                    self._raise_budget(ledger, charge)
                noted = _Noted(debit=ledger.debit(charge, secure_noise=secure_noise))
        self._noted = noted
        if round_number > noted.round:
            # The process that stored this state ended before anything of it left.
            self.note(round_number, token)
        return self.facts()

    def _raise_budget(self, ledger: Ledger, charge: Training) -> None:
        """Raises the budget for what is charged again, if that was acknowledged."""
        charges, delta = ledger.charges + Counter({charge: 1}), ledger.delta
        if ledger.epsilon_budget is None or fits(charges, delta, ledger.epsilon_budget):
            return
        if not self._acknowledge_reset:
            raise LedgerError(
                f"{self._folder}: rows of this run's ledger are gone, and what is known of them "
                f"leaves too little of its budget; give `acknowledge_reset` to charge the run "
                f"again, above its target, on record for ever"
            )
        epsilon, _ = smallest_epsilon(charges, delta)
        ledger.replace_budget(float(rounded_up(epsilon)), delta)

    def note(self, round_number: int, token: bytes) -> None:
        """Notes durably that a state is about to be released, before anything of it leaves.

        Args:
            round_number: how many rounds it has behind it.
            token: random bytes that name it, and are stored with it.

        Raises:
            LedgerError: if a copy of this run or another process went on with it, or it can't be
                noted; then nothing may leave.
        """
        ledger, debit = self._opened(), self._noted.debit
        if debit is None:
            raise ValueError("run: expected one that was charged, got another")
        with ledger.exclusive():
            if _noted(ledger) != self._noted:
                raise LedgerError(f"{self._folder}: another process went on with this run")
            ledger.store_release(debit, {"round": round_number, "token": token.hex()})
            self._noted = _Noted(debit=debit, round=round_number, token=token)
        with ledger.exclusive():
            pass  # of two copies that noted at the same time, one at least sees the other's row

    def facts(self) -> LedgerFacts:
        """Returns what the ledger says now, once the run has begun."""
        ledger = self._opened()
        others = source_facts(ledger)
        names = ("epsilon_source", "delta_source", "num_ledgers")
        return LedgerFacts(
            epsilon=ledger.spent().epsilon,
            delta=ledger.delta,
            ledger_head=(ledger.head.sequence, ledger.head.digest),
            secure_noise=ledger.is_secure,
            was_reset=ledger.was_reset,
            **{name: others[name] for name in names},
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
class _Noted:
    """What a ledger has of its run: the row that charged it, and the state noted last."""

    debit: int | None = None
    round: int = 0
    token: bytes = b""


def _noted(ledger: Ledger) -> _Noted:
    """Returns what a ledger has of its run.

    Nothing, once it was acknowledged that rows are gone: they may have been of rounds that no state
    here knows.
    """
    found = _Noted()
    for row in ledger.history():
        if row.kind == "debit" and not row.details["past"]:
            found = _Noted(debit=row.sequence)
        elif row.kind == "acknowledged":
            found = _Noted()
        elif row.kind == "released":
            kept = row.details["kept"]
            token = bytes.fromhex(kept["token"])
            found = dataclasses.replace(found, round=int(kept["round"]), token=token)
    return found


class RunState:
    """`config.json` and `state.npz` in a folder, so that a run goes on where it was stopped.

    With privacy it has a ledger, too (`ChargedRun`), which notes each state once it is stored.

    Args:
        folder: below `sensitive/`.
        settings: public JSON values by name, which fix the result.
        private: arrays that do so, too: records and labels. A keyed digest is stored.
        privacy: what protects uploads. Default: nothing, and there is no ledger.
        source: that the run is charged to, with privacy; None for its own folder.
        acknowledge_reset: see `ChargedRun`.

    Attributes:
        saved: the state that was found; without `ROUND` if there was none.
        charged: the run in its ledger; None without privacy.

    Raises:
        ValueError: if the folder holds another run, or a damaged state.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        settings: Mapping[str, Any],
        *,
        private: Sequence[npt.NDArray[Any]] = (),
        privacy: Privacy | None = None,
        source: PrivateSource | None = None,
        acknowledge_reset: bool = False,
    ) -> None:
        self._folder = artifacts.make_sensitive_folder(folder)
        self._last_save = time.monotonic()
        path, state = folder / "config.json", folder / "state.npz"
        if private:
            settings = {**settings, PRIVATE_RECORDS: private_digest(folder.parent, *private)}
        if path.exists():
            stored = artifacts.read_json(path)
            check_same_settings(stored, settings, folder=folder, holds="a run")
        else:
            artifacts.write_json(path, settings, private=True)
        self.saved = artifacts.read_arrays(state) if state.exists() else {}
        self.charged: ChargedRun | None = None
        if privacy is None or privacy.kind == "none":
            return
        if NONCE not in self.saved:
            self.saved = {NONCE: _new_nonce()}
            self._write(self.saved)
        self.charged = ChargedRun(
            folder.parent / LEDGER,
            source,
            privacy,
            nonce=self.saved[NONCE].tobytes(),
            round_number=int(self.saved.get(ROUND, 0)),
            token=bytes(self.saved.get(TOKEN, b"")),
            acknowledge_reset=acknowledge_reset,
        )

    def save(self, state: Mapping[str, npt.NDArray[Any]], *, at_once: bool = True) -> None:
        """Stores a state, and notes it in the ledger: what was drawn counts as released from then.

        Args:
            state: all that the run goes on from; with privacy it has `ROUND`.
            at_once: else, without privacy, only if some seconds have passed.

        Raises:
            LedgerError: as `ChargedRun.note`; then nothing of it may leave.
            OSError: if it can't be written.
        """
        if self.charged is not None:
            token = _new_nonce()
            self._write({**state, NONCE: self.saved[NONCE], TOKEN: token})
            self.charged.note(int(state[ROUND]), token.tobytes())
        elif at_once or time.monotonic() - self._last_save > SECONDS_BETWEEN_SAVES:
            self._write(state)

    def _write(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        artifacts.write_arrays(self._folder / "state.npz", state, private=True)
        self._last_save = time.monotonic()


def _new_nonce() -> npt.NDArray[np.uint8]:
    return np.frombuffer(secrets.token_bytes(NONCE_BYTES), np.uint8)
