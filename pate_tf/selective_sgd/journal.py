"""The server's journal: what was accepted is on the disk before it is answered."""

import contextlib
import os
import pathlib
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pate_tf import artifacts

ENTRY = struct.Struct("<II")  # length and CRC-32 of what follows
SNAPSHOT = re.compile(r"server-(\d{12})\.npz")


class Journal:
    """A snapshot of the server, and the uploads accepted since. Sensitive.

    `server-VERSION.npz` appears whole or not at all; `uploads-VERSION.log` holds what came after
    it. An entry that was being written when the process was killed was never answered: it is cut
    off.

    Args:
      folder: where the files lie; gets mode 0700.
      run: 16 bytes that name the run.

    Raises:
      ValueError: if the folder holds the journal of another run, or a damaged one.
    """

    def __init__(self, folder: pathlib.Path, run: bytes) -> None:
        self._folder = artifacts.make_sensitive_folder(folder)
        self._run = run
        self.snapshot: dict[str, npt.NDArray[Any]] | None = None
        self._version = 0
        found = sorted(path for path in folder.iterdir() if SNAPSHOT.fullmatch(path.name))
        if found:
            self.snapshot = artifacts.read_arrays(found[-1])
            self._version = int(SNAPSHOT.fullmatch(found[-1].name)[1])  # type: ignore[index]
            self._check_run(bytes(self.snapshot["run"]))
        self._path = self._log(self._version)
        self._entries, length = self._read()
        self._file = self._open(self._path, length)

    def entries(self) -> Iterator[bytes]:
        """Yields the uploads accepted since the snapshot, in order, once."""
        entries, self._entries = self._entries, []
        yield from entries

    def append(self, content: bytes) -> None:
        """Makes an upload durable.

        Raises:
          OSError: if it can't; then nothing of it stays.
        """
        start = os.lseek(self._file, 0, os.SEEK_END)
        entry = ENTRY.pack(len(content), zlib.crc32(content)) + content
        try:
            written = 0
            while written < len(entry):
                written += os.write(self._file, entry[written:])
            os.fsync(self._file)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, start)
            raise

    def begin(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Keeps a state, and begins anew after it."""
        version = int(state["version"])
        run = np.frombuffer(self._run, np.uint8)
        new = self._open(self._log(version), len(self._header()))
        artifacts.write_arrays(
            self._folder / f"server-{version:012d}.npz", {**state, "run": run}, private=True
        )
        old, self._version = self._version, version
        os.close(self._file)
        self._file = new
        if old != version:
            for name in (f"server-{old:012d}.npz", self._log(old).name):
                (self._folder / name).unlink(missing_ok=True)

    def close(self) -> None:
        """Closes the file; nothing can be kept any more."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def _header(self) -> bytes:
        return b"SSGDLOG1" + self._run

    def _log(self, version: int) -> pathlib.Path:
        return self._folder / f"uploads-{version:012d}.log"

    def _check_run(self, run: bytes) -> None:
        if run != self._run:
            raise ValueError(
                f"{self._folder}: expected the journal of this run, got that of another; choose "
                f"another folder"
            )

    def _open(self, path: pathlib.Path, length: int) -> int:
        """Opens a log, cut to the length up to which it is whole."""
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.ftruncate(file, length if os.fstat(file).st_size >= length else 0)
        if os.fstat(file).st_size == 0:
            os.write(file, self._header())
        os.fsync(file)
        artifacts.sync_folder(self._folder)
        return file

    def _read(self) -> tuple[list[bytes], int]:
        """Returns the whole entries, and up to where the file is whole."""
        header = self._header()
        if not self._path.exists():
            return [], len(header)
        content = self._path.read_bytes()
        if len(content) < len(header):
            return [], 0
        if not content.startswith(header[:8]):
            raise ValueError(f"{self._path}: expected a journal, got something else")
        self._check_run(content[8 : len(header)])
        entries: list[bytes] = []
        start = len(header)
        while start + ENTRY.size <= len(content):
            length, checksum = ENTRY.unpack_from(content, start)
            entry = content[start + ENTRY.size : start + ENTRY.size + length]
            if len(entry) < length:
                break
            if zlib.crc32(entry) != checksum:
                if start + ENTRY.size + length == len(content):
                    break  # the last one: its bytes did not all reach the disk
                raise ValueError(f"{self._path}: expected whole entries, got a damaged one")
            entries.append(entry)
            start += ENTRY.size + length
        return entries, start
