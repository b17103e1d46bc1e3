import event_files
import numpy as np
import pytest
from script_processes import MAX_STEPS, NUM_TEACHERS

from pate_tf.core import artifacts
from pate_tf.teachers import teacher_training as logs

PERCENTILES = list(logs.PERCENTILES)


def test_a_run_shows_progress_losses_accuracies_and_settings(trained):
    folder = logs.logs_of(artifacts.RunDirectory(trained[0]))
    whole = event_files.scalars(folder)
    assert whole["progress/teachers_done"][-1] == (NUM_TEACHERS, NUM_TEACHERS)
    assert all(0.0 < speed < 10_000.0 for _, speed in whole["progress/teachers_per_second"])
    of_each = [event_files.scalars(folder / name) for name in PERCENTILES]
    losses = np.array([[value for _, value in found["loss"]] for found in of_each])
    assert losses.shape == (5, MAX_STEPS)
    assert (np.diff(losses, axis=0) >= 0.0).all()
    assert losses[2, -1] < losses[2, 0]
    assert [step for step, _ in of_each[0]["loss"]] == list(range(1, MAX_STEPS + 1))
    steps, values = zip(*whole["accuracy/by_percentile"], strict=True)
    assert steps == tuple(range(101))
    assert list(values) == sorted(values)
    assert 0.2 < values[0] < values[-1] <= 1.0
    assert whole["result/lowest_accuracy"] == [(0, values[0])]
    assert whole["result/highest_accuracy"] == [(0, values[-1])]
    assert values[0] < whole["result/mean_accuracy"][0][1] < values[-1]
    found = event_files.settings(folder)
    assert found["num_teachers"] == NUM_TEACHERS
    assert found["max_steps"] == MAX_STEPS
    assert found["dataset"] == "digits"


def test_everything_lies_in_a_closed_folder(trained):
    run = trained[0]
    assert (run / "sensitive" / "logs").stat().st_mode & 0o777 == 0o700
    assert {path.relative_to(run).parts[0] for path in run.rglob("*tfevents*")} == {"sensitive"}


def test_throughput_counts_those_done_before_and_waits_between_writes(tmp_path, monkeypatch):
    run = artifacts.RunDirectory(tmp_path)
    now = 100.0
    monkeypatch.setattr(logs.time, "monotonic", lambda: now)
    with logs.throughput(run, 10) as done:
        for seconds, count in ((0.5, 1), (1.5, 2), (0.1, 1)):
            now += seconds
            done(count)
    written = event_files.scalars(logs.logs_of(run))
    assert written["progress/teachers_done"] == [(13, 13.0), (14, 14.0)]
    assert [value for _, value in written["progress/teachers_per_second"]] == pytest.approx(
        [1.5, 10.0]
    )


def test_a_run_without_new_teachers_writes_no_speed(tmp_path):
    run = artifacts.RunDirectory(tmp_path)
    with logs.throughput(run, 10):
        pass
    assert event_files.scalars(logs.logs_of(run)) == {}


@pytest.mark.filterwarnings("error")
def test_losses_that_are_not_finite_are_left_out_without_a_word(tmp_path):
    run = artifacts.RunDirectory(tmp_path)
    losses = [[3.0, np.nan, np.inf, 1.0], [5.0, 4.0, np.nan], []]
    logs.write_losses(run, [np.array(each, np.float32) for each in losses])
    written = event_files.scalars(logs.logs_of(run) / "highest")
    assert written["loss"] == [(1, 5.0), (2, 4.0), (4, 1.0)]
