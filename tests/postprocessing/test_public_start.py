"""A model of public labels, and its improvement by noisy sums of private records."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from pate_tf.core.dataset import UNKNOWN
from pate_tf.models.encoder import record_vectors
from pate_tf.postprocessing.public_start import PENALTIES, public_start
from pate_tf.postprocessing.regression import NoisySums


def problem(number, seed=0):
    """Vectors `[number, 5]`, and one of three classes for each."""
    random = np.random.default_rng(seed)
    features = random.normal(size=(number, 4)) * [1.0, 1.0, 0.3, 0.3]
    logits = features @ np.random.default_rng(1).normal(size=(4, 3)) * 2.0
    labels = (logits + random.gumbel(size=logits.shape)).argmax(axis=1)
    return record_vectors(features.astype(np.float32), None), labels


def noisy(pool, vectors, labels, noise):
    """Sums of private vectors with noise from a seed, next to the vectors of the pool."""
    exact = vectors.T @ np.eye(3)[labels]
    drawn = exact + np.random.default_rng(2).normal(0.0, noise, exact.shape)
    return NoisySums.of_features(pool, drawn, noise)


def likelihood(weights, vectors, labels):
    logits = vectors @ weights
    return float(np.mean(logits[np.arange(len(labels)), labels] - np.log(np.exp(logits).sum(1))))


def test_the_start_is_a_ridge_logistic_regression_of_the_known_labels():
    vectors, labels = problem(900)
    start, logs = public_start(vectors, np.where(np.arange(900) < 300, labels, UNKNOWN), 3)
    found = np.exp(vectors @ start.weights)
    found /= found.sum(axis=1, keepdims=True)
    features = vectors[:, :-1]
    rows = (features - features.mean(axis=0)) / np.sqrt(
        features.var(axis=0) + features.var(axis=0).mean()
    )
    rows = np.column_stack([rows / np.sqrt(rows.var(axis=0).sum()), np.ones(900)])
    fits = [
        LogisticRegression(C=1.0 / penalty, fit_intercept=False).fit(rows[:300], labels[:300])
        for penalty in PENALTIES
    ]
    assert min(np.abs(fit.predict_proba(rows) - found).max() for fit in fits) < 0.01
    # Log probabilities of labeled inputs come from models of other labels.
    off = np.abs(np.exp(logs) - found).max(axis=1)
    assert off[300:].max() < 1e-6 < 1e-3 < off[:300].min()


def test_the_improvement_solves_the_normal_equations_of_labels_and_sums():
    """The measurement is simulated: its covariance is that of records, pool and noise."""
    pool, known = problem(400)
    start, _ = public_start(pool, known, 3)
    vectors, labels = problem(2_000, seed=3)
    sums = noisy(pool, vectors, labels, noise=20.0)
    expected = np.exp(pool @ start.weights)
    expected /= expected.sum(axis=1, keepdims=True)
    losses = 2_000 * start.curvature
    law = losses + 20.0**2 * np.eye(5)
    for shares in expected.T - 1.0 / 3.0:
        law += 2_000 * (1 + 2_000 / 400) / 2 * np.cov((pool * shares[:, None]).T, ddof=0)
    gain, measured = losses @ np.linalg.inv(law), sums.values - 5.0 * pool.T @ expected
    change = np.linalg.solve(start.precision + gain @ losses, gain @ measured)
    change -= change.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(start.improved(sums, 2_000) - start.weights, change, atol=1e-6)


@pytest.mark.parametrize(("number", "noise"), [(50, 1e9), (0, 10.0)])
def test_without_signal_the_public_model_remains(number, noise):
    pool, known = problem(100)
    start, _ = public_start(pool, known, 3)
    sums = noisy(pool, *(each[:number] for each in problem(60, 3)), noise)
    np.testing.assert_allclose(start.improved(sums, number), start.weights, atol=1e-2)


@pytest.mark.parametrize("num_labels", [10, 300])
def test_private_records_improve_a_model_of_few_or_wrong_labels(num_labels):
    private, test = problem(10_000, seed=4), problem(5_000, seed=5)
    pool, known = problem(3_000, seed=6)
    for of_labels in (known, (known + (np.arange(3_000) % 3 == 0)) % 3):
        public = np.where(np.arange(3_000) < num_labels, of_labels, UNKNOWN)
        start, _ = public_start(pool, public, 3)
        found = [likelihood(start.weights, *test)]
        for noise in (3_000.0, 300.0, 30.0):
            improved = start.improved(noisy(pool, *private, noise), 10_000)
            found.append(likelihood(improved, *test))
        assert found[0] - 0.01 < found[1] and found[0] < found[2] < found[3], found


def test_a_class_without_labels_is_possible_and_each_class_has_its_own_weights():
    pool, known = problem(200)
    start, logs = public_start(pool, np.where(known == 2, UNKNOWN, known), 3)
    assert np.isfinite(logs).all() and np.isfinite(start.weights).all()
    improved = start.improved(noisy(pool, *problem(5_000, 7), 1.0), 5_000)
    assert set((pool @ improved).argmax(axis=1)) == {0, 1, 2}
    two, _ = public_start(pool, known % 2, 2)
    np.testing.assert_allclose(two.weights[:, 0], -two.weights[:, 1])
