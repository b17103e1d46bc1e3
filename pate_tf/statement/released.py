"""Puts a release of the votes onto the page of a run's student."""

import dataclasses
import pathlib
from typing import Any

from pate_tf import artifacts
from pate_tf.ledger import Head, Ledger
from pate_tf.releases.results import SanitisedEpsilon
from pate_tf.statement import page as statement_page
from pate_tf.statement.beyond_the_ledger import facts_beyond_the_ledger
from pate_tf.statement.check import parse_statement
from pate_tf.statement.facts import Sanitised
from pate_tf.statement.privacy_statement import PrivacyStatement


def read_statement(run: artifacts.RunDirectory) -> PrivacyStatement | None:
    """Returns the statement of a run's student; None if it has none.

    Raises:
      ValueError: if the statement is broken.
    """
    path = run.root / artifacts.RELEASED / "privacy_statement.json"
    return parse_statement(artifacts.read_json(path)) if path.exists() else None


def add_release(run: artifacts.RunDirectory, released: SanitisedEpsilon) -> pathlib.Path | None:
    """Puts a sanitised epsilon of a run's votes onto the page of the run's student.

    What the ensemble had spent, and the row that is quoted, become those of now, so that the page
    includes the release. The copy that travels with an exported student stays as it was made.

    Args:
      run: its ledger paid for the release.
      released: what was released.

    Returns:
      The page; None if the run has no student, or one that another ledger paid for, whose delta has
      changed since, or whose queries were chosen by earlier noisy answers.

    Raises:
      ValueError: if the statement is broken.
      LedgerError: if the ledger can't be read.
    """
    statement = read_statement(run)
    if statement is None or statement.is_adaptive:
        return None
    with Ledger.read(run.root / artifacts.SENSITIVE) as ledger:
        sequence, digest = statement.ledger_head
        if not ledger.holds(Head(sequence=sequence, digest=digest)):
            return None
        if ledger.delta != statement.delta:
            return None
        statement = dataclasses.replace(
            statement,
            sanitised=Sanitised.of(
                released,
                plan_was_fixed=(ledger.kept_release() or {}).get("plan_was_fixed", False),
            ),
            **_kept_facts(statement, ledger),
            epsilon_ensemble=ledger.spent().epsilon,
            epsilon_ensemble_replaced=(
                ledger.replaced_owner_epsilon() if statement.unit == "owner" else None
            ),
            epsilon_budget=ledger.epsilon_budget,
            budget_was_raised=ledger.was_raised,
            secure_noise=statement.secure_noise and ledger.is_secure,
            ledger_head=(ledger.head.sequence, ledger.head.digest),
        )
    values, page = (
        run.root / artifacts.RELEASED / f"privacy_statement.{kind}" for kind in ("json", "md")
    )
    artifacts.write_json(values, statement.to_dict())
    artifacts.write_text(page, statement_page.to_markdown(statement))
    return page


def _kept_facts(statement: PrivacyStatement, ledger: Ledger) -> dict[str, Any]:
    """Returns `facts_beyond_the_ledger`; what an earlier registry knew is not forgotten."""
    facts = facts_beyond_the_ledger(ledger)
    has_forgotten = facts["num_ledgers"] is None
    if has_forgotten and statement.epsilon_all_ensembles is not None:
        facts["epsilon_all_ensembles"] = max(
            statement.epsilon_all_ensembles, ledger.spent().epsilon
        )
        facts["delta_all_ensembles"] = statement.delta_all_ensembles
        facts["num_ledgers"] = statement.num_ledgers
        facts["records_are_known"] = statement.records_are_known
    return facts
