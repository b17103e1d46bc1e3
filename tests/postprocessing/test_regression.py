"""Regression on noisy counts, compared with slow reference versions."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression

from pate_tf.models.encoder import record_vectors
from pate_tf.postprocessing import label_propagation, regression
from pate_tf.release.exact_sums import moments_by_class, residual_sums, sums_by_class, vector_steps

of = regression.NoisySums.of_features


def problem(seed: int, num_inputs: int = 120, num_features: int = 5, num_classes: int = 3):
    """Returns inputs around one center per class, some of them queried, and counts with noise."""
    random = np.random.default_rng(seed)
    truth = np.arange(num_inputs) % num_classes
    centres = 4.0 * np.eye(num_classes, num_features)
    features = centres[truth] + random.normal(size=(num_inputs, num_features))
    queries = random.permutation(num_inputs)[:40]
    counts = 100.0 * np.eye(num_classes)[truth[queries]] + random.normal(
        0.0, 60.0, (40, num_classes)
    )
    return features, truth, queries, counts


def slowly_scaled(features):
    """Scales one feature at a time."""
    columns = []
    mean = np.mean([column.var() for column in features.T])
    for column in features.T:
        columns.append((column - column.mean()) / np.sqrt(column.var() + mean))
    actual = np.stack(columns, axis=1)
    return actual / np.sqrt((actual**2).sum(axis=1).mean())


def likeliest(residuals, kernel, noise):
    """Returns the prior variance of largest evidence, and the covariance of the residuals."""

    def covariance(amplitude):
        return (amplitude * noise) ** 2 * kernel + noise**2 * np.eye(len(kernel))

    def evidence(amplitude):
        law = scipy.stats.multivariate_normal(np.zeros(len(kernel)), covariance(amplitude))
        return sum(law.logpdf(column) for column in residuals.T)

    best = max(regression.AMPLITUDES, key=evidence)
    return (best * noise) ** 2, covariance(best)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**20), st.floats(1.0, 300.0), st.integers(0, 1))
def test_means_and_deviations_are_those_of_a_gaussian_process(seed, noise, place):
    features, _, queries, counts = problem(seed)
    rows = slowly_scaled(features)
    np.testing.assert_allclose(regression.standardised(features), rows, atol=1e-5)
    measurements = [(counts - counts.mean(), noise), (counts, 2.0 * noise)]
    estimates = regression.regress(rows, rows[queries], measurements)[place]
    residuals, noise = measurements[place]
    kernel = rows @ rows.T
    prior, covariance = likeliest(residuals, kernel[np.ix_(queries, queries)], noise)
    across = prior * kernel[:, queries]
    solved = np.linalg.solve(covariance, across.T)
    np.testing.assert_allclose(estimates.means, solved.T @ residuals, rtol=1e-5, atol=1e-4)
    left = prior * np.diag(kernel) - (across * solved.T).sum(axis=1)
    np.testing.assert_allclose(estimates.deviations**2, left, rtol=1e-3, atol=1e-5 * noise**2)


def test_a_probability_is_the_share_of_draws_in_which_a_class_leads():
    means = np.array([[10.0, 9.0, 2.0], [0.0, 0.0, 0.0], [5.0, -90.0, 5.5]])
    deviations = np.array([1.0, 3.0, 0.5])
    probabilities = regression.class_probabilities(
        regression.Regression(means=means, deviations=deviations, evidence=0.0)
    )
    draws = np.random.default_rng(0).normal(means, deviations[:, None], (200_000, 3, 3))
    shares = np.stack([(draws.argmax(axis=2) == one).mean(axis=0) for one in range(3)], axis=1)
    np.testing.assert_allclose(probabilities, shares, atol=0.005)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, rtol=1e-6)


def test_of_two_representations_counts_say_which_one_they_follow():
    features, truth, queries, counts = problem(7, num_inputs=300)
    other = np.random.default_rng(8).normal(size=features.shape)
    estimates = regression.regress_counts(
        regression.neighbourhood_averages([[features], [other]]), queries, counts, 60.0
    )
    assert (estimates.means.argmax(axis=1) == truth).mean() > 0.9
    alone = regression.regress_counts(
        regression.neighbourhood_averages([[other]]), queries, counts, 60.0
    )
    assert (alone.means.argmax(axis=1) == truth).mean() < 0.6


def test_a_neighbourhood_average_is_a_mean():
    random = np.random.default_rng(0)
    features = random.normal(size=(50, 3)).astype(np.float32)
    graph = label_propagation.neighbour_graph([features])
    same = regression.neighbourhood_average(graph, np.ones((50, 2), np.float32))
    np.testing.assert_allclose(same, 1.0, rtol=1e-5)
    inverse = np.linalg.inv(np.eye(50) - regression.FROM_NEIGHBOURS * graph.toarray())
    slow = inverse @ features / inverse.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(regression.neighbourhood_average(graph, features), slow, atol=1e-4)
    # The average over blocks of features is bit-identical to the average over all features.
    many = random.normal(size=(50, 2 * regression.COLUMNS + 5)).astype(np.float32)
    share = {"from_neighbours": regression.FROM_NEIGHBOURS}
    weights = label_propagation.propagate(graph, np.ones((50, 1), np.float32), **share)
    together = label_propagation.propagate(graph, many, **share) / weights
    assert (regression.neighbourhood_average(graph, many) == together).all()


def sums_problem(seed, shares=(0.5, 0.3, 0.2), num_records=3_000):
    """Returns records and a pool around one center per class, and the sums of record vectors by
    class.
    """
    random = np.random.default_rng(seed)
    centres = 5.0 * np.eye(3, 6)

    def drawn(number):
        truth = random.choice(3, number, p=shares)
        return truth, (centres[truth] + random.normal(size=(number, 6))).astype(np.float32)

    labels, records = drawn(num_records)
    truth, pool = drawn(400)
    sums = record_vectors(records, None).T @ np.eye(3)[labels]
    return truth, pool, record_vectors(pool, None), sums


def alone(features):
    rows = regression.standardised(features)
    return rows, rows


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**20), st.floats(1.0, 40.0))
def test_probabilities_by_sums_are_those_of_a_gaussian_process(seed, noise):
    """The reference version works in function space: sums are noisy means of the probabilities of
    all inputs.
    """
    _, pool, vectors, sums = sums_problem(seed)
    sums = sums + np.random.default_rng(seed).normal(0.0, noise, sums.shape)
    noisy = of(vectors, sums, noise)
    (estimates,) = regression.regress_sums([alone(pool)], noisy)
    noise = noisy.deviation
    rows = regression.standardised(pool).astype(np.float64)
    numbers = np.maximum(sums[-1] / vectors[0, -1], 0.0)
    shares = numbers / numbers.sum()
    weights = numbers.sum() * vectors[:, :-1].T / len(pool)  # of the probability of each input
    residuals = sums[:-1] - weights @ np.tile(shares, (len(pool), 1))
    unit = np.sqrt(np.square(weights @ rows).sum(axis=1).mean())
    kernel = rows @ rows.T / unit**2
    prior, covariance = likeliest(residuals, weights @ kernel @ weights.T, noise)
    slow = shares + prior * kernel @ weights.T @ np.linalg.solve(covariance, residuals)
    np.testing.assert_allclose(estimates.means, slow, rtol=1e-3, atol=1e-4)


def test_sums_scatter_by_noise_and_by_which_inputs_were_drawn():
    """Over many pools and records, values differ from the pool's exact values as much
    as predicted.
    """
    actual, said = [], []
    for seed in range(60):
        truth, pool, vectors, sums = sums_problem(seed)
        noisy = of(vectors, sums + np.random.default_rng(seed).normal(0.0, 2.0, sums.shape), 2.0)
        expected = noisy.vectors.T @ np.eye(3)[truth] * (noisy.num_records / len(pool))
        actual.append(np.square(noisy.values - expected)[:-1].mean())
        said.append(noisy.deviation**2)
    assert 0.5 < np.mean(actual) / np.mean(said) < 2.0  # 60 pools: chance changes it by a tenth
    assert np.mean(actual) > 2.0 * 2.0**2  # noise explains less than half of it


def test_sums_that_noise_drowned_say_how_common_classes_are_and_no_more():
    _, pool, vectors, sums = sums_problem(2, (0.8, 0.1, 0.1))
    loud = np.zeros_like(sums)
    loud[-1] = sums[-1]
    silent = np.zeros_like(sums)
    estimates, nothing = regression.regress_sums(
        [alone(pool)], of(vectors, loud, 1e3), of(vectors, silent, 1e3)
    )
    np.testing.assert_allclose(estimates.means, np.tile([0.8, 0.1, 0.1], (400, 1)), atol=0.05)
    assert np.isfinite(nothing.means).all() and np.isfinite(nothing.deviations).all()
    weights = regression.labels_of(regression.class_probabilities(nothing)).weights
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, atol=1e-5)


def test_public_weights_are_finite_for_nearly_exact_sums_of_one_class():
    features = np.hstack([np.random.default_rng(0).random((5, 40)), np.ones((5, 1))])
    measured = 1e5 * features.T @ features
    known = (features[:, :-1], np.ones((5, 1)), measured, measured[:, -1:])
    assert all(np.isfinite(found).all() for found in regression.public_weights(*known, 1e-8))


@pytest.mark.parametrize("has_pool", [True, False])
def test_logits_are_those_of_a_linear_discriminant_analysis(has_pool):
    """The class in the middle would never be predicted by the largest indicator."""
    random = np.random.default_rng(3)
    labels = np.repeat([0, 1, 2], [2_000, 4_000, 3_000])
    features = random.normal(size=(9_000, 2)) + np.outer(labels, [2.0, 0.0])
    features -= features.min(axis=0)  # vectors of moments are not negative
    features /= np.linalg.norm(features, axis=1).max()
    vectors = np.column_stack([0.95**0.5 * features, np.full(9_000, 0.05**0.5)])
    if has_pool:
        weights = regression.linear_model(of(vectors, vectors.T @ np.eye(3)[labels], 1e-6))[1]
    else:
        weights = regression.weights_of_moments(
            moments_by_class(vectors, np.eye(3)[labels]), 3, 1e-6, num_records=9_000
        )
    expected = LinearDiscriminantAnalysis().fit(features, labels).predict(features)
    assert np.mean((vectors @ weights).argmax(axis=1) == expected) > 0.98


@pytest.mark.parametrize(("noise", "deviation"), [(200.0, 2.5), (2_000.0, 2.0)])
def test_weights_of_gradients_are_those_of_momentum_written_out(noise, deviation):
    values = np.random.default_rng(0).integers(-(2**30), 2**30, (4, 3, 2))
    rate = deviation * 0.1 * 500 / (noise * 2.0)  # the square root of 4 rounds
    weights, velocity, visited = np.zeros((3, 2)), 0.0, []
    for place, table in enumerate(values / 2**20 / 500):
        if not place:
            table = (table - table.mean(axis=1, keepdims=True)) / regression.RESIDUAL_NORM
        velocity = 0.9 * velocity + table
        weights = weights + rate * velocity
        visited.append(weights)
    expected = (visited[2] + visited[3]) / 2.0 / np.sqrt(1.0 + np.pi * deviation**2 / 12.0)
    for finished, wanted in ((3, visited[2]), (4, expected)):
        actual = regression.weights_of_gradients(values[:finished], 4, 500, noise)
        np.testing.assert_allclose(actual, wanted, atol=1e-5)


def test_rounds_without_noise_find_the_logistic_regression():
    random = np.random.default_rng(1)
    features = random.normal(size=(4_000, 3))
    labels = (features @ [2.0, -1.0, 0.5] + random.logistic(size=4_000) > 0.7).astype(np.int64)
    vectors = record_vectors(features.astype(np.float32), None)
    values = sums_by_class(vectors, labels, num_classes=2)[None]
    while len(values) < 100:
        weights = regression.weights_of_gradients(values, 100, 4_000, 1e-3)
        following = residual_sums(vector_steps(vectors), labels, weights)
        values = np.concatenate([values, following[None]])
    logits = vectors @ regression.weights_of_gradients(values, 100, 4_000, 1e-3)
    model = LogisticRegression(C=1e6).fit(vectors, labels)
    assert np.mean(logits.argmax(axis=1) == model.predict(vectors)) > 0.98
