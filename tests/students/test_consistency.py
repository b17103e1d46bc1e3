import dataclasses

import keras
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from labels_for_tests import released_labels

from pate_tf.core.dataset import Dataset
from pate_tf.core.public import Pool, PublicExamples
from pate_tf.data import catalogue as data
from pate_tf.models import catalogue as models
from pate_tf.students import consistency
from pate_tf.students.config import StudentConfig
from pate_tf.students.strong_augmentation import augment_strongly

RANDOM = np.random.default_rng(0)
LOGITS, OTHERS = RANDOM.normal(0, 3, (2, 6, 4)).astype(np.float32)
PROBABILITIES, OTHER_PROBABILITIES = (tf.nn.softmax(x).numpy() for x in (LOGITS, OTHERS))
LABELS = np.array([0, 1, 2, 3, 0, 1])


@given(st.floats(0.01, 1.0))
def test_the_loss_on_labels_is_generalised_cross_entropy(q):
    likelihood = PROBABILITIES[np.arange(6), LABELS].astype(np.float64)
    expected = ((1 - likelihood**q) / q).mean()
    found = consistency.generalized_cross_entropy(
        tf.constant(LABELS), LOGITS, robustness=tf.constant(q)
    )
    assert float(found) == pytest.approx(expected, rel=1e-4)


def test_without_robustness_it_is_cross_entropy():
    expected = -np.log(PROBABILITIES[np.arange(6), LABELS]).mean()
    found = consistency.generalized_cross_entropy(
        tf.constant(LABELS), LOGITS, robustness=tf.constant(0.0)
    )
    assert float(found) == pytest.approx(expected, rel=0.01)


def test_weights_are_learnt_as_they_are_and_labels_robustly(monkeypatch):
    """A student that is robust to weights lets go of whatever they are not sure of."""
    asked = []

    def loss(labels, logits, *, robustness):
        asked.append((labels.dtype, float(robustness)))
        return tf.reduce_mean(logits)

    monkeypatch.setattr(consistency, "generalized_cross_entropy", loss)
    dataset = data.load_public("digits").dataset
    model = consistency.ConsistencyStudent(
        models.build("mlp", dataset, seed=0), dataset, warm_up_steps=1
    )
    model.average_age.assign(5.0)
    images = tf.zeros([2, *dataset.input_shape])
    batch = {"labelled": images, "unlabelled": images, "changed": images}
    model._loss_parts({**batch, "labels": tf.constant([1, 2], tf.int64)})
    model._loss_parts({**batch, "labels": tf.fill([2, 10], 0.1)})
    assert asked == [(tf.int64, pytest.approx(consistency.ROBUSTNESS)), (tf.float32, 0.0)]


def test_only_confident_answers_teach_and_nothing_flows_back_into_them():
    logits = tf.constant([[9.0, 0.0, 0.0], [0.0, 9.0, 0.0], [2.0, 1.0, 0.0]])
    changed = tf.constant([[0.0, 1.0, 0.0], [0.0, 3.0, 1.0], [0.0, 0.0, 5.0]])
    with tf.GradientTape() as tape:
        tape.watch([logits, changed])
        loss = consistency.agreement_loss(logits, changed)
    unchanging, changing = tape.gradient(loss, [logits, changed])
    law = tf.nn.softmax(changed).numpy()
    # The mean is over all three, the third has no say.
    assert float(loss) == pytest.approx(-(np.log(law[0, 0]) + np.log(law[1, 1])) / 3, rel=1e-5)
    assert unchanging is None
    assert np.abs(changing[:2]).min() > 0.0
    np.testing.assert_array_equal(changing[2], 0.0)


def test_changed_images_are_taught_what_the_averaged_weights_say():
    public = data.load_public("digits")
    classifier = models.build("cnn", public.dataset, seed=1)
    student = consistency.ConsistencyStudent(classifier, public.dataset, warm_up_steps=1)
    student.compile(optimizer=keras.optimizers.SGD(0.0))
    for place, average in enumerate(student.averages):
        average.assign(tf.random.stateless_normal(average.shape, [place, 1]))  # sure of itself
    images = tf.constant(public.inputs[:60], tf.float32)
    _, plain, changed = tf.split(images, 3)
    own = consistency.agreement_loss(classifier(plain), classifier(changed))
    expected = consistency.agreement_loss(student.averaged_logits(plain), classifier(changed))
    found = student.train_step(
        {
            "labelled": images[:20],
            "labels": tf.constant(public.labels[:20]),
            "unlabelled": plain,
            "changed": changed,
        }
    )
    assert float(found["unlabelled_loss"]) == pytest.approx(float(expected), rel=1e-4)
    assert abs(float(expected) - float(own)) > 0.5


