"""Files and folders that are written whole or not at all."""

import contextlib
import errno
import fcntl
import hashlib
import os
import pathlib
import secrets
import shutil
import socket
import tempfile
import warnings
from collections.abc import Iterator
from typing import IO

_TEMPORARY = ".writing-"
_TRIES = 100


def check_can_hold_files(folder: pathlib.Path) -> None:
    """Checks that files can be written below a folder, which need not exist yet.

    Raises:
      ValueError: if something else lies in its place, or it can't be written.
    """
    try:
        nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        if nearest.is_dir() and os.access(nearest, os.W_OK):
            # Permissions don't tell of file systems that take no files.
            with tempfile.TemporaryFile(dir=nearest):
                pass
            return
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder}: expected a folder that can be written") from error
    raise ValueError(f"{folder}: expected a folder that can be written")


@contextlib.contextmanager
def only_writer(folder: pathlib.Path) -> Iterator[None]:
    """Keeps other processes of this kind from a folder as long as the block runs; creates it.

    The system forgets a process that was killed, so nothing is ever left locked.

    Raises:
      ValueError: if another process is in there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ValueError(
                f"{folder}: expected nobody else at work in there, got another process; wait until "
                f"it ends, or take another folder"
            ) from error
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def one_at_a_time(folder: pathlib.Path) -> Iterator[None]:
    """Creates a folder and waits until no other process of this kind is in it.

    The block may delete the folder. Who has to wait is told so by a warning.
    """
    while True:
        descriptor = _made_and_opened(folder)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                warnings.warn(f"{folder}: waiting for another process at work there", stacklevel=3)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_still_there(descriptor, folder):
                yield
                return
        finally:
            os.close(descriptor)


def _made_and_opened(folder: pathlib.Path) -> int:
    """Returns a descriptor of a folder, which others may delete at any moment."""
    for _ in range(_TRIES):
        # Deleted in the middle of either call, it is neither made nor there.
        with contextlib.suppress(FileExistsError, FileNotFoundError):
            folder.mkdir(parents=True, exist_ok=True)
            return os.open(folder, os.O_RDONLY)
    folder.mkdir(parents=True, exist_ok=True)
    return os.open(folder, os.O_RDONLY)


def _is_still_there(descriptor: int, folder: pathlib.Path) -> bool:
    """Whether a folder that was opened was not deleted, by who was there before, and made anew."""
    try:
        return os.path.samestat(os.fstat(descriptor), folder.stat())
    except FileNotFoundError:
        return False


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
