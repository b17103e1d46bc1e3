"""train_teachers.py as a user runs it: real processes, real files, real kills."""

import functools
import json
import pathlib
import random
import shutil
import signal
import time

import pytest
from script_processes import (
    MAX_STEPS,
    NUM_TEACHERS,
    Ended,
    die_at_rename,
    limit_file_size,
    run_fresh,
    run_script,
    save_all_the_time,
    start_script,
)

from pate_tf.core import artifacts

SCRIPT = "train_teachers.py"
SAME_RUN = (f"--nb_teachers={NUM_TEACHERS}", f"--max_steps={MAX_STEPS}", "--train_dir=run")


def teachers_folder(run: pathlib.Path) -> pathlib.Path:
    return run / "sensitive" / "teachers"


@functools.cache
def weights(run: pathlib.Path) -> str:
    """What distinguishes two ensembles, without the bytes of the SavedModel around it."""
    from pate_tf.teachers.kinds import load_ensemble

    return load_ensemble(teachers_folder(run) / "ensemble").digest


def assert_one_line(ended: Ended, code: int = 1) -> None:
    assert ended.code == code, ended.err[-2000:]
    assert ended.err.startswith("error: "), ended.err[-2000:]
    assert ended.err.count("\n") == 1, ended.err[-2000:]
    assert len(ended.err) < 1000
    assert "Traceback" not in ended.err


def assert_no_ensemble_and_nothing_released(run: pathlib.Path) -> None:
    assert not (teachers_folder(run) / "ensemble").exists()
    assert not (run / "released").exists()


def test_a_run_reports_what_the_issue_names(trained):
    folder, ended = trained
    report = json.loads((folder / "report.json").read_text())
    assert {"dataset", "nb_teachers", "teacher_accuracy_mean", "seconds"} <= report.keys()
    assert report["dataset"] == "digits"
    assert report["nb_teachers"] == NUM_TEACHERS
    assert 0.5 < report["teacher_accuracy_mean"] <= 1.0
    assert report["seconds"] > 0.0
    for text in ("Teachers", "digits", "mean teacher accuracy", str(folder)):
        assert text in ended.out
    assert f"{report['teacher_accuracy_mean']:.2%}" in ended.out
    assert ended.err == ""


def test_everything_is_sensitive_and_closed(trained):
    folder, _ = trained
    assert {path.name for path in folder.iterdir()} == {"sensitive", "report.json"}
    assert (folder / "sensitive").stat().st_mode & 0o777 == 0o700
    assert (folder / "report.json").stat().st_mode & 0o777 == 0o600
    assert list((folder / "sensitive" / "logs").rglob("*tfevents*"))


def test_the_partition_that_was_used_is_kept(trained):
    assignment = artifacts.read_arrays(teachers_folder(trained[0]) / "partition.npz")["assignment"]
    assert assignment.shape == (1200,)
    assert sorted({(assignment == teacher).sum() for teacher in range(NUM_TEACHERS)}) == [100]


def test_a_finished_run_is_not_done_again(trained, tmp_path):
    run = shutil.copytree(trained[0], tmp_path / "run")
    model = teachers_folder(run) / "ensemble" / "saved_model.pb"
    changed = model.stat().st_mtime_ns
    assert run_script(SCRIPT, *SAME_RUN, folder=tmp_path).code == 0
    assert model.stat().st_mtime_ns == changed
    assert weights(run) == weights(trained[0])


def test_teachers_trained_in_several_processes_are_the_same_ensemble(trained, tmp_path):
    first = run_script(SCRIPT, *SAME_RUN, "--teacher_id=4-11", folder=tmp_path)
    assert first.code == 0
    assert f"8 of {NUM_TEACHERS} trained" in first.out
    assert_no_ensemble_and_nothing_released(tmp_path / "run")
    assert run_script(SCRIPT, *SAME_RUN, folder=tmp_path).code == 0
    assert weights(tmp_path / "run") == weights(trained[0])


@pytest.mark.parametrize(
    "kills",
    [[0, 1, 3, 2, 5], pytest.param([0, 4, 7, 1, 3], marks=pytest.mark.long)],
    ids=str,
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


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.long) for n in (2, 3, 4))])
def test_killed_at_any_moment_it_ends_in_the_same_ensemble(trained, tmp_path, seed):
    moments = random.Random(seed)
    for _ in range(5):
        running = start_script(SCRIPT, *SAME_RUN, folder=tmp_path, setup=save_all_the_time)
        time.sleep(moments.uniform(0.2, 2.5))
        running.kill()
        assert running.wait().code in (-signal.SIGKILL, 0)
    ended = run_script(SCRIPT, *SAME_RUN, folder=tmp_path)
    assert ended.code == 0, ended.err[-2000:]
    assert weights(tmp_path / "run") == weights(trained[0])


def test_what_a_killed_run_left_half_written_is_cleared_away(tmp_path):
    killed = functools.partial(die_at_rename, 3, before=True)
    assert run_script(SCRIPT, *SAME_RUN, folder=tmp_path, setup=killed).code == -signal.SIGKILL
    assert list(tmp_path.rglob(".writing-*"))
    assert run_script(SCRIPT, *SAME_RUN, folder=tmp_path).code == 0
    assert list(tmp_path.rglob(".writing-*")) == []


