"""The audit of a run folder: a run that is right passes, each thing tampered with is found."""

import dataclasses
import json
import re
import shutil
import sqlite3

import numpy as np
import pytest

import pate_tf
from pate_tf.api.feature_sums import digest_of
from pate_tf.audit import audit_canaries, audit_page, audit_run, report_page
from pate_tf.audit.mechanism import NO_POWER, PASSED, VIOLATION
from pate_tf.core import artifacts
from pate_tf.core.dataset import Dataset
from pate_tf.teachers.ensemble import SavedEncoder

NUM_TEACHERS = 6


@pytest.fixture(scope="module")
def data():
    """Small tables: three classes that lie apart."""
    generator = np.random.default_rng(5)
    labels = generator.integers(0, 3, 700)
    inputs = generator.normal(0.0, 0.6, (700, 6)).astype(np.float32)
    inputs[np.arange(700), labels] += 2.0
    return pate_tf.Data.from_arrays(
        *(inputs[:500], labels[:500], inputs[500:], labels[500:]),
        num_classes=3,
        value_range=(-4.0, 6.0),
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory, data):
    """A run of teachers and one of feature sums, both with a published student."""
    root = tmp_path_factory.mktemp("audited")
    sums = pate_tf.FeatureSums(directory=root / "sums", representation="raw")
    sums = sums.fit(data.private, data.pool)
    teachers = pate_tf.Teachers(
        "nearest_mean",
        num_teachers=NUM_TEACHERS,
        representation="raw",
        directory=root / "pate",
    ).fit(data.private, data.pool)
    shutil.copytree(root / "sums", root / "rounds")
    in_rounds = pate_tf.FeatureSums(directory=root / "rounds", representation="raw")
    for source, noise, number in (
        (sums, {"epsilon": 4.0}, {}),
        (in_rounds.fit(data.private, data.pool), {"epsilon": 40.0, "num_rounds": 3}, {}),
        (teachers, {"mechanism": pate_tf.LaplaceNoisyMax(scale=2.0)}, {"num_queries": 40}),
    ):
        with pate_tf.Labeller(source, delta=1e-5, **noise) as labeller:
            labels = labeller.label(data.pool, **number)
            labels.save(source.directory / "released")
            student = pate_tf.Student("supervised", steps=30).fit(data.pool, labels)
            pate_tf.publish(student, source.directory / "released")
    return root


@pytest.fixture
def run(runs, tmp_path):
    """A copy of both, to be tampered with."""
    shutil.copytree(runs, tmp_path / "runs")
    return tmp_path / "runs"


def violated(found):
    return {one.name for one in found.checks if one.outcome == VIOLATION}


@pytest.mark.parametrize("name", ["pate", "sums", "rounds"])
def test_a_right_run_passes_with_its_data(runs, data, name):
    found = audit_run(runs / name, data=data)
    assert found.outcome == PASSED, violated(found)
    names = {one.name for one in found.checks if one.outcome == PASSED}
    if name == "pate":
        assert {
            "teachers depend on their share alone",
            "partition follows from the data",
            "stored teachers are those that answer",
            "stored votes are the teachers'",
            "released labels are the ledger's answers",
        } <= names
    else:
        assert {
            "sums are those of the records",
            "every vector's norm is at most 1",
            "cluster counts are those of the records",
            "cluster centres follow from the pool",
        } <= names
    assert {"statement", "student", "ledger: chain", "noise source"} <= names
    assert found.spending[-1]["epsilon"] > 0.0
    page = audit_page(found.to_dict())
    assert "SENSITIVE" in page and "<svg" in page


def test_without_its_data_what_follows_from_them_is_not_checked(runs):
    found = audit_run(runs / "pate")
    assert found.outcome == PASSED
    skipped = {one.name for one in found.checks if one.outcome == "not checked"}
    assert "teachers depend on their share alone" in skipped


def _edit(path, change):
    arrays = artifacts.read_arrays(path)
    change(arrays)
    artifacts.write_arrays(path, arrays, private=True)
    description = path.with_name("description.json")
    if description.exists():  # who edits sums can make their digest fit
        described = artifacts.read_json(description)
        del described["digest"]
        encoder = SavedEncoder(path.with_name("encoder"), Dataset.from_dict(described["dataset"]))
        described["digest"] = digest_of(described, arrays, encoder.digest)
        artifacts.write_json(description, described, private=True)


def _one_more(name):
    def change(arrays):
        arrays[name] = arrays[name].copy()
        arrays[name].flat[0] += 1

    return change


