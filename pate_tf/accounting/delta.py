"""Which delta means something: one rule, and the default that follows it."""

import warnings
from typing import Any, Final

from pate_tf.core import validation

DEFAULT_DELTA: Final = 1e-5
# Of a release's delta, for `core.settings.setting`.
DELTA: Final[dict[str, Any]] = {
    "least": 0.0,
    "below": 1.0,
    "help": "Delta of the guarantee, at most one over the number of private records; 0 for pure "
    "differential privacy. Fixed by the first release. Default: a tenth of one over their number, "
    "or less, up to 1e-5.",
}


def default_delta(num_records: int | None) -> float:
    """Returns the largest power of ten up to 1e-5 and to 1 / (10 num_records).

    Args:
        num_records: records, or owners, that are protected; None where that is not public.
    """
    return float(f"1e-{max(5, len(str(10 * (num_records or 1) - 1)))}")


def is_delta_large(delta: float, num_records: int) -> bool:
    """Whether delta is above one over the number of records.

    A mechanism that publishes one record of n, chosen at random, is (0, 1/n) differentially private
    (Dwork and Roth 2014, section 2.3.1).
    """
    return delta * num_records > 1.0


def check_delta(delta: float, num_records: int | None, unit: str = "record") -> None:
    """Checks that delta means something; warns where the number of records is not known or private.

    The warning is for every delta above `DEFAULT_DELTA`: it tells nothing of a private number.

    Args:
        delta: what an epsilon is to hold at; 0 for pure differential privacy.
        num_records: as of `default_delta`.
        unit: what is protected, for messages.

    Raises:
        ValueError: if delta is not in [0, 1), or is large.
    """
    validation.between(0, 1, ends="[)", delta=delta)
    if num_records is None and delta > DEFAULT_DELTA:
        warnings.warn(
            f"delta: expected at most one over the number of {unit}s, which is not known here, got "
            f"{delta:g}: with a larger one, publishing {unit}s as they are could be private",
            stacklevel=3,
        )
    if num_records is not None and is_delta_large(delta, num_records):
        raise ValueError(
            f"delta: expected at most one over the number of {unit}s, 1 / {num_records}, got "
            f"{delta:g}: publishing a random one of them as it is would be private"
        )
