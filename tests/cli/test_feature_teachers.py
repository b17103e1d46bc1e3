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


def test_a_representation_that_does_not_fit_is_refused_before_anything_is_done(tmp_path):
    ended = run_script(
        "train_teachers.py",
        "--model=cnn",
        "--representation=raw",
        "--train_dir=run",
        folder=tmp_path,
    )
    assert ended.code == 1
    assert ended.err.startswith("error: representation: expected with ridge")
    assert not (tmp_path / "run").exists()


def features_learn_little() -> None:
    """A setup: so does what is learnt from the pool, and nobody else takes it up."""
    learn_little()
    from pate_tf.representations import contrastive

    contrastive.STEPS = 20
    os.environ["PATE_TF_CACHE"] = "cache"


def test_by_default_both_representations_of_images_are_learnt_from_and_looked_at(tmp_path):
    ended = run_script(
        "train_teachers.py",
        "--model=ridge",
        "--nb_teachers=60",
        "--train_dir=run",
        "--report_file=t.json",
        folder=tmp_path,
        setup=features_learn_little,
    )
    assert ended.code == 0, ended.err
    report = json.loads((tmp_path / "t.json").read_text())
    assert report["representation"] == "contrastive+patches"
    assert report["teacher_accuracy_mean"] > 0.4
    # Each method by its name, none is switched.
    for flags, expected in (
        (["--method=feature_sums"], "class_sums"),
        (["--query_strategy=medoids"], "stability_gate_or_histogram"),
    ):
        ended = run_script(
            "train_student.py",
            "--teachers_dir=run",
            "--epsilon=8",
            "--max_steps=100",
            "--report_file=s.json",
            *flags,
            folder=tmp_path,
            setup=features_learn_little,
        )
        assert ended.code == 0, ended.err
        report = json.loads((tmp_path / "s.json").read_text())
        assert report["plan"]["candidates"][0]["mechanism"]["name"] == expected
        assert report["mechanism"]["name"] == expected
        assert report["epsilon_worst_case"] <= 8.0
        assert report["student_accuracy"] > 0.5, report
    assert report["epsilon_ensemble"] < 24.0
    for flags, told in (
        ((), "error: epsilon: expected a number with method feature_sums"),
        (("--epsilon=8", "--queries=9"), "error: queries: expected none with method feature_sums"),
        (("--epsilon=8", "--sigma=9"), "error: sigma: expected without --epsilon"),
    ):
        ended = run_script(
            "train_student.py",
            "--teachers_dir=run",
            "--method=feature_sums",
            *flags,
            folder=tmp_path,
            setup=features_learn_little,
        )
        assert ended.code in (1, 2) and told in ended.err and "Traceback" not in ended.err
    learnt = {path.stem.split("-")[0] for path in (tmp_path / "cache/representations").iterdir()}
    assert learnt == {"digits"} and len(list((tmp_path / "cache/representations").iterdir())) == 2
