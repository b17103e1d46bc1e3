import keras
import numpy as np
import pytest
import tensorflow as tf
from architectures_for_tests import flattened
from hypothesis import given
from hypothesis import strategies as st

from pate_tf.data import datasets as data
from pate_tf.models import architectures as models
from pate_tf.students.student_kinds import consistency

RANDOM = np.random.default_rng(0)
LOGITS, OTHERS = RANDOM.normal(0, 3, (2, 6, 4)).astype(np.float32)
PROBABILITIES, OTHER_PROBABILITIES = (tf.nn.softmax(x).numpy() for x in (LOGITS, OTHERS))
LABELS = np.array([0, 1, 2, 3, 0, 1])


@given(st.floats(0.01, 1.0))
def test_the_loss_on_labels_is_generalised_cross_entropy(q):
    likelihood = PROBABILITIES[np.arange(6), LABELS].astype(np.float64)
    expected = ((1 - likelihood**q) / q).mean()
    losses = consistency.generalized_cross_entropy(
        tf.constant(LABELS), LOGITS, robustness=tf.constant(q)
    )
    assert float(losses) == pytest.approx(expected, rel=1e-4)


def test_only_confident_answers_teach_and_nothing_flows_back_into_them():
    logits = tf.constant([[9.0, 0.0, 0.0], [0.0, 9.0, 0.0], [2.0, 1.0, 0.0]])
    changed = tf.constant([[0.0, 1.0, 0.0], [0.0, 3.0, 1.0], [0.0, 0.0, 5.0]])
    with tf.GradientTape() as tape:
        tape.watch([logits, changed])
        loss = consistency.agreement_loss(logits, changed)
    unchanging, changing = tape.gradient(loss, [logits, changed])
    law = tf.nn.softmax(changed).numpy()
    # The mean is over all three inputs; the third contributes no label.
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
        average.assign(tf.random.stateless_normal(average.shape, [place, 1]))  # confident
    images = tf.constant(public.inputs[:60], tf.float32)
    _, plain, changed = tf.split(images, 3)
    own = consistency.agreement_loss(classifier(plain), classifier(changed))
    expected = consistency.agreement_loss(student.averaged_logits(plain), classifier(changed))
    losses = student.train_step(
        {
            "labelled": images[:20],
            "labels": tf.constant(public.labels[:20]),
            "unlabelled": plain,
            "changed": changed,
        }
    )
    assert float(losses["unlabelled_loss"]) == pytest.approx(float(expected), rel=1e-4)
    assert abs(float(expected) - float(own)) > 0.5


L2 = 3.0


def test_a_regularizer_moves_the_weights_as_it_says():
    dataset = data.load_public("digits").dataset
    images = tf.random.stateless_uniform([12, 8, 8, 1], [0, 1], 0.0, 16.0)
    kernels = []
    for regularizer in (None, keras.regularizers.L2(L2)):
        initializer = keras.initializers.GlorotUniform(seed=7)
        classifier = flattened(
            dataset, kernel_regularizer=regularizer, kernel_initializer=initializer
        )
        before = classifier.trainable_weights[0].numpy()
        student = consistency.ConsistencyStudent(classifier, dataset, warm_up_steps=1)
        student.compile(optimizer=keras.optimizers.SGD(0.01))
        losses = student.train_step(
            {
                "labelled": images[:4],
                "labels": tf.constant([0, 1, 2, 3]),
                "unlabelled": images[4:],
                "changed": images[4:] + 1.0,
            }
        )
        kernels.append(classifier.trainable_weights[0].numpy())
    own = float(losses["loss"]) - float(losses["labelled_loss"]) - float(losses["unlabelled_loss"])
    assert own == pytest.approx(L2 * (before**2).sum(), rel=1e-4)
    np.testing.assert_allclose(kernels[0] - kernels[1], 0.01 * 2 * L2 * before, atol=1e-5)
