"""Texts from end to end: raw strings in, a student that is served strings."""

import docstring_sentences
import numpy as np
import pytest
import tensorflow as tf

import pate_tf
from pate_tf.data import preprocessing
from pate_tf.data.schema import TEXT_FEATURES
from pate_tf.serving import served


@pytest.fixture(scope="module")
def texts():
    return docstring_sentences.load(3000)


@pytest.fixture(scope="module")
def data(texts):
    sentences, labels = texts
    return pate_tf.Data.from_arrays(
        *(sentences[:2000], labels[:2000], sentences[2000:], labels[2000:]),
        num_classes=2,
        class_names=tuple(docstring_sentences.PACKAGES),
        kind="text",
        name="docstrings",
    )


@pytest.fixture(scope="module")
def published(texts, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    teachers = pate_tf.Teachers("ridge", num_teachers=10, directory=folder / "run")
    teachers.fit(data.private, data.pool)
    mechanism = pate_tf.LaplaceNoisyMax(scale=1.0)
    with pate_tf.Labeller(teachers, mechanism, delta=1e-5) as labeller:
        labels = labeller.label(data.pool, num_queries=300)
        student = pate_tf.Student("supervised", model="mlp", steps=200).fit(data.pool, labels)
        probabilities = student.predict_proba(data.held_out.inputs[:7])
        np.testing.assert_array_equal(
            student.predict_proba(texts[0][-len(data.held_out) :][:7]), probabilities
        )
        return student.publish(folder / "released")


def test_a_text_student_learns_and_is_served_strings(texts, data, published):
    sentences, labels = texts
    held_out, truth = sentences[-len(data.held_out) :], np.array(labels[-len(data.held_out) :])
    loaded = tf.saved_model.load(str(published.student_folder))
    serve = loaded.signatures[served.SERVING_DEFAULT]
    assert serve.structured_input_signature[1]["text"].dtype == tf.string
    answer = serve(text=tf.constant(held_out))
    assert (answer["label"].numpy() == truth).mean() > 0.65  # a constant answer gets half
    assert set(answer["class_name"].numpy()) <= {b"scipy", b"keras"}


def test_all_ways_to_ask_give_the_same_answer(texts, data, published):
    sentences = texts[0][:7]
    loaded = tf.saved_model.load(str(published.student_folder))
    requests = {
        served.SERVING_DEFAULT: {"text": tf.constant(sentences)},
        served.FEATURES: {
            "features": tf.constant(preprocessing.encode_texts(sentences, TEXT_FEATURES))
        },
    }
    actual = [
        loaded.signatures[name](**inputs)["probabilities"].numpy()
        for name, inputs in requests.items()
    ]
    np.testing.assert_allclose(actual[1], actual[0], atol=1e-6)
    student = served.ServedStudent(published.student_folder)
    encoded = preprocessing.encode_texts(sentences, TEXT_FEATURES)
    assert np.array_equal(student.answer(encoded)[0], actual[0].argmax(axis=1))
    none = tf.constant([], tf.string)
    assert loaded.signatures[served.SERVING_DEFAULT](text=none)["label"].shape == (0,)


def test_the_data_set_says_that_it_holds_texts(data):
    dataset = data.dataset
    about = (dataset.kind, dataset.input_shape, dataset.augmentation)
    assert about == ("text", (TEXT_FEATURES,), "none")
    with pytest.raises(ValueError, match="x_private must be strings"):
        pate_tf.Data.from_arrays([1], [0], ["a"], num_classes=2, kind="text")
    with pytest.raises(ValueError, match="value_range must not be set for texts"):
        pate_tf.Data.from_arrays(["a"], [0], ["a"], num_classes=2, kind="text", value_range=(0, 1))


@pytest.mark.parametrize(("wish", "chosen"), [("train", "fine_lsa"), ("evaluate", "lsa")])
def test_public_labels_choose_the_number_of_directions(data, tmp_path, wish, chosen):
    run = pate_tf.fit(data, epsilon=1, directory=tmp_path, public_labels=wish, accept_forecast=True)
    # In a trial with as many directions as texts, private data would seem to do harm.
    assert run.labels.representation == chosen and (run.plan.forecast.gain or 0.0) >= 0.0
