"""The page for the person who signs: statement, charges, accuracy and checks of one run.

And the checks that an audit of the run returns.
"""

import dataclasses
import datetime
import html
import pathlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from pate_tf.accounting.composition import Charge, smallest_epsilon
from pate_tf.audit.mechanism import PASSED, VIOLATION
from pate_tf.core import artifacts
from pate_tf.ledger.journal import DEBITS, Store, charge_of
from pate_tf.statement import JSON_FILE, opened_stores
from pate_tf.statement.privacy_statement import PrivacyStatement, epsilon_text

# Statements, and the folder of the models that each is of.
STATEMENTS: Final = {JSON_FILE: "student", "shared_model_statement.json": "shared_model"}
PAGE: Final = "privacy_report.html"
REPORTS: Final = ("student_report.json", "selective_sgd_report.json", "report.json")
STYLE: Final = """\
*{box-sizing:border-box}
body{margin:0 auto;padding:1rem;max-width:60rem;color:#1c2024;background:#fff;
font:16px/1.5 system-ui,sans-serif}
table{border-collapse:collapse;width:100%}
th,td{text-align:left;vertical-align:top;border-bottom:1px solid #d5d9df;overflow-wrap:anywhere}
@page{size:A4;margin:12mm}
@media print{body{font-size:9pt;line-height:1.3;padding:0;max-width:none}}"""


@dataclasses.dataclass(frozen=True)
class Check:
    """One check of an audit.

    Attributes:
        name: what was checked.
        outcome: "passed", "violation", "not checked" or "out of date".
        detail: what was seen, for the holder; of what was not checked why, for everybody.
        blind_spot: what the check can't see.
    """

    name: str
    outcome: str
    detail: str
    blind_spot: str = ""

    @property
    def remark(self) -> str:
        """Publishable: what the check can't see, or why it neither passed nor failed."""
        return self.blind_spot if self.outcome in (PASSED, VIOLATION) else self.detail


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunAudit:
    """SENSITIVE: what an audit of a run folder found.

    Attributes:
        folder: of the run.
        outcome: "passed", "violation", or "not checked" where no ledger lies in the folder.
        checks: all that was checked or could not be.
    """

    folder: str
    outcome: str
    checks: Sequence[Check]

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values."""
        return {"audit": "run", **dataclasses.asdict(self)}


def report_page(train_dir: str | pathlib.Path, *, audit: RunAudit | None = None) -> str:
    """Returns one self-contained, publishable HTML page about a run.

    >>> import pate_tf
    >>> page = pate_tf.audit.report_page(folder / "audited")
    >>> page.startswith("<!DOCTYPE html>")
    True

    Args:
        train_dir: the folder of a run with a published student, of silos or of shared training.
        audit: what `audit_run` returned. Its outcome stands on top; of its checks names, outcomes
            and blind spots, and why some were not checked.

    Raises:
        ValueError: if there is no statement in the folder, or it is broken.
        LedgerError: if the ledger is broken.
    """
    root = pathlib.Path(train_dir)
    places = [root / artifacts.RELEASED / name for name in STATEMENTS]
    stated = next((path for path in places if path.exists()), None)
    if stated is None:
        raise ValueError(
            f"train_dir: expected the folder of a run with a privacy statement, got {root}, which "
            f"has none; publish a student into it: `publish()` without a folder does, and "
            f"`pate student`"
        )
    statement = PrivacyStatement.from_dict(artifacts.read_json(stated))
    body = [] if audit is None else [f"<p><b>Audit: {audit.outcome.upper()}</b></p>"]
    body += _as_html(statement.to_markdown())
    if accuracy := _accuracy(root):
        body.append(f"<p>Accuracy on public samples: {accuracy}.</p>")
    if charges := list(_charges(root)):
        head = ("time", "row", "charge", "epsilon spent by then")
        body += ["<h2>What was charged, and when</h2>", *_table([head, *charges])]
    if audit is not None:
        rows = [("check", "outcome", "what it can't see, or why it was not checked")]
        rows += [(check.name, check.outcome, check.remark) for check in audit.checks]
        body += ["<h2>Checks of the run folder</h2>", *_table(rows)]
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    body.append(f"<p>Made on {today} by pate audit run.</p>")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f"<title>Privacy report</title>\n<style>\n{STYLE}\n</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _accuracy(root: pathlib.Path) -> str | None:
    for folder in (root / artifacts.SENSITIVE, root):
        for name in REPORTS:
            if (folder / name).exists():
                values = artifacts.read_json(folder / name)
                names = ("student_accuracy", "student_majority_accuracy")
                accuracy, majority = (values.get(name) for name in names)
                if isinstance(accuracy, float) and isinstance(majority, float):
                    return f"{accuracy:.1%}; the most frequent class: {majority:.1%}"
    return None


def ledger_folders(root: pathlib.Path) -> list[pathlib.Path]:
    """Returns where ledgers and accounts lie, below any folder of a run but `released/`."""
    paths = sorted(root.rglob(f"{Store.name}.sqlite3"))
    return [path.parent for path in paths if root / artifacts.RELEASED not in path.parents]


def _charges(root: pathlib.Path) -> Iterator[tuple[str, ...]]:
    """Yields for each charge its time, row, words and the epsilon spent by then."""
    for folder in ledger_folders(root)[:1]:
        with opened_stores([folder]) as (store,):
            charges: Counter[Charge] = Counter()
            for row in store.history():
                if row.kind in DEBITS:
                    charge, number = charge_of(row)
                    charges[charge] += number
                    epsilon = smallest_epsilon(charges, store.delta)[0]
                    spent = epsilon_text(epsilon)
                    yield row.time, str(row.sequence), charge.several(number), spent


# Markdown of statements as HTML: headings, tables, lists, paragraphs, bold and code.


def _as_html(markdown: str) -> Iterator[str]:
    for block in re.split(r"\n{2,}", markdown.strip()):
        lines = block.splitlines()
        if heading := re.fullmatch(r"(#{1,3}) (.*)", lines[0]):
            level = len(heading[1])
            yield f"<h{level}>{_inline(heading[2])}</h{level}>"
            lines = lines[1:]
        if lines and lines[0].startswith("|"):
            cells = [re.split(r"(?<!\\)\|", line.strip()[1:-1]) for line in lines]
            yield from _table([cells[0], *cells[2:]])
        elif lines and re.match(r"(-|\d+\.) ", lines[0]):
            mark = "ul" if lines[0].startswith("-") else "ol"
            items = re.split(r"\n(?:-|\d+\.) ", "\n" + "\n".join(lines))[1:]
            yield f"<{mark}>{''.join(f'<li>{_inline(item)}</li>' for item in items)}</{mark}>"
        elif lines:
            yield f"<p>{_inline(' '.join(lines))}</p>"


def _table(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield "<table>"
    for place, row in enumerate(rows):
        mark = "td" if place else "th"
        yield f"<tr>{''.join(f'<{mark}>{_inline(cell.strip())}</{mark}>' for cell in row)}</tr>"
    yield "</table>"


def _inline(text: str) -> str:
    escaped = html.escape(text)
    escaped = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", escaped)
    escaped = re.sub(r"(?<!\w)\*(\S.*?)\*(?!\w)", r"<i>\1</i>", escaped)
    return re.sub(r"`(.+?)`", r"<code>\1</code>", escaped)
