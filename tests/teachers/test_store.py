import numpy as np
import pytest

from pate_tf.teachers.run_folder import TeacherStore, finished_teachers
from pate_tf.teachers.teacher_kinds import TrainedTeacher

SETTINGS = {"model": "cnn", "num_teachers": 4, "shape": (2, 3), "encoder": "abc"}
RECORDS = [np.arange(6.0), np.arange(3)]


def trained(seed: int) -> TrainedTeacher:
    """Trains more than ten arrays: their order must not become the order of their names."""
    random = np.random.default_rng(seed)
    arrays = [random.normal(size=size + seed).astype(np.float32) for size in range(1, 13)]
    return TrainedTeacher([*arrays, np.array(seed, np.uint32)], random.normal(size=(2, seed)))


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "teachers"


@pytest.fixture
def store(folder):
    return TeacherStore(folder, SETTINGS, RECORDS)


def test_finished_teachers_come_back_by_number_however_they_were_saved(store, folder):
    told = []
    store.save_all([(3, trained(3)), (1, trained(1))], told.append)
    store.save_all([], told.append)
    store.save_all([(2, trained(2))], told.append)
    assert finished_teachers(folder) == [1, 2, 3] and told == [1, 1, 1]
    for number, teacher in enumerate(TeacherStore(folder, SETTINGS, RECORDS).load(), start=1):
        expected = trained(number)
        np.testing.assert_array_equal(teacher.curves, expected.curves)
        for array, other in zip(teacher.arrays, expected.arrays, strict=True):
            assert array.dtype == other.dtype
            np.testing.assert_array_equal(array, other)
    assert "array(" not in repr(trained(1))


def test_what_is_damaged_is_one_line_and_leftovers_are_no_teachers(store, folder):
    store.save_all([(0, trained(0))], lambda count: None)
    (folder / ".writing-finished-000000-000003.npz-0a1b2c3d").write_bytes(b"half")
    assert finished_teachers(folder) == [0]
    (path,) = folder.glob("finished-*")
    path.write_bytes(path.read_bytes()[:-20])
    for broken in (lambda: finished_teachers(folder), store.load):
        with pytest.raises(ValueError, match=r"is not a complete .npz file"):
            broken()
    for content in ("", "{", "null"):
        (folder / "config.json").write_text(content)
        with pytest.raises(ValueError, match=r"config.json (is not JSON|must contain)"):
            TeacherStore(folder, SETTINGS, RECORDS)
