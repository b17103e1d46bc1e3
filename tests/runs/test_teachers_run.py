"""What a run of the teachers checks before it trains."""

import dataclasses

import numpy as np
import pytest

from pate_tf.api import sources, teacher_run, teacher_settings
from pate_tf.api import student_run as train_student
from pate_tf.api import teacher_training as runs
from pate_tf.api.reporting import QUIET
from pate_tf.core.dataset import Dataset
from pate_tf.core.public import PublicExamples
from pate_tf.data import catalogue as data
from pate_tf.students.config import StudentSettings

PRIVATE, PUBLIC = data.load_private("digits"), data.load_public("digits")
OTHER = dataclasses.replace(PUBLIC.dataset, augmentation="none", value_range=(0.0, 255.0))


@pytest.fixture(autouse=True)
def never_trains(monkeypatch):
    def train(**arguments: object) -> bool:
        raise AssertionError("trained")

    monkeypatch.setattr(runs, "train", train)


def sides(monkeypatch, *, private=PRIVATE, public=PUBLIC):
    monkeypatch.setattr(data, "load_private", lambda name, **options: private)
    monkeypatch.setattr(data, "load_public", lambda name, **options: public)


@pytest.mark.parametrize(
    ("changes", "asked", "message"),
    [
        (
            {"public": PublicExamples(OTHER, PUBLIC.inputs)},
            {},
            r"dataset: expected public samples of the private records' data set digits, got others",
        ),
        ({}, {"num_classes": 9}, "num_classes: digits has 10 classes, got 9"),
        ({}, {"num_teachers": 1201}, "num_teachers: expected at most one teacher a record"),
    ],
)
def test_what_does_not_fit_is_told_before_anything_is_trained(
    tmp_path, monkeypatch, changes, asked, message
):
    sides(monkeypatch, **changes)
    with pytest.raises(ValueError, match=message) as caught:
        teacher_run.run(teacher_run.TeachersRun(folder=tmp_path, **asked))
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_two_files_that_say_who_gets_what_are_one_too_many(tmp_path):
    both = teacher_settings.PartitionSource(owners_file=tmp_path, partition_file=tmp_path)
    with pytest.raises(ValueError, match="partition: expected owners_file or partition_file"):
        both.load(num_records=3, num_teachers=1, seed=0)


def test_teachers_from_elsewhere_need_the_folder_of_their_ledger(tmp_path):
    asked = train_student.Sources(
        data=sources.DataSource(),
        teachers=sources.TeacherSource(elsewhere=tmp_path / "votes.npy"),
    )
    with pytest.raises(ValueError, match="teachers: expected their run folder as well"):
        asked.load(QUIET)


def test_a_students_settings_are_its_own_where_nobody_says_otherwise():
    from pate_tf.students.catalogue import STUDENTS, complete

    for name, student in STUDENTS.items():
        if name != "gan":  # its images are too small here
            found = complete(StudentSettings(student=name), PUBLIC.dataset)
            assert found.max_steps == student.max_steps
            assert found.model == student.default_model(PUBLIC.dataset)
    said = complete(StudentSettings(model="mlp", max_steps=3, seed=4), PUBLIC.dataset)
    assert (said.model, said.max_steps, said.seed) == ("mlp", 3, 4)
    with pytest.raises(ValueError, match="student: expected supervised, gan"):
        complete(StudentSettings(student="nosuch"), PUBLIC.dataset)


def test_labels_of_a_whole_table_are_followed_closely_unless_the_user_says_otherwise():
    from pate_tf.students.catalogue import STUDENTS, complete

    own = STUDENTS["supervised"]
    a_table = Dataset(
        name="t",
        kind="tabular",
        input_shape=(3,),
        value_range=(0.0, 1.0),
        num_classes=2,
        pool_size=9,
    )
    settings = StudentSettings(learning_rate=0.01)
    few = complete(settings, a_table)
    assert (few.max_steps, few.batch_size, few.learning_rate) == (1_000, 64, 0.01)
    whole = complete(settings, a_table, labels_whole_pool=True)
    assert {**own.of_whole_table, "learning_rate": 0.01} == {
        name: getattr(whole, name) for name in own.of_whole_table
    }
    assert whole.max_steps > few.max_steps and whole.batch_size > few.batch_size
    assert complete(settings, PUBLIC.dataset, labels_whole_pool=True) == complete(
        settings, PUBLIC.dataset
    )


def test_a_number_of_teachers_is_recommended_with_its_reason():
    few = teacher_run.recommendation(60_000, PRIVATE.dataset)
    assert few.num_teachers == 2_000 and "30 records" in few.reason
    many_classes = dataclasses.replace(PRIVATE.dataset, num_classes=100, class_names=())
    assert teacher_run.recommendation(60_000, many_classes).num_teachers == 200
    assert teacher_run.recommendation(5, PRIVATE.dataset).num_teachers == 1


def test_owners_of_a_file_stand_in_the_place_of_those_that_the_data_bring(tmp_path):
    """Sums of records are shortened by owner: by those that shares go by, and no others."""
    private = data.load_private("digits")
    visits = np.arange(len(private))
    persons = visits // 7
    np.save(tmp_path / "persons.npy", persons)
    examples = dataclasses.replace(private, owners=visits)
    source = teacher_settings.PartitionSource(owners_file=tmp_path / "persons.npy")
    owned = source.owned(examples)
    np.testing.assert_array_equal(owned.owners, persons)
    shares = source.load(num_records=len(private), num_teachers=5, seed=0, owners=owned.owners)
    assert shares.unit == "owner"
    for person in range(10):
        assert len(set(shares.assignment[persons == person].tolist())) == 1
    assert teacher_settings.PartitionSource().owned(examples) is examples
