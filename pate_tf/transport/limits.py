"""How much and how often anybody may call."""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """What a server allows and how it waits.

    Attributes:
      message_bytes: of one message to the server or from it.
      calls_per_second: of one caller, on average.
      calls_at_once: of one caller, in a burst and also side by side.
      longest_wait: how long a poll may wait for something to do, in seconds.
    """

    message_bytes: int = 64 * 2**20
    calls_per_second: float = 20.0
    calls_at_once: int = 8
    longest_wait: float = 30.0

    def __post_init__(self) -> None:
        """Raises ValueError if a limit is not positive."""
        for field in dataclasses.fields(self):
            if not getattr(self, field.name) > 0:
                raise ValueError(f"{field.name}: expected above 0, got {getattr(self, field.name)}")


class TooManyCallsError(Exception):
    """A caller calls more often than it may."""


class CallLimiter:
    """Counts the calls of each name. Safe to use from several threads.

    A name has `calls_at_once` tokens; a call takes one, and they come back at `calls_per_second`.

    Args:
      limits: what is allowed.
      clock: seconds, always ahead.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits, self._clock = limits, clock
        self._tokens: dict[str, tuple[float, float]] = {}
        self._running: dict[str, int] = {}
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def call(self, name: str) -> Iterator[None]:
        """Lets a call of a name run.

        Raises:
          TooManyCallsError: if it may not.
        """
        limits = self._limits
        with self._lock:
            now = self._clock()
            tokens, since = self._tokens.get(name, (float(limits.calls_at_once), now))
            tokens = min(limits.calls_at_once, tokens + (now - since) * limits.calls_per_second)
            running = self._running.get(name, 0)
            allowed = tokens >= 1.0 and running < limits.calls_at_once
            self._tokens[name] = (tokens - 1.0 if allowed else tokens, now)
            if not allowed:
                raise TooManyCallsError("expected fewer calls; wait and try again")
            self._running[name] = running + 1
        try:
            yield
        finally:
            with self._lock:
                self._running[name] -= 1
