"""Interactive-GNMax: what is drawn is the rule, and no moment exceeds what is charged."""

import itertools
import math

import numpy as np
import pytest
from scipy.special import ndtr

from pate_tf.accounting.composition import several_teachers_epsilon
from pate_tf.accounting.mechanisms import (
    ConfidentGaussianNoisyMax,
    GaussianNoisyMax,
    InteractiveGaussianNoisyMax,
)
from pate_tf.release.noise import SeededNoise

QUIET = InteractiveGaussianNoisyMax(
    threshold=3.0, sigma_threshold=1e-3, sigma=1e-3, student_confidence=0.7, label_share=1.0
)
# The student agrees, agrees, contradicts surely, is not sure and agrees.
COUNTS = np.array([[9, 1, 0], [2, 8, 0], [9, 0, 1], [6, 4, 0]])
PREDICTIONS = np.array([[0.9, 0.1, 0.0], [0.1, 0.8, 0.1], [0.0, 0.1, 0.9], [0.6, 0.3, 0.1]])


def test_teachers_label_where_they_contradict_and_the_student_where_it_is_sure():
    drawn = QUIET.draw_with(PREDICTIONS, COUNTS, SeededNoise(1))
    assert drawn.labels == [0, 1, 0, None]
    assert drawn.noisy_counts is None


def test_without_a_student_every_class_is_as_likely():
    # 9 - 10/3 and the like reach 3; 6 - 10/3 does not, and no class is sure.
    assert QUIET.draw(COUNTS, SeededNoise(1)).labels == [0, 1, 0, None]
    assert QUIET.draw(COUNTS[:0], SeededNoise(1)).labels == []


def test_no_more_than_the_share_goes_to_the_teachers_and_the_first_go_first():
    wrong = np.tile([0.0, 0.0, 1.0], (10, 1))
    counts = np.tile([9, 1, 0], (10, 1))
    for share, most in ((0.35, 3), (0.3, 3), (0.29, 2), (0.05, 0), (1.0, 10)):
        one = InteractiveGaussianNoisyMax(
            threshold=3.0,
            sigma_threshold=1e-3,
            sigma=1e-3,
            student_confidence=0.7,
            label_share=share,
        )
        labels = one.draw_with(wrong, counts, SeededNoise(1)).labels
        # What passed its test and found no label left gets none, not the student's.
        assert labels == [0] * most + [None] * (10 - most)


def law(one, table, predictions) -> dict[tuple, float]:
    """The law of all answers to a batch, by following every path: written from the paper."""
    most = math.floor(one.label_share * len(table))
    actual = {}

    def follow(query, left, answers, chance):
        if query == len(table):
            actual[answers] = actual.get(answers, 0.0) + chance
            return
        counts, said = table[query], predictions[query]
        excess = max(count - sum(counts) * p for count, p in zip(counts, said, strict=True))
        passes = ndtr((excess - one.threshold) / one.sigma_threshold)
        own = int(np.argmax(said)) if max(said) > one.student_confidence else None
        follow(query + 1, left, (*answers, own), chance * (1.0 - passes))
        if not left:
            follow(query + 1, left, (*answers, None), chance * passes)
            return
        labels = GaussianNoisyMax(sigma=one.sigma).outcome_probabilities(np.array([counts]))[0]
        for label, probability in enumerate(labels):
            follow(query + 1, left - 1, (*answers, label), chance * passes * probability)

    follow(0, most, (), 1.0)
    return actual


NOISY = InteractiveGaussianNoisyMax(
    threshold=1.0, sigma_threshold=2.0, sigma=1.5, student_confidence=0.6, label_share=0.5
)


def test_what_is_drawn_has_the_law_of_the_paper():
    table, said = [[5, 1], [3, 3]], [[0.3, 0.7], [0.5, 0.5]]
    expected = law(NOISY, table, said)
    assert sum(expected.values()) == pytest.approx(1.0)
    noise, number = SeededNoise(3), 4000
    drawn = [
        tuple(NOISY.draw_with(np.array(said), np.array(table), noise).labels) for _ in range(number)
    ]
    assert set(drawn) <= set(expected)
    for answers, chance in expected.items():
        error = math.sqrt(chance * (1.0 - chance) / number)
        assert abs(drawn.count(answers) / number - chance) < 5.0 * error + 1e-3


def histograms(votes: int):
    return [(first, votes - first) for first in range(votes + 1)]


@pytest.mark.parametrize("share", [0.5, 1.0])
@pytest.mark.parametrize("moment", [0.5, 2.0, 8.0])
def test_no_pair_of_neighbouring_tables_costs_more_than_is_charged(share, moment):
    """All tables of three teachers on two queries, both directions, and several students."""
    worst = 0.0
    one = InteractiveGaussianNoisyMax(
        threshold=0.5, sigma_threshold=1.2, sigma=0.9, student_confidence=0.6, label_share=share
    )
    charged = 2.0 * float(one.alphas(np.array([moment]))[0])
    for said in ([[0.9, 0.1], [0.2, 0.8]], [[0.5, 0.5], [0.5, 0.5]], [[1.0, 0.0], [0.7, 0.3]]):
        tables = list(itertools.product(histograms(3), repeat=2))
        laws = {table: law(one, table, said) for table in tables}
        for here, there in itertools.permutations(tables, 2):
            if max(abs(a[0] - b[0]) for a, b in zip(here, there, strict=True)) > 1:
                continue
            p, q = laws[here], laws[there]
            total = sum(p[o] ** (moment + 1) * q[o] ** -moment for o in p)
            worst = max(worst, math.log(total))
    assert 0.05 * charged < worst <= charged


def test_a_share_of_one_costs_what_the_confident_one_costs_and_less_costs_less():
    moments = np.array([0.5, 3.0, 40.0])
    confident = ConfidentGaussianNoisyMax(threshold=5.0, sigma_threshold=60.0, sigma=20.0)
    full = InteractiveGaussianNoisyMax(threshold=5.0, sigma_threshold=60.0, sigma=20.0)
    np.testing.assert_allclose(full.alphas(moments), confident.alphas(moments))
    tenth = InteractiveGaussianNoisyMax(
        threshold=5.0, sigma_threshold=60.0, sigma=20.0, student_confidence=0.9, label_share=0.1
    )
    label = GaussianNoisyMax(sigma=20.0).alphas(moments)
    np.testing.assert_allclose(tenth.alphas(moments), tenth.test_alphas(moments) + 0.1 * label)
    epsilons = [
        one.data_independent_epsilon(num_queries=100, delta=1e-5)[0] for one in (full, tenth)
    ]
    assert epsilons[1] < 0.6 * epsilons[0]
    assert epsilons[1] < several_teachers_epsilon({tenth: 100}, delta=1e-5) < math.inf
