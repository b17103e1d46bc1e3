"""What a run of the teachers checks before it trains, and what its folder says of it."""

import dataclasses
import pathlib

import numpy as np
import pytest
from script_processes import run_script

import pate_tf
from pate_tf.core import artifacts
from pate_tf.core.public import PublicExamples
from pate_tf.core.reporting import QUIET
from pate_tf.data import catalogue as data
from pate_tf.data.data import FileSource
from pate_tf.teachers import teacher_training
from pate_tf.teachers.run_folder import (
    DataSource,
    RunDescription,
    TeacherRun,
    TeacherSource,
    described_run,
)
from pate_tf.teachers.settings import TeacherSettings

PRIVATE, PUBLIC = data.load_private("digits"), data.load_public("digits")
OTHER = dataclasses.replace(PUBLIC.dataset, augmentation="none", value_range=(0.0, 255.0))


@pytest.mark.parametrize(
    ("public", "asked", "message"),
    [
        (
            PublicExamples(OTHER, PUBLIC.inputs),
            {},
            r"dataset: expected public samples of the private records' data set digits, got others",
        ),
        (PUBLIC, {"num_classes": 9}, "num_classes: digits has 10 classes, got 9"),
        (
            PUBLIC,
            {"owners_file": pathlib.Path("a"), "partition_file": pathlib.Path("b")},
            "partition: expected owners_file or partition_file, got both",
        ),
        (PUBLIC, {"num_teachers": 1201}, "num_teachers: expected at most one teacher a record"),
        (
            PUBLIC,
            {"num_teachers": 9, "teachers": "3-9"},
            "teachers: expected teachers from 0 to 8",
        ),
    ],
)
def test_what_does_not_fit_is_told_before_anything_is_trained(
    tmp_path, monkeypatch, public, asked, message
):
    monkeypatch.setattr(data, "load_private", lambda name, **options: PRIVATE)
    monkeypatch.setattr(data, "load_public", lambda name, **options: public)
    monkeypatch.delattr(teacher_training, "train")
    with pytest.raises(ValueError, match=message) as caught:
        teacher_training.run(TeacherSettings(model="mlp"), TeacherRun(folder=tmp_path, **asked))
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_number_of_teachers_is_recommended_by_public_values():
    recommended = teacher_training.recommended_num_teachers
    assert recommended(60_000, PRIVATE.dataset) == 2_000
    many_classes = dataclasses.replace(PRIVATE.dataset, num_classes=100, class_names=())
    assert recommended(60_000, many_classes) == 200
    assert recommended(5, PRIVATE.dataset) == 1


def test_owners_of_a_file_stand_in_the_place_of_those_that_the_data_bring(tmp_path, monkeypatch):
    visits = np.arange(len(PRIVATE))
    persons = visits // 7
    np.save(tmp_path / "persons.npy", persons)
    examples = dataclasses.replace(PRIVATE, owners=visits)
    monkeypatch.setattr(data, "load_private", lambda name, **options: examples)
    owned = DataSource(owners_file=tmp_path / "persons.npy").load_private(QUIET)
    np.testing.assert_array_equal(owned.owners, persons)
    shares = teacher_training.shares_of(owned, num_teachers=5, seed=0)
    assert shares.unit == "owner"
    for person in range(10):
        assert len(set(shares.assignment[persons == person].tolist())) == 1
    np.testing.assert_array_equal(DataSource().load_private(QUIET).owners, visits)


def test_teachers_from_elsewhere_need_the_folder_of_their_ledger(tmp_path):
    source = TeacherSource(elsewhere=tmp_path / "votes.npy")
    with pytest.raises(ValueError, match="teachers: expected their run folder as well"):
        source.load(PUBLIC.split(400))


def test_a_file_of_labels_that_is_transposed_is_refused(tmp_path):
    path = tmp_path / "votes.npy"
    np.save(path, np.zeros((40, 60), int))  # 60 teachers, 40 queries
    for number, told in ((None, "expected it with a file of labels"), (60, "expected 40")):
        source = TeacherSource(elsewhere=path, folder=tmp_path, num_teachers=number)
        with pytest.raises(ValueError, match=f"num_teachers: {told}"):
            source.load(PUBLIC.split(400))


