"""Statements of all three systems: page, JSON, reader, and their contents."""

import dataclasses
import itertools
import json
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import nodes
from scipy.stats import norm
from silo_helpers import secure_sums

from pate_tf.accounting.charge import SanitisedEpsilon
from pate_tf.accounting.composition import several_teachers_epsilon, smallest_epsilon
from pate_tf.accounting.local import RandomisedResponse, SecureHistogram
from pate_tf.accounting.mechanisms import (
    GaussianFeatureSums,
    GaussianHistogram,
    GaussianNoisyMax,
    LaplaceNoisyMax,
    base,
)
from pate_tf.accounting.noisy_training import NoisyTraining
from pate_tf.release.noisy_sums import mechanism_of_estimate
from pate_tf.statement.labels_statement import LabelsStatement, with_estimate
from pate_tf.statement.privacy_statement import (
    ADD_OR_REMOVE_ONE,
    DATA_DEPENDENT,
    REPLACE_ONE,
    TEMPLATES,
    PrivacyStatement,
    delta_text,
    epsilon_text,
    largest_share_of_right_guesses,
    pure_if_as_small,
)
from pate_tf.statement.several_holders import SharedTrainingStatement, SiloSpending, SilosStatement

RELEASE = SanitisedEpsilon(epsilon=1.23456, delta=1e-5, confidence=0.99, worst_case_epsilon=6.54321)
LAPLACE = LaplaceNoisyMax(gamma=0.05)
MADE = {
    "student_digest": "cd" * 32,
    "versions": {"pate_tf": "0.1.0", "python": "3.11"},
    "pool_name": "churn_public",
    "run_name": "2026-11-26-1",
    "date": "2026-11-26",
}
NAMED = {"source_name": "customers_2026", "holder": "Example Telecom", "purpose": "forecasts"}


def labels(**changes):
    facts = {
        "unit": "record",
        "num_teachers": 250,
        "mechanism": LAPLACE,
        "num_queries": 1200,
        "num_answered": 1100,
        "epsilon": 2.34561,
        "delta": 1e-5,
        "epsilon_ledger": 5.43211,
        "epsilon_budget": None,
        "budget_was_raised": False,
        "ledger_rows": (2, 4),
        "ledger_head": (5, "ab" * 32),
        **MADE,
    }
    return LabelsStatement(**facts | changes)


def sums(**changes):
    """Returns a statement of feature sums, which has neither teachers nor queries."""
    kind = base.MECHANISMS["gaussian_feature_sums"]
    facts = {"mechanism": kind(sigma=8.4512), "num_teachers": None, "num_records": 4_930}
    return labels(**facts | changes)


def estimated(epsilon, is_apart=True):
    """Returns the text of a statement about an estimate of the accuracy."""
    charge = mechanism_of_estimate(epsilon)
    accuracy = (0.85, 0.84, 0.86, epsilon, 0.845 if is_apart else None)
    facts = {"estimated_accuracy": accuracy, "estimate_charge": charge}
    return {**facts, "estimate_is_apart": is_apart}


def owners(**changes):
    return labels(unit="owner", epsilon_ledger_replaced=9.87654, **changes)


def silos(charge=None, answered=(1, 50, 0), **changes):
    charge = charge or RandomisedResponse(epsilon=2.0, num_classes=10)
    spent = [
        SiloSpending(
            name=name,
            charged=((charge, number),) if number else (),
            num_refused=3,
            epsilon=smallest_epsilon({charge: number}, 1e-6)[0],
            delta=1e-6,
        )
        for name, number in zip(("north", "south", "west", "east", "mid"), answered, strict=False)
    ]
    facts = {"run_id": "spring", "query_strategy": "random", "num_queries": 50}
    facts |= {"num_answered": 40, "delta": 1e-6, "silos": tuple(spent), "unit": "silo"}
    return SilosStatement(**facts | MADE | changes)


def silo_sums(unit="owner"):
    charge = secure_sums(sigma=20.0, num_features=10, least_silos=4, unit=unit)
    return silos(charge, (1, 1, 1, 1, 1), unit=unit)


def shared(**changes):
    charge = NoisyTraining(sampling_rate=0.1, noise_multiplier=1.0, rounds=20)
    facts = {"num_participants": 3, "num_parameters": 650, "upload": 0.1, "rounds": 20}
    facts |= {"protocol": "round robin", "charge": charge, "epsilon": 3.4}
    facts |= {"delta": 1e-5, "unit": "record", "ledger_heads": ((4, "ab" * 32), (6, "cd" * 32))}
    return SharedTrainingStatement(**facts | MADE | changes)


