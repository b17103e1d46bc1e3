"""Statements of all three systems: page, JSON, reader; what each of them says."""

import dataclasses
import itertools
import json
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pate_tf.accounting.charge import rounded_up
from pate_tf.accounting.composition import smallest_epsilon
from pate_tf.accounting.group_privacy import replaced_owner_epsilon
from pate_tf.accounting.local import RandomisedResponse, SecureHistogram
from pate_tf.accounting.mechanisms import (
    GaussianNoisyMax,
    LaplaceNoisyMax,
    StabilityGate,
    base,
)
from pate_tf.accounting.noisy_training import NoisyTraining
from pate_tf.statement.labels import AGAINST_REPLACEMENT, LabelsStatement, Sanitised
from pate_tf.statement.privacy_statement import (
    PrivacyStatement,
    bold,
    largest_share_of_right_guesses,
)
from pate_tf.statement.shared_training import SharedTrainingStatement
from pate_tf.statement.silos import SiloSpending, SilosStatement

RELEASE = Sanitised(epsilon=1.23456, delta=1e-5, confidence=0.99, worst_case_epsilon=6.54321)
LAPLACE = LaplaceNoisyMax(gamma=0.05)
MADE = {"student_digest": "cd" * 32, "versions": {"pate_tf": "0.1.0", "python": "3.11"}}


def labels(**changes):
    facts = {
        "dataset": "mnist",
        "unit": "record",
        "num_teachers": 250,
        "mechanism": LAPLACE,
        "num_queries": 1200,
        "num_answered": 1100,
        "epsilon": 2.34561,
        "delta": 1e-5,
        "epsilon_ensemble": 5.43211,
        "epsilon_budget": None,
        "budget_was_raised": False,
        "ledger_rows": (2, 4),
        "ledger_head": (5, "ab" * 32),
        **MADE,
    }
    return LabelsStatement(**facts | changes)


def sums(**changes):
    """Of feature sums, which have neither teachers nor queries."""
    kind = base.MECHANISMS["gaussian_feature_sums"]
    facts = {"mechanism": kind.of_scale(30.0), "num_teachers": None, "num_queries": 1}
    return labels(**facts | {"num_answered": 1} | changes)


def owners(**changes):
    return labels(unit="owner", epsilon_ensemble_replaced=9.87654, **changes)


def silos(charge=None, **changes):
    charge = charge or RandomisedResponse(epsilon=2.0, num_classes=10)
    spent = [
        SiloSpending(
            name=name,
            charged=((charge, number),) if number else (),
            num_refused=3,
            epsilon=smallest_epsilon({charge: number}, 1e-6)[0],
            delta=1e-6,
            num_declared=60,
        )
        for name, number in (("north", 1), ("south", 50), ("west", 0))
    ]
    facts = {"run_id": "spring", "query_strategy": "random", "num_queries": 50}
    facts |= {"dataset": "lines", "num_answered": 40, "delta": 1e-6, "silos": tuple(spent)}
    return SilosStatement(**facts | MADE | changes)


def shared(**changes):
    charge = NoisyTraining(sampling_rate=0.1, noise_multiplier=1.0, rounds=20)
    facts = {"num_participants": 3, "num_parameters": 650, "upload": 0.1, "rounds": 20}
    facts |= {"dataset": "digits", "protocol": "round robin", "charge": charge, "epsilon": 3.4}
    facts |= {"delta": 1e-5, "unit": "record", "ledger_heads": ((4, "ab" * 32), (6, "cd" * 32))}
    return SharedTrainingStatement(**facts | MADE | changes)


EVERY = {
    "votes": labels(),
    "everything said": labels(
        query_strategy="random",
        sanitised=RELEASE,
        choice="by a | plan",
        num_neighbours=8,
        encoder="resnet, sha256 ab12",
        epsilon_budget=8.0,
        num_records=9_000,
        charged_before=((GaussianNoisyMax(sigma=40.0), 2),),
        epsilon_all_ensembles=9.0,
        delta_all_ensembles=2e-5,
        num_ledgers=2,
        records_are_known=True,
    ),
    "owners": owners(),
    "sums": sums(),
    "reset": labels(ledger_was_reset=True),
    "seeded": labels(secure_noise=False),
    "silos": silos(),
    "secure silos": silos(SecureHistogram(sigma=40.0, num_parties=4, threshold=1)),
    "shared": shared(),
    "participants": shared(
        unit="participant", epsilon_all_ensembles=5.0, delta_all_ensembles=1e-5, num_ledgers=1
    ),
    "seeded training": shared(secure_noise=False, ledger_was_reset=True),
    "infinite": shared(epsilon=math.inf),
    "no noise": shared(charge=None, epsilon=None, delta=None, unit=None, ledger_heads=()),
}
# The left column of the terms, and what a format left open.
BANNED = r"\b(house|room|door|alike|look-alike|paid|bought|whoever|nobody)\b|[{}]"


