"""Teachers from elsewhere: files of labels and folders of models."""

import shutil

import keras
import numpy as np
import pytest
import teacher_helpers as helpers

from pate_tf.core.public import Pool
from pate_tf.models import catalogue
from pate_tf.teachers import ensemble
from pate_tf.teachers.foreign import ForeignModels, load_voter
from pate_tf.teachers.voters import StoredVotes

INPUTS, _ = helpers.blob_images(20)
POOL = Pool(helpers.BLOBS, INPUTS)
LABELS = np.random.default_rng(0).integers(0, 3, (7, 12))


@pytest.fixture
def vote_file(tmp_path):
    np.save(tmp_path / "labels.npy", LABELS)
    return tmp_path / "labels.npy"


def test_a_file_of_labels_answers_the_queries_that_it_covers(vote_file):
    voter = load_voter(vote_file, POOL)
    assert isinstance(voter, StoredVotes)
    assert (voter.num_teachers, voter.unit, voter.dataset) == (7, "record", helpers.BLOBS)
    done = []
    np.testing.assert_array_equal(
        voter.votes(INPUTS[[3, 0, 11]], done.append).labels, LABELS[:, [3, 0, 11]]
    )
    assert sum(done) == 3
    with pytest.raises(ValueError, match=r"queries: .*12 queries, 2 others"):
        voter.votes(INPUTS[10:14])


def test_what_a_file_of_labels_covers_is_known_beforehand(vote_file):
    voter = load_voter(vote_file, POOL)
    assert voter.covers(INPUTS[:12])
    assert voter.covers(INPUTS[:0])
    assert not voter.covers(INPUTS[:13])


def test_a_file_of_labels_is_known_by_its_labels(vote_file, tmp_path):
    before = load_voter(vote_file, POOL).digest
    assert load_voter(vote_file, POOL).digest == before
    changed = LABELS.copy()
    changed[6, 11] = (changed[6, 11] + 1) % 3
    np.save(tmp_path / "changed.npy", changed)
    assert load_voter(tmp_path / "changed.npy", POOL).digest != before


@pytest.mark.parametrize(
    "labels",
    [
        np.full((2, 3), 3),
        np.full((2, 3), -1),
        np.full((2, 3), np.nan),
        np.zeros((2, 21), int),
        np.zeros(3, int),
        np.zeros((0, 3), int),
        np.zeros((2, 3), bool),
    ],
    ids=lambda labels: f"{labels.dtype}{labels.shape}{labels.ravel()[:1]}",
)
def test_a_file_of_something_else_is_one_clear_line(tmp_path, labels):
    np.save(tmp_path / "labels.npy", labels)
    with pytest.raises(ValueError, match="expected") as caught:
        load_voter(tmp_path / "labels.npy", POOL)
    assert "\n" not in str(caught.value)


def test_a_truncated_file_is_one_clear_line(vote_file):
    vote_file.write_bytes(vote_file.read_bytes()[:-8])
    with pytest.raises(ValueError, match=r"expected a complete .npy file"):
        load_voter(vote_file, POOL)


def test_a_folder_of_models_votes_like_its_models(tmp_path):
    config = helpers.config(model=helpers.SMALL, num_teachers=3)
    stacked = helpers.stacked_weights(config)
    expected = helpers.slow_twin(config, stacked, INPUTS)
    ensemble.save_each(tmp_path, config, stacked)
    voter = load_voter(tmp_path, POOL)
    assert isinstance(voter, ForeignModels)
    assert voter.num_teachers == 3
    np.testing.assert_array_equal(voter.votes(INPUTS).labels, expected)
    assert voter.covers(INPUTS)
    before = voter.digest
    model = catalogue.build(helpers.SMALL, helpers.BLOBS, seed=8)
    model.save(tmp_path / "zz.keras")
    more = load_voter(tmp_path, POOL)
    assert more.num_teachers == 4
    assert more.digest != before
    twin = model.predict(INPUTS.astype(np.float32), verbose=0).argmax(axis=1)
    np.testing.assert_array_equal(more.votes(INPUTS).labels[3], twin)


def test_one_teacher_has_one_vote(tmp_path):
    """A copied file was a second teacher, and its records moved two votes."""
    config = helpers.config(model=helpers.SMALL, num_teachers=2)
    ensemble.save_each(tmp_path, config, helpers.stacked_weights(config))
    shutil.copytree(tmp_path / "000001", tmp_path / "again")
    with pytest.raises(ValueError, match="the same in 000001 and again: its records would have"):
        load_voter(tmp_path, POOL)
    shutil.rmtree(tmp_path / "again")
    for name in ("a.keras", "b.keras"):
        (tmp_path / name).write_bytes(b"the same")
    with pytest.raises(ValueError, match=r"the same in a\.keras and b\.keras"):
        load_voter(tmp_path, POOL)


def test_a_broken_model_is_one_clear_line(tmp_path):
    (tmp_path / "teacher.keras").write_bytes(b"PK nonsense")
    with pytest.raises(ValueError, match="expected") as caught:
        load_voter(tmp_path, POOL).votes(INPUTS)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("num_scores", [1, 2, 4])
def test_a_model_of_other_classes_is_refused_with_any_votes(tmp_path, num_scores):
    # It always votes for class 0, so that the votes themselves look right.
    scores = keras.layers.Dense(num_scores, kernel_initializer="zeros")
    layers = [keras.Input(helpers.BLOBS.input_shape), keras.layers.Flatten(), scores]
    keras.Sequential(layers).save(tmp_path / "teacher.keras")
    with pytest.raises(ValueError, match="expected"):
        load_voter(tmp_path, POOL).votes(INPUTS)


@pytest.mark.parametrize("name", ["none", "none.npy", "", "a_file"])
def test_nothing_to_load_is_one_clear_line(tmp_path, name):
    (tmp_path / "a_file").write_text("")
    with pytest.raises(ValueError, match="teachers: expected"):
        load_voter(tmp_path / name, POOL)
