"""The estimator: scikit-learn's own checks, pipelines, cost, and required public arguments."""

import pickle
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator
from sklearn.utils.multiclass import check_classification_targets

import pate_tf

# Checks of scikit-learn that must fail, each with its reason, by `classes`. Learned classes have
# none.
OTHER_LABELS = "its labels are not among `classes`, which is what the message says"
EXPECTED_FAILED_CHECKS = {
    None: {},
    (0, 1, 2): {
        **dict.fromkeys(("check_dtype_object", "check_classifiers_classes"), OTHER_LABELS),
        "check_classifiers_regression_target": OTHER_LABELS,
        "check_classifiers_train": "probabilities have a column of each of `classes`, in y or not",
    },
}
QUICK = {
    "epsilon": 2000.0,
    "delta": 1e-4,
    "num_teachers": 5,
    "teacher": LogisticRegression(),
    "student": "random_forest",
    "mechanism": pate_tf.mechanisms.GaussianHistogram,
    "num_queries": 60,
    "random_state": 0,
    "insecure_seed": 3,
}

WITHOUT_POOL = {name: QUICK[name] for name in ("epsilon", "delta", "random_state", "insecure_seed")}
WITHOUT_POOL |= {"value_range": (-10.0, 10.0)}


def classifier(**changes):
    return pate_tf.PateClassifier(**{**QUICK, "classes": ["no", "yes"], **changes})


@pytest.fixture(scope="module")
def records():
    random = np.random.default_rng(5)
    inputs = random.normal(size=(260, 3))
    return inputs, np.where(inputs[:, 0] > 0.0, "yes", "no")


@pytest.fixture(scope="module")
def fitted(records):
    inputs, labels = records
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        return classifier().fit(inputs[:200], labels[:200], X_public=inputs[200:])


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("classes", EXPECTED_FAILED_CHECKS)
def test_scikit_learn_finds_nothing_wrong_but_what_must_fail(classes):
    # For feature sums, because these checks have no public inputs.
    whole = pate_tf.PateClassifier(classes=classes, **WITHOUT_POOL)
    expected = EXPECTED_FAILED_CHECKS[classes]
    results = check_estimator(whole, expected_failed_checks=expected, on_skip=None)
    failed = {result["check_name"] for result in results if result["status"] == "xfail"}
    assert failed == set(expected)


@pytest.mark.filterwarnings("ignore")
def test_scikit_learn_finds_nothing_wrong_with_its_parameters():
    check_estimator(pate_tf.PateClassifier(**WITHOUT_POOL), legacy=False)


def test_a_student_predicts_the_classes(fitted, records):
    inputs, labels = records
    assert fitted.classes_.tolist() == ["no", "yes"]
    assert fitted.score(inputs, labels) > 0.8
    stated = fitted.predict_proba(inputs)
    assert stated.shape == (260, 2)
    assert np.allclose(stated.sum(axis=1), 1.0)
    assert (fitted.classes_[stated.argmax(axis=1)] == fitted.predict(inputs)).all()


def test_the_cost_is_that_of_one_fit(fitted):
    assert 1900.0 < fitted.cost_.epsilon <= 2000.0
    assert (fitted.cost_.delta, fitted.cost_.unit) == (1e-4, "record")
    assert len(fitted.fitted_.labels) == 60


def test_a_clone_fits_and_a_copy_predicts_the_same(fitted, records):
    inputs, labels = records
    again = clone(fitted).fit(inputs[:200], labels[:200], X_public=inputs[200:])
    read = pickle.loads(pickle.dumps(fitted))
    assert read.fitted_.source is None and read.fitted_.labels.labeller is None
    for other in (again, read):
        assert np.array_equal(other.predict_proba(inputs), fitted.predict_proba(inputs))


def test_a_pipeline_hands_the_public_inputs_through(records):
    inputs, labels = records
    with sklearn.config_context(enable_metadata_routing=True):
        last = classifier().set_fit_request(X_public=True)
        whole = make_pipeline(FunctionTransformer(np.tanh), last, transform_input=["X_public"])
        whole.fit(inputs[:200], labels[:200], X_public=inputs[200:])
    pool = whole[-1].fitted_.labels.pool.inputs
    assert np.allclose(pool, np.tanh(inputs[200:]), atol=1e-6)
    assert whole.score(inputs, labels) > 0.8


