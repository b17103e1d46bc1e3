"""Shared training with noise: what leaves a participant was charged, and costs what was charged."""

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf.accounting.noisy_training import NoisyTraining, SparseVectorTraining, Training
from pate_tf.aggregation.noise import NoiseSource
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.core.validation import IntArray
from pate_tf.selective_sgd import upload
from pate_tf.selective_sgd.models import FloatArray
from pate_tf.selective_sgd.privacy import LATTICE, Payment, Privacy, noise_scale
from pate_tf.selective_sgd.record_gradients import RecordGradients
from pate_tf.selective_sgd.settings import Settings
from pate_tf.selective_sgd.training import NotFiniteError, SharedTraining

# The paper's private uploads: the sparse vector technique, in whole lattice steps.
#
# As commonly described; the section of the paper is missing from our text. For reproduction: what
# it
# costs in all is far more than the paper reports.


STEPS = 2**16  # of gamma
MOST_SCALE = 2.0**30


def noise_scales(charge: SparseVectorTraining) -> tuple[float, float, float]:
    """Returns the scales of the noise on thresholds, comparisons and values, in steps.

    Raises:
      ValueError: if one is too large to be drawn exactly.
    """
    # A change of the participant's records moves a number by up to 2 gamma.
    spread = 2 * STEPS
    half = charge.epsilon_each * 8.0 / 9.0 / 2.0
    found = (spread / half, 2.0 * spread / half, spread / (charge.epsilon_each / 9.0))
    if max(found) > MOST_SCALE:
        raise ValueError(
            f"target_epsilon: expected more for so many numbers, got {charge.epsilon_each:.3g} for "
            f"each of them, less than can be drawn exactly"
        )
    return found


def uploaded(
    change: FloatArray,
    *,
    charge: SparseVectorTraining,
    gamma: float,
    threshold: float,
    noise: NoiseSource,
    generator: np.random.Generator,
) -> tuple[IntArray, FloatArray]:
    """Returns indices, ascending, and noisy values of one upload.

    Parameters are visited in a random order that does not look at their changes. A threshold with
    new noise after each number that passed is compared with noisy absolute values; what passed is
    clipped, gets noise of its own, and is clipped again (docs/theory_selective_sgd.md, Proposition
    F4).

    Args:
      change: of all parameters, float32 `[num_parameters]`. SENSITIVE.
      charge: what was paid for.
      gamma: the largest absolute value of a number.
      threshold: tau, as a share of gamma.
      noise: draws the noise.
      generator: draws the order, which is no secret.

    Raises:
      ValueError: as `noise_scales`.
    """
    threshold_scale, query_scale, value_scale = noise_scales(charge)
    finite = np.where(np.isfinite(change), change, 0.0).astype(np.float64)
    steps = np.trunc(np.clip(finite, -gamma, gamma) / gamma * STEPS).astype(np.int64)
    order = generator.permutation(len(steps))
    queries = np.abs(steps[order]) + noise.laplace_integers(query_scale, len(order))
    number = charge.num_uploaded
    above = round(threshold * STEPS)
    thresholds = above + noise.laplace_integers(threshold_scale, number)
    passed: list[int] = []
    start = 0
    for limit in thresholds:
        found = np.flatnonzero(queries[start : start + 64] >= limit)
        if not found.size:  # seldom: look at all that is left
            found = np.flatnonzero(queries[start:] >= limit)
            if not found.size:
                break
        start += int(found[0])
        passed.append(start)
        start += 1
    indices = np.sort(order[np.array(passed, np.int64)])
    noisy = steps[indices] + noise.laplace_integers(value_scale, len(indices))
    values = np.clip(noisy, -STEPS, STEPS) * (gamma / STEPS)
    return indices, values.astype(np.float32)


_CHOICE = 5
TWO_TO_64 = 2.0**64


