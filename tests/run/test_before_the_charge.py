"""Plans, simulations and checks before anything is charged, and messages afterwards."""

import dataclasses
import functools
import types
import warnings

import keras
import numpy as np
import pytest
from chosen_votes import PUBLIC, FakeEnsemble, release_settings
from chosen_votes import table as table_of_votes

import pate_tf
from pate_tf.accounting.mechanisms import (
    GaussianFeatureSums,
    GaussianResidualSums,
    LaplaceClusterCounts,
)
from pate_tf.accounting.mechanisms.base import offered
from pate_tf.core.public import Pool
from pate_tf.ledger import Ledger
from pate_tf.planning.comparison import Plan
from pate_tf.planning.forecast import Forecast
from pate_tf.planning.plan_of_sums import trial
from pate_tf.planning.release_settings import PublicLabelUse
from pate_tf.postprocessing.label_inference import exceed_noise
from pate_tf.run.labeller import Labeller

POOL = PUBLIC.split(400).pool


def table(number, num_public, *, signal=1.0, has_labels=True):
    random = np.random.default_rng(0)
    inputs = random.uniform(-1.0, 1.0, (number + num_public, 3)).astype(np.float32)
    labels = (signal * inputs[:, 0] + random.normal(0.0, 0.2, len(inputs)) > 0).astype(int)
    of_public = labels[number:] if has_labels and num_public else None
    return pate_tf.Data.from_arrays(
        inputs[:number],
        labels[:number],
        inputs[number:],
        y_public=of_public,
        num_classes=2,
        value_range=(-1.0, 1.0),
        name="points",
    )


@pytest.mark.parametrize(
    ("data", "epsilon", "representation", "kind"),
    [
        (lambda: pate_tf.Data.load("digits"), 0.2, "raw", LaplaceClusterCounts),
        (lambda: pate_tf.Data.load("digits"), 2.0, "raw", LaplaceClusterCounts),
        (lambda: pate_tf.Data.load("digits"), 16.0, "raw", GaussianFeatureSums),
        (lambda: table(4_000, 300), 1.0, None, GaussianFeatureSums),
        (lambda: table(20_000, 300), 4.0, "raw", GaussianResidualSums),
        (lambda: table(20_000, 0), 4.0, None, GaussianResidualSums),
    ],
)
def test_the_forecast_describes_the_mechanism_that_is_charged_and_drawn(
    tmp_path, monkeypatch, data, epsilon, representation, kind
):
    tried = []

    def noted(pool, encoder, mechanism, *others):
        tried.append(mechanism)
        return trial(pool, encoder, mechanism, *others)

    monkeypatch.setattr("pate_tf.planning.plan_of_sums.trial", noted)
    data = data()
    sums = pate_tf.FeatureSums(directory=tmp_path / "run", representation=representation)
    sums.fit(data.private, data.pool)
    evaluate = {"public_labels": "evaluate"}
    with pate_tf.Labeller(sums, epsilon=epsilon, **evaluate) as labeller:
        planned = labeller.plan(data.pool)
        labels = labeller.release(planned, data.pool)
    assert isinstance(labels.cost.charge, kind) and planned.mechanism == labels.cost.charge
    if data.pool:
        assert set(tried) == {labels.cost.charge} and planned.forecast.is_measured
    assert labels.exceeds_noise is (True if data.pool else None)
    # Another release is another mechanism, and has its own trial.
    with pate_tf.Labeller(sums, epsilon=2.0 * epsilon, accept_forecast=True) as labeller:
        other = labeller.plan(data.pool)
        assert other.mechanism != planned.mechanism and other.forecast != planned.forecast


