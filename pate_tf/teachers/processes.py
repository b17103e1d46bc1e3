"""The same function on many arguments, in processes side by side, without TensorFlow in them."""

import collections
import concurrent.futures
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import connection
from typing import Any, TypeVar

AHEAD = 4  # arguments handed out for each process, so that none waits

Result = TypeVar("Result")


def num_cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_order(
    function: Callable[..., Result], arguments: Iterable[tuple[Any, ...]], *, num_processes: int
) -> Iterator[Result]:
    """Yields `function(*arguments)` for each, in their order.

    Arguments are taken one after another as results are, so that few are in memory at a time. The
    processes end with the caller's, also when it is killed.

    Args:
        function: of a module that starts quickly, since every process imports it.
        arguments: what to call it with.
        num_processes: 1 for the caller's alone.
    """
    if num_processes == 1:
        for each in arguments:
            yield function(*each)
        return
    processes = concurrent.futures.ProcessPoolExecutor(
        num_processes,
        mp_context=multiprocessing.get_context("spawn"),  # TensorFlow does not survive a fork
        initializer=_leave_with_parent,
    )
    waiting: collections.deque[concurrent.futures.Future[Result]] = collections.deque()
    try:
        for each in arguments:
            waiting.append(processes.submit(function, *each))
            if len(waiting) == AHEAD * num_processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        processes.shutdown(cancel_futures=True)


def _leave_with_parent() -> None:
    """Ends this process when its parent was killed; Ctrl-C is for the parent to answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            connection.wait([parent.sentinel])
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
