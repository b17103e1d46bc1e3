"""Sums of records by class: what one record or one owner can change, and that they are kept."""

import math

import numpy as np
import pytest
import teacher_helpers as helpers
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from pate_tf.accounting.divergences import LATTICE
from pate_tf.api import teacher_training
from pate_tf.core import artifacts
from pate_tf.core.partition import Partition, assigned_partition, owner_partition
from pate_tf.core.public import Pool
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.models.encoder import CONSTANT, Encoder, record_vectors
from pate_tf.representations.raw import RawPart
from pate_tf.teachers.on_features import class_sums

NUM_CLASSES = 3
IMAGES, LABELS = helpers.blob_images(80, seed=3)
POOL = Pool(helpers.BLOBS, IMAGES)
UNEVEN = assigned_partition(np.repeat(np.arange(5), [1, 3, 10, 20, 46]), num_teachers=5)


def length(steps) -> float:
    """Exactly squared, in Python's whole numbers."""
    return math.sqrt(sum(int(one) ** 2 for one in steps.ravel()))


def some(seed, number=9):
    random = np.random.default_rng(seed)
    features = random.normal(size=(number, 4)).astype(np.float32)
    return record_vectors(features, None), random.integers(0, NUM_CLASSES, number)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**20))
def test_one_record_replaced_moves_them_by_two_at_most(seed):
    vectors, labels = some(seed)
    before = class_sums(vectors, labels, num_classes=NUM_CLASSES)
    others = class_sums(vectors[1:], labels[1:], num_classes=NUM_CLASSES)
    assert length(before - others) <= LATTICE  # what one record adds
    for changed, label in ((-vectors[0], labels[0]), (vectors[1], (labels[0] + 1) % NUM_CLASSES)):
        changed[-1] = CONSTANT
        after = class_sums(
            np.vstack([changed, vectors[1:]]),
            np.append(label, labels[1:]),
            num_classes=NUM_CLASSES,
        )
        assert 0 < length(after - before) <= 2 * LATTICE


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**20), st.integers(1, 30))
def test_an_owner_adds_a_length_of_one_at_most_however_many_records(seed, number):
    mine, my_labels = some(seed, number)
    vectors, labels = some(seed + 1)
    owners = np.arange(len(labels)) % 3
    without = class_sums(vectors, labels, num_classes=NUM_CLASSES, owners=owners)
    with_me = class_sums(
        np.vstack([mine, vectors]),
        np.append(my_labels, labels),
        num_classes=NUM_CLASSES,
        owners=np.append(np.full(number, 7), owners),
    )
    assert 0 < length(with_me - without) <= LATTICE


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("owned", [False, True])
@pytest.mark.parametrize("bad", [7.0, 1e300, np.nan, np.inf])
def test_a_vector_that_is_too_long_counts_as_none(bad, owned):
    """Whatever `record_vectors` gives: what is added is measured in whole numbers."""
    vectors, labels = some(5)
    owners = np.arange(len(labels)) if owned else None

    def sums(chosen):
        some_owners = None if owners is None else owners[chosen]
        return class_sums(
            vectors[chosen], labels[chosen], num_classes=NUM_CLASSES, owners=some_owners
        )

    without = sums(np.arange(1, len(labels)))
    vectors[0] = bad
    with_bad = sums(np.arange(len(labels)))
    if owned and bad == 7.0:  # shortened
        assert 0 < length(with_bad - without) <= LATTICE
    elif not (owned and bad == 1e300):
        assert (with_bad == without).all()
    assert length(with_bad - without) <= LATTICE


def test_sums_are_what_one_would_add_up_by_hand():
    vectors, labels = some(5)
    slow = np.zeros((vectors.shape[1], NUM_CLASSES))
    for vector, label in zip(vectors, labels, strict=True):
        slow[:, label] += vector
    found = class_sums(vectors, labels, num_classes=NUM_CLASSES)
    np.testing.assert_allclose(found / LATTICE, slow, atol=len(labels) / LATTICE)
    order = np.random.default_rng(0).permutation(len(labels))
    assert (class_sums(vectors[order], labels[order], num_classes=NUM_CLASSES) == found).all()
    each = class_sums(vectors, labels, num_classes=NUM_CLASSES, owners=np.arange(len(labels)))
    np.testing.assert_allclose(each, found, atol=1.0 * len(labels))  # steps


@pytest.fixture
def encoder() -> Encoder:
    return Encoder(helpers.BLOBS, [RawPart(POOL)], {"representation": "raw"})


def train(folder, encoder, *, images=IMAGES, labels=LABELS, partition=UNEVEN, owners=None, **more):
    asked = {"teachers": range(5), **more}
    return teacher_training.train(
        config=helpers.config(
            num_teachers=5, model="ridge", representation="raw", unit=partition.unit
        ),
        examples=PrivateExamples(helpers.BLOBS, images, labels, owners),
        partition=partition,
        run_directory=artifacts.RunDirectory(folder),
        devices=tf.distribute.OneDeviceStrategy("/CPU:0"),
        encoder=encoder,
        progress=lambda done: None,
        **asked,
    )


def kept(folder):
    return teacher_training.load_ensemble(
        teacher_training.ensemble_folder(artifacts.RunDirectory(folder))
    )


