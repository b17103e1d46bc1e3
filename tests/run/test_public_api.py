"""The public API from end to end, as typed in the guide, on few digits."""

import pathlib

import api_helpers
import numpy as np
import pytest
import tensorflow as tf

import pate_tf

MECHANISM = pate_tf.LaplaceNoisyMax(scale=5.0)
BUDGET = 10.0


class Whole:
    """One whole run; don't write to it."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.data = pate_tf.Data.load("digits")
        self.teachers = pate_tf.Teachers(
            api_helpers.net, num_teachers=20, directory=folder / "run", steps=20
        ).fit(self.data.private)
        with pate_tf.Labeller(
            self.teachers, MECHANISM, epsilon_budget=BUDGET, delta=1e-5
        ) as labeller:
            self.labels = labeller.label(self.data.pool, num_queries=60, strategy="random")
            self.remaining = labeller.remaining
        self.labeller = labeller
        self.student = pate_tf.Student("consistency", steps=20).fit(self.data.pool, self.labels)
        self.published = self.student.publish(folder / "released")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    return Whole(tmp_path_factory.mktemp("whole"))


def test_the_student_is_evaluated_where_labels_exist(whole):
    held_out = whole.data.held_out
    accuracies = whole.student.evaluate(held_out)
    assert accuracies == pytest.approx(np.mean(whole.student.predict(held_out) == held_out.labels))
    assert whole.student.evaluate(held_out.inputs, held_out.labels) == accuracies
    with pytest.raises(ValueError, match=r"`labels=` with raw inputs, or pass data.held_out"):
        whole.student.evaluate(held_out.inputs)
    assert whole.student.evaluate(held_out.inputs[:2], [-1, -1]) is None


def test_labels_are_saved_and_learnt_from_by_anybodys_code(whole, tmp_path):
    whole.labels.save(tmp_path / "labels")
    labels = pate_tf.Labels.load(tmp_path / "labels", whole.data.pool, labeller=whole.labeller)
    np.testing.assert_array_equal(labels.labels, whole.labels.labels)
    assert labels.cost == whole.labels.cost
    model = api_helpers.compiled(whole.data.dataset)
    model.fit(*labels.to_numpy(), batch_size=20, epochs=3, verbose=0)
    student = pate_tf.Student.from_model(model, labels)
    published = student.publish(tmp_path / "released")
    served = tf.saved_model.load(str(published.student_folder)).signatures["serving_default"]
    inputs = whole.data.held_out.inputs[:9]
    # The model ends in probabilities. The server returns these, not their softmax.
    np.testing.assert_allclose(
        served(image=tf.constant(inputs))["probabilities"].numpy(),
        model(tf.constant(inputs, tf.float32)).numpy(),
        atol=1e-5,
    )
    np.testing.assert_allclose(
        student.predict_proba(inputs), model(tf.constant(inputs, tf.float32)).numpy(), atol=1e-5
    )


WRONG = {
    "a model in place of its function": (
        lambda data, folder: pate_tf.Teachers(api_helpers.net(data.dataset)),
        "net must be a name, or a function",
    ),
    "data in place of records": (
        lambda data, folder: pate_tf.Teachers("mlp", directory=folder).fit(data),
        "private must be data.private",
    ),
    "more teachers than records": (
        lambda data, folder: (
            pate_tf.Teachers("mlp", directory=folder).fit(data.private)
            if len(data.private) < 100
            else pate_tf.Teachers("mlp", num_teachers=121, directory=folder).fit(data.private)
        ),
        "num_teachers must be a whole number from 1 to 120",
    ),
    "a labeller of those": (
        lambda data, folder: pate_tf.Labeller(pate_tf.Teachers("mlp"), MECHANISM, delta=1e-5),
        "teachers are not trained yet",
    ),
    "a scale for a mechanism": (
        lambda data, folder: pate_tf.Labeller(
            pate_tf.Teachers.from_votes([[1]], directory=folder), 5.0, delta=1e-5
        ),
        "mechanism must be registered, such as",
    ),
    "a student that was not trained": (
        lambda data, folder: pate_tf.Student().predict(data.pool),
        "student must be trained first",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_one_line(what, tmp_path):
    wrong, message = WRONG[what]
    with pytest.raises(ValueError) as caught:
        wrong(api_helpers.digits(), tmp_path / "run")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
