"""Prepares the folder of a case before its command runs."""

import os
import pathlib
from collections.abc import Sequence

import numpy as np
from script_processes import run_script


def files(folder: pathlib.Path, names: Sequence[str]) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("something else")


def link_sensitive_to_released(folder: pathlib.Path) -> None:
    (folder / "linked" / "released").mkdir(parents=True)
    os.symlink("released", folder / "linked" / "sensitive")


def link_released_to_sensitive(folder: pathlib.Path) -> None:
    (folder / "linked" / "sensitive").mkdir(parents=True)
    os.symlink("sensitive", folder / "linked" / "released")


def link_released_elsewhere(folder: pathlib.Path) -> None:
    (folder / "linked").mkdir()
    os.symlink(folder / "nowhere", folder / "linked" / "released")


def loop_of_links(folder: pathlib.Path) -> None:
    os.symlink("loop", folder / "loop")


def array(folder: pathlib.Path, *, name: str, length: int) -> None:
    np.save(folder / name, np.arange(length))


def votes(folder: pathlib.Path) -> None:
    np.save(folder / "votes.npy", np.random.default_rng(0).integers(0, 10, (30, 50)))


def votes_and_files(folder: pathlib.Path, names: Sequence[str]) -> None:
    votes(folder)
    files(folder, names)


def with_labels(folder: pathlib.Path) -> None:
    """Releases ten labels of the ensemble in `run`."""
    ended = run_script(
        "train_student.py",
        *("--teachers_dir=run", "--train_dir=run", "--queries=10", "--max_steps=5"),
        *("--lap_scale=5", "--insecure_seed=1", "--model=mlp"),
        folder=folder,
    )
    assert ended.code == 0, ended.err
