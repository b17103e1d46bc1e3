"""Local randomizers against brute force, exact fractions, the paper's numbers and the samplers."""

import itertools
import json
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from reference import honest_law
from scipy import stats

from pate_tf.accounting.charge import charge_from_dict
from pate_tf.accounting.conversions import DEFAULT_MOMENTS
from pate_tf.accounting.local import ABSENT, RandomisedResponse, SecureHistogram, class_scores
from pate_tf.accounting.mechanisms import GaussianHistogram
from pate_tf.release.noise import SeededNoise, SystemNoise

# False-alarm probability of each statistical test under the correct law.
FALSE_ALARM = 1e-7
SMALL = [
    RandomisedResponse(num_classes=k, epsilon=epsilon)
    for k in (2, 3, 4)
    for epsilon in (0.3, 1.0, 4.0)
]


def channel_of(randomiser):
    """Pr[answer = column | vote = row]."""
    channel = np.full((randomiser.num_classes, randomiser.num_classes), randomiser.other)
    np.fill_diagonal(channel, randomiser.kept)
    return channel


def brute_delta(laws, epsilon):
    """Returns delta at epsilon by listing every outcome of a product of pairs of laws."""
    total = 0.0
    for outcome in itertools.product(range(len(laws[0][0])), repeat=len(laws)):
        here = math.prod(pair[0][o] for pair, o in zip(laws, outcome, strict=True))
        there = math.prod(pair[1][o] for pair, o in zip(laws, outcome, strict=True))
        total += max(0.0, here - math.exp(epsilon) * there)
    return total


@pytest.mark.parametrize("randomiser", SMALL, ids=repr)
def test_one_answer_costs_epsilon_and_no_less(randomiser):
    channel = channel_of(randomiser)
    np.testing.assert_allclose(channel.sum(axis=1), 1.0, rtol=1e-12)
    ratios = np.log(channel[:, None, :] / channel[None, :, :])
    assert ratios.max() == pytest.approx(randomiser.epsilon, rel=1e-12)


@pytest.mark.parametrize("randomiser", SMALL, ids=repr)
def test_renyi_against_all_pairs_with_many_digits(randomiser):
    moments = np.array([0.05, 1.0, 7.5, 200.0])
    channel = [[mpmath.mpf(entry) for entry in row] for row in channel_of(randomiser)]
    with mpmath.workdps(60):
        expected = [
            max(
                mpmath.log(
                    sum(a ** (moment + 1) * b**-moment for a, b in zip(one, two, strict=True))
                )
                for one in channel
                for two in channel
            )
            for moment in moments.tolist()
        ]
    costs = randomiser.alphas(moments)
    np.testing.assert_allclose(costs, [float(one) for one in expected], rtol=1e-8)
    assert (costs >= [float(one) for one in expected]).all()


@pytest.mark.parametrize("randomiser", SMALL, ids=repr)
def test_exact_composition_against_every_outcome_of_every_pair(randomiser):
    """Checks the worst votes over three queries: no choice of pairs costs more than the stated
    epsilon.
    """
    channel = channel_of(randomiser)
    pairs = [
        (channel[a], channel[b])
        for a, b in itertools.product(range(randomiser.num_classes), repeat=2)
    ]
    # One representative for each shape of pair keeps the listing small.
    pairs = pairs if randomiser.num_classes < 4 else [pairs[n] for n in (0, 1, 2, 3, 6, 12)]
    for delta in (0.2, 1e-2, 1e-4):
        epsilon = randomiser.composed_epsilon(3, delta=delta)
        worst = max(
            brute_delta(laws, epsilon) for laws in itertools.combinations_with_replacement(pairs, 3)
        )
        assert worst <= delta
        if epsilon > 0:
            below = max(
                brute_delta(laws, 0.999 * epsilon)
                for laws in itertools.combinations_with_replacement(pairs, 3)
            )
            assert below > delta


@pytest.mark.parametrize("epsilon", [2.0**-20, 1e-3, 0.1, 1.0, 5.0, 30.0, 40.0])
@pytest.mark.parametrize("num_classes", [2, 10, 1000, 65_536])
def test_the_samplers_own_ratio_is_below_the_stated_one(epsilon, num_classes):
    """Uses exact fractions: the probabilities of the actual sampler, not of its ideal law."""
    threshold = RandomisedResponse(num_classes=num_classes, epsilon=epsilon).threshold
    kept = Fraction(threshold, 2**64)
    other = (1 - kept) / (num_classes - 1)
    assert kept > other > 0
    with mpmath.workdps(80):
        ratio = mpmath.mpf(kept.numerator * other.denominator) / (
            mpmath.mpf(kept.denominator * other.numerator)
        )
        realised = mpmath.log(ratio)
        assert realised <= mpmath.mpf(epsilon)
        # The loss is below 1e-9 except for the largest epsilons, where one word has too few bits.
        loss = mpmath.mpf(epsilon) - realised
        assert loss < max(1e-9, 2.0**-64 * math.exp(epsilon) * num_classes)


