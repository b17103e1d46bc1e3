"""Where a run keeps its files, and how they are written: whole or not at all.

A run directory has two halves. `sensitive/` (mode 0700, files 0600) holds all that depends on
private data: teachers, partition, votes, ledger, teacher logs. `released/` holds what may be
published: noisy labels, student, statement.
"""

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import io
import json
import os
import pathlib
import re
import secrets
import shutil
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any

import numpy as np
import numpy.typing as npt

# Files and folders that are written whole or not at all.


_TEMPORARY = ".writing-"
_NUMBER = re.compile(r"[-+]?(\.?\d|nan|inf)", re.IGNORECASE)  # how a field of one begins


def check_can_hold_files(folder: pathlib.Path) -> None:
    """Checks that files can be written below a folder, which need not exist yet.

    Raises:
        ValueError: if something else lies in its place, or it can't be written.
    """
    try:
        nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        # Permissions don't tell of file systems that take no files.
        with tempfile.TemporaryFile(dir=nearest) as file:
            lock(file.fileno(), nearest)
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder}: expected a folder that can be written ({error})") from error


def lock(descriptor: int, path: pathlib.Path, *, waits: bool = True) -> None:
    """Locks an open file or folder until it is closed; a process that dies frees it.

    Raises:
        BlockingIOError: if another process has the lock, unless it `waits`.
        OSError: with the path, if the file system has no locks.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
    except OSError as error:
        if error.errno != errno.EWOULDBLOCK:
            error.strerror = f"{error.strerror}; take a folder on a file system with file locks"
        error.filename = str(path)
        raise


@contextlib.contextmanager
def only_writer(folder: pathlib.Path, *, waits: bool = False) -> Iterator[None]:
    """Keeps other processes of this kind from a folder as long as the block runs; creates it.

    The system forgets a process that was killed, so nothing is ever left locked. A folder that is
    empty at the end is deleted, with the parents that were made for it.

    Args:
        folder: the folder; the block may delete it.
        waits: whether to wait until no other process is in there.

    Raises:
        ValueError: if another process is in there, unless it `waits`.
    """
    while True:
        new = [path for path in (folder, *folder.parents) if not path.exists()]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(folder, os.O_RDONLY)
        except (FileExistsError, FileNotFoundError):
            if folder.is_file() or folder.is_symlink():
                raise
            check_can_hold_files(folder)
            continue  # another process deleted it in the middle of either call
        try:
            lock(descriptor, folder, waits=waits)
            if os.fstat(descriptor).st_nlink:  # no other process deleted it
                try:
                    yield
                finally:
                    if os.fstat(descriptor).st_nlink:  # else one of another process may be there
                        with contextlib.suppress(OSError):  # one holds something
                            for path in (folder, *new[1:]):
                                path.rmdir()
                return
        except BlockingIOError as error:
            raise ValueError(
                f"{folder}: expected no other process at work there, got one; wait until it ends, "
                f"or take another folder"
            ) from error
        finally:
            os.close(descriptor)


def check_no_writer(root: pathlib.Path | None, *names: str) -> None:
    """Raises ValueError if a process is at work in a folder below a run's, OSError without locks.

    For commands that take the lock later: a second one is refused before TensorFlow starts.
    """
    if root is not None and root.joinpath(*names).is_dir():
        with only_writer(root.joinpath(*names)):
            pass


@contextlib.contextmanager
def lease(path: pathlib.Path) -> Iterator[None]:
    """Keeps `remove_abandoned` of every process from a half-written file or folder.

    The lease is a lock on the file or folder, which the system drops when this process ends. So it
    holds across containers that share a volume, where names of hosts and numbers of processes
    repeat. A file system without locks has no leases, and nothing is removed there.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def remove_abandoned(root: pathlib.Path) -> None:
    """Deletes below `root` what writers left half-written when they were killed; see `lease`."""
    for path in sorted(root.rglob(f"{_TEMPORARY}*")):
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            stack.callback(os.close, descriptor)
            lock(descriptor, path, waits=False)  # raises while the writer lives
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def temporary_name(path: pathlib.Path) -> pathlib.Path:
    """Returns a new name next to a path, which `remove_abandoned` knows; see `lease`."""
    return path.with_name(f"{_TEMPORARY}{path.name}-{secrets.token_hex(4)}")


def is_half_written(path: pathlib.Path) -> bool:
    """Whether a path lies below a `temporary_name`, or has one."""
    return any(part.startswith(_TEMPORARY) for part in path.parts)


