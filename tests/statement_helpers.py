"""Makes the statement of released labels, and checks one against its ledger."""

import dataclasses

from pate_tf.ledger import Ledger
from pate_tf.statement import check_statement
from pate_tf.statement.labels_statement import LabelsStatement


def state(folder, released, unit="record", **changes):
    released = dataclasses.replace(released, cost=dataclasses.replace(released.cost, unit=unit))
    facts = {"pool_name": "digits", "num_teachers": 250, "student_digest": "cd" * 32, **changes}
    with Ledger.read(folder) as ledger:
        return LabelsStatement.of(released, ledger, **facts).to_dict()


def check(folder, statement):
    with Ledger.read(folder) as ledger:
        check_statement(statement, ledger)
