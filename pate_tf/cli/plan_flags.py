"""The flags of a plan: what it assumes of votes that nobody has looked at."""

from absl import flags

from pate_tf.accounting.assumed_votes import DEFAULT_MARGIN


def define(*, needed: str) -> None:
    """Defines `--margin` and `--exceptions`.

    Args:
      needed: the flag that they go with.
    """
    flags.DEFINE_float(
        "margin",
        DEFAULT_MARGIN,
        f"With {needed}: what the plan assumes of every query, that the first class leads "
        "the second by this share of the teachers. A guess from public values, never to be "
        "measured on the votes.",
    )
    flags.DEFINE_integer(
        "exceptions",
        0,
        f"With {needed}: queries on which the plan assumes that teachers are divided.",
        lower_bound=0,
    )
    flags.register_validator(
        "margin", lambda value: 0.0 < value <= 1.0, message="expected a share of the teachers"
    )
