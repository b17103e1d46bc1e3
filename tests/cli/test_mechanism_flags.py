"""`--mechanism` and its parameters come from the registry, and invalid combinations are refused."""

import json
import shutil

import pytest
from script_processes import NUM_TEACHERS, run_script
from toy_mechanisms import register_toys

HERE = (
    f"--nb_teachers={NUM_TEACHERS}",
    "--student=random_forest",
    "--teachers_dir=run",
    "--queries=20",
    "--report_file=report.json",
)


@pytest.fixture
def teachers(trained, tmp_path):
    """Returns a folder with custom teachers in `run`, and no ledger yet."""
    shutil.copytree(trained[0], tmp_path / "run")
    return tmp_path


def report_of(folder):
    return json.loads((folder / "report.json").read_text())


def test_a_student_of_queries_that_teachers_agree_on(teachers):
    flags = ("--mechanism=confident_gaussian_noisy_max", "--threshold=9", "--sigma_threshold=1")
    ended = run_script("train_student.py", *HERE, *flags, "--sigma=1", folder=teachers)
    assert ended.code == 0, ended.err
    report = report_of(teachers)
    assert report["mechanism"] == {
        "name": "confident_gaussian_noisy_max",
        "threshold": 9.0,
        "sigma_threshold": 1.0,
        "sigma": 1.0,
    }
    assert 0 < report["queries_answered"] <= report["queries"] == 20
    page = (teachers / "run/released/privacy_statement.md").read_text()
    assert "reaches 9 votes, and it is charged in both cases" in page
    assert "in each of 20 queries" in page
    assert f"{report['queries_answered']} inputs of the public pool" in page


def test_a_toy_labels_and_is_stated(teachers):
    flags = ("--mechanism=toy_noisy_max", "--toy_eps=2")
    ended = run_script("train_student.py", *HERE, *flags, folder=teachers, setup=register_toys)
    assert ended.code == 0, ended.err
    report = report_of(teachers)
    assert report["mechanism"] == {"name": "toy_noisy_max", "epsilon": 2.0}
    assert 0.0 < report["epsilon_data_independent"] <= 40.0
    page = (teachers / "run/released/privacy_statement.md").read_text()
    assert "Toy noise of epsilon 2 is added" in page
    # The ledger knows the mechanism if the program does.
    ended = run_script("analysis.py", "--train_dir=run", folder=teachers, setup=register_toys)
    assert ended.code == 0, ended.err
    assert (
        "20 queries of toy_noisy_max, epsilon 2"
        in run_script(
            "analysis.py", "--ledger=run/sensitive", folder=teachers, setup=register_toys
        ).out
    )
    unknown = run_script("analysis.py", "--train_dir=run", folder=teachers)
    assert unknown.code == 3 and "Import the module that defines it" in unknown.err
