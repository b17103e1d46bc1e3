"""train_student.py as a user runs it: real processes on a small trained ensemble."""

import dataclasses
import functools
import json
import os
import pathlib
import shutil
import signal
import socket

import event_files
import numpy as np
import pytest
from script_processes import (
    NUM_TEACHERS,
    Ended,
    assert_one_line,
    forbid_private_data,
    limit_file_size,
    run_fresh,
    run_script,
)

from pate_tf.accounting.charge import rounded_up
from pate_tf.core import artifacts
from pate_tf.core.tensorboard import TAGS
from pate_tf.ledger import Ledger
from pate_tf.ledger.ledger_file import FAULT_VARIABLE

SCRIPT = "train_student.py"
OF_ALL = (f"--nb_teachers={NUM_TEACHERS}", "--teachers_dir=run", "--queries=30")
FOREST = ("--student=random_forest",)
HERE = (*OF_ALL, *FOREST)
NETWORK = (*OF_ALL, "--max_steps=20", "--model=mlp")


@pytest.fixture
def teachers(trained, tmp_path) -> pathlib.Path:
    """Returns a folder with custom teachers in `run`, and no ledger yet."""
    shutil.copytree(trained[0], tmp_path / "run")
    return tmp_path


@pytest.fixture(scope="module")
def finished(trained, tmp_path_factory) -> tuple[pathlib.Path, Ended]:
    """Returns a finished student next to its teachers (don't write there), and the
    script's result.
    """
    folder = tmp_path_factory.mktemp("student")
    shutil.copytree(trained[0], folder / "run")
    ended = run_script(
        SCRIPT, *NETWORK, "--lap_scale=1", "--report_file=report.json", folder=folder
    )
    assert ended.code == 0, ended.err
    return folder, ended


def statement(run: pathlib.Path) -> dict:
    return json.loads((run / "released" / "privacy_statement.json").read_text())


def without_warnings(ended: Ended) -> Ended:
    """On a full disk the registry fails, too, and a warning comes first."""
    lines = ended.err.splitlines(keepends=True)
    warned = [line for line in lines if line.startswith("warning: the registry of ledgers")]
    return dataclasses.replace(ended, err="".join(lines[len(warned) :]))


def nothing_released(run: pathlib.Path) -> bool:
    return list(run.glob("released/*")) == []


def test_a_report_has_its_keys(finished):
    folder, ended = finished
    report = json.loads((folder / "report.json").read_text())
    assert (report["queries"], report["delta"]) == (30, 1e-5)
    assert report["mechanism"] == {"name": "laplace_noisy_max", "gamma": 1.0}
    assert report["epsilon_data_independent"] == statement(folder / "run")["epsilon"]
    assert (folder / "report.json").stat().st_mode & 0o777 == 0o600
    # With thirty noisy labels, a student may not learn all classes.
    assert all("student never predicts" in line for line in ended.err.splitlines())
    for text in (
        f"{report['student_accuracy']:.2%}",
        f"{report['label_accuracy']:.2%}",
        f"{rounded_up(report['epsilon_data_independent'])} at delta 1e-05; worst-case",
        "run/released",
    ):
        assert text in ended.out


def test_each_version_is_a_run_of_tensorboard_with_its_accuracy_and_epsilon(finished):
    folder, ended = finished
    assert "tensorboard --logdir=run\n" in ended.out
    report = json.loads((folder / "report.json").read_text())
    logs = folder / "run" / "released" / "logs" / "student" / "1"
    scalars = event_files.scalars(logs)
    assert scalars["result/accuracy"][0][1] == pytest.approx(report["student_accuracy"])
    assert scalars["result/epsilon"][0][1] == pytest.approx(report["epsilon_data_independent"])
    assert event_files.settings(logs)["student"] == report["student_kind"]
    of_teachers, of_students = {"result/mean_accuracy", "num_teachers"}, {"mechanism", "labels"}
    shown = event_files.columns(folder / "run")
    assert shown >= {"result/accuracy", "result/epsilon", *of_teachers, *of_students}
    assert "epoch_accuracy" in event_files.scalars(logs / "held_out")
    for path in (logs, logs / "held_out"):
        events = event_files.accumulated(path)
        for tag in event_files.scalars(path):
            description = events.SummaryMetadata(tag).summary_description
            assert description == TAGS[tag] and "SENSITIVE" not in description


def test_other_users_can_not_read_what_is_sensitive(finished):
    folder, _ = finished
    paths = [folder / "run" / "sensitive", *(folder / "run" / "sensitive").rglob("*")]
    assert any(path.name.startswith("events.") for path in paths)
    assert any(path.name == "saved_model.pb" for path in paths)
    assert [path for path in paths if path.stat().st_mode & 0o077] == []


def test_what_is_released_does_not_name_the_machine(finished):
    folder, _ = finished
    released = list((folder / "run" / "released").rglob("*"))
    events = [path.name for path in released if ".tfevents." in path.name]
    assert events
    assert [name for name in events if name.split(".")[4] != "host"] == []
    # The records of `finished` came from the same file, so no test of hosts called "host".
    host = socket.gethostname()
    assert [path for path in released if host in path.name and host != "host"] == []
    if len(host) > 5 and host != "localhost":
        contents = [path.read_bytes() for path in released if path.is_file()]
        assert not any(host.encode() in content for content in contents)


