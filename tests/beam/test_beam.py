"""Pipelines of Apache Beam give to the last bit what one process gives."""

import ast
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import traceback
from importlib import metadata

import beam_helpers as helpers
import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from script_processes import Ended, learn_little, run_fresh, run_script

import pate_tf

pytest.importorskip("apache_beam", reason="needs pip install 'pate_tf[beam]', as CI has it")

from pate_tf.accounting.conversions import LATTICE
from pate_tf.beam import pipelines, sources
from pate_tf.core.reporting import Reporting
from pate_tf.data.data_source import DataSource
from pate_tf.release.feature_sums import FeatureSums
from pate_tf.release.labeller import Labeller
from pate_tf.representations import contrastive
from pate_tf.serving.served import ServedStudent
from pate_tf.teachers.run_folder import described_run

ROWS = helpers.table()


@pytest.fixture(scope="module")
def here(tmp_path_factory) -> pathlib.Path:
    return tmp_path_factory.mktemp("table")


@pytest.fixture(scope="module")
def data(here) -> DataSource:
    """The public side; and the private one in three formats, each in two files."""
    source = helpers.write_public(here)
    for ending, write in (
        ("csv", helpers.write_csv),
        ("parquet", helpers.write_parquet),
        ("tfrecord", helpers.write_tfrecord),
    ):
        write(here / f"records-0.{ending}", ROWS[:250])
        write(here / f"records-1.{ending}", ROWS[250:])
    return source


def of_owners(data: DataSource) -> DataSource:
    return dataclasses.replace(data, files=dataclasses.replace(data.files, owner="who"))


def files_of(folder: pathlib.Path) -> set[str]:
    found = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    return {name for name in found if "variables.data" not in name}


@pytest.fixture(scope="module")
def alone(here, data) -> dict[str, FeatureSums]:
    """The sums of one process, with owners and without."""
    pool = data.files.load_public().split(40).pool
    return {
        unit: FeatureSums(directory=here / f"one {unit}").fit(
            helpers.examples(data, ROWS, owners=unit == "owner"), pool
        )
        for unit in ("record", "owner")
    }


def assert_same(found: FeatureSums, other: FeatureSums) -> None:
    """To the last bit; but records are told apart with the key of each folder."""
    np.testing.assert_array_equal(found.table, other.table)
    left = [{**stored.description, "records": None} for stored in (found, other)]
    assert left[0] == left[1] and found.encoder_digest == other.encoder_digest


def summed(data, folder, pattern, **given) -> FeatureSums:
    bad_rows = given.pop("bad_rows", "refuse")
    engine = pipelines.Engine(**given)
    return pipelines.sums(
        data, directory=folder, private=str(pattern), pool_size=40, bad_rows=bad_rows, engine=engine
    )


@pytest.mark.parametrize(
    ("unit", "pattern", "given"),
    [
        ("record", "records-*.parquet", {}),
        ("owner", "records-?.csv", {"rows": 37, "buckets": 1}),
        # Each bundle twice more, as if its first results had been lost.
        (
            "owner",
            "records-*.parquet",
            {"rows": 11, "options": ["--direct_runner_bundle_repeat=2"]},
        ),
        ("record", "records-*.csv", {"buckets": 2_000, "options": ["--direct_num_workers=3"]}),
    ],
)
def test_sums_are_those_of_one_process(here, data, alone, tmp_path, unit, pattern, given):
    source = of_owners(data) if unit == "owner" else data
    found = summed(source, tmp_path / "run", here / pattern, **given)
    assert_same(found, alone[unit])
    # Without vectors, for several rounds, and what tells the holder of other runs of the records.
    others = {"sensitive/feature_sums/vectors.npz", "sensitive/same_records.json"}
    assert files_of(tmp_path / "run") == files_of(here / f"one {unit}") - others
    one, other = described_run(tmp_path / "run"), described_run(here / f"one {unit}")
    assert dataclasses.replace(one, source={}) == dataclasses.replace(other, source={})
    # With the key of one process's folder the records are those: its sums are taken up again.
    shutil.copytree(here / f"one {unit}", tmp_path / "one")
    again = summed(source, tmp_path / "one", here / pattern, **given)
    assert again.digest == alone[unit].digest != found.digest
    if not given:
        with pytest.raises(ValueError, match=r"holds .*feature sums .*records"):
            summed(source, tmp_path / "run", here / "records-0.parquet")


