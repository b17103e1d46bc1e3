import event_files
import tensorflow as tf

from pate_tf.core.tensorboard import write_result

RESULTS = {"result/accuracy": 0.75, "result/epsilon": 2.0}


def test_the_path_of_the_folder_is_not_told_and_rows_are_told_apart(tmp_path):
    trials = []
    for name in ("one", "two"):
        folder = tmp_path / name / "versions" / "1"
        write_result(folder, {"steps": 20}, RESULTS)
        trials.append(event_files.trial(folder))
        (file,) = folder.iterdir()
        assert b"versions" not in file.read_bytes()
        assert str(tmp_path).encode() not in file.read_bytes()
    assert trials[0] != trials[1]


def test_a_condition_that_an_interrupted_training_left_does_not_suppress_rows(tmp_path):
    with tf.summary.record_if(False):
        write_result(tmp_path, {"steps": 20}, RESULTS)
    assert set(event_files.scalars(tmp_path)) == set(RESULTS)
    assert event_files.settings(tmp_path) == {"steps": 20}
