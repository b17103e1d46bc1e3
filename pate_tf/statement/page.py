"""The privacy statement as one page for people who sign such things."""

from collections.abc import Iterator, Sequence
from math import exp, isfinite

from pate_tf.accounting.charge import rounded_up
from pate_tf.queries.strategies import STRATEGIES
from pate_tf.statement import words
from pate_tf.statement.privacy_statement import (
    Guarantee,
    PrivacyStatement,
    largest_share_of_right_guesses,
)

EXAMPLES = (0.1, 1.0, 3.0, 6.0)


def to_markdown(statement: PrivacyStatement) -> str:
    """Returns the page; all of it may be published."""
    lines, number = ["# Privacy statement", ""], statement.num_neighbours
    if not statement.secure_noise:
        lines += [words.NOT_PRIVATE, ""]
    if statement.ledger_was_reset:
        lines += [f"**{statement.one_ledger[0]}**", ""]
    if statement.is_delta_large:
        lines += [words.LARGE_DELTA.format(product=statement.delta_times_records), ""]
    by_sums = statement.mechanism.adds_records
    told = [
        ("queries asked / answered", f"{statement.num_queries:,} / {statement.num_answered:,}"),
        ("which queries", STRATEGIES[statement.query_strategy].words),
    ]
    lines += [
        f"A classifier (the *student*) learnt from {statement.num_answered:,} "
        f"{statement.mechanism.labels_in_words}{f' of `{statement.dataset}`' if by_sums else ''}. "
        f"{'' if by_sums else words.VOTED.format(statement.num_teachers, statement.dataset)}"
        f"{statement.mechanism.in_words()}",
        "",
        *_table(
            ("", ""),
            ("protected", words.PROTECTED[statement.unit]),
            ("mechanism", _mechanism(statement)),
            *[("counted too", charge.several(number)) for charge, number in statement.paid_before],
            *([("public inputs labelled", f"{statement.num_answered:,}")] if by_sums else told),
            *([("each asked with", words.NEIGHBOURS.format(number=number))] if number else []),
            *([("how chosen", _cell(statement.choice))] if statement.choice else []),
            ("budget of the ensemble", _budget(statement)),
        ),
        "## What is promised, and to whom",
        "",
        *_table(
            ("kind", "covers", "epsilon", "delta", "to whom"),
            *(_numbers(one) for one in statement.guarantees if one.epsilon is not None),
        ),
        *_promises(statement),
        words.SEVERAL.format(units="records" if statement.unit == "record" else "owners"),
        "",
        *_table(
            (f"{statement.unit}s of one person", "epsilon"),
            *(
                (str(number), f"**{rounded_up(epsilon)}**" if isfinite(epsilon) else "infinite")
                for number, epsilon in statement.several.items()
            ),
        ),
        "## What an epsilon means",
        "",
        words.in_words(words.GUESSING, statement.unit),
        "",
        *_table(("epsilon", "right guesses", "exp(epsilon)"), *_meanings(statement)),
        "## What was assumed",
        "",
        *_list(
            words.assumptions(
                statement.unit,
                statement.query_strategy,
                secure_noise=statement.secure_noise,
                by_sums=by_sums,
            )
        ),
        "## What is not covered",
        "",
        *_list(statement.not_covered),
        "## One ensemble, one ledger",
        "",
        *_list(statement.one_ledger),
        "## How to check it",
        "",
        *_table(
            ("", ""),
            ("paid by ledger rows", ", ".join(map(str, statement.ledger_rows)) or "none"),
            (f"ledger at row {statement.ledger_head[0]}", f"`{statement.ledger_head[1]}`"),
            ("digest of the student's weights", f"`{statement.student_digest}`"),
            ("made with", ", ".join(f"{k} {v}" for k, v in statement.versions.items())),
        ),
    ]
    return "\n".join(lines)


def _mechanism(statement: PrivacyStatement) -> str:
    fields = statement.mechanism.to_dict().items()
    parameters = [f"{name} = {value}" for name, value in fields if name != "name"]
    return f"`{statement.mechanism.name}` ({', '.join(parameters)})"


def _cell(text: str) -> str:
    """Returns a text that stays within a cell of a table."""
    return " ".join(text.replace("|", "/").split())


def _budget(statement: PrivacyStatement) -> str:
    if statement.epsilon_budget is None:
        return "none was set"
    raised = ", raised after its first use" if statement.budget_was_raised else ""
    return f"epsilon {statement.epsilon_budget:g} at delta {statement.delta:g}{raised}"


def _numbers(one: Guarantee) -> tuple[str, ...]:
    epsilon = f"**{rounded_up(one.epsilon)}**" if one.epsilon is not None else ""
    return one.kind, one.covers, epsilon, f"{one.delta:g}", one.to_whom


def _promises(statement: PrivacyStatement) -> list[str]:
    by_kind = {one.kind: one.promises for one in statement.guarantees}
    return _list([f"**{kind}**: {promise}" for kind, promise in by_kind.items()])


def _meanings(statement: PrivacyStatement) -> Iterator[tuple[str, ...]]:
    rows = [(epsilon, statement.delta, f"{epsilon:g}") for epsilon in EXAMPLES]
    for one in statement.guarantees if statement.secure_noise else ():
        # A sanitised epsilon holds for these votes alone, and so bounds no guess about them.
        if one.epsilon is not None and one.delta is not None and one.kind != "sanitised":
            rows.append((one.epsilon, one.delta, f"**{rounded_up(one.epsilon)}**: {one.covers}"))
    for epsilon, delta, name in sorted(rows):
        share = 100.0 * largest_share_of_right_guesses(epsilon, delta)
        yield name, f"{rounded_up(share)} %", f"{exp(min(epsilon, 700.0)):.3g}"


def _list(sentences: Sequence[str]) -> list[str]:
    return [*(f"- {sentence}" for sentence in sentences), ""]


def _table(*rows: Sequence[str]) -> list[str]:
    """Returns the lines of a Markdown table, the first row its head, and an empty one."""
    head, *rest = (f"| {' | '.join(row)} |" for row in rows)
    return [head, "|" + "---|" * len(rows[0]), *rest, ""]
