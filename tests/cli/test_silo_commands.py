"""`pate silo` and `pate coordinator` as somebody types them: processes on loopback, over TLS."""

import json
import socket
import subprocess
import sys

import pytest
from script_processes import REPOSITORY

from pate_tf.silos import Member, Policy, Roster, Silo
from pate_tf.silos.serving import share_out

NAMES = ("clinic", "school")


def command(name, *flags):
    return [sys.executable, "-m", f"pate_tf.cli.{name}", *flags]


def said(name, *flags, code=0):
    ended = subprocess.run(
        command(name, *flags), capture_output=True, text=True, timeout=300, cwd=REPOSITORY
    )
    assert code in (None, ended.returncode), ended.stderr
    return ended.stderr if code else ended.stdout


def free_port():
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return found.getsockname()[1]


def init_flags(folder, name, address):
    return (
        *("init", f"--name={name}", f"--silo_dir={folder / name}", f"--coordinator={address}"),
        *("--epsilon_budget=200", "--most_epsilon=4"),
    )


def test_a_run_of_two_silos_from_their_folders_to_a_published_student(tmp_path):
    address, certificates = f"localhost:{free_port()}", f"--certificates={tmp_path / 'tls'}"
    said("silo", "certificates", "--demo", f"--names={','.join(NAMES)}", certificates)
    share_out(tmp_path, NAMES)
    for name in NAMES:
        assert "policy.toml" in said("silo", *init_flags(tmp_path, name, address))
        assert Policy.read(tmp_path / name / "policy.toml").coordinator == address
    members = tuple(Member(name=name, epsilon=4.0, queries=500) for name in NAMES)
    Roster(run_id="r", delta=1e-6, members=members).write(tmp_path / "roster.toml")
    silos = [
        subprocess.Popen(
            command(
                "silo",
                *("serve", f"--silo_dir={tmp_path / name}", certificates),
                f"--data={tmp_path / name / 'sensitive' / 'records.npz'}",
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=REPOSITORY,
        )
        for name in NAMES
    ]
    flags = (
        *(f"--roster={tmp_path / 'roster.toml'}", f"--address={address}", certificates),
        *(f"--train_dir={tmp_path / 'run'}", "--queries=30", "--max_steps=5", "--model=mlp"),
        "--gather_seconds=200",
    )
    try:
        printed = said("coordinator", *flags)
        # Killed or not: the same command again asks no silo anything new.
        charged = accounts(tmp_path)
        assert "30 of 30 answered" in said("coordinator", *flags)
        assert accounts(tmp_path) == charged == {name: 30 for name in NAMES}
    finally:
        for silo in silos:
            silo.kill()
            silo.wait()
        texts = [silo.stdout.read() for silo in silos]
        for silo in silos:
            silo.stdout.close()
    assert all("a batch was answered: ok" in text for text in texts), texts
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert (report["silos"], report["parties"], report["queries_answered"]) == (2, 0, 30)
    assert set(report["epsilon_per_silo"]) == set(NAMES)
    assert "epsilon of clinic" in printed and report["label_accuracy"] > 0.5
    statement = json.loads((tmp_path / "run/released/privacy_statement.json").read_text())
    assert statement["unit"] == "silo" and statement["student_digest"]
    assert (tmp_path / "run/released/student/1/saved_model.pb").exists()
    for path in (tmp_path / "clinic" / "sensitive").glob("ledger*"):
        path.unlink()
    flags = (
        *("serve", f"--silo_dir={tmp_path / 'clinic'}", certificates),
        f"--data={tmp_path / 'clinic' / 'sensitive' / 'records.npz'}",
    )
    error = said("silo", *flags, code=1)
    assert error.startswith("error: ") and error.count("\n") == 1
    assert f"rows was seen in {tmp_path / 'clinic' / 'sensitive'}" in error
    assert "--reset_account_i_understand goes on without it" in error
    silo = subprocess.Popen(
        command("silo", *flags, "--reset_account_i_understand"),
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    )
    assert any("dials" in line for line in iter(silo.stdout.readline, ""))
    silo.kill()
    silo.communicate()
    assert accounts(tmp_path) == {name: 30 for name in NAMES}


def accounts(folder):
    """How many queries each silo was charged."""
    numbers = {}
    for name in NAMES:
        policy = Policy.read(folder / name / "policy.toml")
        with Silo(policy, len, folder=folder / name / "sensitive", num_classes=10) as silo:
            numbers[name] = silo.account.num_queries
    return numbers


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("serve",), "silo_dir: expected the folder"),
        (("serve", "--silo_dir=missing"), "missing/policy.toml"),
        (("init", "--silo_dir=x", "--coordinator=a:1", "--epsilon_budget=1"), "name: expected"),
        (("certificates", "--names=a"), "demo: expected --demo"),
    ],
)
def test_what_is_missing_is_said_in_one_line(flags, expected):
    error = said("silo", *flags, code=1)
    assert error.startswith("error: ") and error.count("\n") == 1
    assert expected in error


