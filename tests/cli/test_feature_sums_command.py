"""train_student.py --method=feature_sums as a user types it, without train_teachers.py
before it.
"""

import json
import pathlib
import re
import shutil

import pytest
from script_processes import Ended, learn_little, run_script

from pate_tf.accounting.charge import rounded_up
from pate_tf.teachers.run_folder import described_run

SUMS = ("train_student.py", "--method=feature_sums")
QUICK = ("--representation=raw", "--student=supervised", "--model=mlp", "--max_steps=50")
RUN = "runs/digits-feature_sums"


def assert_one_line(ended: Ended, told: str) -> None:
    assert ended.code in (1, 2, 3), ended.out
    assert ended.err.startswith("error: ") and ended.err.count("\n") == 1, ended.err
    assert told in ended.err, ended.err


@pytest.fixture(scope="module")
def digits(tmp_path_factory) -> tuple[pathlib.Path, Ended]:
    """Returns a folder with a finished run (don't write there), and its result."""
    folder = tmp_path_factory.mktemp("digits")
    ended = run_script(
        *SUMS, *QUICK, "--epsilon=16", "--report_file=r.json", folder=folder, setup=learn_little
    )
    assert ended.code == 0, ended.err
    return folder, ended


def test_a_run_without_teachers_reports_as_others_do(digits):
    folder, ended = digits
    report = json.loads((folder / "r.json").read_text())
    assert report["method"] == "feature_sums" and report["nb_teachers"] is None
    assert report["mechanism"]["name"] == "gaussian_feature_sums"
    assert 15.9 < report["epsilon_data_independent"] <= 16.0
    assert report["student_accuracy"] > 0.5 and report["label_accuracy"] > 0.5
    assert report["queries_answered"] == report["queries"] == 400
    for text in ("chosen from public values", "Plan for epsilon 16", "400 inputs of the pool"):
        assert text in ended.out
    run = folder / RUN
    page = (run / "released/privacy_statement.md").read_text()
    assert "sums" in page and "chosen from public values" in page
    assert [*run.glob("released/logs/**/events.*")]
    assert described_run(run).method == "feature_sums"


def test_one_release_has_one_epsilon_wherever_it_is_printed(digits, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(digits[0] / RUN, folder)
    file = "copy/released/privacy_statement.json"
    epsilon = rounded_up(json.loads((tmp_path / file).read_text())["epsilon"])
    for flags in (("--train_dir=copy",), ("--ledger=copy/sensitive", "--output_dir=copy")):
        ended = run_script("analysis.py", *flags, folder=tmp_path)
        assert ended.code == 0, ended.err
        assert {*re.findall(r"epsilon\S*(?: 0 ->| at most|,[ a-z-]*?)? +(\d\S*)", ended.out)} == {
            epsilon
        }
        assert "sanitised" not in ended.out and "1 queries" not in ended.out
    assert "1 releases of feature sums" in ended.out
    for flag in ("--train_dir=copy", "--ledger=copy/sensitive"):
        agreed = run_script("analysis.py", f"--statement={file}", flag, folder=tmp_path)
        assert agreed.code == 0 and "agrees with the ledger" in agreed.out
    before = sorted(folder.rglob("*"))
    alone = run_script("analysis.py", f"--statement={file}", folder=tmp_path)
    assert alone.code == 0 and "agrees with the ledger" in alone.out
    assert sorted(folder.rglob("*")) == before and not (tmp_path / "runs").exists()
    shutil.copy(tmp_path / file, tmp_path / "sent.json")
    nowhere = run_script("analysis.py", "--statement=sent.json", folder=tmp_path)
    assert_one_line(nowhere, "--statement: its run has no ledger. Pass --ledger or --train_dir")
    stated = (tmp_path / file).read_text()
    (tmp_path / file).write_text(re.sub(r'"epsilon": [\d.]+', '"epsilon": 6.0', stated))
    lies = run_script("analysis.py", f"--statement={file}", folder=tmp_path)
    assert lies.code == 1 and "agrees" not in lies.out


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (
            (*SUMS[1:], "--queries=100", "--epsilon=1"),
            "queries needs --method=pate, got --method=feature_sums",
        ),
        (
            (*SUMS[1:], "--mechanism=gaussian_histogram", "--epsilon=1"),
            "mechanism needs --method=pate",
        ),
        (SUMS[1:], "epsilon is required with method feature_sums"),
        ((*SUMS[1:], "--epsilon=1", "--public=x.csv"), "--private is required with --public"),
        (
            (f"--train_dir={RUN}", "--method=pate", "--queries=9"),
            "--method must be feature_sums in this run folder",
        ),
        ((f"--train_dir={RUN}", "--epsilon=1", "--dataset=mnist"), "dataset must be digits"),
        ((f"--train_dir={RUN}", "--epsilon=1", "--representation=patches"), "must be raw for"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_with_what_does(digits, flags, told):
    folder, _ = digits
    ended = run_script("train_student.py", *flags, folder=folder, setup=learn_little)
    assert_one_line(ended, told)
    assert not (folder / "runs/digits-9").exists()