def test_examples_of_tfrecord_are_read(here, data, tmp_path):
    """Their numbers are of single precision."""
    rows = [
        [*map(np.float32, row[:1]), row[1] and float(np.float32(row[1])), *row[2:]] for row in ROWS
    ]
    helpers.write_csv(tmp_path / "same.csv", [[float(row[0]), *row[1:]] for row in rows])
    one = summed(data, tmp_path / "one", here / "records-*.tfrecord")
    two = summed(data, tmp_path / "two", tmp_path / "same.csv")
    assert_same(one, two)


def test_a_labeller_releases_them(here, data, tmp_path):
    summed(data, tmp_path, here / "records-*.parquet")
    pool = data.files.load_public().split(40).pool
    with Labeller(FeatureSums.load(tmp_path), epsilon=8.0, delta=1e-5) as labeller:
        assert len(labeller.label(pool)) == 40
        assert labeller.spent().epsilon <= 8.0


BAD = (
    [1.0, 0.0, "A"],  # too few fields
    [1.0, 0.0, "A", "no", "x", "more"],
    ["nan", 0.0, "A", "no", "x"],
    [1.0, "inf", "A", "no", "x"],
    ["", 0.0, "A", "no", "x"],
    ["old", 0.0, "A", "no", "x"],
    [1.0, 0.0, "A", "maybe", "x"],
    [1.0, 0.0, "A", "", "x"],
)


class Notes:
    """What a run tells of itself."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.reporting = Reporting(note=self.texts.append, warn=self.texts.append)


def test_records_that_do_not_fit_are_refused_or_left_out(here, data, alone, tmp_path):
    rows = list(ROWS)
    for place, bad in enumerate(BAD):
        rows.insert(50 * place, bad)
    helpers.write_csv(tmp_path / "bad.csv", rows)
    with pytest.raises(ValueError, match="expected records that fit the schema, got some that do"):
        summed(data, tmp_path / "run", tmp_path / "bad.csv", rows=100)
    assert not (tmp_path / "run" / "sensitive" / "feature_sums").exists()
    found = summed(data, tmp_path / "run", tmp_path / "bad.csv", rows=100, bad_rows="drop")
    np.testing.assert_array_equal(found.table, alone["record"].table)
    assert found.num_records == len(rows) and found.description["left_out"] == len(BAD)
    # An owner is needed, too.
    helpers.write_csv(tmp_path / "bad.csv", [*ROWS, [*ROWS[0][:4], ""]])
    found = summed(of_owners(data), tmp_path / "owners", tmp_path / "bad.csv", bad_rows="drop")
    np.testing.assert_array_equal(found.table, alone["owner"].table)


def test_how_many_records_do_not_fit_is_told_in_sensitive_alone(here, data, tmp_path):
    """Two tables that differ in one record: what is public or shown is the same."""
    shown, stored = [], []
    for name, first in (("fits", ROWS[0]), ("does not", ["old", *ROWS[0][1:]])):
        helpers.write_csv(tmp_path / "rows.csv", [first, *ROWS[1:]])
        notes = Notes()
        found = pipelines.sums(
            data,
            directory=tmp_path / name,
            private=str(tmp_path / "rows.csv"),
            pool_size=40,
            bad_rows="drop",
            reporting=notes.reporting,
        )
        stored.append(found.description["left_out"])
        shown.append(([text.replace(name, "") for text in notes.texts], found.num_records))
        assert "sensitive/feature_sums/description.json" in notes.texts[0]
    assert stored == [0, 1] and shown[0] == shown[1] and shown[0][1] == len(ROWS)


def test_an_error_of_a_library_in_a_worker_quotes_no_record(here, data, tmp_path, monkeypatch):
    def blocks(source, span):
        yield from real(source, span)
        np.array(["Ms Who"]).astype(float)

    real = sources.TableRecords.blocks
    monkeypatch.setattr(sources.TableRecords, "blocks", blocks)
    with pytest.raises(ValueError, match="expected readable records, got ValueError") as refused:
        summed(data, tmp_path, here / "records-0.csv")
    assert "Ms Who" not in "".join(traceback.format_exception(refused.value))


def test_each_bad_record_alone_decides(data):
    """Whatever stands next to it, in whatever order."""
    source = sources.source_of(data, "unused", data.files.load_public())
    rows = [row for row in BAD if len(row) == 5] + [list(row) for row in ROWS[:10]]
    fits = [len(_read(source, [row])) for row in rows]
    assert fits == [0] * 6 + [1] * 10
    order = np.random.default_rng(0).permutation(len(rows))
    together = _read(source, [rows[place] for place in order])
    assert together.tolist() == [place for place, row in enumerate(order) if fits[row]]


def _read(source, rows) -> np.ndarray:
    columns = {name: [str(row[place]) for row in rows] for place, name in enumerate(helpers.NAMES)}
    return source._block(columns, np.arange(len(rows)), "path").places


def test_workers_may_share_a_folder_of_a_remote_file_system(here, data, alone, tmp_path):
    """Objects without folders, as on gs:// and s3://; nothing stays there."""
    kept = tmp_path / "kept"
    kept.mkdir()
    store = helpers.object_store(kept)
    source = of_owners(data)
    pattern = here / "records-*.parquet"
    found = summed(source, tmp_path / "run", pattern, work_dir=f"{store.scheme()}://bucket/work")
    assert_same(found, alone["owner"])
    assert not list(kept.iterdir()) and not list(tmp_path.rglob("*beam*"))
    own = tmp_path / "own"
    found = summed(source, tmp_path / "other", pattern, work_dir=str(own))
    assert_same(found, alone["owner"])
    assert not list(own.iterdir())
    for place in ("nowhere://bucket/work", "s3://bucket/work", str(here / "public.csv")):
        with pytest.raises(ValueError, match="work_dir: expected a folder that can be") as said:
            summed(source, tmp_path / "third", pattern, work_dir=place)
        assert "\n" not in str(said.value) and not (tmp_path / "third").exists()


