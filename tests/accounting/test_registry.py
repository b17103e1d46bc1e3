"""The registry of mechanisms: every member is complete or gives a reason, and a new mechanism is
one class.
"""

import dataclasses
import itertools
import json
import math
import pathlib

import numpy as np
import pytest
import reference
from toy_mechanisms import TOYS, ToyHistogram, ToyNoisyMax

from pate_tf.accounting.charge import RELEASES, CostRelease, charge_from_dict
from pate_tf.accounting.mechanisms import LaplaceNoisyMax, Mechanism, base, register
from pate_tf.accounting.mechanisms.base import OneScale, Target
from pate_tf.accounting.moments import data_dependent_alphas
from pate_tf.core.settings import described
from pate_tf.release.noise import SeededNoise, check_drawable

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
MEMBERS = dict(base.MECHANISMS)
COUNTS = np.array([[9, 3, 2], [5, 5, 4]])
TARGET = Target(epsilon=1.0, delta=1e-5, num_queries=2)
VALUES = {"threshold": 200.0, "sigma_threshold": 150.0, "sigma": 40.0}


def member_of(kind: type[Mechanism]) -> Mechanism:
    """Returns a member with a plan."""
    return kind.for_target(TARGET, COUNTS * 1_000)


def can(action) -> bool:
    """Returns whether a call works. If it fails, its message must give the reason in one line."""
    try:
        action()
    except ValueError as refusal:
        assert "does not have" in str(refusal) and "\n" not in str(refusal)
        return False
    return True


@pytest.mark.parametrize("kind", MEMBERS.values(), ids=MEMBERS)
def test_a_member_does_all_that_it_does_not_say_it_lacks(kind):
    """Runs the member. Every field has an interval, a help text and a place in the docs."""
    member = member_of(kind)
    done = {"draw": can(lambda: member.draw(COUNTS, SeededNoise(1))), "bounds": bool(member.bounds)}
    lacking = {what for what, works in done.items() if not works}
    assert lacking == set(kind.lacks)
    assert member.in_words().endswith(".") and "{" not in member.in_words()
    assert set(described(kind)) == {field.name for field in dataclasses.fields(kind)}
    assert all(each.help.endswith(".") for each in described(kind).values())
    for name in described(kind):
        for wrong in (math.nan, math.inf, -math.inf, True, "1"):
            with pytest.raises(ValueError, match=f"{name} must be"):
                dataclasses.replace(member, **{name: wrong})
    if kind in base.offered().values():
        assert f"`{kind.name}`" in (DOCS / "reference" / "mechanisms.md").read_text()


# test_outcomes.py tests the laws of the other members at random histograms.
ELSEWHERE = {"laplace_noisy_max", "gaussian_noisy_max"}


@pytest.mark.parametrize("name", sorted({*reference.TWINS} - ELSEWHERE))
def test_a_member_with_an_outcome_law_has_a_slow_twin(name):
    member = member_of(MEMBERS[name])
    expected = [float(chance) for chance in reference.TWINS[name](member, (9, 3, 2))]
    law = member.outcome_probabilities(np.array([[9, 3, 2]]))[0]
    np.testing.assert_allclose(law, expected, rtol=1e-9)


@pytest.mark.parametrize("kind", [k for k in MEMBERS.values() if issubclass(k, OneScale)])
def test_more_scale_never_costs_more(kind):
    moments = np.array([0.5, 3.0, 40.0])
    costs = [kind(**{kind.scale_name: scale}).alphas(moments) for scale in (0.5, 1.0, 7.0, 300.0)]
    assert all((quiet >= loud).all() for quiet, loud in itertools.pairwise(costs))
    scales = set(kind(**{kind.scale_name: 5.0}).noise_scales.values())
    assert scales <= {5.0, math.nextafter(5.0, math.inf)}


def test_every_release_is_a_charge_that_says_what_it_lacks():
    for release in RELEASES:
        plan = CostRelease(
            release=release,
            bound="two_sided",
            moment=10.0,
            smoothness=0.01,
            sigma=9.0,
            failure=1e-6,
            num_queries=20,
        )
        assert charge_from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
        assert plan.number_charged(20) == plan.number_charged(0) == 1


@pytest.fixture
def toys(monkeypatch):
    monkeypatch.setattr(base, "MECHANISMS", dict(base.MECHANISMS))
    for toy in TOYS:
        register(toy)


@pytest.mark.usefixtures("toys")
def test_a_toy_is_planned_drawn_and_accounted_for():
    toy = ToyNoisyMax.for_target(TARGET, COUNTS)
    assert 0.99 < toy.data_independent_epsilon(num_queries=2, delta=1e-5)[0] <= 1.0
    check_drawable(toy)
    law = reference.mp_discrete_laplace_law((9, 3, 2), toy.epsilon / 2.0)
    np.testing.assert_allclose(toy.outcome_probabilities(COUNTS[:1])[0], [*map(float, law)])
    assert len(toy.draw(COUNTS, SeededNoise(1)).labels) == 2
    assert charge_from_dict(json.loads(json.dumps(toy.to_dict()))) == toy
    assert {"toy_noisy_max", "toy_histogram"} <= set(base.offered())
    with pytest.raises(ValueError, match="name must be new, but 'laplace"):
        register(LaplaceNoisyMax)


@pytest.mark.usefixtures("toys")
@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: ToyHistogram(sigma=3.0).expected_correct(COUNTS), "not have an outcome law"),
        (
            lambda: data_dependent_alphas(
                COUNTS, ToyNoisyMax(epsilon=0.5), np.ones(1), bound="two_sided"
            ),
            r"toy_noisy_max has no bound",
        ),
    ],
)
def test_what_a_mechanism_lacks_is_refused_in_one_line(ask, message):
    with pytest.raises(ValueError, match=message) as refusal:
        ask()
    assert "\n" not in str(refusal.value)
