"""Settings of shared training: how participants train, what protects uploads, what both cost."""

import dataclasses
from math import sqrt
from typing import Any, ClassVar, Self

from pate_tf.accounting.conversions import DEFAULT_DELTA
from pate_tf.accounting.noisy_training import NoisyTraining, noise_for
from pate_tf.core.settings import Seeded, setting
from pate_tf.core.toml_files import Fields
from pate_tf.net.credentials import Roster

PROTOCOLS = ("round_robin", "asynchronous", "synchronous")
LATTICE = 2**20  # steps of a clipping length
MAX_NOISE = 2.0**30  # in steps; what can be drawn exactly
# Outside of these steps of a clipping length are no float32.
MIN_CLIP = 1e-30
MAX_CLIP = 1e30
ROUNDING = 8.0  # of the continuous Gaussian that the discrete one is compared with, in steps
LAST_RATE = 0.1  # of the first round's learning rate, in the last round

# By what is protected: the defaults of settings, and which can be given at all.
DEFAULTS: dict[str, dict[str, Any]] = {
    "none": {"upload": 0.1, "protocol": "round_robin", "learning_rate": 0.05, "gamma": 0.5},
    "record": {
        "upload": 1.0,
        "protocol": "synchronous",
        "learning_rate": 1.0,
        "delta": DEFAULT_DELTA,
        "clip": 1.0,
        "sampling_rate": 0.2,
    },
}
CONDITIONAL = tuple(dict.fromkeys(name for names in DEFAULTS.values() for name in names))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingSettings(Seeded):
    """Settings of distributed selective SGD (Shokri and Shmatikov 2015). Public.

    Settings that are None get the default that suits `privacy`. No privacy noise comes from `seed`.

    Raises:
        ValueError: if a setting is out of range, or has no meaning beside `privacy`.
    """

    restated: ClassVar = {"seed": {"help": "Seed of shards, first parameters, orders and choices."}}
    num_participants: int = setting(
        30, flag="participants", least=1, help="How many train together."
    )
    rounds: int = setting(10, least=1, help="Turns of each participant.")
    upload: float = setting(
        None,
        above=0.0,
        most=1.0,
        help=f"theta_u: fraction of the parameters' changes that is uploaded. Default: "
        f"{DEFAULTS['none']['upload']:g}; {DEFAULTS['record']['upload']:g} with noise.",
    )
    gamma: float | None = setting(
        None,
        above=0.0,
        help="Uploaded changes are clipped to this absolute value. Default: "
        f"{DEFAULTS['none']['gamma']:g}; none with noise, where gradients are clipped.",
    )
    protocol: str = setting(
        None,
        choices=PROTOCOLS,
        help="Order of uploads. round_robin: one participant after another. asynchronous: each on "
        "parameters that others have changed since, damped by how many. synchronous: all on the "
        "same parameters, averaged. Default: round_robin; synchronous with noise.",
    )
    learning_rate: float = setting(
        None,
        above=0.0,
        help="Of SGD in the first round; it falls linearly to a tenth. Default: "
        f"{DEFAULTS['none']['learning_rate']:g}; {DEFAULTS['record']['learning_rate']:g} with "
        "--privacy=record.",
    )
    batch_size: int = setting(10, least=1, help="Records of a local step.")
    privacy: str = setting(
        "none",
        choices=tuple(DEFAULTS),
        help="What is protected. none: nothing. record: single records, by noisy sums of clipped "
        "gradients.",
    )
    target_epsilon: float | None = setting(
        None,
        above=0.0,
        help="Of the whole run, against replacement; the noise follows. Needed with --privacy.",
    )
    delta: float = setting(
        None,
        above=0.0,
        below=1.0,
        help="Delta of the guarantee, at most one over the number of records. Default: "
        f"{DEFAULT_DELTA:g}.",
    )
    clip: float = setting(
        None,
        least=MIN_CLIP,
        most=MAX_CLIP,
        help="L2 norm that a record's gradient is clipped to. Default: "
        f"{DEFAULTS['record']['clip']:g}.",
    )
    sampling_rate: float = setting(
        None,
        above=0.0,
        most=1.0,
        help="Probability of a record to be in a round, with --privacy=record. Default: "
        f"{DEFAULTS['record']['sampling_rate']:g}.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        defaults = DEFAULTS[self.privacy]
        for name in CONDITIONAL:
            if getattr(self, name) is None:
                object.__setattr__(self, name, defaults.get(name))
            elif name not in defaults:
                raise ValueError(f"{name}: expected none with privacy {self.privacy}, got one")
        if self.is_noisy != (self.target_epsilon is not None):
            raise ValueError(
                f"target_epsilon: expected one with privacy, and none without, got "
                f"{self.target_epsilon} and privacy {self.privacy}"
            )
        if self.is_noisy and self.protocol != "synchronous":
            raise ValueError(
                f"protocol: expected synchronous with noise, which is averaged over participants, "
                f"got {self.protocol}"
            )

    @property
    def is_noisy(self) -> bool:
        """Whether noise protects uploads."""
        return self.privacy != "none"

    def num_uploaded(self, num_parameters: int) -> int:
        """Returns how many changes an upload holds at most: at least one."""
        return max(1, int(self.upload * num_parameters))

    def learning_rate_at(self, round_number: int) -> float:
        """Returns the learning rate of a round, from 0."""
        progress = round_number / max(1, self.rounds - 1)
        return self.learning_rate * (1.0 - (1.0 - LAST_RATE) * progress)

    def charge(self) -> NoisyTraining | None:
        """Returns what all rounds cost, charged before the first upload; None without noise.

        Raises:
            ValueError: if the target can't be reached by noise that can be drawn.
        """
        if self.target_epsilon is None:
            return None
        charge = noise_for(
            self.target_epsilon,
            delta=self.delta,
            sampling_rate=self.sampling_rate,
            rounds=self.rounds,
            unit=self.privacy,
        )
        noise_scale(charge)
        return charge


@dataclasses.dataclass(frozen=True, kw_only=True)
class Terms(Roster):
    """The terms of a run, from a small TOML file. Public; all read them before they join.

    The order of names is that of round robin.

    Attributes:
        dataset: name that `data.catalogue` knows, or `module:function`: shapes and classes.
        model: as `training.build` takes it; None for the default of the data set.
        settings: of the run.
    """

    role: ClassVar[str] = "participant"
    dataset: str
    settings: TrainingSettings
    model: str | None = None

    @classmethod
    def of_fields(cls, fields: Fields) -> Self:
        """Takes the terms from the fields of their file."""
        tables = fields.tables(cls.role)
        names = tuple(table.text("name") for table in tables)
        for table in tables:
            table.end()
        values: dict[str, Any] = {}
        if fields.has("settings"):
            table = fields.table("settings")
            values = table.settings(TrainingSettings, without=("num_participants",))
            table.end()
        return cls(
            run=fields.text("run"),
            names=names,
            dataset=fields.text("dataset"),
            model=fields.text("model") if fields.has("model") else None,
            settings=TrainingSettings(num_participants=len(names), **values),
        )


def noise_scale(charge: NoisyTraining) -> float:
    """Returns the scale of the discrete Gaussian, in lattice steps.

    A little more than sigma times the lattice: with the difference it costs no more than continuous
    noise of sigma (docs/proofs/selective_sgd.md, Theorem F3).

    Raises:
        ValueError: if it is too large to be drawn exactly.
    """
    scale = sqrt((charge.noise_multiplier * LATTICE) ** 2 + ROUNDING**2) * (1.0 + 1e-12)
    if scale > MAX_NOISE:
        raise ValueError(
            f"target_epsilon: expected a noise multiplier up to {MAX_NOISE / LATTICE:g}, got "
            f"{charge.noise_multiplier:.4g}"
        )
    return scale