def test_divergence_and_entropy_are_those_of_scipy():
    expected = scipy.stats.entropy(PROBABILITIES, OTHER_PROBABILITIES, axis=1).mean()
    assert float(consistency.mean_divergence(LOGITS, OTHERS)) == pytest.approx(expected, rel=1e-4)
    expected = scipy.stats.entropy(PROBABILITIES, axis=1).mean()
    assert float(consistency.mean_entropy(LOGITS)) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e20])
def test_directions_become_units_however_small(size):
    directions = tf.constant(RANDOM.normal(0, size, (3, 4, 2)), tf.float32)
    unit = consistency._unit(directions).numpy()
    np.testing.assert_allclose((unit**2).mean(axis=(1, 2)), 1.0, rtol=1e-4)
    np.testing.assert_array_equal(consistency._unit(tf.zeros([2, 3])), 0.0)


def test_the_adversarial_change_moves_the_answer_more_than_a_random_one():
    dataset = dataclasses.replace(
        data.load_public("digits").dataset,
        kind="tabular",
        input_type="",
        input_shape=(64,),
        augmentation="none",
    )
    classifier = models.build("mlp", dataset, seed=3)
    student = consistency.ConsistencyStudent(classifier, dataset, warm_up_steps=1)
    inputs = tf.random.stateless_uniform([20, 64], [0, 1], 0.0, 16.0)
    directions = tf.random.stateless_normal([20, 64], [0, 2])
    logits = classifier(inputs)
    adversarial = student._adversarial_loss(inputs, directions, logits)
    by_chance = consistency.mean_divergence(
        logits, classifier(inputs + consistency.ADVERSARIAL_REACH * 16.0 * directions)
    )
    assert float(adversarial) > 2.0 * float(by_chance)


def test_it_learns_tables():
    public = data.load_public("digits")
    dataset = dataclasses.replace(
        public.dataset, kind="tabular", input_type="", input_shape=(64,), augmentation="none"
    )
    table = PublicExamples(dataset, public.inputs.reshape(-1, 64).astype(np.float32), public.labels)
    split = table.split(400)
    labels = released_labels(np.arange(60), split.pool_labels[:60])
    config = StudentConfig(
        student="consistency",
        model="mlp",
        max_steps=150,
        batch_size=32,
        learning_rate=0.003,
        seed=1,
    )
    model = consistency.train_consistency(config, labels, split.pool)
    given_labels = np.argmax(model(split.held_out.inputs), axis=1)
    # A constant guess is right on about 12 %.
    assert (given_labels == split.held_out.labels).mean() > 0.6


def test_strong_changes_follow_the_seed_and_stay_in_range():
    public = data.load_public("digits")
    images = tf.constant(public.inputs[:50], tf.float32)
    one, again, other = (
        augment_strongly(images, public.dataset, tf.constant([seed, 5], tf.int64)).numpy()
        for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)
    assert one.shape == images.shape
    assert 0.0 <= one.min() <= one.max() <= 16.0
    assert (np.abs(one - images).max(axis=(1, 2, 3)) > 0).all()


