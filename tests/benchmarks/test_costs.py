"""What labels cost, by kind of accounting, and accuracy for noise."""

import numpy as np
import pytest

from benchmarks import costs as picture
from benchmarks.paper.labels import costs_of_counts
from benchmarks.paper.setting import delta_of
from benchmarks.paper.trade_off import _offer, scale_of
from pate_tf.accounting.mechanisms import (
    GaussianNoisyMax,
    LaplaceNoisyMax,
    PermuteAndFlip,
    Plurality,
    base,
)
from pate_tf.aggregation.noise import SeededNoise

# H2 of tests/accounting/golden.json, where its epsilon by the paper's accounting stands.
COUNTS = np.tile([200, 6, 6, 6, 6, 6, 5, 5, 5, 5], (100, 1))
LAPLACE = LaplaceNoisyMax(gamma=0.05)


def costs(mechanism, *, adaptive=False):
    return costs_of_counts(COUNTS, mechanism, SeededNoise(0), delta=1e-5, adaptive=adaptive)


def test_the_papers_accounting_is_the_golden_value():
    assert costs(LAPLACE)["paper"] == pytest.approx(1.47991480486117489)


@pytest.mark.parametrize(
    "mechanism", [LAPLACE, PermuteAndFlip(gamma=0.05), GaussianNoisyMax(sigma=40.0)]
)
def test_every_kind_is_there_in_its_order(mechanism):
    found = costs(mechanism)
    assert found["tightest"] < found["sanitised"] <= found["worst_case"]
    assert found["tightest"] < found["data_independent"] < found["worst_case"]
    assert found["gated"] > 0
    assert isinstance(found["passed"], bool)
    assert (found["paper"] is None) == isinstance(mechanism, PermuteAndFlip)


def test_nothing_that_depends_on_votes_is_said_of_adaptive_queries():
    found = costs(PermuteAndFlip(gamma=0.05), adaptive=True)
    assert found.pop("data_independent") == pytest.approx(
        PermuteAndFlip(gamma=0.05).data_independent_epsilon(num_queries=100, delta=1e-5)[0]
    )
    assert set(found.values()) == {None}


def test_an_offer_is_the_law_of_its_labels():
    # Permute-and-flip between two classes: the loser wins with probability e^(-gamma gap) / 2.
    offer = _offer(PermuteAndFlip(gamma=0.5), np.array([[4, 2], [2, 4]]), np.array([0, 0]), 1e-5)
    loses = np.exp(-0.5 * 2) / 2
    assert offer["labels_right"] == pytest.approx(((1 - loses) + loses) / 2)
    assert offer["epsilon"] == min(offer["data_independent"], offer["sanitised"])
    assert offer["scale"] == 2.0


def test_scales_are_in_votes():
    assert scale_of(LAPLACE) == pytest.approx(20.0)
    assert scale_of(GaussianNoisyMax(sigma=40.0)) == 40.0
    with pytest.raises(ValueError, match="expected one of a single scale"):
        scale_of(Plurality())


def test_delta_is_the_papers():
    assert (delta_of("mnist"), delta_of("svhn"), delta_of("adult")) == (1e-5, 1e-6, 1e-5)


def test_the_picture_of_the_guide_has_every_mechanism_that_is_offered():
    drawn = {one.name: one for one in picture.MECHANISMS}
    assert drawn.keys() == base.offered().keys()
    for mechanism in picture.MECHANISMS:
        found = picture.epsilons(mechanism)
        assert sorted(found) == found and np.isfinite(found).all()
    gate = picture.epsilons(drawn["stability_gate"])
    assert max(gate) <= 0.25 and max(gate) - min(gate) < 1e-9
    # Golden values of docs/proofs/worst_case.md.
    laplace = dict(
        zip(picture.NUM_QUERIES, picture.epsilons(drawn["laplace_noisy_max"]), strict=True)
    )
    assert (round(laplace[100], 2), round(laplace[1000], 2)) == (2.14, 8.07)
