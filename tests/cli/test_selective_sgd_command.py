"""pate dssgd as a user runs it."""

import json
import pathlib

from script_processes import run_script, start_script

from pate_tf.core import artifacts
from pate_tf.ledger import Head, Ledger
from pate_tf.serving.served import matches_statement
from pate_tf.statement.shared_training import SharedTrainingStatement

SCRIPT = "pate_tf/cli/selective_sgd.py"
SMALL = ("--participants=4", "--rounds=3", "--model=mlp", "--train_dir=run")
KEYS = {"accuracy_global", "accuracy_local_mean", "upload_bytes", "dense_bytes", "seconds"}


def run(folder: pathlib.Path, *flags: str) -> dict:
    ended = run_script(SCRIPT, *SMALL, *flags, "--report_file=report.json", folder=folder)
    assert ended.code == 0, ended.err[-3000:]
    return json.loads((folder / "report.json").read_text())


def test_a_run_without_privacy_says_so_and_releases_nothing(tmp_path):
    report = run(tmp_path, "--rounds=6")
    assert report.keys() >= KEYS
    assert 0.6 < report["accuracy_global"] <= 1.0
    assert 0.6 < report["accuracy_local_mean"] <= 1.0
    assert report["upload_bytes"] <= 0.14 * report["dense_bytes"]
    assert report["epsilon"] is None
    root = tmp_path / "run"
    assert not (root / "released").exists()
    exported = root / "sensitive" / "shared_model" / "1"
    assert matches_statement(exported)
    statement = SharedTrainingStatement.from_dict(
        artifacts.read_json(exported / "assets.extra" / "privacy_statement.json")
    )
    assert statement.kind.startswith("none")
    page = (root / "sensitive" / "shared_model_statement.md").read_text()
    assert "There is no privacy guarantee" in page
    assert (root / "sensitive").stat().st_mode & 0o777 == 0o700
    assert list((root / "sensitive" / "logs").rglob("*tfevents*"))


def test_a_private_run_is_charged_once_and_goes_on(tmp_path):
    flags = ("--privacy=record", "--target_epsilon=20", "--model=linear", "--representation=raw")
    running = start_script(SCRIPT, *SMALL, *flags, "--rounds=60", folder=tmp_path)
    state = tmp_path / "run" / "sensitive" / "selective_sgd" / "state.npz"
    while running.process.is_alive():
        if state.exists() and artifacts.read_arrays(state).get("round", 0) >= 2:
            running.kill()
        running.process.join(0.05)
    running.wait()
    report = run(tmp_path, *flags, "--rounds=60")
    assert 15.0 < report["epsilon"] <= 20.0
    assert report["delta"] == 1e-5
    exported = tmp_path / "run" / "released" / "shared_model" / "1"
    assert matches_statement(exported)
    statement = SharedTrainingStatement.from_dict(
        artifacts.read_json(exported / "assets.extra" / "privacy_statement.json")
    )
    assert statement.epsilon == report["epsilon"]
    ((sequence, digest),) = statement.ledger_heads
    with Ledger.read(tmp_path / "run" / "sensitive" / "ledger") as ledger:
        assert list(ledger.charges.values()) == [1]  # although the run was stopped
        assert ledger.holds(Head(sequence=sequence, digest=digest))
    # Another run on the same records, as they are.
    again = run_script(
        SCRIPT, *SMALL, *flags[:-1], "--rounds=60", "--train_dir=elsewhere", folder=tmp_path
    )
    assert again.code == 0
    assert "ledgers are charged to the source digits" in again.err
    assert "all releases charged to its source" in again.out and "2 ledgers" in again.out


def test_mistakes_end_in_one_line(tmp_path):
    private = ("--privacy=record", "--target_epsilon=3")
    for flags, code, expected in (
        (("--upload=0",), 2, "upload: expected above 0"),
        (("--target_epsilon=3",), 1, "target_epsilon: expected with --privacy"),
        (("--privacy=record",), 1, "target_epsilon: expected one with privacy"),
        ((*private, "--gamma=1"), 1, "gamma: expected none with privacy record"),
        ((*private, "--download=0.5"), 1, "download: expected 1 with privacy record"),
        (("--participants=5000",), 1, "participants: expected at "),
    ):
        ended = run_script(SCRIPT, *SMALL, *flags, folder=tmp_path)
        assert ended.code == code
        assert ended.err.startswith(f"error: {expected}"), ended.err[-2000:]
        assert ended.err.count("\n") == 1
    assert not list(tmp_path.rglob("*.npz"))
