"""Holds a privacy statement against the ledger that it quotes, and adds a release to it."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

from pate_tf import artifacts
from pate_tf.accounting import statement_page
from pate_tf.accounting.mechanisms import mechanism_from_dict
from pate_tf.accounting.release import SanitisedEpsilon
from pate_tf.accounting.statement import PrivacyStatement, Sanitised
from pate_tf.ledger import Head, Ledger
from pate_tf.ledger.composition import paid_by, smallest_epsilon

ROUNDING = 1e-9


def check_statement(statement: Mapping[str, Any], ledger: Ledger) -> None:
    """Checks that a statement says no less than the ledger it was made from.

    The head that it quotes fixes every row before it, so nobody can sign a cheaper statement for a
    student that was paid for, neither by leaving rows out nor by changing them.

    Args:
      statement: the JSON of a `PrivacyStatement`.
      ledger: the ensemble's ledger, possibly grown since.

    Raises:
      ValueError: if the ledger does not hold what is quoted, or says something worse.
    """
    try:
        head = Head(sequence=int(statement["ledger_head"][0]), digest=statement["ledger_head"][1])
        named = [int(sequence) for sequence in statement["ledger_rows"]]
        delta = float(statement["delta"])
        said = {
            name: statement[name]
            for name in ("mechanism", "epsilon", "epsilon_ensemble", "secure_noise", "num_answered")
        }
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ValueError(f"statement: expected a privacy statement, got none: {error}") from error
    if not ledger.holds(head):
        raise ValueError(
            f"statement: expected row {head.sequence} of the ledger to have the digest that is "
            f"quoted; this ledger has another history"
        )
    rows = {row.sequence: row for row in ledger.history() if row.sequence <= head.sequence}
    debits = {sequence: row.details for sequence, row in rows.items() if row.kind == "debit"}
    if not named:
        raise ValueError("statement: expected the ledger rows that paid, got none")
    budgets = [row.details["delta"] for row in rows.values() if row.kind in ("opened", "budget")]
    if delta != budgets[-1]:
        raise ValueError(f"statement: expected the ledger's delta {budgets[-1]:g}, got {delta:g}")
    for sequence in named:
        if sequence not in debits:
            raise ValueError(
                f"statement: expected a payment at row {sequence}, the ledger has none"
            )
        if debits[sequence]["mechanism"] != said["mechanism"]:
            raise ValueError(f"statement: row {sequence} paid for another mechanism")
    spent, _ = smallest_epsilon(paid_by(rows.values()), delta)
    if not float(said["epsilon_ensemble"]) >= spent * (1.0 - ROUNDING):
        raise ValueError(
            f"statement: expected at least epsilon {spent:.6g} for all that the ensemble had "
            f"released, got {said['epsilon_ensemble']}"
        )
    paid = sum(debits[sequence]["num_queries"] for sequence in named)
    num_answered = int(said["num_answered"])
    if not num_answered >= 0:
        raise ValueError(f"statement: expected answers, got {num_answered}")
    least, _ = mechanism_from_dict(said["mechanism"]).data_independent_epsilon(
        num_queries=min(paid, num_answered), delta=delta
    )
    if not float(said["epsilon"]) >= least * (1.0 - ROUNDING):
        raise ValueError(
            f"statement: expected at least epsilon {least:.6g} for {num_answered} answers, got "
            f"{said['epsilon']}"
        )
    if not 0.0 < float(said["epsilon"]) <= float(said["epsilon_ensemble"]) * (1.0 + ROUNDING):
        raise ValueError(
            f"statement: expected an epsilon up to the ensemble's {said['epsilon_ensemble']}, got "
            f"{said['epsilon']}"
        )
    if said["secure_noise"] and not all(details["secure_noise"] for details in debits.values()):
        raise ValueError("statement: it claims secure noise, the ledger records seeded noise")


def add_release(run: artifacts.RunDirectory, released: SanitisedEpsilon) -> pathlib.Path | None:
    """Puts a sanitised epsilon of a run's votes onto the page of the run's student.

    The copy that travels with an exported student stays as it was made.

    Args:
      run: its ledger paid for the release.
      released: what was released.

    Returns:
      The page; None if the run has no student, or one that another ledger paid for.

    Raises:
      ValueError: if the statement is broken.
      LedgerError: if the ledger can't be read.
    """
    released_folder = run.root / artifacts.RELEASED
    values, page = (released_folder / f"privacy_statement.{kind}" for kind in ("json", "md"))
    if not values.exists():
        return None
    statement = PrivacyStatement.from_dict(artifacts.read_json(values))
    with Ledger.read(run.root / artifacts.SENSITIVE) as ledger:
        sequence, digest = statement.ledger_head
        if not ledger.holds(Head(sequence=sequence, digest=digest)):
            return None
    statement = dataclasses.replace(statement, sanitised=Sanitised.of(released))
    artifacts.write_json(values, statement.to_dict())
    artifacts.write_text(page, statement_page.to_markdown(statement))
    return page
