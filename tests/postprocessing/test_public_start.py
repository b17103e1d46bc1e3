"""A model of public labels, and its improvement by noisy sums of private records."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from pate_tf.core.dataset import UNKNOWN
from pate_tf.models.encoder import record_vectors
from pate_tf.postprocessing.public_start import public_start
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


def probabilities(start, vectors):
    likely = np.exp(vectors @ start.weights)
    return likely / likely.sum(axis=1, keepdims=True)


def likelihood(weights, vectors, labels):
    logits = vectors @ weights
    return float(np.mean(logits[np.arange(len(labels)), labels] - np.log(np.exp(logits).sum(1))))


def test_the_start_is_as_likely_as_the_best_logistic_regression_of_the_known_labels():
    vectors, labels = problem(900)
    start, logs = public_start(vectors, np.where(np.arange(900) < 300, labels, UNKNOWN), 4)
    fits = [
        LogisticRegression(C=10.0**power).fit(vectors[:300], labels[:300]) for power in range(4)
    ]
    found = [fit.predict_log_proba(vectors[300:])[np.arange(600), labels[300:]] for fit in fits]
    best = max(float(each.mean()) for each in found)
    # A fourth class without labels is possible.
    assert likelihood(start.weights, vectors[300:], labels[300:]) > best - 0.02
    assert np.isfinite(public_start(np.ones((9, 5)), np.arange(9) % 3, 3)[1]).all()
    # Log probabilities of labeled inputs come from models of other labels.
    off = np.abs(np.exp(logs) - probabilities(start, vectors)).max(axis=1)
    assert off[300:].max() < 1e-6 < off[:300].min()


def test_the_improvement_solves_the_normal_equations_of_labels_and_sums():
    pool, known = problem(400)
    start, _ = public_start(pool, known, 3)
    sums = noisy(pool, *problem(2_000, seed=3), noise=20.0)
    expected = probabilities(start, pool)
    losses = 2_000 * start.curvature
    law = losses + 20.0**2 * np.eye(5)  # covariance of labels, noise, and expected sums
    for shares in expected.T - 1.0 / 3.0:
        law += 2_000 * (1 + 2_000 / 400) / 2 * np.cov((pool * shares[:, None]).T, ddof=0)
    gain = losses @ np.linalg.inv(law)
    measured = sums.values - 5.0 * pool.T @ expected
    change = np.linalg.solve(start.precision + gain @ losses, gain @ measured)
    np.testing.assert_allclose(start.improved(sums, 2_000) - start.weights, change, atol=1e-6)
    for number, noise in ((50, 1e9), (0, 10.0)):  # without signal, the public model remains
        nothing = noisy(pool, *(each[:number] for each in problem(60, 3)), noise)
        np.testing.assert_allclose(start.improved(nothing, number), start.weights, atol=1e-2)


@pytest.mark.parametrize("num_labels", [30, 300])
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
