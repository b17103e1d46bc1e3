"""The parameter server: adds what participants upload, each upload once.

It holds no private records and is trusted with none: whatever reaches it without noise it can read.
It works on bytes, so that a transport can be put in front of `pull` and `push`.
"""

import contextlib
import dataclasses
import hashlib
import os
import pathlib
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pate_tf.core import artifacts
from pate_tf.core.validation import IntArray
from pate_tf.selective_sgd import upload as selection
from pate_tf.selective_sgd.settings import Settings
from pate_tf.selective_sgd.upload import RefusedUploadError, Upload, decode

# The server's journal: what was accepted is on the disk before it is answered.


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


FloatArray = npt.NDArray[np.float32]

OK, SAME = "ok", "same"
NO_ROUND = -1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parameters:
    """What a participant downloads.

    Attributes:
      version: how many uploads the server had applied.
      indices: int64 `[num_downloaded]`, ascending.
      values: float32 `[num_downloaded]`.
    """

    version: int
    indices: IntArray = dataclasses.field(repr=False)
    values: FloatArray = dataclasses.field(repr=False)


class Server:
    """The parameters of one run: `values[indices] += upload`, never an average.

    Guarantees. An upload is applied once, whatever is sent again: participant and round are its
    key. With a journal it is durable before `push` answers, and a server that was killed at any
    point goes on from there. What is refused changes nothing.

    Args:
      settings: of the run.
      initial: float32 `[num_parameters]`.
      run: 16 bytes that name the run.
      folder: where the journal lies, below `sensitive/`. Default: nothing is kept.
      most_stale: uploads that are staler than this are refused. Default: five rounds of everybody.

    Raises:
      ValueError: if the folder holds the journal of another run, or a damaged one.
    """

    def __init__(
        self,
        settings: Settings,
        initial: FloatArray,
        *,
        run: bytes,
        folder: pathlib.Path | None = None,
        most_stale: int | None = None,
    ) -> None:
        self.settings = settings
        self.run = run
        self.values = np.array(initial, np.float32)
        self.counts = np.zeros(len(initial), np.float64)
        self.version = 0
        self.rounds = np.full(settings.num_participants, NO_ROUND, np.int64)
        self._digests: dict[int, bytes] = {}
        self._most_stale = 5 * settings.num_participants if most_stale is None else most_stale
        self._journal: Journal | None = None
        if folder is not None:
            self._journal = Journal(folder, run)
            if self._journal.snapshot is not None:
                self.restore(self._journal.snapshot)
            for content in self._journal.entries():
                self._apply(self._decoded(content), content)

    @property
    def num_parameters(self) -> int:
        """How many parameters the model has."""
        return len(self.values)

    def pull(self, participant: int) -> Parameters:
        """Returns the share of the parameters that were updated most; ties at random.

        Raises:
          ValueError: if there is no such participant.
        """
        if not 0 <= participant < self.settings.num_participants:
            raise ValueError(
                f"participant: expected one from 0 to {self.settings.num_participants - 1}, got "
                f"{participant}"
            )
        return self._share(participant, self.version, self.values, self.counts)

    def push(self, content: bytes) -> str:
        """Applies an upload, unless it was applied before.

        Args:
          content: an encoded `Upload`.

        Returns:
          "ok" if it was applied now, "same" if it had been before.

        Raises:
          RefusedUploadError: if it is malformed, of another run, too large, too stale, not finite,
            out of range, or another upload for a round that was applied. Nothing has changed.
          OSError: if it can't be made durable; then sending it again decides.
        """
        upload = self._decoded(content)
        last = self.rounds[upload.participant]
        if upload.round == last and self._digests.get(upload.participant) == _digest(content):
            return SAME
        self._check(upload)
        if self._journal is not None:
            self._journal.append(content)
        self._apply(upload, content)
        return OK

    def compact(self) -> None:
        """Keeps the state as it is in one file, and begins the journal anew."""
        if self._journal is not None:
            self._journal.begin(self.state())

    def close(self) -> None:
        """Closes the journal."""
        if self._journal is not None:
            self._journal.close()

    def staleness(self, version: int) -> int:
        """Returns how many uploads were applied since a version."""
        return self.version - version

    def factor(self, staleness: int) -> float:
        """Returns what an upload that is so stale is multiplied by."""
        is_synchronous = self.settings.protocol == "synchronous"
        damped = 1.0 if is_synchronous else (1.0 + staleness) ** -self.settings.damping
        return self.settings.rate_of_server * damped

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Returns all that the server knows, as arrays."""
        participants = sorted(self._digests)
        return {
            "values": self.values,
            "counts": self.counts,
            "version": np.array(self.version),
            "rounds": self.rounds,
            "participants": np.array(participants, np.int64),
            "digests": np.array(
                [list(self._digests[one]) for one in participants], np.uint8
            ).reshape(-1, 32),
        }

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Goes on from what `state` returned.

        Raises:
          ValueError: if it is the state of a server of other sizes.
        """
        shapes = [state[name].shape for name in ("values", "counts", "rounds")]
        if shapes != [self.values.shape, self.counts.shape, self.rounds.shape]:
            raise ValueError(
                f"server: expected the state of {self.num_parameters} parameters and "
                f"{len(self.rounds)} participants, got another"
            )
        self.values = np.array(state["values"], np.float32)
        self.counts = np.array(state["counts"], np.float64)
        self.version = int(state["version"])
        self.rounds = np.array(state["rounds"], np.int64)
        self._digests = {
            int(one): bytes(digest)
            for one, digest in zip(state["participants"], state["digests"], strict=True)
        }

    def _share(
        self,
        participant: int,
        version: int,
        values: FloatArray,
        counts: npt.NDArray[np.float64],
    ) -> Parameters:
        # A function of what was applied: asking twice answers the same.
        generator = np.random.default_rng([self.settings.seed, 1, participant, version])
        indices = selection.most_updated(
            counts, self.settings.num_downloaded(self.num_parameters), generator
        )
        return Parameters(version=version, indices=indices, values=values[indices])

    def _decoded(self, content: bytes) -> Upload:
        most = self.settings.num_uploaded(self.num_parameters)
        upload = decode(content, num_parameters=self.num_parameters, most=most)
        if upload.run != self.run:
            raise RefusedUploadError("upload: expected one of this run, got one of another")
        if upload.participant >= self.settings.num_participants:
            raise RefusedUploadError(
                f"upload: expected a participant from 0 to {self.settings.num_participants - 1}, "
                f"got {upload.participant}"
            )
        return upload

    def _check(self, upload: Upload) -> None:
        last = self.rounds[upload.participant]
        if upload.round == last:
            raise RefusedUploadError(
                f"upload: round {upload.round} of participant {upload.participant} was applied "
                f"with other content"
            )
        if not last < upload.round < self.settings.rounds:
            raise RefusedUploadError(
                f"upload: expected a round of participant {upload.participant} after {last} and "
                f"before {self.settings.rounds}, got {upload.round}"
            )
        if upload.version > self.version:
            raise RefusedUploadError(
                f"upload: expected a version up to {self.version}, got {upload.version}"
            )
        if self.staleness(upload.version) > self._most_stale:
            raise RefusedUploadError(
                f"upload: expected one at most {self._most_stale} uploads stale, got "
                f"{self.staleness(upload.version)}"
            )
        indices = upload.indices
        if indices.size and (indices[-1] >= self.num_parameters or (np.diff(indices) <= 0).any()):
            raise RefusedUploadError(
                f"upload: expected ascending indices below {self.num_parameters}, got others"
            )
        if not np.isfinite(upload.values).all():
            raise RefusedUploadError("upload: expected finite changes, got NaN or infinity")
        if (np.abs(upload.values) > np.float32(self.settings.gamma)).any():
            raise RefusedUploadError(
                f"upload: expected changes up to {self.settings.gamma:g}, got larger ones"
            )
        with np.errstate(over="ignore"):
            changed = self._changed(upload)
        if not np.isfinite(changed).all():
            raise RefusedUploadError("upload: expected changes that parameters can take, got more")

    def _changed(self, upload: Upload) -> FloatArray:
        factor = np.float32(self.factor(self.staleness(upload.version)))
        return np.asarray(self.values[upload.indices] + factor * upload.values)

    def _apply(self, upload: Upload, content: bytes) -> None:
        self.values[upload.indices] = self._changed(upload)
        self.counts[upload.indices] += 1.0
        self.version += 1
        self.rounds[upload.participant] = upload.round
        self._digests[upload.participant] = _digest(content)
        if self.version % (self.settings.stat_period or self.settings.num_participants) == 0:
            self.counts *= self.settings.stat_decay


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()
