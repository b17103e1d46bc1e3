"""The files of a run, which are written completely or not at all.

A run directory has two parts. `sensitive/` (mode 0700, files 0600) contains everything that depends
on private data: teachers, partition, votes, ledger and logs of teachers. `released/` contains what
may be published: noisy labels, student and statement.
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

# Files and folders that are written completely or not at all.


_TEMPORARY = ".writing-"
_NUMBER = re.compile(r"[-+]?(\.?\d|nan|inf)", re.IGNORECASE)  # start of a number field


def check_can_hold_files(folder: pathlib.Path) -> None:
    """Checks that files can be written below a folder, which need not exist yet.

    Raises:
        ValueError: if the path is not a folder, or can't be written.
    """
    try:
        nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        # Permissions do not show whether the file system accepts files.
        with tempfile.TemporaryFile(dir=nearest) as file:
            lock(file.fileno(), nearest)
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder} is not a writable folder ({error})") from error


def lock(descriptor: int, path: pathlib.Path, *, waits: bool = True) -> None:
    """Locks an open file or folder until it is closed or the process ends.

    Raises:
        BlockingIOError: if another process has the lock and `waits` is False.
        OSError: if the file system has no locks; the error contains the path.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
    except OSError as error:
        if error.errno != errno.EWOULDBLOCK:
            error.strerror = f"{error.strerror}; use a folder on a file system with file locks"
        error.filename = str(path)
        raise


@contextlib.contextmanager
def only_writer(folder: pathlib.Path, *, waits: bool = False) -> Iterator[None]:
    """Locks a folder against other writers while the block runs; creates the folder.

    The lock ends with the process, even if it is killed. If the folder is empty at the end, it is
    deleted, together with the parents that were created for it.

    Args:
        folder: the folder; the block may delete it.
        waits: whether to wait until no other process uses the folder.

    Raises:
        ValueError: if another process uses the folder and `waits` is False.
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
            continue  # another process deleted it between the calls
        try:
            lock(descriptor, folder, waits=waits)
            if os.fstat(descriptor).st_nlink:  # no other process deleted it
                try:
                    yield
                finally:
                    if os.fstat(descriptor).st_nlink:  # otherwise it may belong to another process
                        with contextlib.suppress(OSError):  # a folder is not empty
                            for path in (folder, *new[1:]):
                                path.rmdir()
                return
        except BlockingIOError as error:
            raise ValueError(f"{folder} is used by another process. Wait until it ends.") from error
        finally:
            os.close(descriptor)


def check_no_writer(root: pathlib.Path | None, *names: str) -> None:
    """Raises ValueError if another process writes to a folder of a run.

    Commands call it before they start TensorFlow, so that a second command is refused early. They
    lock the folder later. Raises OSError if the file system has no locks.

    Args:
        root: the folder of the run; None to check nothing.
        *names: path of the folder below `root`.
    """
    if root is not None and root.joinpath(*names).is_dir():
        with only_writer(root.joinpath(*names)):
            pass


@contextlib.contextmanager
def lease(path: pathlib.Path) -> Iterator[None]:
    """Protects a half-written file or folder from `remove_abandoned` in any process.

    The lease is a lock on the file or folder, which the system releases when this process ends. It
    also works for containers that share a volume, where host names and process numbers repeat. On a
    file system without locks there are no leases, and nothing is removed.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def remove_abandoned(root: pathlib.Path) -> None:
    """Deletes half-written files and folders of killed writers below `root`; see `lease`."""
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
    """Returns a new temporary name next to a path, which `remove_abandoned` recognizes."""
    return path.with_name(f"{_TEMPORARY}{path.name}-{secrets.token_hex(4)}")


def is_half_written(path: pathlib.Path) -> bool:
    """Whether a path has a `temporary_name`, or is inside of a folder with such a name."""
    return any(part.startswith(_TEMPORARY) for part in path.parts)


def sync_folder(folder: pathlib.Path) -> None:
    """Syncs the directory entries of `folder`, so that a rename survives a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def atomic_file(path: pathlib.Path, *, private: bool = False) -> Iterator[IO[bytes]]:
    """Opens a file for writing, which appears at `path` when it is complete, or not at all.

    Args:
        path: the final name; its folder must exist.
        private: whether the file has mode 0600 from its first byte. If not, it is sealed.

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
            error.filename = str(path)  # a full disk does not name the file
        raise
    sync_folder(path.parent)
    if not private:
        seal(path)


