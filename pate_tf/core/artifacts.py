"""Reads and writes the files of a run. Each file is written completely or not at all.

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
    """Checks that files can be written in a folder, even if the folder does not exist yet.

    Raises:
        ValueError: if the path is not a folder, or the folder is not writable.
    """
    try:
        nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        # Permissions do not show whether the file system accepts files, so a file is created.
        with tempfile.TemporaryFile(dir=nearest) as file:
            lock(file.fileno(), nearest)
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder} is not a writable folder ({error})") from error


def lock(descriptor: int, path: pathlib.Path, *, waits: bool = True) -> None:
    """Locks an open file or folder until it is closed or the process ends.

    Raises:
        BlockingIOError: if another process has the lock and `waits` is False.
        OSError: if the file system does not support locks. The error contains the path.
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
        folder: path of the folder. The block may delete the folder.
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
            continue  # another process deleted the folder between the two calls
        try:
            lock(descriptor, folder, waits=waits)
            if os.fstat(descriptor).st_nlink:  # no other process has deleted the folder
                try:
                    yield
                finally:
                    if os.fstat(descriptor).st_nlink:  # else another process owns this path
                        with contextlib.suppress(OSError):  # a folder that is not empty is kept
                            for path in (folder, *new[1:]):
                                path.rmdir()
                return
        except BlockingIOError as error:
            raise ValueError(f"{folder} is used by another process. Wait until it ends.") from error
        finally:
            os.close(descriptor)


def check_no_writer(root: pathlib.Path | None, *names: str) -> None:
    """Raises ValueError if another process has locked a folder of a run for writing.

    Commands call this function before they start TensorFlow, so that a second command on the same
    folder fails early. They lock the folder later. Raises OSError if the file system does not
    support locks.

    Args:
        root: the folder of the run; None to check nothing.
        *names: components of the folder's path, relative to `root`.
    """
    if root is not None and root.joinpath(*names).is_dir():
        with only_writer(root.joinpath(*names)):
            pass


@contextlib.contextmanager
def lease(path: pathlib.Path) -> Iterator[None]:
    """Protects a half-written file or folder from `remove_abandoned` while the block runs.

    The lease is a lock on the file or folder. The operating system releases it when this process
    ends. Leases also work between containers that share a volume. On a file system without locks
    there are no leases, and `remove_abandoned` deletes nothing.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def remove_abandoned(root: pathlib.Path) -> None:
    """Deletes half-written files and folders of killed processes below `root`; see `lease`."""
    for path in sorted(root.rglob(f"{_TEMPORARY}*")):
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            stack.callback(os.close, descriptor)
            lock(descriptor, path, waits=False)  # raises an error while the writer is running
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def temporary_name(path: pathlib.Path) -> pathlib.Path:
    """Returns a new path in the same folder, with a name that `remove_abandoned` recognizes."""
    return path.with_name(f"{_TEMPORARY}{path.name}-{secrets.token_hex(4)}")


def is_half_written(path: pathlib.Path) -> bool:
    """Whether a path, or a folder that contains it, has a name from `temporary_name`."""
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
    """Opens a file for writing. The file appears at `path` only when it is complete.

    Args:
        path: the final name; its folder must exist.
        private: whether to create the file with mode 0600. If False, `seal` records the digest of
            the file.

    Yields:
        A binary file with a temporary name. It is renamed when the block ends without an exception.

    Raises:
        OSError: if writing fails (disk full, no permission). The temporary file is deleted.
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
            error.filename = str(path)  # the error of a full disk contains no file name
        raise
    sync_folder(path.parent)
    if not private:
        seal(path)


