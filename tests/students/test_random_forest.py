import numpy as np
import pytest
import tensorflow as tf
from classifiers_for_tests import TABLE
from hypothesis import given, settings
from hypothesis import strategies as st
from labels_for_tests import released_labels
from sklearn.ensemble import RandomForestClassifier

from pate_tf.accounting.charge import ReleasedLabels
from pate_tf.core.public import Pool
from pate_tf.models.forest import Forest
from pate_tf.serving.export import export_student
from pate_tf.serving.served import ServedStudent
from pate_tf.students.student_kinds import StudentConfig, kind_of
from pate_tf.students.student_kinds.random_forest import ForestModel

TRAIN = kind_of("random_forest").train


def config(**changes: object) -> StudentConfig:
    fields = {
        "model": "random_forest",
        "max_steps": 1,
        "batch_size": 1,
        "learning_rate": 0.1,
        "seed": 4,
    }
    return StudentConfig(**{**fields, **changes})


def of_three(indices, labels, num_classes: int = 3) -> ReleasedLabels:
    return released_labels(indices, labels, num_classes)


def noisy(num: int, seed: int, classes=(0, 1, 2)) -> tuple[np.ndarray, np.ndarray]:
    """Returns coarse inputs. Equal inputs have different labels, so leaves are not pure."""
    random = np.random.default_rng(seed)
    inputs = random.integers(-3, 3, (num, 4)).astype(np.float32) / 3
    return inputs, np.array(classes)[random.integers(0, len(classes), num)]


def labels_of(model: ForestModel, inputs: np.ndarray) -> np.ndarray:
    return model(tf.constant(inputs)).numpy().argmax(axis=1)


@pytest.mark.parametrize("classes", [(0, 1, 2), (0, 2), (1,)])
@pytest.mark.parametrize("num", [1, 300])
def test_the_served_graph_answers_exactly_as_scikit_learn(tmp_path, num, classes):
    inputs, labels = noisy(num, num, classes)
    order = np.random.default_rng(0).permutation(num)
    model = TRAIN(config(), of_three(order, labels[order]), Pool(TABLE, inputs))
    folder = export_student(model, TABLE, tmp_path, {"epsilon": 1.0})
    twin = RandomForestClassifier(n_estimators=100, random_state=4)
    twin.fit(inputs[order], labels[order])
    queries = noisy(1_200, seed=7)[0]
    np.testing.assert_array_equal(ServedStudent(folder).answer(queries)[0], twin.predict(queries))
    serve = tf.saved_model.load(str(folder)).signatures["serving_default"]
    outputs = serve(features=tf.constant(queries))
    expected = np.zeros((len(queries), 3))
    expected[:, twin.classes_] = twin.predict_proba(queries)
    np.testing.assert_allclose(outputs["probabilities"].numpy(), expected, atol=3e-6)
    assert outputs["probabilities"].dtype == tf.float32
    assert outputs["label"].dtype == tf.int64


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1))
def test_ties_and_near_ties_are_decided_as_by_the_arrays(seed):
    """Uses leaves whose probabilities differ only in the last bits, as after rounding."""
    random = np.random.default_rng(seed)
    num_trees = int(random.integers(1, 40))
    children = np.tile(np.array([[1, 2], [-1, -1], [-1, -1]], np.int32), (num_trees, 1))
    shares = random.dirichlet([1, 1, 1], size=3 * num_trees)
    shares[:] = shares[0]
    shares += random.choice([0.0, 2.0**-54, -(2.0**-54)], shares.shape)
    shares[:, 1] = shares[:, 0] + random.choice([0.0, 2.0**-54], 3 * num_trees)
    made = Forest(
        starts=np.arange(0, 3 * num_trees + 1, 3),
        children=children,
        features=random.integers(0, 4, 3 * num_trees).astype(np.int32),
        thresholds=random.uniform(-1, 1, 3 * num_trees),
        probabilities=np.clip(shares, 0.0, 1.0),
        num_features=4,
    )
    queries = random.uniform(-1, 1, (50, 4)).astype(np.float32)
    np.testing.assert_array_equal(labels_of(ForestModel(made), queries), made.predict(queries))


def test_a_value_at_a_threshold_goes_left():
    made = Forest(
        starts=np.array([0, 3]),
        children=np.array([[1, 2], [-1, -1], [-1, -1]], np.int32),
        features=np.zeros(3, np.int32),
        thresholds=np.array([0.1, 0.0, 0.0]),  # float32(0.1) is larger than float64(0.1)
        probabilities=np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]),
        num_features=1,
    )
    queries = np.array([[0.1], [np.nextafter(np.float32(0.1), np.float32(0))]], np.float32)
    assert made.predict(queries).tolist() == [1, 0]
    assert labels_of(ForestModel(made), queries).tolist() == [1, 0]
