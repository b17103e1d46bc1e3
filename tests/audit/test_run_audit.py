"""The audit of a run folder: honest folders of every kind pass, every tampering is a violation."""

import csv
import functools
import hashlib
import io
import json
import os
import pathlib
import shutil
import sqlite3
import zipfile

import numpy as np
import pytest
from script_processes import run_script
from silo_helpers import queries
from silo_helpers import silo as new_silo
from silo_helpers import teacher as silo_teacher

import pate_tf
from pate_tf.audit import audit_run, report_page
from pate_tf.audit.run_audit import NOT_CHECKED, PASSED, VIOLATION
from pate_tf.core import artifacts
from pate_tf.silos import Coordinator, Member, SiloRoster
from pate_tf.statement.privacy_statement import PrivacyStatement

PATE = "pate_tf/cli/main.py"
SCHEMA = """
name = "visits"
label = "kind"
classes = ["a", "b", "c"]
"""
COLUMNS = ("age", "size", "rate", "dose")


def write(path, number, seed):
    generator = np.random.default_rng(seed)
    with open(path, "w", newline="") as file:
        table = csv.writer(file)
        table.writerow([*COLUMNS, "kind"])
        for _ in range(number):
            label = int(generator.integers(3))
            values = generator.normal(0.0, 0.3, 4)
            values[label] += 2.0
            table.writerow([*(f"{one:.5f}" for one in values.clip(-4, 4)), "abc"[label]])


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Returns two releases of sums and two versions, from two files, and a copy from before the
    second.
    """
    root = tmp_path_factory.mktemp("tables")
    write(root / "private.csv", 600, 0)
    write(root / "public.csv", 300, 1)
    columns = [f"[columns.{name}]\nlow = -4.0\nhigh = 4.0\n" for name in COLUMNS]
    (root / "schema.toml").write_text(SCHEMA + "\n".join(columns))
    files = [f"--{one}={root}/{one}.csv" for one in ("private", "public")]
    for epsilon in (2.0, 3.0):
        ended = run_script(
            PATE,
            *("student", *files, f"--schema={root}/schema.toml", "--method=feature_sums"),
            *(f"--epsilon={epsilon:g}", "--delta=1e-5", "--representation=raw"),
            *("--student=supervised", "--max_steps=20", f"--train_dir={root}/run"),
            folder=root,
        )
        assert ended.code == 0, ended.err
        if epsilon == 2.0:
            shutil.copytree(root / "run", root / "before")
    return root, os.environ["PATE_TF_STATE"]


@pytest.fixture(scope="module")
def data():
    """Returns small tables with three classes that are far apart."""
    generator = np.random.default_rng(5)
    labels = generator.integers(0, 3, 700)
    inputs = generator.normal(0.0, 0.6, (700, 6)).astype(np.float32)
    inputs[np.arange(700), labels] += 2.0
    return pate_tf.Data.from_arrays(
        *(inputs[:500], labels[:500], inputs[500:], labels[500:]),
        num_classes=3,
        value_range=(-4.0, 6.0),
    )


def published(source, pool, *, num_queries=None, **noise):
    with pate_tf.Labeller(source, delta=1e-5, **noise) as labeller:
        labels = labeller.label(
            pool, **({} if num_queries is None else {"num_queries": num_queries})
        )
        labels.save(source.directory / "released")
        student = pate_tf.Student("supervised", steps=20).fit(pool, labels)
        for _ in range(2):
            student.publish(source.directory / "released")


def teachers_in(folder):
    return pate_tf.Teachers("ridge", num_teachers=6, representation="raw", directory=folder)


@pytest.fixture(scope="module")
def votes(tmp_path_factory, data):
    """Returns a run of teachers, with two versions."""
    root = tmp_path_factory.mktemp("votes")
    mechanism = pate_tf.mechanisms.GaussianHistogram(sigma=1.0)
    teachers = teachers_in(root / "run").fit(data.private, data.pool)
    published(teachers, data.pool, mechanism=mechanism, num_queries=60)
    return root / "run"


def of_owners(root, data, method):
    owners = np.array([f"owner number {one // 5}" for one in range(len(data.private))])
    owned = pate_tf.Data.from_arrays(
        data.private.inputs,
        data.private.labels,
        data.pool.inputs,
        num_classes=3,
        value_range=(-4.0, 6.0),
        owners=owners,
    )
    if method == "feature_sums":
        source = pate_tf.FeatureSums(directory=root / "run", representation="raw")
        noise = {"epsilon": 8.0}
    else:
        source, noise = teachers_in(root / "run"), {"epsilon": 20.0}
    published(source.fit(owned.private, owned.pool), owned.pool, **noise)


def of_silos(root):
    """Returns a coordinator's folder and a silo's folder."""
    silos = [new_silo(root / f"silo{one}", silo=f"s{one}", most_epsilon=9.0) for one in range(3)]
    members = tuple(Member(name=one.name, epsilon=3.0) for one in silos)
    inputs = queries(0, 200)
    data = pate_tf.Data.from_arrays(
        inputs[:10], silo_teacher(inputs[:10]), inputs, num_classes=5, value_range=(0.0, 1_000.0)
    )
    roster = SiloRoster(run="r", delta=1e-6, members=members)
    with Coordinator(roster, silos=silos, folder=root / "run" / "coordinator") as coordinator:
        labels = coordinator.label(data.pool, num_queries=50, strategy="random", seed=3)
        labels.save(root / "run" / "released")
        student = pate_tf.Student("supervised", steps=20).fit(data.pool, labels)
        for _ in range(2):
            student.publish(root / "run" / "released")
    return data


@pytest.mark.parametrize(
    "kind",
    [
        *("tables", "votes", "votes with a released epsilon"),
        *("sums of owners", "votes of owners", "silos", "silo"),
    ],
)
def test_an_honest_folder_passes(kind, request, data, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    if kind == "tables":
        root, state = request.getfixturevalue("tables")
        folder = root / "run"
        monkeypatch.setenv("PATE_TF_STATE", state)
    elif kind == "votes":
        folder = request.getfixturevalue("votes")
    elif kind == "votes with a released epsilon":
        source = teachers_in(folder).fit(data.private, data.pool)
        published(source, data.pool, mechanism=pate_tf.LaplaceNoisyMax(scale=1.0))
        flags = (f"--train_dir={folder}", "--release=sanitised")
        ended = run_script(PATE, "analysis", *flags, folder=tmp_path)
        assert ended.code == 0, ended.err
    elif "owners" in kind:
        of_owners(tmp_path, data, "feature_sums" if "sums" in kind else "pate")
    else:
        of_silos(tmp_path)
        folder = tmp_path / ("silo0" if kind == "silo" else "run")
    audit = audit_run(folder)
    assert audit.outcome == (NOT_CHECKED if kind == "silos" else PASSED), audit.checks
    assert kind != "silos" or "<b>Audit: NOT CHECKED</b>" in report_page(folder, audit=audit)
    names = {one.name for one in audit.checks if one.outcome == PASSED}
    assert kind == "silo" or "released files" in names
    due = {
        "tables": {"ledger: registry", "released labels: seal", "statement", "sums", SEALS},
        "votes": {"partition: one teacher for each record", "ensemble"},
        "votes with a released epsilon": {"statement", SEALS},
        "sums of owners": {"sums"},
        "votes of owners": {"partition: one teacher for each record"},
        "silos": {"statement", "versions of student"},
        "silo": {"ledger: chain"},
    }
    assert due[kind] <= names, audit.checks


# Each tampering changes a copy of the folder of tables.


def edit_arrays(path, **changes):
    """Writes arrays as the library does, so that only the arrays differ. Nothing is sealed."""
    arrays = {**artifacts.read_arrays(path), **changes}
    elsewhere = path.parents[2] / "edited.npz"
    artifacts.write_arrays(
        elsewhere, {name: one for name, one in arrays.items() if one is not None}
    )
    elsewhere.replace(path)


def edit_json(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def private_values(run):
    path = run.parent / "private.csv"
    return np.genfromtxt(path, delimiter=",", skip_header=1, usecols=range(4))


def flip(path, place=40):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(bytes(content))


LABELS, STUDENT = "released/labels.npz", "released/student"
EXTRA = f"{STUDENT}/2/assets.extra"
SEALS = "released files: seals"


def reseal_digest(run):
    """Makes the digest in the file fit again, which is possible without the ledger."""
    arrays = artifacts.read_arrays(run / LABELS)
    digest = artifacts.digest_arrays(arrays[name] for name in sorted(arrays))
    edit_json(run / "released/labels.json", labels_digest=digest)


def labels_replaced(run):
    arrays = artifacts.read_arrays(run / LABELS)
    edit_arrays(run / LABELS, labels=(arrays["labels"] + 1) % 3)
    reseal_digest(run)


def noisy_sums_replaced(run):
    edit_arrays(run / LABELS, noisy_sums=artifacts.read_arrays(run / LABELS)["noisy_sums"] + 1)
    reseal_digest(run)


def private_rows_in_labels(run):
    edit_arrays(run / LABELS, certainty_of_inputs=private_values(run).astype("f4"))


def cost_of_labels(run):
    path = run / "released/labels.json"
    cost = json.loads(path.read_text())["cost"]
    edit_json(path, cost={**cost, "epsilon": cost["epsilon"] / 2})


def truncated(run):
    path = run / LABELS
    path.write_bytes(path.read_bytes()[:-100])


def private_csv(run):
    shutil.copy(run.parent / "private.csv", run / "released/notes.csv")


def link(run):
    (run / "released/analysis.json").symlink_to(run / "sensitive/run.json")


def released_is_a_link(run):
    (run / "released").rename(run / "elsewhere")
    (run / "released").symlink_to(run / "elsewhere")


def named_folder(run):
    (run / "released/Mr Private Person").mkdir()


def csv_as_picture(run):
    shutil.copy(run.parent / "private.csv", run / "released/epsilon_data_independent.png")


def travelling(run):
    edit_json(run / EXTRA / "privacy_statement.json", epsilon=0.1)


def restate(run, **changes):
    """Rebuilds words and page from the changed numbers."""
    path = run / "released/privacy_statement.json"
    fields = {**json.loads(path.read_text()), **changes}
    statement = PrivacyStatement.from_dict(fields)
    path.write_text(json.dumps(statement.to_dict()))
    path.with_suffix(".md").write_text(statement.to_markdown())


def number_of_records(run):
    restate(run, num_records=40)


def model_digest(run):
    restate(run, student_digest="0" * 64)


def accuracy(run):
    statement = json.loads((run / "released/privacy_statement.json").read_text())
    restate(run, quality=statement["quality"] | {"accuracy": 0.99})


def inputs_and_classes(run):
    restate(run, inputs="2 columns", classes=["a", "b"])


def statement_epsilon(run):
    edit_json(run / "released/privacy_statement.json", epsilon=1.0)


def statement_page(run):
    path = run / "released/privacy_statement.md"
    path.write_text(path.read_text().replace("3.000", "0.300").replace("3.00", "0.30"))


def statement_deleted(run):
    (run / "released/privacy_statement.json").unlink()


def statement_of_another_run(run):
    path = run / "released/privacy_statement.json"
    head = json.loads(path.read_text())["ledger_head"]
    restate(run, ledger_head=[head[0], "1" * 64])


def warm_up(run):
    shutil.copy(run.parent / "private.csv", run / EXTRA / "dataset.json")


def weights(run):
    flip(run / STUDENT / "2/variables/variables.data-00000-of-00001")


def keras_model_deleted(run):
    next((run / EXTRA).glob("student.*")).unlink()


def manifest_rewritten(run):
    from pate_tf.serving.served import file_digests

    warm_up(run)
    edit_json(run / EXTRA / "digests.json", files=file_digests(run / STUDENT / "2"))


def versions_swapped(run):
    for old, new in (("1", "3"), ("2", "1"), ("3", "2")):
        (run / STUDENT / old).rename(run / STUDENT / new)


def newest_version_deleted(run):
    shutil.rmtree(run / STUDENT / "2")


def schema_class(run):
    path = run / "released/schema.toml"
    path.write_text(path.read_text().replace('"c"', '"c", "Mr Private Person"'))


def in_ledger(run, command):
    with sqlite3.connect(run / "sensitive/ledger.sqlite3") as connection:
        connection.execute(command)


def ledger_row(run):
    in_ledger(
        run,
        """update rows set details=replace(details,'"secure_noise":true','"secure_noise":false')""",
    )


def ledger_answer(run):
    in_ledger(run, "update answers set label = label + 1 where position = 1")


def ledger_deleted(run):
    for path in (run / "sensitive").glob("ledger*"):
        path.unlink()


def ledger_of_rubbish(run):
    (run / "sensitive/ledger.sqlite3").write_bytes(b"no database")


def sums_edited(run):
    path = run / "sensitive/feature_sums/sums.npz"
    edit_arrays(path, sums=artifacts.read_arrays(path)["sums"] + 1)


# Data smuggled out next to the library's files, without a change to the files that it reads.


def secret(run):
    return (run.parent / "private.csv").read_bytes()


def comment_of_an_archive(run):
    with zipfile.ZipFile(run / LABELS, "a") as archive:
        archive.comment = secret(run)[:60_000]


def before_an_archive(run):
    (run / LABELS).write_bytes(secret(run) + (run / LABELS).read_bytes())


def unlisted_member(run):
    """The directory at the end of the archive stays as it was."""
    path, content = run / LABELS, (run / LABELS).read_bytes()
    with zipfile.ZipFile(path) as archive:
        start = archive.start_dir
    end = bytearray(content[start:])
    moved = start + len(secret(run))
    end[-6:-2] = moved.to_bytes(4, "little")
    path.write_bytes(content[:start] + secret(run) + bytes(end))


def extra_field(run):
    arrays, extra = artifacts.read_arrays(run / LABELS), secret(run)[:60_000]
    with zipfile.ZipFile(run / LABELS, "w") as archive:
        for name, array in arrays.items():
            content, info = io.BytesIO(), zipfile.ZipInfo(f"{name}.npy")
            np.lib.format.write_array(content, array)
            info.extra = b"\xfe\xca" + len(extra).to_bytes(2, "little") + extra
            archive.writestr(info, content.getvalue())


def header_of_an_array(run):
    """Replaces the padding spaces in the header of a .npy file by other bytes of the
    same number.
    """
    arrays = artifacts.read_arrays(run / LABELS)
    with zipfile.ZipFile(run / LABELS, "w") as archive:
        for name, array in arrays.items():
            content = io.BytesIO()
            np.lib.format.write_array(content, array, version=(2, 0))
            archive.writestr(f"{name}.npy", content.getvalue())


def key_twice(run, name="privacy_statement.json"):
    path = run / "released" / name
    private = json.dumps(secret(run).decode()[:3_000])
    first = next(iter(json.loads(path.read_text())))
    path.write_text(path.read_text().replace("{", f'{{"{first}": {private},', 1))


def key_of_labels_twice(run):
    key_twice(run, "labels.json")


def key_of_a_manifest_twice(run):
    key_twice(run, "student/2/assets.extra/digests.json")


def blanks_in_a_manifest(run):
    path = run / EXTRA / "digests.json"
    path.write_text(json.dumps(json.loads(path.read_text()), indent=7))


def encoder_of_records(run):
    description = np.frombuffer(b"x", np.uint8)
    np.savez(run / "released/encoder.npz", description=description, **{"0": private_values(run)})


def page_for_the_signer(run):
    (run / "released/report.html").write_text(f"<html>{secret(run).decode()}")


def analysis_of_records(run):
    (run / "released/analysis.json").write_text(json.dumps({"x": secret(run).decode()}))


def picture_of_records(run):
    content = b"\x89PNG\r\n\x1a\n" + secret(run) + b"IEND\xaeB`\x82"
    (run / "released/epsilon_data_independent.png").write_bytes(content)


def log_of_records(run):
    import tensorflow as tf

    folder = run / "released/logs/student/2"
    with tf.summary.create_file_writer(str(folder)).as_default(step=0):
        tf.summary.text("x", secret(run).decode())
    artifacts.hide_host(folder)


def name_of_a_log(run):
    path = next((run / "released").rglob("events.out*"))
    path.rename(path.with_name(f"events.out.tfevents.1234567890.host.{secret(run)[:50].hex()}"))


def number_of_an_empty_folder(run):
    (run / f"released/student/{int.from_bytes(secret(run)[:50], 'big')}").mkdir()


def seals_deleted(run):
    (run / "sensitive" / artifacts.SEALS).unlink()
    page_for_the_signer(run)


def numbers_of_folders(run):
    (run / f"released/logs/{int.from_bytes(secret(run)[:50], 'big')}/student").mkdir(parents=True)


def moments_edited(run):
    path = run / "sensitive/feature_sums/vectors.npz"
    edit_arrays(path, moments=artifacts.read_arrays(path)["moments"] * 1.01)


def vectors_deleted(run):
    (run / "sensitive/feature_sums/vectors.npz").unlink()


def source_renamed(run):
    path = run / "sensitive/feature_sums/description.json"
    edit_json(path, source={"name": "other", "key": "name other"})


def hidden_file(run):
    (run / "released/.notes").write_bytes(secret(run))


def hidden_file_of_a_version(run):
    (run / STUDENT / "2/assets/.x").parent.mkdir(exist_ok=True)
    (run / STUDENT / "2/assets/.x").write_bytes(secret(run))


def extended_attribute(run):
    os.setxattr(run / LABELS, "user.private", secret(run)[:2_000])


def attribute_of_a_folder(run):
    os.setxattr(run / "released", "user.private", secret(run)[:2_000])


def copied_version(run):
    shutil.copytree(run / STUDENT / "2", run / STUDENT / "3")


def estimate_made_up(run):
    charge = pate_tf.mechanisms.LaplaceClusterCounts(scale=20.0, num_clusters=1)
    restate(run, estimated_accuracy=[0.99, 0.98, 1.0, 0.1, None], estimate_charge=charge.to_dict())


def opened_to_others(run):
    (run / "sensitive/feature_sums/sums.npz").chmod(0o644)


TAMPERINGS = {
    labels_replaced: "released labels: seal",
    noisy_sums_replaced: "released labels: seal",
    private_rows_in_labels: "released labels: arrays",
    cost_of_labels: "released labels: seal",
    truncated: "released labels",
    private_csv: "released files",
    link: "released files",
    released_is_a_link: "released files",
    named_folder: "released files",
    csv_as_picture: "released files",
    travelling: "versions of student",
    number_of_records: "statement",
    model_digest: "statement",
    statement_epsilon: "statement",
    statement_page: "statement",
    statement_deleted: "statement",
    statement_of_another_run: "statement",
    warm_up: "versions of student",
    weights: "versions of student",
    keras_model_deleted: "versions of student",
    manifest_rewritten: "versions of student",
    versions_swapped: "versions of student",
    newest_version_deleted: "statement",
    schema_class: "versions of student",
    ledger_row: "ledger",
    ledger_answer: "ledger",
    ledger_deleted: "ledger",
    ledger_of_rubbish: "ledger",
    sums_edited: "feature sums",
    opened_to_others: "sensitive files",
    comment_of_an_archive: "released labels",
    before_an_archive: "released labels",
    unlisted_member: "released labels",
    extra_field: "released labels",
    header_of_an_array: "released labels",
    key_twice: "statement",
    key_of_labels_twice: "released labels",
    key_of_a_manifest_twice: "versions",
    blanks_in_a_manifest: SEALS,
    encoder_of_records: SEALS,
    page_for_the_signer: SEALS,
    seals_deleted: SEALS,
    analysis_of_records: SEALS,
    picture_of_records: SEALS,
    log_of_records: SEALS,
    name_of_a_log: SEALS,
    number_of_an_empty_folder: "released files",
    numbers_of_folders: "released files",
    moments_edited: "feature sums",
    vectors_deleted: "feature sums",
    source_renamed: "feature sums",
    hidden_file: "released files",
    hidden_file_of_a_version: "versions of student",
    extended_attribute: "released files",
    attribute_of_a_folder: "released files",
    copied_version: "versions of student",
    estimate_made_up: "statement",
    accuracy: "statement",
    inputs_and_classes: "statement",
}


@pytest.mark.parametrize("tamper", TAMPERINGS, ids=lambda one: one.__name__)
def test_a_tampering_is_a_violation(tables, tmp_path, tamper):
    shutil.copytree(tables[0], tmp_path / "tables")
    tamper(tmp_path / "tables/run")
    audit = audit_run(tmp_path / "tables/run")
    assert audit.outcome == VIOLATION
    violated = {one.name for one in audit.checks if one.outcome == VIOLATION}
    assert TAMPERINGS[tamper] in violated, violated


def test_a_restored_copy_is_a_violation(tables, tmp_path, monkeypatch):
    root, state = tables
    shutil.copytree(root / "before", tmp_path / "run")
    # this folder contains no further information
    assert audit_run(tmp_path / "run").outcome == PASSED
    monkeypatch.setenv("PATE_TF_STATE", state)
    checks = {one.name: one for one in audit_run(tmp_path / "run").checks}
    registry, since = checks["ledger: registry"], checks["statement: releases since"]
    assert registry.outcome == VIOLATION and "restored from an older copy" in registry.detail
    assert since.detail.startswith("by now the ledgers of this source (1) have spent epsilon")


# Of votes.


def another_ensemble(run, data):
    shutil.rmtree(run / "sensitive/teachers")
    other = pate_tf.Teachers(
        "ridge", num_teachers=5, representation="raw", directory=run.parent / "other"
    )
    other.fit(data.private, data.pool)
    shutil.copytree(run.parent / "other/sensitive/teachers", run / "sensitive/teachers")


def record_without_teacher(run, data):
    path = run / "sensitive/teachers/partition.npz"
    assignment = artifacts.read_arrays(path)["assignment"].copy()
    assignment[0] = 99
    edit_arrays(path, assignment=assignment)


def no_partition(run, data):
    (run / "sensitive/teachers/partition.npz").unlink()


@pytest.mark.parametrize(
    "tamper, name",
    [
        (no_partition, "teachers"),
        (another_ensemble, "ensemble"),
        (record_without_teacher, "partition: one teacher for each record"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_a_tampering_with_votes_is_a_violation(votes, data, tmp_path, tamper, name):
    shutil.copytree(votes, tmp_path / "run")
    tamper(tmp_path / "run", data)
    checks = audit_run(tmp_path / "run").checks
    assert name in {one.name for one in checks if one.outcome == VIOLATION}


def test_seeded_noise_is_a_violation(tmp_path, data):
    sums = pate_tf.FeatureSums(directory=tmp_path / "run", representation="raw")
    sums = sums.fit(data.private, data.pool)
    with pate_tf.Labeller(sums, epsilon=4.0, delta=1e-5, insecure_seed=3) as labeller:
        labeller.label(data.pool)
    checks = audit_run(tmp_path / "run").checks
    violated = {one.name for one in checks if one.outcome == VIOLATION}
    assert violated == {"ledger: noise"}


def test_what_a_killed_command_left_is_no_violation(tables, tmp_path):
    """The audit names the leftover file, but does not treat it as a released file."""
    root, _ = tables
    shutil.copytree(root / "run", tmp_path / "run")
    for half in ("released/student", "sensitive"):
        left = artifacts.temporary_name(tmp_path / "run" / half / "3")
        left.mkdir(mode=0o755)
        (left / "saved_model.pb").write_bytes(b"half")
    names = (f"unfinished_student/{16 * '0'}.npz", "logs/student/3/events.out.tfevents.1.a")
    for name in names:
        path = tmp_path / "run/released" / name
        path.parent.mkdir(parents=True)
        path.write_bytes(b"half")
    audit = audit_run(tmp_path / "run")
    outcomes = {check.name: check.outcome for check in audit.checks}
    assert outcomes["released files: half-written"] == NOT_CHECKED and audit.outcome == PASSED


def test_a_pipe_does_not_stop_an_audit(tmp_path):
    (tmp_path / "released").mkdir()
    os.mkfifo(tmp_path / "released/labels.json")
    with pytest.raises(ValueError, match=r"labels.json is neither a file nor a folder"):
        audit_run(tmp_path)


def test_a_folder_that_is_no_run_is_one_line(tmp_path):
    for read in (audit_run, report_page):
        with pytest.raises(ValueError, match=r"train_dir: .* (is not a run|has no privacy)"):
            read(tmp_path)


def test_the_exit_code_says_what_was_found(tables, tmp_path):
    """0: passed. 1: a violation or a broken ledger. 2: the audit could not run."""
    shutil.copytree(tables[0], tmp_path / "tables")
    run = tmp_path / "tables/run"

    audit = functools.partial(run_script, "pate_tf/cli/main.py", "audit", folder=tmp_path)
    ended = audit("run", f"--train_dir={run}")
    assert ended.code == 0, ended.out + ended.err
    assert "PASSED" in ended.out and (run / "sensitive/audit/run.json").exists()
    page = run / "released/report.html"
    assert "<b>Audit: PASSED</b>" in page.read_text()
    assert audit_run(run).outcome == PASSED
    ledger_row(run)
    ended = audit("run", f"--train_dir={run}")
    assert ended.code == 1 and "violation    ledger: broken" in ended.out
    assert not page.exists() and (run / "sensitive/audit/report.html").exists()
    assert "Traceback" not in ended.err
    for arguments in (["run"], ["run", f"--train_dir={tmp_path}/none"], ["canaries"]):
        assert audit(*arguments).code == 2


def test_the_page_holds_the_statement_and_loads_nothing(tables):
    root = pathlib.Path(tables[0]) / "run"
    page = report_page(root, audit=audit_run(root))
    assert "<td>not checked</td><td>this ledger is not in" in page
    statement = json.loads((root / "released/privacy_statement.json").read_text())
    assert statement["student_digest"][:8] in page and "<h2>Charges</h2>" in page
    weights = root / STUDENT / "2/variables/variables.index"
    for text in (
        "--statement=run/released/privacy_statement.json --train_dir=run</code>",
        f"<code>{hashlib.sha256(weights.read_bytes()).hexdigest()}</code>",
        "This is a classifier that predicts kind (a, b, c) from 4 columns.",
        "A record is one row of the table with its label.",
        "cd run/released &amp;&amp; find",
    ):
        assert text in page, text
    for mark in ("<script", "src=", "href=", "url(", "@import", "**", "| "):
        assert mark not in page
