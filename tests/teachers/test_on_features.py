"""Teachers on features: votes of the saved ensemble against votes worked out by hand."""

import shutil

import numpy as np
import pytest
import teacher_helpers as helpers
import tensorflow as tf

from pate_tf.api import teacher_run as teachers_accuracy
from pate_tf.api import teacher_training as runs
from pate_tf.core import artifacts
from pate_tf.core.partition import Partition, assigned_partition, owner_partition
from pate_tf.core.public import Pool, PublicExamples
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.models import classifier, closed_form, forest
from pate_tf.models.encoder import Encoder
from pate_tf.representations.raw import RawPart
from pate_tf.teachers import classifiers, on_features, voters
from pate_tf.teachers import ensemble as ensembles
from pate_tf.teachers.voters import KeptVotes

NUM_TEACHERS = 5
IMAGES, LABELS = helpers.blob_images(80, seed=3)
PRIVATE = PrivateExamples(helpers.BLOBS, IMAGES, LABELS)
POOL = Pool(helpers.BLOBS, IMAGES)
QUERIES, _ = helpers.blob_images(30, seed=7)
# One share of a single record, one of a single class, one longer than a batch has places for.
UNEVEN = assigned_partition(np.repeat(np.arange(NUM_TEACHERS), [1, 3, 10, 20, 46]), num_teachers=5)


@pytest.fixture
def encoder() -> Encoder:
    return Encoder(helpers.BLOBS, [RawPart(POOL)], {"representation": "raw"})


def config(model, **changes):
    return helpers.config(
        **{"num_teachers": NUM_TEACHERS, "model": model, "representation": "raw", **changes}
    )


def train(
    folder,
    model,
    encoder,
    *,
    partition: Partition = UNEVEN,
    teachers=None,
    processes=None,
    **changes,
):
    return runs.train(
        config=config(model, unit=partition.unit, **changes),
        examples=PRIVATE,
        partition=partition,
        teachers=range(NUM_TEACHERS) if teachers is None else teachers,
        run_directory=artifacts.RunDirectory(folder),
        devices=tf.distribute.OneDeviceStrategy("/CPU:0"),
        num_processes=processes,
        encoder=encoder,
        progress=lambda done: None,
    )


def loaded(folder):
    return runs.load_ensemble(runs.ensemble_folder(artifacts.RunDirectory(folder)))


def slow_label(model, features, labels, query):
    if not len(labels):
        return 0
    if model == closed_form.NEAREST_NEIGHBOUR:
        return labels[np.linalg.norm(features - query, axis=1).argmin()]
    weights, offsets = closed_form.fit(model, features, labels, num_classes=3, num_views=1)
    return (query @ weights.astype(np.float64) + offsets).argmax()


@pytest.mark.parametrize("model", closed_form.NAMES)
@pytest.mark.parametrize("chunk", [2, 64])
def test_votes_of_a_saved_ensemble(tmp_path, monkeypatch, encoder, model, chunk):
    monkeypatch.setattr(on_features, "CHUNK", chunk)
    # Teacher 1 of 5 may have nothing: its owners are gone.
    partition = Partition(np.where(UNEVEN.assignment == 1, 2, UNEVEN.assignment), 5, unit="owner")
    assert train(tmp_path, model, encoder, partition=partition)
    ensemble = loaded(tmp_path)
    votes = ensemble.votes(QUERIES)
    queries, features = encoder.features(QUERIES), encoder.features(IMAGES)
    slow = [
        [slow_label(model, features[own], LABELS[own], query) for query in queries]
        for own in partition.all_records()
    ]
    assert (votes.labels == slow).mean() > 0.99  # float16 may turn a vote between equals
    assert set(votes.labels[1].tolist()) == {0}
    counts = tf.saved_model.load(
        str(runs.ensemble_folder(artifacts.RunDirectory(tmp_path)))
    ).signatures["counts"]
    np.testing.assert_array_equal(
        counts(image=tf.constant(QUERIES))["counts"], votes.counts().values
    )
    np.testing.assert_array_equal(ensemble.counts(QUERIES).values, votes.counts().values)
    assert ensemble.counts(QUERIES[:0]).values.shape == (0, 3)
    with pytest.raises(ValueError, match=r"got .*, which answers with labels alone"):
        ensemble.probabilities(QUERIES, 1.0)


@pytest.mark.parametrize("model", closed_form.NAMES)
def test_parts_and_whole_are_the_same_ensemble(tmp_path, encoder, model):
    assert train(tmp_path / "whole", model, encoder)
    assert not train(tmp_path / "parts", model, encoder, teachers=[3, 1])
    public = helpers_public()
    some = teachers_accuracy.evaluate_finished(
        config(model), public, artifacts.RunDirectory(tmp_path / "parts"), encoder=encoder
    )
    assert some.values.shape == (2,)
    assert train(tmp_path / "parts", model, encoder)
    assert loaded(tmp_path / "whole").digest == loaded(tmp_path / "parts").digest


def helpers_public():
    return PublicExamples(helpers.BLOBS, *helpers.blob_images(40, seed=8))


def test_evaluation_in_small_parts_is_the_same(tmp_path, monkeypatch, encoder):
    train(tmp_path, closed_form.RIDGE, encoder)
    directory = artifacts.RunDirectory(tmp_path)
    whole = teachers_accuracy.evaluate(loaded(tmp_path), helpers_public(), directory)
    monkeypatch.setattr(teachers_accuracy, "VOTES_A_PART", 7)
    parts = teachers_accuracy.evaluate(loaded(tmp_path), helpers_public(), directory)
    np.testing.assert_array_equal(whole.values, parts.values)


