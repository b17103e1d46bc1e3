"""Certificates of mutual TLS, who a caller is by its own, and limits of calls."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pate_tf.core import validation
from pate_tf.core.validation import check_name

if TYPE_CHECKING:  # flags name these files where the packages of the extra are not installed
    import grpc

COORDINATOR = "coordinator"  # name in its certificate
CALL_SECONDS = 60.0  # that a call may take, beside what it waits at the server


@dataclasses.dataclass(frozen=True, kw_only=True)
class TlsFiles:
    """The files of one end of a connection, in PEM.

    Attributes:
        authority: certificate of the authority that signed all others; alone trusted.
        certificate: of this end; its common name says who that is.
        key: private key of the certificate, which its owner alone can read.
    """

    authority: pathlib.Path
    certificate: pathlib.Path
    key: pathlib.Path

    @classmethod
    def of(cls, folder: pathlib.Path, name: str) -> TlsFiles:
        """Returns the files of a name as `certificates.write_demo_certificates` lays them out."""
        check_name(name, "name")
        return cls(
            authority=folder / "authority.pem",
            certificate=folder / f"{name}.pem",
            key=folder / f"{name}.key",
        )


def caller_name(context: grpc.ServicerContext) -> str:
    """Returns the common name of a caller's certificate.

    Raises PermissionError if there is no certificate, or it has not exactly one such name.
    """
    names = context.auth_context().get("x509_common_name", [])
    if len(names) != 1:
        raise PermissionError("expected a certificate with one common name, got none such")
    return bytes(names[0]).decode("utf-8", "replace")


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
        validation.positive(**dataclasses.asdict(self))


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
        """Lets a call of a name run; raises TooManyCallsError if it may not."""
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
