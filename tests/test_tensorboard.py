import event_files

from pate_tf.core.tensorboard import write_result

RESULTS = {"result/accuracy": 0.75, "result/epsilon": 2.0}


def test_settings_and_results_stand_in_the_table(tmp_path):
    settings = {"steps": 20, "rate": 0.5, "model": "cnn", "deep": True, "shape": (8, 8)}
    write_result(tmp_path, settings, RESULTS)
    assert event_files.settings(tmp_path) == {**settings, "shape": "(8, 8)"}
    assert event_files.scalars(tmp_path) == {tag: [(0, value)] for tag, value in RESULTS.items()}


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
