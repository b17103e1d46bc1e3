"""Holds a privacy statement against the ledger that it quotes."""

import dataclasses
import json
import pathlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pate_tf.accounting.composition import smallest_epsilon
from pate_tf.accounting.group_privacy import replaced_owner_epsilon
from pate_tf.analysis.release_results import SanitisedEpsilon, sanitised_epsilon
from pate_tf.core import artifacts
from pate_tf.ledger import Head, Ledger, LedgerRow
from pate_tf.ledger.chain import DEBITS, batches_before, charge_of, charges_of
from pate_tf.ledger.ledger import facts_beyond_the_ledger
from pate_tf.statement import page as statement_page
from pate_tf.statement.privacy_statement import PrivacyStatement, Sanitised

ROUNDING = 1e-9


def check_statement(fields: Mapping[str, Any], ledger: Ledger) -> None:
    """Checks that a statement says no less than the ledger it was made from.

    The head that it quotes fixes every row before it. From those rows follow, and are checked: what
    the ensemble had spent, delta, budget and whether it was raised, whether an earlier ledger was
    lost, whether noise was secure, the sanitised epsilon with its confidence, worst case and plan,
    and for the rows that are named their mechanism and that they were answered. For owners so is
    what the ensemble had spent against replacing one. From the numbers follow all sentences.

    Which of the ensemble's labels the student learnt from is in no row. So its numbers of queries
    are only checked to be possible, and its own epsilon to be that of so many: somebody could state
    fewer of both. `epsilon_ensemble` bounds the cost of whatever the student learnt. An input that
    is asked twice is paid once: where such a student also shares its rows with others, its true
    epsilon is refused as too small. What other ensembles of the same records spent is in no row of
    this ledger either; the sum can't be less than it spent itself. Data set, unit, numbers of
    teachers and records, query strategy, digest of the student and versions are in no row.

    Args:
      fields: the JSON of a `PrivacyStatement`.
      ledger: the ensemble's ledger, possibly grown since.

    Raises:
      ValueError: if the ledger does not hold what is quoted, or says something worse, or words and
        numbers disagree.
    """
    statement = parse_statement(fields)
    sequence, digest = statement.ledger_head
    if not ledger.holds(Head(sequence=sequence, digest=digest)):
        raise ValueError(
            f"statement: expected row {sequence} of the ledger to have the digest that is quoted; "
            f"this ledger has another history"
        )
    rows = [row for row in ledger.history() if row.sequence <= sequence]
    _check_budget(statement, rows)
    _check_student(statement, rows)
    _check_ensemble(statement, rows)
    if statement.sanitised is not None:
        _check_sanitised(statement.sanitised, rows)
    _check_words(statement, fields)


def parse_statement(fields: Mapping[str, Any]) -> PrivacyStatement:
    """Returns the statement that JSON values are.

    Raises:
      ValueError: if they are none, or of other types.
    """
    statement = PrivacyStatement.from_dict(fields)
    try:
        (sequence, digest), sanitised = statement.ledger_head, statement.sanitised
        numbers = [statement.epsilon, statement.delta, statement.epsilon_ensemble]
        if statement.epsilon_ensemble_replaced is not None:
            numbers.append(statement.epsilon_ensemble_replaced)
        if statement.epsilon_all_ensembles is not None:
            numbers.append(statement.epsilon_all_ensembles)
        if sanitised is not None:
            numbers += dataclasses.astuple(sanitised)
        counts = (statement.num_records, statement.num_ledgers)
        whole = [one for one in counts if one is not None]
        whole += [sequence, *statement.ledger_rows, statement.num_queries, statement.num_answered]
        whole.append(statement.num_neighbours)
        is_typed = (
            all(isinstance(value, int | float) for value in numbers)
            and all(isinstance(value, int) for value in whole)
            and isinstance(digest, str)
            and isinstance(statement.choice, str | None)
            and isinstance(statement.versions, Mapping)
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"statement: expected a privacy statement, got none: {error}") from error
    if not is_typed:
        raise ValueError("statement: expected a privacy statement, got other types of values")
    return statement


def _check_budget(statement: PrivacyStatement, rows: Sequence[LedgerRow]) -> None:
    budgets = [row.details for row in rows if row.kind in ("opened", "budget")]
    was_reset = any(row.kind == "acknowledged" for row in rows)
    was_raised = any(details.get("raised", False) for details in budgets)
    for name, said, known in (
        ("delta", statement.delta, budgets[-1]["delta"]),
        ("epsilon_budget", statement.epsilon_budget, budgets[-1]["epsilon_budget"]),
        ("budget_was_raised", statement.budget_was_raised, was_raised),
        ("ledger_was_reset", statement.ledger_was_reset, was_reset),
    ):
        if said != known:
            raise ValueError(f"statement: expected the ledger's {name} {known}, got {said}")


