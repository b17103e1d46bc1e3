"""Votes and probabilities of saved networks, against one Keras model after another."""

import numpy as np
import pytest
import scipy.special
import teacher_helpers as helpers
import tensorflow as tf

from pate_tf.core.dataset import Dataset
from pate_tf.core.sensitive import Votes
from pate_tf.teachers import ensemble, kinds

TABLE = Dataset(
    name="table",
    kind="tabular",
    input_shape=(4,),
    value_range=(-1.0, 1.0),
    num_classes=2,
    pool_size=1,
)


class Stacked:
    """Finished teachers that stand in no file."""

    def __init__(self, arrays):
        self.arrays = arrays

    def stacked(self):
        return self.arrays


def saved(folder, stacked=None, **changes):
    config = helpers.config(**{"num_teachers": 5, "model": "cnn", **changes})
    stacked = helpers.stacked_weights(config) if stacked is None else stacked
    kind = kinds.find_kind(config.model, config.dataset)
    kinds.save_ensemble(kind, folder, config, Stacked(stacked), None)
    return config, stacked


@pytest.fixture(scope="module", params=["cnn", "architectures_for_tests:with_buffers"])
def saved_ensemble(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ensemble") / "ensemble"
    return folder, *saved(folder, model=request.param)


def test_answers_are_those_of_one_keras_model_after_another(saved_ensemble):
    folder, config, stacked = saved_ensemble
    inputs, _ = helpers.blob_images(2 * ensemble.VOTING_BATCH + 1)
    expected = helpers.slow_twin(config, stacked, inputs)
    # The teachers differ, so that mixing them up would show.
    assert len({row.tobytes() for row in expected}) == 5
    loaded, told = kinds.load_ensemble(folder), []
    # Different kernels round differently: a tie of logits may go either way, a real vote not.
    assert (loaded.votes(inputs).labels != expected).mean() < 0.002
    found = loaded.probabilities(inputs, 5.0, told.append)
    assert sum(told) == len(inputs) and len(told) == 3
    logits = helpers.slow_logits(config, stacked, inputs)
    np.testing.assert_allclose(
        found, scipy.special.softmax(logits / 5.0, axis=2).mean(axis=0), atol=1e-4
    )


def test_signatures_are_found_by_name_and_agree(saved_ensemble):
    folder, config, _ = saved_ensemble
    loaded = tf.saved_model.load(str(folder))
    assert set(loaded.signatures) == {"votes", "counts", "probabilities"}
    for batch in (1, 33):
        images = tf.constant(helpers.blob_images(batch)[0])
        votes = loaded.signatures["votes"](image=images)["votes"]
        counts = loaded.signatures["counts"](image=images)["counts"]
        assert votes.dtype == counts.dtype == tf.int64
        assert votes.shape == (config.num_teachers, batch)
        np.testing.assert_array_equal(Votes(votes.numpy(), 3).counts().values, counts)


def test_tables_have_features_instead_of_images(tmp_path):
    config, stacked = saved(tmp_path / "ensemble", dataset=TABLE, model="mlp")
    inputs = np.random.default_rng(0).uniform(-1, 1, (50, 4)).astype(np.float32)
    votes = kinds.load_ensemble(tmp_path / "ensemble").votes(inputs)
    assert (votes.labels != helpers.slow_twin(config, stacked, inputs)).mean() < 0.02
    loaded = tf.saved_model.load(str(tmp_path / "ensemble"))
    assert set(loaded.signatures["votes"].structured_input_signature[1]) == {"features"}


def test_the_digest_knows_every_weight(tmp_path):
    _, stacked = saved(tmp_path / "one", model=helpers.SMALL)
    digests = {kinds.load_ensemble(tmp_path / "one").digest}
    changes = [(slot, teacher) for slot in (0, len(stacked) - 1) for teacher in (0, 4)]
    for slot, teacher in changes:
        changed = [array.copy() for array in stacked]
        changed[slot][teacher].flat[0] = np.nextafter(changed[slot][teacher].flat[0], np.float32(9))
        saved(tmp_path / "changed", changed, model=helpers.SMALL)
        digests.add(kinds.load_ensemble(tmp_path / "changed").digest)
    assert len(digests) == 1 + len(changes)


@pytest.mark.parametrize("position", [0.1, 0.5, 0.9])
def test_a_flipped_bit_never_changes_votes_unnoticed(tmp_path, position):
    saved(tmp_path / "one", model=helpers.SMALL)
    before, images = kinds.load_ensemble(tmp_path / "one"), helpers.blob_images(50)[0]
    labels = before.votes(images).labels
    (weights,) = (tmp_path / "one").rglob("variables.data*")
    content = bytearray(weights.read_bytes())
    content[int(position * len(content))] ^= 0x40
    weights.write_bytes(content)
    try:
        after = kinds.load_ensemble(tmp_path / "one")
    except ValueError:
        return
    assert after.digest != before.digest or np.array_equal(after.votes(images).labels, labels)


def test_a_teacher_that_diverged_votes_and_spoils_no_other(tmp_path):
    """By the first class where all of its logits are NaN; and without a warning."""
    _, trained = saved(tmp_path / "before", model=helpers.SMALL)
    images, _ = helpers.blob_images(50)
    before = kinds.load_ensemble(tmp_path / "before").votes(images).labels
    for array in trained:
        array[1], array[2, ..., 0] = np.nan, np.nan
    saved(tmp_path / "after", trained, model=helpers.SMALL)
    loaded = kinds.load_ensemble(tmp_path / "after")
    votes = loaded.votes(images)
    np.testing.assert_array_equal(loaded.counts(images).values, votes.counts().values)
    assert np.isfinite(loaded.probabilities(images, 1.0)).all()
    assert (votes.labels[1] == 0).all() and set(votes.labels[2].tolist()) <= {1, 2}
    np.testing.assert_array_equal(votes.labels[[0, 3, 4]], before[[0, 3, 4]])