EVERY = {
    "votes": labels(),
    "a budget": labels(epsilon_budget=9.0, budget_was_raised=True),
    "everything said": labels(
        query_strategy="random",
        sanitised=RELEASE,
        choice="by a | plan.",
        encoder="resnet, sha256 ab12",
        epsilon_budget=8.0,
        num_records=9_000,
        charged_before=((GaussianNoisyMax(sigma=40.0), 2),),
        epsilon_source=9.0,
        delta_source=2e-5,
        num_ledgers=2,
        **NAMED,
    ),
    "owners": owners(num_ledgers=2, num_other_units=1, source_name="customers_2026"),
    "sums": sums(epsilon_source=5.43211, delta_source=1e-5, num_ledgers=1, **NAMED),
    "sums of owners": sums(
        unit="owner", num_records=None, epsilon_ledger_replaced=9.9, num_ledgers=2, **NAMED
    ),
    "moments": sums(
        mechanism=base.MECHANISMS["gaussian_moments"](sigma=9.0),
        num_queries=0,
        num_answered=0,
        **estimated(0.1),
    ),
    "reset": labels(ledger_was_reset=True),
    "seeded": labels(secure_noise=False),
    "silos": silos(),
    "secure silos": silos(SecureHistogram(sigma=40.0, num_parties=4, threshold=1)),
    "sums of silos": silo_sums(),
    "records of silos": silo_sums("record"),
    "shared": shared(),
    "participants": shared(unit="participant", epsilon_source=5.0, delta_source=1e-5),
    "seeded training": shared(secure_noise=False, ledger_was_reset=True),
    "infinite": shared(epsilon=math.inf),
    "no noise": shared(charge=None, epsilon=math.inf, delta=0.0, unit="none", ledger_heads=()),
}
ACCURACY = {"accuracy": 0.819, "accuracy_low": 0.797, "accuracy_high": 0.839}
ACCURACY |= {"num_evaluated": 1_500.0, "majority_accuracy": 0.73, "auc": 0.85}
CHURN = {"inputs": "19 columns", "label": "churn", "classes": ("no", "yes"), "quality": ACCURACY}
ERRORS = {"num_evaluated": 9.0, "root_mean_squared_error": 0.5}
ERRORS |= {"constant_root_mean_squared_error": 81_952.6, "r_squared": 0.8}
LABELS = {"num_evaluated": 9.0, "exact_match": 0.25, "constant_exact_match": 0.125, "auc": 0.75}
# The left column of the terms, and values that a format left open.
BANNED = r"\b(house|door|alike|paid|whoever|nobody|ensembles?|witness\w*)\b|[{}]|(?-i:None)"


@pytest.mark.parametrize("name", EVERY)
def test_contract_of_every_statement(name):
    """It can be read back from JSON, and its page contains every required text once."""
    made = EVERY[name]
    text = json.dumps(made.to_dict(), allow_nan=False)
    for reader in (PrivacyStatement, type(made)):
        assert reader.from_dict(json.loads(text)) == made
    page = made.to_markdown()
    assert "model cdcdcdcd…" in page and "pate_tf 0.1.0, python 3.11, 2026-11-26" in page
    for row in made.guarantees:
        separator = " at δ = " if "are replaced |" in page else " | "
        cost = f"**{epsilon_text(row.epsilon)}**{separator}{delta_text(row.delta)} |"
        cells = [row.release, cost]
        assert any(all(cell in line for cell in cells) for line in page.splitlines())
    titles = ["How the", "What is guaranteed", "What it depends on", "What it does not cover"]
    for title in titles if made.guarantees else (titles[0], titles[-1]):
        assert page.count(f"## {title}") == 1
    assert page.count("## ") == (5 if made.guarantees else 3)
    assert not re.findall(BANNED, page, re.IGNORECASE)
    sentences = re.split(r"(?<=[a-z)])\. |\n+", page.replace("- ", ""))
    told = [one for one in sentences if len(one) > 12 and not one.startswith("| ---")]
    assert len(told) == len(set(told)), [one for one in told if told.count(one) > 1]
    assert len(page.split()) < 880
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.pool_name = "other"


