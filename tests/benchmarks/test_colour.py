"""Stand-ins for small photographs."""

import dataclasses
import types

import numpy as np
import pytest
import scipy.fft

import pate_tf
from benchmarks import colour
from pate_tf.api import feature_sums
from pate_tf.representations import catalogue, contrastive, patches


@pytest.fixture(autouse=True)
def few_of_mnist(monkeypatch):
    """Digits of 28 x 28 that are bars, whose width is their label."""
    monkeypatch.setattr(colour, "SIZES", {"private": 200, "public": 100})
    monkeypatch.setattr(colour, "POOL_SIZE", 80)
    labels = np.arange(300) % 10
    inputs = np.zeros((300, 28, 28, 1), np.uint8)
    for one, label in zip(inputs, labels, strict=True):
        one[4:24, 13 - label // 2 : 15 + label // 2] = 255
    mnist = types.SimpleNamespace(inputs=inputs, labels=labels)
    monkeypatch.setattr(colour.catalogue, "load_private", lambda name, data_dir: mnist)
    return mnist


@pytest.mark.parametrize("load", [colour.digits, colour.letters])
def test_both_sides_are_drawn_the_same_each_time_and_share_no_image(load):
    dataset, private, labels = load("private", None)
    also, public, others = load("public", None)
    assert dataset == also
    assert private.shape == (200, *dataset.input_shape)
    assert set(labels) == set(others) == set(range(10))
    assert not {image.tobytes() for image in private} & {image.tobytes() for image in public}
    assert np.array_equal(load("public", None)[1], public)


def test_amplitudes_of_the_ground_fall_as_one_over_the_frequency():
    random = np.random.default_rng(0)
    grounds = np.stack([colour._ground(random).mean(axis=2) for _ in range(300)])
    grounds -= grounds.mean(axis=(1, 2), keepdims=True)
    power = np.square(np.abs(scipy.fft.fft2(grounds))).mean(axis=0)[0, 1:16]
    slope = np.polyfit(np.log(np.arange(1, 16)), np.log(power), 1)[0]
    assert slope == pytest.approx(-2.0, abs=0.2)


def test_the_middle_digit_is_the_class_and_others_stand_at_its_sides(monkeypatch):
    monkeypatch.setattr(colour, "_ground", lambda random: np.zeros((32, 32, 3)))
    _, images, labels = colour.digits("public", None)
    brightness = images.mean(axis=(0, 3))[16]
    assert brightness[16] > 50.0
    assert brightness[[1, 30]].min() > 10.0
    row = images.mean(axis=3)[:, 16].astype(int)
    for one, label in zip(row, labels, strict=True):
        middle = one[15 - label // 2 : 17 + label // 2]
        assert middle.min() > 15


@pytest.mark.parametrize("group", [slice(80), slice(80, 100)], ids=["pool", "held out"])
def test_no_digit_of_the_pool_is_in_an_image_held_out_nor_the_reverse(
    monkeypatch, few_of_mnist, group
):
    monkeypatch.setattr(colour, "_ground", lambda random: np.zeros((32, 32, 3)))
    few_of_mnist.inputs[200:][group] = 0
    _, images, _ = colour.digits("public", None)
    assert images[group].max() < 60  # noise alone
    assert np.delete(images, group, axis=0).max() > 60


def test_shares_right_are_printed_by_data_set_and_representation(capsys):
    small = ["--representations", "raw", "--private", "150", "--public", "60"]
    colour.main(small)
    rows = capsys.readouterr().out.splitlines()
    assert [row.split(" | ")[:2] for row in rows[2:]] == [["| digits", "raw"], ["| letters", "raw"]]
    colour.main([*small, "--only", "letters", "--epsilons", "0.1"])
    (row,) = capsys.readouterr().out.splitlines()[2:]
    *known, _, share = rows[-1].split(" | ")
    assert row.split(" | ") == [*known, share]


def test_students_are_compared_on_private_records_and_held_out(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv(catalogue.CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(patches, "COLOUR", dataclasses.replace(patches.COLOUR, filters=32))
    monkeypatch.setattr(feature_sums, "default_of_sums", lambda dataset: "patches")
    monkeypatch.setattr(contrastive, "STUDENT_STEPS", 2)
    monkeypatch.setattr(colour, "ASKED", ((1e4, 4),))
    student, steps = pate_tf.Student, {"consistency": 2, "linear_head": None}
    monkeypatch.setattr(pate_tf, "Student", lambda name: student(name, steps=steps[name]))
    flags = types.SimpleNamespace(data_dir=None, private=150, public=80, epsilons=[1e4])
    colour.compare_students(colour.digits, flags, tmp_path)
    name, epsilon, rounds, labels, auto, *right = capsys.readouterr().out.strip("| \n").split(" | ")
    assert (name, epsilon, rounds, auto) == ("digits", "10000", "4", "linear_head")
    shares = [float(one.strip("%")) for one in (labels.split(": ")[1], *right)]
    assert len(shares) == 5 and shares[1] > 90  # of the head on private records


def test_noise_costs_labels_that_features_tell_apart():
    labels = np.arange(200) % 4
    features = np.eye(4, dtype=np.float32)[labels]
    both = (features, labels)
    assert colour.share_right(both, both, 0.0) == 1.0
    assert colour.share_right(both, both, 1e6) < 1.0