def test_a_student_is_saved_and_comes_back(tmp_path):
    dataset = data.load_public("digits").dataset
    classifier = models.build("cnn", dataset, seed=3)
    saved = consistency.ConsistencyStudent(classifier, dataset, warm_up_steps=7)
    for average in saved.averages:
        average.assign(average + 0.5)
    saved.save(tmp_path / "student.keras")
    loaded = keras.saving.load_model(tmp_path / "student.keras")
    assert (loaded.dataset, loaded.warm_up_steps) == (dataset, 7)
    for one, other in zip(saved.weights, loaded.weights, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_average_is_of_the_weights_and_the_first_is_the_weights():
    dataset = data.load_public("digits").dataset
    student = consistency.ConsistencyStudent(models.build("mlp", dataset), dataset, warm_up_steps=1)
    weights = student.classifier.trainable_weights
    expected = None
    for step in range(4):
        for weight in weights:
            weight.assign(weight + 1.0)
        student.update_average()
        kept = step / (step + 10)
        values = [weight.numpy() for weight in weights]
        expected = [
            kept * old + (1 - kept) * new
            for old, new in zip(expected or values, values, strict=True)
        ]
        averaged = student.averaged_classifier().trainable_weights
        for one, other in zip(averaged, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


L2 = 3.0


@pytest.mark.parametrize("augmentation", ["none", "affine"])
def test_a_regularizer_moves_the_weights_as_it_says(augmentation):
    dataset = dataclasses.replace(data.load_public("digits").dataset, augmentation=augmentation)
    images = tf.random.stateless_uniform([12, 8, 8, 1], [0, 1], 0.0, 16.0)
    kernels = []
    for regularizer in (None, keras.regularizers.L2(L2)):
        classifier = keras.Sequential(
            [
                keras.Input(dataset.input_shape),
                keras.layers.Flatten(),
                keras.layers.Dense(
                    10, kernel_regularizer=regularizer, kernel_initializer=seeded(7)
                ),
            ]
        )
        before = classifier.trainable_weights[0].numpy()
        student = consistency.ConsistencyStudent(classifier, dataset, warm_up_steps=1)
        student.compile(optimizer=keras.optimizers.SGD(0.01))
        found = student.train_step(
            {
                "labelled": images[:4],
                "labels": tf.constant([0, 1, 2, 3]),
                "unlabelled": images[4:],
                "changed": images[4:] + 1.0,
            }
        )
        kernels.append(classifier.trainable_weights[0].numpy())
    own = float(found["loss"]) - float(found["labelled_loss"]) - float(found["unlabelled_loss"])
    assert own == pytest.approx(L2 * (before**2).sum(), rel=1e-4)
    np.testing.assert_allclose(kernels[0] - kernels[1], 0.01 * 2 * L2 * before, atol=1e-5)


def seeded(seed):
    return keras.initializers.GlorotUniform(seed=seed)


def test_only_the_losses_of_the_answer_to_the_batch_count():
    # Looking for adversarial changes asks the classifier again, which adds to its losses.
    dataset = dataclasses.replace(data.load_public("digits").dataset, augmentation="none")
    classifier = keras.Sequential(
        [
            keras.Input(dataset.input_shape),
            keras.layers.Flatten(),
            keras.layers.Dense(10, activity_regularizer=keras.regularizers.L2(0.5)),
        ]
    )
    student = consistency.ConsistencyStudent(classifier, dataset, warm_up_steps=1)
    student.compile(optimizer=keras.optimizers.SGD(0.0))
    images = tf.random.stateless_uniform([6, 8, 8, 1], [0, 1], 0.0, 16.0)
    batch = {
        "labelled": images[:2],
        "labels": tf.constant([0, 1]),
        "unlabelled": images[2:],
        "changed": images[2:],
    }
    found = student.train_step(batch)
    own = float(found["loss"]) - float(found["labelled_loss"]) - float(found["unlabelled_loss"])
    # A mean over the batch, as Keras has it.
    expected = 0.5 * tf.reduce_sum(classifier(images) ** 2) / 6.0
    assert own == pytest.approx(float(expected), rel=1e-4)


def test_a_model_that_looks_inputs_up_learns_tables_of_whole_numbers():
    dataset = Dataset(
        name="table",
        kind="tabular",
        input_shape=(3,),
        value_range=(0.0, 9.0),
        num_classes=2,
        pool_size=60,
    )
    random = np.random.default_rng(1)
    inputs = random.integers(0, 10, (60, 3)).astype(np.float32)
    labels = released_labels(np.arange(40), (inputs[:40, 0] > 4).astype(np.int64), 2)
    config = StudentConfig(
        student="consistency",
        model="architectures_for_tests:embedding",
        max_steps=100,
        batch_size=16,
        learning_rate=0.02,
        seed=0,
    )
    model = consistency.train_consistency(config, labels, Pool(dataset, inputs))
    found = np.argmax(model(tf.constant(inputs)), axis=1)
    assert (found == (inputs[:, 0] > 4)).mean() > 0.9