def _exchange_shares(run):
    def change(arrays):
        arrays["assignment"] = np.roll(arrays["assignment"], 1)

    _edit(run / "pate/sensitive/teachers/partition.npz", change)


def _teacher(run):
    (path,) = (run / "pate/sensitive/teachers").glob("finished-*.npz")
    _edit(path, _one_more("stacked/0"))


def _sums(run):
    _edit(run / "sums/sensitive/feature_sums/sums.npz", _one_more("sums"))


def _counts(run):
    path = run / "sums/sensitive/feature_sums/sums.npz"
    _edit(path, _one_more(f"counts_{artifacts.read_arrays(path)['resolutions'][0]}"))


def _no_noise(run):
    """The stored sums are what was released."""
    with sqlite3.connect(run / "sums/sensitive/ledger.sqlite3") as connection:
        (counts,) = connection.execute("SELECT noisy_counts FROM answers").fetchone()
    values = np.frombuffer(counts, "<i8")

    def change(arrays):
        arrays["sums"] = values.reshape(arrays["sums"].shape).copy()

    _edit(run / "sums/sensitive/feature_sums/sums.npz", change)


def _ledger(run):
    with sqlite3.connect(run / "pate/sensitive/ledger.sqlite3") as connection:
        connection.execute("UPDATE answers SET label = (label + 1) % 3 WHERE position = 1")


def _statement(run):
    path = run / "pate/released/privacy_statement.json"
    fields = json.loads(path.read_text())
    fields["epsilon"] = fields["epsilon"] / 2
    path.write_text(json.dumps(fields))


def _student(run):
    shutil.copytree(run / "sums/released/student/1", run / "pate/released/student/2")


def _votes(run):
    path = next((run / "pate/sensitive/votes").glob("*.npz"))
    shutil.copy(path, run / "pate/released/extra.npz")


def _array(run):
    shares = artifacts.read_arrays(run / "pate/sensitive/teachers/partition.npz")["assignment"]
    (run / "pate/released/notes.bin").write_bytes(b"head" + shares.tobytes())


def _number(run):
    values = {"epsilon_data_dependent": 3.14159265}
    artifacts.write_json(run / "pate/sensitive/report.json", values, private=True)
    (run / "pate/released/notes.md").write_text("It costs 3.14159265 in fact.")


def _no_ledger(run):
    for path in (run / "pate/sensitive").glob("ledger*"):
        path.unlink()


def _sums_that_say_that_they_are_teachers(run):
    """And would be left out, if what a run says of itself decided."""
    path = run / "sums/sensitive/run.json"
    artifacts.write_json(path, {**artifacts.read_json(path), "method": "pate"}, private=True)
    _sums(run)


def _nothing_said(run):
    (run / "pate/sensitive/run.json").unlink()
    _exchange_shares(run)


def _page(run):
    path = run / "sums/released/privacy_statement.md"
    path.write_text(re.sub(r"4(?=[^0-9])", "2", path.read_text(), count=3))


def _votes_changed(run):
    def change(arrays):
        arrays["counts"] = np.roll(arrays["counts"], 1, axis=1)

    _edit(next((run / "pate/sensitive/votes").glob("*.npz")), change)


def _labels(run):
    """Labels that were never charged, with a digest that fits."""
    path = run / "pate/released/labels.npz"
    arrays = artifacts.read_arrays(path)
    arrays["labels"] = (arrays["labels"] + 1) % 3
    artifacts.write_arrays(path, arrays)
    fields = artifacts.read_json(path.with_suffix(".json"))
    fields["labels_digest"] = artifacts.digest_arrays(arrays[one] for one in sorted(arrays))
    artifacts.write_json(path.with_suffix(".json"), fields)


def _earlier_version(run):
    """An older version of another student, that a server could be told to load."""
    (run / "pate/released/student/1").rename(run / "pate/released/student/2")
    shutil.copytree(run / "sums/released/student/1", run / "pate/released/student/1")
    variables = run / "pate/released/student/1/variables"
    shutil.rmtree(variables)
    shutil.copytree(run / "pate/released/student/2/variables", variables)


def _ensemble(run):
    """What answers is another ensemble than the teachers that are stored."""
    path = run / "pate/sensitive/teachers/ensemble/variables"
    (file,) = path.glob("variables.data*")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content))


