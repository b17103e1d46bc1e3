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
from pate_tf.api import teacher_training
from pate_tf.api.feature_sums import FeatureSums, StoredSums, digest_of, sums_folder
from pate_tf.api.labeller import Labeller
from pate_tf.api.reporting import Reporting
from pate_tf.api.run_folder import DataSource, described_run
from pate_tf.beam import merging, pipelines, sources
from pate_tf.core import artifacts
from pate_tf.core.partition import owner_partition, random_partition
from pate_tf.ledger import EnsembleMismatch, LedgerWarning
from pate_tf.representations import contrastive
from pate_tf.serving.served import ServedStudent
from pate_tf.teachers.kinds import Engine as OneProcess
from pate_tf.teachers.kinds import load_ensemble
from pate_tf.teachers.settings import TeacherSettings

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
def alone(here, data) -> dict[str, StoredSums]:
    """The sums of one process, with owners and without."""
    pool = data.files.load_public().split(40).pool
    return {
        unit: FeatureSums(directory=here / f"one {unit}")
        .fit(helpers.examples(data, ROWS, owners=unit == "owner"), pool)
        .stored
        for unit in ("record", "owner")
    }


def summed(data, folder, pattern, **given) -> StoredSums:
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
    assert found.digest == alone[unit].digest and found.unit == unit
    of_one = files_of(here / f"one {unit}") - {"sensitive/feature_sums/vectors.npz"}
    assert files_of(tmp_path / "run") == of_one  # without vectors, for several rounds
    one, other = described_run(tmp_path / "run"), described_run(here / f"one {unit}")
    assert dataclasses.replace(one, source={}) == dataclasses.replace(other, source={})
    # A second run gives the same; other records are refused.
    if not given:
        assert summed(source, tmp_path / "run", here / pattern).digest == found.digest
        with pytest.raises(
            ValueError, match="holds feature sums of other settings: private records"
        ):
            summed(source, tmp_path / "run", here / "records-0.parquet")


def test_examples_of_tfrecord_are_read(here, data, tmp_path):
    """Their numbers are of single precision."""
    rows = [
        [*map(np.float32, row[:1]), row[1] and float(np.float32(row[1])), *row[2:]] for row in ROWS
    ]
    helpers.write_csv(tmp_path / "same.csv", [[float(row[0]), *row[1:]] for row in rows])
    one = summed(data, tmp_path / "one", here / "records-*.tfrecord")
    two = summed(data, tmp_path / "two", tmp_path / "same.csv")
    assert one.digest == two.digest


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
    assert found.records.digest == alone["record"].records.digest
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
        folder = pipelines.teachers(
            data,
            directory=tmp_path / name / "teachers",
            num_teachers=4,
            private=str(tmp_path / "rows.csv"),
            pool_size=40,
            bad_rows="drop",
            reporting=notes.reporting,
        )
        stored.append(found.description["left_out"])
        ensemble = load_ensemble(folder)
        shown.append(
            (
                [text.replace(name, "") for text in notes.texts],
                found.records.num_records,
                ensemble.records.num_records,
            )
        )
        described = artifacts.read_json(folder.parent / "records.json")
        assert described["left_out"] == stored[-1]
        assert "sensitive/feature_sums/description.json" in notes.texts[0]
    assert stored == [0, 1] and shown[0] == shown[1] and shown[0][1:] == (len(ROWS),) * 2


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


def test_workers_may_share_a_folder_of_a_remote_file_system(
    here, data, alone, tmp_path, monkeypatch
):
    """Objects without folders, as on gs:// and s3://; nothing stays there."""
    monkeypatch.setattr(pipelines, "MOST_FILES", 2)  # more are merged in turns
    kept = tmp_path / "kept"
    kept.mkdir()
    store = helpers.object_store(kept)
    source = of_owners(data)
    pattern = here / "records-*.parquet"
    found = summed(source, tmp_path / "run", pattern, work_dir=f"{store.scheme()}://bucket/work")
    assert found.digest == alone["owner"].digest
    assert not list(kept.iterdir()) and not list(tmp_path.rglob("*beam*"))
    own = tmp_path / "own"
    found = summed(source, tmp_path / "other", pattern, work_dir=str(own))
    assert found.digest == alone["owner"].digest and not list(own.iterdir())
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


# Merged sums.


