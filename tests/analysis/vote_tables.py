"""Vote tables for the tests of releases: examples, and whole universes of small tables."""

import itertools

import numpy as np
import pytest
import reference_release as twin
from analysis_helpers import GOLDEN

from pate_tf.accounting.mechanisms import LaplaceNoisyMax, noisy_max

H1, H2, H3 = (GOLDEN[name] for name in ("H1", "H2", "H3"))
MIX = [H1] * 50 + [H2] * 30 + [H3] * 20
UNIVERSES = [(10, 2), (9, 3), (7, 4)]
JOINT = [(5, 2, 2), (4, 3, 2), (4, 2, 3)]


def golden(name):
    return pytest.approx(float(GOLDEN["values"][name]), rel=1e-12, abs=0.0)


class ContinuousLaplace(LaplaceNoisyMax):
    """The golden values use Lemma 4 of the paper for every bound."""

    def pairwise_tail(self, gaps):
        return noisy_max.laplace_tail(gaps, self.gamma)


def universe(num_teachers, num_classes):
    """Returns all histograms, and the number of vote changes between any two."""
    counts = np.array(list(twin.histograms(num_teachers, num_classes)))
    distances = np.abs(counts[:, None] - counts[None]).sum(axis=-1) // 2
    return counts, distances


def joint_universe(num_teachers, num_classes, num_queries):
    """Returns the counts of every vote table, [num_tables, num_queries, num_classes], and
    distances.
    """
    answers = list(itertools.product(range(num_classes), repeat=num_queries))
    tables = list(itertools.combinations_with_replacement(range(len(answers)), num_teachers))
    how_many = np.array([np.bincount(table, minlength=len(answers)) for table in tables])
    votes_for = np.zeros((len(answers), num_queries, num_classes), np.int64)
    for index, answer in enumerate(answers):
        votes_for[index, np.arange(num_queries), answer] = 1
    counts = np.einsum("ta,aqc->tqc", how_many, votes_for)
    return counts, np.abs(how_many[:, None] - how_many[None]).sum(axis=-1) // 2
