"""Schemas in TOML: read, and drafted from public records."""

import json
import pathlib
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pate_tf.data.schema import Schema, TableColumn, field_text, number_or_nan

MOST_CATEGORIES = 30  # that a draft lists; a column with more is left out
_KEYS = {"label", "classes", "owner", "name", "pool_size", "columns"}
_COLUMN_KEYS = {"low", "high", "categories", "other", "missing", "text"}


def read_schema(path: pathlib.Path) -> Schema:
    """Reads a schema in TOML; `to_toml` writes one.

    Raises:
      ValueError: if it is no TOML, or says what no schema says.
      OSError: if it can't be read.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(
            f"{path}: expected a schema in TOML, got something else ({error})"
        ) from None
    try:
        return schema_of(values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def schema_of(values: Mapping[str, Any]) -> Schema:
    """Returns the schema that TOML's values say.

    Raises:
      ValueError: if they say what no schema says.
    """
    _check_keys(values, _KEYS, "schema")
    columns = values.get("columns")
    if not isinstance(columns, dict) or not all(isinstance(one, dict) for one in columns.values()):
        raise ValueError("columns: expected a table [columns.NAME] for each column, got none")
    return Schema(
        columns=tuple(_column(name, given) for name, given in columns.items()),
        classes=_texts(values.get("classes"), "classes"),
        **{name: _typed(values.get(name), str, name) for name in ("label", "owner", "name")},
        pool_size=_typed(values.get("pool_size"), int, "pool_size"),
    )


def _column(name: str, given: Mapping[str, Any]) -> TableColumn:
    what = f"columns.{name}"
    _check_keys(given, _COLUMN_KEYS, what)
    missing = None if given.get("missing") is None else field_text(given["missing"])
    if "text" in given:
        if "low" in given or "high" in given or "categories" in given:
            raise ValueError(f"{what}: expected text, or a range or categories, got both")
        return TableColumn(
            name=name, missing=missing, text=_typed(given["text"], int, f"{what}.text")
        )
    if "categories" in given:
        if "low" in given or "high" in given:
            raise ValueError(f"{what}: expected categories, or low and high, got both")
        return TableColumn(
            name=name,
            missing=missing,
            categories=_texts(given["categories"], f"{what}.categories"),
            other=bool(_typed(given.get("other", False), bool, f"{what}.other")),
        )
    if "low" not in given or "high" not in given:
        raise ValueError(f"{what}: expected low and high, from public knowledge, or categories")
    low, high = (_typed(given[end], (int, float), f"{what}.{end}") for end in ("low", "high"))
    return TableColumn(name=name, missing=missing, low=float(low), high=float(high))


def _check_keys(given: Mapping[str, Any], known: set[str], what: str) -> None:
    if strange := sorted(set(given) - known):
        raise ValueError(f"{what}: expected some of {sorted(known)}, got {strange[0]!r}")


def _texts(given: Any, what: str) -> tuple[str, ...]:
    if (
        not isinstance(given, list)
        or not given
        or any(isinstance(one, list | dict) for one in given)
    ):
        raise ValueError(f"{what}: expected a list of texts, got none")
    return tuple(field_text(one) for one in given)


def _typed(given: Any, kind: Any, what: str) -> Any:
    if given is not None and (
        not isinstance(given, kind) or (isinstance(given, bool) and kind is not bool)
    ):
        raise ValueError(f"{what}: expected another type than {type(given).__name__}")
    return given


def draft(
    fields: Mapping[str, Sequence[str]], *, label: str | None = None, owner: str | None = None
) -> str:
    """Returns a draft of a schema in TOML, from PUBLIC records alone; to be looked through.

    Args:
      fields: of each column by its name.
      label: name of the label's column, which public records need not have.
      owner: name of the owner's column.

    Raises:
      ValueError: if no column can be used.
    """
    classes = sorted({value for value in fields.get(label or "", ()) if value})
    lines = ["# Drafted from public records. Look it through: ranges and categories are public."]
    if label:
        lines.append(f"label = {json.dumps(label)}")
    if len(classes) > 1:
        lines.append(f"classes = {json.dumps(classes, ensure_ascii=False)}")
    else:
        lines.append("classes = []  # state them, in the order of their numbers")
    if owner:
        lines.append(f"owner = {json.dumps(owner)}")
    used = 0
    for name, values in fields.items():
        if name in (label, owner):
            continue
        body = _draft_column([value for value in values if value], has_gaps="" in values)
        lines += ["", f"# left out: {name!r} has no number and too many values"] if not body else [
            "", f"[columns.{_key(name)}]", *body,
        ]  # fmt: skip
        used += bool(body)
    if not used:
        raise ValueError("columns: expected numbers or few categories in one at least, got none")
    return "\n".join(lines) + "\n"


def _draft_column(values: Sequence[str], *, has_gaps: bool) -> list[str]:
    numbers = np.array([number_or_nan(value) for value in values])
    if len(numbers) and np.isfinite(numbers).all():
        low, high = float(numbers.min()), float(numbers.max())
        high = high if low < high else low + 1.0
        missing = [f"missing = {low!r}  # stands for an empty field"] if has_gaps else []
        return [f"low = {low!r}", f"high = {high!r}", *missing]
    found = sorted(set(values))
    if not found or len(found) > MOST_CATEGORIES:
        return []
    listed = json.dumps([*found, *([""] if has_gaps else [])], ensure_ascii=False)
    return [f"categories = {listed}", "other = true  # one more, for what is not listed"]


def _key(name: str) -> str:
    is_bare = name and all(one.isascii() and (one.isalnum() or one in "_-") for one in name)
    return name if is_bare else json.dumps(name, ensure_ascii=False)
