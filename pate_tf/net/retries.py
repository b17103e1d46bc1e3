"""Waits between attempts, and a client's loop that goes on until it is stopped."""

import secrets
import time
from collections.abc import Callable
from typing import Final

IDLE_SECONDS: Final = 0.5
UNREACHED: Final = "the other end can't be reached"


class Backoff:
    """Waits that grow after every failure, and differ by chance: many clients don't come at once.

    Attributes:
        first: the first wait, in seconds.
        longest: the longest one.
    """

    def __init__(self, *, first: float = 0.2, longest: float = 30.0) -> None:
        self.first, self.longest = first, longest
        self._failures = 0

    def failed(self) -> float:
        """Returns how long to wait now: between a half and the whole of a doubled wait."""
        whole = min(self.longest, self.first * 2.0 ** min(self._failures, 30))
        self._failures += 1
        return whole * (0.5 + secrets.randbelow(2**20) / 2**21)

    def succeeded(self) -> None:
        """Begins anew."""
        self._failures = 0


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
    backoff = Backoff()
    while not until():
        try:
            done = step()
        except ConnectionError as error:
            on_event(f"{str(error) or UNREACHED}; trying again")
            done = False
        if done is False:
            sleep(backoff.failed())
            continue
        backoff.succeeded()
        if done is None:
            sleep(IDLE_SECONDS)