def test_feature_sums_and_owners(records):
    inputs, labels = records
    sums = classifier(method="feature_sums", mechanism=None, num_queries=None)
    owners = np.arange(200) // 2
    sums.fit(inputs[:200], labels[:200], X_public=inputs[200:], owners=owners)
    assert sums.cost_.unit == "owner"
    assert sums.score(inputs, labels) > 0.7


def test_with_a_directory_the_ledger_stays_and_the_student_can_be_published(records, tmp_path):
    inputs, labels = records
    kept = classifier(directory=tmp_path / "run")
    kept.fit(inputs[:200], labels[:200], X_public=inputs[200:])
    kept.fit(inputs[:200], labels[:200], X_public=inputs[200:])  # the same queries: not charged
    statement = kept.fitted_.student.publish(tmp_path / "released").statement
    assert statement.epsilon == pytest.approx(kept.cost_.epsilon)
    assert statement.epsilon_ledger == pytest.approx(kept.cost_.epsilon)
    with pytest.raises(ValueError, match="record"):
        kept.fit(inputs[:150], labels[:150], X_public=inputs[200:])


def test_other_records_are_refused_by_their_number_and_else_warned_of(records, tmp_path):
    inputs, labels = records
    no_teachers = {"method": "feature_sums", "mechanism": None, "num_queries": None}
    sums = classifier(**no_teachers, directory=tmp_path / "run")
    sums.fit(inputs[:200], labels[:200], X_public=inputs[200:])
    with pytest.warns(UserWarning, match="private records are not read again"):
        sums.fit(inputs[1:201], labels[1:201], X_public=inputs[200:])
    with pytest.raises(ValueError, match=r"settings: num_records. Use another folder"):
        sums.fit(inputs[:150], labels[:150], X_public=inputs[200:])


def test_a_set_of_classes_that_comes_from_private_labels_is_warned_of(records):
    inputs, labels = records
    with pytest.warns(UserWarning, match="classes are taken from y"):
        classifier(classes=None).fit(inputs[:200], labels[:200], inputs[200:])


def test_a_search_warns_once_of_what_its_fits_cost_together(records, monkeypatch):
    fitted = SimpleNamespace(cost=SimpleNamespace(epsilon=1.25, delta=1e-4))
    monkeypatch.setattr(sys.modules["pate_tf.run.classifier"], "fit", lambda data, **_: fitted)
    monkeypatch.setattr(pate_tf.PateClassifier, "_num_fits", 0)
    search = GridSearchCV(classifier(), {"num_queries": [9, 60]}, cv=3, scoring=lambda *_: 1.0)
    with pytest.warns(UserWarning, match=r"k times epsilon 1\.25 at delta 0\.0001") as told:
        search.fit(*records, X_public=records[0] * 0.9)
    assert len(told) == 1


def test_nothing_is_said_of_all_private_labels_together(monkeypatch):
    """Adding or removing one label can make scikit-learn warn that there are many classes."""
    module = sys.modules["pate_tf.run.classifier"]
    monkeypatch.setattr(module, "fit", lambda data, **_: SimpleNamespace(cost=len(data.private)))
    inputs = np.random.default_rng(0).normal(size=(24, 2))
    for last in (0, 12):
        labels = np.array([*range(12), *[0] * 11, last])
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            check_classification_targets(labels)
            assert len(told) == (last == 12)
            classifier(classes=range(13)).fit(inputs, labels, X_public=inputs * 0.9)
        assert len(told) == (last == 12)  # only the warning of the check


@pytest.mark.parametrize(
    ("changes", "public", "message"),
    [
        ({"classes": ["no", "maybe"]}, True, "y must only contain labels in `classes`"),
        ({"classes": ["no"]}, True, "classes must contain at least two labels, got 1"),
        ({}, False, "Pass X_public, or set `value_range`"),
        ({"epsilon": None}, True, "epsilon is required"),
        ({"method": "sums"}, True, "method must be auto, pate or feature_sums"),
    ],
)
def test_what_does_not_fit_is_refused(records, changes, public, message):
    inputs, labels = records
    with pytest.raises(ValueError, match=message):
        classifier(**changes).fit(
            inputs[:200], labels[:200], X_public=inputs[200:] if public else None
        )
    with pytest.raises(ValueError, match=r"X_public must have the shape .*, 3\], got"):
        classifier().fit(inputs[:200], labels[:200], X_public=inputs[200:, :2])
    with pytest.raises(ValueError, match="X must be numbers"):
        classifier().fit([["private"], ["7"]], ["no", "yes"])