def test_an_ensemble_keeps_the_sums_of_all_its_records(tmp_path, encoder):
    assert train(tmp_path, encoder)
    ensemble = kept(tmp_path)
    vectors = record_vectors(encoder.features(IMAGES), encoder.scale)
    np.testing.assert_allclose(
        ensemble.class_sums.values / LATTICE,
        class_sums(vectors, LABELS, num_classes=NUM_CLASSES) / LATTICE,
        atol=1e-4,  # features of other batches differ by rounding
    )
    np.testing.assert_allclose(ensemble.features(IMAGES), encoder.features(IMAGES), atol=1e-5)
    assert str(ensemble.class_sums.values[0, 0]) not in repr(ensemble.class_sums)


def test_one_record_replaced_moves_what_is_kept_by_two_at_most(tmp_path, encoder):
    train(tmp_path / "before", encoder)
    changed, other = IMAGES.copy(), LABELS.copy()
    changed[40], other[40] = changed[40].max() - changed[40], (other[40] + 1) % NUM_CLASSES
    train(tmp_path / "after", encoder, images=changed, labels=other)
    before, after = kept(tmp_path / "before"), kept(tmp_path / "after")
    moved = length(after.class_sums.values - before.class_sums.values)
    assert 0 < moved <= 2 * LATTICE
    assert before.digest != after.digest


class Standardised(RawPart):
    """Each image by its own mean and deviation: of a blank one nothing is finite."""

    def __call__(self, inputs):
        (view,) = super().__call__(inputs)
        mean, variance = tf.nn.moments(view[:, :-1], [1], keepdims=True)
        return [tf.concat([(view[:, :-1] - mean) / tf.sqrt(variance), view[:, -1:]], axis=1)]


def test_a_record_without_finite_features_adds_nothing(tmp_path):
    encoder = Encoder(helpers.BLOBS, [Standardised(POOL)], {"representation": "standardised"})
    blank = IMAGES.copy()
    blank[40] = 0
    assert np.isfinite(encoder.features(blank)).all()
    train(tmp_path / "before", encoder)
    train(tmp_path / "after", encoder, images=blank)
    moved = kept(tmp_path / "after").class_sums.values - kept(tmp_path / "before").class_sums.values
    assert 0 < length(moved) <= LATTICE  # one is taken away, and none added


@pytest.mark.parametrize("limit", ["SECONDS_BETWEEN_SAVES", "MOST_UNSAVED"])
def test_sums_come_out_the_same_however_the_training_was_cut_up(
    tmp_path, monkeypatch, encoder, limit
):
    train(tmp_path / "whole", encoder)
    train(tmp_path / "parts", encoder, teachers=[3, 1])
    train(tmp_path / "parts", encoder, teachers=[0, 1, 3])
    monkeypatch.setattr(teacher_training, limit, 0)
    train(tmp_path / "elsewhere", encoder, teachers=[4, 2])
    assert len([*(tmp_path / "elsewhere" / "sensitive" / "teachers").glob("finished-*")]) == 2
    train(
        tmp_path / "parts",
        encoder,
        teachers=[],
        merge_from=[artifacts.RunDirectory(tmp_path / "elsewhere")],
    )
    whole, parts = kept(tmp_path / "whole"), kept(tmp_path / "parts")
    assert (whole.class_sums.values == parts.class_sums.values).all()
    assert whole.digest == parts.digest


def test_owners_are_shortened_and_unknown_ones_not_added_up(tmp_path, encoder):
    owners = np.arange(len(LABELS)) % 20
    partition = owner_partition(owners, num_teachers=5, seed=0)
    train(tmp_path / "known", encoder, partition=partition, owners=owners)
    found = kept(tmp_path / "known").class_sums.values
    # 20 owners of 4 records each add at most 20 lengths, of which the constant is a part.
    assert 0 < found[-1].sum() <= 20 * LATTICE * CONSTANT * 2
    train(tmp_path / "unknown", encoder, partition=partition)
    assert kept(tmp_path / "unknown").class_sums is None
    by_hand = Partition(partition.assignment, 5, unit="record")
    train(tmp_path / "records", encoder, partition=by_hand, owners=owners)
    records = kept(tmp_path / "records").class_sums.values
    assert records[-1].sum() == pytest.approx(80 * LATTICE * CONSTANT, abs=80)


def test_owners_are_those_that_the_partition_and_the_training_before_knew(tmp_path, encoder):
    owners = np.arange(len(LABELS)) % 20
    partition = owner_partition(owners, num_teachers=5, seed=0)
    train(tmp_path, encoder, partition=partition, owners=owners, teachers=[0, 1])
    with pytest.raises(ValueError, match="owners: expected all records of an owner with one tea"):
        train(tmp_path, encoder, partition=partition, owners=np.arange(len(LABELS)) % 7)
    # Other owners, shared out alike, would be shortened to other lengths in one and the same sum.
    with pytest.raises(ValueError, match=r"holds other teachers .*owners"):
        train(tmp_path, encoder, partition=partition, owners=np.arange(len(LABELS)))
    assert train(tmp_path, encoder, partition=partition, owners=owners)


def test_teachers_of_an_earlier_version_have_no_sums(tmp_path, encoder):
    train(tmp_path, encoder, teachers=[0, 1])
    for path in (tmp_path / "sensitive" / "teachers").glob("finished-*.npz"):
        arrays = artifacts.read_arrays(path)
        del arrays["class_sums"]
        artifacts.write_arrays(path, arrays, private=True)
    assert train(tmp_path, encoder)
    assert kept(tmp_path).class_sums is None
