"""A coordinator: public choices, honest counting, labels for students, a statement."""

import contextlib

import numpy as np
from silo_helpers import NUM_CLASSES, pool, queries, silo, spent, teacher

from pate_tf.accounting.composition import smallest_epsilon
from pate_tf.accounting.local import RandomisedResponse
from pate_tf.core.public import Pool
from pate_tf.ledger.ledger_file import BudgetExceeded
from pate_tf.silos import Asking, Coordinator, Member, SiloRoster
from pate_tf.silos.coordinator import UNIT
from pate_tf.silos.messages import Answer

POOL = pool()
TRUE = teacher(POOL.inputs)


def group(number, *, epsilon=3.0, **changes):
    silos = [silo(None, silo=f"s{n}", most_epsilon=9.0, **changes) for n in range(number)]
    members = tuple(Member(name=one.name, epsilon=epsilon) for one in silos)
    return silos, SiloRoster(run="r", delta=1e-6, members=members)


def ten_lines(silos, roster, *, asking=None, folder=None):
    return Coordinator(roster, silos=silos, folder=folder, asking=asking)


def test_labels_cost_and_counts_are_those_of_the_silos_accounts():
    silos, roster = group(30)
    with ten_lines(silos, roster) as coordinator:
        labels = coordinator.label(POOL, num_queries=50, strategy="random", seed=3)
        spending = coordinator.spending()
    released = labels.released
    assert (released.labels == TRUE[released.query_indices]).mean() > 0.95
    assert released.cost.unit == UNIT and released.cost.number == 50
    charge = RandomisedResponse(num_classes=NUM_CLASSES, epsilon=3.0)
    assert released.cost.charge == charge
    assert released.cost.epsilon == smallest_epsilon({charge: 50}, 1e-6)[0]
    for one, cost in zip(silos, spending, strict=True):
        assert one.account.charges == cost.charges == {charge: 50}
        assert cost.epsilon == spent(one)


def test_the_same_queries_are_not_asked_twice():
    silos, roster = group(4)
    with ten_lines(silos, roster) as coordinator:
        first = coordinator.ask(POOL, np.arange(10))
        more = coordinator.ask(POOL, np.arange(5, 15))
        assert np.array_equal(more.labels[:5], first.labels[5:])
        doubled = Pool(POOL.dataset, np.concatenate([POOL.inputs[:3], POOL.inputs[:3]]))
        twice = coordinator.ask(doubled, np.arange(6))
        assert np.array_equal(twice.labels[:3], twice.labels[3:])
        assert [sum(cost.charges.values()) for cost in coordinator.spending()] == [15] * 4


def test_silos_that_refuse_are_counted_and_the_others_suffice():
    silos, roster = group(6)
    silos[2] = silo(None, silo="s2", most_epsilon=0.5)
    with ten_lines(silos, roster, asking=Asking(least_answers=5)) as coordinator:
        labels = coordinator.ask(POOL, np.arange(10))
        assert labels.num_answered == 10
        cost = coordinator.spending()[2]
        assert (cost.num_refused, cost.charges, cost.epsilon) == (10, {}, 0.0)
    with ten_lines(*group(4), asking=Asking(least_answers=5)) as coordinator:
        none = coordinator.ask(POOL, np.arange(10))
        assert (none.num_answered, none.num_queries) == (0, 10)
        assert none.cost.number == 10  # charged, with or without a label


def test_a_hostile_coordinator_gets_no_more_than_a_policy_allows():
    """It queries the same silo in many runs, repeats and flips bits, until the budget
    is used up.
    """
    one = silo(None, epsilon_budget=40.0, queries_per_day=200, silo="s0")
    answers = {}
    for number in range(30):
        roster = SiloRoster(
            run=f"run-{number}", delta=1e-6, members=(Member(name="s0", epsilon=1.0),)
        )
        inputs = queries(0, 40)
        inputs.view(np.uint32)[:, 3] ^= number % 3
        with ten_lines([one], roster) as coordinator:
            with contextlib.suppress(BudgetExceeded):  # the silo refuses everything
                coordinator.ask(Pool(POOL.dataset, inputs), np.arange(40))
            (query_round,) = coordinator.journal.rounds
            reply = query_round.replies["s0"]
            for query, label in zip(inputs, getattr(reply, "labels", ()), strict=False):
                assert answers.setdefault(query.tobytes(), int(label)) == int(label)
            assert coordinator.journal.submit(reply) is Answer.SAME
    assert spent(one) <= 40.0
    assert one.account.charges.total() == len(answers) <= 200
