import os
import shutil

import numpy as np
import pytest
import scipy.special
import teacher_helpers as helpers
import tensorflow as tf

from pate_tf.core.dataset import Dataset
from pate_tf.core.sensitive import Votes
from pate_tf.data import catalogue as data
from pate_tf.teachers import ensemble as ensembles

MODELS = ("cnn", "architectures_for_tests:with_buffers")


def saved(folder, **changes):
    config = helpers.config(**{"num_teachers": 5, "model": "cnn", **changes})
    stacked = helpers.stacked_weights(config)
    ensembles.save(folder, config, stacked)
    return config, stacked


@pytest.fixture(scope="module", params=MODELS)
def ensemble(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ensemble") / "ensemble"
    config, stacked = saved(folder, model=request.param)
    return folder, config, stacked


def test_votes_are_those_of_one_keras_model_after_another(ensemble):
    folder, config, stacked = ensemble
    inputs, _ = helpers.blob_images(700)
    expected = helpers.slow_twin(config, stacked, inputs)
    # The teachers differ, so that mixing them up would show.
    assert len({row.tobytes() for row in expected}) == 5
    votes = ensembles.Ensemble(folder).votes(inputs)
    assert isinstance(votes, Votes)
    # Different kernels round differently: a tie of logits may go either way, a real vote not.
    assert (votes.labels != expected).mean() < 0.002


def test_signatures_are_found_by_name_and_agree(ensemble):
    folder, config, _ = ensemble
    loaded = tf.saved_model.load(str(folder))
    assert set(loaded.signatures) == {"votes", "counts", "probabilities"}
    for batch in (1, 2, 33):
        images = tf.constant(helpers.blob_images(batch)[0])
        votes = loaded.signatures["votes"](image=images)["votes"]
        counts = loaded.signatures["counts"](image=images)["counts"]
        assert votes.dtype == counts.dtype == tf.int64
        assert votes.shape == (config.num_teachers, batch)
        assert counts.shape == (batch, config.dataset.num_classes)
        np.testing.assert_array_equal(
            Votes(votes.numpy(), config.dataset.num_classes).counts().values, counts
        )


@pytest.mark.parametrize("temperature", [1.0, 5.0])
def test_probabilities_are_the_mean_of_one_keras_model_after_another(ensemble, temperature):
    folder, config, stacked = ensemble
    inputs, _ = helpers.blob_images(502)
    done = []
    found = ensembles.Ensemble(folder).probabilities(inputs, temperature, done.append)
    assert found.shape == (502, config.dataset.num_classes)
    assert sum(done) == 502 and len(done) > 1
    logits = helpers.slow_logits(config, stacked, inputs)
    expected = scipy.special.softmax(logits / temperature, axis=2).mean(axis=0)
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_an_ensemble_of_an_earlier_version_has_votes_and_no_probabilities(tmp_path):
    config, stacked = saved(tmp_path / "one")
    module = ensembles.EnsembleModule(config, stacked)
    tf.saved_model.save(module, str(tmp_path / "old"), signatures={"votes": module.votes})
    shutil.copy(tmp_path / "one" / "ensemble.json", tmp_path / "old")
    old = ensembles.Ensemble(tmp_path / "old")
    assert old.digest == ensembles.Ensemble(tmp_path / "one").digest
    inputs, _ = helpers.blob_images(3)
    assert old.votes(inputs).num_queries == 3
    with pytest.raises(ValueError, match="expected an ensemble that states probabilities") as told:
        old.probabilities(inputs, 1.0)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("num", [0, 1, 7, 499, 500, 501, 1001])
def test_any_number_of_queries(ensemble, num):
    folder, _config, _ = ensemble
    inputs, _ = helpers.blob_images(1001)
    loaded = ensembles.Ensemble(folder)
    done = []
    votes = loaded.votes(inputs[:num], done.append)
    assert votes.labels.shape == (5, num)
    assert sum(done) == num
    if num:
        np.testing.assert_array_equal(
            votes.labels[:, -1:], loaded.votes(inputs[num - 1 : num]).labels
        )


def test_queries_of_another_shape_are_refused(ensemble):
    loaded = ensembles.Ensemble(ensemble[0])
    for shape in ((2, 8, 8), (2, 28, 28, 1), (2, 8, 8, 3)):
        with pytest.raises(ValueError, match="queries: expected"):
            loaded.votes(np.zeros(shape, np.uint8))


def test_tables_have_features_instead_of_images(tmp_path):
    table = Dataset(
        name="table",
        kind="tabular",
        input_shape=(4,),
        value_range=(-1.0, 1.0),
        num_classes=2,
        pool_size=1,
    )
    config, stacked = saved(tmp_path / "ensemble", dataset=table, model="mlp")
    inputs = np.random.default_rng(0).uniform(-1, 1, (50, 4)).astype(np.float32)
    votes = ensembles.Ensemble(tmp_path / "ensemble").votes(inputs)
    assert (votes.labels != helpers.slow_twin(config, stacked, inputs)).mean() < 0.02
    loaded = tf.saved_model.load(str(tmp_path / "ensemble"))
    assert set(loaded.signatures["votes"].structured_input_signature[1]) == {"features"}


def test_the_digest_survives_saving_and_knows_every_weight(tmp_path):
    config, stacked = saved(tmp_path / "one")
    ensembles.save(tmp_path / "same", config, stacked)
    digest = ensembles.Ensemble(tmp_path / "one").digest
    assert ensembles.Ensemble(tmp_path / "same").digest == digest
    shutil.move(tmp_path / "one", tmp_path / "moved")
    assert ensembles.Ensemble(tmp_path / "moved").digest == digest
    digests = {digest}
    changes = [(slot, teacher) for slot in (0, len(stacked) - 1) for teacher in (0, 4)]
    for slot, teacher in changes:
        changed = [array.copy() for array in stacked]
        changed[slot][teacher].flat[0] = np.nextafter(changed[slot][teacher].flat[0], np.float32(9))
        ensembles.save(tmp_path / "changed", config, changed)
        digests.add(ensembles.Ensemble(tmp_path / "changed").digest)
    assert len(digests) == 1 + len(changes)


def test_the_digest_knows_the_configuration(tmp_path):
    _config, stacked = saved(tmp_path / "one")
    ensembles.save(tmp_path / "other", helpers.config(num_teachers=5, model="cnn", seed=6), stacked)
    digests = {ensembles.Ensemble(tmp_path / name).digest for name in ("one", "other")}
    assert len(digests) == 2


@pytest.mark.parametrize("damage", ["empty", "half", "nearly whole", "missing"])
@pytest.mark.parametrize(
    "name", ["ensemble.json", "saved_model.pb", "variables.index", "variables.data*"]
)
def test_a_damaged_ensemble_is_one_clear_line(ensemble, tmp_path, name, damage):
    folder = tmp_path / "ensemble"
    shutil.copytree(ensemble[0], folder)
    (path,) = folder.rglob(name)
    content = path.read_bytes()
    kept = {"empty": 0, "half": len(content) // 2, "nearly whole": len(content) - 8}
    path.write_bytes(content[: kept.get(damage, 0)])
    if damage == "missing":
        path.unlink()
    with pytest.raises(ValueError, match="teachers: expected") as caught:
        ensembles.Ensemble(folder)
    assert "\n" not in str(caught.value)
    path.write_bytes(content)
    assert ensembles.Ensemble(folder).digest == ensembles.Ensemble(ensemble[0]).digest


@pytest.mark.parametrize("position", [0.1, 0.5, 0.9])
def test_a_flipped_bit_never_changes_votes_unnoticed(ensemble, tmp_path, position):
    folder = tmp_path / "ensemble"
    shutil.copytree(ensemble[0], folder)
    (weights,) = folder.rglob("variables.data*")
    content = bytearray(weights.read_bytes())
    content[int(position * len(content))] ^= 0x40
    weights.write_bytes(content)
    before = ensembles.Ensemble(ensemble[0])
    try:
        after = ensembles.Ensemble(folder)
    except ValueError:
        return
    assert after.digest != before.digest or np.array_equal(
        after.votes(helpers.blob_images(50)[0]).labels,
        before.votes(helpers.blob_images(50)[0]).labels,
    )


def test_no_ensemble_says_what_to_run_first(tmp_path):
    with pytest.raises(ValueError, match=r"expected a trained ensemble in .*train_teachers.py"):
        ensembles.Ensemble(tmp_path / "none")


def test_an_interrupted_save_leaves_the_old_ensemble(tmp_path, monkeypatch):
    config, stacked = saved(tmp_path / "ensemble")
    digest = ensembles.Ensemble(tmp_path / "ensemble").digest
    save = tf.saved_model.save

    def interrupted(module, folder, **options):
        save(module, folder, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(tf.saved_model, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ensembles.save(tmp_path / "ensemble", config, [array + 1 for array in stacked])
    assert os.listdir(tmp_path) == ["ensemble"]
    assert ensembles.Ensemble(tmp_path / "ensemble").digest == digest


def test_a_repr_shows_no_weight_and_no_vote(ensemble):
    loaded = ensembles.Ensemble(ensemble[0])
    assert "array(" not in repr(loaded)


def test_the_embedded_digits_fit_too(tmp_path):
    public = data.load_public("digits")
    config, stacked = saved(tmp_path / "ensemble", dataset=public.dataset)
    votes = ensembles.Ensemble(tmp_path / "ensemble").votes(public.inputs[:100])
    expected = helpers.slow_twin(config, stacked, public.inputs[:100])
    assert (votes.labels != expected).mean() < 0.01
