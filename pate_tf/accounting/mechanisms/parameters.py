"""How the parameters of mechanisms are given on a command line and shown."""

import decimal
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Flag:
    """One way to give a parameter.

    Attributes:
        name: of the flag, without dashes. Mechanisms that share a name share the flag.
        help: a sentence; the default is added to it.
        default: what is taken where the flag is not given.
        same_as: name of a flag of the same command whose value is taken before `default`, if it
            has one.
        share: how much of that value.
        is_whole: whether it is a whole number, at least 0.
        is_inverse: whether the parameter is one over it.
        is_positive: whether it must be above 0; else it must only be finite.
        more_is_noisier: whether a larger value means more noise, so that rounding it up is safe.
        unit: what follows the number where it is shown.
    """

    name: str
    help: str
    default: float
    same_as: str = ""
    share: float = 1.0
    is_whole: bool = False
    is_inverse: bool = False
    is_positive: bool = True
    more_is_noisier: bool = True
    unit: str = "votes"

    def by_default(self, values: Mapping[str, float]) -> float:
        """Returns the flag's value where it is not given: `share` of `same_as`, or `default`.

        Args:
            values: of other flags of the same command.
        """
        return self.share * values[self.same_as] if self.same_as else self.default

    def to_field(self, value: float) -> float:
        """Returns the parameter that a value of the flag stands for."""
        if self.is_whole:
            return int(value)
        return 1.0 / value if self.is_inverse else value

    def shown(self, field: float) -> decimal.Decimal:
        """Returns the flag's value for a parameter: nine digits, rounded towards more noise.

        So a number that is typed off the screen still meets the target.
        """
        rounding = decimal.ROUND_CEILING if self.more_is_noisier else decimal.ROUND_FLOOR
        context = decimal.Context(prec=9, rounding=rounding)
        return context.create_decimal_from_float(self.to_field(field)).normalize()


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A parameter of a mechanism.

    Attributes:
        field: name of the mechanism's attribute.
        flag: that gives it where labels are bought, and in an analysis unless that has its own.
        analysis_flag: that gives it in an analysis; None if it is the same.
    """

    field: str
    flag: Flag
    analysis_flag: Flag | None = None

    @property
    def flags(self) -> tuple[Flag, ...]:
        """Every flag that gives it."""
        return (self.flag,) if self.analysis_flag is None else (self.flag, self.analysis_flag)


GAMMA = Parameter(
    field="gamma",
    flag=Flag(
        name="lap_scale",
        help="Scale b of the noise, in votes: Lap(b), or gamma = 1/b for the other mechanisms with "
        "a gamma.",
        default=20.0,
        is_inverse=True,
    ),
    analysis_flag=Flag(
        name="noise_eps",
        help="gamma of the mechanism, the inverse scale of its noise, per vote: Lap(1/gamma).",
        default=0.1,
        more_is_noisier=False,
        unit="",
    ),
)
SIGMA = Parameter(
    field="sigma",
    flag=Flag(
        name="sigma", help="Standard deviation of the Gaussian noise, in votes.", default=40.0
    ),
)