def test_every_sentence_of_the_templates_is_on_a_page():
    pages = "\n".join(made.to_markdown() for made in EVERY.values())
    pages += labels(num_ledgers=2, **NAMED).to_markdown()
    pages += labels(**estimated(0.5, is_apart=False)).to_markdown()
    pages += owners(**CHURN, num_public_labels=840, **estimated(0.5)).to_markdown()
    cost = {"label": "cost", "target_range": (0.0, 9.0), "quality": ERRORS, **estimated(0.5)}
    pages += sums(inputs="texts", **cost).to_markdown()
    assert "The best constant prediction has 81,950." in pages
    pages += sums(inputs="images of 8 x 8 pixels", quality=LABELS).to_markdown()
    pages += sums(inputs="9 columns", classes=tuple(f"class {n}" for n in range(90))).to_markdown()
    several = {"predicts": "a number", "num_public_labels": 9, "num_teachers": None}
    pages += labels(mechanism=GaussianFeatureSums(sigma=50.0), **several).to_markdown()
    pages += sums(predicts="Several labels.", **estimated(0.5)).to_markdown()
    pages += labels(mechanism=GaussianHistogram(sigma=50.0), predicts="a number").to_markdown()
    for name in {*TEMPLATES.list_templates()} - {"report.html", "model_card.md"}:
        tree = TEMPLATES.parse(TEMPLATES.loader.get_source(TEMPLATES, name)[0])
        for text in tree.find_all(nodes.TemplateData):
            lines = [line.strip().removeprefix("1. ") for line in text.data.splitlines()]
            assert all(line in pages for line in lines), (name, lines)


def test_the_page_tells_what_is_predicted_and_how_well():
    page = owners(**CHURN, num_public_labels=840, **NAMED).to_markdown()
    for text in (
        "releases a classifier that predicts churn (no, yes) from 19 columns. It was trained",
        "It is right for 81.9 % of 1,500 public test records (95 % interval 79.7 % to 83.9 %)",
        "Always predicting the most frequent class is right for 73.0 %.",
        "only on these labels, on the public pool and on 840 public labels.",
        "**All records of one owner in customers_2026 are protected with (ε = ",
        "\n| this classifier and its labels | **2.35** at δ = 1e-5 | **",
    ):
        assert page.count(text) == 1, text
    assert "This was not measured" not in page and "only on these labels and on" not in page
    page = sums(predicts="It is a number.", label="price", inputs="2 columns").to_markdown()
    assert "A model that predicts price from 2 columns is released. It is a number. It was" in page
    assert "This was not measured: there are no public labeled records for a test." in page
    page = sums(**estimated(0.5)).to_markdown()
    assert "The estimate on private records is 85.0 % (95 %" in page and "not measured" not in page


@pytest.mark.parametrize(
    "fields",
    [
        {"pool_name": "mnist"},
        {**labels().to_dict(), "sanitised": {"epsilon": 1.0}},
        {**labels().to_dict(), "statement": "another"},
        {**labels().to_dict(), "statement": None},
        {**labels().to_dict(), "num_queries": True},
        {**labels().to_dict(), "ledger_head": [5]},
        {**labels().to_dict(), "mechanism": shared().charge.to_dict()},
        {**labels().to_dict(), "ledger_rows": "24"},
        {**labels().to_dict(), "holder": 3},
        {**shared().to_dict(), "unit": None},
        {**silos().to_dict(), "silos": []},
        [],
    ],
    ids=lambda fields: str(fields)[-40:],
)
def test_what_is_no_statement_is_refused(fields):
    with pytest.raises(
        ValueError,
        match=r"^(statement must be|statement: unit must be|unit must be|silos must contain)",
    ):
        PrivacyStatement.from_dict(fields)


def test_numbers_have_three_digits_and_costs_are_rounded_up():
    told = [(1.0, "1.00"), (0.9991, "1.00"), (2.1201, "2.13"), (0.05, "0.0500"), (123.1, "124")]
    assert [epsilon_text(value) for value, _ in told] == [text for _, text in told]
    assert [epsilon_text(value) for value in (0.0, math.inf, 4000.0)] == ["0", "∞", "4000"]
    deltas = (1e-6, 2e-5, 1.2345e-6, 0.0)
    assert [delta_text(value) for value in deltas] == ["1e-6", "2e-5", "1.24e-6", "0"]
    made = sums(**NAMED)
    assert "(ε = 2.35, δ = 1e-5)" in made.to_markdown()
    assert "standard deviation 8.45 (sensitivity 2)" in made.to_markdown()
    assert made.to_dict()["epsilon"] == 2.34561


