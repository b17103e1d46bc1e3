"""Stores the state of a run on disk, and the run's ledger."""

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
LEDGER = "ledger"  # folder in `sensitive/`
# Names of the arrays in the stored state of a run.
NONCE = "nonce"  # random identifier of the run, stored before the run is charged
TOKEN = "token"  # random identifier of a stored state
ROUND = "num_rounds"  # number of finished rounds
NONCE_BYTES = 32
# Facts in the ledger about a run: the number of the row with the run's charge, and the round and
# the token of the last released state.
Noted = tuple[int | None, int, bytes]
NOTHING: Noted = (None, 0, b"")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LedgerFacts(EpsilonDelta):
    """Public: facts from a participant's ledger about this run and about all other charges.

    Attributes:
        ledger_sequence: sequence number of the last row.
        ledger_digest: digest of the last row, 64 hexadecimal digits.
        secure_noise: whether all noise came from the operating system's entropy.
        was_reset: whether an earlier ledger, or rows of this ledger, were missing.
        epsilon_source: total epsilon of everything that was charged to the source; None if it is
            unknown.
        delta_source: delta of `epsilon_source`; None if it is unknown.
        num_ledgers: number of ledgers of the source; None if it is unknown.
        fewest_records: the smallest number of records of a participant; None without privacy.

    Raises:
        ValueError: if a value is out of range.
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
            raise ValueError("epsilon_source and delta_source must be set together")
        if not re.fullmatch("[0-9a-f]{64}", self.ledger_digest):
            raise ValueError("ledger_digest must be 64 hexadecimal digits")

        def given(*names: str) -> dict[str, Any]:
            return {name: vars(self)[name] for name in names if vars(self)[name] is not None}

        checks.positive(**given("epsilon", "epsilon_source"))
        checks.between(0, 1, **given("delta", "delta_source"))
        checks.whole(**given("ledger_sequence", "num_ledgers", "fewest_records"))


class DurableRun(contextlib.ExitStack):
    """The stored state of a run, and its ledger if privacy is "record". Locks the folder.

    Guarantee. All rounds of the run are charged once, durably, before any noise is drawn. If the
    caller sends nothing of a round before `save` returns, each round is sent only once. If several
    copies or processes resume from the same state, `save` succeeds for at most one of them.
    `charge` fails for a state that is older than the last state in the ledger, and for a different
    state of the same round. If rows of the ledger are missing and the user acknowledged this, the
    run is charged again (docs/proofs/selective_sgd.md, Proposition F4).

    Assumptions. The assumptions of `Ledger` hold. The registry of this user detects copies on this
    machine. A copy on another machine is not detected. Use the object in only one thread.

    Args:
        directory: the run folder; all files are in its subfolder `sensitive/`.
        name: name of the folder for the state; this folder is next to the folder of the ledger.
        identity: public JSON values, by name, that determine the result of the run.
        shards: records of each participant. A resumed run trains on the records that are passed
            when it resumes. If records are protected, the number of records in each shard is public
            and can't change.
        settings: settings of the run, with its budget and delta. A run without privacy has no
            ledger.
        source: private data source to which the run is charged; None if the run folder is the
            source.
        acknowledge_reset: whether to resume even if the ledger or some of its rows are missing. In
            this case, the known costs of the missing rows and of the run are charged again, the
            budget is raised to cover these charges, and the ledger records this permanently.

    Attributes:
        folder: folder of the state.
        saved: the stored state. The state of a new run has no `ROUND`.

    Raises:
        ValueError: if the folder contains another run, or a damaged state.
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
        self._noted = NOTHING  # facts in the ledger up to its last row
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
        """Charges all rounds, unless they were charged before; returns the facts of the ledger.

        Raises:
            LedgerError: if the ledger can't be used, if the budget is too small, or if the ledger
                contains a later round. In this case, the caller must not upload anything.
        """
        settings = self._settings
        if settings is None or settings.target_epsilon is None:
            raise ValueError("a run without privacy has no ledger to charge")
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
                    f"{self._ledger_folder}: this run was restored from an older copy: its state "
                    f"is from round {round_number}, but a different state was released in round "
                    f"{last}. Restore that state, or start in a new folder, which is charged again"
                )
            if ledger.epsilon_budget is None:
                ledger.replace_budget(settings.target_epsilon, settings.delta)
            if debit is None:
                charges = ledger.charges + Counter({charge: 1})
                if self._acknowledge_reset and ledger.was_reset:
                    # The new budget must also cover the costs of missing rows.
                    epsilon, _ = smallest_epsilon(charges, settings.delta)
                    budget = max(settings.target_epsilon, float(rounded_up(epsilon)))
                    ledger.replace_budget(budget, settings.delta)
                ledger.debit(charge, secure_noise=secure_noise)
            self._noted = _noted(ledger)
        if round_number > last:
            # The process that stored this state stopped before it could record the state in the
            # ledger, so it sent nothing. The state is recorded now.
            self._note(ledger, round_number, token)
        return self.facts()

    def save(self, state: Mapping[str, Any]) -> None:
        """Stores a state and records it in the ledger. From then on, the state counts as released.

        Args:
            state: arrays by name from which the run can resume. If the run was charged, `ROUND`
                must be included.

        Raises:
            LedgerError: if a copy of this run was resumed, if another process resumed this run, or
                if the ledger can't record the state. In this case, the caller must not send any
                part of the state.
            OSError: if the state can't be written.
        """
        token = secrets.token_bytes(NONCE_BYTES)
        if self._ledger is not None:
            names = {NONCE: self.saved[NONCE], TOKEN: np.frombuffer(token, np.uint8)}
            state = {**state, **names}
        artifacts.write_arrays(self.folder / STATE, state, private=True)
        if self._ledger is not None:
            self._note(self._ledger, int(state[ROUND]), token)

    def facts(self) -> LedgerFacts:
        """Returns the current facts of the ledger. Call `charge` first."""
        if self._ledger is None:
            raise ValueError("this run was not charged yet")
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
        """Durably records that a state will be released. Call this before you send any part."""
        debit, *_ = self._noted
        with ledger.exclusive():
            if debit is None or _noted(ledger) != self._noted:
                raise LedgerError(f"{self._ledger_folder}: another process resumed this run")
            ledger.store_release(debit, {"round": round_number, "token": token.hex()})
            self._noted = (debit, round_number, token)
        with ledger.exclusive():
            # Reads the ledger once more. If two copies of the run recorded a state at the same
            # time, at least one of the copies now finds both rows and raises LedgerError.
            pass


def _noted(ledger: Ledger) -> Noted:
    """Returns the facts in the ledger about the run.

    After the user acknowledged missing rows, the result is `NOTHING` until the run is charged
    again, because the missing rows may contain later rounds than the stored state.
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
