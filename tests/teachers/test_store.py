import os

import numpy as np
import pytest

from pate_tf.teachers.store import Finished, TeacherState, TeacherStore

SETTINGS = {"model": "cnn", "num_teachers": 4, "shape": (2, 3), "encoder": "abc"}
RECORDS = [np.arange(6.0), np.arange(3)]


def state(seed: int, steps: int = 3) -> TeacherState:
    random = np.random.default_rng(seed)

    def slot() -> list[np.ndarray]:
        # More than ten arrays: their order must not become that of their names.
        return [random.normal(size=size).astype(np.float32) for size in range(1, 13)]

    buffers = [np.array(seed, np.uint32), np.arange(2, dtype=np.int64)]
    losses = random.uniform(size=steps).astype(np.float32)
    return TeacherState(slot(), buffers, slot(), slot(), losses)


def slots(state: TeacherState) -> list[list[np.ndarray]]:
    return [
        state.weights,
        state.buffers,
        state.first_moments,
        state.second_moments,
        [state.losses],
    ]


def assert_same(one: TeacherState, other: TeacherState) -> None:
    for left, right in zip(slots(one), slots(other), strict=True):
        for a, b in zip(left, right, strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)


@pytest.fixture
def store(tmp_path):
    return TeacherStore(tmp_path / "teachers", SETTINGS, RECORDS)


def test_an_unfinished_teacher_comes_back(store, tmp_path):
    assert store.load_training(2) is None
    store.save_training(2, state(2))
    store.save_training(3, state(3))
    again = TeacherStore(tmp_path / "teachers", SETTINGS, RECORDS)
    assert_same(again.load_training(2), state(2))
    assert again.finished() == set()


def test_finished_teachers_are_stacked_by_number_however_they_were_saved(store, tmp_path):
    store.save_training(1, state(1, 2))
    store.save_finished({3: state(3), 1: state(1)})
    store.save_finished({})
    store.save_finished({2: state(2)})
    assert store.finished() == {1, 2, 3}
    store.save_finished({0: state(0)})
    assert store.load_training(1) is None
    found = Finished(tmp_path / "teachers", 4)
    stacked, each = found.stacked(), found.each()
    np.testing.assert_array_equal(found.losses(), [state(teacher).losses for teacher in range(4)])
    for teacher in range(4):
        expected = [*state(teacher).weights, *state(teacher).buffers]
        for slot, array in zip(stacked, expected, strict=True):
            assert slot.dtype == array.dtype
            np.testing.assert_array_equal(slot[teacher], array)
        for one, array in zip(each[teacher], expected, strict=True):
            np.testing.assert_array_equal(one, array)


def test_a_missing_teacher_is_named(store, tmp_path):
    store.save_finished({0: state(0), 2: state(2)})
    with pytest.raises(ValueError, match=r"teachers: expected 4 trained ones, 2 are missing.* 1"):
        Finished(tmp_path / "teachers", 4)
    assert Finished(tmp_path / "teachers").teachers == [0, 2]


@pytest.mark.parametrize(
    ("change", "records", "named"),
    [
        ({"model": "mlp"}, RECORDS, "model"),
        ({"num_teachers": None}, RECORDS, "num_teachers"),
        ({"encoder": "abd", "shape": (3, 2), "new": 1}, RECORDS, "shape, encoder, new"),
        ({"model": "mlp"}, RECORDS[:1], "model, private records"),
    ],
    ids=str,
)
def test_other_settings_are_named_and_change_nothing(store, tmp_path, change, records, named):
    store.save_finished({0: state(0)})
    with pytest.raises(ValueError) as caught:
        TeacherStore(tmp_path / "teachers", {**SETTINGS, **change}, records)
    assert f"holds teachers of other settings: {named}; choose another" in str(caught.value)
    assert TeacherStore(tmp_path / "teachers", SETTINGS, RECORDS).finished() == {0}


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.99])
def test_a_broken_file_is_refused(store, tmp_path, kept):
    store.save_finished({0: state(0)})
    store.save_training(1, state(1))
    for path in (tmp_path / "teachers").glob("*.npz"):
        content = path.read_bytes()
        path.write_bytes(content[: int(kept * len(content))])
    for call in (
        store.finished,
        lambda: store.load_training(1),
        lambda: Finished(tmp_path / "teachers", 1),
    ):
        with pytest.raises(ValueError, match=r"expected a complete .npz file") as caught:
            call()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["", "{", "[]", "null"])
