"""The estimator of numbers: its training on records, and its predictions."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.base import clone, is_regressor

import pate_tf
from pate_tf.core.sensitive import SensitiveWarning

RANDOM = np.random.default_rng(3)
INPUTS = RANDOM.uniform(-1, 1, (900, 2))
NUMBERS = 50 + 40 * INPUTS[:, 0]
SETTINGS = {"epsilon": 500.0, "delta": 1e-5, "value_range": (-1, 1), "random_state": 0}


def regressor(**changes):
    return pate_tf.PateRegressor(**{"target_range": (0, 100), **SETTINGS, **changes})


def test_settings_are_shared_with_the_classifier():
    shared = set(pate_tf.PateClassifier().get_params()) - {"classes"}
    copied = clone(regressor(epsilon=3.0))
    assert set(copied.get_params()) == {*shared, "target_range"} and copied.epsilon == 3.0
    assert is_regressor(copied) and pate_tf.PateClassifier(classes=[0, 1]).classes == [0, 1]
    with pytest.raises(TypeError, match="target_range"):
        pate_tf.PateRegressor()


@pytest.mark.parametrize("form", [np.asarray, list, np.float32])
def test_records_become_data_of_a_number(monkeypatch, form):
    module = sys.modules["pate_tf.run.classifier"]
    monkeypatch.setattr(module, "fit", lambda data, **_: SimpleNamespace(cost=data))
    monkeypatch.setattr(pate_tf.PateRegressor, "_num_fits", 2)
    with pytest.warns(SensitiveWarning, match="clipped"):
        data = regressor(target_range=(20, 100)).fit(INPUTS, form(NUMBERS)).cost_
    assert data.dataset.target_range == (20, 100) and data.private.labels.dtype == np.float64
    np.testing.assert_allclose(data.private.labels, NUMBERS.clip(20), rtol=1e-6)
    with pytest.raises(ValueError, match="got NaN"):
        regressor().fit(INPUTS, np.where(NUMBERS > 50, np.nan, NUMBERS))


@pytest.mark.filterwarnings("ignore")
def test_a_student_predicts_numbers():
    fitted = regressor().fit(INPUTS[:800], NUMBERS[:800])
    predicted = fitted.predict(INPUTS[800:])
    assert predicted.dtype == np.float64 and predicted.shape == (100,)
    assert fitted.score(INPUTS[800:], NUMBERS[800:]) > 0.8
