import event_files
import numpy as np
import pytest
from script_processes import MAX_STEPS, NUM_TEACHERS

from pate_tf.core import artifacts
from pate_tf.teachers import logs

PERCENTILES = list(logs.PERCENTILES)


def test_a_run_shows_progress_losses_accuracies_and_settings(trained):
    folder = logs.logs_of(artifacts.RunDirectory(trained[0]))
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    whole = event_files.scalars(folder)
    assert whole["progress/teachers_done"][-1] == (NUM_TEACHERS, NUM_TEACHERS)
    of_each = [event_files.scalars(folder / name) for name in PERCENTILES]
    losses = np.array([[value for _, value in scalars["loss"]] for scalars in of_each])
    assert losses.shape == (5, MAX_STEPS)
    assert (np.diff(losses, axis=0) >= 0.0).all()
    assert losses[2, -1] < losses[2, 0]
    steps, values = zip(*whole["accuracy/by_percentile"], strict=True)
    assert steps == tuple(range(101)) and list(values) == sorted(values)
    assert values[0] < whole["result/mean_accuracy"][0][1] < values[-1]
    settings = event_files.settings(folder)
    assert (settings["num_teachers"], settings["dataset"]) == (NUM_TEACHERS, "digits")


@pytest.mark.filterwarnings("error")
def test_losses_that_are_not_finite_are_left_out_without_a_word(tmp_path):
    run = artifacts.RunDirectory(tmp_path)
    losses = [[3.0, np.nan, np.inf, 1.0], [5.0, 4.0, np.nan], []]
    logs.write_losses(run, [np.array(each, np.float32) for each in losses])
    written = event_files.scalars(logs.logs_of(run) / "highest")
    assert written["loss"] == [(1, 5.0), (2, 4.0), (4, 1.0)]
