"""Votes of saved networks, against one Keras model after another."""

import types

import numpy as np
import pytest
import teacher_helpers as helpers
import tensorflow as tf

from pate_tf.teachers import teacher_kinds, voters


def saved(folder, teachers=None, **changes):
    config = helpers.config(**{"num_teachers": 5, "model": helpers.SMALL, **changes})
    teachers = helpers.random_teachers(config) if teachers is None else teachers
    kind = teacher_kinds.find_kind(config.model, config.dataset)
    teacher_kinds.save_ensemble(kind, folder, types.SimpleNamespace(config=config), teachers)
    return config, teachers


@pytest.mark.parametrize("model", ["cnn", "architectures_for_tests:with_buffers"])
def test_answers_are_those_of_one_keras_model_after_another(model, tmp_path):
    config, teachers = saved(tmp_path / "ensemble", model=model)
    inputs, _ = helpers.blob_images(2 * voters.VOTING_BATCH + 1)
    expected = helpers.slow_twin(config, teachers, inputs)
    # The teachers differ, so that the test notices if they are confused.
    assert len({row.tobytes() for row in expected}) == 5
    loaded, told = teacher_kinds.load_ensemble(tmp_path / "ensemble"), []
    # Different kernels round differently. A tie of logits may go either way, but a clear vote may
    # not.
    assert (loaded.votes(inputs, told.append).labels != expected).mean() < 0.002
    assert sum(told) == len(inputs) and len(told) == 3
    signatures = tf.saved_model.load(str(tmp_path / "ensemble")).signatures
    votes = signatures["votes"](image=tf.constant(inputs[:33]))["votes"]
    assert votes.dtype == tf.int64 and votes.shape == (5, 33)


def test_the_digest_knows_every_weight(tmp_path):
    _, teachers = saved(tmp_path / "one")
    digests = {teacher_kinds.load_ensemble(tmp_path / "one").digest}
    for place, teacher in ((0, 0), (-1, 4)):
        array = teachers[teacher].arrays[place]
        array.flat[0] = np.nextafter(array.flat[0], np.float32(9))
        saved(tmp_path / "changed", teachers)
        digests.add(teacher_kinds.load_ensemble(tmp_path / "changed").digest)
    assert len(digests) == 3


@pytest.mark.parametrize("position", [0.1, 0.9])
def test_a_flipped_bit_never_changes_votes_unnoticed(tmp_path, position):
    saved(tmp_path / "one")
    before, images = teacher_kinds.load_ensemble(tmp_path / "one"), helpers.blob_images(50)[0]
    labels = before.votes(images).labels
    (weights,) = (tmp_path / "one").rglob("variables.data*")
    content = bytearray(weights.read_bytes())
    content[int(position * len(content))] ^= 0x40
    weights.write_bytes(content)
    try:
        after = teacher_kinds.load_ensemble(tmp_path / "one")
    except ValueError:
        return
    assert after.digest != before.digest or np.array_equal(after.votes(images).labels, labels)


def test_a_teacher_that_diverged_votes_and_spoils_no_other(tmp_path):
    """It votes for the first class if all of its logits are NaN, without a warning."""
    _, teachers = saved(tmp_path / "before")
    images, _ = helpers.blob_images(50)
    before = teacher_kinds.load_ensemble(tmp_path / "before").votes(images).labels
    for place, array in enumerate(teachers[1].arrays):
        array[...] = np.nan
        teachers[2].arrays[place][..., 0] = np.nan
    saved(tmp_path / "after", teachers)
    loaded = teacher_kinds.load_ensemble(tmp_path / "after")
    votes = loaded.votes(images)
    np.testing.assert_array_equal(loaded.counts(images).values, votes.counts().values)
    assert (votes.labels[1] == 0).all() and set(votes.labels[2].tolist()) <= {1, 2}
    np.testing.assert_array_equal(votes.labels[[0, 3, 4]], before[[0, 3, 4]])
