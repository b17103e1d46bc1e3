"""The page for the person who signs: statement, charges, accuracy and audits of one run."""

import contextlib
import datetime
import html
import math
import pathlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from pate_tf.accounting.charge import Charge, rounded_up
from pate_tf.accounting.composition import smallest_epsilon
from pate_tf.core import artifacts
from pate_tf.ledger.journal import DEBITS, Store, charge_of
from pate_tf.statement.check import JSON_FILE
from pate_tf.statement.privacy_statement import PrivacyStatement

# Statements, and the folder of the models that each is of.
STATEMENTS: Final = {JSON_FILE: "student", "shared_model_statement.json": "shared_model"}
PAGE: Final = "privacy_report.html"
REPORTS: Final = ("student_report.json", "selective_sgd_report.json", "report.json")
AUDIT_ROW: Final = re.compile(
    r'class="audit"><td>(.*?)</td><td>(passed|violation|no power)</td><td>(\d+)</td><td>(\d+)</td>'
)
MADE_ON: Final = re.compile(r'<time datetime="([-\d]+)">')
STYLE: Final = """\
*{box-sizing:border-box}
body{margin:0 auto;padding:1rem;max-width:60rem;color:#1c2024;background:#fff;
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
h1{font-size:1.5rem;line-height:1.2}h2{font-size:1.1rem;border-bottom:1px solid #d5d9df}
table{border-collapse:collapse;width:100%;font-size:.92rem}
th,td{text-align:left;vertical-align:top;padding:.3rem .5rem .3rem 0;
border-bottom:1px solid #d5d9df;overflow-wrap:anywhere}
ul{padding-left:1.2rem}
@page{size:A4;margin:12mm}
@media print{body{font-size:9pt;line-height:1.3;padding:0;max-width:none}table{font-size:8pt}
th,td{padding:.1rem .3rem .1rem 0}h1{font-size:14pt}h2{font-size:10.5pt;margin:.6rem 0 .2rem}
tr{break-inside:avoid}}"""

Audits = Sequence[tuple[str, str, int, int]]  # audit, outcome, checks, violations


def report_page(
    train_dir: str | pathlib.Path, *, made_on: str | None = None, audits: Audits | None = None
) -> str:
    """Returns one self-contained, publishable HTML page about a run.

    >>> import pate_tf
    >>> page = pate_tf.audit.report_page(folder / "audited")
    >>> page.startswith("<!DOCTYPE html>")
    True

    Args:
        train_dir: the folder of a run with a published student, of silos or of shared training.
        made_on: ISO date of the page. Default: today.
        audits: rows of the table of audits. Default: those that the folder holds.

    Raises:
        ValueError: if there is no statement in the folder, it is broken, or an audit of the run
            found a violation.
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
    body = list(_as_html(statement.to_markdown()))
    accuracy = _accuracy(root)
    if accuracy is not None:
        body.append(f"<p>Accuracy on public samples: {accuracy:.1%}.</p>")
    if charges := spending(root):
        head, rows = ("time", "row", "charge", "epsilon spent by then"), []
        for one in charges:
            epsilon = rounded_up(one["epsilon"]) if math.isfinite(one["epsilon"]) else "infinite"
            rows.append((one["time"], str(one["row"]), one["charge"], epsilon))
        body += ["<h2>What was charged, and when</h2>", *_table((head, *rows))]
    body.append("<h2>Audits</h2>")
    audits = _stored_audits(root) if audits is None else audits
    if audits:
        body.append(
            "<table><tr><th>audit</th><th>outcome</th><th>checks</th><th>violated</th></tr>"
        )
        body += [
            f'<tr class="audit"><td>{html.escape(name)}</td><td>{outcome}</td><td>{number}</td>'
            f"<td>{failed}</td></tr>"
            for name, outcome, number, failed in audits
        ]
        body.append("</table>")
    else:
        body.append("<p>None was run: <code>pate audit run --train_dir=...</code></p>")
    made_on = made_on or datetime.datetime.now(datetime.UTC).date().isoformat()
    body.append(f'<p>Made on <time datetime="{made_on}">{made_on}</time> by pate report.</p>')
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Privacy report</title>\n<style>\n{STYLE}\n</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def as_made(page: str) -> dict[str, Any]:
    """Returns the date and audits that a page says, for `report_page` to make it again."""
    date = MADE_ON.search(page)
    rows = [(html.unescape(one), two, int(a), int(b)) for one, two, a, b in AUDIT_ROW.findall(page)]
    return {"made_on": None if date is None else date[1], "audits": rows}


def _accuracy(root: pathlib.Path) -> float | None:
    for folder in (root / artifacts.SENSITIVE, root):
        for name in REPORTS:
            if (folder / name).exists():
                accuracy = artifacts.read_json(folder / name).get("student_accuracy")
                return accuracy if isinstance(accuracy, float) else None
    return None


def _stored_audits(root: pathlib.Path) -> Audits:
    rows = []
    for path in sorted((root / artifacts.SENSITIVE / "audit").glob("*.json")):
        found = artifacts.read_json(path)
        failed = sum(check["outcome"] == "violation" for check in found["checks"])
        if failed and found["audit"] == "run":  # it may follow from private records
            raise ValueError(
                f"audit: expected no violation in {path}, as this page may be published, got some; "
                f"mend what it names and run `pate audit run` again"
            )
        name = f"{found['audit']} {found.get('summary', '')}".strip()
        rows.append((name, found["outcome"], len(found["checks"]), failed))
    return rows


def ledger_folders(root: pathlib.Path) -> list[pathlib.Path]:
    """Returns where ledgers and accounts lie, below any folder of a run but `released/`."""
    paths = sorted(root.rglob(f"{Store.name}.sqlite3"))
    return [path.parent for path in paths if root / artifacts.RELEASED not in path.parents]


@contextlib.contextmanager
def read_store(folder: pathlib.Path) -> Iterator[Store]:
    """Opens a ledger or account to look at it; LedgerError if it is broken."""
    with contextlib.closing(Store(folder, read_only=True)) as store:
        store.catch_up()
        yield store


def spending(root: pathlib.Path) -> list[dict[str, Any]]:
    """Returns for each charge its row, time, words and the epsilon spent by then, at its delta."""
    found: list[dict[str, Any]] = []
    for folder in ledger_folders(root)[:1]:
        with read_store(folder) as store:
            charges: Counter[Charge] = Counter()
            for row in store.history():
                if row.kind in DEBITS:
                    charge, number = charge_of(row)
                    charges[charge] += number
                    epsilon = smallest_epsilon(charges, store.delta)[0]
                    words = {
                        "row": row.sequence,
                        "time": row.time,
                        "charge": charge.several(number),
                    }
                    found.append({**words, "epsilon": epsilon})
    return found


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