def test_names_are_the_holders_and_stay_in_their_place():
    page = sums(**NAMED).to_markdown()
    assert page.startswith("# Privacy statement: customers_2026 classifier, run 2026-11-26-1\n")
    assert "Telecom releases a classifier. It was trained on customers_2026 (4,930 rec" in page
    assert "Purpose: forecasts." in page and "Signed for Example Telecom: ___" in page
    bare = sums().to_markdown()
    assert "A classifier is released. It was trained on the private records of this run" in bare
    assert "Purpose" not in bare and "\nSigned: ___" in bare and "second name" not in bare
    assert "| everything charged to this ledger | **5.44** | 1e-5 |" in bare
    assert "| everything released" not in sums(epsilon_source=9.0, num_ledgers=1).to_markdown()
    # A data holder can't write a row, a code span or a tag into the page.
    rude = sums(source_name="a | b`\n\n# c <script>", holder="x\n\n## Verified").to_markdown()
    assert "a / b' # c &lt;script&gt; (4,930" in rude and "\n## Verified" not in rude


def test_the_ledger_has_a_row_of_its_own_where_the_source_has_another_number():
    same = sums(epsilon_source=5.43211, delta_source=1e-5, num_ledgers=1, **NAMED)
    other = sums(epsilon_source=7.0, delta_source=2e-5, num_ledgers=2, **NAMED)
    assert [row.epsilon for row in same.guarantees] == [2.34561, 5.43211]
    assert [row.epsilon for row in other.guarantees] == [2.34561, 5.43211, 7.0]
    page = other.to_markdown()
    assert "customers_2026 on this machine (2 ledgers) | **7.00** | 2e-5 |" in page
    assert "(ε = 7.00), the guess is right at most 100 % of the time." in page


def test_what_is_purely_private_has_delta_0():
    first, many, none = (
        pure_if_as_small(spent.charges, spent.epsilon, spent.delta) for spent in silos().silos
    )
    assert (first, none) == ((2.0, 0.0), (0.0, 0.0))
    # For fifty answers, epsilon at delta is smaller than the sum of their epsilons.
    assert many[0] < 100.0 and many[1] == 1e-6
    (guarantee,) = silos().guarantees
    assert (guarantee.epsilon, guarantee.delta) == many
    single = labels(num_queries=1, num_answered=1, ledger_rows=(2,), epsilon=0.1)
    assert single.guarantees[0].delta == 0.0
    assert labels(mechanism=GaussianNoisyMax(sigma=40.0)).guarantees[0].delta == 1e-5


def test_a_released_epsilon_stands_beside_its_worst_case():
    released = labels(sanitised=RELEASE, num_ledgers=1)
    *_, dependent, worst = released.guarantees
    assert (dependent.epsilon, dependent.kind) == (RELEASE.epsilon, DATA_DEPENDENT)
    assert worst.epsilon == RELEASE.worst_case_epsilon and worst.kind != DATA_DEPENDENT
    page = released.to_markdown()
    assert "With probability 0.01, the noise" in page and "no evidence that its plan" in page
    fixed = labels(sanitised=dataclasses.replace(RELEASE, plan_was_fixed=True))
    assert "no evidence" not in fixed.to_markdown()
    with pytest.raises(ValueError, match=r"query_strategy must be one of .*, got 'uncertain'"):
        labels(query_strategy="uncertain")  # of earlier versions


def right_guesses(mechanism):
    """Returns how often an attacker guesses a held-out label from a noisy count that it moves by
    one.
    """
    return 1.0 - 0.5 * math.exp(-1.0 / (2.0 * mechanism.scale))


