"""Numbers that fix a training, of teachers and students alike, checked before it begins."""

MOST_STEPS = 10**9
LARGEST_BATCH = 2**16
HIGHEST_RATE = 1.0  # of Adam; the first release's --learning_rate=5 was hundredths, for SGD


def check_training(
    *, max_steps: int | None, batch_size: int, learning_rate: float, seed: int
) -> None:
    """Checks the numbers of a training.

    Args:
      max_steps: how many steps; None for a number that follows from the data.
      batch_size: examples a step.
      learning_rate: of Adam.
      seed: of the training.

    Raises:
      ValueError: if a number is out of range: no training ends after more steps, no memory holds a
        larger batch, nothing is learnt at a higher rate.
    """
    for name, value, most in (
        ("max_steps", max_steps, MOST_STEPS),
        ("batch_size", batch_size, LARGEST_BATCH),
    ):
        if value is not None and not 1 <= value <= most:
            raise ValueError(f"{name}: expected from 1 to {most}, got {value}")
    if not 0.0 < learning_rate <= HIGHEST_RATE:
        raise ValueError(
            f"learning_rate: expected above 0 and at most {HIGHEST_RATE:g}, of Adam, got "
            f"{learning_rate}"
        )
    if not 0 <= seed < 2**31:
        raise ValueError(f"seed: expected from 0 to 2**31 - 1, got {seed}")
