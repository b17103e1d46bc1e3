"""The privacy statement: what was released, at which cost, what that rests on and leaves out.

One template (`page.md`), one renderer and one reader for all systems: `labels`, `silos` and
`shared_training`. `check` verifies any of them against ledgers.
"""

import dataclasses
import decimal
import json
import pathlib
import re
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, ClassVar, Final, Self

import scipy

from pate_tf.accounting.charges import charge_from_dict
from pate_tf.accounting.composition import Charge, pure_epsilon
from pate_tf.ledger import LedgerRow
from pate_tf.ledger.journal import DEBITS, Store

WORST_CASE: Final = "worst-case"
DATA_DEPENDENT: Final = "privately released data-dependent"
REPLACE_ONE: Final = "replace-one"
ADD_OR_REMOVE_ONE: Final = "add-or-remove-one"
ROUNDING: Final = 1e-9
DIGITS: Final = 8  # of a digest on the page
SEVERAL: Final = {2: "two", 5: "five"}  # records, owners or silos of one person
TEMPLATE: Final = pathlib.Path(__file__).with_name("page.md")
# A line of the template: conditions, the start of a heading or an item, a sentence.
LINE: Final = re.compile(r"^(?:\[(.*?)\] )?(#+ |- |1\. |  |)(.*)$", re.MULTILINE)
BETWEEN_ITEMS: Final = re.compile(r"^((?:- |\d+\. ).*)\n\n(?=- |\d+\. )", re.MULTILINE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Guarantee:
    """One row of the table: what it covers and costs. Publishable.

    Attributes:
        release: what is covered.
        epsilon: infinite where no finite one is known.
        delta: that epsilon holds at; 0 where all of the release is purely epsilon-private.
        relation: between neighboring data sets.
        kind: `WORST_CASE`, which holds for all data sets, or `DATA_DEPENDENT`.
    """

    release: str
    epsilon: float
    delta: float
    relation: str
    kind: str = WORST_CASE


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivacyStatement(ABC):
    """What may be published with a model, in numbers and in words.

    Nothing in it depends on votes or records but by a release that was charged. All sentences
    follow from the fields.

    >>> import pate_tf
    >>> statement = student.publish(folder / "released").statement
    >>> statement.to_markdown().startswith("# Privacy statement")
    True

    Attributes:
        system: kind of statement: "labels", "silos" or "shared training".
        source_name: of the private data source; None where the run folder is its own source.
        holder: who releases the model; None to leave it out.
        purpose: of the release; None to leave it out.
        run_name: of the release.
        date: of publication, ISO, UTC.
        pool_name: of the public data set.
        student_digest: SHA-256 of the model's weights; empty for labels alone.
        versions: version of each library that took part.
        secure_noise: False if any noise came from a seed.
        ledger_was_reset: whether a user went on although an earlier ledger, or rows of it, were
            gone.
    """

    system: ClassVar[str]
    model: ClassVar[str] = "classifier"
    file: ClassVar[str] = "privacy_statement.json"
    source_name: str | None = None
    holder: str | None = None
    purpose: str | None = None
    run_name: str = ""
    date: str = ""
    pool_name: str = ""
    student_digest: str = ""
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    secure_noise: bool = True
    ledger_was_reset: bool = False

    @property
    @abstractmethod
    def protected(self) -> str:
        """What is protected, after "for"."""

    @property
    @abstractmethod
    def guarantees(self) -> tuple[Guarantee, ...]:
        """Rows of the table, this release first; they hold for noise from the system alone."""

    @abstractmethod
    def facts(self) -> Mapping[str, object]:
        """Returns what the template needs besides what every statement has.

        A line of the template applies if the facts that it names are true; in braces it shows them.
        """

    @abstractmethod
    def check(self, stores: Sequence[Store]) -> None:
        """Checks the numbers against ledgers; see `check.check_statement`.

        Raises:
            ValueError: if one of them says something worse.
        """

    @property
    def kind(self) -> str:
        """What kind of epsilon it is, in words."""
        if not self.secure_noise:
            return "none: the noise was seeded, so nothing is private"
        return f"{WORST_CASE}, publishable" if self.guarantees else "none: no noise was added"

    def sections(self) -> dict[str, list[str]]:
        """Returns the page: paragraphs and items by heading, that of the page first.

        The template has a sentence a line, after the conditions, all of which must hold. Lines of a
        paragraph are joined, and indented ones with what stands above.
        """
        facts = self._facts()
        sections: dict[str, list[str]] = {}
        texts, is_open = list[str](), False  # whether a paragraph goes on
        for names, start, text in LINE.findall(TEMPLATE.read_text()):
            if not text:
                is_open = False
            elif all(
                bool(facts.get(name.removeprefix("!"))) != name.startswith("!")
                for name in filter(None, names.split(", "))
            ):
                text = text.format_map(facts)
                if start.startswith("#"):
                    texts = sections.setdefault(text, [])
                elif start == "  " or (is_open and not start):
                    texts[-1] += f" {text}"
                else:
                    number = f"{len(texts) + 1}. "
                    texts.append(f"{start.replace('1. ', number)}{text}")
                    is_open = not start
        return {heading: texts for heading, texts in sections.items() if texts}

    def _facts(self) -> dict[str, object]:
        rows = self.guarantees
        has_relations = len({row.relation for row in rows}) > 1
        epsilon = "ε" if self.secure_noise else "ε if the noise were not seeded"
        table = [("release", *(["relation"] * has_relations), epsilon, "δ")]
        for row in rows:
            cost = (f"**{epsilon_text(row.epsilon)}**", delta_text(row.delta))
            table.append((row.release, *([row.relation] * has_relations), *cost))
        title = f"{cell(self.source_name or self.pool_name)} {self.model}"
        made_with = [f"{name} {version}" for name, version in self.versions.items()]
        facts: dict[str, object] = {
            self.system: True,
            "seeded": not self.secure_noise,
            "reset": self.ledger_was_reset,
            "guaranteed": bool(rows),
            "title": title + (f", run {cell(self.run_name)}" if self.run_name else ""),
            "model": self.model,
            "holder": cell(self.holder or ""),
            "purpose": cell(self.purpose or ""),
            "protected": self.protected,
            "table": markdown_table(table),
            "file": self.file,
            "made_with": ", ".join([*made_with, *([self.date] if self.date else [])]),
        }
        if rows:
            first, is_bounded = rows[0], rows[0].epsilon < inf
            comparable = [row for row in rows if row.relation == first.relation]
            most = max(comparable, key=lambda row: (row.kind == WORST_CASE, row.epsilon))
            facts |= {
                "bounded": self.secure_noise and is_bounded,
                "unbounded": self.secure_noise and not is_bounded,
                "some delta": any(row.delta for row in rows),
                "epsilon": epsilon_text(first.epsilon),
                "delta": delta_text(first.delta),
                "relation": first.relation,
                "share": percent_of_right_guesses(first),
                "other releases": most.epsilon > first.epsilon,
                "most_epsilon": epsilon_text(most.epsilon),
                "most_share": percent_of_right_guesses(most),
            }
        facts |= self.facts()
        if self.student_digest:
            facts["evidence"] = f"{facts['evidence']}, model {short(self.student_digest)}"
        return facts

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values: the fields, and all sentences of the page; infinity is null."""
        return {
            **_to_json(self),
            "statement": self.system,
            "kind": self.kind,
            "protected": self.protected,
            "guarantees": _to_json(self.guarantees),
            "sections": self.sections(),
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Rebuilds a statement of any system from `to_dict()`, also after a trip through JSON.

        Raises:
            ValueError: if it is none, or has values of other types.
        """
        system = fields.get("statement") if isinstance(fields, Mapping) else None
        kinds = {kind.system: kind for kind in PrivacyStatement.__subclasses__()}
        if not isinstance(system, str) or not issubclass(kind := kinds.get(system, str), cls):
            raise ValueError(
                f"statement: expected a privacy statement of {' or '.join(kinds)}, got none"
            )
        return typing.cast(Self, _from_json(kind, fields, "statement"))

    def check_words(self, fields: Mapping[str, Any]) -> None:
        """Checks that JSON values are `to_dict()`, all sentences among them.

        Raises:
            ValueError: if one differs, or there are others.
        """
        due = json.loads(json.dumps(self.to_dict()))
        if differing := sorted(name for name in due if fields.get(name) != due[name]):
            raise ValueError(
                f"statement: expected the words that its numbers give, got others in "
                f"{', '.join(differing)} (it was made with pate_tf "
                f"{self.versions.get('pate_tf', 'unknown')})"
            )
        if unknown := sorted(set(fields) - set(due)):
            raise ValueError(f"statement: expected no other fields, got {', '.join(unknown)}")

    def to_markdown(self) -> str:
        """Returns the page, of three digits a number, epsilons rounded up. Publishable."""
        blocks: list[str] = []
        for heading, texts in self.sections().items():
            blocks += [f"{'##' if blocks else '#'} {heading}", *texts]
        return BETWEEN_ITEMS.sub(r"\1\n", "\n\n".join(blocks)) + "\n"


# Numbers and names on the page.


def epsilon_text(value: float) -> str:
    """Returns three digits of a number of at least 0, rounded up."""
    if value == inf:
        return "∞"
    context = decimal.Context(prec=3, rounding=decimal.ROUND_CEILING)
    rounded = context.create_decimal(repr(float(value)))
    return f"{rounded:.{max(0, 2 - rounded.adjusted())}f}" if rounded else "0"


def delta_text(value: float) -> str:
    """Returns three digits of a delta, rounded up, such as 1e-6."""
    return f"{float(epsilon_text(value)):g}".replace("e-0", "e-")


def cell(text: str) -> str:
    """Returns a text of the user's that stays within a cell of a table, and in its line."""
    for character, other in (("|", "/"), ("`", "'"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(character, other)
    return " ".join(text.split())


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """Returns a table, its first row the head."""
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join(f"| {' | '.join(row)} |" for row in lines)


def short(digest: str) -> str:
    """Returns the first digits of a digest; the JSON has all."""
    return f"{digest[:DIGITS]}…"


def several_text(several: Mapping[int, float], delta: float) -> str:
    """Returns what several records, owners or silos cost together; empty without any."""
    if not several:
        return ""
    costs = []
    for number, epsilon in several.items():
        cost = f"ε = {epsilon_text(epsilon)}" if epsilon < inf else "no finite ε is known"
        costs.append(f"{cost} for {SEVERAL.get(number, f'{number:,}')}")
    return f"{', '.join(costs)}, at δ = {delta_text(delta)}"


def pure_if_as_small(
    charges: Mapping[Charge, int], epsilon: float, delta: float
) -> tuple[float, float]:
    """Returns the epsilon and delta to state: of pure mechanisms their sum at delta 0.

    Unless that is more than a thousandth above the epsilon at delta.
    """
    pure = pure_epsilon(charges)
    # A pure epsilon of e has, at delta, one that is smaller by about 2 delta.
    is_as_small = pure <= epsilon * 1.001 + 4.0 * delta
    return (max(pure, epsilon), 0.0) if is_as_small else (epsilon, delta)


def largest_share_of_right_guesses(epsilon: float, delta: float) -> float:
    """Returns how often a guess between two equally likely candidates can be correct at most.

    (exp(epsilon) + delta) / (1 + exp(epsilon)): for any test between them, false alarms plus
    exp(epsilon) times misses are at least 1 - delta, and the other way round, so that half of the
    errors' sum is at least (1 - delta) / (1 + exp(epsilon)) (Kairouz, Oh and Viswanath 2015,
    Theorem 2.1; docs/proofs/theory.md, Proposition C6).

    Args:
        epsilon: at least 0.
        delta: from 0 to 1.
    """
    return float(1.0 - (1.0 - delta) * scipy.special.expit(-epsilon))


def percent_of_right_guesses(guarantee: Guarantee) -> str:
    """Returns `largest_share_of_right_guesses` of a row of the table, in percent."""
    share = largest_share_of_right_guesses(guarantee.epsilon, guarantee.delta)
    return epsilon_text(min(100.0, 100.0 * share))


# Values as JSON and back, driven by the types of fields.


def _to_json(value: Any) -> Any:
    if isinstance(value, Charge):
        return value.to_dict()
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        return {field.name: _to_json(getattr(value, field.name)) for field in fields}
    if isinstance(value, Mapping):
        return {name: _to_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(item) for item in value]
    return None if value == inf else value


def _from_json(hint: Any, value: Any, name: str) -> Any:
    """Returns what `_to_json` made a value of a type of.

    Raises:
        ValueError: if it is of another type; `name` says where.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None:
            return None
        (hint,) = (kind for kind in arguments if kind is not types.NoneType)
        return _from_json(hint, value, name)
    try:
        if origin is tuple:
            if arguments[1:] == (...,):
                arguments = (arguments[0],) * len(value)
            if not isinstance(value, list | tuple) or len(value) != len(arguments):
                raise TypeError("expected a list")
            pairs = zip(arguments, value, strict=True)
            return tuple(_from_json(kind, item, name) for kind, item in pairs)
        if origin is not None:  # Mapping[str, str]
            return {
                _from_json(arguments[0], key, name): _from_json(arguments[1], item, name)
                for key, item in value.items()
            }
        if issubclass(hint, Charge):
            charge = charge_from_dict(value)
            if not isinstance(charge, hint):
                raise TypeError(f"expected a {hint.__name__}")
            return charge
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            hints, fields = typing.get_type_hints(hint), dataclasses.fields(hint)
            values = {field.name: value[field.name] for field in fields if field.name in value}
            return hint(**{key: _from_json(hints[key], item, key) for key, item in values.items()})
        if hint is float and value is None:
            return inf
        accepted = (int, float) if hint is float else hint
        if not isinstance(value, accepted) or (isinstance(value, bool) and hint is not bool):
            raise TypeError(f"expected other types of values, got {type(value).__name__}")
        return value
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"statement: expected a privacy statement, got none: {name}: {error}"
        ) from error


# Checks that statements of several systems share.


def at_least(name: str, stated: float, due: float, what: str = "") -> None:
    """Checks that a stated number is not below a due one; NaN is.

    Raises:
        ValueError: if it is.
    """
    if not stated >= due * (1.0 - ROUNDING):
        raise ValueError(f"statement: expected at least {name} {due:.6g} {what}, got {stated}")


def check_noise(statement: PrivacyStatement, rows: Sequence[LedgerRow]) -> None:
    """Checks that a statement of secure noise is one of rows with secure noise.

    Raises:
        ValueError: if a row records noise from a seed.
    """
    is_secure = all(row.details.get("secure_noise", True) for row in rows if row.kind in DEBITS)
    if statement.secure_noise and not is_secure:
        raise ValueError("statement: it claims secure noise, the ledger records seeded noise")
