"""Silos that compute feature sums: charged once, and refused by policy."""

import dataclasses
import random

import five_silos
import pytest
from five_silos import ENCODER, NAMES, RELEASE, batch, open_silo
from silo_helpers import RANDOMISED, spent

from pate_tf.accounting.composition import smallest_epsilon
from pate_tf.silos.messages import Reason, Refusal, SealedShares, sums_query


def test_each_batch_is_charged_once_and_dealt_once(tmp_path):
    with open_silo(tmp_path, "a") as one:
        first = one.answer(batch())
        assert isinstance(first, SealedShares) and len(first.sealed) == 4
        assert one.answer(batch()).sealed == first.sealed
        assert one.account.charges == {RELEASE: 1}
        second = one.answer(batch(2))
        assert second.sealed != first.sealed
        assert spent(one) == smallest_epsilon({RELEASE: 2}, 1e-6)[0] <= 1.0
        while isinstance(reply := one.answer(batch(random.randrange(10**9))), SealedShares):
            pass
        assert reply.reason is Reason.BUDGET_SPENT and spent(one) <= 1.0
    with open_silo(tmp_path, "a") as one:
        assert one.answer(batch()).sealed == first.sealed


def changed(**changes):
    return dataclasses.replace(RELEASE, **changes)


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"query": sums_query("another", "record")}, Reason.OTHER_SUMS),
        ({"query": sums_query(ENCODER.digest, "owner")}, Reason.OTHER_SUMS),
        ({"num_classes": 6}, Reason.OTHER_SUMS),
        ({"mechanism": changed(num_features=4)}, Reason.OTHER_SUMS),
        ({"mechanism": changed(unit="owner")}, Reason.OTHER_SUMS),
        ({"mechanism": changed(least_silos=3)}, Reason.MECHANISM_NOT_ALLOWED),
        ({"mechanism": changed(colluding=1)}, Reason.MECHANISM_NOT_ALLOWED),
        ({"mechanism": changed(least_silos=6)}, Reason.MECHANISM_NOT_ALLOWED),  # of five
        ({"mechanism": changed(num_parties=5)}, Reason.MECHANISM_NOT_ALLOWED),
        ({"mechanism": changed(sigma=1.0)}, Reason.BUDGET_SPENT),
        ({"mechanism": RANDOMISED}, Reason.MECHANISM_NOT_ALLOWED),
    ],
    ids=str,
)
def test_what_the_policy_does_not_allow_is_refused_and_not_charged(tmp_path, asked, reason):
    limits = {"least_silos": 4, "least_colluding": 2, "epsilon_budget": 0.5}
    if reason is not Reason.MECHANISM_NOT_ALLOWED:
        limits["least_colluding"] = 1
    if "randomised_response" in str(asked):
        limits["allowed"] = ("secure_feature_sums", "randomised_response")
    with open_silo(tmp_path, "a", **limits) as one:
        reply = one.answer(batch(**asked))
        assert isinstance(reply, Refusal) and reply.reason is reason
        assert not one.account.charges


def test_fewer_silos_open_nothing_and_are_asked_anew_at_their_cost(tmp_path):
    refusing = {"least_silos": 5}  # their policies refuse a total of four
    silos = [open_silo(tmp_path, name, **(refusing if name in "ab" else {})) for name in NAMES]
    running, _ = five_silos.coordinator(tmp_path, silos)
    with running:
        for number in (1, 2):
            with pytest.raises(ValueError, match="3 answered, 2 refused: mechanism_not_allowed"):
                five_silos.total(running)
            assert silos[0].refusal.endswith("least_silos = 5, the batch has 4")
            charged = {one.name: one.charges for one in running.spending()}
            assert charged == {name: {} if name in "ab" else {RELEASE: number} for name in NAMES}
    for silo in silos:
        silo.close()
