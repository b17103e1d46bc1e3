import event_files
import numpy as np
import pytest
from script_processes import MAX_STEPS, NUM_TEACHERS

from pate_tf.core import artifacts
from pate_tf.teachers import teacher_set

PERCENTILES = list(teacher_set.PERCENTILES)


def test_a_run_shows_progress_losses_accuracies_and_settings(trained):
    folder = teacher_set.logs_of(artifacts.RunDirectory(trained[0]))
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    whole = event_files.scalars(folder)
    assert whole["progress/teachers_done"][-1] == (NUM_TEACHERS, NUM_TEACHERS)
    of_each = [event_files.scalars(folder / name) for name in PERCENTILES]
    losses = np.array([[value for _, value in scalars["loss"]] for scalars in of_each])
    accuracies = np.array([[value for _, value in scalars["accuracy"]] for scalars in of_each])
    assert losses.shape == accuracies.shape == (5, MAX_STEPS)
    assert (np.diff([losses, accuracies], axis=1) >= 0.0).all()
    assert losses[2, -1] < losses[2, 0] and accuracies[2, -1] > accuracies[2, 0]
    report = artifacts.read_json(trained[0] / "sensitive" / teacher_set.REPORT)
    assert whole["result/mean_accuracy"] == [(0, pytest.approx(report["teacher_accuracy_mean"]))]
    settings = event_files.settings(folder)
    assert (settings["num_teachers"], settings["dataset"]) == (NUM_TEACHERS, "digits")