def distinct_rows(data) -> list[list[object]]:
    """Rows whose inputs differ."""
    inputs = helpers.examples(data, ROWS, owners=False).inputs
    first = np.sort(np.unique(inputs, axis=0, return_index=True)[1])
    return [ROWS[place] for place in first.tolist()]


@pytest.fixture(scope="module")
def parts(here, data) -> list[pathlib.Path]:
    rows = distinct_rows(data)
    folders = []
    for place in range(3):
        helpers.write_csv(here / f"part-{place}.csv", rows[place::3])
        folders.append(here / f"part {place}")
        summed(data, folders[-1], here / f"part-{place}.csv")
    return folders


def test_merged_sums_are_those_of_all_records(here, data, parts, tmp_path):
    helpers.write_csv(tmp_path / "all.csv", distinct_rows(data))
    whole = summed(data, tmp_path / "all", tmp_path / "all.csv")
    merged = merging.merge(parts, directory=tmp_path / "merged")
    assert merged.digest == whole.digest
    assert files_of(tmp_path / "merged") == files_of(tmp_path / "all")
    assert described_run(tmp_path / "merged").source["public"] == str(here / "public.csv")
    first = merging.merge(parts[:2], directory=tmp_path / "first")
    assert first.digest != merged.digest
    again = merging.merge([tmp_path / "first", parts[2]], directory=tmp_path / "again")
    assert again.digest == whole.digest


