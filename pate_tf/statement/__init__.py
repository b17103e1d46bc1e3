"""The privacy statement: verified against ledgers, and brought up to date."""

import contextlib
import dataclasses
import json
import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pate_tf.core import artifacts
from pate_tf.ledger import Head, Ledger
from pate_tf.ledger.journal import Store
from pate_tf.ledger.privacy_ledger import source_facts
from pate_tf.statement.labels_statement import LabelsStatement, ledger_facts, sanitised_of
from pate_tf.statement.privacy_statement import PrivacyStatement, delta_text, epsilon_text, require

JSON_FILE = "privacy_statement.json"
PAGE_FILE = "privacy_statement.md"


def check_statement(fields: Mapping[str, Any], *stores: Store) -> PrivacyStatement:
    """Checks that a statement says no less than the ledgers that it was made from.

    The rows that it quotes fix the history before them; the `check` of its kind says what follows
    from these, and what does not. From the numbers follow all sentences, which are checked, too.

    Args:
        fields: the JSON of a statement.
        *stores: of labels their ledger; of shared training some of the participants' ledgers; of
            silos some of theirs. They may have grown since.

    Returns:
        The statement.

    Raises:
        ValueError: if one does not hold what is quoted, or says something worse, or words and
            numbers disagree.
    """
    statement = PrivacyStatement.from_dict(fields)
    statement.check(stores)
    due = json.loads(json.dumps(statement.to_dict()))
    differing = sorted(name for name in due if fields.get(name) != due[name])
    version = statement.versions.get("pate_tf", "unknown")
    require(
        not differing,
        f"expected the words that its numbers give, got others in {', '.join(differing)} (it was "
        f"made with pate_tf {version})",
    )
    # Earlier versions wrote a number of neighbors of each query; the words show it unless it is 0.
    unknown = sorted(set(fields) - set(due) - {"num_neighbours"})
    require(not unknown, f"expected no other fields, got {', '.join(unknown)}")
    return statement


def verify(file: pathlib.Path, ledgers: Sequence[pathlib.Path] = ()) -> str:
    """Verifies a statement in JSON, and the page beside it, against ledgers.

    Args:
        file: the statement.
        ledgers: by file or folder. Default: that of the run whose `released/` holds the file.

    Returns:
        What it agrees with, and what the source has spent since.

    Raises:
        ValueError: if there is no ledger, one says otherwise, the page is another, or noise came
            from a seed.
        LedgerError: if a ledger is missing or damaged.
    """
    fields = artifacts.read_json(file)
    if not ledgers:
        runs = [path.parent for path in file.absolute().parents if path.name == artifacts.RELEASED]
        folders = [run / artifacts.SENSITIVE for run in runs]
        ledgers = [path for path in folders if (path / f"{Store.name}.sqlite3").exists()][:1]
        what = "`ledgers` or `run` to verify it against"
        require(bool(ledgers), f"expected {what}, got none in its run")
    with opened_stores(ledgers) as stores:
        statement = check_statement(fields, *stores)
        since = spent_since(statement, stores)
    is_same = has_its_page(file, statement) or not file.with_suffix(".md").exists()
    require(is_same, "expected the words of the JSON on its page, got others")
    require(statement.secure_noise, "expected secure noise, got noise from a seed: NOT PRIVATE")
    whose = "the ledger" if len(ledgers) == 1 else f"{len(ledgers)} ledgers"
    return "; ".join(filter(None, [f"agrees with {whose}", since]))


def has_its_page(file: pathlib.Path, statement: PrivacyStatement) -> bool:
    """Whether the page of a statement lies beside its JSON."""
    page = file.with_suffix(".md")
    return page.exists() and page.read_bytes() == statement.to_markdown().encode()


def spent_since(statement: PrivacyStatement, stores: Sequence[Store]) -> str:
    """Returns what sources have spent by now, in words; empty where a statement says as much.

    By this user's registry; nothing of it depends on records.
    """
    names = ("epsilon", "epsilon_ledger", "epsilon_source")
    stated = max(getattr(statement, name, None) or 0.0 for name in names)
    for store in stores:
        facts = source_facts(store)
        epsilon = math.inf if facts["epsilon_source"] is None else facts["epsilon_source"]
        if facts["num_ledgers"] is not None and epsilon > stated * 1.001:  # as pages show it
            delta = delta_text(facts["delta_source"] or store.delta)
            spent = f"have spent epsilon {epsilon_text(epsilon)} at delta {delta}"
            return f"today the source's ledgers ({facts['num_ledgers']}) together {spent}"
    return ""


@contextlib.contextmanager
def opened_stores(paths: Sequence[pathlib.Path]) -> Iterator[list[Store]]:
    """Opens ledgers, each named by its file or its folder, to look at them.

    Raises:
        LedgerError: if one is missing, damaged or was changed.
    """
    with contextlib.ExitStack() as stack:
        stores = []
        for path in paths:
            is_file = path.suffix == ".sqlite3"
            store = Store(path.parent if is_file else path, read_only=True)
            stack.callback(store.close)
            store.catch_up()
            stores.append(store)
        yield stores


def read_statement(run: artifacts.RunDirectory) -> LabelsStatement | None:
    """Returns the statement of a run's student; None if it has none.

    Raises:
        ValueError: if the statement is broken.
    """
    path = run.root / artifacts.RELEASED / JSON_FILE
    return LabelsStatement.from_dict(artifacts.read_json(path)) if path.exists() else None


def add_release(run: artifacts.RunDirectory) -> pathlib.Path | None:
    """Puts the privately released epsilon that a ledger stores onto the page of the run's student.

    What the ledger had spent, and the row that is quoted, become those of now, so that the page
    includes the release. The copy that travels with an exported student stays as it was made.

    Returns:
        The page; None if the run has no student, or one that another ledger was charged for, or
        whose delta has changed since.

    Raises:
        ValueError: if the statement is broken.
        LedgerError: if the ledger can't be read.
    """
    statement = read_statement(run)
    if statement is None:
        return None
    with Ledger.read(run.root / artifacts.SENSITIVE) as ledger:
        sequence, digest = statement.ledger_head
        is_of_run = ledger.holds(Head(sequence=sequence, digest=digest))
        if not is_of_run or ledger.delta != statement.delta:
            return None
        facts = ledger_facts(ledger, statement.unit)
        if facts["num_ledgers"] is None and statement.epsilon_source is not None:
            # What an earlier registry knew is not forgotten.
            names = ("source_name", "delta_source", "num_ledgers", "num_other_units")
            facts |= {name: getattr(statement, name) for name in names}
            facts["epsilon_source"] = max(statement.epsilon_source, facts["epsilon_ledger"])
        statement = dataclasses.replace(
            statement,
            sanitised=sanitised_of(ledger),
            secure_noise=statement.secure_noise and ledger.is_secure,
            **facts,
        )
    page = run.root / artifacts.RELEASED / PAGE_FILE
    artifacts.write_json(page.with_name(JSON_FILE), statement.to_dict())
    artifacts.write_text(page, statement.to_markdown())
    return page
