"""pate dssgd as a user runs it."""

import pathlib
import shutil

from script_processes import run_script, start_script

from pate_tf.core import artifacts
from pate_tf.ledger import Head, Ledger
from pate_tf.serving.served import matches_statement
from pate_tf.statement.several_holders import SharedTrainingStatement

SCRIPT = ("pate_tf/cli/main.py", "dssgd")
SMALL = ("--participants=4", "--rounds=3", "--train_dir=run")
NOISY = ("--privacy=record", "--target_epsilon=20", "--model=linear", "--representation=raw")


def run(folder: pathlib.Path, *flags: str) -> dict:
    ended = run_script(*SCRIPT, *SMALL, *flags, folder=folder)
    assert ended.code == 0, ended.err[-3000:]
    return artifacts.read_json(folder / "run" / "sensitive" / "selective_sgd_report.json")


def statement_of(half: pathlib.Path) -> SharedTrainingStatement:
    exported = half / "shared_model" / "1"
    assert matches_statement(exported)
    fields = artifacts.read_json(exported / "assets.extra" / "privacy_statement.json")
    return SharedTrainingStatement.from_dict(fields)


def test_a_run_without_privacy_says_so_and_releases_nothing(tmp_path):
    report = run(tmp_path, "--rounds=6", "--model=mlp")
    assert 0.6 < report["accuracy_global"] <= 1.0 and report["epsilon"] is None
    root = tmp_path / "run"
    assert not (root / "released").exists()
    assert statement_of(root / "sensitive").kind.startswith("none")
    page = (root / "sensitive" / "shared_model_statement.md").read_text()
    assert "There is no privacy guarantee" in page
    assert (root / "sensitive").stat().st_mode & 0o777 == 0o700


def test_a_private_run_that_is_killed_is_charged_once_and_a_deleted_ledger_missed(tmp_path):
    running = start_script(*SCRIPT, *SMALL, *NOISY, "--rounds=5", folder=tmp_path)
    state = tmp_path / "run" / "sensitive" / "selective_sgd" / "state.npz"
    while running.process.is_alive():
        if state.exists() and artifacts.read_arrays(state).get("num_rounds", 0) >= 2:
            running.kill()
        running.process.join(0.05)
    running.wait()
    report = run(tmp_path, *NOISY, "--rounds=5")
    assert 15.0 < report["epsilon"] == report["epsilon_source"] <= 20.0
    statement = statement_of(tmp_path / "run" / "released")
    assert statement.epsilon == report["epsilon"]
    ((sequence, digest),) = statement.ledger_heads
    ledger = tmp_path / "run" / "sensitive" / "ledger"
    with Ledger.read(ledger) as opened:
        assert list(opened.charges.values()) == [1]  # although the run was stopped
        assert opened.holds(Head(sequence=sequence, digest=digest))
        released = [row for row in opened.history() if row.kind == "released"]
        assert [row.details["kept"]["round"] for row in released] == list(range(1, 6))
    shutil.rmtree(ledger)
    refused = run_script(*SCRIPT, *SMALL, *NOISY, "--rounds=5", folder=tmp_path)
    assert refused.code == 3 and "--reset_ledger_i_understand" in refused.err


def test_mistakes_end_in_one_line(tmp_path):
    (tmp_path / "good.toml").write_text(
        'run = "x"\ndataset = "digits"\n[[participant]]\nname = "clinic"\n'
    )
    for flags, expected in (
        (("--upload=0",), "upload must be"),
        (("--participants=5000",), "a participant has no records"),
        (("join",), "--participant is required to take part"),
        (("serve", "--roster=no.toml"), "no.toml: No such file"),
        (("serve", "--participants=3"), "Unknown command line flag 'participants'"),
        (("serve", "--roster=good.toml"), "--certificates: certificates/authority.pem does"),
    ):
        ended = run_script(*SCRIPT, *flags, folder=tmp_path)
        assert ended.code in (1, 2)
        assert ended.err.startswith("error: ") and expected in ended.err, ended.err[-2000:]
        assert ended.err.count("\n") == 1
    assert not list(tmp_path.rglob("*.npz"))
