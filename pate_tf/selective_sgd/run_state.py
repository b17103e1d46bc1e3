"""A run on disk: its state, and the ledger that is charged once and notes each released state."""

import contextlib
import dataclasses
import hashlib
import pathlib
import re
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pate_tf.accounting.charge import rounded_up
from pate_tf.accounting.composition import smallest_epsilon
from pate_tf.accounting.noisy_training import NoisyTraining
from pate_tf.core import artifacts, checks
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.core.settings import EpsilonDelta
from pate_tf.core.source import PrivateSource, check_same_settings
from pate_tf.ledger import Ledger, LedgerError
from pate_tf.ledger.privacy_ledger import source_facts
from pate_tf.selective_sgd.training_settings import TrainingSettings

STATE = "state.npz"
LEDGER = "ledger"  # the folder below `sensitive/`
# In the state of a run: what names the run, stored before it is charged, and what names the state.
NONCE = "nonce"
TOKEN = "token"
ROUND = "num_rounds"
NONCE_BYTES = 32
# What a ledger has of its run: the row that charged it; round and token of the state noted last.
Noted = tuple[int | None, int, bytes]
NOTHING: Noted = (None, 0, b"")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LedgerFacts(EpsilonDelta):
    """What a ledger says of a run and of everything else that it charged. Public.

    Attributes:
        ledger_sequence: of the last row.
        ledger_digest: of the last row.
        secure_noise: whether all noise was unpredictable.
        was_reset: whether an earlier ledger, or rows of it, were gone.
        epsilon_source: of all that was charged to the same source; None if it is not known.
        delta_source: that `epsilon_source` holds at; None as that.
        num_ledgers: how many were counted for it.
        fewest_records: of a participant, where records are protected.

    Raises:
        ValueError: if a value is out of its range.
    """

    ledger_sequence: int
    ledger_digest: str
    secure_noise: bool
    was_reset: bool = False
    epsilon_source: float | None = None
    delta_source: float | None = None
    num_ledgers: int | None = None
    fewest_records: int | None = None

    def __post_init__(self) -> None:
        if (self.epsilon_source is None) != (self.delta_source is None):
            raise ValueError("delta_source: expected epsilon and delta, got one of them")
        if not re.fullmatch("[0-9a-f]{64}", self.ledger_digest):
            raise ValueError("ledger_digest: expected the head of a ledger, got something else")

        def given(*names: str) -> dict[str, Any]:
            return {name: vars(self)[name] for name in names if vars(self)[name] is not None}

        checks.positive(**given("epsilon", "epsilon_source"))
        checks.between(0, 1, **given("delta", "delta_source"))
        checks.whole(**given("ledger_sequence", "num_ledgers", "fewest_records"))


