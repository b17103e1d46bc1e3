"""The votes behind paid answers, kept beside the ledger.

`votes/<sequence of the debit, nine digits>.npz` keeps the counts of the queries that the row paid
for: `counts` int64 `[num_queries, num_classes]`, `answered` bool `[num_queries]` and `adaptive`,
one bool. They are sensitive and serve data-dependent analysis alone.
"""

import dataclasses
import pathlib
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from pate_tf import artifacts
from pate_tf.accounting.mechanisms import Mechanism, mechanism_from_dict
from pate_tf.ledger import Ledger, LedgerError
from pate_tf.ledger.payments import charge_fields
from pate_tf.values.arrays import IntArray
from pate_tf.values.sensitive import VoteCounts

VOTES: Final = "votes"


def keep_counts(
    folder: pathlib.Path,
    debit: int,
    counts: IntArray,
    *,
    labels: Sequence[int | None],
    adaptive: bool,
) -> None:
    """Keeps the counts of a paid batch, durably, before its labels leave.

    Args:
      folder: the ledger's.
      debit: sequence of the ledger row that paid.
      counts: int64 `[num_queries, num_classes]`.
      labels: what was drawn for them; None where a label was withheld.
      adaptive: see `PaidCounts`.

    Raises:
      LedgerError: if they can't be kept.
    """
    path = _counts_path(folder, debit)
    answered = np.array([label is not None for label in labels], np.bool_)
    try:
        artifacts.make_sensitive_folder(path.parent)
        arrays = {"counts": counts, "answered": answered, "adaptive": np.array(adaptive)}
        artifacts.write_arrays(path, arrays, private=True)
    except OSError as error:
        raise LedgerError(f"{path}: the counts of a paid batch can't be kept: {error}") from error


@dataclasses.dataclass(frozen=True)
class PaidCounts:
    """Sensitive: the counts behind the answers of one debit.

    Attributes:
      debit: sequence of the ledger row that paid.
      mechanism: what answered.
      counts: a row for each query that was paid for, answered or withheld.
      answered: which of them got a label, `[num_queries]`.
      adaptive: whether they depend on earlier noisy labels, so that no data-dependent cost holds.
    """

    debit: int
    mechanism: Mechanism
    counts: VoteCounts
    answered: npt.NDArray[np.bool_] = dataclasses.field(repr=False)
    adaptive: bool


def paid_counts(ledger: Ledger) -> Iterator[PaidCounts]:
    """Yields the counts behind all stored answers, for data-dependent analysis.

    A debit whose answers were lost in a crash released nothing and is left out.

    Raises:
      LedgerError: if the counts of a debit are missing, damaged, or of another shape.
    """
    mechanisms: dict[int, Mechanism] = {}
    for row in ledger.history():
        if row.kind == "debit" and row.details["num_queries"]:
            mechanisms[row.sequence] = mechanism_from_dict(charge_fields(row)[0])
        elif row.kind == "answers":
            debit = int(row.details["debit"])
            if mechanisms[debit].adds_records:  # of which no teacher voted
                continue
            path = _counts_path(ledger.folder, debit)
            try:
                arrays = artifacts.read_arrays(path)
                counts, answered = VoteCounts(arrays["counts"]), arrays["answered"]
            except (OSError, ValueError, KeyError) as error:
                raise LedgerError(f"{path}: expected the counts of a paid batch") from error
            expected = (row.details["num_queries"], row.details["num_answered"])
            if (counts.num_queries, int(answered.sum())) != expected:
                raise LedgerError(
                    f"{path}: expected counts of {expected[0]} queries, {expected[1]} of them "
                    f"answered, got others"
                )
            # Before there was a choice, none was adaptive.
            adaptive = bool(arrays.get("adaptive", False))
            yield PaidCounts(debit, mechanisms[debit], counts, answered, adaptive)


def _counts_path(folder: pathlib.Path, debit: int) -> pathlib.Path:
    return folder / VOTES / f"{debit:09d}.npz"