def test_what_does_not_fit_is_one_line(here, data, tmp_path):
    for pattern, given, message in (
        (here / "none-*.csv", {}, "expected files .*none-.*, got none"),
        ("s3://bucket/x-*.csv", {}, "expected files s3://bucket/x.*boto3"),
        (here / "records-0.csv", {"options": ["--runer=X"]}, "got '--runer=X'"),
        (here / "records-0.csv", {"options": ["--direct_num_workers=x"]}, "invalid int value"),
        (here / "schema.toml", {}, "expected a (column|name)"),
        (here / "broken.parquet", {}, "expected Parquet"),
        (here / "broken.tfrecord", {}, "expected TFRecord"),
    ):
        if "broken" in str(pattern):
            pattern.write_bytes(b"broken" * 40)
        with pytest.raises(ValueError, match=message) as caught:
            summed(data, tmp_path / "run", pattern, **given)
        assert "\n" not in str(caught.value)
    assert not list(tmp_path.rglob("*beam*"))  # nor is private data left behind


# Predictions.


def test_features_of_many_inputs(here, data, alone, tmp_path, monkeypatch):
    public = data.files.load_public()
    monkeypatch.chdir(data.files.public.parent)
    named = pipelines.predict(
        data,
        output=str(tmp_path / "named"),
        features_of=here / "one record",
        inputs="publi*.csv",  # a pattern without a folder
    )
    assert named == (len(public), 0)
    number, bad = pipelines.predict(
        data,
        output=str(tmp_path / "out"),
        features_of=here / "one record",
        engine=pipelines.Engine(rows=7),
    )
    assert (number, bad) == (len(public), 0)
    with np.load(tmp_path / "out" / "part-000000.npz") as arrays:
        np.testing.assert_array_equal(arrays["record"], np.arange(len(public)))
        np.testing.assert_allclose(
            arrays["features"], alone["record"].features(public.inputs), atol=1e-6
        )
    with pytest.raises(ValueError, match="output: expected a new or an empty folder"):
        pipelines.predict(data, output=str(tmp_path / "out"), features_of=here / "one record")
    with pytest.raises(ValueError, match="student: expected a student or features_of"):
        pipelines.predict(data, output=str(tmp_path / "x"))
    with pytest.raises(ValueError, match="student: expected a SavedModel"):
        pipelines.predict(data, output=str(tmp_path / "x"), student=tmp_path)