def test_public_labels_are_preferred_to_rounds_if_there_are_enough(tmp_path):
    data = table(20_000, 300)
    sums = pate_tf.FeatureSums(directory=tmp_path / "run", representation="raw")
    sums.fit(data.private, data.pool)
    known = np.where(np.arange(len(data.pool)) < 99, data.pool.true_labels, -1)
    few = Pool(data.dataset, data.pool.inputs, known)
    for wish, pool in (("auto", data.pool), ("train", few), ("evaluate", data.pool), ("auto", few)):
        with pate_tf.Labeller(sums, epsilon=4.0, public_labels=wish, accept_forecast=True) as one:
            plan = one.plan(pool)
        is_joined = wish == "train" or (wish == "auto" and pool is not few)
        has_rounds = type(plan.mechanism) is GaussianResidualSums
        assert plan.trains_on_labels == is_joined and has_rounds != is_joined


def test_public_labels_of_images_are_used_if_some_images_have_none():
    pool = pate_tf.Data.load("digits").pool
    some = np.where(np.arange(len(pool)) < 100, pool.true_labels, -1)
    for labels, is_used in ((pool.true_labels, False), (some, True), (some[:100], False)):
        part = Pool(pool.dataset, pool.inputs[: len(labels)], labels)
        assert PublicLabelUse().trains_on_labels(part, "feature_sums") == is_used


PLANNED = list(offered().values())


@pytest.mark.parametrize(
    ("kind", "is_joint"), [*((kind, False) for kind in PLANNED), (None, False), (None, True)]
)
def test_the_forecast_of_votes_describes_what_is_charged_and_drawn(
    tmp_path, monkeypatch, kind, is_joint
):
    described, forecast = [], Plan.forecast

    def noted(plan, *asked, **options):
        described.append(plan.mechanism)
        return forecast(plan, *asked, **options)

    monkeypatch.setattr(Plan, "forecast", noted)
    teachers = FakeEnsemble(np.tile(table_of_votes(100), (20 if is_joint else 1, 1)))
    if is_joint:
        teachers.config = types.SimpleNamespace(model="ridge", representation="patches")
    settings = release_settings(
        epsilon=0.1 if is_joint else 30.0,
        delta=1e-5,
        mechanism=kind,
        num_queries=60 if is_joint else 10,
        strategy="diverse" if is_joint else "first",  # counts for joint learning
        accept_forecast=True,
    )
    with Labeller.from_settings(teachers, settings, directory=tmp_path) as labeller:
        planned = labeller.plan(POOL)
        labels = labeller.release(planned, POOL)
    assert labels.cost.charge == planned.mechanism
    assert set(described) <= {planned.mechanism}
    assert (planned.forecast is None) == is_joint


def test_ranking_decides_where_one_class_is_nearly_everything():
    truth, all_healthy = np.arange(1_000) % 20 == 0, np.zeros(1_000, int)
    forecast = Forecast.measured(all_healthy, truth.astype(int), 1_000)
    assert not forecast.is_worth(0.95)
    forecast._replace(auc=0.75).check(0.95)
    with pytest.raises(pate_tf.ForecastError, match=r"area under the curve \(AUC\) is about 49%"):
        forecast._replace(auc=0.49).check(0.95)
    assert not forecast._replace(auc=0.75).is_worth(0.79)
    # A release that may be better or worse than a constant answer is accepted; a worse one is
    # refused.
    assert Forecast(0.40, 0.64, 100.0, is_measured=True).is_worth(0.51)
    assert not Forecast(0.40, 0.64, 100.0, is_measured=True).is_worth(0.53)


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_sums_without_a_signal_exceed_noise_once_in_twenty_times(mechanism):
    random, number, rows, columns = np.random.default_rng(1), 600, 50, 3
    charged = GaussianFeatureSums(sigma=4.0)
    draw = random.normal
    if mechanism == "laplace":
        charged, draw = LaplaceClusterCounts(scale=4.0, num_clusters=rows), random.laplace
    in_common = np.outer(random.uniform(0.0, 900.0, rows), [0.5, 0.3, 0.2])
    noise = draw(0.0, 4.0, (number, rows, columns))
    exceed = functools.partial(exceed_noise, mechanism=charged, has_pool=True)
    false_alarms = np.mean([exceed(in_common + each) for each in noise])
    assert 0.005 < false_alarms < 0.05 + 3.0 * np.sqrt(0.05 * 0.95 / number)
    signal = np.zeros((rows, columns))
    signal[:10, 0] = 60.0  # 15 scales of the noise, in a fifth of the rows
    assert all(exceed(in_common + signal + each) for each in noise[:50])


