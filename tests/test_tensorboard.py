import event_files
import keras
import numpy as np
import pytest
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


def test_an_interrupted_training_does_not_suppress_later_rows(tmp_path):
    def interrupt(batch, logs):
        if batch == 1:
            raise KeyboardInterrupt

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(loss="mse")
    logs = keras.callbacks.TensorBoard(tmp_path / "logs", update_freq=10)
    inputs = np.zeros((64, 2))
    with tf.summary.record_if(True):  # other tests must not see what `fit` leaves
        with pytest.raises(KeyboardInterrupt):
            interruption = keras.callbacks.LambdaCallback(on_train_batch_end=interrupt)
            model.fit(inputs, inputs[:, :1], callbacks=[logs, interruption], verbose=0)
        write_result(tmp_path / "row", {"steps": 20}, RESULTS)
    assert set(event_files.scalars(tmp_path / "row")) == set(RESULTS)
    assert event_files.settings(tmp_path / "row") == {"steps": 20}
