"""The description in a run folder, and the sources of its data."""

import dataclasses
import pathlib

import numpy as np
import pytest
from script_processes import run_script

import pate_tf
from pate_tf.core import artifacts
from pate_tf.core.public import PublicExamples
from pate_tf.core.reporting import QUIET
from pate_tf.core.sensitive import owner_partition
from pate_tf.data import datasets
from pate_tf.data.data_source import DataSource, FileSource
from pate_tf.teachers.run_folder import RunDescription, described_run


def test_two_sides_of_different_data_sets_are_refused(monkeypatch):
    public = datasets.load_public("digits")
    other = dataclasses.replace(public.dataset, augmentation="none", value_range=(0.0, 255.0))
    monkeypatch.setattr(
        datasets, "load_public", lambda name, **options: PublicExamples(other, public.inputs)
    )
    with pytest.raises(ValueError, match="data: public and private data sets differ"):
        pate_tf.Data.load("digits")


def test_owners_of_a_file_stand_in_the_place_of_those_that_the_data_bring(tmp_path, monkeypatch):
    private = datasets.load_private("digits")
    visits = np.arange(len(private))
    persons = visits // 7
    np.save(tmp_path / "persons.npy", persons)
    examples = dataclasses.replace(private, owners=visits)
    monkeypatch.setattr(datasets, "load_private", lambda name, **options: examples)
    owned = DataSource(owners_file=tmp_path / "persons.npy").load_private(QUIET)
    np.testing.assert_array_equal(owned.owners, persons)
    partition = owner_partition(owned.owners, num_teachers=5, seed=0)
    assert partition.unit == "owner"
    for person in range(10):
        assert len(set(partition.assignment[persons == person].tolist())) == 1
    np.testing.assert_array_equal(DataSource().load_private(QUIET).owners, visits)


# The description in a run folder.

NAMED = DataSource(dataset="mnist")
FILES = DataSource(files=FileSource(public=pathlib.Path("p.csv"), label="ill"))


def description(source: DataSource | None = None, **changes: object) -> RunDescription:
    fields = {"data_name": "digits", "num_teachers": 4, **changes}
    return RunDescription(**fields, source={} if source is None else source.flags)


@pytest.mark.parametrize("source", [NAMED, FILES], ids=["a name", "files"])
def test_a_folder_gives_its_data_back(tmp_path, source):
    written = description(source, representation="raw", pool_size=7)
    written.write(artifacts.RunDirectory(tmp_path))
    actual = described_run(tmp_path)
    assert actual == written
    back = actual.data()
    if source is NAMED:
        assert back == source
        assert actual.data(dataset="mnist") == back
        elsewhere = actual.data(data_dir=tmp_path)
        assert elsewhere == dataclasses.replace(back, data_dir=tmp_path)
    else:
        assert back.files.public == source.files.public.absolute()
        assert back.files.label == "ill" and back.files.schema is None
        moved = actual.data(files=source.files)  # the name stays
        assert moved == DataSource(files=dataclasses.replace(source.files, name="digits"))
    assert (tmp_path / "sensitive").stat().st_mode & 0o777 == 0o700


def test_what_contradicts_a_folder_is_one_line(tmp_path):
    for run, named, message in (
        (description(NAMED), {"dataset": "svhn"}, "dataset must be mnist, .* got svhn"),
        (description(NAMED), {"files": FILES.files}, "dataset must be mnist, .* got p.csv"),
        (description(FILES), {"dataset": "svhn"}, r"dataset must be .*p\.csv, .* got svhn"),
        (description(), {}, "dataset is required, or `public`: the run digits"),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            run.data(**named)
        assert "\n" not in str(caught.value)
    assert description().data(dataset="digits") == DataSource()
    description().check(num_teachers=4)
    with pytest.raises(ValueError, match=r"num_teachers is 4 in this run, got 5"):
        description().check(num_teachers=5)
    assert described_run(None) is described_run(tmp_path) is None
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "sensitive").mkdir()
    (tmp_path / "sensitive" / "run.json").write_text('{"other": 1}')
    with pytest.raises(ValueError, match=r"run.json was changed, or written by another version"):
        described_run(tmp_path)


def test_the_folder_alone_is_enough_for_a_student(tmp_path):
    flags = ("--nb_teachers=6", "--max_steps=3", "--stdnt_share=300", "--train_dir=run")
    ended = run_script("train_teachers.py", *flags, folder=tmp_path)
    assert ended.code == 0, ended.err
    assert "Teachers: cnn, 3 steps each" in ended.out  # a default is recorded
    said = described_run(tmp_path / "run")
    assert (said.num_teachers, said.pool_size) == (6, 300)
    command = ("train_student.py", "--train_dir=run", "--queries=20", "--lap_scale=1")
    quick = ("--student=supervised", "--query_strategy=first", "--max_steps=9", "--model=mlp")
    ended = run_script(*command, *quick, folder=tmp_path)
    assert ended.code == 0, ended.err
    assert (tmp_path / "run" / "released" / "privacy_statement.json").exists()
    for flag, told in (
        ("--dataset=mnist", "error: --dataset must be digits, as in this run, got mnist"),
        ("--nb_teachers=3", "error: --nb_teachers is 6 in this run, got 3"),
    ):
        ended = run_script(*command, flag, folder=tmp_path)
        assert ended.code == 1 and ended.err.startswith(told)
