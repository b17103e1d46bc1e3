import dataclasses
import datetime
import io
import json
import pickle
import zipfile

import classifiers_for_tests
import numpy as np
import pytest
import skops.io
from classifiers_for_tests import TABLE
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from pate_tf.models import estimators


def records(num: int = 60, classes=(0, 1, 2)) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(num)
    inputs = random.uniform(-1, 1, (num, 4)).astype(np.float32)
    kinds = (inputs[:, 0] > 0) * 1 + (inputs[:, 1] > 0)
    return inputs, np.array(classes)[kinds % len(classes)]


QUERIES = np.random.default_rng(9).uniform(-1, 1, (300, 4)).astype(np.float32)


def fit(function: str, inputs=None, labels=None, seed: int = 3) -> list[np.ndarray]:
    if inputs is None:
        inputs, labels = records()
    return estimators.fit(f"classifiers_for_tests:{function}", TABLE, inputs, labels, seed)


def twin(build, inputs, labels, seed: int = 3):
    """Returns the same classifier, trained with scikit-learn only."""
    estimator = build(TABLE)
    names = [name for name in estimator.get_params() if name.endswith("random_state")]
    return estimator.set_params(**dict.fromkeys(names, seed)).fit(inputs, labels)


@pytest.mark.parametrize(
    ("build", "classes"),
    [
        *((build, (0, 1, 2)) for build in classifiers_for_tests.STORABLE),
        *((build, (0, 2)) for build in classifiers_for_tests.STORABLE[:3]),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
@pytest.mark.filterwarnings("ignore")
def test_it_answers_exactly_as_scikit_learn(build, classes):
    assert estimators.is_storable(build(TABLE))
    inputs, labels = records(classes=classes)
    again = estimators.from_arrays(fit(build.__name__, inputs, labels))
    answers = again.predict(QUERIES)
    np.testing.assert_array_equal(answers, twin(build, inputs, labels).predict(QUERIES))
    assert answers.dtype == np.int64
    assert set(answers.tolist()) <= set(classes)


@pytest.mark.parametrize("function", ["scaled_sgd", "histogram_boosting", "neighbours", "tree"])
def test_the_seed_decides_every_byte(function):
    (one,), (again,), (other,) = fit(function), fit(function), fit(function, seed=4)
    np.testing.assert_array_equal(one, again)
    if function != "neighbours":  # not random
        assert not np.array_equal(one, other)


@pytest.mark.parametrize(
    ("function", "kind"),
    [("own_class", "classifiers_for_tests.Own"), ("runs_a_command", "posix.system")],
)
def test_what_is_not_scikit_learns_is_refused_before_it_is_fitted(function, kind):
    with pytest.raises(ValueError, match=f"types outside scikit-learn: .*{kind}"):
        estimators.is_storable(getattr(classifiers_for_tests, function)(TABLE))


def test_records_that_an_estimator_refuses_stop_nothing():
    """A visible refusal would reveal information about the records, so the teacher answers their
    most frequent label.
    """
    inputs, labels = records()
    again = estimators.from_arrays(fit("refuses_negative_numbers", inputs, labels))
    assert again.predict(QUERIES).tolist() == [np.bincount(labels).argmax()] * len(QUERIES)
    inputs[7, 1] = np.nan
    with pytest.raises(ValueError, match="inputs must be finite"):
        fit("scaled_logistic", inputs, labels)


def test_an_estimator_that_can_not_learn_is_told_from_public_values():
    estimators.check_learns("random_forest", TABLE)
    for build in classifiers_for_tests.STORABLE:
        estimators.check_learns(f"classifiers_for_tests:{build.__name__}", TABLE)
    positive = dataclasses.replace(TABLE, value_range=((0.0,) * 4, (1.0, 2.0, 3.0, 4.0)))
    estimators.check_learns("classifiers_for_tests:refuses_negative_numbers", positive)
    with pytest.raises(ValueError, match=r"model: .* 10 artificial records .*Neg") as caught:
        estimators.check_learns("classifiers_for_tests:refuses_negative_numbers", TABLE)
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_an_estimator_that_fails_on_an_input_answers_the_first_class_there():
    assert estimators.from_arrays(fit("diverged")).predict(QUERIES).shape == (len(QUERIES),)
    inputs, labels = records(classes=(1, 2))
    far = estimators.from_arrays(fit("refuses_far_inputs", inputs, labels))
    queries = np.concatenate([QUERIES[:3], inputs[:3]])
    assert far.predict(queries).tolist() == [0, 0, 0, *labels[:3]]


def test_what_is_not_fitted_or_answers_names_is_refused():
    inputs, labels = records()
    with pytest.raises(ValueError, match="LogisticRegression is not fitted"):
        estimators.Estimator(LogisticRegression()).predict(QUERIES)
    names = LogisticRegression().fit(inputs, np.array(["a", "b", "c"])[labels])
    with pytest.raises(ValueError, match="LogisticRegression must predict one label for every"):
        estimators.Estimator(names).predict(QUERIES)


def as_array(content: bytes) -> np.ndarray:
    return np.frombuffer(content, np.uint8)


def naming(module: str, kind: str) -> np.ndarray:
    """Returns an archive that calls a function with an argument."""
    with zipfile.ZipFile(io.BytesIO(skops.io.dumps(datetime.UTC))) as archive:
        schema = json.loads(archive.read("schema.json"))
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        changed = {**schema, "__module__": module, "__class__": kind}
        archive.writestr("schema.json", json.dumps(changed))
    return as_array(written.getvalue())


@pytest.mark.parametrize(
    ("module", "kind"),
    [
        ("os", "system"),
        ("builtins", "eval"),
        ("classifiers_for_tests", "Own"),
        ("sklearn.calibration", "signature"),  # imported from there: a function
        ("sklearn.calibration", "LabelEncoder"),  # imported from there: a class
        ("sklearn.calibration", "nosuch"),
        ("sklearn.datasets", "fetch_openml"),
    ],
)
def test_an_archive_that_names_another_type_is_refused(module, kind):
    with pytest.raises(ValueError, match="types outside scikit-learn") as caught:
        estimators.from_arrays([naming(module, kind)])
    assert f"{module}.{kind}" in str(caught.value)
    assert "\n" not in str(caught.value)


RAN = []


class Payload:
    def __reduce__(self):
        return RAN.append, (1,)


def broken_archives():
    good = bytes(fit("scaled_logistic")[0])
    command = make_pipeline(FunctionTransformer(print), LogisticRegression())
    yield pickle.dumps(Payload())
    yield pickle.dumps(LogisticRegression())
    yield b""
    yield good[: len(good) // 2]
    yield skops.io.dumps([1, 2])
    yield skops.io.dumps(command)


def test_other_files_are_refused():
    for content in broken_archives():
        with pytest.raises(ValueError, match=r"^classifier (can't be|must be)") as caught:
            estimators.from_arrays([as_array(content)])
        assert "\n" not in str(caught.value)
    assert RAN == []
