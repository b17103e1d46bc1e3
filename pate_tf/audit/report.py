"""The page for the person who signs: statement, releases, budget, accuracy, audits of one run."""

import datetime
import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from pate_tf.accounting.charge import rounded_up
from pate_tf.audit import page
from pate_tf.audit.page import Line, escaped
from pate_tf.audit.run import spending
from pate_tf.core import artifacts
from pate_tf.statement.check import JSON_FILE
from pate_tf.statement.privacy_statement import (
    Guarantee,
    PrivacyStatement,
    largest_share_of_right_guesses,
)

STATEMENTS: Final = (JSON_FILE, "shared_model_statement.json")
REPORTS: Final = ("student_report.json", "selective_sgd_report.json")
AUDITS: Final = "audit"
SHOWN_ROWS: Final = 12  # of the timeline; so many fit on two sheets
LIMIT: Final = 10.0  # of the epsilons of the curve, unless the run's is larger


def report_page(train_dir: str | pathlib.Path, *, sensitive: bool = False) -> str:
    """Returns one self-contained HTML page about a run, which prints to two sheets.

    >>> import pate_tf
    >>> page = pate_tf.audit.report_page(folder / "audited")
    >>> page.startswith("<!DOCTYPE html>") and "SENSITIVE" not in page
    True

    Args:
        train_dir: the folder of a run with a published student, of silos or of shared training.
        sensitive: whether what may not be published is added, for use inside. Default: no.

    Raises:
        ValueError: if there is no statement in the folder, or it is broken.
    """
    root = pathlib.Path(train_dir)
    statement = _statement(root)
    folders = [root / artifacts.SENSITIVE, root]
    spent = spending(root)
    report = next(
        (
            artifacts.read_json(one / name)
            for one in (*folders, root / artifacts.RELEASED)
            for name in REPORTS
            if (one / name).exists()
        ),
        {},
    )
    audits = [
        artifacts.read_json(path)
        for path in sorted((root / artifacts.SENSITIVE / AUDITS).glob("*.json"))
    ]
    body = list(_head(statement, sensitive))
    body.append(page.facts(_facts(statement, report)))
    body.append(f"<p>{escaped(statement.introduction())}</p>")
    body.append(f"<p><b>Protected:</b> {escaped(statement.protected)}.</p>")
    body += ["<h2>What is promised</h2>", _promises(statement)]
    body += [
        '<div class="plots">',
        _guesses(statement),
        page.spending_plot(spent) if spent else "",
        "</div>",
    ]
    body += _timeline(spent)
    body += ["<h2>The model and how it was made</h2>", _rows(statement.facts())]
    body += _audits(audits, sensitive=sensitive)
    for title, sentences in (
        ("What was not released", statement.not_released()),
        ("What was assumed", statement.assumptions()),
        ("What is not covered", statement.not_covered()),
    ):
        body += [f"<h2>{title}</h2>", _list(sentences)]
    if sensitive:
        body += _inside(root, report)
    body += ["<h2>How to check it</h2>", _rows(_evidence(statement))]
    body.append(
        f'<p class="small soft">Page made on {datetime.date.today().isoformat()} by '
        f"pate report.</p>"
    )
    return page.document(f"Privacy report: {statement.dataset}", body)


def _statement(root: pathlib.Path) -> PrivacyStatement:
    for folder in (root / artifacts.RELEASED, root):
        for name in STATEMENTS:
            if (folder / name).exists():
                return PrivacyStatement.from_dict(artifacts.read_json(folder / name))
    raise ValueError(
        f"train_dir: expected the folder of a run with a privacy statement, got {root}, which has "
        f"none; publish a student into it: `publish()` without a folder does, and `pate student`"
    )


def _head(statement: PrivacyStatement, sensitive: bool) -> Iterator[str]:
    yield f"<h1>Privacy report: {escaped(statement.dataset)}</h1>"
    if sensitive:
        text = "SENSITIVE: for the holder of the private data. Do not publish."
        yield f'<p class="sensitive">{text}</p>'
    for warning in statement.warnings():
        yield f'<p class="sensitive">{escaped(warning)}</p>'


def _stated(statement: PrivacyStatement) -> list[Guarantee]:
    return [
        one
        for one in statement.guarantees
        if one.epsilon is not None and math.isfinite(one.epsilon) and one.bounds_guesses
    ]