@pytest.mark.parametrize("number", [1, 1200])
@pytest.mark.parametrize("epsilon", [0.01, 0.5, 20.0])
@pytest.mark.parametrize("release", [None, RELEASE])
@pytest.mark.parametrize("make", [labels, owners])
@pytest.mark.parametrize("is_apart", [True, False])
def test_the_headline_covers_everything_that_the_page_publishes(
    make, release, epsilon, number, is_apart
):
    """The attack: guess a held-out label from an estimate that costs more than the labels."""
    asked = {
        "num_queries": number,
        "num_answered": number,
        "sanitised": release,
        "ledger_rows": (2,),
    }
    charge = mechanism_of_estimate(epsilon)
    made = make(
        **asked,
        **estimated(epsilon, is_apart),
        epsilon=with_estimate({LAPLACE: number}, charge, 1e-5, is_apart=is_apart),
    )
    first, *others = made.guarantees
    share = largest_share_of_right_guesses(first.epsilon, first.delta)
    assert share >= right_guesses(made.estimate_charge)
    assert f"at most {epsilon_text(100 * share)} % of the time" in made.to_markdown()
    published = [({LAPLACE: number}, made.delta), ({made.estimate_charge: 1}, first.delta)]
    if not is_apart:  # one record may be in the labels and in the estimate
        published.append(({LAPLACE: number, made.estimate_charge: 1}, first.delta))
        assert release is None or first.epsilon >= release.worst_case_epsilon + epsilon * 0.999
    for charges, delta in published:
        assert first.epsilon >= smallest_epsilon(charges, delta)[0] * (1.0 - 1e-9)
    if release is not None:
        assert first.epsilon >= release.worst_case_epsilon and first.delta >= release.delta
        assert [row.release for row in others if row.kind == DATA_DEPENDENT]
    # Two records, or a replaced owner, may be in both parts: costs add up.
    together = several_teachers_epsilon({LAPLACE: number, made.estimate_charge: 1}, delta=1e-5)
    assert made.several[2] == together
    assert not is_apart or together >= made.epsilon
    # a released number belongs to the whole ledger
    due = max(together, 9.87654 if release else 0.0)
    assert make is labels or others[0].epsilon == due


def test_an_owner_is_replaced_at_the_cost_of_two_moved_teachers():
    made = owners()
    two_moved = several_teachers_epsilon({LAPLACE: 1200}, delta=1e-5)
    actual = [row.epsilon for row in made.guarantees if row.relation == REPLACE_ONE]
    assert actual == [two_moved, 9.87654] and two_moved > made.epsilon
    actual = [row.epsilon for row in made.guarantees if row.relation == ADD_OR_REMOVE_ONE]
    assert actual == [made.epsilon, made.epsilon_ledger]
    assert {row.relation for row in labels().guarantees} == {REPLACE_ONE}
    assert "adding or removing a record is not" in labels().to_markdown()
    for wrong in ({"unit": "owner"}, {"epsilon_ledger_replaced": 3.0}, {"unit": "house"}):
        with pytest.raises(ValueError, match="must be"):
            labels(**wrong)


def test_a_seeded_run_promises_nothing():
    for made in (labels(secure_noise=False), shared(secure_noise=False)):
        page = made.to_markdown()
        assert page.splitlines()[2].startswith("**This is NOT private")
        for words in ("protected with", "What this means", "entropy"):
            assert words not in page
        assert "| ε if the noise were not seeded |" in page and made.kind.startswith("none")


def test_without_noise_there_is_no_guarantee():
    page = EVERY["no noise"].to_markdown()
    assert "There is no privacy guarantee" in page and "ε" not in page
    assert EVERY["no noise"].to_dict()["epsilon"] is None
    infinite = PrivacyStatement.from_dict(
        json.loads(json.dumps(shared(epsilon=math.inf).to_dict()))
    )
    page = infinite.to_markdown()
    assert infinite.epsilon == math.inf and "| **∞** |" in page and "No finite ε" in page
    with pytest.raises(ValueError, match="both a charge and a protected unit"):
        shared(charge=None)


def gaussian_delta(shift: float, epsilon: float) -> float:
    """Returns delta at epsilon of Gaussian noise of scale 1 on a number that moves this far."""
    return norm.cdf(shift / 2 - epsilon / shift) - np.exp(epsilon) * norm.cdf(
        -shift / 2 - epsilon / shift
    )


@pytest.mark.parametrize("unit", ["owner", "record"])
def test_somebody_in_k_silos_moves_the_total_by_more_than_one_silos_number(unit):
    """The attack: different records in k silos, each of which moves its sums as far as allowed."""
    made = silo_sums(unit)
    sigma, (stated, *replaced) = made.sums.sigma, made.guarantees
    moved = 1.0 if unit == "owner" else 2.0
    assert gaussian_delta(moved / sigma, stated.epsilon) <= stated.delta
    for other in replaced:
        assert other.relation == REPLACE_ONE and unit == "owner"
        assert gaussian_delta(2 / sigma, other.epsilon) <= other.delta
        assert gaussian_delta(2 / sigma, 0.999 * other.epsilon) > other.delta
    assert set(made.several) == {2, 5} and made.several_delta == stated.delta
    for number, epsilon in made.several.items():
        assert gaussian_delta(moved * number / sigma, stated.epsilon) > 100 * stated.delta
        assert gaussian_delta(moved * number / sigma, epsilon) <= made.several_delta
        assert f"ε = {epsilon_text(epsilon)} for" in made.to_markdown()
    assert (
        made.protected.endswith("in one silo") and "does not cover a person" in made.to_markdown()
    )


