"""A poll that waits for something to do."""

import time
from collections.abc import Callable
from typing import TypeVar

import grpc

Found = TypeVar("Found")

_LOOK_SECONDS = 0.1


def wait_for(
    look: Callable[[], Found | None], context: grpc.ServicerContext, seconds: float
) -> Found | None:
    """Returns what `look` finds, as soon as it finds something; None after so many seconds.

    Gives up when the caller has gone.
    """
    end = time.monotonic() + seconds
    while True:
        found = look()
        left = end - time.monotonic()
        if found is not None or not left > 0.0 or not context.is_active():
            return found
        time.sleep(min(_LOOK_SECONDS, left))
