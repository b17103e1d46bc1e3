"""The recommended commands as a user types them."""

import json
import os

from script_processes import learn_little, run_script


def test_teachers_on_features_and_their_student(tmp_path):
    ended = run_script(
        "train_teachers.py",
        "--model=ridge",
        "--representation=raw",
        "--train_dir=run",
        "--report_file=t.json",
        folder=tmp_path,
    )
    assert ended.code == 0, ended.err
    assert "40 teachers, as recommended: 30 records for each" in ended.out
    report = json.loads((tmp_path / "t.json").read_text())
    assert (report["nb_teachers"], report["representation"]) == (40, "raw")
    assert report["teacher_accuracy_mean"] > 0.6
    ended = run_script(
        "train_student.py",
        "--teachers_dir=run",
        "--queries=60",
        "--query_strategy=diverse",
        "--mechanism=gaussian_histogram",
        "--sigma=3",
        "--max_steps=100",
        "--report_file=s.json",
        folder=tmp_path,
        setup=learn_little,
    )
    assert ended.code == 0, ended.err
    report = json.loads((tmp_path / "s.json").read_text())
    assert report["label_accuracy"] > 0.8


def features_learn_little() -> None:
    """A setup: so does what is learnt from the pool, and no other test takes it up."""
    learn_little()
    from pate_tf.representations import contrastive

    contrastive.STEPS = 20
    os.environ["PATE_TF_CACHE"] = "cache"


def test_the_default_of_images_is_ridge_on_both_representations(tmp_path):
    ended = run_script(
        *("train_teachers.py", "--nb_teachers=60", "--train_dir=run", "--report_file=t.json"),
        folder=tmp_path,
        setup=features_learn_little,
    )
    assert ended.code == 0, ended.err
    assert "Teachers of ridge, on contrastive+patches features of the pool" in ended.out
    report = json.loads((tmp_path / "t.json").read_text())
    assert (report["model"], report["representation"]) == ("ridge", "contrastive+patches")
    assert report["teacher_accuracy_mean"] > 0.4
    ended = run_script(
        *("train_student.py", "--train_dir=run", "--query_strategy=medoids", "--epsilon=8"),
        *("--student=supervised", "--max_steps=100", "--report_file=s.json"),
        folder=tmp_path,
        setup=features_learn_little,
    )
    assert ended.code == 0, ended.err
    report = json.loads((tmp_path / "s.json").read_text())
    assert report["mechanism"] == report["plan"]["candidates"][0]["mechanism"]
    assert report["epsilon_data_independent"] <= 8.0
    assert report["student_accuracy"] > 0.5, report
    learnt = [path.stem.split("-")[0] for path in (tmp_path / "cache/representations").iterdir()]
    assert learnt == ["digits"] * 2