# What is installed.


def test_the_constraints_hold_for_beam_and_silos_together():
    """Each pinned version fits what the extras, Beam and gRPC ask for."""
    root = pathlib.Path(pate_tf.__file__).parents[1]
    lines = (root / "constraints.txt").read_text().splitlines()
    pins = {canonicalize_name(one.partition("==")[0]): one.partition("==")[2] for one in lines}
    setup = ast.parse((root / "setup.py").read_text()).body[-1].value
    given = {word.arg: word.value for word in setup.keywords}
    extras = ast.literal_eval(given["extras_require"])
    asked = [*ast.literal_eval(given["install_requires"]), *extras["beam"], *extras["silos"]]
    for name in ("apache-beam", "grpcio-health-checking", "grpcio-tools", "tensorflow"):
        asked += metadata.requires(name)
    checked = 0
    for requirement in map(Requirement, asked):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            pin = pins[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(pin), (str(requirement), pin)
            checked += 1
    assert checked > 50


# Commands.


def command(folder: pathlib.Path, *arguments: str) -> Ended:
    return run_fresh("-m", "pate_tf.cli.main", *arguments, folder=folder)


def test_the_commands_from_sums_to_a_published_student(tmp_path, monkeypatch):
    """Of the digits, with an option of Beam's; then predictions of the student."""
    for name in ("STEPS", "STUDENT_STEPS"):
        monkeypatch.setattr(contrastive, name, 30)
    ended = command(
        tmp_path,
        *("sums", "--dataset=digits", "--train_dir=run", "--representation=raw"),
        *("--direct_num_workers", "2", "--rows=300"),
    )
    assert ended.code == 0 and "records   1,200" in ended.out, ended.err
    data = pate_tf.Data.load("digits")
    alone = FeatureSums(directory=tmp_path / "one", representation="raw")
    alone.fit(data.private, data.pool)
    assert_same(FeatureSums.load(tmp_path / "run"), alone)
    # At small epsilon, counts of records in clusters; where they say nothing, nothing is charged.
    ended = run_script(
        *("train_student.py", "--train_dir=run", "--method=feature_sums", "--epsilon=.01"),
        folder=tmp_path,
    )
    assert ended.code == 1 and "records say more than noise" in ended.err.splitlines()[-1]
    assert not list((tmp_path / "run").rglob("ledger*"))
    shutil.copytree(tmp_path / "run", tmp_path / "small")
    with Labeller(FeatureSums.load(tmp_path / "small"), epsilon=0.5, delta=1e-5) as labeller:
        labels = labeller.label(data.pool)
        assert labeller.spent().epsilon <= 0.5
    number = len(labels.released.noisy_sums)
    noise = labels.released.noisy_sums - alone.cluster_counts[number].values
    assert 0.3 < np.abs(noise).mean() / (4.0 * LATTICE) < 3.0  # Laplace noise of scale 4
    ended = run_script(
        *("train_student.py", "--train_dir=run", "--method=feature_sums", "--epsilon=8"),
        *("--student=supervised", "--model=mlp", "--max_steps=50"),
        folder=tmp_path,
        setup=learn_little,
    )
    assert ended.code == 0, ended.err
    stated = json.loads((tmp_path / "run/released/privacy_statement.json").read_text())
    assert stated["mechanism"]["name"] == "gaussian_feature_sums" and 7.9 < stated["epsilon"] <= 8.0
    student = "run/released/student/1"
    ended = command(tmp_path, "predict", "--dataset=digits", f"--student={student}", "--output=out")
    assert ended.code == 0 and "inputs  597" in ended.out, ended.err
    public = data.public.pool.inputs
    with np.load(tmp_path / "out" / "part-000000.npz") as arrays:
        labels, probabilities = ServedStudent(tmp_path / student).answer(public)
        np.testing.assert_array_equal(arrays["label"][: len(public)], labels)
        np.testing.assert_allclose(arrays["probabilities"][: len(public)], probabilities, atol=1e-5)


def test_the_command_merges_parts_without_beam(here, data, tmp_path):
    for part in range(2):
        summed(data, tmp_path / f"part {part}", here / f"records-{part}.csv")
    ended = command(tmp_path, "sums", "merge", "part 0", "part 1", "--train_dir=merged")
    assert ended.code == 0 and f"records   {len(ROWS)}" in ended.out, ended.err
    whole = summed(data, tmp_path / "whole", here / "records-*.csv")
    assert_same(FeatureSums.load(tmp_path / "merged"), whole)


def test_commands_refuse_in_one_line(tmp_path):
    for arguments, told in (
        (("sums", "--datset=digits"), "got '--datset=digits'"),
        (("sums", "--dataset=digits", "--epsilon=.01"), "got '--epsilon=.01'"),
        (("sums", "--private=x.csv"), "public: expected it with --private"),
        (("sums", "merge", "a", "--train_dir=x"), "at least two run folders"),
        (("sums", "merge", "a", "b", "--train_dir=x"), "expected some in a/sensitive"),
        (("sums", "merge", "a", "b"), "train_dir: expected a folder"),
    ):
        ended = command(tmp_path, *arguments)
        assert ended.code in (1, 2) and ended.err.startswith("error: "), ended.err
        assert told in ended.err and ended.err.count("\n") == 1, ended.err


# Several processes, and one that is killed.

PROCESSES = ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]