def sync_folder(folder: pathlib.Path) -> None:
    """Makes the names in `folder` durable, so that a rename survives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def atomic_file(path: pathlib.Path, *, private: bool = False) -> Iterator[IO[bytes]]:
    """Opens a file for writing that appears at `path` complete, or not at all.

    Args:
        path: the final name; its folder must exist.
        private: whether the file gets mode 0600 from its first byte on. If not, it is sealed.

    Yields:
        A binary file under a temporary name, renamed when the block ends without an exception.

    Raises:
        OSError: as the system reports it (disk full, no permission); nothing is left behind.
    """
    temporary = temporary_name(path)
    descriptor = os.open(
        temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666
    )
    try:
        with lease(temporary):
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno and error.filename is None:
            error.filename = str(path)  # of a full disk, which does not say where
        raise
    sync_folder(path.parent)
    if not private:
        seal(path)


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
    temporary = temporary_name(path)
    temporary.mkdir()
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(lease(temporary))
            yield temporary
            for part in (temporary, *temporary.rglob("*")):
                if part.is_dir():
                    sync_folder(part)
                else:
                    with open(part, "rb") as file:
                        os.fsync(file.fileno())
            try:
                os.rename(temporary, path)  # fails where a folder with files stands
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                if not replace:
                    raise FileExistsError(
                        errno.EEXIST, "stands there already", str(path)
                    ) from error
                old = temporary_name(path)
                os.replace(path, old)
                stack.enter_context(lease(old))
                try:
                    os.replace(temporary, path)
                except OSError:
                    os.replace(old, path)
                    raise
                shutil.rmtree(old)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_folder(path.parent)
    seal(path)


# Digests of files and arrays.


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


def digest_arrays(arrays: Iterable[npt.ArrayLike]) -> str:
    """SHA-256 over several arrays or variables in their order, as hexadecimal digits.

    It is that of the hexadecimal SHA-256 digests of each one's type, shape and bytes.
    """
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(digest_array(np.asarray(array)).encode())
    return digest.hexdigest()


# The two halves of a run on disk, and what lies in them.


SENSITIVE = "sensitive"
RELEASED = "released"
SEALS = "released.sha256"  # below `sensitive`: what was written into `released`


def seal(path: pathlib.Path) -> None:
    """Notes the SHA-256 of a file that was written into a run's `released/`, or of a folder's.

    It goes to `sensitive/` beside it, so that `pate audit run` finds what somebody else put there.
    Nothing is noted of other places, of a run without `sensitive/`, or of a half-written folder.
    """
    path = path.absolute()
    released = next((each for each in path.parents if each.name == RELEASED), None)
    if released is None or is_half_written(path) or not (released.parent / SENSITIVE).is_dir():
        return
    lines = ""
    for file in sorted(each for each in (path, *path.rglob("*")) if each.is_file()):
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        lines += f"{digest}  {file.relative_to(released).as_posix()}\n"
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    descriptor = os.open(released.parent / SENSITIVE / SEALS, flags, 0o600)
    with os.fdopen(descriptor, "ab", buffering=0) as notes:
        notes.write(lines.encode())  # in one piece, as other processes add theirs
        os.fsync(notes.fileno())


@dataclasses.dataclass(frozen=True)
class RunDirectory:
    """The two halves of a run on disk.

    Attributes:
        root: the folder of the run.
    """

    root: pathlib.Path

    @property
    def sensitive(self) -> pathlib.Path:
        """`<root>/sensitive`, created with mode 0700 under any umask.

        Raises:
            ValueError: if it would lie in what may be published.
        """
        self._check_apart()
        return make_sensitive_folder(self.root / SENSITIVE)

    @property
    def teachers(self) -> pathlib.Path:
        """`<root>/sensitive/teachers`, there or not; it is not created."""
        return self.root / SENSITIVE / "teachers"

    @property
    def released(self) -> pathlib.Path:
        """`<root>/released`, created with the umask's mode.

        Raises:
            ValueError: if `sensitive` would lie in it.
        """
        self._check_apart()
        folder = self.root / RELEASED
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def check(
        self, *, files: Iterable[str] = (), folders: Iterable[str] = (SENSITIVE, RELEASED)
    ) -> None:
        """Checks that all can be written that a run will write; writes nothing that lasts.

        Args:
            files: that will be written or replaced, from the root on.
            folders: that files will be written below, from the root on.

        Raises:
            ValueError: if something else lies in the place of one, a place can't be written, or
                `sensitive` would lie in `released`.
        """
        self._check_apart()
        for name in folders:
            check_can_hold_files(self.root / name)
        for name in files:
            path = self.root / name
            check_can_hold_files(path.parent)
            if path.is_dir():
                raise ValueError(f"{path}: expected a file or nothing, got a folder")

    def _check_apart(self) -> None:
        # Links resolved: whichever way round one is reached through the other.
        try:
            closed = (self.root / SENSITIVE).resolve()
            released = (self.root / RELEASED).resolve()
            is_public = RELEASED in closed.parts
            is_same = released == closed or closed in released.parents
        except (OSError, RuntimeError) as error:  # a loop of links
            raise ValueError(f"{self.root}: expected a folder, got {error}") from error
        if is_public or is_same:
            raise ValueError(
                f"{self.root}: expected a run folder whose sensitive/ lies outside of every folder "
                f"called released, and whose released/ is no link to sensitive/, got another"
            )
        if (self.root / RELEASED).is_symlink():  # which `pate audit run` does not follow
            raise ValueError(f"{self.root / RELEASED}: expected a folder, got a link; remove it")


def make_sensitive_folder(folder: pathlib.Path) -> pathlib.Path:
    """Creates `folder` and its parents if need be, with mode 0700 for `folder` itself."""
    folder.mkdir(parents=True, exist_ok=True)
    os.chmod(folder, 0o700)
    return folder


def make_private(folder: pathlib.Path) -> None:
    """Takes everything below `folder`, itself included, away from group and others.

    For what other libraries write, by the umask. They do so inside of a folder of mode 0700.
    """
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            with contextlib.suppress(FileNotFoundError):  # a half-written file of another process
                os.chmod(path, path.stat().st_mode & 0o700)


def hide_host(folder: pathlib.Path) -> None:
    """Renames event files of TensorBoard below `folder`, whose names tell the name of the machine.

    Call it once they are written: a writer that is still open would go on under the old name.
    """
    for path in folder.rglob("events.out.tfevents.*"):
        seconds = path.name.split(".")[3]
        neutral = f"events.out.tfevents.{seconds}.host."
        if not path.name.startswith(neutral):
            suffix = ".v2" if path.suffix == ".v2" else ""
            os.replace(path, path.with_name(f"{neutral}{secrets.token_hex(4)}{suffix}"))


def tensorboard_row(folder: pathlib.Path) -> tuple[str, str]:
    """Returns the row of a report that says which folder to point TensorBoard at."""
    return "TensorBoard", f"tensorboard --logdir={folder}"


def next_version(folder: pathlib.Path) -> int:
    """Returns the number of the version that is written next below `folder`, from 1."""
    return 1 + max((int(path.name) for path in folder.glob("*") if path.name.isdigit()), default=0)


def is_within(path: pathlib.Path, folder_name: str) -> bool:
    """Whether `path`, links resolved, lies in a folder of the given name."""
    return folder_name in path.resolve().parts[:-1]


# Text, JSON and arrays: written whole, and read without running anything.


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
        ValueError: if the file does not hold a JSON object, or one of its objects has a key twice.
    """
    try:
        value = json.loads(path.read_text(), object_pairs_hook=object_of_pairs)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: expected JSON, got something else ({error})") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


