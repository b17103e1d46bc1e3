"""SciPy's special functions, imported when one is first called.

They take a fifth of the memory of a process that needs none of them, such as a silo that randomises
its own votes.
"""

import functools
import importlib
from collections.abc import Callable
from typing import Any

__all__ = [
    *("betainc", "betaln", "erfc", "expit", "log_ndtr", "logsumexp", "ndtr", "ndtri", "softmax"),
]


@functools.cache
def _found(name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(importlib.import_module("scipy.special"), name)
    return function


def _lazily(name: str) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        return _found(name)(*arguments, **options)

    call.__name__ = name
    call.__doc__ = f"Calls `scipy.special.{name}`."
    return call


betainc = _lazily("betainc")
betaln = _lazily("betaln")
erfc = _lazily("erfc")
expit = _lazily("expit")
log_ndtr = _lazily("log_ndtr")
logsumexp = _lazily("logsumexp")
ndtr = _lazily("ndtr")
ndtri = _lazily("ndtri")
softmax = _lazily("softmax")
