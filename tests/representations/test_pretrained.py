"""Encoders that a person brings, from memory and from disk, with both methods."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import pate_tf
from pate_tf.representations import catalogue, contrastive
from pate_tf.representations.catalogue import Representation

DIGITS = pate_tf.Data.load("digits")
SHAPE = DIGITS.dataset.input_shape


def small(shape=SHAPE, seed=0) -> keras.Model:
    """A small encoder with fixed weights, as if it had been trained elsewhere."""
    inputs = keras.Input(shape)
    found = keras.layers.Rescaling(1 / 16)(inputs)
    weights = keras.initializers.RandomNormal(seed=seed)
    found = keras.layers.Conv2D(24, 3, activation="relu", kernel_initializer=weights)(found)
    return keras.Model(inputs, keras.layers.Flatten()(keras.layers.MaxPooling2D(2)(found)))


def centred(model, pool, inputs):
    """Products of outputs less the pool's mean, divided by their norms."""
    mean = model.predict(np.asarray(pool, np.float32), verbose=0).mean(axis=0)
    outputs = model.predict(np.asarray(inputs, np.float32), verbose=0) - mean
    outputs /= np.linalg.norm(outputs, axis=1, keepdims=True)
    return outputs @ outputs.T


@pytest.fixture(scope="module", autouse=True)
def few_steps():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contrastive, "NETWORKS", 1)
        patch.setattr(contrastive, "STEPS", 3)
        patch.setattr(contrastive, "STUDENT_STEPS", 3)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoders")
    small().save(folder / "small.keras")
    small((12, 10, 3)).save(folder / "colours.keras")
    return folder


def test_file_model_and_function_are_the_same_encoder(folder):
    sources = (
        Representation(f"encoder:{folder}/small.keras"),
        Representation(small()),
        Representation(lambda dataset: small(dataset.input_shape)),
    )
    expected = centred(small(), DIGITS.pool.inputs, DIGITS.pool.inputs)
    for source in sources:
        assert source.fit(DIGITS.pool) is source
        features = source.transform(DIGITS.pool)
        np.testing.assert_allclose(features @ features.T, expected, atol=1e-4)


def test_images_are_brought_to_the_models_size_and_colours(folder):
    images = DIGITS.pool.inputs.astype(np.float32)
    resized = tf.image.resize(np.repeat(images, 3, axis=3), (12, 10))
    expected = centred(small((12, 10, 3)), resized, resized[:5])
    encoder = Representation(f"encoder:{folder}/colours.keras").fit(DIGITS.pool)
    features = encoder.transform(images[:5])
    np.testing.assert_allclose(features @ features.T, expected, atol=1e-3)


def test_teachers_on_an_encoder_label_and_the_statement_names_it(folder, tmp_path):
    mine = Representation(f"encoder:{folder}/small.keras")
    teachers = pate_tf.Teachers("ridge", num_teachers=15, representation=mine, directory=tmp_path)
    teachers.fit(DIGITS.private, DIGITS.pool)
    mechanism = pate_tf.LaplaceNoisyMax(scale=0.5)
    with pate_tf.Labeller(teachers, mechanism, delta=1e-5) as labeller:
        labels = labeller.label(DIGITS.pool, 60, strategy="medoids")
        student = pate_tf.Student("supervised", steps=5).fit(DIGITS.pool, labels)
        published = student.publish(tmp_path / "released")
    truth = DIGITS.public.pool_labels[np.asarray(labels.query_indices)]
    assert (np.asarray(labels.labels) == truth).mean() > 0.7
    assert published.statement.encoder.startswith("small.keras, weights ")
    page = (tmp_path / "released" / "privacy_statement.md").read_text()
    assert "holder vouches that no private record" in page and str(folder) not in page


def test_feature_sums_of_an_encoder_label_and_the_statement_names_it(folder, tmp_path):
    mine = Representation(f"encoder:{folder}/small.keras")
    sums = pate_tf.FeatureSums(representation=mine, directory=tmp_path)
    sums.fit(DIGITS.private, DIGITS.pool)
    with pate_tf.Labeller(sums, epsilon=20.0, delta=1e-5) as labeller:
        labels = labeller.label(DIGITS.pool)
        student = pate_tf.Student("supervised", steps=5).fit(DIGITS.pool, labels)
        published = student.publish(tmp_path / "released")
    given = labels.training_labels
    truth = DIGITS.public.pool_labels[np.asarray(given.query_indices)]
    assert (np.asarray(given.labels) == truth).mean() > 0.6
    assert published.statement.encoder.startswith("small.keras, weights ")


def test_another_encoder_at_the_same_path_is_another_run(folder, tmp_path):
    path = tmp_path / "mine.keras"
    for seed in (0, 1):
        small(seed=seed).save(path)
        catalogue.encoder_of.cache_clear()
        teachers = pate_tf.Teachers(
            "ridge", num_teachers=5, representation=f"encoder:{path}", directory=tmp_path / "run"
        )
        if seed:
            with pytest.raises(ValueError, match="holds teachers of other settings: encoder;"):
                teachers.fit(DIGITS.private, DIGITS.pool)
        else:
            teachers.fit(DIGITS.private, DIGITS.pool)


def test_what_is_no_encoder_is_refused_in_one_line(folder, tmp_path):
    keras.Sequential(
        [keras.Input(SHAPE), keras.layers.Flatten(), keras.layers.Lambda(lambda images: images)]
    ).save(tmp_path / "code.keras")

    for name, message in (
        (f"encoder:{tmp_path}/none.keras", "expected a .keras file at"),
        (f"encoder:{tmp_path}", "expected a .keras file at"),
        (f"encoder:{tmp_path}/code.keras", "expected a Keras model that needs no code of its own"),
    ):
        with pytest.raises(ValueError, match=message) as refused:
            Representation(name).fit(DIGITS.pool)
        assert "\n" not in str(refused.value)
    with pytest.raises(ValueError, match="before transform"):
        Representation("raw").transform(DIGITS.pool)
