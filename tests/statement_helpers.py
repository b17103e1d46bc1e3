"""Makes the statement of released labels, and checks one against its ledger."""

import dataclasses

from pate_tf.ledger import Ledger
from pate_tf.ledger.ledger import facts_beyond_the_ledger
from pate_tf.statement.check import check_statement
from pate_tf.statement.privacy_statement import PrivacyStatement


def state(folder, released, unit="record"):
    with Ledger.read(folder) as ledger:
        return PrivacyStatement.of(
            dataclasses.replace(released, cost=dataclasses.replace(released.cost, unit=unit)),
            dataset="digits",
            num_teachers=250,
            epsilon_ensemble=ledger.spent().epsilon,
            epsilon_ensemble_replaced=(
                ledger.replaced_owner_epsilon() if unit == "owner" else None
            ),
            epsilon_budget=ledger.epsilon_budget,
            budget_was_raised=ledger.was_raised,
            **facts_beyond_the_ledger(ledger),
            ledger_head=(ledger.head.sequence, ledger.head.digest),
            student_digest="cd" * 32,
            versions={"python": "3"},
        ).to_dict()


def check(folder, statement):
    with Ledger.read(folder) as ledger:
        check_statement(statement, ledger)