class DurableRun(contextlib.ExitStack):
    """A run in a folder, which no other process has open: its state and, with privacy, its ledger.

    Guarantee. All rounds of the run are charged once, durably, before any noise is drawn. Where
    `save` returns before anything of a round leaves, each round leaves once: of copies and
    processes that resume from the same state, one at most gets past `save`, and `charge` refuses a
    state that is older than the one noted last, or another of the same round. Where rows of the
    ledger are gone and its user acknowledged that, the run is charged again
    (docs/proofs/selective_sgd.md, Proposition F4).

    Assumptions. Those of `Ledger`: copies are told apart by the registry of this user; nothing
    notices one on another machine. Use it in one thread.

    Args:
        directory: of the run; all lies below `sensitive/`.
        name: of the folder with the state, beside that of the ledger.
        identity: public JSON values by name, which fix the result.
        shards: the records. Each round learns from those that are given now; where records are
            protected, their numbers are public, and have to stay.
        settings: of the run, which give budget and delta. Without privacy there is no ledger.
        source: that the run is charged to; None for its own folder.
        acknowledge_reset: resumes although the ledger, or rows of it, are gone. What is known of
            them is charged, the run too, and the budget raised to that, on record forever.

    Attributes:
        folder: with the state.
        saved: the state that was found; without `ROUND` if there was none.

    Raises:
        ValueError: if the folder holds another run, or a damaged state.
    """

    def __init__(
        self,
        directory: pathlib.Path,
        name: str,
        identity: Mapping[str, Any],
        shards: Sequence[PrivateExamples] = (),
        *,
        settings: TrainingSettings | None = None,
        source: PrivateSource | None = None,
        acknowledge_reset: bool = False,
    ) -> None:
        super().__init__()
        artifacts.remove_abandoned(directory)
        sensitive = artifacts.RunDirectory(directory).sensitive
        self.folder = folder = artifacts.make_sensitive_folder(sensitive / name)
        self.enter_context(artifacts.only_writer(folder))
        self._ledger_folder = sensitive / LEDGER
        self._settings = settings
        self._source = source
        self._acknowledge_reset = acknowledge_reset
        self._ledger: Ledger | None = None
        self._noted = NOTHING  # as of the row that is the head
        self._fewest_records: int | None = None
        if settings is not None and settings.privacy == "record":
            sizes = [len(shard) for shard in shards]
            self._fewest_records = min(sizes)
            identity = {**identity, "num_records": sizes}
        config = folder / "config.json"
        if config.exists():
            stored = artifacts.read_json(config)
            check_same_settings(stored, identity, folder=folder, holds="a run")
        else:
            artifacts.write_json(config, identity, private=True)
        state = folder / STATE
        self.saved = artifacts.read_arrays(state) if state.exists() else {}
        if settings is not None and settings.is_noisy and NONCE not in self.saved:
            self.saved = {NONCE: np.frombuffer(secrets.token_bytes(NONCE_BYTES), np.uint8)}
            artifacts.write_arrays(state, self.saved, private=True)

    def charge(self, charge: NoisyTraining, *, secure_noise: bool) -> LedgerFacts:
        """Charges all rounds, unless they were charged before; returns what the ledger says now.

        Raises:
            LedgerError: if the ledger can't be used, does not suffice, or has noted a later round;
                nothing may be uploaded then.
        """
        settings = self._settings
        if settings is None or settings.target_epsilon is None:
            raise ValueError("run: expected one with privacy, got one without")
        digest = hashlib.sha256(self.saved[NONCE].tobytes()).hexdigest()
        self._ledger = ledger = Ledger.open(
            self._ledger_folder,
            ensemble_digest=digest,
            delta=settings.delta,
            source=self._source,
            identity=("run", digest),
            unit=settings.privacy,
            acknowledge_reset=self._acknowledge_reset,
        )
        self.callback(ledger.close)
        round_number = int(self.saved.get(ROUND, 0))
        token = bytes(self.saved.get(TOKEN, b""))
        with ledger.exclusive():
            debit, last, token_of_last = _noted(ledger)
            is_other = round_number == last and token != token_of_last
            if debit is not None and (round_number < last or is_other):
                raise LedgerError(
                    f"{self._ledger_folder}: this run was restored from an older copy: another "
                    f"state was released after {last} rounds than the one of {round_number} "
                    f"that is here; put that one back, or begin in another folder, which is "
                    f"charged anew"
                )
            if ledger.epsilon_budget is None:
                ledger.replace_budget(settings.target_epsilon, settings.delta)
            if debit is None:
                charges = ledger.charges + Counter({charge: 1})
                if self._acknowledge_reset and ledger.was_reset:
                    # What rows that are gone cost is charged, too.
                    epsilon, _ = smallest_epsilon(charges, settings.delta)
                    budget = max(settings.target_epsilon, float(rounded_up(epsilon)))
                    ledger.replace_budget(budget, settings.delta)
                ledger.debit(charge, secure_noise=secure_noise)
            self._noted = _noted(ledger)
        if round_number > last:
            # The process that stored this state ended before anything of it left.
            self._note(ledger, round_number, token)
        return self.facts()

    def save(self, state: Mapping[str, Any]) -> None:
        """Stores a state and notes it in the ledger: what was drawn counts as released from then.

        Args:
            state: arrays by name, all that the run resumes from; once it was charged with `ROUND`.

        Raises:
            LedgerError: if a copy of this run or another process resumed it, or it can't be noted;
                then nothing of the state may leave.
            OSError: if it can't be written.
        """
        token = secrets.token_bytes(NONCE_BYTES)
        if self._ledger is not None:
            names = {NONCE: self.saved[NONCE], TOKEN: np.frombuffer(token, np.uint8)}
            state = {**state, **names}
        artifacts.write_arrays(self.folder / STATE, state, private=True)
        if self._ledger is not None:
            self._note(self._ledger, int(state[ROUND]), token)

    def facts(self) -> LedgerFacts:
        """Returns what the ledger says now, once the run was charged."""
        if self._ledger is None:
            raise ValueError("run: expected one that was charged, got another")
        ledger = self._ledger
        others = source_facts(ledger)
        return LedgerFacts(
            epsilon=ledger.spent().epsilon,
            delta=ledger.delta,
            ledger_sequence=ledger.head.sequence,
            ledger_digest=ledger.head.digest,
            secure_noise=ledger.is_secure,
            was_reset=ledger.was_reset,
            fewest_records=self._fewest_records,
            epsilon_source=others["epsilon_source"],
            delta_source=others["delta_source"],
            num_ledgers=others["num_ledgers"],
        )

    def _note(self, ledger: Ledger, round_number: int, token: bytes) -> None:
        """Notes durably that a state is about to be released, before anything of it leaves."""
        debit, *_ = self._noted
        with ledger.exclusive():
            if debit is None or _noted(ledger) != self._noted:
                raise LedgerError(f"{self._ledger_folder}: another process resumed this run")
            ledger.store_release(debit, {"round": round_number, "token": token.hex()})
            self._noted = (debit, round_number, token)
        with ledger.exclusive():
            pass  # of two copies that noted at the same time, one at least sees the other's row


def _noted(ledger: Ledger) -> Noted:
    """Returns what a ledger has of its run.

    `NOTHING`, once it was acknowledged that rows are gone: they may have been of rounds that no
    state here knows.
    """
    noted = NOTHING
    for row in ledger.history():
        if row.kind == "debit" and not row.details["past"]:
            noted = (row.sequence, 0, b"")
        elif row.kind == "acknowledged":
            noted = NOTHING
        elif row.kind == "released":
            kept = row.details["kept"]
            noted = (noted[0], int(kept["round"]), bytes.fromhex(kept["token"]))
    return noted