def counts_of(randomiser, vote, noise, number):
    drawn = randomiser.draw(np.full(number, vote), noise)
    return np.bincount(drawn, minlength=randomiser.num_classes)


def p_value(counts, law):
    expected = law * counts.sum()
    return stats.chi2.sf(((counts - expected) ** 2 / expected).sum(), len(law) - 1)


@pytest.mark.parametrize("source", [SystemNoise(), SeededNoise(5)], ids=["system", "seeded"])
def test_the_sampler_follows_its_law_and_not_that_of_half_the_noise(source):
    """The false-alarm probability is 1e-7 for each test. Half the noise (doubled epsilon) is
    rejected.
    """
    for vote in (0, 2, 4):
        randomiser = RandomisedResponse(num_classes=5, epsilon=1.0)
        counts = counts_of(randomiser, vote, source, 100_000)
        assert p_value(counts, channel_of(randomiser)[vote]) > FALSE_ALARM
        for wrong in (0.5, 0.9, 1.1, 2.0):
            assert (
                p_value(counts, channel_of(RandomisedResponse(num_classes=5, epsilon=wrong))[vote])
                < FALSE_ALARM
            )


def test_votes_that_are_no_classes_are_refused_without_being_told():
    for votes in ([0, 5], [-1], [0.5], [[1]]):
        with pytest.raises(ValueError, match="votes must") as refusal:
            RandomisedResponse(num_classes=5, epsilon=1.0).draw(np.array(votes), SeededNoise(1))
        assert "5]" not in str(refusal.value).replace("0 to 4", "")


def test_charges_come_back_from_records():
    for charge in (
        RandomisedResponse(num_classes=10, epsilon=1.0),
        SecureHistogram(sigma=40.0, num_parties=4, threshold=1),
    ):
        assert charge_from_dict(json.loads(json.dumps(charge.to_dict()))) == charge
        assert charge.in_words().endswith(".") and charge.summary()
        assert (charge.alphas(DEFAULT_MOMENTS) > 0).all() and charge.number_charged(7) == 7
    with pytest.raises(ValueError, match="needs fields"):
        charge_from_dict({"name": "randomised_response", "epsilon": 1.0})


def test_scores_are_log_likelihoods_of_the_silos_that_answered():
    randomisers = [
        RandomisedResponse(num_classes=4, epsilon=epsilon) for epsilon in (0.2, 1.5, 3.0, 1.0)
    ]
    answers = np.array([[0], [1], [3], [ABSENT]])
    laws = [channel_of(randomiser) for randomiser in randomisers[:3]]
    exact = [
        sum(np.log(law[vote][answer]) for law, answer in zip(laws, (0, 1, 3), strict=True))
        for vote in range(4)
    ]
    scores = class_scores(answers, randomisers)[0]
    np.testing.assert_allclose(scores - scores[2], np.array(exact) - exact[2], atol=1e-12)
    with pytest.raises(ValueError, match="answers must"):
        class_scores(answers[:2], randomisers)


@pytest.mark.parametrize(("num_parties", "threshold"), [(4, 1), (6, 2), (7, 1)])
def test_noise_of_several_parties_against_the_laws_themselves(num_parties, threshold):
    """On a coarse lattice (L = 8) with all honest noise convolved, the bound of the proof holds."""
    lattice, sigma, honest = 8, 1.5, num_parties - threshold
    scale = sigma * lattice / math.sqrt(honest)
    total = honest_law(scale, honest, 200)
    moved = np.zeros(len(total) + lattice)
    here = moved.copy()
    here[: len(total)], moved[lattice:] = total, total
    kept = (here > 1e-250) & (moved > 1e-250)
    logs = np.log(here[kept]), np.log(moved[kept])
    for moment in (0.5, 1.0, 4.0):
        one_count = np.log(np.exp((moment + 1) * logs[0] - moment * logs[1]).sum())
        bound = moment * (moment + 1) * (1 + honest**2 / (4 * lattice**2)) / sigma**2
        assert 0.5 * bound < 2 * one_count <= bound


def test_secure_histogram_costs_what_the_central_one_does():
    moments = np.array([0.5, 4.0, 100.0])
    ours = SecureHistogram(sigma=40.0, num_parties=4, threshold=1).alphas(moments)
    central = GaussianHistogram(sigma=40.0).alphas(moments)
    assert (ours >= central).all()
    np.testing.assert_allclose(ours, central, rtol=1e-8)
    for wrong in ((0.0, 4, 1), (40.0, 3, 1), (40.0, 5, 2), (40.0, 4, 0), (math.inf, 4, 1)):
        with pytest.raises(ValueError, match=r"expected|must be"):
            SecureHistogram(**dict(zip(("sigma", "num_parties", "threshold"), wrong, strict=True)))
