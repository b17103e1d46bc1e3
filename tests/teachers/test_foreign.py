"""Teachers from other programs: labels and folders of models."""

import shutil

import numpy as np
import pytest
import teacher_helpers as helpers
import tensorflow as tf

from pate_tf.core.public import Pool, PublicExamples
from pate_tf.models import architectures
from pate_tf.teachers.foreign import ForeignModels
from pate_tf.teachers.run_folder import load_teachers
from pate_tf.teachers.voters import StoredVotes

INPUTS, TRUTH = helpers.blob_images(20)
POOL = Pool(helpers.BLOBS, INPUTS)
PUBLIC = PublicExamples(helpers.BLOBS, *helpers.blob_images(25)).split(20)
LABELS = np.random.default_rng(0).integers(0, 3, (7, 12))


def test_stored_labels_answer_the_queries_that_they_cover(tmp_path):
    np.save(tmp_path / "labels.npy", LABELS)
    place = tmp_path / "labels.npy"
    voter, _ = load_teachers(PUBLIC, elsewhere=place, folder=tmp_path, num_teachers=7)
    assert (voter.num_teachers, voter.unit, voter.dataset) == (7, "record", helpers.BLOBS)
    done = []
    np.testing.assert_array_equal(
        voter.votes(INPUTS[[3, 0, 11]], done.append).labels, LABELS[:, [3, 0, 11]]
    )
    assert sum(done) == 3
    covered = Pool(helpers.BLOBS, INPUTS[:12])
    assert StoredVotes(LABELS).for_pool(covered).covers_pool and not voter.covers_pool
    with pytest.raises(ValueError, match="queries: 2 are not among the 12 stored queries"):
        voter.votes(INPUTS[10:14])
    changed = LABELS.copy()
    changed[6, 11] = (changed[6, 11] + 1) % 3
    assert StoredVotes(LABELS).digest == voter.digest != StoredVotes(changed).digest


@pytest.mark.parametrize(
    "labels",
    [np.full((2, 3), 3), np.full((2, 3), np.nan), np.zeros((2, 21), int)],
    ids=lambda labels: f"{labels.dtype}{labels.shape}{labels.ravel()[:1]}",
)
def test_labels_that_do_not_fit_are_one_clear_line(labels):
    with pytest.raises(ValueError, match="votes must") as caught:
        StoredVotes(labels).for_pool(POOL)
    assert "\n" not in str(caught.value)


def saved_models(folder, number=2):
    """Writes a SavedModel and `.keras` files; returns the models."""
    models = [
        architectures.build(helpers.SMALL, helpers.BLOBS, seed=seed) for seed in range(number)
    ]
    models[0].export(folder / "a", verbose=False)
    for place, model in enumerate(models[1:]):
        model.save(folder / f"b{place}.keras")
    return models


def test_a_folder_of_models_votes_like_its_models(tmp_path):
    models = saved_models(tmp_path, 3)
    voter = ForeignModels(tmp_path).for_pool(POOL)
    votes = voter.votes(INPUTS).labels
    for labels, model in zip(votes, models, strict=True):
        twin = model(tf.constant(INPUTS, tf.float32)).numpy().argmax(axis=1)
        np.testing.assert_array_equal(labels, twin)
    (tmp_path / "b1.keras").unlink()
    assert ForeignModels(tmp_path).digest != voter.digest


def test_one_teacher_has_one_vote(tmp_path):
    """A copied file would be a second teacher, and its records would move two votes."""
    saved_models(tmp_path)
    shutil.copytree(tmp_path / "a", tmp_path / "again")
    with pytest.raises(ValueError, match=r"/a and .*/again are the same and"):
        ForeignModels(tmp_path)
    shutil.rmtree(tmp_path / "again")
    shutil.copy(tmp_path / "b0.keras", tmp_path / "c.keras")
    with pytest.raises(ValueError, match=r"/b0\.keras and .*/c\.keras are the same"):
        ForeignModels(tmp_path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"elsewhere": "votes.npy"}, "teachers needs `teachers_dir`"),
        ({"elsewhere": "votes.npy", "folder": ""}, "num_teachers is required with a file"),
        ({"elsewhere": "votes.npy", "folder": "", "num_teachers": 12}, "num_teachers must be 7"),
        ({"elsewhere": "none.npy", "folder": ""}, "teachers=.*none.npy does not exist"),
        ({"elsewhere": "", "folder": ""}, "models: .* contains no model"),
        ({"folder": ""}, "teachers: .* contains no trained ensemble"),
    ],
)
def test_where_teachers_come_from_is_checked(tmp_path, fields, message):
    np.save(tmp_path / "votes.npy", LABELS)
    paths = {
        name: tmp_path / value if isinstance(value, str) else value
        for name, value in fields.items()
    }
    with pytest.raises(ValueError, match=message):
        load_teachers(PUBLIC, **paths)