def test_a_worthless_release_says_so(tmp_path):
    """For owners there is no trial, and here the features do not depend on the labels.

    Sums of such features exceed noise in at most 5 % of releases. All four do so
    with a probability of at most 1e-5.
    """
    data = table(1_500, 0, signal=0.0)
    owners = np.arange(len(data.private))
    data = dataclasses.replace(data, private=dataclasses.replace(data.private, owners=owners))
    found = []
    for number in range(4):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fitted = pate_tf.fit(
                data, epsilon=0.5, directory=tmp_path / str(number), accept_forecast=True
            )
        is_told = any("no more than the noise" in str(each.message) for each in caught)
        assert is_told == (fitted.labels.exceeds_noise is False)
        found.append(is_told)
    assert any(found)


def a_file(path):
    path.parent.mkdir(parents=True)
    path.write_text("")


FAULTS = {
    "released is a file": lambda run: a_file(run / "released"),
    "student is a file": lambda run: a_file(run / "released" / "student"),
    "statement is a folder": lambda run: (run / "released/privacy_statement.json").mkdir(
        parents=True
    ),
    "report is a folder": lambda run: (run / "sensitive/student_report.json").mkdir(parents=True),
    "log is a file": lambda run: a_file(run / "released/logs/student/1/held_out"),
    "schema is a folder": lambda run: (run / "released/schema.toml").mkdir(parents=True),
    "seals are a folder": lambda run: (run / "sensitive/released.sha256").mkdir(parents=True),
}


@pytest.mark.parametrize("entry", ["run", "fit", "classifier"])
@pytest.mark.parametrize("fault", FAULTS)
def test_what_would_fail_is_refused_before_the_charge(tmp_path, entry, fault):
    data, folder = table(2_000, 200), tmp_path / "run"
    FAULTS[fault](folder)
    with pytest.raises(ValueError, match=r"is (not a writable folder|a folder)"):
        if entry == "run":
            pate_tf.fit(data, epsilon=2.0, method="feature_sums", directory=folder, publish=True)
        elif entry == "fit":
            pate_tf.fit(data, epsilon=2.0, method="feature_sums", directory=folder)
        else:
            pate_tf.PateClassifier(
                epsilon=2.0, method="feature_sums", directory=folder, classes=[0, 1]
            ).fit(data.private.inputs, data.private.labels, data.pool.inputs)
    assert not list(tmp_path.rglob("*.sqlite3"))


class Refuses(keras.Layer):
    def call(self, inputs, training=None):
        if training:
            raise ValueError("not in training")
        return inputs


def never_learns(dataset):
    layers = [Refuses(), keras.layers.Dense(dataset.num_classes)]
    return keras.Sequential([keras.Input(dataset.input_shape), *layers])


@pytest.mark.parametrize(
    "wrong",
    [
        {"student": pate_tf.Student("random_forest", steps=5)},
        {"student": pate_tf.Student("supervised", model=lambda dataset: None)},
        {"student": pate_tf.Student("supervised", model=never_learns)},
        {"evaluate_epsilon": -1.0},
    ],
    ids=["steps of a forest", "no model", "no training", "estimate"],
)
def test_arguments_that_do_not_fit_are_refused_before_the_charge(tmp_path, wrong):
    data = table(2_000, 200)
    with pytest.raises(ValueError, match=r"."):
        pate_tf.fit(data, epsilon=2.0, method="feature_sums", directory=tmp_path / "run", **wrong)
    for database in tmp_path.rglob("*.sqlite3"):
        with Ledger.read(database.parent) as ledger:
            assert ledger.spent().epsilon == 0.0