def test_another_seed_is_another_ensemble_and_is_refused_in_the_same_folder(trained, tmp_path):
    ended = run_script(
        SCRIPT, *SAME_RUN[:2], "--seed=1", f"--train_dir={trained[0]}", folder=tmp_path
    )
    assert_one_line(ended)
    assert "seed (0 there, 1 now)" in ended.err


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--dataset=nosuch"], "dataset: expected one of"),
        (["--nb_teachers=1201"], "1200 records"),
        (["--teacher_id=100"], "teacher_id: expected teachers from 0 to 99"),
        (["--teacher_id=5-2"], "teacher_id: expected"),
        (["--teacher_id=x"], "teacher_id: expected"),
        (["--teacher_id=0-99999999999999999999"], "teacher_id: expected"),
        (["--model=nosuch"], "model: expected one of"),
        (["--model=nosuch:nosuch"], "model: can't import"),
        (["--deeper", "--model=cnn"], "expected --deeper or --model"),
        (["--nb_labels=9"], "nb_labels: digits has 10 classes, got 9"),
        (["--train_dir=a_file/run"], "a_file"),
        (["--train_dir=/proc/nosuch/run"], "/proc/nosuch"),
    ],
    ids=str,
)
def test_bad_input_is_one_line_and_exit_code_1(tmp_path, flags, told):
    (tmp_path / "a_file").write_text("no folder")
    ended = run_script(SCRIPT, "--max_steps=2", "--train_dir=run", *flags, folder=tmp_path)
    assert_one_line(ended)
    assert told in ended.err
    assert_no_ensemble_and_nothing_released(tmp_path / "run")


@pytest.mark.parametrize(
    "flags",
    [
        ["--nosuch=1"],
        ["--nb_teachers=0"],
        ["--deeper=perhaps"],
        ["--learning_rate=nan"],
        ["--max_steps=0"],
        ["--batch_size=-1"],
        ["--seed=2147483648"],
        ["mnist"],
    ],
    ids=str,
)
def test_bad_flags_are_one_line_and_exit_code_2(tmp_path, flags):
    ended = run_script(SCRIPT, "--train_dir=run", *flags, folder=tmp_path)
    assert_one_line(ended, 2)
    assert not (tmp_path / "run").exists()


def test_a_mistyped_model_does_not_spoil_the_folder(tmp_path):
    flags = ("--nb_teachers=2", "--max_steps=2", "--train_dir=run")
    assert_one_line(run_script(SCRIPT, *flags, "--model=nosuch", folder=tmp_path))
    assert run_script(SCRIPT, *flags, folder=tmp_path).code == 0


@pytest.mark.parametrize("path", ["run/released/report.json", "a_file/report.json"])
def test_a_report_that_can_not_be_written_is_told_before_the_work(tmp_path, path):
    (tmp_path / "a_file").write_text("no folder")
    ended = run_script(
        SCRIPT,
        *("--nb_teachers=2", "--max_steps=2", "--train_dir=run", f"--report_file={path}"),
        folder=tmp_path,
    )
    assert_one_line(ended)
    assert_no_ensemble_and_nothing_released(tmp_path / "run")


@pytest.mark.parametrize("damage", ["finished", "config"])
def test_damaged_files_of_an_earlier_run_are_one_line(tmp_path, damage):
    flags = ("--nb_teachers=2", "--max_steps=2", "--train_dir=run")
    assert run_script(SCRIPT, *flags, "--teacher_id=0", folder=tmp_path).code == 0
    (path,) = teachers_folder(tmp_path / "run").glob(f"{damage}*")
    path.write_bytes(path.read_bytes()[:-20])
    ended = run_script(SCRIPT, *flags, folder=tmp_path)
    assert_one_line(ended)
    assert path.name in ended.err


@pytest.mark.parametrize(
    "num_bytes", [30_000, *(pytest.param(n, marks=pytest.mark.long) for n in (4_096, 400_000))]
)
def test_a_full_disk_is_one_line_and_the_run_goes_on_later(trained, tmp_path, num_bytes):
    full = functools.partial(limit_file_size, num_bytes)
    ended = run_script(SCRIPT, *SAME_RUN, folder=tmp_path, setup=full)
    assert_one_line(ended)
    assert_no_ensemble_and_nothing_released(tmp_path / "run")
    assert list((tmp_path / "run").rglob(".writing-*")) == []
    ended = run_script(SCRIPT, *SAME_RUN, folder=tmp_path)
    assert ended.code == 0, ended.err[-2000:]
    assert weights(tmp_path / "run") == weights(trained[0])


def test_a_fresh_process_from_anywhere_is_as_quiet(tmp_path, repository, trained):
    # The whole way as a user goes it: no process forked, no environment set.
    ended = run_fresh(str(repository / SCRIPT), *SAME_RUN, folder=tmp_path)
    assert ended.code == 0, ended.err[-2000:]
    assert ended.err == ""
    assert weights(tmp_path / "run") == weights(trained[0])


def test_ctrl_c_is_one_line(tmp_path):
    running = start_script(SCRIPT, "--train_dir=run", "--max_steps=1000", folder=tmp_path)
    deadline = time.monotonic() + 60
    while not (tmp_path / "run").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(1.0)
    running.interrupt()
    ended = running.wait()
    assert_one_line(ended, 130)
