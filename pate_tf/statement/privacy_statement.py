"""Privacy statements, which describe a release, its cost, its assumptions and its limits.

There are three kinds of statements: for labels, for silos, and for shared training. `from_dict`
reads all kinds, and `check` verifies a statement against ledgers. All pages extend a common
template.
"""

import dataclasses
import decimal
import functools
import html
import importlib
import itertools
import pathlib
import re
import shlex
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Any, ClassVar, Final, Self

import jinja2
import markdown_it
import scipy

from pate_tf.accounting.charge import charge_from_dict
from pate_tf.accounting.composition import Charge, pure_epsilon
from pate_tf.core import checks
from pate_tf.core.reporting import amount
from pate_tf.core.settings import EpsilonDelta, ProtectedUnit
from pate_tf.ledger import LedgerRow
from pate_tf.ledger.journal import Store
from pate_tf.ledger.ledger_file import DEBITS
from pate_tf.queries.strategies import STRATEGIES

WORST_CASE: Final = "worst-case"
DATA_DEPENDENT: Final = "privately released data-dependent"
REPLACE_ONE: Final = "replace-one"
ADD_OR_REMOVE_ONE: Final = "add-or-remove-one"
ROUNDING: Final = 1e-9
SEVERAL: Final = (2, 5)  # numbers of records, owners or silos that may belong to one person
# Module and class of each kind of statement. The module is imported when a statement is read.
SYSTEMS: Final = {
    "labels": ("labels_statement", "LabelsStatement"),
    "silos": ("several_holders", "SilosStatement"),
    "shared training": ("several_holders", "SharedTrainingStatement"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Guarantee(EpsilonDelta):
    """Publishable: one row of the statement's table, with a release and its cost.

    `epsilon` is infinite if no finite bound is known. `delta` is 0 if the whole release satisfies
    pure differential privacy.

    Attributes:
        release: description of the release.
        relation: description of the neighboring relation, such as replacing one record.
        kind: `WORST_CASE`, which holds for all data sets, or `DATA_DEPENDENT`.
    """

    release: str
    relation: str
    kind: str = WORST_CASE


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivacyStatement(ProtectedUnit, ABC):
    """Publishable facts about a model, in numbers and in words.

    A statement depends on votes and records only through charged releases. All its sentences follow
    from its fields.

    >>> import pate_tf
    >>> statement = student.publish(folder / "released").statement
    >>> statement.to_markdown().startswith("# Privacy statement")
    True

    Attributes:
        system: kind of statement: "labels", "silos" or "shared training".
        source_name: name of the private data source; None if the run folder itself identifies the
            data.
        holder: name of the data holder that releases the model; None if it is not stated.
        purpose: purpose of the release; None if it is not stated.
        run_name: name of the release.
        date: date of publication in ISO 8601 format, UTC.
        pool_name: name of the public data set.
        inputs: description of the model's inputs, such as "6 columns"; empty if it is unknown.
        label: name of the predicted quantity; None if it is unknown.
        classes: names of the classes or labels; empty for a number.
        predicts: sentences about the model's output if it is not a class; else empty.
        num_public_labels: number of public labels that the model also learned from.
        quality: results on labeled public samples, by the name of the measure in
            `students.measures.measure`; empty if nothing was measured.
        student_digest: SHA-256 of the model's weights; empty if only labels are released.
        versions: versions of the libraries that were used.
        secure_noise: False if any noise came from a seed.
        ledger_was_reset: whether a user ever continued even though an earlier ledger or rows of a
            ledger were missing.
    """

    system: ClassVar[str]
    units: ClassVar[Mapping[str, str]]  # possible protected units, with a description
    file: ClassVar[str] = "privacy_statement.json"
    source_name: str | None = None
    holder: str | None = None
    purpose: str | None = None
    run_name: str = ""
    date: str = ""
    pool_name: str = ""
    inputs: str = ""
    label: str | None = None
    classes: tuple[str, ...] = ()
    predicts: str = ""
    num_public_labels: int = 0
    quality: Mapping[str, float] = dataclasses.field(default_factory=dict)
    student_digest: str = ""
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    secure_noise: bool = True
    ledger_was_reset: bool = False

    def __post_init__(self) -> None:
        checks.one_of(self.units, unit=self.unit)

    @property
    def model(self) -> str:
        """What is released: a classifier, or another model."""
        return "model" if self.predicts else "classifier"

    @property
    def protected(self) -> str:
        """Description of the protected unit, to be used after the word "for"."""
        return self.units[self.unit]

    @property
    def neighbors(self) -> str:
        """The relation between neighboring data sets."""
        return ADD_OR_REMOVE_ONE if self.unit == "owner" else REPLACE_ONE

    @property
    @abstractmethod
    def guarantees(self) -> tuple[Guarantee, ...]:
        """Rows of the page's table, for this release first. Valid only for secure noise."""

    @property
    def most(self) -> Guarantee | None:
        """The row with the largest cost, among rows with the same relation as the first row."""
        rows = self.guarantees
        comparable = [row for row in rows if row.relation == rows[0].relation]
        return max(comparable, key=lambda row: (row.kind == WORST_CASE, row.epsilon), default=None)

    @abstractmethod
    def check(self, stores: Sequence[Store]) -> None:
        """Checks the numbers against ledgers; see `pate_tf.statement.check_statement`.

        Raises:
            ValueError: if a ledger contradicts a number.
        """

    @property
    def kind(self) -> str:
        """Description of the kind of epsilon."""
        if not self.secure_noise:
            return "none: the noise was seeded, so nothing is private"
        return f"{WORST_CASE}, publishable" if self.guarantees else "none: no noise was added"

    def _repr_html_(self) -> str:
        return str(MARKDOWN.render(self.to_markdown()))

    def to_dict(self) -> dict[str, Any]:
        """Returns all fields and all sentences of the page as JSON values.

        Infinity becomes null.
        """
        return {
            **_to_json(self),
            "statement": self.system,
            "kind": self.kind,
            "protected": self.protected,
            "guarantees": _to_json(self.guarantees),
            "sections": sections(self.to_markdown()),
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Rebuilds a statement of any kind from the values of `to_dict()` or from a JSON file.

        Raises:
            ValueError: if the values are not a statement, or have wrong types.
        """
        system = fields.get("statement") if isinstance(fields, Mapping) else None
        kind: type = str
        if isinstance(system, str) and system in SYSTEMS:
            module = importlib.import_module(f"pate_tf.statement.{SYSTEMS[system][0]}")
            kind = getattr(module, SYSTEMS[system][1])
        if not issubclass(kind, cls):
            raise ValueError(f"statement must be a privacy statement of {' or '.join(SYSTEMS)}")
        return typing.cast(Self, _from_json(kind, fields, "statement"))

    def to_markdown(self) -> str:
        """Publishable: returns the page. Numbers have three digits, and epsilons are rounded up."""
        return self._page

    @functools.cached_property
    def _page(self) -> str:
        rows = self.guarantees
        made_with = [f"{name} {version}" for name, version in self.versions.items()]
        template = TEMPLATES.get_template(f"{self.system.replace(' ', '_')}.md")
        page = template.render(
            statement=self,
            rows=rows,
            most=self.most,
            made_with=", ".join(filter(None, [*made_with, self.date])),
        )
        # Joins the lines of each paragraph, and numbers list items.
        numbers = itertools.count(1)
        page = SOFT_BREAK.sub(" ", page)
        page = re.sub(r"^1\.", lambda _: f"{next(numbers)}.", page, flags=re.MULTILINE)
        return re.sub(r"\n{3,}", "\n\n", page)


def pure_if_as_small(
    charges: Mapping[Charge, int], epsilon: float, delta: float
) -> tuple[float, float]:
    """Returns the epsilon and delta for a statement; delta is 0 if epsilon then hardly increases.

    At delta 0, the epsilon of the charges is their pure epsilon. If the pure epsilon is larger than
    `epsilon` by at most about 0.1 %, the function returns the pure epsilon and delta 0. Otherwise,
    it returns `epsilon` and `delta`.
    """
    pure = pure_epsilon(charges)
    # For a purely private mechanism, the epsilon at delta is about 2 delta smaller than at 0. So a
    # difference of 4 delta is allowed.
    is_as_small = pure <= epsilon * 1.001 + 4.0 * delta
    return (max(pure, epsilon), 0.0) if is_as_small else (epsilon, delta)


# Conversion of values to JSON and back, based on the types of fields.


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
    """Converts a JSON value from `_to_json` back to a value of the type `hint`.

    Raises:
        ValueError: if the value has another type; the message contains `name`, the name of the
            field.
    """
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if origin is types.UnionType:
        return None if value is None else _from_json(arguments[0], value, name)
    if hint is float and value is None:
        return inf
    try:
        if origin is tuple:
            if not isinstance(value, list | tuple):
                raise TypeError("must be a list")
            if arguments[1:] == (...,):
                arguments = arguments[:1] * len(value)
            if len(value) != len(arguments):
                raise TypeError(f"must be a list of {len(arguments)} values, got {len(value)}")
            names = [name] * len(value)
            return tuple(map(_from_json, arguments, value, names))
        if origin is not None:  # Mapping[str, str]
            return {key: _from_json(arguments[1], item, name) for key, item in value.items()}
        if issubclass(hint, Charge):
            value = charge_from_dict(value)
        elif dataclasses.is_dataclass(hint):
            hints = typing.get_type_hints(hint)
            known = {field.name for field in dataclasses.fields(hint)} & set(value)
            fields = {key: _from_json(hints[key], value[key], key) for key in known}
            return typing.cast(Any, hint)(**fields)
        accepted = (int, float) if hint is float else hint
        if not isinstance(value, accepted) or (isinstance(value, bool) and hint is not bool):
            raise TypeError(f"must not be {type(value).__name__}")
        return value
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"statement must be a privacy statement, but its field {name} is invalid: {error}"
        ) from error


# Checks for all kinds of statements.


def require(holds: bool, reason: str) -> None:
    """Raises ValueError with a reason if a condition is false."""
    if not holds:
        raise ValueError(f"statement: {reason}")


def at_least(name: str, stated: float, due: float, what: str = "") -> None:
    """Checks that a stated number is at least as large as the number that follows from a ledger.

    Raises:
        ValueError: if the stated number is smaller or NaN.
    """
    is_enough = stated >= due * (1.0 - ROUNDING)
    require(is_enough, f"{name} must be at least {f'{due:.6g} {what}'.strip()}, got {stated}")


def check_unit(unit: str, charges: Iterable[Charge]) -> None:
    """Checks that charges for owners occur only in a statement for owners.

    Raises:
        ValueError: if there is a charge for owners, but the statement is not for owners.
    """
    if unit != "owner" and any(charge.unit == "owner" for charge in charges):
        raise ValueError(f"unit: a charge is for owners, but the statement is for each {unit}")


def check_noise(statement: PrivacyStatement, rows: Sequence[LedgerRow]) -> None:
    """Checks that a statement claims secure noise only if all rows have secure noise.

    Raises:
        ValueError: if a row records noise from a seed.
    """
    is_secure = all(row.details.get("secure_noise", True) for row in rows if row.kind in DEBITS)
    is_claimed = statement.secure_noise
    require(is_secure or not is_claimed, "it claims secure noise, but the ledger has seeded noise")


DIGITS: Final = 8  # number of digits of a digest on the page
# Matches the line break before a line that continues a paragraph or a list item.
SOFT_BREAK: Final = re.compile(r"(?<!\n)\n *(?=[^\s|#-])(?!1\. )")


def sections(page: str) -> dict[str, list[str]]:
    """Maps each heading of a page to its paragraphs, list items and tables."""
    texts = {}
    for section in re.split(r"^#+ ", page, flags=re.MULTILINE)[1:]:
        heading, *rest = re.split(r"\n+(?!\|)", section.strip())
        texts[heading] = [text.strip() for text in rest]
    return texts


def epsilon_text(value: float) -> str:
    """Returns a nonnegative number as text with three digits, rounded up."""
    if value == inf:
        return "∞"
    context = decimal.Context(prec=3, rounding=decimal.ROUND_CEILING)
    rounded = context.create_decimal(repr(float(value)))
    return f"{rounded:.{max(0, 2 - rounded.adjusted())}f}" if rounded else "0"


def delta_text(value: float) -> str:
    """Returns a delta as text with three digits, rounded up, such as 1e-6."""
    return f"{float(epsilon_text(value)):g}".replace("e-0", "e-")


def cell(text: str) -> str:
    """Escapes a user's text for a cell of a table."""
    for character, other in (("|", "/"), ("`", "'"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(character, other)
    return " ".join(text.split())


def largest_share_of_right_guesses(epsilon: float, delta: float) -> float:
    """Returns the maximum probability of a correct guess between two equally likely candidates.

    This maximum is (exp(epsilon) + delta) / (1 + exp(epsilon)). The reason: for any test between
    the candidates, the false alarm rate plus exp(epsilon) times the miss rate is at least 1 -
    delta, and this also holds with the two rates exchanged. So half of the sum of both rates, the
    probability of an error, is at least (1 - delta) / (1 + exp(epsilon)) (Kairouz, Oh and Viswanath
    2015, Theorem 2.1; docs/proofs/theory.md, Proposition C6).

    Args:
        epsilon: epsilon of the guarantee, at least 0.
        delta: delta of the guarantee, from 0 to 1.
    """
    return float(1.0 - (1.0 - delta) * scipy.special.expit(-epsilon))


# HTML in a statement is escaped. Links and images are disabled, because they could load files.
MARKDOWN: Final = markdown_it.MarkdownIt("js-default").disable(["link", "image", "autolink"])
TEMPLATES: Final = jinja2.Environment(
    loader=jinja2.FileSystemLoader(pathlib.Path(__file__).with_name("templates")),
    trim_blocks=True,
    keep_trailing_newline=True,
    undefined=jinja2.StrictUndefined,
    autoescape=jinja2.select_autoescape(["html"]),
)
TEMPLATES.globals |= {
    "inf": inf,
    "strategies": STRATEGIES,
    "guessed": largest_share_of_right_guesses,
}
TEMPLATES.filters |= {
    "epsilon": epsilon_text,
    "delta": delta_text,
    "number": "{:,}".format,
    "amount": amount,
    "cell": cell,
    "unescaped": html.unescape,
    "quoted": shlex.quote,
    "percent": lambda fraction: f"{100 * fraction:.1f} %",
    "short": lambda digest: f"{digest[:DIGITS]}…",
    "zip": zip,
}
