import dataclasses
import decimal
import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pate_tf.accounting import mechanisms, statement_page, statement_words
from pate_tf.accounting.statement import (
    PrivacyStatement,
    Sanitised,
    largest_share_of_right_guesses,
)

DRAWABLE = (
    mechanisms.LaplaceNoisyMax(0.05),
    mechanisms.PermuteAndFlip(0.05),
    mechanisms.ExponentialMechanism(0.05),
    mechanisms.GaussianNoisyMax(37.5),
    mechanisms.ConfidentGaussianNoisyMax(200.0, 150.0, 37.5),
)
RELEASE = Sanitised(epsilon=1.23456, delta=1e-5, confidence=0.99, worst_case_epsilon=6.54321)


def statement(**changes: object) -> PrivacyStatement:
    facts = {
        "dataset": "mnist",
        "unit": "record",
        "num_teachers": 250,
        "mechanism": DRAWABLE[0].to_dict(),
        "num_queries": 1200,
        "num_answered": 1100,
        "epsilon": 2.34561,
        "delta": 1e-5,
        "epsilon_ensemble": 5.43211,
        "epsilon_budget": None,
        "budget_was_raised": False,
        "ledger_rows": (2, 4),
        "ledger_head": (5, "ab" * 32),
        "secure_noise": True,
        "student_digest": "cd" * 32,
        "versions": {"pate_tf": "0.1.0", "python": "3.11"},
    }
    return PrivacyStatement(**{**facts, **changes})


def page(**changes: object) -> str:
    return statement_page.to_markdown(statement(**changes))


def test_the_page_holds_what_the_board_asks_for():
    text = page(epsilon_budget=8.0, budget_was_raised=True)
    for told in (
        "one record of the private data",
        "`laplace_noisy_max` (gamma = 0.05)",
        "discrete Laplace law of scale 20 votes",
        "1,200 / 1,100",
        "the first of the public pool",
        "epsilon 8 at delta 1e-05, raised after its first use",
        "**2.346**",
        "**5.433**",
        "2, 4",
        "ab" * 32,
        "cd" * 32,
        "pate_tf 0.1.0",
        "one teacher only",
        "operating system's entropy",
        "must not be published",
    ):
        assert told in text, told
    assert len(text) < 6_000
    assert len(text.splitlines()) < 80


def test_every_kind_of_epsilon_says_what_it_promises_and_to_whom():
    kinds = {one.kind: one for one in statement(sanitised=RELEASE).guarantees}
    assert set(kinds) == {"data-independent", "sanitised", "gated", "data-dependent"}
    for one in kinds.values():
        assert one.promises
        assert one.to_whom
        assert (one.epsilon is None) == (one.delta is None)
    assert kinds["gated"].epsilon is None
    assert kinds["data-dependent"].epsilon is None
    assert "Not published" in kinds["data-dependent"].promises
    assert "every possible data set" in kinds["data-independent"].promises
    assert "0.01" in kinds["sanitised"].promises


def test_a_sanitised_epsilon_stands_beside_what_it_costs_in_the_worst_case():
    without, released = statement().guarantees, statement(sanitised=RELEASE).guarantees
    assert [one.epsilon for one in without if one.epsilon] == [2.34561, 5.43211]
    assert [one.epsilon for one in released if one.epsilon] == [2.34561, 5.43211, 1.23456, 6.54321]
    text = page(sanitised=RELEASE)
    assert "**1.235**" in text
    assert "**6.544**" in text
    assert "None is named here" not in text
    assert "None is named here" in page()


def test_a_sanitised_epsilon_bounds_no_guess():
    meanings = page(sanitised=RELEASE).split("## What an epsilon means")[1]
    meanings = meanings.split("## What was assumed")[0]
    assert "**6.544**: all labels" in meanings
    assert "1.235" not in meanings


@pytest.mark.parametrize("mechanism", DRAWABLE, ids=lambda mechanism: mechanism.name)
def test_every_parameter_of_a_mechanism_is_told_in_words(mechanism):
    words = statement_words.mechanism_in_words(mechanism.to_dict())
    for name, value in mechanism.to_dict().items():
        if name != "name":
            assert f"{1 / value if name == 'gamma' else value:g} votes" in words
    assert words in page(mechanism=mechanism.to_dict())


def test_every_mechanism_that_draws_noise_has_its_words():
    names = {mechanism.name for mechanism in DRAWABLE}
    known = set(mechanisms._MECHANISMS) - {mechanisms.Plurality.name}
    assert names == known
    with pytest.raises(ValueError, match="mechanism: expected one of"):
        statement(mechanism=mechanisms.Plurality().to_dict())


