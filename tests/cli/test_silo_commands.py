"""`pate silo`, `aggregator` and `coordinator` as typed: processes on loopback, over TLS."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading

import network_hosts
import numpy as np
import pytest
from command_helpers import AGE
from script_processes import REPOSITORY, free_port, run_script, start_script

from pate_tf.core.artifacts import only_writer
from pate_tf.net.credentials import write_demo_certificates
from pate_tf.silos import Member, Policy, SiloRoster
from pate_tf.silos.silo import SiloAccount

MAIN = "pate_tf/cli/main.py"
NAMES = ("clinic", "school")
AGGREGATORS = ("aggregator-1", "aggregator-2", "aggregator-3", "aggregator-4")


def said(name, *flags, code=0):
    with tempfile.TemporaryDirectory() as folder:
        arguments = (name, *map(str, flags))
        ended = run_script(MAIN, *arguments, folder=pathlib.Path(folder))
    assert code in (None, ended.code), ended.err
    return ended.err if code else ended.out


def refused(name, *flags, code=1):
    error = said(name, *flags, code=code)
    assert error.startswith("error: ") and error.count("\n") == 1
    return error


SCHEMA = AGE + "[columns.pressure]\nlow = 80\nhigh = 200\n"


def write_table(path, names, *, seed, number=300):
    random = np.random.default_rng(seed)
    age, pressure = random.integers(18, 90, number), random.integers(80, 200, number)
    ill = np.where(age + pressure > 195, "yes", "no")
    fields = {"age": age, "pressure": pressure, "ill": ill, "note": np.arange(number)}
    rows = zip(*(fields[name] for name in names), strict=True)
    path.write_text("\n".join(",".join(map(str, row)) for row in [names, *rows]) + "\n")


def init_flags(folder, name, address="localhost:1"):
    flags = ("init", f"--name={name}", f"--silo_dir={folder / name}", f"--coordinator={address}")
    (folder / "most.toml").write_text("most_epsilon = 4.0\n")
    return (*flags, "--epsilon_budget=200", f"--policy={folder / 'most.toml'}")


def accounts(folder):
    """Returns the number of charged queries of each silo."""
    numbers = {}
    for name in NAMES:
        policy = Policy(silo=name, epsilon_budget=200.0, delta=1e-6)
        account = SiloAccount(folder / name / "sensitive", policy)
        numbers[name] = account.charges.total()
        account.close()
    return numbers


def test_a_run_of_two_silos_from_their_folders_to_a_published_student(tmp_path):
    address = f"localhost:{free_port()}"
    certificates = f"--certificates={tmp_path / 'tls'}"
    write_demo_certificates(tmp_path / "tls", NAMES)
    orders = [("age", "pressure", "ill"), ("ill", "note", "pressure", "age")]
    (tmp_path / "schema.toml").write_text(SCHEMA)
    write_table(tmp_path / "public.csv", orders[0], seed=2)
    files, silos = f"--schema={tmp_path / 'schema.toml'}", []
    data_of = {}
    for place, name in enumerate(NAMES):
        assert "policy.toml" in said("silo", *init_flags(tmp_path, name, address))
        policy = Policy.read(tmp_path / name / "policy.toml")
        assert (policy.coordinator, policy.most_epsilon, policy.delta) == (address, 4.0, 1e-6)
        write_table(tmp_path / f"{name}.csv", orders[place], seed=place)
        data_of[name] = (f"--private={tmp_path / name}.csv", files)
        flags = ("serve", f"--silo_dir={tmp_path / name}", *data_of[name], certificates)
        silos.append(start_script(MAIN, "silo", *flags, folder=tmp_path))
    members = tuple(Member(name=name, epsilon=4.0) for name in NAMES)
    SiloRoster(run="r", delta=1e-6, members=members).write(tmp_path / "roster.toml")
    coordinator = (
        *(f"--roster={tmp_path / 'roster.toml'}", f"--address={address}", certificates),
        *(f"--train_dir={tmp_path / 'run'}", "--queries=30", "--max_steps=5", "--model=mlp"),
        *("--round_seconds=200", f"--public={tmp_path / 'public.csv'}", files),
    )
    try:
        printed = said("coordinator", *coordinator)
        assert "replies of silos: 2 answered" in printed and "30 of 30 answered" in printed
        ended = [silo.wait() for silo in silos]
    finally:
        for silo in silos:
            silo.kill()
    assert [each.code for each in ended] == [0, 0], ended
    texts = [each.err + each.out for each in ended]
    assert all(text.endswith(": the run is over\n") for text in texts), texts
    assert accounts(tmp_path) == dict.fromkeys(NAMES, 30)
    assert all("a batch was answered: ok" in text for text in texts), texts
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert (report["silos"], report["aggregators"], report["queries_answered"]) == (2, 0, 30)
    assert "epsilon of clinic" in printed and report["label_accuracy"] > 0.5
    statement = json.loads((tmp_path / "run/released/privacy_statement.json").read_text())
    assert statement["unit"] == "silo" and statement["student_digest"]
    assert (tmp_path / "run/released/student/1/saved_model.pb").exists()
    numbers = json.loads(said("silo", "status", f"--silo_dir={tmp_path / 'clinic'}", "--json"))
    assert numbers["epsilon_spent"] == pytest.approx(report["epsilon_per_silo"]["clinic"])
    assert numbers["process"] == "not running" and numbers["run_over"] == numbers["rounds"] == 1
    shown = said("coordinator", "status", f"--train_dir={tmp_path / 'run'}")
    assert [line.split()[-1] for line in shown.splitlines()[2:6]] == ["running", "0", "0", "1"]
    # After a restart there is no coordinator. A silo that was told the run is over ends as before.
    serve = ("serve", f"--silo_dir={tmp_path / 'clinic'}", *data_of["clinic"], certificates)
    assert "clinic: the run is over" in said("silo", *serve, "--give_up_after=1").splitlines()[-1]
    (tmp_path / "clinic" / "ended").unlink()
    *_, error = said("silo", *serve, "--give_up_after=1", code=75).splitlines()
    assert error.startswith("error: gave up after") and "start this command again" in error
    for path in (tmp_path / "clinic" / "sensitive").glob("ledger*"):
        path.unlink()
    flags = (f"--silo_dir={tmp_path / 'clinic'}", f"--private={tmp_path / 'clinic.csv'}", files)
    *others, error = said("silo", "serve", *flags, certificates, code=3).splitlines()
    assert error.startswith("error: ")
    assert all(each.startswith("warning: ") for each in others), others
    assert f"rows was seen in {tmp_path / 'clinic' / 'sensitive'}" in error
    assert "--reset_account_i_understand to continue without it" in error


def test_what_does_not_fit_is_refused_before_anything_is_trained(tmp_path):
    entries = [
        said("aggregator", f"--name={name}", f"--aggregator_dir={tmp_path / name}")
        for name in AGGREGATORS
    ]
    wrong = ("--name=aggregator-2", f"--aggregator_dir={tmp_path / 'aggregator-1'}")
    assert "does not contain the keys of aggregator-2" in refused("aggregator", *wrong)
    for name in NAMES:
        assert "=FILE" in said("silo", *init_flags(tmp_path, name), "--method=feature_sums")
        assert Policy.read(tmp_path / name / "policy.toml").allowed == ("secure_feature_sums",)
        entries.append(said("silo", "keys", f"--silo_dir={tmp_path / name}"))
    assert entries[-1] == said("silo", "keys", f"--silo_dir={tmp_path / NAMES[-1]}")
    assert "Edit it instead" in refused("silo", *init_flags(tmp_path, "clinic"))
    roster = tmp_path / "roster.toml"
    text = "\n".join(['run = "r"\ndelta = 1e-6\n', *entries])
    roster.write_text(text)
    assert [member.name for member in SiloRoster.read(roster).members] == list(NAMES)
    flags = ("--method=feature_sums", f"--roster={roster}", f"--train_dir={tmp_path / 'run'}")
    tls = f"--certificates={tmp_path / 'tls'}"
    assert "error: --certificates: /" in refused("coordinator", *flags, tls)
    serve = ("serve", f"--silo_dir={tmp_path / 'clinic'}", tls, "--method=feature_sums")
    assert "error: --certificates: /" in refused("silo", *serve)
    write_demo_certificates(tmp_path / "tls", NAMES)
    flags = (*flags, tls)
    for others, expected in (
        ((), "--epsilon is required with feature_sums"),
        (("--epsilon=1", "--least_silos=3"), "--least_silos must be at most 2, got 3"),
    ):
        assert expected in refused("coordinator", *flags, *others)
    votes = ("--model=mlp", *flags[1:])
    assert "is not a forest" in refused("coordinator", *votes, "--student=random_forest")
    (tmp_path / "run/released").mkdir(parents=True)
    (tmp_path / "run/released/student").write_text("")
    assert "student is not a writable folder" in refused("coordinator", *votes)
    assert not (tmp_path / "run/coordinator").exists()  # no silo got a query
    shutil.rmtree(tmp_path / "run")
    with only_writer(tmp_path / "run"):
        assert "run is used by another process" in refused("coordinator", *flags)
    assert "must list clinic with the keys" in refused("silo", *serve)
    assert "--method must be feature_sums, as in policy" in refused("silo", *serve[:3])
    assert "--data is required: a .npz file" in refused("silo", *serve, f"--roster={roster}")
    roster.write_text('run = "r"\ndelta = 1e-6\n[[silo]]\nname = "clinic"\n')
    assert "must list the keys of every silo" in refused("coordinator", *flags, "--epsilon=1")
    of_first = (f"--aggregator_dir={tmp_path / 'aggregator-1'}", f"--roster={roster}")
    assert "must list aggregator-1" in refused("aggregator", *of_first)
    assert not list((tmp_path / "run").rglob("*"))


@pytest.mark.long
def test_the_demonstration(tmp_path):
    demo = [sys.executable, REPOSITORY / "tools/demo.py", "--silos", tmp_path / "demo"]
    ended = subprocess.run(demo, capture_output=True, text=True, timeout=300, check=True)
    assert "epsilon 1.000 for each record" in ended.stdout
    report = json.loads((tmp_path / "demo" / "report.json").read_text())
    assert (report["silos"], report["aggregators"]) == (5, 4)
    assert (report["method"], report["unit"]) == ("feature_sums", "record")
    assert report["student_accuracy"] > 0.5 and report["label_accuracy"] > 0.5
    assert len(report["epsilon_per_silo"]) == 5 and report["seconds_per_round"] > 0


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_hosts_that_lose_packets_and_cables_give_the_same_labels(tmp_path, monkeypatch):
    """One silo's cable is unplugged for a while, an aggregator's is cut for good."""
    epsilon = 1e3  # the noise changes no label
    alone = threading.Thread(
        target=network_hosts.demo.demonstrate_silos,
        args=(tmp_path / "alone",),
        kwargs={"epsilon": epsilon},
    )
    alone.start()
    events = network_hosts.demonstrate(tmp_path / "hosts", epsilon=epsilon)
    alone.join()
    assert events == ["silo-1 is cut off", "silo-1 is back", "aggregator-4 is cut off for good"]
    labels = [np.load(tmp_path / name / "released" / "labels.npz") for name in ("hosts", "alone")]
    np.testing.assert_array_equal(*(arrays["labels"] for arrays in labels))
    monkeypatch.setenv("PATE_TF_STATE", str(tmp_path / "hosts" / "state"))
    for number in range(1, 6):
        name = f"silo-{number}"
        folder = tmp_path / "hosts" / name / "sensitive"
        account = SiloAccount(folder, Policy(silo=name, epsilon_budget=epsilon, delta=1e-5))
        assert account.charges.total() == 1
        account.close()


def test_a_student_of_silos_without_any_public_record(tmp_path):
    address = f"localhost:{free_port()}"
    tls = f"--certificates={tmp_path / 'tls'}"
    write_demo_certificates(tmp_path / "tls", (*NAMES, *AGGREGATORS))
    (tmp_path / "schema.toml").write_text(SCHEMA)
    roster, entries, started = tmp_path / "roster.toml", ['run = "r"\ndelta = 1e-6\n'], []
    of_aggregators = [f"--aggregator_dir={tmp_path / name}" for name in AGGREGATORS]
    for name, folder in zip(AGGREGATORS, of_aggregators, strict=True):
        entries.append(said("aggregator", f"--name={name}", folder))
    for place, name in enumerate(NAMES):
        said("silo", *init_flags(tmp_path, name, address), "--method=feature_sums")
        policy = tmp_path / name / "policy.toml"
        policy.write_text(policy.read_text().replace("least_silos = 3", "least_silos = 2"))
        entries.append(said("silo", "keys", f"--silo_dir={tmp_path / name}"))
        write_table(tmp_path / f"{name}.csv", ("age", "pressure", "ill"), seed=place, number=3_000)
    roster.write_text("\n".join(entries))
    common = ("--method=feature_sums", f"--schema={tmp_path / 'schema.toml'}")
    common = (*common, f"--roster={roster}", tls)
    try:
        for name in NAMES:
            flags = (f"--silo_dir={tmp_path / name}", f"--private={tmp_path / name}.csv", *common)
            started.append(start_script(MAIN, "silo", "serve", *flags, folder=tmp_path))
        for folder in of_aggregators:
            flags = (folder, f"--coordinator={address}", f"--roster={roster}", tls)
            started.append(start_script(MAIN, "aggregator", *flags, folder=tmp_path))
        flags = (f"--address={address}", f"--train_dir={tmp_path / 'run'}", "--epsilon=8")
        flags = (*flags, "--least_silos=2", "--round_seconds=300", *common)
        printed = said("coordinator", *flags)
        ended = [each.wait() for each in started]
    finally:
        for each in started:
            each.kill()
    assert [each.code for each in ended] == [0] * 6, ended
    assert "epsilon of clinic" in printed and "not measured" in printed
    late = (of_aggregators[0], f"--coordinator={address}", f"--roster={roster}", tls)
    *_, error = said("aggregator", *late, "--give_up_after=1", code=75).splitlines()
    assert error.startswith("error: gave up after")
    statement = json.loads((tmp_path / "run/released/privacy_statement.json").read_text())
    assert (statement["unit"], statement["num_queries"]) == ("record", 1)
    assert (tmp_path / "run/released/student/1/saved_model.pb").exists()
