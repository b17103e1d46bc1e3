"""What the ledger is made of, as values: its rows, what was spent, and its few errors."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any


class LedgerError(Exception):
    """The ledger can't be used as asked: damaged, not writable, or of another version."""


class EnsembleMismatch(LedgerError):  # noqa: N818
    """The ensemble is not the one that this ledger was opened for."""


class BudgetMismatch(LedgerError):  # noqa: N818
    """The budget asked for is not the one that was fixed at first use."""


class BudgetExceeded(LedgerError):  # noqa: N818
    """What was to be paid doesn't fit into what remains of the budget; nothing was charged.

    Attributes:
      num_affordable: how many of the same charge would fit.
    """

    def __init__(self, message: str, *, num_affordable: int) -> None:
        super().__init__(message)
        self.num_affordable = num_affordable


@dataclasses.dataclass(frozen=True, kw_only=True)
class LedgerRow:
    """One row of the ledger. Rows are ordered by sequence; clocks may go backwards.

    Attributes:
      sequence: 1 for the row that opens the ledger, then one more for each row.
      time: UTC time by the machine's clock, ISO 8601. Told, never relied on.
      kind: "opened", "debit", "answers", "released", "budget", "planned" or "acknowledged";
        "release" in older ledgers.
      details: what the kind records, JSON values.

        - opened: `schema_version`, `salt` (secret), `ensemble_digest` (sensitive),
          `epsilon_budget` (None if there is none), `delta`, `acknowledged` (whether an earlier
          ledger of the ensemble was gone; the next row says which), `planned_release` (how the
          data-dependent cost will be released).
        - planned: `release`, the same, where a ledger of an earlier version fixed it later.
        - acknowledged: `missing`, digests of rows that were seen and are gone.
        - debit: `charge` (its `to_dict()`) and the `number` paid for, `num_queries` and
          `queries_digest` of the queries that are to be answered, `secure_noise`, `past` (whether
          it had left before it was recorded), `epsilon_before` and `epsilon_after`
          (data-independent, of the whole ledger, at `delta`), `delta`. Up to version 2
          `mechanism` instead of charge and number. One that charges what a missing row or another
          ledger of the ensemble charged names that row as `carried_from`, and no epsilons.
        - answers: `debit` (the sequence of the row that paid), `num_queries`, `num_answered`,
          `answers_digest`.
        - release: version 2's debit of a release, with its `plan`.
        - released: `debit` (the sequence of the row that paid), `kept` (sensitive: the draw, and
          what it was drawn for).
        - budget: `epsilon_budget`, `delta`, `previous_epsilon_budget`, `previous_delta`, `raised`
          (False only where a ledger without a budget was given its first one).

      digest: SHA-256 of the row before, the sequence and the row, hexadecimal.
    """

    sequence: int
    time: str
    kind: str
    details: Mapping[str, Any] = dataclasses.field(repr=False)
    digest: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Head:
    """The last row of a ledger: what a statement quotes to fix the history before it.

    Attributes:
      sequence: sequence of the last row.
      digest: its digest, which depends on every row before it. The secret salt of the first row
        hides everything else that went into it, so it may be published.
    """

    sequence: int
    digest: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spending:
    """What all debits of one or several ledgers cost together, releases included.

    Attributes:
      epsilon: data-independent epsilon at `delta`, both directions, worst case over all data.
      delta: the delta it holds at.
      moment: the moment that gave epsilon; None if none did (nothing spent, or a closed form).
      num_queries: queries paid for, whether or not they were answered.
      num_answered: queries whose answer is a label.
    """

    epsilon: float
    delta: float
    moment: float | None
    num_queries: int
    num_answered: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredAnswer:
    """The one answer that a query ever gets from a mechanism.

    Attributes:
      label: the noisy label, or None if the mechanism withheld it.
      debit: sequence of the ledger row that paid for it.
      noisy_counts: what was released with the label, `[num_classes]` in units of 1 / LATTICE
        votes; None if nothing was.
    """

    label: int | None
    debit: int
    noisy_counts: tuple[int, ...] | None = None


def canonical_json(value: object) -> str:
    """JSON with sorted keys and no spaces, so that equal values have equal texts."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
