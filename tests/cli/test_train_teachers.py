"""train_teachers.py as a user runs it: real processes, real files, real kills."""

import functools
import pathlib
import random
import signal
import time

import pytest
from script_processes import (
    MAX_STEPS,
    NUM_TEACHERS,
    assert_one_line,
    die_at_rename,
    limit_file_size,
    run_script,
    save_all_the_time,
    start_script,
)

from pate_tf.core import artifacts

SCRIPT = "train_teachers.py"
OF_ANY_SEED = (f"--nb_teachers={NUM_TEACHERS}", f"--max_steps={MAX_STEPS}", "--model=mlp")
SAME_RUN = (*OF_ANY_SEED, "--train_dir=run")


def teachers_folder(run: pathlib.Path) -> pathlib.Path:
    return run / "sensitive" / "teachers"


@functools.cache
def weights(run: pathlib.Path) -> str:
    """Returns the difference between two ensembles, without the bytes of the surrounding
    SavedModel.
    """
    from pate_tf.teachers.teacher_kinds import load_ensemble

    return load_ensemble(teachers_folder(run) / "ensemble").digest


def assert_no_ensemble_and_nothing_released(run: pathlib.Path) -> None:
    assert not (teachers_folder(run) / "ensemble").exists()
    assert not (run / "released").exists()


def test_everything_is_sensitive_and_closed(trained):
    folder, _ = trained
    assert {path.name for path in folder.iterdir()} == {"sensitive", "report.json"}
    assert (folder / "sensitive").stat().st_mode & 0o777 == 0o700
    assert (folder / "report.json").stat().st_mode & 0o777 == 0o600
    assert list((folder / "sensitive" / "logs").rglob("*tfevents*"))


def test_teachers_trained_in_several_processes_are_the_same_ensemble(trained, tmp_path):
    first = run_script(SCRIPT, *SAME_RUN, "--teacher_id=4-11", folder=tmp_path)
    assert first.code == 0
    assert f"8 of {NUM_TEACHERS} trained" in first.out
    assert_no_ensemble_and_nothing_released(tmp_path / "run")
    assert run_script(SCRIPT, *SAME_RUN, folder=tmp_path).code == 0
    assert weights(tmp_path / "run") == weights(trained[0])


@pytest.mark.parametrize(
    "kills", [[0, 1, 3, 2, 5], pytest.param([0, 4, 7, 1, 3], marks=pytest.mark.long)], ids=str
)
def test_killed_at_its_renames_it_ends_in_the_same_ensemble(trained, tmp_path, kills):
    # Every start is killed at a later or earlier rename, before or after it.
    for turn, number in enumerate(kills):
        setup = functools.partial(die_at_rename, number, before=turn % 2 == 0)
        ended = run_script(SCRIPT, *SAME_RUN, folder=tmp_path, setup=setup)
        assert ended.code == -signal.SIGKILL, ended.err[-2000:]
    ended = run_script(SCRIPT, *SAME_RUN, folder=tmp_path, setup=save_all_the_time)
    assert ended.code == 0, ended.err[-2000:]
    assert weights(tmp_path / "run") == weights(trained[0])


@pytest.mark.parametrize("runs", [2, pytest.param(20, marks=pytest.mark.long)])
def test_killed_at_random_and_on_a_full_disk_it_ends_in_the_same_ensemble(trained, tmp_path, runs):
    generator = random.Random(runs)
    for number in range(runs):
        folder = tmp_path / str(number)
        folder.mkdir()
        running = start_script(SCRIPT, *SAME_RUN, folder=folder, setup=save_all_the_time)
        time.sleep(generator.uniform(0.0, 2.0))
        running.kill()
        assert running.wait().code in (0, -signal.SIGKILL)  # it may have been done
        full = functools.partial(limit_file_size, generator.choice([1_000, 20_000, 200_000]))
        ended = run_script(SCRIPT, *SAME_RUN, folder=folder, setup=full)
        if ended.code:  # it may have found finished teachers, and warns
            assert ended.code == 1 and ended.err.splitlines()[-1].startswith("error: "), ended.err
        for path in folder.rglob("[!.]*.npz"):
            artifacts.read_arrays(path)
        if not (teachers_folder(folder / "run") / "ensemble").exists():
            ended = run_script(SCRIPT, *SAME_RUN, folder=folder)
            assert ended.code == 0, ended.err[-2000:]
        assert weights(folder / "run") == weights(trained[0])
        assert list(folder.rglob(".writing-*")) == []


def test_another_seed_is_another_ensemble_and_is_refused_in_the_same_folder(trained, tmp_path):
    ended = run_script(
        SCRIPT, *OF_ANY_SEED, "--seed=1", f"--train_dir={trained[0]}", folder=tmp_path
    )
    assert_one_line(ended)
    assert "with other settings: seed" in ended.err


def test_ctrl_c_is_one_line(tmp_path):
    running = start_script(SCRIPT, "--train_dir=run", "--max_steps=1000", folder=tmp_path)
    deadline = time.monotonic() + 60
    while not (tmp_path / "run").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(1.0)
    running.interrupt()
    ended = running.wait()
    assert_one_line(ended, 130)
