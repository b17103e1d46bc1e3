"""Writes the report of a run for the person who approves it, and the model card.

Both pages are publishable. They contain the privacy statement, the accuracy on public samples and
the charges of the ledger. Nothing in them is computed from private records.
"""

import pathlib
import re
import shlex
from collections import Counter
from typing import Any, Final

from pate_tf.accounting.composition import Charge, smallest_epsilon
from pate_tf.core import artifacts
from pate_tf.ledger.journal import Store
from pate_tf.ledger.ledger_file import DEBITS, charge_of
from pate_tf.statement import JSON_FILE, opened_stores, spent_since
from pate_tf.statement.privacy_statement import MARKDOWN, TEMPLATES, PrivacyStatement

PAGE: Final = "report.html"
MODEL_CARD: Final = "README.md"
# File name of each kind of statement, and folder of its model.
STATEMENTS: Final = {JSON_FILE: "student", "shared_model_statement.json": "shared_model"}
# Files with results about the model, in the run folder or in `sensitive/`.
REPORTS: Final = ("student_report.json", "selective_sgd_report.json", "report.json")
# Text that the report must not break across lines: a cost, a small number, a percentage or a date.
NUMBER: Final = re.compile(r"[εδ] = [\w.∞-]+|\d+e-\d+|\d[\d.,]* %|\d{4}-\d\d-\d\d")
RUN_IN_WORDS: Final = ", where RUN is the run folder."
ONLY_HOLDER: Final = "Only the holder can run them, with the ledger. Others trust the signature."
SIGNATURE: Final = "\nSigned"  # start of the last paragraph of a statement


def write_pages(train_dir: str | pathlib.Path, *, audit: Any = None) -> pathlib.Path:
    """Writes the report and the model card of a run to `released/`; returns the report's path.

    Args:
        train_dir: path of the run folder, see `report_page`.
        audit: result of an audit of the run, see `report_page`.

    Raises:
        ValueError: if the folder contains no statement, see `report_page`.
        LedgerError: if the ledger is damaged, see `report_page`.
    """
    released = pathlib.Path(train_dir) / artifacts.RELEASED
    page = report_page(train_dir, audit=audit)
    card = TEMPLATES.get_template("model_card.md").render(_contents(pathlib.Path(train_dir)))
    artifacts.write_text(released / PAGE, page)
    artifacts.write_text(released / MODEL_CARD, card)
    return released / PAGE


def report_page(train_dir: str | pathlib.Path, *, audit: Any = None) -> str:
    """Returns one self-contained, publishable HTML page about a run.

    >>> import pate_tf
    >>> page = pate_tf.audit.report_page(folder / "audited")
    >>> page.startswith("<!DOCTYPE html>")
    True

    Args:
        train_dir: folder of a run with a published student, of a run with silos, or of shared
            training.
        audit: result of `audit_run`. The page shows the outcome of the audit, and the name, the
            outcome and the limits of each check. Default: the page contains a remark that the run
            was not audited.

    Raises:
        ValueError: if the folder contains no statement, or a damaged statement.
        LedgerError: if the ledger is damaged.
    """
    root = pathlib.Path(train_dir).absolute()
    contents = _contents(root)
    place = shlex.quote(root.name)
    page = contents["statement"].to_markdown()
    page = page.replace("=RUN", f"={place}")
    page = page.replace(RUN_IN_WORDS, f", in the folder that contains `{place}`. {ONLY_HOLDER}")
    text, _, signature = page.rpartition(SIGNATURE)
    files = artifacts.file_digests(root / artifacts.RELEASED)
    with opened_stores(ledger_folders(root)[:1]) as stores:
        charges = [row for store in stores for row in _charges(store)]
        since = spent_since(contents["statement"], stores)
    return TEMPLATES.get_template("report.html").render(
        contents,
        audit=audit,
        charges=charges,
        since=since,
        files={name: files[name] for name in files if name not in (PAGE, MODEL_CARD)},
        folder=root.name,
        # The headings of the statement are one level below the heading of the report.
        text=NUMBER.sub(
            r'<span class="whole">\g<0></span>',
            MARKDOWN.render(re.sub(r"^#", "##", text, flags=re.MULTILINE)),
        ),
        signature=MARKDOWN.renderInline(f"{SIGNATURE}{signature}".strip()),
    )


def _contents(root: pathlib.Path) -> dict[str, Any]:
    """Returns the statement of the run, and its JSON results, which may be empty."""
    places = [root / artifacts.RELEASED / name for name in STATEMENTS]
    stated = next((path for path in places if path.exists()), None)
    if stated is None:
        raise ValueError(
            f"train_dir: {root} has no privacy statement. First publish a student, with pate "
            f"student or `publish()`."
        )
    statement = PrivacyStatement.from_dict(artifacts.read_json(stated))
    reports = [folder / name for folder in (root / artifacts.SENSITIVE, root) for name in REPORTS]
    values = next((artifacts.read_json(path) for path in reports if path.exists()), {})
    return {"statement": statement, "rows": statement.guarantees, "values": values}


def _charges(store: Store) -> list[tuple[str, int, str, float]]:
    """Returns the time, row, description and total epsilon so far of each charge in a ledger."""
    found = []
    charges: Counter[Charge] = Counter()
    for row in store.history():
        if row.kind in DEBITS:
            charge, number = charge_of(row)
            charges[charge] += number
            spent, _ = smallest_epsilon(charges, store.delta)
            found.append((row.time, row.sequence, charge.several(number), spent))
    return found


def ledger_folders(root: pathlib.Path) -> list[pathlib.Path]:
    """Returns the folders of ledgers and accounts in a run folder, except in `released/`."""
    paths = sorted(root.rglob(f"{Store.name}.sqlite3"))
    return [path.parent for path in paths if root / artifacts.RELEASED not in path.parents]