def _check_student(statement: PrivacyStatement, rows: Sequence[LedgerRow]) -> None:
    named = set(statement.ledger_rows)
    if not named:
        raise ValueError("statement: expected the ledger rows that paid, got none")
    debits = {row.sequence: charge_of(row) for row in rows if row.kind in DEBITS}
    answers = {row.details["debit"]: row.details for row in rows if row.kind == "answers"}
    for sequence in sorted(named):
        if sequence not in debits:
            raise ValueError(
                f"statement: expected a payment at row {sequence}, the ledger has none"
            )
        if debits[sequence][0] != statement.mechanism:
            raise ValueError(f"statement: row {sequence} paid for another mechanism")
        if sequence not in answers:
            raise ValueError(f"statement: row {sequence} was paid for and never answered")
    asked, answered = statement.num_queries, statement.num_answered
    if not (asked >= len(named) and 0 <= answered <= asked):
        raise ValueError(
            f"statement: expected at least {len(named)} queries, one for each row, and no more "
            f"answers than queries, got {asked} and {answered}"
        )
    withheld = any(answers[row]["num_answered"] < answers[row]["num_queries"] for row in named)
    if answered != asked and not withheld:
        raise ValueError(
            f"statement: expected an answer to each of the {asked} queries, got {answered}: the "
            f"rows that paid withheld none"
        )
    paid = sum(debits[sequence][1] for sequence in named)
    number = min(paid, statement.number_charged)
    _check_before(statement, rows)
    counted = Counter({statement.mechanism: number}) + Counter(dict(statement.paid_before))
    least, _ = smallest_epsilon(counted, statement.delta)
    if not statement.epsilon >= least * (1.0 - ROUNDING):
        raise ValueError(
            f"statement: expected at least epsilon {least:.6g} for {asked} queries, got "
            f"{statement.epsilon}"
        )


def _check_before(statement: PrivacyStatement, rows: Sequence[LedgerRow]) -> None:
    """Checks that batches which led to these labels are counted with them."""
    named = set(statement.ledger_rows)
    led_here = batches_before(rows, statement.mechanism, last=max(named))
    led_here -= Counter({statement.mechanism: len(named)})
    if not Counter(dict(statement.paid_before)) >= led_here:
        raise ValueError(
            "statement: expected every batch that led to these labels among paid_before, got fewer"
        )


def _check_ensemble(statement: PrivacyStatement, rows: Sequence[LedgerRow]) -> None:
    spent, _ = smallest_epsilon(charges_of(rows), statement.delta)
    if not statement.epsilon_ensemble >= spent * (1.0 - ROUNDING):
        raise ValueError(
            f"statement: expected at least epsilon {spent:.6g} for all that the ensemble had "
            f"released, got {statement.epsilon_ensemble}"
        )
    _check_replaced(statement, rows)
    if not statement.epsilon <= statement.epsilon_ensemble * (1.0 + ROUNDING):
        raise ValueError(
            f"statement: expected an epsilon up to the ensemble's {statement.epsilon_ensemble}, "
            f"got {statement.epsilon}"
        )
    together = statement.epsilon_all_ensembles
    there, _ = smallest_epsilon(charges_of(rows), statement.delta_all_ensembles or statement.delta)
    if together is not None and not together >= there * (1.0 - ROUNDING):
        raise ValueError(
            f"statement: expected at least epsilon {there:.6g} for all ensembles of the records, "
            f"got {together}"
        )
    is_secure = all(row.details.get("secure_noise", True) for row in rows if row.kind in DEBITS)
    if statement.secure_noise and not is_secure:
        raise ValueError("statement: it claims secure noise, the ledger records seeded noise")


def _check_replaced(statement: PrivacyStatement, rows: Sequence[LedgerRow]) -> None:
    said = statement.epsilon_ensemble_replaced
    if said is None:
        return
    known = replaced_owner_epsilon(charges_of(rows), statement.delta)
    if not said >= known * (1.0 - ROUNDING):
        raise ValueError(
            f"statement: expected at least epsilon {known:.6g} against replacing an owner, for all "
            f"that the ensemble had released, got {said}"
        )


def _check_sanitised(said: Sanitised, rows: Sequence[LedgerRow]) -> None:
    draws = [row for row in rows if row.kind == "released"]
    if not draws:
        raise ValueError("statement: expected no sanitised epsilon, the ledger kept no release")
    last = draws[-1]
    paid = charges_of(row for row in rows if row.sequence <= last.sequence)
    found = sanitised_epsilon(
        last.details["kept"],
        delta=said.delta,
        paid_epsilon=smallest_epsilon(paid, said.delta)[0],
    )
    for name in ("epsilon", "worst_case_epsilon"):
        known, given = getattr(found, name), getattr(said, name)
        if not given >= known * (1.0 - ROUNDING):
            raise ValueError(
                f"statement: expected a sanitised {name} of at least {known:.6g}, got {given}"
            )
    if said.plan_was_fixed and not last.details["kept"].get("plan_was_fixed", False):
        raise ValueError(
            "statement: it claims a plan from before there were votes, the ledger records none"
        )
    if said.delta != found.delta:
        raise ValueError(
            f"statement: expected a sanitised delta of {found.delta:g}, got {said.delta:g}"
        )
    if not said.confidence <= found.confidence + ROUNDING:
        raise ValueError(
            f"statement: expected a confidence up to {found.confidence:.6g}, got {said.confidence}"
        )


def _check_words(statement: PrivacyStatement, fields: Mapping[str, Any]) -> None:
    due = json.loads(json.dumps(statement.to_dict()))
    if differing := sorted(name for name in due if fields.get(name) != due[name]):
        raise ValueError(
            f"statement: expected the words that its numbers give, got others in "
            f"{', '.join(differing)} (it was made with pate_tf "
            f"{statement.versions.get('pate_tf', 'unknown')})"
        )
    if unknown := sorted(set(fields) - set(due)):
        raise ValueError(f"statement: expected no other fields, got {', '.join(unknown)}")


# Puts a release of the votes onto the page of a run's student.


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
                plan_was_fixed=(ledger.stored_release() or {}).get("plan_was_fixed", False),
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