class PaidTraining(SharedTraining):
    """SENSITIVE: shared training that is charged before anything leaves.

    Nothing that private records decide stops a run or shows in whether there is an upload: a
    participant whose training comes to no finite numbers, or fails in an operation of the model,
    uploads noise on zeros.

    Args:
      settings: of the run.
      model: see `SharedTraining`.
      shares: each participant's records.
      privacy: what protects uploads.
      noise: draws records and noise.
      pay: charges all rounds, once everything else fits; nothing is drawn before it returns. See
        `ChargedRun.begin`.
      holders: how many participants hold one record at most.

    Attributes:
      payment: what `pay` returned.

    Raises:
      ValueError: if something does not fit; nothing was charged then.
    """

    def __init__(
        self,
        settings: Settings,
        model: keras.Model,
        shares: Sequence[PrivateExamples],
        *,
        privacy: Privacy,
        noise: NoiseSource,
        pay: Callable[[Training], Payment],
        holders: int = 1,
    ) -> None:
        super().__init__(settings, model, shares)
        charge = privacy.training(settings, self.view.num_parameters, holders)
        if charge is None:
            raise ValueError("privacy: expected some, got none")
        self._privacy, self._noise = privacy, noise
        self._prepare(charge)
        self.payment = pay(charge)

    @abc.abstractmethod
    def _prepare(self, charge: Training) -> None:
        """Takes up what is about to be charged.

        Raises:
          ValueError: if it does not fit.
        """

    def _train(self, participant: int) -> tuple[FloatArray, float]:
        try:
            return super()._train(participant)
        except (NotFiniteError, tf.errors.InvalidArgumentError):
            return np.zeros(self.view.num_parameters, np.float32), float("nan")


