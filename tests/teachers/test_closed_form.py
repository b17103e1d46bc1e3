"""Teachers on features: votes of the saved ensemble against votes worked out by hand."""

import numpy as np
import pytest
import teacher_helpers as helpers
import tensorflow as tf

from pate_tf.api import teacher_training
from pate_tf.core import artifacts
from pate_tf.core.partition import Partition
from pate_tf.core.public import Pool, PublicExamples
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.models import classifier, closed_form, forest
from pate_tf.models.encoder import Encoder
from pate_tf.representations.raw import RawPart
from pate_tf.teachers import ensemble, kinds
from pate_tf.teachers.kinds import Engine
from pate_tf.teachers.voters import StoredVotes

NUM_TEACHERS = 5
IMAGES, LABELS = helpers.blob_images(80, seed=3)
PRIVATE = PrivateExamples(helpers.BLOBS, IMAGES, LABELS)
POOL = Pool(helpers.BLOBS, IMAGES)
QUERIES, _ = helpers.blob_images(30, seed=7)
# A share of a single record, one of none, one longer than a batch has places for.
SHARES = Partition(np.repeat([0, 2, 2, 3, 4], [1, 3, 10, 20, 46]), NUM_TEACHERS, "owner")


@pytest.fixture
def encoder() -> Encoder:
    return Encoder(helpers.BLOBS, [RawPart(POOL)], {"representation": "raw"})


def trained(folder, model, encoder):
    config = helpers.config(
        num_teachers=NUM_TEACHERS, model=model, representation="raw", unit="owner"
    )
    directory = artifacts.RunDirectory(folder)
    assert teacher_training.train(
        config=config,
        examples=PRIVATE,
        partition=SHARES,
        teachers=range(NUM_TEACHERS),
        run_directory=directory,
        engine=Engine(num_processes=1),
        encoder=encoder,
        progress=lambda done: None,
    )
    return kinds.load_ensemble(teacher_training.ensemble_folder(directory))


def slow_label(model, features, labels, query):
    if not len(labels):
        return 0
    if model == closed_form.NEAREST_NEIGHBOUR:
        return labels[np.linalg.norm(features - query, axis=1).argmin()]
    weights, offsets = closed_form.fit(model, features, labels, num_classes=3, num_views=1)
    return (query @ weights.astype(np.float64) + offsets).argmax()


@pytest.mark.parametrize("model", closed_form.NAMES)
@pytest.mark.parametrize("chunk", [2, 64])
def test_votes_of_solved_teachers(tmp_path, monkeypatch, encoder, model, chunk):
    monkeypatch.setattr(ensemble, "CHUNK", chunk)
    votes = trained(tmp_path, model, encoder).votes(QUERIES)
    queries, features = encoder.features(QUERIES), encoder.features(IMAGES)
    slow = [
        [slow_label(model, features[own], LABELS[own], query) for query in queries]
        for own in SHARES.all_records()
    ]
    assert (votes.labels == slow).mean() > 0.99  # float16 may turn a vote between equals


@pytest.mark.parametrize("model", ["random_forest", "classifiers_for_tests:scaled_logistic"])
def test_votes_of_classifiers_on_features(tmp_path, monkeypatch, encoder, model):
    monkeypatch.setattr(forest, "NUM_TREES", 5)
    ensemble_of_them = trained(tmp_path, model, encoder)
    features, queries = encoder.features(IMAGES), encoder.features(QUERIES)
    slow = []
    for teacher, own in enumerate(SHARES.all_records()):
        seed = int(np.random.SeedSequence([5, teacher]).generate_state(1)[0])
        arrays = classifier.fit(model, encoder.feature_dataset, features[own], LABELS[own], seed)
        slow.append(classifier.from_arrays(arrays).predict(queries))
    votes = ensemble_of_them.votes(QUERIES)
    assert (votes.labels == slow).mean() > 0.99  # features of other batches may round otherwise


def test_an_ensemble_is_known_by_its_encoders_weights(tmp_path, monkeypatch, encoder):
    monkeypatch.setattr(forest, "NUM_TREES", 2)
    first = trained(tmp_path, "random_forest", encoder)
    brighter = Encoder(helpers.BLOBS, [RawPart(POOL)], {"representation": "raw"})
    brighter.learnt[0].assign_add(tf.ones_like(brighter.learnt[0]))
    folder = teacher_training.ensemble_folder(artifacts.RunDirectory(tmp_path))
    with artifacts.atomic_folder(folder / "encoder") as other:
        ensemble.save_encoder(other, brighter)
    assert kinds.load_ensemble(folder).digest != first.digest


def test_thousands_of_teachers_are_one_array_on_disk(tmp_path, encoder):
    trained(tmp_path, closed_form.RIDGE, encoder)
    (path,) = (tmp_path / "sensitive" / "teachers").glob("finished-*.npz")
    assert set(artifacts.read_arrays(path)) == {"teachers", "stacked/0", "stacked/1"}


def test_accuracies_are_those_of_the_votes_however_they_are_cut_up(monkeypatch):
    public = PublicExamples(helpers.BLOBS, *helpers.blob_images(40, seed=8))
    labels = np.random.default_rng(0).integers(0, 3, (NUM_TEACHERS, 40))
    labels[3] = 1
    teachers = StoredVotes(
        teacher_training.voters.Votes(labels, 3), Pool(helpers.BLOBS, public.inputs)
    )
    monkeypatch.setattr(teacher_training, "VOTES_A_PART", 7 * NUM_TEACHERS)
    accuracies, gaps = teacher_training.measured(teachers, public)
    right = labels == public.labels
    np.testing.assert_allclose(accuracies.values, right.mean(axis=1))
    recall = [right[:, public.labels == one].mean(axis=1) for one in range(3)]
    np.testing.assert_allclose(accuracies.balanced, np.mean(recall, axis=0))
    assert accuracies.num_constant == 1
    ordered = np.sort([np.bincount(column, minlength=3) for column in labels.T], axis=1)
    np.testing.assert_allclose(gaps, (ordered[:, 2] - ordered[:, 1]) / NUM_TEACHERS)


def test_thousands_of_teachers_are_measured_on_fewer_samples(monkeypatch):
    public = PublicExamples(helpers.BLOBS, *helpers.blob_images(40, seed=8))
    assert teacher_training.enough(public, 250) is public
    monkeypatch.setattr(teacher_training, "FEWEST_SAMPLES", 8)
    monkeypatch.setattr(teacher_training, "MOST_VOTES", 1_000)
    assert len(teacher_training.enough(public, 50)) == 20
    some = teacher_training.enough(public, 10_000)
    assert len(some) == 8
    np.testing.assert_array_equal(some.inputs[[0, -1]], public.inputs[[0, -1]])
    np.testing.assert_array_equal(some.labels[[0, -1]], public.labels[[0, -1]])