@pytest.mark.long
def test_several_processes_give_the_same_bits(here, data, alone, tmp_path):
    found = summed(
        of_owners(data), tmp_path, here / "records-*.parquet", rows=20, options=PROCESSES
    )
    assert_same(found, alone["owner"])


def wait_for(what, seconds: float = 240.0):
    """Returns what a function finds, once it finds something."""
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end
        time.sleep(0.005)
    return found


def workers_of(process: int) -> list[int]:
    """The worker processes that Beam started, by number."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True)
    found = [line.split(None, 2) for line in listed.stdout.splitlines()]
    known = {process}
    for _ in range(3):  # a shell may stand between
        known |= {int(pid) for pid, parent, _ in found if int(parent) in known}
    return [int(pid) for pid, _, given in found if int(pid) in known and "sdk_worker" in given]


@pytest.mark.long
@pytest.mark.parametrize("killed", ["worker", "command"])
def test_a_process_is_killed_in_the_middle_and_the_next_run_gives_the_same(data, tmp_path, killed):
    """A worker: the run ends in one line. The command itself: its workers end, too."""
    number = 400
    rows = helpers.table(50 * number)
    rows = rows[: 50 * number]
    helpers.write_parquet(tmp_path / "records.parquet", rows, group=50)
    command_line = [
        *(sys.executable, "-m", "pate_tf.cli.main", "sums", f"--public={data.files.public}"),
        *("--private=records.parquet", f"--schema={data.files.schema}", "--stdnt_share=40"),
        *("--owner=who", "--train_dir=run", *PROCESSES),
    ]
    named = {
        "cwd": tmp_path,
        "env": {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        "stderr": subprocess.PIPE,
        "text": True,
    }
    running = subprocess.Popen(command_line, stdout=subprocess.DEVNULL, **named)
    left = tmp_path / "run" / "sensitive"
    wait_for(lambda: len(workers_of(running.pid)) == 2)
    workers = workers_of(running.pid)
    os.kill(workers[0] if killed == "worker" else running.pid, signal.SIGKILL)
    assert not list(left.rglob(pipelines.PARTIAL))  # in the middle
    _, told = running.communicate(timeout=400)
    if killed == "worker":
        assert running.returncode == 1
        assert told.splitlines()[-1].startswith("error: beam: expected workers that run to the end")
        assert not list((tmp_path / "run").rglob(".writing-*"))
    assert not list((tmp_path / "run").rglob("sums.npz"))
    wait_for(lambda: not any(pathlib.Path(f"/proc/{one}/cmdline").exists() for one in workers))
    subprocess.run(command_line, check=True, timeout=600, **named)
    pool = data.files.load_public().split(40).pool
    alone = FeatureSums(directory=tmp_path / "one")
    alone.fit(helpers.examples(data, rows, owners=True), pool)
    assert_same(FeatureSums.load(tmp_path / "run"), alone)
    assert not list((tmp_path / "run").rglob(".writing-*"))