@pytest.mark.parametrize("name", EVERY)
def test_contract_of_every_statement(name):
    """It comes back from JSON, and its page says what every page must."""
    made = EVERY[name]
    text = json.dumps(made.to_dict(), allow_nan=False)
    for reader in (PrivacyStatement, type(made)):
        assert reader.from_dict(json.loads(text)) == made
    made.check_words(json.loads(text))
    page = made.to_markdown()
    assert made.protected in page and f"`{'cd' * 32}`" in page and "pate_tf 0.1.0" in page
    for sentence in (*made.warnings(), *made.not_released(), *made.assumptions()):
        assert sentence in page
    for one in made.guarantees:
        assert one.promises and one.to_whom and (one.epsilon is None) == (one.delta is None)
        if one.epsilon is not None:
            told = f"| {one.kind} | {one.covers} | {bold(one.epsilon)} | {one.delta:g} |"
            assert f"{told} {one.to_whom} |" in page
            assert one.to_whom == "no one" if not made.secure_noise else one.to_whom != "no one"
    assert not re.findall(BANNED, page, re.IGNORECASE)
    assert "## What was not released" in page
    assert "<table>" in made._repr_html_()
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.dataset = "other"


@pytest.mark.parametrize(
    "fields",
    [
        {"dataset": "mnist"},
        {**labels().to_dict(), "sanitised": {"epsilon": 1.0}},
        {**labels().to_dict(), "statement": "another"},
        {**labels().to_dict(), "statement": None},
        {**labels().to_dict(), "num_queries": True},
        {**labels().to_dict(), "ledger_head": [5]},
        {**labels().to_dict(), "mechanism": shared().charge.to_dict()},
        {**labels().to_dict(), "ledger_rows": "24"},
        {**shared().to_dict(), "unit": None},
        {**silos().to_dict(), "silos": []},
        [],
    ],
    ids=lambda fields: str(fields)[-40:],
)
def test_what_is_no_statement_is_refused(fields):
    with pytest.raises(ValueError, match=r"^(statement|silos): expected .*, got "):
        PrivacyStatement.from_dict(fields)


def test_a_statement_of_another_system_is_not_read_as_labels():
    with pytest.raises(ValueError, match="expected a privacy statement of labels"):
        LabelsStatement.from_dict(silos().to_dict())


def test_feature_sums_speak_of_no_teacher():
    page = sums().to_markdown()
    assert "| method | `feature_sums` |" in page and "The raw sums" in page
    for word in ("teacher", "vote", "queries asked"):
        assert word not in page.split("## One ensemble")[0], word
    assert "| method | `pate` |" in labels().to_markdown()


def test_an_encoder_is_vouched_for_by_the_user():
    made = EVERY["everything said"]
    assert any("resnet" in one and "vouched for by the user" in one for one in made.assumptions())
    assert not any("vouched" in one for one in labels().assumptions())


def test_what_is_purely_private_has_delta_0():
    one, many, none = (spent.stated for spent in silos().silos)
    assert (one, none) == ((2.0, 0.0), (0.0, 0.0))
    # Of fifty answers the epsilon at delta is smaller than the sum of theirs.
    assert many[0] < 100.0 and many[1] == 1e-6
    (guarantee,) = silos().guarantees
    assert (guarantee.epsilon, guarantee.delta) == many
    single = labels(num_queries=1, num_answered=1, ledger_rows=(2,), epsilon=0.1)
    assert single.guarantees[0].delta == 0.0
    assert labels(mechanism=GaussianNoisyMax(sigma=40.0)).guarantees[0].delta == 1e-5


def test_every_kind_of_epsilon_says_what_it_promises_and_to_whom():
    kinds = {one.kind: one for one in labels(sanitised=RELEASE).guarantees}
    assert set(kinds) == {"data-independent", "sanitised", "gated", "data-dependent"}
    assert kinds["gated"].epsilon is None and kinds["data-dependent"].epsilon is None
    assert "every possible data set" in kinds["data-independent"].promises
    assert "0.01" in kinds["sanitised"].promises


def test_a_sanitised_epsilon_stands_beside_its_worst_case_and_bounds_no_guess():
    without, released = labels(), labels(sanitised=RELEASE)
    numbers = [2.34561, 5.43211]
    assert [one.epsilon for one in without.guarantees if one.epsilon] == numbers
    assert [one.epsilon for one in released.guarantees if one.epsilon] == [
        *numbers,
        RELEASE.epsilon,
        RELEASE.worst_case_epsilon,
    ]
    page = released.to_markdown()
    means = page.split("## What an epsilon means")[1].split("##")[0]
    assert bold(RELEASE.worst_case_epsilon) in means and bold(RELEASE.epsilon) not in means
    assert "None is named here" not in page and "None is named here" in without.to_markdown()
    with pytest.raises(ValueError, match="sanitised: expected none for queries chosen by"):
        labels(sanitised=RELEASE, query_strategy="uncertain")


