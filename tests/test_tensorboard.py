import dataclasses

import event_files
import numpy as np
import pytest

from pate_tf.core import event_files as tensorboard
from pate_tf.data.catalogue import DIGITS


def test_settings_and_results_stand_in_the_table(tmp_path):
    settings = {"steps": 20, "rate": 0.5, "model": "cnn", "deep": True, "shape": (8, 8)}
    tensorboard.write_result(tmp_path, settings, {"accuracy": 0.75, "epsilon": 2.0})
    assert event_files.settings(tmp_path) == {**settings, "shape": "(8, 8)"}
    assert event_files.scalars(tmp_path) == {"accuracy": [(0, 0.75)], "epsilon": [(0, 2.0)]}


def test_the_path_of_the_folder_is_not_told_and_rows_are_told_apart(tmp_path):
    trials = []
    for name in ("one", "two"):
        folder = tmp_path / name / "versions" / "1"
        tensorboard.write_result(folder, {"steps": 20}, {"accuracy": 0.75})
        trials.append(event_files.trial(folder))
        (file,) = folder.iterdir()
        assert b"versions" not in file.read_bytes()
        assert str(tmp_path).encode() not in file.read_bytes()
    assert trials[0] != trials[1]


def test_a_confusion_matrix_colours_what_was_taken_for_what():
    truth = np.repeat(np.arange(10), 10)
    right = tensorboard.confusion_picture(DIGITS, truth=truth, given=truth)
    assert right.dtype == np.uint8
    assert right.shape == (1, 480, 480, 3)
    wrong = tensorboard.confusion_picture(DIGITS, truth=truth, given=(truth + 5) % 10)
    blue = (8, 48, 107)  # the end of the map: all samples of a class
    for picture in (right, wrong):
        assert 0.03 < (picture[0] == blue).all(axis=-1).mean() < 0.1
    # The diagonal of one is where the other is white.
    assert not ((right == blue).all(axis=-1) & (wrong == blue).all(axis=-1)).any()


@pytest.mark.parametrize("num_classes", [2, 100])
def test_any_number_of_classes_and_an_absent_one_can_be_drawn(num_classes):
    dataset = dataclasses.replace(DIGITS, num_classes=num_classes, class_names=())
    labels = np.zeros(3, np.int64)
    picture = tensorboard.confusion_picture(dataset, truth=labels, given=labels)
    assert picture.shape == (1, 480, 480, 3)
    assert picture.std() > 0