# What a run folder says of itself.

NAMED = DataSource(dataset="mnist", svhn_extra=False)
FILES = DataSource(files=FileSource(public=pathlib.Path("p.csv"), label="ill"))


def description(source: DataSource | None = None, **changes: object) -> RunDescription:
    fields = {"data_name": "digits", "num_classes": 10, "num_teachers": 4, **changes}
    return RunDescription(**fields, source={} if source is None else source.flags)


@pytest.mark.parametrize("source", [NAMED, FILES], ids=["a name", "files"])
def test_a_folder_gives_its_data_back(tmp_path, source):
    written = description(source, model="mlp", pool_size=7)
    written.write(artifacts.RunDirectory(tmp_path))
    found = described_run(tmp_path)
    assert found == written
    back = found.data()
    if source is NAMED:
        assert back == source
        assert found.data(dataset="mnist") == back
        elsewhere = found.data(data_dir=tmp_path)
        assert elsewhere == dataclasses.replace(back, data_dir=tmp_path)
    else:
        assert back.files.public == source.files.public.absolute()
        assert back.files.label == "ill" and back.files.schema is None
        assert found.data(files=source.files) == source  # it may have been moved
    assert (tmp_path / "sensitive").stat().st_mode & 0o777 == 0o700


def test_what_contradicts_a_folder_is_one_line(tmp_path):
    for run, named, message in (
        (description(NAMED), {"dataset": "svhn"}, "dataset: expected mnist, .* got svhn"),
        (description(NAMED), {"files": FILES.files}, "dataset: expected mnist, .* got p.csv"),
        (description(FILES), {"dataset": "svhn"}, r"dataset: expected .*p\.csv, .* got svhn"),
        (description(), {}, "dataset: expected it, or files, for the run of arrays digits"),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            run.data(**named)
        assert "\n" not in str(caught.value)
    assert description().data(dataset="digits") == DataSource()
    description().check(num_teachers=4, num_classes=10)
    with pytest.raises(ValueError, match="num_teachers: expected 4, as the run folder says, got 5"):
        description().check(num_teachers=5)
    with pytest.raises(ValueError, match="num_classes: expected 10"):
        description().check(num_classes=9)
    assert described_run(None) is described_run(tmp_path) is None
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "sensitive").mkdir()
    (tmp_path / "sensitive" / "run.json").write_text('{"other": 1}')
    with pytest.raises(ValueError, match=r"run.json: expected the description of a run"):
        described_run(tmp_path)


def test_the_folder_alone_is_enough_for_a_student(tmp_path):
    flags = ("--nb_teachers=12", "--max_steps=30", "--stdnt_share=300", "--train_dir=run")
    ended = run_script("train_teachers.py", *flags, folder=tmp_path)
    assert ended.code == 0, ended.err
    assert "Teachers of cnn, 30 steps each" in ended.out  # a default is told
    said = described_run(tmp_path / "run")
    assert (said.num_teachers, said.model, said.pool_size) == (12, "cnn", 300)
    asked = ("train_student.py", "--train_dir=run", "--queries=20", "--lap_scale=1")
    quick = ("--student=supervised", "--query_strategy=first", "--max_steps=9", "--model=mlp")
    ended = run_script(*asked, *quick, folder=tmp_path)
    assert ended.code == 0, ended.err
    assert (tmp_path / "run" / "released" / "privacy_statement.json").exists()
    for flag, told in (
        ("--dataset=mnist", "error: dataset: expected digits, as the run folder says, got mnist"),
        ("--nb_teachers=3", "error: nb_teachers: expected 12, as the run folder says, got 3"),
    ):
        ended = run_script(*asked, flag, folder=tmp_path)
        assert ended.code == 1 and ended.err.startswith(told)


def test_teachers_of_python_name_themselves_and_no_data(tmp_path):
    digits = pate_tf.datasets.load("digits")
    pate_tf.Teachers("mlp", num_teachers=3, steps=2, directory=tmp_path).fit(digits.private)
    said = described_run(tmp_path)
    assert (said.data_name, said.num_teachers, said.source) == ("digits", 3, {})