def test_an_owner_is_replaced_at_the_cost_of_two_moved_teachers():
    made = owners()
    found = [one for one in made.guarantees if one.kind == AGAINST_REPLACEMENT]
    two_moved = replaced_owner_epsilon({LAPLACE: 1200}, 1e-5)
    assert [one.epsilon for one in found] == [two_moved, 9.87654]
    assert two_moved > made.epsilon
    # Nothing else promises anything against replacement, nor records anything on coming or going.
    others = [one for one in made.guarantees if one not in found]
    assert not any("replace" in one.promises for one in others)
    assert AGAINST_REPLACEMENT not in {one.kind for one in labels().guarantees}
    assert any("adding or removing one is not" in one for one in labels().not_covered())
    for wrong in ({"unit": "owner"}, {"epsilon_ensemble_replaced": 3.0}, {"unit": "house"}):
        with pytest.raises(ValueError, match="expected"):
            labels(**wrong)


def test_a_seeded_run_promises_nothing():
    seeded = labels(secure_noise=False, sanitised=RELEASE)
    assert {one.to_whom for one in seeded.guarantees} == {"no one"}
    page = seeded.to_markdown()
    assert page.splitlines()[2].startswith("**This is NOT private")
    assert "2.346**: this student" not in page  # among the bounds on guesses
    assert seeded.to_dict()["largest_share_of_right_guesses"] is None
    assert "2.346**: this student" in labels().to_markdown()
    for made in (seeded, shared(secure_noise=False)):
        assert made.kind.startswith("none") and not any(
            "entropy" in one for one in made.assumptions()
        )


def test_without_noise_there_is_no_guarantee():
    page = EVERY["no noise"].to_markdown()
    assert "There is no privacy guarantee" in page and "epsilon means" not in page
    assert EVERY["no noise"].to_dict()["epsilon"] is None
    infinite = PrivacyStatement.from_dict(
        json.loads(json.dumps(shared(epsilon=math.inf).to_dict()))
    )
    assert infinite.epsilon == math.inf and "| infinite |" in infinite.to_markdown()
    with pytest.raises(ValueError, match="expected charge, epsilon, delta and unit, or none"):
        shared(charge=None)


def test_delta_is_compared_with_the_number_of_records():
    large = labels(num_records=604_388)
    assert large.delta_times_records == pytest.approx(6.04, abs=0.01)
    assert "604,388, is 6.04" in large.to_markdown()
    assert "is not known here" in labels().to_markdown()
    assert "How many owners there are is not stated" in owners().to_markdown()


def test_several_records_of_a_person_get_numbers():
    made = labels(mechanism=GaussianNoisyMax(sigma=37.5))
    two, five = (made.several[number] for number in (2, 5))
    assert two < five
    assert five > 5 * smallest_epsilon({made.mechanism: made.num_queries}, made.delta)[0]
    row = next(line for line in made.to_markdown().splitlines() if line.startswith("| 5 "))
    assert rounded_up(five) in row
    values = made.to_dict()["several"]
    assert values == [{"number": 2, "epsilon": two}, {"number": 5, "epsilon": five}]
    said = "infinite where nothing is known at this delta"
    assert said not in made.to_markdown()
    gate = labels(mechanism=StabilityGate(epsilon=1.0, delta=made.delta / 2))
    assert gate.several[5] == math.inf and said in gate.to_markdown()


def test_no_total_is_stated_over_ledgers_that_protect_something_else():
    known = {"num_ledgers": 3, "num_other_units": 2, "records_are_known": True}
    for made, others in ((owners(**known), "single records"), (labels(**known), "owners")):
        page = made.to_markdown()
        assert f"2 of 3 ledgers of the same private records protect {others}" in page
        assert "(3 ledgers)" not in page
    assert "protect owners" not in labels(epsilon_all_ensembles=9.0, num_ledgers=3).to_markdown()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, "no record of ledgers could be kept"),
        ({"num_ledgers": 2}, "NOT KNOWN"),
        ({"epsilon_all_ensembles": 9.0, "num_ledgers": 1}, "is not known here"),
        ({"ledger_was_reset": True}, "THE LEDGER WAS RESET"),
        ({}, "Copies on other machines or under another user can't be seen"),
    ],
)
def test_what_could_not_be_checked_is_said(change, said):
    assert said in "\n".join(labels(**change).one_ledger)
    assert said in labels(**change).to_markdown()
    known = labels(epsilon_all_ensembles=9.0, num_ledgers=1, records_are_known=True)
    assert not any("NOT CHECKED" in one for one in known.one_ledger)


def test_silos_say_who_sees_what_and_how_many_may_collude():
    local, secure = EVERY["silos"], EVERY["secure silos"]
    assert "against the coordinator and all other silos together" in local.coalitions
    assert "up to 1 of 4 parties together" in dict(secure.sees)
    assert "3 parties add their noise" in secure.to_markdown()
    assert "| south | randomised_response" in local.to_markdown()


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