@contextlib.contextmanager
def atomic_folder(path: pathlib.Path, *, replace: bool = True) -> Iterator[pathlib.Path]:
    """Creates a folder to fill, which appears at `path` when it is complete, or not at all.

    Args:
        path: the final name; its parent must exist.
        replace: whether to replace an existing folder at `path` when the new one is complete.

    Yields:
        An empty folder under a temporary name, renamed when the block ends without an exception.

    Raises:
        FileExistsError: if `path` already exists, unless `replace`.
        OSError: as the system reports it; an existing folder at `path` is unchanged.
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
                os.rename(temporary, path)  # fails if there is a folder with files
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                if not replace:
                    raise FileExistsError(errno.EEXIST, "it already exists", str(path)) from error
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
    """Returns the hexadecimal SHA-256 of an array's type, shape and bytes."""
    digest = hashlib.sha256(f"{array.dtype.str}{array.shape}".encode())
    digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def digest_paths(paths: Iterable[pathlib.Path]) -> str:
    """Returns the SHA-256 of names and bytes of all given files, and of all files in folders."""
    digest = hashlib.sha256()
    for path in paths:
        files = sorted(file for file in path.rglob("*") if file.is_file()) or [path]
        for file in files:
            content = hashlib.sha256(file.read_bytes()).hexdigest()
            digest.update(f"{file.relative_to(path.parent).as_posix()}\0{content}\n".encode())
    return digest.hexdigest()


def digest_arrays(arrays: Iterable[npt.ArrayLike]) -> str:
    """Returns the hexadecimal SHA-256 of the concatenated results of `digest_array`."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(digest_array(np.asarray(array)).encode())
    return digest.hexdigest()


# The two parts of a run directory.


SENSITIVE = "sensitive"
RELEASED = "released"
SEALS = "released.sha256"  # in `sensitive`: digests of the files in `released`


def seal(path: pathlib.Path) -> None:
    """Records the SHA-256 of files that were written into a run's `released/`.

    The digests are in `sensitive/`, so that `pate audit run` finds files that somebody else added.
    Files in other places, in a run without `sensitive/`, or in a half-written folder are ignored.
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
        notes.write(lines.encode())  # in one call, because other processes append as well
        os.fsync(notes.fileno())


@dataclasses.dataclass(frozen=True)
class RunDirectory:
    """The run directory with its two parts.

    Attributes:
        root: the folder of the run.
    """

    root: pathlib.Path

    @property
    def sensitive(self) -> pathlib.Path:
        """`<root>/sensitive`, created with mode 0700 under any umask.

        Raises:
            ValueError: if it would be inside of a published folder.
        """
        self._check_apart()
        return make_sensitive_folder(self.root / SENSITIVE)

    @property
    def teachers(self) -> pathlib.Path:
        """`<root>/sensitive/teachers`; it may not exist and is not created."""
        return self.root / SENSITIVE / "teachers"

    @property
    def released(self) -> pathlib.Path:
        """`<root>/released`, created with the umask's mode.

        Raises:
            ValueError: if it would contain `sensitive`.
        """
        self._check_apart()
        folder = self.root / RELEASED
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def check(
        self, *, files: Iterable[str] = (), folders: Iterable[str] = (SENSITIVE, RELEASED)
    ) -> None:
        """Checks that a run can write all its files; leaves nothing behind.

        Args:
            files: files that will be written or replaced, relative to the root.
            folders: folders that will get files, relative to the root.

        Raises:
            ValueError: if a path has the wrong kind or can't be written, or if `sensitive` would be
                inside of `released`.
        """
        self._check_apart()
        for name in folders:
            check_can_hold_files(self.root / name)
        for name in files:
            path = self.root / name
            check_can_hold_files(path.parent)
            if path.is_dir():
                raise ValueError(f"{path} is a folder, but a file will be written there; remove it")

    def _check_apart(self) -> None:
        # Resolves links, because one folder may be reached through the other.
        try:
            closed = (self.root / SENSITIVE).resolve()
            released = (self.root / RELEASED).resolve()
            is_public = RELEASED in closed.parts
            is_same = released == closed or closed in released.parents
        except (OSError, RuntimeError) as error:  # a loop of links
            raise ValueError(f"{self.root} can't be resolved: {error}") from error
        if is_public or is_same:
            raise ValueError(
                f"{self.root}: sensitive/ must be outside of every folder called released, and "
                f"released/ must not be a link to sensitive/"
            )
        if (self.root / RELEASED).is_symlink():  # `pate audit run` does not follow links
            raise ValueError(f"{self.root / RELEASED} is a link; replace it by a folder")


