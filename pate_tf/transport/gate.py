"""What every call passes before a service sees it: who calls, may it, how often; and its errors.

What goes wrong is told in one line of ours, or not at all: never by an exception's own words,
unless they are a `ValueError` about what the caller sent.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

import grpc

from pate_tf.transport.credentials import caller_name
from pate_tf.transport.limits import CallLimiter, Limits, TooManyCallsError

HEALTH = "grpc.health.v1.Health"

_log = logging.getLogger(__name__)


class Gate(grpc.ServerInterceptor):
    """Lets those call a service who are on its roster, and no more often than is allowed.

    Args:
      rosters: names of the callers of each service, by its full name. The health service is open to
        everybody with a certificate; services that aren't named are closed.
      limits: of every caller.
    """

    def __init__(self, rosters: Mapping[str, Collection[str]], limits: Limits) -> None:
        self._rosters = {service: frozenset(names) for service, names in rosters.items()}
        self._limiter = CallLimiter(limits)

    def intercept_service(self, continuation: Callable[..., Any], details: Any) -> Any:
        """Returns the handler of a call behind the gate."""
        handler = continuation(details)
        _, service, _ = details.method.split("/", 2)
        if handler is None or service == HEALTH:
            return handler
        if handler.unary_unary is None:
            return None  # nothing streams here
        names = self._rosters.get(service, frozenset())
        inside = handler.unary_unary

        def guarded(request: Any, context: grpc.ServicerContext) -> Any:
            try:
                name = caller_name(context)
                if name not in names:
                    raise PermissionError(f"expected a caller on the roster of {service}")
                with self._limiter.call(name):
                    return inside(request, context)
            except PermissionError as error:
                _log.warning("a call to %s was denied: %s", details.method, error)
                context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
            except TooManyCallsError as error:
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
            except ValueError as error:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            except Exception as error:
                if context.code() is not None:
                    raise  # a service's own abort
                _log.error("a call to %s failed", details.method, exc_info=error)
                context.abort(grpc.StatusCode.INTERNAL, "the server failed; its log says why")

        return grpc.unary_unary_rpc_method_handler(
            guarded, handler.request_deserializer, handler.response_serializer
        )
