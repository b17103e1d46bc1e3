"""Settings of shared training, which determine its privacy cost."""

import dataclasses
from math import sqrt
from typing import Any, ClassVar, Self

from pate_tf.accounting.conversions import DEFAULT_DELTA
from pate_tf.accounting.noisy_training import NoisyTraining, noise_for
from pate_tf.core.settings import Seeded, setting
from pate_tf.core.toml_files import Fields
from pate_tf.net.credentials import Roster

PROTOCOLS = ("round_robin", "asynchronous", "synchronous")
LATTICE = 2**20  # lattice steps per clipping norm
MAX_NOISE = 2.0**30  # maximum scale of noise that can be drawn exactly, in lattice steps
# Limits of the clipping norm. Outside this range, one lattice step is not a float32.
MIN_CLIP = 1e-30
MAX_CLIP = 1e30
ROUNDING = 8.0  # in lattice steps; added to the scale, because noise is drawn on a lattice
LAST_RATE = 0.1  # learning rate of the last round, divided by the rate of the first round

# Default values of settings that depend on `privacy`, for each value of `privacy`. A setting in
# CONDITIONAL can't be used with a value of `privacy` under which it is missing here.
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
    """Public settings of distributed selective SGD (Shokri and Shmatikov 2015).

    If a setting is None, its default depends on `privacy`. Privacy noise never comes from `seed`.

    Raises:
        ValueError: if a setting is out of range, or can't be combined with `privacy`.
    """

    restated: ClassVar = {
        "seed": {"help": "Seed of shards, initial parameters, orders and choices."}
    }
    num_participants: int = setting(
        30, flag="participants", least=1, help="Number of participants."
    )
    rounds: int = setting(10, least=1, help="Rounds: number of uploads by each participant.")
    upload: float = setting(
        None,
        above=0.0,
        most=1.0,
        help=f"theta_u: fraction of the parameters that each upload changes. Default: "
        f"{DEFAULTS['none']['upload']:g}; {DEFAULTS['record']['upload']:g} with noise.",
    )
    gamma: float | None = setting(
        None,
        above=0.0,
        help="Uploaded changes are clipped to this absolute value. Default: "
        f"{DEFAULTS['none']['gamma']:g}. Not used with noise: gradients are clipped instead.",
    )
    protocol: str = setting(
        None,
        choices=PROTOCOLS,
        help="Order of uploads. round_robin: one participant after another. asynchronous: at any "
        "time; uploads from outdated parameters get less weight. synchronous: all train on the "
        "same parameters, and uploads are averaged. Default: round_robin; synchronous with noise.",
    )
    learning_rate: float = setting(
        None,
        above=0.0,
        help="Learning rate of SGD in the first round; it falls linearly to a tenth. Default: "
        f"{DEFAULTS['none']['learning_rate']:g}; {DEFAULTS['record']['learning_rate']:g} with "
        "--privacy=record.",
    )
    batch_size: int = setting(10, least=1, help="Number of records in each local training step.")
    privacy: str = setting(
        "none",
        choices=tuple(DEFAULTS),
        help="Privacy protection: none, or record (noise on clipped gradients protects records).",
    )
    target_epsilon: float | None = setting(
        None,
        above=0.0,
        help="Epsilon of the run (replace-one); sets the noise. Required with --privacy=record.",
    )
    delta: float = setting(
        None,
        above=0.0,
        below=1.0,
        help=f"Delta of the guarantee; at most 1 / number of records. Default: {DEFAULT_DELTA:g}.",
    )
    clip: float = setting(
        None,
        least=MIN_CLIP,
        most=MAX_CLIP,
        help="Maximum L2 norm of the clipped gradient of a record. Default: "
        f"{DEFAULTS['record']['clip']:g}.",
    )
    sampling_rate: float = setting(
        None,
        above=0.0,
        most=1.0,
        help="Probability that a record is used in a round, with --privacy=record. Default: "
        f"{DEFAULTS['record']['sampling_rate']:g}.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        defaults = DEFAULTS[self.privacy]
        for name in CONDITIONAL:
            if getattr(self, name) is None:
                object.__setattr__(self, name, defaults.get(name))
            elif name not in defaults:
                raise ValueError(f"`{name}` can't be used with `privacy={self.privacy}`. Omit it.")
        if self.is_noisy and self.target_epsilon is None:
            raise ValueError(f"`privacy={self.privacy}` needs `target_epsilon`, such as 8")
        if not self.is_noisy and self.target_epsilon is not None:
            raise ValueError("target_epsilon needs `privacy=record`")
        if self.is_noisy and self.protocol != "synchronous":
            raise ValueError(
                f"privacy=record needs `protocol=synchronous`, got {self.protocol}: only "
                f"averages over participants reduce the noise"
            )

    @property
    def is_noisy(self) -> bool:
        """Whether noise protects the uploads."""
        return self.privacy != "none"

    def num_uploaded(self, num_parameters: int) -> int:
        """Returns the maximum number of changes in an upload, at least 1."""
        return max(1, int(self.upload * num_parameters))

    def learning_rate_at(self, round_number: int) -> float:
        """Returns the learning rate of a round, counted from 0."""
        progress = round_number / max(1, self.rounds - 1)
        return self.learning_rate * (1.0 - (1.0 - LAST_RATE) * progress)

    def charge(self) -> NoisyTraining | None:
        """Returns the charge for all rounds, which is due before any upload; None without noise.

        Raises:
            ValueError: if `target_epsilon` needs more noise than can be drawn exactly.
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
    """The public terms of a run. Participants read them from a TOML file before they join.

    Participants take turns in the order in which the file lists their names.

    Attributes:
        dataset: data set that defines shapes and classes: a name in `data.datasets`, or
            `module:function`.
        model: name of the model, see `local_training.build`; None for the default of the data set.
        settings: settings of the run.
    """

    role: ClassVar[str] = "participant"
    dataset: str
    settings: TrainingSettings
    model: str | None = None

    @classmethod
    def of_fields(cls, fields: Fields) -> Self:
        """Reads the terms from the fields of a TOML file."""
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
    """Returns the scale of the discrete Gaussian noise, in lattice steps.

    The scale is slightly larger than sigma * LATTICE, so the discrete noise costs no more privacy
    than continuous noise with the standard deviation sigma (docs/proofs/selective_sgd.md, Theorem
    F3).

    Raises:
        ValueError: if noise of this scale is too large to be drawn exactly.
    """
    scale = sqrt((charge.noise_multiplier * LATTICE) ** 2 + ROUNDING**2) * (1.0 + 1e-12)
    if scale > MAX_NOISE:
        raise ValueError(
            f"target_epsilon needs noise of {charge.noise_multiplier:.4g} times the clipping norm, "
            f"more than {MAX_NOISE / LATTICE:g}. Choose a larger value."
        )
    return scale