def test_a_ledger_that_was_deleted_is_missed_and_its_acknowledgement_told(teachers):
    """The reviewer's attack: delete the ledger and run again, so that the budget is new."""
    run = teachers / "run"
    first = run_script(SCRIPT, *HERE, folder=teachers)
    assert first.code == 0, first.err
    spent = statement(run)["epsilon_ledger"]
    for path in (run / "sensitive").glob("ledger*"):
        path.unlink()
    refused = run_script(SCRIPT, *HERE, folder=teachers)
    assert_one_line(refused, code=3)
    assert "Restore the ledger with all of its files" in refused.err
    assert "--reset_ledger_i_understand" in refused.err
    told = run_script(SCRIPT, *HERE, "--reset_ledger_i_understand", folder=teachers)
    assert told.code == 0, told.err
    page = (run / "released" / "privacy_statement.md").read_text()
    assert "THE LEDGER WAS RESET" in page
    assert statement(run)["epsilon_ledger"] > spent
    again = run_script(SCRIPT, *HERE, folder=teachers)
    assert again.code == 0, again.err
    assert statement(run)["ledger_was_reset"] is True


def test_a_second_student_of_the_same_labels_is_free_and_opens_no_private_data(finished):
    folder, _ = finished
    before = artifacts.read_arrays(folder / "run" / "released" / "labels.npz")
    ended = run_script(
        SCRIPT,
        *NETWORK,
        "--lap_scale=1",
        "--seed=7",
        "--train_dir=second",
        folder=folder,
        setup=forbid_private_data,
    )
    assert ended.code == 0, ended.err[-2000:]
    after = artifacts.read_arrays(folder / "second" / "released" / "labels.npz")
    np.testing.assert_array_equal(after["labels"], before["labels"])
    first, second = statement(folder / "run"), statement(folder / "second")
    assert second["epsilon_ledger"] == first["epsilon_ledger"]
    assert second["ledger_rows"] == first["ledger_rows"]
    assert second["student_digest"] != first["student_digest"]


def test_nothing_is_released_on_the_word_of_a_damaged_ledger(teachers):
    assert run_script(SCRIPT, *HERE, folder=teachers).code == 0
    shutil.rmtree(teachers / "run" / "released")
    (path,) = (teachers / "run" / "sensitive").glob("ledger.sqlite3")
    path.write_bytes(path.read_bytes()[:5000])
    ended = run_script(SCRIPT, *HERE, folder=teachers)
    assert_one_line(ended, code=3)
    assert nothing_released(teachers / "run")


def die_at(point: str) -> None:
    os.environ[FAULT_VARIABLE] = point


def test_three_kills_after_the_debit_leave_a_budget_that_fits(teachers):
    flags = (*HERE, "--epsilon=5", "--mechanism=gaussian_noisy_max", "--accept_forecast")
    for point in ("debit_committed", "noise_drawn", "counts_kept"):
        setup = functools.partial(die_at, point)
        assert run_script(SCRIPT, *flags, folder=teachers, setup=setup).code == -signal.SIGKILL
        assert nothing_released(teachers / "run")
    ended = run_script(SCRIPT, *flags, folder=teachers)
    assert ended.code == 0, ended.err
    with Ledger.read(teachers / "run" / "sensitive") as ledger:
        assert [row.kind for row in ledger.history()].count("debit") == 1
        assert ledger.num_queries == ledger.num_answered == 30


@pytest.mark.parametrize("num_bytes", [40_000, pytest.param(4_096, marks=pytest.mark.long)])
def test_a_full_disk_leaves_nothing_half_written(teachers, num_bytes):
    full = functools.partial(limit_file_size, num_bytes)
    ended = run_script(SCRIPT, *NETWORK, folder=teachers, setup=full)
    assert_one_line(without_warnings(ended))
    assert "run/" in ended.err and ended.err.endswith("the same command again to resume\n")
    released = teachers / "run" / "released"
    assert list(released.glob("student/*")) == []
    assert not (released / "privacy_statement.json").exists()
    assert list((teachers / "run").rglob(".writing-*")) == []
    for path in released.glob("labels.npz"):
        artifacts.read_arrays(path)
    # The same command resumes from there, with its charges.
    ended = run_script(SCRIPT, *NETWORK, folder=teachers)
    assert ended.code == 0, ended.err[-2000:]
    assert (released / "student" / "1" / "saved_model.pb").exists()


HELP_PROGRAM = """
import os, runpy, sys
sys.argv = [sys.argv[1], "--helpfull"]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    print("HEAVY", sorted({"tensorflow", "keras", "sklearn", "matplotlib"} & set(sys.modules)))
"""


@pytest.mark.parametrize("script", ["train_teachers.py", "train_student.py", "analysis.py"])
def test_help_says_what_each_flag_is_and_needs_no_tensorflow(script, repository, tmp_path):
    ended = run_fresh("-c", HELP_PROGRAM, str(repository / script), folder=tmp_path)
    assert "Traceback" not in ended.err
    assert ended.out.rstrip().endswith("HEAVY []")
    for described in ended.out.split("\n  --")[1:]:
        name, _, text = described.partition("Default:")[0].partition("\n")
        assert len(text.split()) >= 3, f"--{name} says too little: {text!r}"
