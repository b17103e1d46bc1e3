"""What is expected of labels before anything is charged."""

import dataclasses

import numpy as np
import pytest

import pate_tf
from pate_tf.core.dataset import Dataset
from pate_tf.core.public import UNKNOWN, PublicExamples
from pate_tf.core.reporting import QUIET
from pate_tf.data import catalogue
from pate_tf.run import whole_run
from pate_tf.run.whole_run import Trial


def forecast(method, num_features=20, **changes):
    values = {"epsilon": 1.0, "num_classes": 3, "num_records": 10_000, "num_teachers": 250}
    return pate_tf.plan(**{**values, **changes}).forecast(method, num_features)


@pytest.mark.parametrize("method", ["pate", "feature_sums"])
def test_a_forecast_is_a_range_that_more_epsilon_raises(method):
    less, more = forecast(method, epsilon=0.05), forecast(method, epsilon=3.0)
    for one in (less, more):
        assert 1 / 3 <= one.low < one.high <= 1.0
    assert more.low >= less.low and more.high > less.high
    assert f"{more.low:.0%} to {more.high:.0%}" in more.in_words()
    # Votes don't depend on how many records there are.
    assert (forecast(method, num_records=None) is None) == (method == "feature_sums")


def test_sums_are_better_of_more_records_and_of_fewer_features():
    assert forecast("feature_sums").low > forecast("feature_sums", num_features=2_000).low
    assert forecast("feature_sums").low > forecast("feature_sums", num_records=1_000).low


def table(number, is_hard, labelled=None):
    """Two classes by the sign of a number: at chance where hard."""
    random = np.random.default_rng(number)
    inputs = random.normal(0, 1, (number, 8)).astype(np.float32)
    labels = (inputs[:, 0] > 0).astype(np.int64)
    if is_hard:
        labels = random.permutation(labels)
    labels[number if labelled is None else labelled :] = UNKNOWN
    dataset = Dataset(
        name="table",
        kind="tabular",
        input_shape=(8,),
        value_range=(-6.0, 6.0),
        num_classes=2,
        pool_size=number - 100,
    )
    return PublicExamples(dataset, inputs, labels).split(number - 100)


def tried(public, method="auto", **changes):
    values = {"epsilon": 1.0, "num_classes": 2, "num_records": 3_000, "num_teachers": 50}
    values |= {"pool_size": len(public.pool), "has_augmentation": False, **changes}
    plan = pate_tf.plan(**values)
    return Trial.of(plan, public, method, values["num_teachers"], values["num_records"], QUIET)


def test_a_trial_on_public_labels_tells_easy_classes_from_hard_ones():
    easy, hard = (tried(table(900, is_hard)) for is_hard in (False, True))
    for method in ("pate", "feature_sums"):
        assert easy.forecasts[method].low > 0.7
        assert hard.forecasts[method].low < 0.54 < hard.forecasts[method].high < 0.8
        assert "by a trial on labelled samples" in easy.forecasts[method].in_words()
    assert easy.right["feature_sums"] > 0.9 and easy.method == "feature_sums"
    # The noise is that of the release: of few records it drowns the sums.
    noisy = tried(table(900, False), epsilon=0.05, num_records=300, num_teachers=3)
    assert noisy.right["feature_sums"] < easy.right["feature_sums"] - 0.1


def test_a_trial_finds_features_that_tell_classes_apart():
    public = table(900, False)
    labels = (np.prod(public.pool.inputs[:, :2], axis=1) > 0).astype(np.int64)
    public = dataclasses.replace(public, pool_labels=labels)
    found = tried(public, epsilon=8.0)
    assert found.representation == "pairs" and found.forecasts["feature_sums"].low > 0.7
    assert found.right["pate"] < 0.65


def test_there_is_no_trial_of_few_labels():
    assert tried(table(900, False, labelled=99)) is None
    assert tried(table(900, False, labelled=200)).forecasts["pate"].low > 0.6
    # Where all of a small pool would be asked about, teachers of the trial learn from a part.
    found = tried(table(200, False), method="pate", epsilon=1e4, num_queries=100)
    assert set(found.forecasts) == {"pate"} and found.forecasts["pate"].high > 0.7
    assert set(tried(table(900, False), method="feature_sums").right) == {"feature_sums"}


def test_counts_in_clusters_are_tried_too():
    examples = catalogue.load_public("digits")
    public = examples.split(500)

    def share(num_records):
        plan = pate_tf.plan(0.05, num_records=num_records, num_teachers=100, pool_size=500)
        assert plan.sums.mechanism.num_clusters is not None
        return whole_run._tried_sums(
            plan.sums.mechanism,
            public.pool,
            public.pool_labels,
            np.arange(500),
            "patches",
            num_records,
        )[1]

    assert share(20_000) > 0.7 > 0.5 > share(2_500)
