"""HTTP endpoints for monitoring a long-running process, served on this machine only.

`GET /healthz` is for probes: it returns 200 and "ok", or 503 and the reason. `GET /metrics` is for
Prometheus; docs/how-to/operate.md lists the metrics. All values depend only on a policy, a roster
and requests of other processes, so they are not private.
"""

from __future__ import annotations

import contextlib
import http.server
import pathlib
import threading
from collections.abc import Callable
from typing import Any, Final

HOST: Final = "127.0.0.1"
CONTACT: Final = "contact"  # file whose modification time records the last successful call
CONTACT_AGE: Final = 'pate_contact_age_seconds{{peer="{}"}}'  # {} is the name of the other process

# The health of a process: the reason why it can't work, or an empty string if it can; and a
# dictionary that maps the name and label of each metric to its value.
Health = tuple[str, dict[str, float]]
Watch = Callable[[Callable[[], Health]], object]


def note_contact(path: pathlib.Path | None) -> None:
    """Updates the modification time of a file after a successful call, for `pate silo status`."""
    if path is not None:
        with contextlib.suppress(OSError):  # calls must continue if the disk is full
            path.touch()


class Probe(http.server.BaseHTTPRequestHandler):
    """Answers requests of probes and of Prometheus; `server.looks[-1]` returns the health."""

    timeout = 10.0  # seconds per request, the default of Prometheus for a scrape
    server: Any

    def do_GET(self) -> None:
        """Answers a GET request."""
        trouble, numbers = self.server.looks[-1]()
        metrics = "".join(f"{name} {float(value)!r}\n" for name, value in numbers.items())
        pages = {"/healthz": (503 if trouble else 200, f"{trouble or 'ok'}\n")}
        pages["/metrics"] = (200, metrics)
        code, text = pages.get(self.path, (404, "see /healthz and /metrics\n"))
        self.send_response_only(code)  # does not write to the log
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.end_headers()
        self.wfile.write(text.encode())


def serve_health(port: int | None) -> Watch:
    """Serves `/healthz` and `/metrics` on a port of 127.0.0.1 until the process ends.

    Args:
        port: port to listen on; None to disable the endpoints.

    Returns:
        A function that you must call when the process is ready, with a function that returns the
        health of the process. Until this call, `/healthz` reports that the process is starting.

    Raises:
        ValueError: if the port can't be used.
    """
    looks: list[Callable[[], Health]] = [lambda: ("the process is starting", {})]
    if port is not None:
        try:
            server: Any = http.server.ThreadingHTTPServer((HOST, port), Probe)
        except OSError as error:
            reason = f"`metrics_port={port}` can't be used on {HOST}: {error.strerror}"
            raise ValueError(f"{reason}. Choose a free port above 1023.") from None
        server.looks = looks
        server.handle_error = lambda request, client: None  # ignore clients that disconnect
        threading.Thread(target=server.serve_forever, daemon=True).start()
    return looks.append