def test_a_broken_description_is_refused(store, tmp_path, content):
    (tmp_path / "teachers" / "config.json").write_text(content)
    with pytest.raises(ValueError, match=r"config.json: expected"):
        TeacherStore(tmp_path / "teachers", SETTINGS, RECORDS)


def test_leftovers_of_an_interrupted_write_are_no_teachers(store, tmp_path):
    (tmp_path / "teachers" / ".writing-finished-000000-000003.npz-0a1b2c3d").write_bytes(b"half")
    assert store.finished() == set()


def test_everything_is_for_the_owner_alone(tmp_path):
    previous = os.umask(0)
    try:
        store = TeacherStore(tmp_path / "teachers", SETTINGS, RECORDS)
        store.save_finished({0: state(0)})
        store.save_training(1, state(1))
    finally:
        os.umask(previous)
    assert (tmp_path / "teachers").stat().st_mode & 0o777 == 0o700
    files = list((tmp_path / "teachers").iterdir())
    assert len(files) == 3
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}


def test_stores_of_other_hosts_with_other_keys_are_merged(tmp_path):
    folders = [tmp_path / name / "teachers" for name in ("here", "there", "elsewhere", "changed")]
    stores = [TeacherStore(folder, SETTINGS, RECORDS) for folder in folders[:3]]
    stores[1].save_finished({0: state(0), 3: state(3)})
    stores[2].save_finished({1: state(1), 2: state(2)})
    TeacherStore(folders[3], SETTINGS, [RECORDS[0], RECORDS[1] + 1])
    with pytest.raises(ValueError, match="of other settings: private records; choose"):
        stores[0].merge(folders[1:])
    assert stores[0].finished() == set()
    stores[0].merge(folders[1:3])
    assert stores[0].finished() == {0, 1, 2, 3}
    stacked = Finished(folders[0], 4).stacked()
    for teacher in range(4):
        np.testing.assert_array_equal(stacked[0][teacher], state(teacher).weights[0])


def test_a_store_of_another_identity_is_not_merged(tmp_path):
    here = TeacherStore(tmp_path / "here", SETTINGS)
    there = TeacherStore(tmp_path / "there", {**SETTINGS, "model": "mlp"})
    there.save_finished({0: state(0)})
    with pytest.raises(ValueError, match="model"):
        here.merge([tmp_path / "there"])
    assert here.finished() == set()


def test_a_teacher_in_two_places_is_named_and_nothing_is_merged(tmp_path):
    stores = [TeacherStore(tmp_path / name, SETTINGS) for name in ("here", "there", "elsewhere")]
    stores[1].save_finished({0: state(0), 3: state(3)})
    stores[2].save_finished({1: state(1), 3: state(3)})
    with pytest.raises(ValueError, match="teacher 3"):
        stores[0].merge([tmp_path / "there", tmp_path / "elsewhere"])
    assert stores[0].finished() == set()


def test_an_interrupted_merge_goes_on(tmp_path, monkeypatch):
    stores = [TeacherStore(tmp_path / name, SETTINGS) for name in ("here", "there", "elsewhere")]
    stores[1].save_finished({0: state(0), 3: state(3)})
    stores[2].save_finished({1: state(1), 2: state(2)})
    folders, rename = [tmp_path / "there", tmp_path / "elsewhere"], os.replace

    def killed(source, target):
        if "finished-000001" in str(target):
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        stores[0].merge(folders)
    monkeypatch.undo()
    stores[0].merge(folders)
    assert stores[0].finished() == {0, 1, 2, 3}