@pytest.mark.parametrize(
    "tamper, name, found_by",
    [
        (_exchange_shares, "pate", "teachers depend on their share alone"),
        (_teacher, "pate", "teachers depend on their share alone"),
        (_sums, "sums", "sums are those of the records"),
        (_counts, "sums", "cluster counts are those of the records"),
        (_no_noise, "sums", "sums are those of the records"),
        (_ledger, "pate", "ledger: chain"),
        (_statement, "pate", "statement"),
        (_student, "pate", "student"),
        (_no_ledger, "pate", "ledger"),
        (_sums_that_say_that_they_are_teachers, "sums", "sums are those of the records"),
        (_nothing_said, "pate", "teachers depend on their share alone"),
        (_page, "sums", "statement"),
        (_votes_changed, "pate", "stored votes are the teachers'"),
        (_labels, "pate", "released labels are the ledger's answers"),
        (_earlier_version, "pate", "student"),
        (_ensemble, "pate", "stored teachers are those that answer"),
        (_votes, "pate", "no sensitive file is released"),
        (_array, "pate", "no sensitive array is released"),
        (_number, "pate", "no sensitive number is released"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_what_was_tampered_with_is_found(run, data, tamper, name, found_by):
    tamper(run)
    found = audit_run(run / name, data=data, num_teachers=NUM_TEACHERS)
    assert found.outcome == VIOLATION
    assert found_by in violated(found)


def test_seeded_noise_is_found(tmp_path, data):
    sums = pate_tf.FeatureSums(directory=tmp_path / "run", representation="raw")
    sums = sums.fit(data.private, data.pool)
    with pate_tf.Labeller(sums, epsilon=4.0, delta=1e-5, insecure_seed=3) as labeller:
        labeller.label(data.pool)
    found = audit_run(tmp_path / "run", data=data)
    assert {"ledger: noise", "noise of row 2 is from no small seed"} <= violated(found)


def test_a_folder_that_is_no_run_is_one_line(tmp_path):
    with pytest.raises(ValueError, match="train_dir: expected the folder of a run"):
        audit_run(tmp_path)
    with pytest.raises(ValueError, match="train_dir: expected the folder of a run"):
        report_page(tmp_path)


@pytest.mark.parametrize("name", ["pate", "sums"])
def test_canaries_find_no_more_than_is_claimed_and_something(runs, data, name):
    if name == "pate":
        with pytest.raises(ValueError, match="data: expected the private records"):
            audit_canaries(runs / name)
        return
    found = audit_canaries(runs / name, num_canaries=400, num_reruns=8_000)
    assert found.outcome in (PASSED, NO_POWER)
    assert 0.0 <= found.lower_bound <= found.claimed == pytest.approx(4.0, rel=1e-6)
    assert 0.2 * found.rerun_claimed < found.rerun_lower_bound <= found.rerun_claimed
    # Gaussian noise of epsilon 4: two means are .93 standard deviations apart.
    assert 0.001 < found.true_positive_rate < 0.1
    assert "<svg" in audit_page(dataclasses.asdict(found) | {"audit": "canaries"})


# The page for the person who signs.


@pytest.mark.parametrize("name", ["pate", "sums"])
def test_the_report_holds_nothing_sensitive_and_loads_nothing(run, data, name):
    audit_run(run / name, data=data)
    artifacts.write_json(
        run / name / "sensitive/student_report.json",
        {
            "student_accuracy": 0.8123,
            "student_accuracy_interval": [0.75, 0.86],
            "epsilon_data_dependent": 1.2345678,
            "sensitive": ["epsilon_data_dependent"],
        },
        private=True,
    )
    public, inside = (report_page(run / name, sensitive=one) for one in (False, True))
    assert "1.235" not in public and "SENSITIVE" not in public
    assert "1.235" in inside and "SENSITIVE" in inside
    statement = json.loads((run / name / "released/privacy_statement.json").read_text())
    for page in (public, inside):
        assert not re.findall(r"(?:src|href)=|url\(|@import|<script", page)
        assert "81.2%" in page and statement["student_digest"] in page
        assert page.count("<svg") == 2


def test_vectors_of_other_records_are_found_before_later_rounds_rest_on_them(run, data):
    path = run / "rounds/sensitive/feature_sums/vectors.npz"
    arrays = artifacts.read_arrays(path)
    _one_more("vectors")(arrays)
    artifacts.write_arrays(path, arrays, private=True)
    assert "sums are those of the records" in violated(audit_run(run / "rounds", data=data))
    path.write_bytes(b"none")
    found = violated(audit_run(run / "rounds", data=data))
    assert "sums are those of the records" in found
    assert any(one.startswith("noise of the sums released") for one in found)
