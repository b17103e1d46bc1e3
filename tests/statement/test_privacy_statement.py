import dataclasses
import decimal
import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pate_tf.accounting import mechanisms
from pate_tf.accounting.charge import rounded_up
from pate_tf.accounting.composition import smallest_epsilon
from pate_tf.accounting.group_privacy import replaced_owner_epsilon
from pate_tf.accounting.mechanisms import base
from pate_tf.statement import page as statement_page
from pate_tf.statement import words as statement_words
from pate_tf.statement.privacy_statement import (
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
    mechanisms.InteractiveGaussianNoisyMax(200.0, 150.0, 37.5, 0.9, 0.25),
    mechanisms.GaussianHistogram(37.5),
    mechanisms.StabilityGate(epsilon=0.25, delta=1e-5, num_withheld=3, selection_epsilon=0.1),
    mechanisms.StabilityGateOrHistogram(epsilon=0.1, delta=3e-6, sigma=587.5, most_queries=100),
)
RELEASE = Sanitised(epsilon=1.23456, delta=1e-5, confidence=0.99, worst_case_epsilon=6.54321)


def statement(**changes: object) -> PrivacyStatement:
    facts = {
        "dataset": "mnist",
        "unit": "record",
        "num_teachers": 250,
        "mechanism": DRAWABLE[0],
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


@pytest.mark.parametrize("mechanism", DRAWABLE, ids=lambda one: one.name)
def test_labels_are_called_noisy_where_they_have_noise(mechanism):
    called = {
        "stability_gate": "labels without noise",
        "stability_gate_or_histogram": "labels, without noise or from noisy counts",
    }.get(mechanism.name, "noisy labels")
    assert f"learnt from 1,100 {called}. " in page(mechanism=mechanism)


def test_what_nobody_can_count_is_not_called_unregistered():
    unknown = statement(num_ledgers=2)
    assert [line for line in unknown.one_ledger if line.startswith("NOT KNOWN")]
    assert not [line for line in unknown.one_ledger if "could be kept on this machine" in line]
    assert not any("ensembles of the same" in one.covers for one in unknown.guarantees)


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
    words = mechanism.in_words()
    for name, value in mechanism.to_dict().items():
        if name != "name":
            is_share = name in ("student_confidence", "label_share")
            is_gates = mechanism.is_paid_once and name != "sigma"
            unit = "" if is_share or is_gates else " votes"
            assert f"{1 / value if name == 'gamma' else value:g}{unit}" in words
    assert words in page(mechanism=mechanism)


def test_every_mechanism_that_draws_noise_has_its_words():
    planned = {mechanisms.StabilityGateOrHistogram.name}
    assert {mechanism.name for mechanism in DRAWABLE} == set(base.offered()) | planned
    with pytest.raises(ValueError, match=r"expected one with words .*, got plurality: it has no"):
        statement(mechanism=mechanisms.Plurality())


@pytest.mark.parametrize("strategy", statement_words.STRATEGIES)
def test_the_assumption_on_queries_fits_how_they_were_chosen(strategy):
    text = page(query_strategy=strategy)
    assert statement_words.STRATEGIES[strategy].words in text
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
    ],
    ids=str,
)
def test_what_has_no_words_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        statement(**change)
    with pytest.raises(ValueError, match=message):
        PrivacyStatement.from_dict({**statement().to_dict(), **change})


@pytest.mark.parametrize(
    ("mechanism", "message"),
    [
        ({"name": "laplace_noisy_max", "gamma": 0.0}, "gamma"),
        ({"name": "laplace_noisy_max"}, "expected fields"),
        ({"name": "no_mechanism"}, "expected a mechanism of"),
    ],
)
def test_a_statement_of_no_mechanism_is_refused(mechanism, message):
    with pytest.raises(ValueError, match=message):
        PrivacyStatement.from_dict({**statement().to_dict(), "mechanism": mechanism})


def test_owners_are_called_owners():
    text = page(unit="owner", epsilon_ensemble_replaced=9.87654, sanitised=RELEASE)
    assert "all records of one owner together, against adding or removing them" in text
    assert "all records of one owner added or removed" in text
    assert "one record" not in text
    assert "{" not in text


