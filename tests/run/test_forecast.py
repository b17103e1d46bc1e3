"""The accuracy forecast of labels, before anything is charged."""

import numpy as np
import pytest

import pate_tf
from pate_tf.planning.choose import choose
from pate_tf.planning.forecast import Forecast
from pate_tf.planning.release_settings import Known
from tests.run.chosen_votes import release_settings


def forecast(method, num_features=20, **changes):
    values = {"epsilon": 1.0, "num_classes": 3, "num_records": 10_000, "num_teachers": 250}
    values = {"mechanism": "gaussian_histogram", **values, **changes}
    return pate_tf.plan(**values).forecast(method, num_features)


@pytest.mark.parametrize("method", ["pate", "feature_sums"])
def test_a_forecast_is_a_range_that_more_epsilon_raises(method):
    less, more = forecast(method, epsilon=0.25), forecast(method, epsilon=3.0)
    for one in (less, more):
        assert 1 / 3 <= one.low < one.high <= 1.0
    assert more.low >= less.low and more.high > less.high
    assert f"{more.low:.0%} to {more.high:.0%}" in more.in_words(0.5)
    assert "most frequent class of the pool, is correct for 50.0%" in more.in_words(0.5)
    if method == "feature_sums":
        assert more.low > forecast(method, epsilon=3.0, num_features=2_000).low
    # Votes don't depend on the number of records.
    assert (forecast(method, num_records=None) is None) == (method == "feature_sums")


@pytest.mark.parametrize("tells", [True, False])
def test_what_pictures_tell_beyond_the_most_frequent_class_is_measured(tmp_path, tells):
    random = np.random.default_rng(0)
    labels = (random.uniform(size=700) > 0.75).astype(int)
    images = random.uniform(0, 0.3, size=(700, 8, 8, 1)).astype(np.float32)
    shown = labels if tells else random.permutation(labels)
    images[shown == 1, :, 3:5] += 0.6  # a bar
    public = {"y_public": labels[400:], "value_range": (0.0, 1.0), "num_classes": 2}
    data = pate_tf.Data.from_arrays(images[:400], labels[:400], images[400:], **public)
    sums = pate_tf.FeatureSums(directory=tmp_path, representation="gradients")
    sums.fit(data.private, data.pool)
    with pate_tf.Labeller(sums, epsilon=8.0, delta=1e-5, accept_forecast=True) as labeller:
        forecast = labeller.plan(data.pool).forecast
    majority = data.pool.majority_share
    if tells:
        forecast.check(majority)
        assert forecast.low > majority > 0.7
    else:
        with pytest.raises(pate_tf.ForecastError, match="a constant answer"):
            forecast.check(majority)


def test_a_trial_of_sums_on_labels_of_pictures_is_more_than_an_assumption_of_votes(tmp_path):
    """Without labels, ten votes are assumed to be better than sums that label all of the pool."""
    pool = pate_tf.Data.load("digits").pool
    settings = release_settings(epsilon=2.0, delta=1e-5, accept_forecast=True)
    methods = []
    for labels in (pool.true_labels, np.full(len(pool), -1)):
        shown = pate_tf.Data.from_arrays(
            pool.inputs[:200],
            np.arange(200) % 10,
            pool.inputs,
            y_public=labels,
            num_classes=10,
            value_range=(0.0, 16.0),
            augmentation="none",  # with augmentation, counts in clusters would be planned
        ).pool
        sums = pate_tf.FeatureSums(directory=tmp_path, representation="raw")
        known = Known.of(shown, unit="record", num_records=1200, sums=sums)
        methods.append(choose(known, settings).method)
    assert methods == ["feature_sums", "pate"]


def test_a_rare_class_is_compared_on_the_same_samples():
    """One in twenty has the rare class. The labeller finds a fifth of it, more than a constant
    answer does.
    """
    place = np.arange(1_000)
    truth, right = (place % 20 == 0).astype(int), (place % 100 == 0).astype(int)
    forecast = Forecast.measured(right, truth, 1_000)
    assert forecast.low < 0.95 < forecast.accuracy
    forecast.check(0.95)
    for useless in (0 * truth, np.roll(right, 1)):
        with pytest.raises(pate_tf.ForecastError, match="a constant answer"):
            Forecast.measured(useless, truth, 1_000).check(0.95)
    # The noise of one draw decides everything.
    predictions = np.where(place % 2, truth, 1 - truth)
    assert Forecast.measured(predictions, truth, 1_000, place % 2)[:2] == (0.0, 1.0)
