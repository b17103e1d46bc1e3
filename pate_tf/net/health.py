"""How an operator watches a process that runs for long: by HTTP on a port of this machine only.

`GET /healthz` is for probes: 200 and "ok", or 503 and the reason. `GET /metrics` is for Prometheus;
docs/how-to/operate.md lists the metrics. Every value follows from a policy, a roster and what other
processes asked. So none is private.
"""

from __future__ import annotations

import contextlib
import http.server
import pathlib
import threading
from collections.abc import Callable
from typing import Any, Final

HOST: Final = "127.0.0.1"
CONTACT: Final = "contact"  # a file, as old as the last successful call from or to another process
CONTACT_AGE: Final = 'pate_contact_age_seconds{{peer="{}"}}'  # in seconds, by the other end's name

# Why the process can't work now, "" if it can; and numbers by the metric's name, with its label.
Health = tuple[str, dict[str, float]]
Watch = Callable[[Callable[[], Health]], object]


def note_contact(path: pathlib.Path | None) -> None:
    """Notes by the time of a file that a call succeeded now, for `pate silo status` and others."""
    if path is not None:
        with contextlib.suppress(OSError):  # a full disk stops no call
            path.touch()


class Probe(http.server.BaseHTTPRequestHandler):
    """Answers probes and scrapes; `server.looks[-1]` returns the health of the process."""

    timeout = 10.0  # seconds that a client has, which is Prometheus' default for a scrape
    server: Any

    def do_GET(self) -> None:
        """Answers a GET request."""
        trouble, numbers = self.server.looks[-1]()
        metrics = "".join(f"{name} {float(value)!r}\n" for name, value in numbers.items())
        pages = {"/healthz": (503 if trouble else 200, f"{trouble or 'ok'}\n")}
        pages["/metrics"] = (200, metrics)
        code, text = pages.get(self.path, (404, "see /healthz and /metrics\n"))
        self.send_response_only(code)  # without a line in the log
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.end_headers()
        self.wfile.write(text.encode())


def serve_health(port: int | None) -> Watch:
    """Answers probes and scrapes on a port of 127.0.0.1 until the process ends.

    Args:
        port: to listen on; None for none.

    Returns:
        A function to call once the process works, with a function that returns its health. Before,
        the health is that it is starting.

    Raises ValueError if the port can't be listened on.
    """
    looks: list[Callable[[], Health]] = [lambda: ("the process is starting", {})]
    if port is not None:
        try:
            server: Any = http.server.ThreadingHTTPServer((HOST, port), Probe)
        except OSError as error:
            reason = f"`metrics_port={port}` can't be used on {HOST}: {error.strerror}"
            raise ValueError(f"{reason}. Choose a free port above 1023.") from None
        server.looks = looks
        server.handle_error = lambda request, client: None  # a client that went away is no error
        threading.Thread(target=server.serve_forever, daemon=True).start()
    return looks.append