def make_sensitive_folder(folder: pathlib.Path) -> pathlib.Path:
    """Creates `folder` and its parents if necessary; sets mode 0700 for `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    os.chmod(folder, 0o700)
    return folder


def make_private(folder: pathlib.Path) -> None:
    """Removes the permissions of group and others from `folder` and everything below it.

    Use it for files in a folder with mode 0700 that other libraries wrote with the umask's mode.
    """
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            with contextlib.suppress(FileNotFoundError):  # a half-written file of another process
                os.chmod(path, path.stat().st_mode & 0o700)


def hide_host(folder: pathlib.Path) -> None:
    """Renames event files of TensorBoard below `folder`, because they contain the host's name.

    Call it after the files are written, because an open writer keeps using the old name.
    """
    for path in folder.rglob("events.out.tfevents.*"):
        seconds = path.name.split(".")[3]
        neutral = f"events.out.tfevents.{seconds}.host."
        if not path.name.startswith(neutral):
            suffix = ".v2" if path.suffix == ".v2" else ""
            os.replace(path, path.with_name(f"{neutral}{secrets.token_hex(4)}{suffix}"))


def tensorboard_row(folder: pathlib.Path) -> tuple[str, str]:
    """Returns the row of a report with the TensorBoard command for a folder."""
    return "TensorBoard", f"tensorboard --logdir={folder}"


def next_version(folder: pathlib.Path) -> int:
    """Returns the number of the next version in `folder`, starting at 1."""
    return 1 + max((int(path.name) for path in folder.glob("*") if path.name.isdigit()), default=0)


def is_within(path: pathlib.Path, folder_name: str) -> bool:
    """Whether `path`, with links resolved, is inside of a folder with the given name."""
    return folder_name in path.resolve().parts[:-1]


# Text, JSON and arrays: written completely or not at all, and read without running code.


def write_text(path: pathlib.Path, text: str, *, private: bool = False) -> None:
    """Writes UTF-8 text, completely or not at all."""
    with atomic_file(path, private=private) as file:
        file.write(text.encode())


def write_json(path: pathlib.Path, value: Mapping[str, Any], *, private: bool = False) -> None:
    """Writes a JSON object, completely or not at all; refuses NaN."""
    text = json.dumps(value, indent=2, allow_nan=False) + "\n"
    write_text(path, text, private=private)


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """Reads a JSON object.

    Raises:
        ValueError: if the file is not a JSON object, or an object has a key twice.
    """
    try:
        value = json.loads(path.read_text(), object_pairs_hook=object_of_pairs)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} must contain a JSON object, got {type(value).__name__}")
    return value


def object_of_pairs(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Returns a JSON object from its keys and values; raises ValueError if a key repeats."""
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a key occurs twice")
    return values


def write_arrays(
    path: pathlib.Path, arrays: Mapping[str, npt.NDArray[Any]], *, private: bool = False
) -> None:
    """Writes named arrays as `.npz`, completely or not at all."""
    with atomic_file(path, private=private) as file:
        _write_archive(file, arrays)


def _write_archive(file: IO[bytes], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Writes an archive for `np.load`, with the same bytes in every version of Python."""
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
        path: path of the file.
        names: names of the arrays to read; None for all arrays.
        is_exact: whether the file must have exactly the bytes that `write_arrays` writes for these
            arrays: no comment, no duplicate array, nothing in between.

    Raises:
        ValueError: if the file is truncated, does not have one of the arrays, is not an `.npz`
            file, or `is_exact` and it has other bytes.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in (archive.files if names is None else names)}
        content = io.BytesIO()
        if is_exact:
            _write_archive(content, arrays)
        if is_exact and content.getvalue() != path.read_bytes():
            raise ValueError("it contains more than its arrays")
        return arrays
    except FileNotFoundError:
        raise
    except Exception as error:  # zipfile, NumPy and zlib raise different exceptions
        raise ValueError(f"{path} is not a complete .npz file") from error


def read_array(path: pathlib.Path) -> npt.NDArray[Any]:
    """Reads one array from a `.npy` file, or numbers from a `.csv` file.

    Each line of the `.csv` file is a row; a single column becomes a vector. Names in the first line
    and row numbers in the first column, as data frames write them, are ignored.

    Raises:
        ValueError: if the file is truncated, or has another format.
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
                f"{path} must contain numbers separated by commas, equally many in each line"
            ) from None
        numbers = numbers[:, int(has_names and not names[0]) :]
        return numbers[:, 0] if numbers.shape[1] == 1 else numbers
    try:
        array = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise
    except Exception as error:  # NumPy raises several kinds
        raise ValueError(f"{path} is not a complete .npy file") from error
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{path} contains several arrays; a .npy file with one array is needed")
    return array
