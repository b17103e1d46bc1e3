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
    """Checks that a statement claims no more privacy than its ledgers show.

    A statement contains the digests of ledger rows. Each digest covers all earlier rows. For each
    kind of statement, the method `check` documents which facts these rows prove. All sentences of a
    statement follow from its numbers, and are checked, too.

    Args:
        fields: the JSON values of a statement.
        *stores: for labels, the ledger that was charged; for shared training and silos, the ledgers
            of some participants or silos. A ledger may have rows that were written after the
            statement.

    Returns:
        The statement as an object.

    Raises:
        ValueError: if a ledger does not contain the rows in the statement, if a ledger shows less
            privacy, or if the words of the statement do not match its numbers.
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
    # Earlier versions wrote the field `num_neighbours`. Unless its value was 0, the field also
    # changed the text.
    unknown = sorted(set(fields) - set(due) - {"num_neighbours"})
    require(not unknown, f"it has unknown fields: {', '.join(unknown)}")
    return statement


def verify(file: pathlib.Path, ledgers: Sequence[pathlib.Path] = ()) -> str:
    """Verifies a JSON statement, and the page next to it, against ledgers.

    Args:
        file: path of the JSON statement.
        ledgers: files or folders of ledgers. Default: the ledger of the run whose `released/`
            contains the file.

    Returns:
        A message with the names of the verified ledgers, and with the current cost of the source if
        it has increased.

    Raises:
        ValueError: if there is no ledger, if the statement does not match a ledger or its page, or
            if noise came from a seed.
        LedgerError: if a ledger is missing or damaged.
    """
    fields = artifacts.read_json(file)
    if not ledgers:
        runs = [path.parent for path in file.absolute().parents if path.name == artifacts.RELEASED]
        folders = [run / artifacts.SENSITIVE for run in runs]
        ledgers = [path for path in folders if (path / f"{Store.name}.sqlite3").exists()][:1]
        require(bool(ledgers), "its run has no ledger. Pass `ledgers` or `run` of the data holder.")
    with opened_stores(ledgers) as stores:
        statement = check_statement(fields, *stores)
        since = spent_since(statement, stores)
    is_same = has_its_page(file, statement) or not file.with_suffix(".md").exists()
    require(is_same, "its page does not match its JSON")
    require(statement.secure_noise, "its noise came from a seed: NOT PRIVATE")
    whose = "the ledger" if len(ledgers) == 1 else f"{len(ledgers)} ledgers"
    return "; ".join(filter(None, [f"agrees with {whose}", since]))


def has_its_page(file: pathlib.Path, statement: PrivacyStatement) -> bool:
    """Returns whether the Markdown file next to a JSON statement is this statement's page."""
    page = file.with_suffix(".md")
    return page.exists() and page.read_bytes() == statement.to_markdown().encode()


def spent_since(statement: PrivacyStatement, stores: Sequence[Store]) -> str:
    """Returns a text with the current total cost of the private data sources of a statement.

    The text is empty if the epsilon in the statement covers this cost. The cost is taken from the
    registry of this user, and does not depend on records.
    """
    names = ("epsilon", "epsilon_ledger", "epsilon_source")
    stated = max(getattr(statement, name, None) or 0.0 for name in names)
    for store in stores:
        facts = source_facts(store)
        epsilon = math.inf if facts["epsilon_source"] is None else facts["epsilon_source"]
        if facts["num_ledgers"] is not None and epsilon > stated * 1.001:  # pages round numbers
            delta = delta_text(facts["delta_source"] or store.delta)
            spent = f"have spent epsilon {epsilon_text(epsilon)} at delta {delta}"
            return f"by now the ledgers of this source ({facts['num_ledgers']}) {spent} in total"
    return ""


@contextlib.contextmanager
def opened_stores(paths: Sequence[pathlib.Path]) -> Iterator[list[Store]]:
    """Opens ledgers for reading. Each path is the file or the folder of a ledger.

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
    """Adds a ledger's privately released epsilon to the statement of a run.

    The ledger's epsilon and the last ledger row in the statement are updated, so that the statement
    covers this release. The copy of the statement in an exported student is not changed.

    Returns:
        The path of the statement's page; None if the run has no student, if another ledger was
        charged for the student, or if delta has changed since then.

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
            # These facts come from the registry at an earlier time, so they are not updated.
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
