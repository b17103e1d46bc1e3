"""Verifies privacy statements against ledgers, and updates them."""

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
    """Checks that a statement claims no more privacy than the ledgers that it was made from show.

    The quoted rows fix the earlier history. The method `check` of each kind of statement documents
    what this history proves. All sentences follow from the numbers, and are checked, too.

    Args:
        fields: the JSON of a statement.
        *stores: for labels, their ledger; for shared training and silos, some of the ledgers of
            participants or silos. The ledgers can have more rows than the statement covers.

    Returns:
        The statement.

    Raises:
        ValueError: if a ledger does not contain the quoted rows, or shows less privacy, or words
            and numbers disagree.
    """
    statement = PrivacyStatement.from_dict(fields)
    statement.check(stores)
    due = json.loads(json.dumps(statement.to_dict()))
    differing = sorted(name for name in due if fields.get(name) != due[name])
    version = statement.versions.get("pate_tf", "unknown")
    require(
        not differing,
        f"its words do not match its numbers in {', '.join(differing)} (pate_tf {version})",
    )
    # Earlier versions wrote `num_neighbours`, which also changed the words unless it was 0.
    unknown = sorted(set(fields) - set(due) - {"num_neighbours"})
    require(not unknown, f"it has unknown fields: {', '.join(unknown)}")
    return statement


def verify(file: pathlib.Path, ledgers: Sequence[pathlib.Path] = ()) -> str:
    """Verifies a statement in JSON, and the page next to it, against ledgers.

    Args:
        file: the statement.
        ledgers: files or folders of ledgers. Default: the ledger of the run whose `released/`
            contains the file.

    Returns:
        A message with the ledgers that agree, and the current cost of the source if it is larger.

    Raises:
        ValueError: if there is no ledger, the statement disagrees with a ledger or its page, or
            noise came from a seed.
        LedgerError: if a ledger is missing or damaged.
    """
    fields = artifacts.read_json(file)
    if not ledgers:
        runs = [path.parent for path in file.absolute().parents if path.name == artifacts.RELEASED]
        folders = [run / artifacts.SENSITIVE for run in runs]
        ledgers = [path for path in folders if (path / f"{Store.name}.sqlite3").exists()][:1]
        require(bool(ledgers), "its run has no ledger; pass `ledgers` or `run`")
    with opened_stores(ledgers) as stores:
        statement = check_statement(fields, *stores)
        since = spent_since(statement, stores)
    is_same = has_its_page(file, statement) or not file.with_suffix(".md").exists()
    require(is_same, "its page does not match its JSON")
    require(statement.secure_noise, "its noise came from a seed: NOT PRIVATE")
    whose = "the ledger" if len(ledgers) == 1 else f"{len(ledgers)} ledgers"
    return "; ".join(filter(None, [f"agrees with {whose}", since]))


def has_its_page(file: pathlib.Path, statement: PrivacyStatement) -> bool:
    """Whether the matching page is next to the JSON of a statement."""
    page = file.with_suffix(".md")
    return page.exists() and page.read_bytes() == statement.to_markdown().encode()


def spent_since(statement: PrivacyStatement, stores: Sequence[Store]) -> str:
    """Returns the current cost of the sources as text; empty if the statement covers this cost.

    The cost is taken from the registry of this user, and does not depend on records.
    """
    names = ("epsilon", "epsilon_ledger", "epsilon_source")
    stated = max(getattr(statement, name, None) or 0.0 for name in names)
    for store in stores:
        facts = source_facts(store)
        epsilon = math.inf if facts["epsilon_source"] is None else facts["epsilon_source"]
        if facts["num_ledgers"] is not None and epsilon > stated * 1.001:  # pages round epsilon
            delta = delta_text(facts["delta_source"] or store.delta)
            spent = f"have spent epsilon {epsilon_text(epsilon)} at delta {delta}"
            return f"by now the ledgers of this source ({facts['num_ledgers']}) {spent} in total"
    return ""


@contextlib.contextmanager
def opened_stores(paths: Sequence[pathlib.Path]) -> Iterator[list[Store]]:
    """Opens ledgers read-only, each given by its file or folder.

    Raises:
        LedgerError: if a ledger is missing, damaged or was changed.
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
    """Returns the statement of a run's student; None if there is no statement.

    Raises:
        ValueError: if the statement is broken.
    """
    path = run.root / artifacts.RELEASED / JSON_FILE
    return LabelsStatement.from_dict(artifacts.read_json(path)) if path.exists() else None


def add_release(run: artifacts.RunDirectory) -> pathlib.Path | None:
    """Adds the privately released epsilon of a ledger to the statement of the run's student.

    The epsilon of the ledger and the quoted row are updated, so that the statement covers this
    release. The copy of the statement in an exported student does not change.

    Returns:
        The page; None if the run has no student, if another ledger was charged for it, or if delta
        has changed since.

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
            # Keep the facts from an earlier registry.
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
