"""The two halves of a run on disk, and what lies in them."""

import contextlib
import dataclasses
import os
import pathlib
import secrets
from collections.abc import Iterable

from pate_tf.artifacts.atomic import check_can_hold_files

SENSITIVE = "sensitive"
RELEASED = "released"
NEUTRAL_HOST = "host"


@dataclasses.dataclass(frozen=True)
class RunDirectory:
    """The two halves of a run on disk.

    Attributes:
      root: the folder of the run.
    """

    root: pathlib.Path

    @property
    def sensitive(self) -> pathlib.Path:
        """`<root>/sensitive`, created with mode 0700, whatever the umask.

        Raises:
          ValueError: if it would lie in what may be published.
        """
        self._check_apart()
        return make_sensitive_folder(self.root / SENSITIVE)

    @property
    def teachers(self) -> pathlib.Path:
        """`<root>/sensitive/teachers`, there or not: whoever only looks creates nothing."""
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
        sensitive, released = self.root / SENSITIVE, self.root / RELEASED
        try:
            closed, open_ = sensitive.resolve(), released.resolve()
            is_public = RELEASED in closed.parts
            is_same = open_ == closed or closed in open_.parents
        except (OSError, RuntimeError) as error:  # a loop of links
            raise ValueError(f"{self.root}: expected a folder, got {error}") from error
        if is_public or is_same:
            raise ValueError(
                f"{self.root}: expected a run folder whose sensitive/ lies outside of every folder "
                f"called released, and whose released/ is no link to sensitive/, got another"
            )


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
        _, _, _, seconds, *rest = path.name.split(".")
        if not path.name.startswith(f"events.out.tfevents.{seconds}.{NEUTRAL_HOST}."):
            suffix = ".v2" if rest and rest[-1] == "v2" else ""
            name = f"events.out.tfevents.{seconds}.{NEUTRAL_HOST}.{secrets.token_hex(4)}{suffix}"
            os.replace(path, path.with_name(name))


def is_within(path: pathlib.Path, folder_name: str) -> bool:
    """Whether `path`, links resolved, lies in a folder of the given name."""
    return folder_name in path.resolve().parts[:-1]