def test_what_may_not_be_merged_is_one_line(here, data, parts, tmp_path):
    def refused(message, *folders):
        with pytest.raises(ValueError, match=message) as caught:
            merging.merge(folders, directory=tmp_path / "merged")
        assert "\n" not in str(caught.value) and not (tmp_path / "merged").exists()

    def changed(name: str, change) -> pathlib.Path:
        folder = tmp_path / name
        shutil.copytree(parts[0], folder)
        change(sums_folder(artifacts.RunDirectory(folder)))
        return folder

    refused("at least two", parts[0])
    refused("expected records in one part each", parts[0], parts[1], parts[0])
    copy = changed("copy", lambda folder: None)
    refused("expected records in one part each", parts[0], copy)
    rows = distinct_rows(data)
    helpers.write_csv(tmp_path / "overlap.csv", [*rows[1::3], rows[0]])
    summed(data, tmp_path / "overlap", tmp_path / "overlap.csv")
    refused("expected records in one part each", parts[0], tmp_path / "overlap")

    other = sums_folder(artifacts.RunDirectory(parts[2]))
    for name in ("sums.npz", "records.npy", "description.json"):
        swapped = changed(
            f"swapped {name}", lambda folder, name=name: shutil.copy(other / name, folder / name)
        )
        refused("expected (complete ones|the digests)", swapped, parts[1])

    def edited(folder: pathlib.Path) -> None:
        arrays = artifacts.read_arrays(folder / "sums.npz")
        arrays["sums"][0, 0] += 1
        artifacts.write_arrays(folder / "sums.npz", arrays)

    refused("expected complete ones", changed("edited", edited), parts[1])

    def described(change):
        def write(folder: pathlib.Path) -> None:
            found = artifacts.read_json(folder / "description.json")
            change(found)
            artifacts.write_json(folder / "description.json", found)

        return write

    for name, change in (
        ("unit", lambda found: found.update(unit="owner")),
        ("encoder", lambda found: found.update(encoder="0" * 64)),
        ("fewer", lambda found: found.update(left_out=-100)),
        ("lanes", lambda found: found.update(records=["x", "y"])),
        ("no lanes", lambda found: found.pop("records")),
        ("other set", lambda found: found["record_set"].update(num_records=1)),
    ):
        folder = changed(f"description {name}", described(change))
        refused("expected complete ones", folder, parts[1])

    def regrouped(of_width):
        def write(folder: pathlib.Path) -> None:
            stored, arrays = StoredSums(folder), artifacts.read_arrays(folder / "sums.npz")
            arrays["groups"] = np.array(of_width(len(stored.scale)))
            digest = digest_of(stored.description, arrays, stored.encoder_digest)
            artifacts.write_arrays(folder / "sums.npz", arrays)
            artifacts.write_json(
                folder / "description.json", {**stored.description, "digest": digest}
            )

        return write

    other = changed("other groups", regrouped(lambda width: [width - 1, 1]))
    refused("expected feature sums of one representation", parts[1], other)
    for number, of_width in enumerate((lambda width: [width + 1], lambda width: [width + 1, -1])):
        folder = changed(f"no groups {number}", regrouped(of_width))
        refused("expected complete ones", folder, parts[1])

    def truncated(name: str):
        def cut(folder: pathlib.Path) -> None:
            content = (folder / name).read_bytes()
            (folder / name).write_bytes(content[: len(content) // 2])

        return cut

    for name in ("sums.npz", "description.json", "encoder/saved_model.pb"):
        refused("expected complete ones", changed(f"cut {name[:4]}", truncated(name)), parts[1])
    refused("expected (digests|the digests)", changed("cut", truncated("records.npy")), parts[1])
    # The same records under another name, in another order, in another format.
    helpers.write_parquet(tmp_path / "again.parquet", distinct_rows(data)[0::3][::-1])
    summed(data, tmp_path / "again", tmp_path / "again.parquet")
    refused("expected records in one part each", tmp_path / "again", parts[1], parts[0])
    # Of other public settings.
    pipelines.sums(
        data, directory=tmp_path / "pool", private=str(here / "part-0.csv"), pool_size=20
    )
    refused("expected feature sums of one encoder", parts[1], tmp_path / "pool")
    refused("expected some in", tmp_path / "nothing", parts[1])
    owners = of_owners(data)
    summed(owners, tmp_path / "owners 0", here / "part-0.csv")
    refused("feature sums of one unit", parts[1], tmp_path / "owners 0")


def test_a_part_is_no_place_for_the_whole_and_none_is_merged_into_it_twice(parts, tmp_path):
    shutil.copytree(parts[0], tmp_path / "a")
    with pytest.raises(ValueError, match="holds feature sums of other settings"):
        merging.merge([tmp_path / "a", parts[1]], directory=tmp_path / "a")
    merging.merge([tmp_path / "a", parts[1]], directory=tmp_path / "both")
    with pytest.raises(ValueError, match="expected records in one part each"):
        merging.merge([tmp_path / "both", parts[1]], directory=tmp_path / "twice")


def test_a_ledger_knows_the_sums_that_it_is_of(data, parts, tmp_path):
    """After a release other sums in the same folder are refused, with a digest that fits, too."""
    pool = data.files.load_public().split(40).pool
    shutil.copytree(parts[0], tmp_path / "run")
    with Labeller(FeatureSums.load(tmp_path / "run"), epsilon=8.0, delta=1e-5) as labeller:
        labeller.label(pool)
        spent = labeller.spent()
    own, other = (
        sums_folder(artifacts.RunDirectory(folder)) for folder in (tmp_path / "run", parts[1])
    )
    shutil.copytree(own, tmp_path / "right")
    arrays = artifacts.read_arrays(own / "sums.npz")
    arrays["sums"][0, 0] += 1
    described = artifacts.read_json(own / "description.json")
    described.pop("digest")
    described["digest"] = digest_of(described, arrays, StoredSums(own).encoder_digest)
    for swap in ("edited", "swapped"):
        shutil.rmtree(own)
        shutil.copytree(other if swap == "swapped" else tmp_path / "right", own)
        if swap == "edited":
            artifacts.write_arrays(own / "sums.npz", arrays)
            artifacts.write_json(own / "description.json", described)
        with pytest.raises(EnsembleMismatch) as said:
            Labeller(FeatureSums.load(tmp_path / "run"), epsilon=16.0, delta=1e-5)
        assert "\n" not in str(said.value)
    shutil.rmtree(own)
    shutil.copytree(tmp_path / "right", own)
    with Labeller(FeatureSums.load(tmp_path / "run"), epsilon=8.0, delta=1e-5) as labeller:
        labeller.label(pool)  # once more, of what was charged
        assert labeller.spent() == spent


def test_the_registry_knows_records_of_a_part_among_those_of_all(data, parts, tmp_path):
    pool = data.files.load_public().split(40).pool
    shutil.copytree(parts[0], tmp_path / "part")
    with Labeller(FeatureSums.load(tmp_path / "part"), epsilon=8.0, delta=1e-5) as labeller:
        labeller.label(pool)
    merging.merge(parts, directory=tmp_path / "whole")
    with pytest.warns(
        LedgerWarning, match="same private records are known; together they have spent epsilon 8 at"
    ):
        Labeller(FeatureSums.load(tmp_path / "whole"), epsilon=16.0, delta=1e-5).close()


def test_an_owner_is_in_one_part_only(here, data, tmp_path):
    source = of_owners(data)
    names = sorted({row[4] for row in ROWS})
    for place in range(2):
        rows = [row for row in ROWS if names.index(row[4]) % 2 == place]
        helpers.write_csv(tmp_path / f"{place}.csv", rows)
        summed(source, tmp_path / f"part {place}", tmp_path / f"{place}.csv")
    helpers.write_csv(tmp_path / "all.csv", ROWS)
    whole = summed(source, tmp_path / "all", tmp_path / "all.csv")
    parts = [tmp_path / "part 0", tmp_path / "part 1"]
    assert merging.merge(parts, directory=tmp_path / "merged").digest == whole.digest
    helpers.write_csv(tmp_path / "2.csv", [[5.0, 0.5, "A", "no", names[0]]])
    summed(source, tmp_path / "part 2", tmp_path / "2.csv")
    with pytest.raises(ValueError, match="expected owners in one part each"):
        merging.merge([parts[0], tmp_path / "part 2"], directory=tmp_path / "twice")


# Teachers.


@pytest.mark.parametrize(
    ("model", "unit"), [("ridge", "record"), ("nearest_mean", "owner"), ("ridge", "owner")]
)
def test_teachers_are_those_of_one_process(here, data, tmp_path, model, unit):
    """More than one group of them, some without a record."""
    number = 70
    private = helpers.examples(data, ROWS, owners=unit == "owner")
    shares = (
        random_partition(num_records=len(private), num_teachers=number, seed=3)
        if private.owners is None
        else owner_partition(private.owners, num_teachers=number, seed=3)
    )
    settings = TeacherSettings(model=model, seed=3)
    public = data.files.load_public()
    alone = teacher_training.train_teachers(
        settings,
        private,
        shares,
        pool=public.split(40).pool,
        folder=tmp_path / "one",
        engine=OneProcess(),
        pool_size=40,
    ).load()
    for pattern, rows in (("records-*.parquet", 50), ("records-*.csv", 2**15)):
        folder = pipelines.teachers(
            of_owners(data) if unit == "owner" else data,
            directory=tmp_path / pattern[-3:],
            num_teachers=number,
            settings=settings,
            private=str(here / pattern),
            pool_size=40,
            engine=pipelines.Engine(rows=rows),
        )
        found = load_ensemble(folder)
        assert found.digest == alone.digest and found.records == alone.records
    votes = found.votes(public.inputs[:9]).labels
    np.testing.assert_array_equal(votes, alone.votes(public.inputs[:9]).labels)


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
    data = pate_tf.datasets.load("digits")
    alone = FeatureSums(directory=tmp_path / "one", representation="raw")
    alone.fit(data.private, data.pool)
    assert FeatureSums.load(tmp_path / "run").stored.digest == alone.stored.digest
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
    noise = labels.released.noisy_sums - alone.stored.cluster_counts[number].values
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


def test_commands_refuse_in_one_line(here, parts, tmp_path):
    for arguments, told in (
        (("sums", "--datset=digits"), "got '--datset=digits'"),
        (("sums", "--dataset=digits", "--epsilon=.01"), "got '--epsilon=.01'"),
        (("sums", "--private=x.csv"), "public: expected it with --private"),
        (("sums", "merge", str(parts[0]), "--train_dir=x"), "at least two run folders"),
        (("sums", "merge", str(parts[0]), str(parts[0]), "--train_dir=x"), "in one part each"),
        (("sums", "merge", str(parts[0]), str(parts[1])), "train_dir: expected a folder"),
        (("beam-teachers", "--dataset=digits"), "nb_teachers: expected how many"),
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
    assert found.digest == alone["owner"].digest


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
    wait_for(lambda: len(list(left.rglob("records-*"))) > 5)
    workers = workers_of(running.pid)
    os.kill(workers[0] if killed == "worker" else running.pid, signal.SIGKILL)
    done = len(list(left.rglob("records-*")))
    assert len(workers) == 2 and done < number / 2  # in the middle
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
    assert FeatureSums.load(tmp_path / "run").stored.digest == alone.stored.digest
    assert not list((tmp_path / "run").rglob(".writing-*"))