def test_somebody_in_k_silos_costs_what_their_answers_cost_together():
    charge = RandomisedResponse(epsilon=2.0, num_classes=10)
    made = silos(charge, (1, 1, 1))
    assert made.guarantees[0].epsilon == 2.0
    # All votes of k silos are unchanged: e^(2 k) times as likely as if all were replaced.
    most, least = (np.exp(s * charge.epsilon) / (np.exp(charge.epsilon) + 9) for s in (1, 0))
    likelier = np.log(most / least)
    for number in (2, 3):
        assert number * likelier > 2.0 + 1.9  # more than the number for one silo
        kept, other = most**number, least**number
        assert kept - np.exp(made.several[number]) * other <= made.several_delta
        assert kept - np.exp(made.guarantees[0].epsilon) * other > 0.05
    # The silos with the most answers count; silos without answers do not.
    assert set(silos(charge, (1, 50, 0)).several) == {2}
    assert silos(charge, (1, 50, 0)).several[2] == smallest_epsilon({charge: 51}, 1e-6)[0]
    assert silos(charge, (3, 0, 0)).several == {}


@pytest.mark.parametrize("unit", ["record", "participant"])
def test_somebody_at_k_participants_moves_more_than_one_participants_number(unit):
    """The attack: different records at k participants, each of which moves as much as allowed."""
    charge = NoisyTraining(sampling_rate=1.0, noise_multiplier=40.0, rounds=20, unit=unit)
    epsilon, _ = smallest_epsilon({charge: 1}, 1e-5)
    made = shared(charge=charge, epsilon=epsilon, unit=unit, num_participants=9)
    assert gaussian_delta(2 * 20**0.5 / 40, epsilon) <= 1e-5
    assert set(made.several) == {2, 5, 9}
    for number, together in made.several.items():
        shift = 2 * (20 * number) ** 0.5 / 40
        assert gaussian_delta(shift, epsilon) > 10 * made.delta
        assert gaussian_delta(shift, together) <= made.delta
        assert f"ε = {epsilon_text(together)} for" in made.to_markdown()
    assert "It does not cover a person" in made.to_markdown()
    alone = shared(charge=charge, epsilon=epsilon, unit=unit, num_participants=1)
    assert alone.several == {} and "does not cover a person" not in alone.to_markdown()


def test_mechanisms_that_answers_chose_cost_several_silos_more_delta():
    votes, noisy = (
        RandomisedResponse(epsilon=1.0, num_classes=10),
        SecureHistogram(sigma=400.0, num_parties=4, threshold=1),
    )
    spent = silos(votes, (2, 3)).silos
    both = tuple(dataclasses.replace(each, charged=(*each.charged, (noisy, 1))) for each in spent)
    made = dataclasses.replace(silos(), silos=both)
    alone = dataclasses.replace(silos(), silos=both[1:])
    assert made.several_delta == 129 * made.delta
    assert made.several[2] > 2 * smallest_epsilon({votes: 3, noisy: 1}, made.several_delta)[0]
    assert alone.several == {} and "does not cover a person" not in alone.to_markdown()


@given(
    st.lists(st.floats(0.01, 1.0), min_size=2, max_size=6),
    st.integers(0, 2**32 - 1),
    st.floats(0.0, 8.0),
)
def test_no_guess_beats_the_stated_share(weights, seed, epsilon):
    # Two laws on a few outcomes, and the delta that they need at this epsilon, in both directions.
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
        # With probability delta the answer is revealed; otherwise the truth is exp(epsilon) times
        # likelier.
        truth = np.exp(epsilon) / (1.0 + np.exp(epsilon))
        expected = delta + (1.0 - delta) * truth
        assert largest_share_of_right_guesses(epsilon, delta) == pytest.approx(expected, rel=1e-14)
    assert largest_share_of_right_guesses(1e6, 0.0) == 1.0
    assert "at most 73.2 %" in labels(epsilon=1.0).to_markdown()
