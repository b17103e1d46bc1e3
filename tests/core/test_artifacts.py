import concurrent.futures
import functools
import os
import pathlib
import signal
import stat
import time

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from script_processes import start

from pate_tf.core import artifacts


def mode(path: pathlib.Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def open_umask():
    previous = os.umask(0)
    yield
    os.umask(previous)


@pytest.mark.parametrize("error", [ValueError, OSError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("kind", ["file", "folder"])
@pytest.mark.parametrize("old", [None, "old"])
def test_a_failed_write_leaves_the_old_or_nothing(tmp_path, error, kind, old):
    path = tmp_path / "target"
    content = path if kind == "file" else path / "file"
    if old is not None:
        content.parent.mkdir(exist_ok=True)
        content.write_text(old)
    with pytest.raises(error), getattr(artifacts, f"atomic_{kind}")(path) as opened:
        write = opened.write if kind == "file" else (opened / "file").write_bytes
        write(b"half of the new con")
        raise error
    assert os.listdir(tmp_path) == ([] if old is None else ["target"])
    assert old is None or content.read_text() == old


def write_until_killed(kind, path):
    with getattr(artifacts, f"atomic_{kind}")(path) as opened:
        write = opened.write if kind == "file" else (opened / "file").write_bytes
        write(b"new" * 100_000)
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("kind", ["file", "folder"])
@pytest.mark.parametrize("old", [None, "old"])
def test_a_killed_process_leaves_the_old_or_nothing(tmp_path, kind, old):
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "target"
    if old is not None:
        artifacts.write_text(path, old)
        if kind == "folder":
            path.unlink()
            path.mkdir()
            artifacts.write_text(path / "file", old)
    writing = functools.partial(write_until_killed, kind, path)
    assert start(writing, folder=tmp_path).wait().code == -signal.SIGKILL
    assert path.exists() == (old is not None)
    if old is not None:
        assert (path if kind == "file" else path / "file").read_text() == old
    # Leftovers of the killed process are recognized and removed, and nothing else is.
    leftovers = [entry for entry in folder.iterdir() if entry != path]
    assert leftovers
    artifacts.remove_abandoned(folder)
    assert list(folder.iterdir()) == ([] if old is None else [path])


def test_sensitive_folders_and_files_are_for_the_owner_alone(tmp_path, open_umask):
    run = artifacts.RunDirectory(tmp_path / "new" / "run")
    assert run.sensitive == tmp_path / "new" / "run" / "sensitive"
    assert mode(run.sensitive) == 0o700
    os.chmod(run.sensitive, 0o777)
    assert mode(run.sensitive) == 0o700
    deeper = artifacts.make_sensitive_folder(run.sensitive / "a" / "b")
    assert mode(deeper) == 0o700
    with artifacts.atomic_file(run.sensitive / "file", private=True) as file:
        assert [mode(path) for path in run.sensitive.iterdir() if path.is_file()] == [0o600]
        file.write(b"secret")
    artifacts.write_json(run.sensitive / "a.json", {}, private=True)
    artifacts.write_text(run.sensitive / "a.txt", "", private=True)
    artifacts.write_arrays(run.sensitive / "a.npz", {}, private=True)
    for name in ("file", "a.json", "a.txt", "a.npz"):
        assert mode(run.sensitive / name) == 0o600


def test_arrays_are_never_pickled(tmp_path):
    with pytest.raises(ValueError):
        artifacts.write_arrays(tmp_path / "a.npz", {"a": np.array([object()], dtype=object)})
    assert os.listdir(tmp_path) == []
    np.savez(tmp_path / "evil.npz", a=np.array([{}], dtype=object))
    np.save(tmp_path / "evil.npy", np.array([{}], dtype=object))
    with pytest.raises(ValueError, match=r"evil.npz is not"):
        artifacts.read_arrays(tmp_path / "evil.npz")
    with pytest.raises(ValueError, match=r"evil.npy is not"):
        artifacts.read_array(tmp_path / "evil.npy")


@pytest.mark.parametrize("kept", [0.0, 0.01, 0.3, 0.6, 0.95, 0.999])
@pytest.mark.parametrize("suffix", ["npz", "npy"])
def test_truncated_arrays_are_one_clear_line(tmp_path, suffix, kept):
    path = tmp_path / f"a.{suffix}"
    array = np.arange(1000)
    np.savez(path, a=array, b=array) if suffix == "npz" else np.save(path, array)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(kept * len(whole))])
    read = artifacts.read_arrays if suffix == "npz" else artifacts.read_array
    with pytest.raises(ValueError, match=f"a.{suffix} is not") as caught:
        read(path)
    assert "\n" not in str(caught.value)


@given(position=st.integers(0, 10**6), flipped=st.integers(1, 255))
def test_a_flipped_byte_never_changes_arrays_unnoticed(tmp_path_factory, position, flipped):
    path = tmp_path_factory.mktemp("flipped") / "a.npz"
    array = np.arange(100)
    np.savez(path, a=array)
    content = bytearray(path.read_bytes())
    content[position % len(content)] ^= flipped
    path.write_bytes(content)
    try:
        arrays = artifacts.read_arrays(path)
    except ValueError as error:
        assert "\n" not in str(error)
    else:
        for read in arrays.values():
            np.testing.assert_array_equal(read, array)


@given(hnp.arrays(np.int64, (3, 4)), st.integers(0, 11))
def test_a_digest_knows_content_type_and_shape(array, position):
    changed = array.copy()
    changed.flat[position] ^= 1
    others = [
        changed,
        array.reshape(4, 3),
        array.reshape(12),
        array.view(np.uint64),
        array.view(np.float64),
        array[:2],
    ]
    digests = {artifacts.digest_array(other) for other in others}
    assert len(digests) == len(others)
    assert artifacts.digest_array(array) not in digests
    assert artifacts.digest_array(np.asfortranarray(array)) == artifacts.digest_array(array)
    assert artifacts.digest_array(array.copy()) == artifacts.digest_array(array)


def test_a_folder_is_durable_with_all_its_parts_before_it_appears(tmp_path, monkeypatch):
    synced = set()

    def remember(descriptor: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{descriptor}"))

    monkeypatch.setattr(os, "fsync", remember)
    with artifacts.atomic_folder(tmp_path / "whole") as folder:
        (folder / "variables").mkdir()
        (folder / "variables" / "data").write_text("d")
        (folder / "model").write_text("m")
        parts = {str(part) for part in (folder, *folder.rglob("*"))}
    assert parts <= synced
    assert str(tmp_path) in synced


def test_those_who_wait_for_a_folder_work_in_it_one_at_a_time(tmp_path):
    """Each process deletes the folder at the end, like a process that learns a representation."""
    inside, most = [], []

    def work(number):
        for _ in range(20):
            with artifacts.only_writer(tmp_path / "shared", waits=True):
                inside.append(number)
                most.append(len(inside))
                time.sleep(0.001)
                inside.remove(number)
                (tmp_path / "shared").rmdir()

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert (max(most), len(most)) == (1, 160)
    with pytest.raises(FileNotFoundError), artifacts.only_writer(tmp_path / "shared", waits=True):
        (tmp_path / "nothing").read_bytes()
