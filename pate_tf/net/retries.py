"""Waits between attempts, and a client's loop that goes on until it is stopped."""

import secrets
import time
from collections.abc import Callable
from typing import Final

IDLE_SECONDS: Final = 0.5
UNREACHED: Final = "the other end can't be reached"
FIRST_SECONDS: Final = 0.2
LONGEST_SECONDS: Final = 30.0


def backoff_seconds(num_failures: int) -> float:
    """Returns how long to wait after so many failures in a row, from 1.

    Between a half and the whole of a wait that doubles: many clients don't come at once.
    """
    whole = min(LONGEST_SECONDS, FIRST_SECONDS * 2.0 ** min(num_failures - 1, 30))
    return whole * (0.5 + secrets.randbelow(2**20) / 2**21)


def with_retries(
    step: Callable[[], bool | None],
    *,
    until: Callable[[], bool] = lambda: False,
    sleep: Callable[[float], None] = time.sleep,
    on_event: Callable[[str], None] = lambda event: None,
) -> None:
    """Repeats a step until it is stopped; waits longer after every failure.

    Args:
        step: returns True if something was done, False if it failed, None if there was nothing to
            do; raises ConnectionError while the other end can't be reached.
        until: asked before every step whether to stop.
        sleep: waits for so many seconds.
        on_event: called with what happened, in words without anything sensitive.
    """
    num_failures = 0
    while not until():
        try:
            done = step()
        except ConnectionError as error:
            on_event(f"{str(error) or UNREACHED}; trying again")
            done = False
        num_failures = num_failures + 1 if done is False else 0
        if done is False:
            sleep(backoff_seconds(num_failures))
        elif done is None:
            sleep(IDLE_SECONDS)