def test_feature_sums_are_refused_in_one_line_before_anything_is_trained(tmp_path):
    names = ("party-1", "party-2", "party-3", "party-4")
    entries = [said("party", f"--name={one}", f"--party_dir={tmp_path / one}") for one in names]
    for name in NAMES:
        flags = (*init_flags(tmp_path, name, "localhost:1"), "--method=feature_sums")
        said("silo", *flags)
        assert Policy.read(tmp_path / name / "policy.toml").allowed == ("secure_feature_sums",)
        entries.append(said("silo", "keys", f"--silo_dir={tmp_path / name}"))
    assert entries[-1] == said("silo", "keys", f"--silo_dir={tmp_path / NAMES[-1]}")
    (tmp_path / "parties.toml").write_text("\n".join(entries))
    (tmp_path / "others.toml").write_text("\n".join(entries[:-1]))
    members = tuple(Member(name=name, epsilon=1.0, queries=1) for name in NAMES)
    Roster(run_id="r", delta=1e-6, members=members).write(tmp_path / "roster.toml")
    flags = ("--method=feature_sums", f"--roster={tmp_path / 'roster.toml'}")
    flags += (f"--train_dir={tmp_path / 'run'}",)
    parties = f"--parties={tmp_path / 'parties.toml'}"
    for others, expected in (
        ((parties,), "epsilon: expected a number with feature_sums, got none"),
        ((parties, "--epsilon=1", "--least_silos=3"), "least_silos: expected at most 2, got 3"),
        ((f"--parties={tmp_path / 'others.toml'}", "--epsilon=1"), "got none of school"),
    ):
        error = said("coordinator", *flags, *others, code=1)
        assert expected in error and error.count("\n") == 1
    assert not list((tmp_path / "run").rglob("*"))
    serve = ("serve", f"--silo_dir={tmp_path / 'clinic'}", "--method=feature_sums")
    assert "data: expected records" in said("silo", *serve, code=1)


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "unit", "printed"),
    [
        ("feature_sums", "record", "each silo's own noise would remain"),
        ("pate", "silo", "Votes protect a silo from some 250 silos on"),
    ],
)
def test_the_demonstration(tmp_path, method, unit, printed):
    assert printed in said("demo_silos", str(tmp_path / "demo"), f"--method={method}")
    report = json.loads((tmp_path / "demo" / "report.json").read_text())
    assert (report["silos"], report["parties"]) == (5, 4)
    assert (report["method"], report["unit"]) == (method, unit)
    assert report["student_accuracy"] > 0.5 and report["label_accuracy"] > 0.5
    assert len(report["epsilon_per_silo"]) == 5 and report["seconds_per_round"] > 0
    assert method == "pate" or max(report["epsilon_per_silo"].values()) <= 1.0
