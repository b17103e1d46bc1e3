"""What is read off randomised answers, against listing all of them and against simulation."""

import itertools

import numpy as np
import pytest

from pate_tf.accounting.local import RandomisedResponse, TruncatedGeometric
from pate_tf.accounting.local.estimates import (
    ABSENT,
    class_scores,
    debiased_counts,
    likeliest_shares,
    survival,
    survival_bounds,
)


def every_answer(randomisers, votes):
    """All answers of silos to one query, `[num_silos, num_outcomes]`, and their probabilities."""
    k = randomisers[0].num_classes
    answers = np.array(list(itertools.product(range(k), repeat=len(votes)))).T
    chances = np.ones(answers.shape[1])
    for row, vote, randomiser in zip(answers, votes, randomisers, strict=True):
        chances *= randomiser.channel()[vote][row]
    return answers, chances


def test_debiased_counts_are_unbiased_over_every_answer():
    randomisers = [
        RandomisedResponse(num_classes=3, epsilon=epsilon) for epsilon in (0.4, 1.0, 1.0, 3.0)
    ]
    votes = [2, 0, 2, 1]
    answers, chances = every_answer(randomisers, votes)
    mean = chances @ debiased_counts(answers, randomisers)
    np.testing.assert_allclose(mean, np.bincount(votes, minlength=3), atol=1e-12)


def test_who_did_not_answer_counts_for_nothing():
    randomisers = [
        RandomisedResponse(num_classes=3, epsilon=epsilon) for epsilon in (0.4, 1.0, 2.0)
    ]
    answers = np.array([[0, ABSENT], [1, 2], [ABSENT, 0]])
    for query, there in ((0, [0, 1]), (1, [1, 2])):
        alone = [randomisers[silo] for silo in there]
        for scores in (debiased_counts, class_scores):
            np.testing.assert_allclose(
                scores(answers, randomisers)[query],
                scores(answers[there, query : query + 1], alone)[0],
                atol=1e-12,
            )


def test_likelihood_weights_are_the_log_likelihood():
    randomisers = [
        RandomisedResponse(num_classes=4, epsilon=epsilon) for epsilon in (0.2, 1.5, 3.0)
    ]
    answers = np.array([[0], [1], [3]])
    exact = [
        sum(np.log(one.channel()[vote][a]) for one, a in zip(randomisers, (0, 1, 3), strict=True))
        for vote in range(4)
    ]
    scores = class_scores(answers, randomisers)[0]
    np.testing.assert_allclose(scores - scores[2], np.array(exact) - exact[2], atol=1e-12)


def test_likelihood_weights_serve_unequal_silos_better_than_unbiased_ones():
    """100 silos of epsilon .2 beside 10 of epsilon 4, all of which see class 0."""
    randomisers = [RandomisedResponse(num_classes=10, epsilon=0.2)] * 100 + [
        RandomisedResponse(num_classes=10, epsilon=4.0)
    ] * 10
    generator = np.random.default_rng(3)
    answers = np.stack([generator.choice(10, size=400, p=one.channel()[0]) for one in randomisers])
    right = {
        weighting: (class_scores(answers, randomisers, weighting=weighting).argmax(1) == 0).mean()
        for weighting in ("likelihood", "unbiased")
    }
    assert right["likelihood"] > 0.99 > 0.9 > right["unbiased"]
    with pytest.raises(ValueError, match="weighting"):
        class_scores(answers, randomisers, weighting="none")


@pytest.mark.parametrize("kind", [RandomisedResponse, TruncatedGeometric])
def test_likeliest_shares_are_likelier_than_a_grid(kind):
    randomisers = [kind(num_classes=3, epsilon=1.0)] * 12 + [kind(num_classes=3, epsilon=3.0)] * 6
    answers = np.random.default_rng(1).integers(0, 3, (18, 5))
    found = likeliest_shares(answers, randomisers)
    np.testing.assert_allclose(found.sum(axis=1), 1.0)

    def log_likelihood(shares, query):
        return sum(
            np.log(shares @ one.channel()[:, a])
            for one, a in zip(randomisers, answers[:, query], strict=True)
        )

    grid = [np.array([a, b, 20 - a - b]) / 20 for a in range(21) for b in range(21 - a)]
    for query in range(5):
        best = max(log_likelihood(shares, query) for shares in grid)
        assert log_likelihood(found[query], query) >= best - 1e-6


def test_maximum_likelihood_serves_the_truncated_geometric_better_than_its_plurality():
    """250 silos at epsilon 2 of which most see a class in the middle: .6 against 0."""
    randomiser = TruncatedGeometric(num_classes=10, epsilon=2.0)
    generator = np.random.default_rng(7)
    answers = np.stack(
        [
            generator.choice(10, size=60, p=randomiser.channel()[4 if silo < 230 else silo % 10])
            for silo in range(250)
        ]
    )
    raw = np.apply_along_axis(lambda a: np.bincount(a, minlength=10).argmax(), 0, answers)
    likeliest = likeliest_shares(answers, [randomiser] * 250).argmax(axis=1)
    assert (likeliest == 4).mean() > 0.45 > 0.1 > (raw == 4).mean()


def test_answers_that_fit_nothing_are_refused():
    randomisers = [RandomisedResponse(num_classes=3, epsilon=1.0)] * 2
    for answers in (np.zeros((3, 2), int), np.full((2, 2), 3), np.full((2, 2), -2)):
        with pytest.raises(ValueError, match="answers: expected"):
            debiased_counts(answers, randomisers)
    with pytest.raises(ValueError, match="answers: expected"):
        debiased_counts(
            np.zeros((2, 2), int), [randomisers[0], RandomisedResponse(num_classes=4, epsilon=1.0)]
        )


def exact_survival(counts, randomiser):
    """By listing every answer; a tie among m of the largest is won with 1/m."""
    votes = np.repeat(np.arange(len(counts)), counts)
    answers, chances = every_answer([randomiser] * len(votes), votes)
    heard = np.stack([(answers == label).sum(axis=0) for label in range(len(counts))])
    top = int(np.argmax(counts))
    wins = (heard[top] == heard.max(axis=0)) / (heard == heard.max(axis=0)).sum(axis=0)
    return float(chances @ wins)


@pytest.mark.parametrize("counts", [[4, 2, 1], [3, 3, 1], [7, 0, 0], [3, 2]])
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_survival_against_every_answer(counts, epsilon):
    randomiser = RandomisedResponse(num_classes=len(counts), epsilon=epsilon)
    exact = exact_survival(counts, randomiser)
    found, error = survival(np.array([counts]), randomiser, num_samples=40_000, seed=2)
    assert abs(found[0] - exact) < 6 * error[0]  # false alarm 2e-9
    lower, upper = survival_bounds(np.array([counts]), randomiser)
    assert lower[0] <= exact <= upper[0]


def test_bounds_are_close_where_it_matters():
    counts = np.array([[150, 60, 20, 20]])
    lower, upper = survival_bounds(counts, RandomisedResponse(num_classes=4, epsilon=1.0))
    assert 0.98 < lower[0] <= upper[0] <= lower[0] + 0.01
    with pytest.raises(ValueError, match="counts"):
        survival_bounds(np.array([[1, 2]]), RandomisedResponse(num_classes=3, epsilon=1.0))
