import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from labels_for_tests import released_labels

from pate_tf.core.public import Pool
from pate_tf.data.digits import DIGITS
from pate_tf.data.tfds_source import MNIST, SVHN
from pate_tf.students import gan
from pate_tf.students.config import StudentConfig
from pate_tf.students.gan import SIDE, BiasCorrectedAdam, SampleImages


def student(dataset=DIGITS) -> gan.GanStudent:
    built = gan.GanStudent(
        gan.build_classifier(dataset, seed=1),
        gan.build_generator(dataset, seed=2),
        dataset,
    )
    built.compile(0.003)
    return built


def test_adam_follows_the_reference():
    # Algorithm 1 of Kingma and Ba, epsilon under the root, in float64.
    rate, beta_1, beta_2, epsilon = 0.003, 0.5, 0.999, 1e-4
    start = np.array([1.0, -2.0, 3.0])
    variable = keras.Variable(start, dtype="float32")
    optimizer = BiasCorrectedAdam(rate, beta_1=beta_1, beta_2=beta_2, epsilon=epsilon)
    expected, moment, velocity = start, 0.0, 0.0
    random = np.random.default_rng(0)
    for step in range(1, 30):
        # As small as epsilon, so that its place shows.
        gradient = random.normal(0.0, 1e-4, 3)
        optimizer.apply([tf.constant(gradient, tf.float32)], [variable])
        moment = beta_1 * moment + (1 - beta_1) * gradient
        velocity = beta_2 * velocity + (1 - beta_2) * gradient**2
        corrected = moment / (1 - beta_1**step), velocity / (1 - beta_2**step)
        expected = expected - rate * corrected[0] / np.sqrt(corrected[1] + epsilon**2)
        np.testing.assert_allclose(variable.numpy(), expected, rtol=2e-6)


def test_the_realness_loss_is_that_of_one_more_class_with_logit_zero():
    random = np.random.default_rng(0)
    real, generated = random.normal(0, 3, (2, 6, 4))

    def generated_probability(logits):
        # Softmax over the k logits and a zero for "generated".
        exponentials = np.exp(np.column_stack([logits, np.zeros(len(logits))]))
        return exponentials[:, -1] / exponentials.sum(axis=1)

    expected = -0.5 * np.log(1 - generated_probability(real)).mean()
    expected -= 0.5 * np.log(generated_probability(generated)).mean()
    assert float(gan.realness_loss(real, generated)) == pytest.approx(expected)


def test_networks_for_gray_images_are_the_papers():
    classifier = gan.build_classifier(MNIST, seed=0)
    units = [layer.units for layer in classifier.layers if hasattr(layer, "units")]
    assert units == [1000, 500, 250, 250, 250, 10]
    noise = [layer.stddev for layer in classifier.layers if hasattr(layer, "stddev")]
    assert [value for value in noise if value in (0.3, 0.5)] == [0.3] + 5 * [0.5]
    generator = gan.build_generator(MNIST, seed=0)
    units = [layer.units for layer in generator.layers if hasattr(layer, "units")]
    assert units == [500, 500, 784]
    # Of the classifier only the last scale is trained, and the generator's.
    assert sum("scale" in weight.path for weight in classifier.trainable_weights) == 1
    assert sum("scale" in weight.path for weight in generator.trainable_weights) == 1


@pytest.mark.parametrize("dataset", [DIGITS, MNIST, SVHN], ids=lambda dataset: dataset.name)
def test_networks_fit_their_images(dataset):
    generator = gan.build_generator(dataset, seed=0)
    latent = tf.random.stateless_uniform([3, gan.LATENT_SIZE], [0, 0])
    images = generator(latent, training=True)
    low, high = dataset.value_range
    assert images.shape == (3, *dataset.input_shape)
    assert low <= float(tf.reduce_min(images)) < float(tf.reduce_max(images)) <= high
    logits = gan.build_classifier(dataset, seed=0)(images)
    assert logits.shape == (3, dataset.num_classes)


@pytest.mark.parametrize("shape", [(28, 28, 3), (64, 64, 3), (8, 8, 2)], ids=str)
def test_images_without_networks_are_refused(shape):
    dataset = dataclasses.replace(SVHN, input_shape=shape)
    with pytest.raises(ValueError, match="student gan: expected gray images or"):
        gan.check_images(dataset)


def test_colour_images_train():
    # Two steps on noise: that the pair runs is what is asked here.
    inputs = np.random.default_rng(0).integers(0, 256, (6, 32, 32, 3), np.uint8)
    labels = released_labels([0, 1, 2], [0, 1, 2])
    config = StudentConfig(
        student="gan",
        model=gan.NAME,
        max_steps=2,
        batch_size=4,
        learning_rate=0.003,
        seed=0,
    )
    model = gan.train_gan(config, labels, Pool(SVHN, inputs))
    assert np.isfinite(model(tf.constant(inputs, tf.float32))).all()


def test_a_student_is_saved_and_comes_back(tmp_path):
    saved = student()
    for average in saved.averages:
        average.assign(average + 0.5)
    saved.save(tmp_path / "student.keras")
    loaded = keras.saving.load_model(tmp_path / "student.keras")
    assert loaded.dataset == DIGITS
    for one, other in zip(saved.weights, loaded.weights, strict=True):
        np.testing.assert_array_equal(one, other)
    assert float(loaded.generator_optimizer.learning_rate) == pytest.approx(0.003)
    latent = tf.random.stateless_uniform([3, gan.LATENT_SIZE], [0, 0])
    np.testing.assert_allclose(loaded.generator(latent), saved.generator(latent), rtol=1e-6)


def test_sample_images_form_one_grid_in_the_logs(tmp_path):
    callback = SampleImages(tmp_path, seed=3)
    callback.set_model(student())
    callback.set_params({"epochs": 7})
    picture = callback.grid()
    assert picture.shape == (1, SIDE * 8, SIDE * 8, 1)
    assert 0.0 <= float(tf.reduce_min(picture)) <= float(tf.reduce_max(picture)) <= 1.0
    # The image in row 2, column 3 is the 23rd.
    images = callback.model.generator(callback._latent, training=True)
    tile = picture[0, 16:24, 24:32] * 16.0
    np.testing.assert_allclose(tile, images[23], rtol=1e-4, atol=1e-4)
    for epoch in range(7):
        callback.on_epoch_end(epoch)
    steps = [
        event.step
        for path in sorted(tmp_path.rglob("events*"))
        for record in tf.data.TFRecordDataset(str(path))
        if (event := tf.compat.v1.Event.FromString(record.numpy())).summary.value
    ]
    assert sorted(steps) == [4, 6]