def _facts(statement: PrivacyStatement, report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    stated = _stated(statement)
    if stated:
        yield f"epsilon at delta {stated[0].delta or 0.0:g}", rounded_up(stated[0].epsilon or 0.0)
        most = max(one.epsilon or 0.0 for one in stated if one.kind == stated[0].kind)
        if len(stated) > 1:
            yield "epsilon of all that is known", rounded_up(most)
    budget = getattr(statement, "epsilon_budget", None)
    spent = getattr(statement, "epsilon_ensemble", None)
    if spent is not None:
        yield "epsilon spent", f"{rounded_up(spent)} of {budget:g}" if budget else rounded_up(spent)
        if budget:
            yield "epsilon left", f"{max(math.floor((budget - spent) * 1e3) / 1e3, 0.0):g}"
    accuracy = report.get("student_accuracy")
    if accuracy is not None:
        interval = report.get("student_accuracy_interval")
        between = f" ({interval[0]:.1%} to {interval[1]:.1%})" if interval else ""
        yield "accuracy on public samples", f"{accuracy:.1%}{between}"
    if report.get("constant_answer_accuracy") is not None:
        yield "majority-class baseline", f"{report['constant_answer_accuracy']:.1%}"


def _promises(statement: PrivacyStatement) -> str:
    return page.table(
        ("covers", "epsilon", "delta", "right guesses at most", "to whom"),
        (
            (
                escaped(one.covers or one.kind),
                f"<b>{rounded_up(one.epsilon or 0.0)}</b>",
                f"{one.delta or 0.0:g}",
                f"{min(math.ceil(1e4 * _guess(one)) / 1e2, 100.0):g} %",
                escaped(one.to_whom),
            )
            for one in _stated(statement)
        ),
    )


def _guess(one: Guarantee) -> float:
    return largest_share_of_right_guesses(one.epsilon or 0.0, one.delta or 0.0)


def _guesses(statement: PrivacyStatement) -> str:
    stated = _stated(statement)
    if not stated:
        return ""
    own = stated[0]
    limit = max(LIMIT, math.ceil(1.2 * (own.epsilon or 0.0)))
    delta = own.delta or 0.0
    curve = [
        (float(one), 100.0 * largest_share_of_right_guesses(float(one), delta))
        for one in np.linspace(0.0, limit, 81)
    ]
    return page.plot(
        [
            Line(label="right guesses at most", points=curve),
            Line(
                label="this run", points=[(own.epsilon or 0.0, 100.0 * _guess(own))], is_point=True
            ),
        ],
        title=f"How often somebody who knows all but one {_one(statement)} can guess it right "
        f"between two candidates, in per cent; the dot is this run. Without the release: 50",
        x_label="epsilon",
        y_label="per cent",
        top=100.0,
    )


def _one(statement: PrivacyStatement) -> str:
    return "owner" if getattr(statement, "unit", "record") == "owner" else "record"


def _timeline(spent: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not spent:
        return
    yield "<h2>What was released, and when</h2>"
    shown = [*spent[: SHOWN_ROWS - 1], spent[-1]] if len(spent) > SHOWN_ROWS else list(spent)
    yield page.table(
        ("charged", "what was charged", "epsilon spent by then"),
        (
            (
                f"{escaped(one['time'][:16].replace('T', ' '))} UTC, row {one['row']}",
                escaped(one["charge"]),
                rounded_up(one["epsilon"]) if math.isfinite(one["epsilon"]) else "infinite",
            )
            for one in shown
        ),
    )
    if len(spent) > len(shown):
        yield f'<p class="soft small">{len(spent) - len(shown)} rows between are left out.</p>'


def _audits(audits: Sequence[Mapping[str, Any]], *, sensitive: bool) -> Iterator[str]:
    yield "<h2>Audits</h2>"
    if not audits:
        yield "<p>None was run: <code>pate audit run --train_dir=...</code> checks this run.</p>"
        return
    rows = []
    for one in audits:
        number = len(one["checks"])
        failed = sum(check["outcome"] == "violation" for check in one["checks"])
        bound = "" if one.get("claimed") is None else f"{one['claimed']:.4g}"
        found = "" if one.get("lower_bound") is None else f"{one['lower_bound']:.4g}"
        rows.append(
            (
                escaped(f"{one['audit']} {one.get('summary', '')}"),
                page.outcome(one["outcome"]),
                f"{number} checks, {failed} violated",
                bound,
                found,
            )
        )
    yield page.table(("audit", "outcome", "", "claimed epsilon", "found, at least"), rows)
    if sensitive:
        for one in audits:
            yield f"<h3>{escaped(one['audit'])}</h3>"
            yield page.checks_table(one["checks"])


def _inside(root: pathlib.Path, report: Mapping[str, Any]) -> Iterator[str]:
    """Yields what may not be published."""
    rows = [(name, report[name]) for name in report.get("sensitive", ()) if report.get(name)]
    teachers = root / artifacts.SENSITIVE / "teachers_report.json"
    if teachers.exists():
        values = artifacts.read_json(teachers)
        rows += [
            (name, values[name])
            for name in ("teacher_accuracy_mean", "teacher_accuracy_lowest", "teachers_constant")
            if values.get(name) is not None
        ]
    if rows:
        yield "<h2>For use inside alone</h2>"
        yield page.table(
            ("", "sensitive"),
            (
                (
                    escaped(name.replace("_", " ")),
                    f"{value:.4g}" if isinstance(value, float) else escaped(value),
                )
                for name, value in rows
            ),
        )


def _rows(pairs: Iterator[tuple[str, str]]) -> str:
    return page.table((), ((escaped(name), escaped(value)) for name, value in pairs))


def _list(sentences: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escaped(one)}</li>" for one in sentences) + "</ul>"


def _evidence(statement: PrivacyStatement) -> Iterator[tuple[str, str]]:
    yield from statement.evidence()
    if statement.student_digest:
        yield "digest of the model's weights", statement.student_digest
    yield "made with", ", ".join(f"{name} {one}" for name, one in statement.versions.items())