@contextlib.contextmanager
def atomic_folder(path: pathlib.Path, *, replace: bool = True) -> Iterator[pathlib.Path]:
    """Creates a folder for the block to fill, which appears at `path` only when it is complete.

    Args:
        path: the final name; its parent must exist.
        replace: whether to replace an existing folder at `path` when the new one is complete.

    Yields:
        An empty folder with a temporary name. It is renamed when the block ends without an
        exception.

    Raises:
        FileExistsError: if `path` already exists and `replace` is False.
        OSError: if writing fails. In this case, an existing folder at `path` is unchanged.
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
    """Returns one SHA-256 of the names and contents of files, and of all files in folders."""
    digest = hashlib.sha256()
    for path in paths:
        files = sorted(file for file in path.rglob("*") if file.is_file()) or [path]
        for file in files:
            content = hashlib.sha256(file.read_bytes()).hexdigest()
            digest.update(f"{file.relative_to(path.parent).as_posix()}\0{content}\n".encode())
    return digest.hexdigest()


def file_digests(folder: pathlib.Path) -> dict[str, str]:
    """Maps the path of each file in a folder to its hexadecimal SHA-256, in order of the paths."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


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
    """Records the SHA-256 of a file, or of the files of a folder, in a run's `released/`.

    The digests are stored in `sensitive/`. With these digests, `pate audit run` finds files that
    other programs added to `released/`. Paths outside of `released/`, in a run without
    `sensitive/`, or in a half-written folder are ignored.
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
    """The folder of a run, which contains the folders `sensitive/` and `released/`.

    Attributes:
        root: the folder of the run.
    """

    root: pathlib.Path

    @property
    def sensitive(self) -> pathlib.Path:
        """Path `<root>/sensitive`. The folder is created with mode 0700 under any umask.

        Raises:
            ValueError: if the folder would be inside of a folder called `released`.
        """
        self._check_apart()
        return make_sensitive_folder(self.root / SENSITIVE)

    @property
    def teachers(self) -> pathlib.Path:
        """Path `<root>/sensitive/teachers`. The folder is not created and may not exist."""
        return self.root / SENSITIVE / "teachers"

    @property
    def released(self) -> pathlib.Path:
        """Path `<root>/released`. The folder is created with the default mode of new folders.

        Raises:
            ValueError: if the folder would contain `sensitive`.
        """
        self._check_apart()
        folder = self.root / RELEASED
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def check(
        self, *, files: Iterable[str] = (), folders: Iterable[str] = (SENSITIVE, RELEASED)
    ) -> None:
        """Checks that a run can write all its files. Test files are written and deleted.

        Args:
            files: files that will be written or replaced, relative to the root.
            folders: folders that will get files, relative to the root.

        Raises:
            ValueError: if a file exists where a folder is needed or the reverse, if a path is not
                writable, or if `sensitive` would be inside of `released`.
        """
        self._check_apart()
        for name in folders:
            check_can_hold_files(self.root / name)
        for name in files:
            path = self.root / name
            check_can_hold_files(path.parent)
            if path.is_dir():
                raise ValueError(f"{path} is a folder, but a file must be written here. Remove it.")

    def _check_apart(self) -> None:
        # Resolves symbolic links, because a link could place one folder inside of the other.
        try:
            closed = (self.root / SENSITIVE).resolve()
            released = (self.root / RELEASED).resolve()
            is_public = RELEASED in closed.parts
            is_same = released == closed or closed in released.parents
        except (OSError, RuntimeError) as error:  # for example, a symbolic link to itself
            raise ValueError(f"{self.root} can't be resolved: {error}") from error
        if is_public or is_same:
            raise ValueError(
                f"{self.root}: sensitive/ must not be inside a folder called released, and "
                "released/ must not be a link to sensitive/"
            )
        if (self.root / RELEASED).is_symlink():  # `pate audit run` does not follow links
            raise ValueError(f"{self.root / RELEASED} is a link. Replace it by a folder.")


def make_sensitive_folder(folder: pathlib.Path) -> pathlib.Path:
    """Creates `folder` and its parents if they do not exist, and sets mode 0700 for `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    os.chmod(folder, 0o700)
    return folder


def make_private(folder: pathlib.Path) -> None:
    """Removes the permissions of group and others from `folder` and everything below it.

    Call this function for files that other libraries wrote, because other users may be able to read
    them.
    """
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            with contextlib.suppress(FileNotFoundError):  # another process may rename a file
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
    """Returns a report row with the command that shows a folder in TensorBoard."""
    return "TensorBoard", f"tensorboard --logdir={folder}"


def next_version(folder: pathlib.Path) -> int:
    """Returns the number of the next version in `folder`, starting at 1."""
    return 1 + max((int(path.name) for path in folder.glob("*") if path.name.isdigit()), default=0)


def is_within(path: pathlib.Path, folder_name: str) -> bool:
    """Whether `path`, after links are resolved, is inside a folder with the given name."""
    return folder_name in path.resolve().parts[:-1]


# Files with text, JSON or arrays. Reading a file never runs code from it.


def write_text(path: pathlib.Path, text: str, *, private: bool = False) -> None:
    """Writes UTF-8 text, completely or not at all."""
    with atomic_file(path, private=private) as file:
        file.write(text.encode())


def write_json(path: pathlib.Path, value: Mapping[str, Any], *, private: bool = False) -> None:
    """Writes a JSON object, completely or not at all. Raises ValueError for NaN and infinity."""
    text = json.dumps(value, indent=2, allow_nan=False) + "\n"
    write_text(path, text, private=private)


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """Reads a JSON object.

    Raises:
        ValueError: if the file does not contain a JSON object, or if an object contains a key
            twice.
    """
    try:
        value = json.loads(path.read_text(), object_pairs_hook=object_of_pairs)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} must contain a JSON object, got {type(value).__name__}")
    return value


def object_of_pairs(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Returns a JSON object as a dict; raises ValueError if a key occurs twice."""
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
    """Writes an archive for `np.load`. Its bytes are the same in every version of Python."""
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
            arrays, so that it contains no comments, duplicate arrays or hidden bytes.

    Raises:
        ValueError: if the file is truncated, is not an `.npz` file, or lacks one of the named
            arrays; or if `is_exact` is True and the bytes differ.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in (archive.files if names is None else names)}
        content = io.BytesIO()
        if is_exact:
            _write_archive(content, arrays)
        if is_exact and content.getvalue() != path.read_bytes():
            raise ValueError("the file contains more than its arrays")
        return arrays
    except FileNotFoundError:
        raise
    except Exception as error:  # zipfile, NumPy and zlib raise different exceptions
        raise ValueError(f"{path} is not a complete .npz file") from error


def read_array(path: pathlib.Path) -> npt.NDArray[Any]:
    """Reads one array from a `.npy` file, or numbers from a `.csv` file.

    Each line of the `.csv` file is a row; a single column becomes a vector. A header line and a
    first column with row numbers are ignored, because pandas writes them by default.

    Raises:
        ValueError: if the file is truncated or has a different format.
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
                f"{path} must contain numbers separated by commas, the same number in each line"
            ) from None
        numbers = numbers[:, int(has_names and not names[0]) :]
        return numbers[:, 0] if numbers.shape[1] == 1 else numbers
    try:
        array = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise
    except Exception as error:  # NumPy raises several kinds
        raise ValueError(f"{path} is not a complete .npy file without Python objects") from error
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{path} must be a .npy file with one array, but it contains several")
    return array
