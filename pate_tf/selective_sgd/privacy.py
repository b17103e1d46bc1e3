"""How uploads are made private, in public values."""

import dataclasses
import hashlib
import pathlib
import secrets
from math import inf, sqrt

import numpy as np
import numpy.typing as npt

from pate_tf.accounting.noisy_training import (
    NoisyTraining,
    SparseVectorTraining,
    Training,
    noise_for,
)
from pate_tf.core.record_set import RecordSet
from pate_tf.ledger import EnsembleMismatch, Head, Ledger, LedgerError
from pate_tf.ledger.ledger import facts_beyond_the_ledger
from pate_tf.selective_sgd.settings import Settings

KINDS = ("none", "record", "participant", "sparse_vector")
CHOICES = ("shared_seed", "history")
LATTICE = 2**20  # steps of a clipping length
LARGEST_NOISE = 2.0**30  # in steps; what can be drawn exactly
LEAST_CLIP, MOST_CLIP = 1e-30, 1e30  # beyond them steps of a clipping length are no float32
ROUNDING = 8.0  # of the continuous Gaussian that the discrete one is compared with, in steps


@dataclasses.dataclass(frozen=True, kw_only=True)
class Privacy:
    """What protects what a participant uploads. Public.

    Attributes:
      kind: "none"; "record": the sum of clipped gradients of single records with Gaussian noise;
        "participant": a participant's whole upload clipped, with Gaussian noise; "sparse_vector":
        the paper's own, for reproduction.
      target_epsilon: of the whole run, against replacement.
      delta: what it holds at.
      clip: C, the length that gradients of a record, or an upload, are clipped to; of
        "sparse_vector" the largest absolute value of a number, gamma.
      sampling_rate: of "record", the probability of a record to be in a round.
      momentum: of "record", of a participant's noisy gradients: what was noised is mixed, which
        costs nothing.
      choice: which parameters are uploaded: "shared_seed" at random, the same for all; "history"
        half of them those that noisy uploads changed most so far, the rest at random. Neither
        looks at private records.
      threshold: of "sparse_vector", tau as a share of gamma.

    Raises:
      ValueError: if a value is out of its range.
    """

    kind: str = "none"
    target_epsilon: float | None = None
    delta: float = 1e-5
    clip: float = 1.0
    sampling_rate: float = 0.2
    momentum: float = 0.9
    choice: str = "shared_seed"
    threshold: float = 0.1

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"privacy: expected one of {', '.join(KINDS)}, got {self.kind!r}")
        if self.choice not in CHOICES:
            raise ValueError(f"choice: expected one of {', '.join(CHOICES)}, got {self.choice!r}")
        if (self.kind == "none") != (self.target_epsilon is None):
            raise ValueError(
                f"target_epsilon: expected one with privacy, and none without, got "
                f"{self.target_epsilon} and privacy {self.kind!r}"
            )
        if self.target_epsilon is not None and not 0.0 < self.target_epsilon < inf:
            raise ValueError(
                f"target_epsilon: expected above 0 and finite, got {self.target_epsilon}"
            )
        if not 0.0 < self.delta < 1.0:
            raise ValueError(f"delta: expected between 0 and 1, got {self.delta}")
        if not LEAST_CLIP <= self.clip <= MOST_CLIP:
            raise ValueError(f"clip: expected from {LEAST_CLIP} to {MOST_CLIP}, got {self.clip}")
        if not 0.0 < self.sampling_rate <= 1.0:
            raise ValueError(
                f"sampling_rate: expected above 0 and at most 1, got {self.sampling_rate}"
            )
        if not 0.0 <= self.momentum < 1.0:
            raise ValueError(f"momentum: expected from 0 to below 1, got {self.momentum}")

    @property
    def is_gaussian(self) -> bool:
        """Whether noise is Gaussian, and uploads of a round are averaged."""
        return self.kind in ("record", "participant")

    @property
    def unit(self) -> str:
        """What is protected: "record" or "participant"."""
        return "record" if self.kind in ("none", "record") else "participant"

    def training(
        self, settings: Settings, num_parameters: int, holders: int = 1
    ) -> Training | None:
        """Returns what is charged before the first upload; None without privacy.

        Args:
          settings: of the run.
          num_parameters: how many the model has.
          holders: how many participants hold one record at most, where records are protected: it
            is part of the uploads of all of them.

        Raises:
          ValueError: if the target can't be reached, or the settings don't go with it.
        """
        if self.kind == "none" or self.target_epsilon is None:
            return None
        if self.is_gaussian and settings.protocol != "synchronous":
            raise ValueError(
                f"protocol: expected 'synchronous' with Gaussian noise, so that it is averaged "
                f"over participants, got {settings.protocol!r}"
            )
        if self.kind == "sparse_vector":
            number = settings.num_uploaded(num_parameters)
            return _sparse_vector(self.target_epsilon, self.delta, number, settings.rounds)
        is_record = self.kind == "record"
        found = noise_for(
            self.target_epsilon,
            delta=self.delta,
            sampling_rate=self.sampling_rate if is_record else 1.0,
            rounds=settings.rounds * (holders if is_record else 1),
            unit=self.unit,
        )
        noise_scale(found)
        return found


def noise_scale(training: NoisyTraining) -> float:
    """Returns the scale of the discrete Gaussian, in lattice steps.

    A little more than sigma times the lattice: with the difference it costs no more than continuous
    noise of sigma (docs/theory_selective_sgd.md, Theorem F3).

    Raises:
      ValueError: if it is too large to be drawn exactly.
    """
    scale = sqrt((training.noise_multiplier * LATTICE) ** 2 + ROUNDING**2) * (1.0 + 1e-12)
    if scale > LARGEST_NOISE:
        raise ValueError(
            f"target_epsilon: expected a noise multiplier up to {LARGEST_NOISE / LATTICE:g}, got "
            f"{training.noise_multiplier:.4g}"
        )
    return scale


def _sparse_vector(
    target: float, delta: float, num_uploaded: int, rounds: int
) -> SparseVectorTraining:
    """Returns the largest epsilon of a number whose total stays within the target."""

    def training(each: float) -> SparseVectorTraining:
        return SparseVectorTraining(epsilon_each=each, num_uploaded=num_uploaded, rounds=rounds)

    low, high = 0.0, target
    for _ in range(60):
        middle = (low + high) / 2.0
        if middle > 0.0 and training(middle).epsilon(delta) <= target:
            low = middle
        else:
            high = middle
    if low == 0.0:
        raise ValueError(f"target_epsilon: expected more for {num_uploaded} numbers, got {target}")
    return training(low)


# A run of shared training in a ledger of its own: one charge, one course.


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