class GaussianTraining(PaidTraining):
    """SENSITIVE: synchronous rounds in which every participant adds Gaussian noise of its own.

    Guarantee. What participant i uploads in all rounds is differentially private as its payment
    says, against replacement of one of its records ("record") or of all of them ("participant"),
    towards everybody, the server included (docs/theory_selective_sgd.md, Theorems F1 to F3). Which
    parameters are uploaded is chosen without private data. Which records are drawn stays secret.

    Arguments as `PaidTraining`: the protocol is "synchronous", the privacy of a Gaussian kind.
    """

    def _prepare(self, charge: Training) -> None:
        if not isinstance(charge, NoisyTraining):
            raise ValueError("privacy: expected a Gaussian kind, got another")
        self._scale = noise_scale(charge)
        num_participants, num_parameters = self.settings.num_participants, self.view.num_parameters
        self._momentum = np.zeros((num_participants, num_parameters), np.float32)
        self._history = np.zeros(num_parameters, np.float64)
        self._average = np.zeros(num_parameters, np.float64)
        self._gradients = (
            RecordGradients(self.view, self._shares) if self._privacy.kind == "record" else None
        )

    def released_parameters(self) -> FloatArray:
        """Returns the mean of the server's parameters over the second half of the rounds.

        Of what left already: averaging costs nothing.
        """
        num_averaged = self.round - self._first_averaged
        if num_averaged < 1:
            return self.server.values
        return (self._average / num_averaged).astype(np.float32)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """See `SharedTraining.state`."""
        return {
            **super().state(),
            "momentum": self._momentum,
            "history": self._history,
            "average": self._average,
        }

    def restore(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """See `SharedTraining.restore`."""
        super().restore(arrays)
        self._momentum = np.array(arrays["momentum"])
        self._history = np.array(arrays["history"])
        self._average = np.array(arrays["average"])

    @property
    def _first_averaged(self) -> int:
        return self.settings.rounds // 2

    def _take_turns(self) -> list[dict[str, float]]:
        indices = self._chosen()
        for participant in range(self.settings.num_participants):
            self._download(participant)
        sums, scales, losses = (
            self._sums_of_records(indices)
            if self._gradients is not None
            else self._clipped_changes(indices)
        )
        told = []
        for participant, (exact, scale) in enumerate(zip(sums, scales, strict=True)):
            noise = self._noise.gaussian_integers(self._scale, len(indices))
            released = ((exact + noise) * (self._privacy.clip / LATTICE)).astype(np.float32)
            self._history[indices] += np.abs(released)
            values = released
            if self._gradients is not None and self._privacy.momentum:
                self._momentum[participant] *= np.float32(self._privacy.momentum)
                self._momentum[participant][indices] += released
                values = self._momentum[participant][indices]
            told.append(self._upload(participant, indices, np.float32(scale) * values))
            told[-1]["loss"] = losses
        if self.round >= self._first_averaged:
            self._average += self.server.values
        return told

    def _chosen(self) -> IntArray:
        """Returns the parameters of this round, from public values alone."""
        number = self.settings.num_uploaded(self.view.num_parameters)
        generator = self._generator(_CHOICE)
        kept = np.zeros(0, np.int64)
        if self._privacy.choice == "history" and self._history.any():
            # Half of them: the others could never come up.
            kept = upload.most_updated(self._history, number // 2, generator)
        others = np.setdiff1d(np.arange(self.view.num_parameters), kept)
        chosen = generator.permutation(others)[: number - len(kept)]
        return np.sort(np.concatenate([kept, chosen]))

    def _sums_of_records(self, indices: IntArray) -> tuple[IntArray, list[float], float]:
        """Draws records and sums their clipped gradients; the size of a draw is not used."""
        if self._gradients is None:
            raise ValueError("privacy: expected that of records, got another")
        rate = self._privacy.sampling_rate
        below = np.uint64(min(int(rate * TWO_TO_64), 2**64 - 1))
        drawn = [
            np.flatnonzero(self._noise.words(len(share)) < below)
            if rate < 1.0
            else np.arange(len(share))
            for share in self._shares
        ]
        sums = self._gradients.sums(
            self.server.values, drawn, indices=indices, clip=self._privacy.clip
        )
        step = self.settings.learning_rate_at(self.round)
        # The number of a participant's records is public where records are protected.
        return sums, [-step / (rate * len(share)) for share in self._shares], float("nan")

    def _clipped_changes(self, indices: IntArray) -> tuple[IntArray, list[float], float]:
        """Trains every participant and clips its whole upload."""
        sums, losses = [], []
        for participant in range(self.settings.num_participants):
            change, loss = self._train(participant)
            sums.append(clipped_steps(change[indices], self._privacy.clip))
            losses.append(loss)
        return np.stack(sums), [1.0] * len(sums), float(np.mean(losses))


def clipped_steps(values: FloatArray, clip: float) -> IntArray:
    """SENSITIVE: returns a vector in steps of clip / LATTICE, of length at most LATTICE.

    It is scaled in float64 and cut off towards zero, which makes no vector longer. One that is not
    finite becomes zero.
    """
    wide = values.astype(np.float64)
    length = float(np.sqrt((wide**2).sum()))
    if not np.isfinite(length):
        return np.zeros(len(values), np.int64)
    return np.trunc(wide * (LATTICE * (1.0 - 1e-9) / max(length, clip))).astype(np.int64)


class SparseVectorSharedTraining(PaidTraining):
    """SENSITIVE: the paper's private uploads, for reproduction; arguments as `PaidTraining`."""

    def _prepare(self, charge: Training) -> None:
        if not isinstance(charge, SparseVectorTraining):
            raise ValueError("privacy: expected sparse_vector, got another")
        noise_scales(charge)  # can they be drawn
        self._charge = charge

    def _selected(self, participant: int, change: FloatArray) -> tuple[IntArray, FloatArray]:
        return uploaded(
            change,
            charge=self._charge,
            gamma=self._privacy.clip,
            threshold=self._privacy.threshold,
            noise=self._noise,
            generator=self._generator(_CHOICE, participant),
        )


def noisy_training(
    settings: Settings,
    model: keras.Model,
    shares: Sequence[PrivateExamples],
    *,
    privacy: Privacy,
    noise: NoiseSource,
    pay: Callable[[Training], Payment],
    holders: int = 1,
) -> PaidTraining:
    """Returns the training that the privacy asks for; arguments and errors as `PaidTraining`."""
    kind = GaussianTraining if privacy.is_gaussian else SparseVectorSharedTraining
    return kind(settings, model, shares, privacy=privacy, noise=noise, pay=pay, holders=holders)
