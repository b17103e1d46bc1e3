"""A run on disk, so that it goes on where it was stopped. Sensitive."""

import contextlib
import json
import pathlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pate_tf.core import artifacts
from pate_tf.models import fingerprint

SECONDS_BETWEEN_SAVES = 10.0


class Store:
    """`config.json` and `state.npz` in a folder of the run.

    Args:
      folder: below `sensitive/`.
      identity: JSON values that fix the result.

    Raises:
      ValueError: if the folder holds another run.
    """

    def __init__(self, folder: pathlib.Path, identity: Mapping[str, Any]) -> None:
        self._folder = artifacts.make_sensitive_folder(folder)
        self._last_save = time.monotonic()
        self._seconds: list[float] = []
        path = folder / "config.json"
        wanted = json.loads(json.dumps(identity))
        if not path.exists():
            artifacts.write_json(path, wanted, private=True)
        elif differs := fingerprint.difference(artifacts.read_json(path), wanted):
            raise ValueError(
                f"{folder} holds another run ({differs}); choose another folder or remove it"
            )

    @property
    def seconds_a_round(self) -> float | None:
        """Median time of a round in this process, the first, which traces, aside if possible."""
        timed = self._seconds[1:] or self._seconds
        return float(np.median(timed)) if timed else None

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """Measures a round."""
        began = time.monotonic()
        yield
        self._seconds.append(time.monotonic() - began)

    def save(self, state: Mapping[str, npt.NDArray[Any]], *, at_once: bool) -> None:
        """Keeps the state, if it must be or some seconds have passed."""
        if at_once or time.monotonic() - self._last_save > SECONDS_BETWEEN_SAVES:
            artifacts.write_arrays(self._folder / "state.npz", state, private=True)
            self._last_save = time.monotonic()

    def load(self) -> dict[str, npt.NDArray[Any]] | None:
        """Returns the state that was kept last; None if there is none."""
        path = self._folder / "state.npz"
        return artifacts.read_arrays(path) if path.exists() else None
