"""What is expected of labels before anything is charged."""

import pytest

import pate_tf


def forecast(method, num_features=20, **changes):
    values = {"epsilon": 1.0, "num_classes": 3, "num_records": 10_000, "num_teachers": 250}
    values = {"mechanism": "gaussian_histogram", **values, **changes}
    return pate_tf.plan(**values).forecast(method, num_features)


@pytest.mark.parametrize("method", ["pate", "feature_sums"])
def test_a_forecast_is_a_range_that_more_epsilon_raises(method):
    less, more = forecast(method, epsilon=0.05), forecast(method, epsilon=3.0)
    for one in (less, more):
        assert 1 / 3 <= one.low < one.high <= 1.0
    assert more.low >= less.low and more.high > less.high
    assert f"{more.low:.0%} to {more.high:.0%}" in more.in_words(0.5)
    assert "most frequent class of the pool has a share of 50.0%" in more.in_words(0.5)
    if method == "feature_sums":
        assert more.low > forecast(method, epsilon=3.0, num_features=2_000).low
    # Votes don't depend on how many records there are.
    assert (forecast(method, num_records=None) is None) == (method == "feature_sums")
