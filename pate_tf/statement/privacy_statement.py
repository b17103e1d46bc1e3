"""The privacy statement: what was released, at which cost, what that rests on and leaves out.

Statements of `labels`, `silos` and `shared_training` have one reader, and pages that extend one
template. `check` verifies any of them against ledgers.
"""

import dataclasses
import decimal
import functools
import importlib
import itertools
import pathlib
import re
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Any, ClassVar, Final, Self

import jinja2
import scipy

from pate_tf.accounting.charge import charge_from_dict
from pate_tf.accounting.composition import Charge, pure_epsilon
from pate_tf.core import checks
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
SEVERAL: Final = (2, 5)  # records, owners or silos of one person
# Module and class of each system's statement, imported when one is read.
SYSTEMS: Final = {
    "labels": ("labels_statement", "LabelsStatement"),
    "silos": ("several_holders", "SilosStatement"),
    "shared training": ("several_holders", "SharedTrainingStatement"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Guarantee(EpsilonDelta):
    """One row of the table: what it covers and costs. Publishable.

    Epsilon is infinite where no finite one is known, delta 0 where all of the release is purely
    epsilon-private.

    Attributes:
        release: what is covered.
        relation: between neighboring data sets.
        kind: `WORST_CASE`, which holds for all data sets, or `DATA_DEPENDENT`.
    """

    release: str
    relation: str
    kind: str = WORST_CASE


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivacyStatement(ProtectedUnit, ABC):
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
    units: ClassVar[Mapping[str, str]]  # what may be protected, and in words
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

    def __post_init__(self) -> None:
        checks.one_of(self.units, unit=self.unit)

    @property
    def protected(self) -> str:
        """What is protected, after "for"."""
        return self.units[self.unit]

    @property
    def neighbors(self) -> str:
        """The relation between neighboring data sets."""
        return ADD_OR_REMOVE_ONE if self.unit == "owner" else REPLACE_ONE

    @property
    @abstractmethod
    def guarantees(self) -> tuple[Guarantee, ...]:
        """Rows of the table, this release first; they hold for noise from the system alone."""

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

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values: the fields, and all sentences of the page; infinity is null."""
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
        """Rebuilds a statement of any system from `to_dict()`, also after a trip through JSON.

        Raises:
            ValueError: if it is none, or has values of other types.
        """
        system = fields.get("statement") if isinstance(fields, Mapping) else None
        kind: type = str
        if isinstance(system, str) and system in SYSTEMS:
            module = importlib.import_module(f"pate_tf.statement.{SYSTEMS[system][0]}")
            kind = getattr(module, SYSTEMS[system][1])
        if not issubclass(kind, cls):
            raise ValueError(
                f"statement: expected a privacy statement of {' or '.join(SYSTEMS)}, got none"
            )
        return typing.cast(Self, _from_json(kind, fields, "statement"))

    def to_markdown(self) -> str:
        """Returns the page, of three digits a number, epsilons rounded up. Publishable."""
        return self._page

    @functools.cached_property
    def _page(self) -> str:
        rows = self.guarantees
        comparable = [row for row in rows if row.relation == rows[0].relation]
        made_with = [f"{name} {version}" for name, version in self.versions.items()]
        template = TEMPLATES.get_template(f"{self.system.replace(' ', '_')}.md")
        page = template.render(
            statement=self,
            rows=rows,
            most=max(
                comparable, key=lambda row: (row.kind == WORST_CASE, row.epsilon), default=None
            ),
            made_with=", ".join(filter(None, [*made_with, self.date])),
        )
        # Lines of a paragraph are joined, and list items numbered.
        numbers = itertools.count(1)
        page = SOFT_BREAK.sub(" ", page)
        page = re.sub(r"^1\.", lambda _: f"{next(numbers)}.", page, flags=re.MULTILINE)
        return re.sub(r"\n{3,}", "\n\n", page)


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
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if origin is types.UnionType:
        return None if value is None else _from_json(arguments[0], value, name)
    if hint is float and value is None:
        return inf
    try:
        if origin is tuple:
            if not isinstance(value, list | tuple):
                raise TypeError("expected a list")
            if arguments[1:] == (...,):
                arguments = arguments[:1] * len(value)
            if len(value) != len(arguments):
                raise TypeError("expected a list of another length")
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
            raise TypeError(f"expected other types of values, got {type(value).__name__}")
        return value
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"statement: expected a privacy statement, got none: {name}: {error}"
        ) from error


# Checks that statements of several systems share.


def require(holds: bool, reason: str) -> None:
    """Raises ValueError, which says what is wrong with a statement, unless something holds."""
    if not holds:
        raise ValueError(f"statement: {reason}")


def at_least(name: str, stated: float, due: float, what: str = "") -> None:
    """Checks that a stated number is not below a due one; NaN is.

    Raises:
        ValueError: if it is.
    """
    is_enough = stated >= due * (1.0 - ROUNDING)
    require(is_enough, f"expected at least {name} {due:.6g} {what}, got {stated}")


def check_unit(unit: str, charges: Iterable[Charge]) -> None:
    """Checks that nothing was charged for an owner added or removed where something else counts.

    Raises:
        ValueError: if it was.
    """
    if unit != "owner" and any(charge.unit == "owner" for charge in charges):
        raise ValueError(f"unit: a charge is for owners, the statement is for each {unit}")


def check_noise(statement: PrivacyStatement, rows: Sequence[LedgerRow]) -> None:
    """Checks that a statement of secure noise is one of rows with secure noise.

    Raises:
        ValueError: if a row records noise from a seed.
    """
    is_secure = all(row.details.get("secure_noise", True) for row in rows if row.kind in DEBITS)
    is_claimed = statement.secure_noise
    require(is_secure or not is_claimed, "it claims secure noise, the ledger records seeded noise")


DIGITS: Final = 8  # of a digest on the page
# A line that continues the paragraph or the item above it.
SOFT_BREAK: Final = re.compile(r"(?<!\n)\n *(?=[^\s|#-])(?!1\. )")


def sections(page: str) -> dict[str, list[str]]:
    """Returns the paragraphs, list items and tables of a page by heading."""
    texts = {}
    for section in re.split(r"^#+ ", page, flags=re.MULTILINE)[1:]:
        heading, *rest = re.split(r"\n+(?!\|)", section.strip())
        texts[heading] = [text.strip() for text in rest]
    return texts


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
    "cell": cell,
    "short": lambda digest: f"{digest[:DIGITS]}…",
    "zip": zip,
}