def test_thousands_of_teachers_are_measured_on_fewer_samples(monkeypatch):
    public = helpers_public()
    assert teachers_accuracy.enough(public, 250) is public
    monkeypatch.setattr(teachers_accuracy, "FEWEST_SAMPLES", 8)
    monkeypatch.setattr(teachers_accuracy, "MOST_VOTES", 1_000)
    assert len(teachers_accuracy.enough(public, 50)) == 20
    some = teachers_accuracy.enough(public, 10_000)
    assert len(some) == 8
    np.testing.assert_array_equal(some.inputs[[0, -1]], public.inputs[[0, -1]])
    np.testing.assert_array_equal(some.labels[[0, -1]], public.labels[[0, -1]])


def test_voters_that_cannot_count_are_counted(tmp_path, encoder):
    train(tmp_path, closed_form.RIDGE, encoder)
    ensemble = loaded(tmp_path)
    kept = KeptVotes(ensemble.votes(QUERIES), Pool(helpers.BLOBS, QUERIES))
    np.testing.assert_array_equal(
        voters.counts(kept, QUERIES[3:7]).values, voters.counts(ensemble, QUERIES[3:7]).values
    )


def test_another_encoder_is_another_ensemble(tmp_path, encoder):
    train(tmp_path, closed_form.RIDGE, encoder)
    other = Encoder(helpers.BLOBS, [RawPart(POOL)], {"representation": "another"})
    with pytest.raises(ValueError, match="encoder: others in this folder than now"):
        train(tmp_path, closed_form.RIDGE, other)


@pytest.mark.parametrize(
    ("model", "representation", "given", "message"),
    [
        (helpers.SMALL, "raw", True, "representation: expected with ridge"),
        (closed_form.RIDGE, "raw", False, "encoder: expected one with a representation"),
        (closed_form.RIDGE, None, True, "encoder: expected one with a representation"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, encoder, model, representation, given, message):
    with pytest.raises(ValueError, match=message):
        train(tmp_path, model, encoder if given else None, representation=representation)
    assert not (tmp_path / "sensitive").exists() or not any((tmp_path / "sensitive").iterdir())


def test_thousands_of_teachers_are_one_array_on_disk(tmp_path, encoder):
    owners = [f"owner {place}" for place in range(80)]
    partition = owner_partition(owners, num_teachers=NUM_TEACHERS, seed=0)
    train(tmp_path, closed_form.RIDGE, encoder, partition=partition)
    (path,) = (tmp_path / "sensitive" / "teachers").glob("finished-*.npz")
    assert set(artifacts.read_arrays(path)) == {"teachers", "stacked/0", "stacked/1"}


def test_the_ensemble_knows_its_encoder_by_its_weights(tmp_path, encoder):
    train(tmp_path, closed_form.RIDGE, encoder)
    assert (
        ensembles.Ensemble(
            runs.ensemble_folder(artifacts.RunDirectory(tmp_path))
        ).config.representation
        == "raw"
    )


@pytest.mark.parametrize("model", ["random_forest", "classifiers_for_tests:scaled_logistic"])
def test_classifiers_of_scikit_learn_on_features(tmp_path, monkeypatch, encoder, model):
    monkeypatch.setattr(forest, "NUM_TREES", 5)
    # Teacher 1 of 5 may have nothing: its owners are gone.
    partition = Partition(np.where(UNEVEN.assignment == 1, 2, UNEVEN.assignment), 5, unit="owner")
    assert not train(tmp_path, model, encoder, partition=partition, teachers=[3, 0], processes=1)
    some = teachers_accuracy.evaluate_finished(
        config(model), helpers_public(), artifacts.RunDirectory(tmp_path), encoder=encoder
    )
    assert some.values.shape == (2,)
    assert train(tmp_path, model, encoder, partition=partition, processes=1)
    ensemble = loaded(tmp_path)
    features, queries = encoder.features(IMAGES), encoder.features(QUERIES)
    slow = []
    for teacher, own in enumerate(partition.all_records()):
        seed = int(np.random.SeedSequence([config(model).seed, teacher]).generate_state(1)[0])
        arrays = classifier.fit(model, encoder.feature_dataset, features[own], LABELS[own], seed)
        slow.append(classifier.from_arrays(arrays).predict(queries))
    votes = ensemble.votes(QUERIES)
    assert (votes.labels == slow).mean() > 0.99  # features of other batches may round otherwise
    assert set(votes.labels[1].tolist()) == {0}
    with pytest.raises(ValueError, match="queries: expected"):
        ensemble.votes(queries)


def test_classifiers_on_features_know_their_encoder(tmp_path, monkeypatch, encoder):
    monkeypatch.setattr(forest, "NUM_TREES", 2)
    train(tmp_path / "one", "random_forest", encoder, processes=1)
    first = loaded(tmp_path / "one")
    assert first.config.representation == "raw"
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    brighter = Encoder(
        helpers.BLOBS, [RawPart(Pool(helpers.BLOBS, IMAGES))], {"representation": "raw"}
    )
    brighter.learnt[0].assign_add(tf.ones_like(brighter.learnt[0]))
    folder = runs.ensemble_folder(artifacts.RunDirectory(tmp_path / "two"))
    shutil.rmtree(folder / classifiers.ENCODER)
    classifiers.save_encoder(folder / classifiers.ENCODER, brighter)
    assert loaded(tmp_path / "two").digest != first.digest
    shutil.rmtree(folder / classifiers.ENCODER)
    with pytest.raises(ValueError, match="expected a complete ensemble"):
        loaded(tmp_path / "two")
