"""How uploads are made private, in public values."""

import dataclasses
from math import inf, sqrt

from pate_tf.accounting.noisy_training import NoisyTraining, SparseVectorTraining, Training
from pate_tf.accounting.training_calibration import noise_for
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
