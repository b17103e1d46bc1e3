"""The privacy statement: what was released, what that costs, what it promises and what it assumes.

One kind of statement for each system (`labels`, `silos`, `shared_training`), one page and one
reader for all of them; `check` verifies any of them against ledgers.
"""

import dataclasses
import json
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import exp, inf, isfinite
from typing import Any, ClassVar, Final, Self

from pate_tf.accounting.charge import Charge, rounded_up
from pate_tf.accounting.charges import charge_from_dict
from pate_tf.accounting.composition import pure_epsilon
from pate_tf.accounting.conversions import expit
from pate_tf.core.public import to_html
from pate_tf.ledger.store import Store

WORST_CASE: Final = "data-independent"
TO_EVERYBODY: Final = "everybody, in the data or not"
TO_NO_ONE: Final = "no one"
EXAMPLES: Final = (0.1, 1.0, 3.0, 6.0)
NOT_PRIVATE: Final = (
    "**This is NOT private.** Its noise came from a seed (`--insecure_seed`); with that seed it "
    "can be taken away again. The numbers below would hold for noise from the operating system; "
    "they promise nothing here."
)
NO_PROMISE: Final = "Nothing: the noise came from a seed."
ENTROPY: Final = "The noise came from the operating system's entropy source."
GUESSING: Final = (
    "{candidates} Without the release half of the guesses are right. With all that an epsilon "
    "covers, and at this delta, no method does better than:"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Guarantee:
    """One kind of epsilon, what it promises and to whom. Publishable.

    Attributes:
        kind: "data-independent", "sanitised", "gated" or "data-dependent"; for owners also
            "data-independent, against replacement".
        covers: what it counts.
        epsilon: None where no such number was published; infinite where there is no finite one.
        delta: of that epsilon; 0 where all that it counts is purely epsilon-private.
        promises: what it says, or why there is no number.
        to_whom: who may rely on it.
        bounds_guesses: whether it holds for all data sets, and so bounds guesses about them.
    """

    kind: str
    covers: str = ""
    epsilon: float | None = None
    delta: float | None = None
    promises: str
    to_whom: str = TO_EVERYBODY
    bounds_guesses: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """A further part of the page: a text, a table (its first row is the head), a list."""

    title: str
    text: str = ""
    table: Sequence[Sequence[str]] = ()
    sentences: Sequence[str] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivacyStatement(ABC):
    """What may be published with a model, in numbers and in words.

    Nothing in it depends on votes or records but by a release that was charged. A kind of statement
    adds fields, and by its methods what the page says; its numbers are fields, and all sentences
    follow from them.

    >>> import pate_tf
    >>> statement = pate_tf.publish(student, folder / "released").statement
    >>> statement.to_markdown().startswith("# Privacy statement")
    True

    Attributes:
        system: kind of statement: "labels", "silos" or "shared training".
        dataset: name of the data set.
        student_digest: SHA-256 of the model's weights; empty for labels alone.
        versions: version of each library that took part.
        secure_noise: False if any noise came from a seed.
        ledger_was_reset: whether a user went on although an earlier ledger, or rows of it, were
            gone.
    """

    system: ClassVar[str]
    dataset: str
    student_digest: str = ""
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    secure_noise: bool = True
    ledger_was_reset: bool = False

    @property
    @abstractmethod
    def protected(self) -> str:
        """What is protected, against which change."""

    @abstractmethod
    def introduction(self) -> str:
        """Returns what was released and how, in sentences."""

    @abstractmethod
    def facts(self) -> Iterator[tuple[str, str]]:
        """Yields the rows of the first table, after what is protected."""

    @abstractmethod
    def promised(self) -> tuple[Guarantee, ...]:
        """Returns every kind of epsilon for noise from the operating system."""

    @abstractmethod
    def not_released(self) -> Sequence[str]:
        """Returns what depends on private data and was not released."""

    @abstractmethod
    def assumptions(self) -> Sequence[str]:
        """Returns what the guarantees rest on, a sentence each."""

    @abstractmethod
    def not_covered(self) -> Sequence[str]:
        """Returns what the guarantees leave out, a sentence each."""

    @abstractmethod
    def evidence(self) -> Iterator[tuple[str, str]]:
        """Yields what the numbers can be verified by."""

    @abstractmethod
    def check(self, stores: Sequence[Store]) -> None:
        """Checks the numbers against ledgers or accounts; see `check.check_statement`.

        Raises:
            ValueError: if one of them says something worse.
        """

    def warnings(self) -> Sequence[str]:
        """Returns what stands on top of the page."""
        return () if self.secure_noise else (NOT_PRIVATE,)

    def parts(self) -> Iterator[Part]:
        """Yields parts of the page of this kind of statement alone."""
        return iter(())

    def candidates(self) -> str:
        """Returns between what two data sets somebody guesses, in words."""
        return "Two data sets that differ as stated above are equally likely."

    def derived(self) -> Mapping[str, Any]:
        """Returns further JSON values that follow from the fields."""
        return {}

    @property
    def kind(self) -> str:
        """What kind of epsilon it is, in words."""
        if not self.secure_noise:
            return "none: the noise was seeded, so nothing is private"
        return "data-independent, worst case over all data sets, publishable"

    @property
    def guarantees(self) -> tuple[Guarantee, ...]:
        """Every kind of epsilon, those without a number too."""
        if self.secure_noise:
            return self.promised()
        return tuple(
            one
            if one.epsilon is None
            else dataclasses.replace(one, promises=NO_PROMISE, to_whom=TO_NO_ONE)
            for one in self.promised()
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values: the fields, and all sentences of the page; infinity is null."""
        return {
            **_to_json(self),
            "statement": self.system,
            "kind": self.kind,
            "protected": self.protected,
            "guarantees": _to_json(self.guarantees),
            "not_released": list(self.not_released()),
            "assumptions": list(self.assumptions()),
            "not_covered": list(self.not_covered()),
            **_to_json(dict(self.derived())),
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Rebuilds a statement of any system from `to_dict()`, also after a trip through JSON.

        Raises:
            ValueError: if it is none, or has values of other types.
        """
        system = fields.get("statement", "labels") if isinstance(fields, Mapping) else None
        kinds = {one.system: one for one in PrivacyStatement.__subclasses__()}
        if not isinstance(system, str) or not issubclass(found := kinds.get(system, str), cls):
            raise ValueError(
                f"statement: expected a privacy statement of {' or '.join(kinds)}, got none"
            )
        return typing.cast(Self, _from_json(found, fields, "statement"))

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
        """Returns the page; epsilons are rounded up, and all of it may be published."""
        given = [one for one in self.guarantees if one.epsilon is not None]
        promises = {one.kind: f"**{one.kind}**: {one.promises}" for one in self.guarantees}
        parts = [
            Part(
                title="What is promised, and to whom",
                table=[
                    ("kind", "covers", "epsilon", "delta", "to whom"),
                    *(
                        (one.kind, one.covers, bold(one.epsilon), f"{one.delta:g}", one.to_whom)
                        for one in given
                    ),
                ],
                sentences=list(promises.values()),
            ),
            Part(title="What was not released", sentences=self.not_released()),
            *self.parts(),
            Part(
                title="What an epsilon means",
                text=GUESSING.format(candidates=self.candidates()),
                table=[("epsilon", "right guesses", "exp(epsilon)"), *self._meanings(given)],
            ),
            Part(title="What was assumed", sentences=self.assumptions()),
            Part(title="What is not covered", sentences=self.not_covered()),
            Part(title="How to check it", table=[("", ""), *self._evidence()]),
        ]
        lines = ["# Privacy statement", ""]
        for paragraph in (*self.warnings(), self.introduction()):
            lines += [paragraph, ""]
        lines += _table([("", ""), ("protected", self.protected), *self.facts()])
        for part in parts if given else [one for one in parts if "epsilon" not in one.title]:
            if part.table or part.sentences:
                lines += [f"## {part.title}", "", *([part.text, ""] if part.text else [])]
                lines += _table(part.table) if len(part.table) > 1 else []
                lines += [*(f"- {one}" for one in part.sentences), *([""] * bool(part.sentences))]
        return "\n".join(lines)

    def _meanings(self, given: Iterable[Guarantee]) -> Iterator[tuple[str, ...]]:
        found = [one for one in given if one.bounds_guesses and one.epsilon is not None]
        delta = found[0].delta or 0.0 if found else 0.0
        rows = [(epsilon, delta, f"{epsilon:g}") for epsilon in EXAMPLES]
        for one in found if self.secure_noise else ():
            epsilon = inf if one.epsilon is None else one.epsilon
            rows.append((epsilon, one.delta or 0.0, f"{bold(epsilon)}: {one.covers}"))
        for epsilon, delta, name in sorted(rows):
            share = 100.0 * largest_share_of_right_guesses(epsilon, delta)
            yield name, f"{rounded_up(share)} %", f"{exp(min(epsilon, 700.0)):.3g}"

    def _evidence(self) -> Iterator[tuple[str, str]]:
        yield from self.evidence()
        if self.student_digest:
            yield "digest of the model's weights", f"`{self.student_digest}`"
        yield "made with", ", ".join(f"{name} {one}" for name, one in self.versions.items())

    def _repr_html_(self) -> str:
        rows = [
            ("kind", "covers", "epsilon", "delta", "to whom"),
            *(
                (one.kind, one.covers, bold(one.epsilon, ""), f"{one.delta:g}", one.to_whom)
                for one in self.guarantees
                if one.epsilon is not None
            ),
            ("protected", self.protected),
            *self.facts(),
            *(("warning", one) for one in self.warnings()),
        ]
        return to_html("Privacy statement", rows)


# Numbers in words.


def bold(epsilon: float | None, mark: str = "**") -> str:
    """Returns an epsilon of the page, rounded up."""
    if epsilon is None:
        return ""
    return f"{mark}{rounded_up(epsilon)}{mark}" if isfinite(epsilon) else "infinite"


def table_cell(text: str) -> str:
    """Returns a text that stays within a cell of a table."""
    return " ".join(text.replace("|", "/").split())


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
    """Returns how often a guess between two equally likely candidates can be right at most.

    (exp(epsilon) + delta) / (1 + exp(epsilon)): for any test between them, false alarms plus
    exp(epsilon) times misses are at least 1 - delta, and the other way round, so that half of what
    goes wrong is at least (1 - delta) / (1 + exp(epsilon)) (Kairouz, Oh and Viswanath 2015,
    Theorem 2.1; docs/proofs/theory.md, Proposition C6).

    Args:
        epsilon: at least 0.
        delta: from 0 to 1.
    """
    return float(1.0 - (1.0 - delta) * expit(-epsilon))


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns the lines of a Markdown table, the first row its head, and an empty one."""
    head, *rest = (f"| {' | '.join(row)} |" for row in rows)
    return [head, "|" + "---|" * len(rows[0]), *rest, ""]


# Values as JSON and back, driven by the types of fields.


def _to_json(value: Any) -> Any:
    if isinstance(value, Charge):
        return value.to_dict()
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        return {field.name: _to_json(getattr(value, field.name)) for field in fields}
    if isinstance(value, Mapping):
        return {name: _to_json(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(one) for one in value]
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
        (hint,) = (one for one in arguments if one is not types.NoneType)
        return _from_json(hint, value, name)
    try:
        if origin is tuple:
            if arguments[1:] == (...,):
                arguments = (arguments[0],) * len(value)
            if not isinstance(value, list | tuple) or len(value) != len(arguments):
                raise TypeError("expected a list")
            pairs = zip(arguments, value, strict=True)
            return tuple(_from_json(one, each, name) for one, each in pairs)
        if origin is not None:  # Mapping[str, str]
            return {
                _from_json(arguments[0], key, name): _from_json(arguments[1], each, name)
                for key, each in value.items()
            }
        if issubclass(hint, Charge):
            charge = charge_from_dict(value)
            if not isinstance(charge, hint):
                raise TypeError(f"expected a {hint.__name__}")
            return charge
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            hints, made = typing.get_type_hints(hint), dataclasses.fields(hint)
            given = {one.name: value[one.name] for one in made if one.name in value}
            return hint(**{key: _from_json(hints[key], given[key], key) for key in given})
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
