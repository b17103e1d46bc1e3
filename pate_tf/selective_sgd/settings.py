"""Settings of shared training: how participants train, what protects uploads, what a run needs."""

import dataclasses
import pathlib
from collections.abc import Mapping
from math import sqrt
from typing import Any, Self

from pate_tf.accounting.delta import DEFAULT_DELTA
from pate_tf.accounting.noisy_training import (
    NoisyTraining,
    SparseVectorTraining,
    Training,
    noise_for,
)
from pate_tf.core.settings import PublicationSettings, setting
from pate_tf.core.settings import Settings as CheckedSettings
from pate_tf.data.named_function import Named
from pate_tf.release.noise import NoiseSource, SeededNoise, SystemNoise

PROTOCOLS = ("round_robin", "random", "asynchronous", "synchronous")
SELECTIONS = ("largest", "random")
KINDS = ("none", "record", "participant", "sparse_vector")
CHOICES = ("shared_seed", "history")
LATTICE = 2**20  # steps of a clipping length
LARGEST_NOISE = 2.0**30  # in steps; what can be drawn exactly
LEAST_CLIP, MOST_CLIP = 1e-30, 1e30  # beyond them steps of a clipping length are no float32
ROUNDING = 8.0  # of the continuous Gaussian that the discrete one is compared with, in steps
# What looks at private records, or has no effect, where noise is Gaussian.
NOT_WITH_GAUSSIAN = ("selection", "tau", "gamma")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(CheckedSettings):
    """Settings of distributed selective SGD (Shokri and Shmatikov 2015). Public.

    What the paper leaves open has a default here. No privacy noise comes from `seed`.

    Raises:
        ValueError: if a setting is out of range.
    """

    num_participants: int = setting(
        30, flag="participants", least=1, help="How many train together."
    )
    rounds: int = setting(10, least=1, help="Turns of each participant.")
    upload: float = setting(
        0.1,
        above=0.0,
        most=1.0,
        help="theta_u: share of its parameters' changes that a participant uploads; 1 by default "
        "where noise is Gaussian.",
    )
    download: float = setting(
        1.0,
        above=0.0,
        most=1.0,
        help="theta_d: share of the parameters that a participant downloads before it trains.",
    )
    gamma: float | None = setting(
        None,
        above=0.0,
        help="Uploaded changes are clipped to this absolute value. Default: none are, which "
        "promises nothing either way.",
    )
    selection: str = setting(
        "largest",
        choices=SELECTIONS,
        help="What is uploaded: the largest changes in absolute value, or random ones above --tau. "
        "Either looks at private records; noise other than sparse_vector's needs --choice instead.",
    )
    tau: float = setting(0.0, least=0.0, help="Threshold of --selection=random.")
    protocol: str = setting(
        "round_robin",
        choices=PROTOCOLS,
        help="Order of turns: one after another; the same in random order; each on parameters that "
        "the others have changed since, damped by how many; or all on the same parameters, "
        "averaged. Default: round_robin; synchronous where noise is Gaussian.",
    )
    stat_decay: float = setting(
        0.9,
        above=0.0,
        most=1.0,
        help="beta: decay of the counts of updates that --download goes by.",
    )
    stat_period: int | None = setting(
        None, least=1, advanced=True, help="Uploads between two decays. Default: one of each."
    )
    damping: float = setting(
        1.0,
        least=0.0,
        help="An upload that is s uploads stale is multiplied by (1 + s)^-damping.",
    )
    server_rate: float | None = setting(
        None,
        above=0.0,
        help="The server multiplies uploads by it. Default: averages if synchronous, else adds.",
    )
    optimizer: str = setting(
        "sgd", help="Each participant's own, by Keras' name; its state stays with the participant."
    )
    learning_rate: float = setting(
        0.05,
        above=0.0,
        help="In the first round; it falls linearly. With --privacy=record 1 unless given.",
    )
    final_learning_rate: float = setting(
        0.1, above=0.0, most=1.0, advanced=True, help="Share of it in the last round."
    )
    batch_size: int = setting(10, least=1, help="Records of a local step.")
    local_epochs: int = setting(1, least=1, help="Passes over the local records in a turn.")
    seed: int = setting(
        0,
        least=0,
        most=2**31 - 1,
        help="Seed of shares, first parameters, orders and choices. No privacy noise comes from "
        "it.",
    )

    @classmethod
    def with_defaults_of(cls, privacy: "Privacy", given: Mapping[str, Any]) -> Self:
        """Returns settings as given, and else the defaults that suit what protects uploads.

        Raises:
            ValueError: if one was given that looks at private records, or has no effect, where
                noise is Gaussian; or one is out of range.
        """
        if not privacy.is_gaussian:
            return cls(**given)
        for name in NOT_WITH_GAUSSIAN:
            if name in given:
                raise ValueError(
                    f"{name}: expected none with privacy {privacy.kind}, whose choice may not look "
                    f"at private records, got one"
                )
        rate = {"learning_rate": 1.0} if privacy.kind == "record" else {}
        return cls(**{"protocol": "synchronous", "upload": 1.0, **rate, **given})

    def num_uploaded(self, num_parameters: int) -> int:
        """Returns how many changes an upload holds at most: at least one."""
        return max(1, int(self.upload * num_parameters))

    def num_downloaded(self, num_parameters: int) -> int:
        """Returns how many parameters a download holds: at least one."""
        return max(1, int(self.download * num_parameters))

    @property
    def rate_of_server(self) -> float:
        """What the server multiplies every upload by."""
        if self.server_rate is not None:
            return self.server_rate
        return 1.0 / self.num_participants if self.protocol == "synchronous" else 1.0

    def learning_rate_at(self, round_number: int) -> float:
        """Returns the learning rate of a round, from 0."""
        progress = round_number / max(1, self.rounds - 1)
        return self.learning_rate * (1.0 - (1.0 - self.final_learning_rate) * progress)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Privacy(CheckedSettings):
    """What protects what a participant uploads. Public.

    Raises:
        ValueError: if a value is out of its range.
    """

    kind: str = setting(
        "none",
        flag="privacy",
        choices=KINDS,
        help="What is protected, and how: nothing; single records, by noisy sums of clipped "
        "gradients; whole participants, by noisy clipped uploads; or the paper's sparse vector "
        "technique, for reproduction, with what all of it costs.",
    )
    target_epsilon: float | None = setting(
        None,
        above=0.0,
        help="Of the whole run, against replacement, over all participants that hold a record; the "
        "noise follows. Needed with --privacy.",
    )
    delta: float = setting(
        DEFAULT_DELTA,
        least=0.0,
        below=1.0,
        help="Delta of the guarantee, at most one over the number of records; 0 with sparse_vector "
        "alone.",
    )
    clip: float = setting(
        1.0,
        least=LEAST_CLIP,
        most=MOST_CLIP,
        help="L2 norm that a record's gradient, or an upload, is clipped to; of sparse_vector the "
        "largest absolute value of a number.",
    )
    sampling_rate: float = setting(
        0.2,
        above=0.0,
        most=1.0,
        help="Probability of a record to be in a round, with --privacy=record.",
    )
    momentum: float = setting(
        0.9, least=0.0, below=1.0, help="Of noisy gradients, with --privacy=record; costs nothing."
    )
    choice: str = setting(
        "shared_seed",
        choices=CHOICES,
        help="Which parameters are uploaded with Gaussian noise: at random, the same for all, or "
        "half of them those that noisy uploads changed most so far.",
    )
    threshold: float = setting(
        0.1,
        least=0.0,
        advanced=True,
        help="Of sparse_vector: the least change that is uploaded, as a share of --clip.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.kind == "none") != (self.target_epsilon is None):
            raise ValueError(
                f"target_epsilon: expected one with privacy, and none without, got "
                f"{self.target_epsilon} and privacy {self.kind!r}"
            )
        if self.is_gaussian and not self.delta:
            raise ValueError(
                f"delta: expected above 0 with privacy {self.kind}, whose noise is Gaussian, got "
                f"0; sparse_vector has a guarantee at delta 0"
            )

    @property
    def is_gaussian(self) -> bool:
        """Whether noise is Gaussian, and uploads of a round are averaged."""
        return self.kind in ("record", "participant")

    @property
    def unit(self) -> str:
        """What is protected: "record" or "participant"."""
        return "record" if self.kind in ("none", "record") else "participant"

    def check(self, settings: Settings) -> None:
        """Raises ValueError if settings of a run don't go with what protects uploads."""
        if self.is_gaussian and settings.protocol != "synchronous":
            raise ValueError(
                f"protocol: expected 'synchronous' with Gaussian noise, so that it is averaged "
                f"over participants, got {settings.protocol!r}"
            )
        if self.kind == "record" and settings.download < 1.0:
            raise ValueError(
                f"download: expected 1 with privacy record, whose gradients are those at the "
                f"server's parameters, got {settings.download}"
            )

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
        self.check(settings)
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
    noise of sigma (docs/proofs/selective_sgd.md, Theorem F3).

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalRun(CheckedSettings):
    """What every run has that opens private records."""

    folder: pathlib.Path | None = setting(
        None,
        flag="train_dir",
        help="Run folder, with sensitive state and ledger. Default: runs/selective_sgd-DATASET-"
        "PARTICIPANTS in one process, runs/shared-PARTICIPANT across organisations.",
    )
    source_name: str | None = setting(
        None,
        help="Public name of the private data, to which the run is charged. Default: the name of "
        "the data set, or the file of the records, told from others by its path.",
    )
    acknowledge_reset: bool = setting(
        False,
        flag="reset_ledger_i_understand",
        advanced=True,
        help="Go on although the run's ledger, or rows of it, are gone. What is known of their "
        "cost is charged, and the run is charged again, above its target. The ledger and every "
        "later statement say so for ever.",
    )
    insecure_seed: int | None = setting(
        None,
        least=0,
        advanced=True,
        help="For tests alone: predictable noise, so that nothing is private.",
    )

    def noise(self) -> NoiseSource:
        """Returns the source of records and noise: the operating system, but for a seed."""
        return SystemNoise() if self.insecure_seed is None else SeededNoise(self.insecure_seed)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SharedRun(LocalRun, PublicationSettings):
    """Shared training in one process, on records of one data set that are dealt out."""

    settings: Settings = dataclasses.field(default_factory=Settings)
    privacy: Privacy = dataclasses.field(default_factory=Privacy)
    model: Named | None = setting(
        None,
        help="cnn or mlp for the paper's networks, linear, another name that train_teachers.py "
        "takes, or module:function. Default: cnn for images, mlp otherwise.",
    )
    representation: str | None = setting(
        None,
        choices=("whitened", "contrastive", "raw"),
        help="Train on features that are learnt from the public pool without labels: contrastive, "
        "whitened, where directions weigh about the same, or raw, inputs of length 1. With "
        "--model=linear whitened is the most accurate under noise.",
    )
    records_each: int | None = setting(
        None,
        least=1,
        help="Records of each participant, 600 in the paper; shares overlap where there are too "
        "few. Default: all records, dealt out evenly.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class OverNetwork(CheckedSettings):
    """What both ends need across organisations."""

    roster: pathlib.Path = setting(
        pathlib.Path("roster.toml"), help="The terms of the run, the same file at all ends."
    )
    certificates: pathlib.Path = setting(
        pathlib.Path("certificates"),
        help="Folder with authority.pem, and NAME.pem and NAME.key of this end.",
    )
    data_dir: pathlib.Path | None = setting(
        None, help="Folder with data prepared by TensorFlow Datasets. Default: TFDS' own."
    )
    server_name: str = setting("coordinator", help="Name in the server's certificate.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParticipantRun(LocalRun, OverNetwork):
    """What a participant needs to work."""

    server: str = setting(help="Address of the parameter server, HOST:PORT.")
    participant: str = setting(help="Its name, on the roster and in its certificate.")
    records: str = setting(
        flag="data",
        help="A .npz file of inputs and labels; or dealt, to try things out, for the share of the "
        "data set that pate dssgd in one process would deal out.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParameterServerRun(OverNetwork, PublicationSettings):
    """What a parameter server needs to work."""

    address: str = setting(
        "localhost:7000", help="To listen on, HOST:PORT; port 0 for any free one."
    )
    folder: pathlib.Path = setting(
        pathlib.Path("runs/shared-server"),
        flag="train_dir",
        help="State, model and report.",
    )
    linger_seconds: float = setting(
        60.0,
        least=0.0,
        help="How long participants have at the end to fetch the final parameters.",
    )