def test_an_owner_is_replaced_at_the_cost_of_two_moved_teachers():
    made = statement(unit="owner", epsilon_ensemble_replaced=9.87654)
    found = [one for one in made.guarantees if one.kind == statement_words.AGAINST_REPLACEMENT]
    two_moved = replaced_owner_epsilon({DRAWABLE[0]: 1200}, 1e-5)
    assert [one.epsilon for one in found] == [two_moved, 9.87654]
    assert two_moved > made.epsilon
    for one in found:
        assert one.promises == statement_words.OWNER_REPLACED
        assert one.to_whom == "everybody, in the data or not"
        assert one.covers.endswith("against replacement by another owner's records")
    text = statement_page.to_markdown(made)
    assert "**9.877**" in text
    assert f"**{statement_page.rounded_up(two_moved)}**" in text
    assert len(text) < 6_500
    # Nothing else promises anything against replacement.
    others = [one for one in made.guarantees if one not in found]
    assert not any("replace" in one.promises for one in others)
    assert "replace" not in made.to_dict()["protected"]
    seeded = statement(unit="owner", epsilon_ensemble_replaced=9.87654, secure_noise=False)
    assert {one.to_whom for one in seeded.guarantees} == {"nobody"}


def test_records_are_promised_replacement_and_nothing_on_coming_or_going():
    made = statement()
    assert statement_words.AGAINST_REPLACEMENT not in {one.kind for one in made.guarantees}
    assert made.epsilon_replaced is None
    assert "with one record replaced by another" in made.guarantees[0].promises
    assert any("adding or removing one is not" in left for left in made.to_dict()["not_covered"])


@pytest.mark.parametrize(
    "facts", [{"unit": "owner"}, {"unit": "record", "epsilon_ensemble_replaced": 3.0}], ids=str
)
def test_the_cost_of_a_replaced_owner_goes_with_owners_alone(facts):
    with pytest.raises(ValueError, match="epsilon_ensemble_replaced: expected a number where"):
        statement(**facts)


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


def test_delta_is_held_against_the_number_of_records():
    """SVHN's advertised command had delta times n at 6, and nothing said so."""
    large = statement(num_records=604_388, delta=1e-5)
    assert large.is_delta_large
    assert large.delta_times_records == pytest.approx(6.04, abs=0.01)
    text = statement_page.to_markdown(large)
    assert "Warning: delta is too large for these data" in text.split("##")[0]
    assert "604,388, is 6.04" in text
    fine = statement(num_records=9_000, delta=1e-5)
    assert not fine.is_delta_large
    text = statement_page.to_markdown(fine)
    assert "delta is too large" not in text
    assert "9,000, is 0.09" in text
    assert "is not known here" in statement_page.to_markdown(statement())
    owners = statement(unit="owner", epsilon_ensemble_replaced=9.9)
    assert "How many owners there are is not stated" in statement_page.to_markdown(owners)


def test_several_records_of_a_person_get_numbers():
    made = statement(mechanism=mechanisms.GaussianNoisyMax(37.5))
    two, five = (made.several[number] for number in (2, 5))
    assert two < five
    # What was said before: that their costs add up.
    assert five > 5 * smallest_epsilon({made.mechanism: made.num_queries}, made.delta)[0]
    page = statement_page.to_markdown(made)
    assert "costs add up" not in page
    assert "name them as owners" in page
    row = next(line for line in page.splitlines() if line.startswith("| 5 "))
    assert rounded_up(five) in row
    values = made.to_dict()["several"]
    assert values == [{"number": 2, "epsilon": two}, {"number": 5, "epsilon": five}]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, "no record of ledgers could be kept"),
        ({"epsilon_all_ensembles": 9.0, "num_ledgers": 1}, "is not known here"),
        ({"ledger_was_reset": True}, "THE LEDGER WAS RESET"),
    ],
)
def test_what_could_not_be_checked_is_said(change, said):
    assert said in "\n".join(statement(**change).one_ledger)
    assert said in statement_page.to_markdown(statement(**change))


def test_what_nobody_can_check_is_said_always():
    known = {"epsilon_all_ensembles": 9.0, "num_ledgers": 1, "records_are_known": True}
    said = statement(**known).one_ledger
    assert not any("NOT CHECKED" in one for one in said)
    assert any(
        "Copies on other machines or under another user can't be seen" in one for one in said
    )
