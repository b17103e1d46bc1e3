"""Where a run keeps its files, and how they are written: whole or not at all.

A run directory has two halves. `sensitive/` (mode 0700, files 0600) holds whatever depends on
private data: teachers, partition, votes, ledger, teacher logs. `released/` holds what may be
published: noisy labels, student, statement.
"""

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import pathlib
import secrets
import shutil
import socket
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any

import numpy as np
import numpy.typing as npt

SENSITIVE = "sensitive"
RELEASED = "released"

_TEMPORARY = ".writing-"


@dataclasses.dataclass(frozen=True)
class RunDirectory:
    """The two halves of a run on disk.

    Attributes:
      root: the folder given by `--train_dir` or `--teachers_dir`.
    """

    root: pathlib.Path

    @property
    def sensitive(self) -> pathlib.Path:
        """`<root>/sensitive`, created with mode 0700, whatever the umask."""
        return make_sensitive_folder(self.root / SENSITIVE)

    @property
    def released(self) -> pathlib.Path:
        """`<root>/released`, created with the umask's mode."""
        folder = self.root / RELEASED
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def make_sensitive_folder(folder: pathlib.Path) -> pathlib.Path:
    """Creates `folder` and its parents if need be, with mode 0700 for `folder` itself."""
    folder.mkdir(parents=True, exist_ok=True)
    os.chmod(folder, 0o700)
    return folder


def is_within(path: pathlib.Path, folder_name: str) -> bool:
    """Whether `path`, links resolved, lies in a folder of the given name."""
    return folder_name in path.resolve().parts[:-1]


def remove_abandoned(root: pathlib.Path) -> None:
    """Deletes below `root` what writers on this host left half-written when they were killed."""
    for path in root.rglob(f"{_TEMPORARY}*"):
        *_, host, process, _ = path.name.split("-")
        if host != _host() or _is_running(int(process)):
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _host() -> str:
    return hashlib.blake2b(socket.gethostname().encode(), digest_size=4).hexdigest()


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _temporary_name(path: pathlib.Path) -> pathlib.Path:
    # Host and process, so that `remove_abandoned` knows whether the writer still lives.
    owner = f"{_host()}-{os.getpid()}-{secrets.token_hex(4)}"
    return path.with_name(f"{_TEMPORARY}{path.name}-{owner}")


def sync_folder(folder: pathlib.Path) -> None:
    """Makes the names in `folder` durable, so that a rename survives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_file(path: pathlib.Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


@contextlib.contextmanager
def atomic_file(path: pathlib.Path, *, private: bool = False) -> Iterator[IO[bytes]]:
    """Opens a file for writing that appears at `path` complete, or not at all.

    Args:
      path: the final name; its folder must exist.
      private: whether the file gets mode 0600 from its first byte on.

    Yields:
      A binary file under a temporary name, renamed when the block ends without an exception.

    Raises:
      OSError: as the system reports it (disk full, no permission); nothing is left behind.
    """
    temporary = _temporary_name(path)
    descriptor = os.open(
        temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666
    )
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


@contextlib.contextmanager
def atomic_folder(path: pathlib.Path, *, replace: bool = True) -> Iterator[pathlib.Path]:
    """Fills a folder that appears at `path` complete, or not at all.

    Args:
      path: the final name; its parent must exist.
      replace: whether a folder that stands at `path` already gives way to the new one, once that
        is complete.

    Yields:
      An empty folder under a temporary name, renamed when the block ends without an exception.

    Raises:
      FileExistsError: if something stands at `path` already, unless `replace`.
      OSError: as the system reports it; what stood at `path` stands there still.
    """
    temporary = _temporary_name(path)
    temporary.mkdir()
    try:
        yield temporary
        for part in (temporary, *temporary.rglob("*")):
            if part.is_dir():
                sync_folder(part)
            else:
                _sync_file(part)
        try:
            os.rename(temporary, path)  # fails where a folder with files stands
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            if not replace:
                raise FileExistsError(errno.EEXIST, "stands there already", str(path)) from error
            _swap(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_folder(path.parent)


def _swap(new: pathlib.Path, path: pathlib.Path) -> None:
    old = _temporary_name(path)
    os.replace(path, old)
    try:
        os.replace(new, path)
    except OSError:
        os.replace(old, path)
        raise
    shutil.rmtree(old)


def write_text(path: pathlib.Path, text: str, *, private: bool = False) -> None:
    """Writes UTF-8 text, whole or not at all."""
    with atomic_file(path, private=private) as file:
        file.write(text.encode())


def write_json(path: pathlib.Path, value: Mapping[str, Any], *, private: bool = False) -> None:
    """Writes a JSON object, whole or not at all; NaN is refused."""
    text = json.dumps(value, indent=2, allow_nan=False) + "\n"
    write_text(path, text, private=private)


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """Reads a JSON object.

    Raises:
      ValueError: if the file does not hold a JSON object.
    """
    try:
        value = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: expected JSON, got something else ({error})") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


def write_arrays(
    path: pathlib.Path, arrays: Mapping[str, npt.NDArray[Any]], *, private: bool = False
) -> None:
    """Writes named arrays as `.npz`, whole or not at all."""
    with atomic_file(path, private=private) as file:
        np.savez(file, allow_pickle=False, **dict(arrays))


def read_arrays(path: pathlib.Path) -> dict[str, npt.NDArray[Any]]:
    """Reads the named arrays of an `.npz` file.

    Raises:
      ValueError: if the file is truncated or is not an `.npz` file.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise
    except Exception as error:  # zipfile, NumPy and zlib each raise their own kinds
        raise ValueError(f"{path}: expected a complete .npz file, got a broken one") from error


def read_array(path: pathlib.Path) -> npt.NDArray[Any]:
    """Reads one array from a `.npy` file.

    Raises:
      ValueError: if the file is truncated or is not a `.npy` file.
    """
    try:
        array = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise
    except Exception as error:  # EOFError, ValueError and others, by where the file breaks
        raise ValueError(f"{path}: expected a complete .npy file, got a broken one") from error
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{path}: expected one .npy array, got an archive of several")
    return array


def digest_array(array: npt.NDArray[Any]) -> str:
    """SHA-256 of an array's type, shape and bytes, as hexadecimal digits."""
    digest = hashlib.sha256(f"{array.dtype.str}{array.shape}".encode())
    digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def digest_paths(paths: Iterable[pathlib.Path]) -> str:
    """SHA-256 over the names and bytes of files and of all files below folders."""
    digest = hashlib.sha256()
    for path in paths:
        files = sorted(file for file in path.rglob("*") if file.is_file()) or [path]
        for file in files:
            content = hashlib.sha256(file.read_bytes()).hexdigest()
            digest.update(f"{file.relative_to(path.parent).as_posix()}\0{content}\n".encode())
    return digest.hexdigest()


def digest_arrays(arrays: Iterable[npt.NDArray[Any]]) -> str:
    """SHA-256 over several arrays in their order, as hexadecimal digits."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(digest_array(array).encode())
    return digest.hexdigest()
