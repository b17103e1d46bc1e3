"""The paper's rows on UCI data, as a user runs them: `pytest -m long tests/test_appendix_c.py`."""

import json
import pathlib
import shutil

import pytest
from script_processes import run_script

pytestmark = pytest.mark.long


@pytest.fixture
def raw(shared_data, tmp_path) -> pathlib.Path:
    for name in ("adult", "diabetes"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for file in filter(pathlib.Path.is_file, (shared_data / "data" / name).iterdir()):
            shutil.copyfile(file, tmp_path / "data" / name / file.name)
    return tmp_path / "data"


def run_both(folder: pathlib.Path, dataset: str) -> tuple[dict, dict]:
    common = (f"--dataset=benchmarks.uci:{dataset}", "--nb_teachers=250", "--data_dir=data")
    for script, flags in (
        ("train_teachers.py", ("--model=random_forest", "--report_file=teachers.json")),
        (
            "train_student.py",
            (
                *("--queries=500", "--delta=1e-5"),
                *("--student=random_forest", "--report_file=student.json"),
            ),
        ),
    ):
        ended = run_script(script, *common, *flags, folder=folder)
        assert (ended.code, ended.err) == (0, "")
    reports = [
        json.loads((folder / f"{name}.json").read_text()) for name in ("teachers", "student")
    ]
    return reports[0], reports[1]


def test_adult(raw, tmp_path):
    teachers, student = run_both(tmp_path, "adult")
    assert 0.81 < teachers["teacher_accuracy_mean"] < 0.83
    assert student["student_majority_accuracy"] == pytest.approx(0.7629, abs=1e-4)
    # Over 20 draws of the noise the student had from 83.17 to 83.83 %, the labels 83.8 to 85.2 %.
    assert student["student_accuracy"] > 0.82
    assert student["label_accuracy"] > 0.81
    ended = run_script(
        "analysis.py",
        "--train_dir=runs/adult-250",
        "--bound=paper",
        "--moments=8",
        "--conversion=classic",
        "--release=none",
        "--report_file=analysis.json",
        folder=tmp_path,
    )
    assert ended.code == 0, ended.err
    (line,) = [line for line in ended.out.splitlines() if "data-dependent, paper" in line]
    assert float(line.split("paper")[1].split()[0]) <= 2.66  # the figure in the paper


def test_diabetes(raw, tmp_path):
    teachers, student = run_both(tmp_path, "diabetes")
    assert 0.53 < teachers["teacher_accuracy_mean"] < 0.55
    assert student["student_majority_accuracy"] < 0.54
    assert student["student_accuracy"] > 0.57