@pytest.mark.parametrize("strategy", statement_words.QUERY_STRATEGIES)
def test_the_assumption_on_queries_fits_how_they_were_chosen(strategy):
    text = page(query_strategy=strategy)
    assert statement_words.QUERY_STRATEGIES[strategy] in text
    adaptive = strategy in ("uncertain", "binary_experts", "siamese")
    assert ("without looking at private data or at earlier noisy answers" in text) != adaptive
    assert ("depended on public data and on earlier noisy answers alone" in text) == adaptive


def test_a_sanitised_epsilon_does_not_go_with_adaptive_queries():
    with pytest.raises(ValueError, match="sanitised: expected none for queries chosen by"):
        statement(query_strategy="uncertain", sanitised=RELEASE)
    kinds = {one.kind: one.promises for one in statement(query_strategy="siamese").guarantees}
    assert "would not hold" in kinds["sanitised"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query_strategy": "best"}, "query_strategy: expected one of first, random"),
        ({"unit": "person"}, "unit: expected one of"),
        ({"mechanism": {"name": "laplace_noisy_max", "gamma": 0.0}}, "gamma"),
        ({"mechanism": {"name": "laplace_noisy_max"}}, "expected fields"),
        ({"mechanism": {"name": "no_mechanism"}}, "expected a mechanism of"),
    ],
    ids=str,
)
def test_what_has_no_words_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        statement(**change)
    with pytest.raises(ValueError, match=message):
        PrivacyStatement.from_dict({**statement().to_dict(), **change})


def test_owners_are_called_owners():
    text = page(unit="owner", sanitised=RELEASE)
    assert "all records of one owner together" in text
    assert "one record" not in text
    assert "{" not in text


def test_a_seeded_run_promises_nothing_to_nobody():
    seeded = statement(secure_noise=False, sanitised=RELEASE)
    for one in seeded.guarantees:
        assert one.to_whom == "nobody"
        assert "exp(epsilon)" not in one.promises
    text = statement_page.to_markdown(seeded)
    assert "This student is NOT private" in text
    assert "everybody" not in text
    assert "operating system's entropy" not in text
    assert "2.346**: this student" not in text  # among the bounds on guesses
    values = seeded.to_dict()
    assert values["largest_share_of_right_guesses"] is None
    assert not any("entropy" in assumed for assumed in values["assumptions"])
    secure = statement().to_dict()
    assert secure["largest_share_of_right_guesses"] > 0.5
    assert any("entropy" in assumed for assumed in secure["assumptions"])
    assert "2.346**: this student" in page()


@pytest.mark.parametrize("release", [None, RELEASE], ids=["plain", "sanitised"])
def test_json_and_back(release):
    made = statement(sanitised=release, query_strategy="random")
    text = json.dumps(made.to_dict(), allow_nan=False)
    assert PrivacyStatement.from_dict(json.loads(text)) == made
    assert json.loads(text)["guarantees"][0]["epsilon"] == made.epsilon
    with pytest.raises(ValueError, match="statement: expected a privacy statement"):
        PrivacyStatement.from_dict({"dataset": "mnist"})
    with pytest.raises(ValueError, match="statement: expected a privacy statement"):
        PrivacyStatement.from_dict({**made.to_dict(), "sanitised": {"epsilon": 1.0}})


@given(
    st.lists(st.floats(0.01, 1.0), min_size=2, max_size=6),
    st.integers(0, 2**32 - 1),
    st.floats(0.0, 8.0),
)
def test_no_guess_beats_the_table(weights, seed, epsilon):
    # Two laws on a few outcomes; delta is what they need at this epsilon, in both directions.
    one = np.array(weights) / sum(weights)
    other = np.random.default_rng(seed).dirichlet(np.ones(len(one)))
    factor = np.exp(epsilon)
    delta = max(
        np.maximum(one - factor * other, 0.0).sum(), np.maximum(other - factor * one, 0.0).sum()
    )
    guesses = itertools.product([0, 1], repeat=len(one))
    right = max(
        0.5 * sum(other[i] if guess[i] else one[i] for i in range(len(one))) for guess in guesses
    )
    assert right <= largest_share_of_right_guesses(epsilon, delta) + 1e-12


def test_the_share_of_right_guesses_is_reached_by_randomised_response():
    for epsilon, delta in ((0.0, 0.0), (1.0, 0.0), (1.0, 0.2), (9.0, 1e-5)):
        # With delta the answer is told plainly, else the truth is exp(epsilon) times likelier.
        truth = np.exp(epsilon) / (1.0 + np.exp(epsilon))
        expected = delta + (1.0 - delta) * truth
        assert largest_share_of_right_guesses(epsilon, delta) == pytest.approx(expected, rel=1e-14)
    assert largest_share_of_right_guesses(1e6, 0.0) == 1.0


@given(st.floats(1e-9, 1e9))
def test_numbers_on_the_page_are_rounded_up(value):
    shown = decimal.Decimal(statement_page.rounded_up(value))
    assert shown >= decimal.Decimal(value)
    assert float(shown) <= value * 1.0011


def test_the_attributes_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        statement().epsilon = 0.1
