"""How stable queries are, on votes that a test knows."""

import numpy as np
import pytest

from benchmarks import stability
from pate_tf.core.sensitive import Votes
from pate_tf.data import catalogue as data
from pate_tf.queries import propagation
from pate_tf.representations import catalogue as features_catalogue
from pate_tf.teachers.voters import StoredVotes

PUBLIC = data.load_public("digits")
POOL = PUBLIC.split(100).pool


@pytest.mark.parametrize("strategy", list(stability.CHOOSE))
def test_it_is_the_least_distance_of_all_queries(monkeypatch, strategy):
    random = np.random.default_rng(0)
    truth = PUBLIC.labels[:100]
    features = (np.eye(10)[truth] + 0.05 * random.normal(size=(100, 10))).astype(np.float32)
    for module in (features_catalogue, propagation):
        monkeypatch.setattr(module, "pool_features", lambda *asked: [features])
    labels = np.where(random.random((40, 100)) < 0.7, truth, random.integers(0, 10, (40, 100)))
    teachers = StoredVotes(Votes(labels, 10), POOL)

    def found(number):
        return stability.fewest_to_change(
            teachers, POOL, strategy=strategy, num_queries=8, num_neighbours=number, seed=0
        )

    asked = stability.CHOOSE[strategy](POOL, 8, 0)
    alone = [np.sort(np.bincount(labels[:, one], minlength=10))[-2:] for one in asked]
    assert found(0) == min(-(-(most - next_) // 2) for next_, most in alone)
    assert found(4) > found(0)