def object_of_pairs(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Returns a JSON object from its keys and values; ValueError if a key is there twice."""
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a key is there twice")
    return values


def write_arrays(
    path: pathlib.Path, arrays: Mapping[str, npt.NDArray[Any]], *, private: bool = False
) -> None:
    """Writes named arrays as `.npz`, whole or not at all."""
    with atomic_file(path, private=private) as file:
        _write_archive(file, arrays)


def _write_archive(file: IO[bytes], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Writes what `np.load` reads: the same bytes for the same arrays, whatever the Python."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            info = zipfile.ZipInfo(f"{name}.npy")
            info.create_system = 3
            info.file_size = array.nbytes
            with archive.open(info, "w") as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


def read_arrays(
    path: pathlib.Path, names: Iterable[str] | None = None, *, is_exact: bool = False
) -> dict[str, npt.NDArray[Any]]:
    """Reads the named arrays of an `.npz` file.

    Args:
        path: of the file.
        names: of the arrays that are read; None for all of them.
        is_exact: whether the file must hold these arrays and nothing else, byte for byte as
            `write_arrays` does: no comment, no second array of a name, nothing in between.

    Raises:
        ValueError: if the file is truncated, lacks an array or is not an `.npz` file.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in (archive.files if names is None else names)}
        content = io.BytesIO()
        if is_exact:
            _write_archive(content, arrays)
        if is_exact and content.getvalue() != path.read_bytes():
            raise ValueError("it holds something besides its arrays")
        return arrays
    except FileNotFoundError:
        raise
    except Exception as error:  # zipfile, NumPy and zlib each raise their own kinds
        raise ValueError(f"{path}: expected a complete .npz file, got a broken one") from error


def read_array(path: pathlib.Path) -> npt.NDArray[Any]:
    """Reads one array from a `.npy` file, or numbers from a `.csv` file.

    A line of the `.csv` file is a row; a single column becomes a vector. Names in the first line,
    and the positions that data frames write in the first column, are left out.

    Raises:
        ValueError: if the file is truncated, or is neither.
    """
    if path.suffix.lower() == ".csv":
        try:
            lines = path.read_text("utf-8-sig").splitlines()
            names = [name.strip(' "') for name in lines[0].split(",")]
            are_places = names == ["", *(str(place) for place in range(len(names) - 1))]
            has_names = are_places or not any(map(_NUMBER.match, names))
            numbers = np.loadtxt(lines[has_names:], delimiter=",", ndmin=2, quotechar='"')
        except (ValueError, IndexError):
            raise ValueError(
                f"{path}: expected numbers separated by commas, as many in each line, got others"
            ) from None
        numbers = numbers[:, int(has_names and not names[0]) :]
        return numbers[:, 0] if numbers.shape[1] == 1 else numbers
    try:
        array = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise
    except Exception as error:  # EOFError, ValueError and others, by where the file breaks
        raise ValueError(f"{path}: expected a complete .npy file, got a broken one") from error
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{path}: expected one .npy array, got an archive of several")
    return array
