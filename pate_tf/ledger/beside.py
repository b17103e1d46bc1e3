"""What lies beside a ledger and outlives it: votes it paid for, and statements that quote it."""

import pathlib
from collections.abc import Iterable
from typing import Final

from pate_tf import artifacts
from pate_tf.ledger.rows import Head

VOTES: Final = "votes"
STATEMENT: Final = "privacy_statement.json"


def has_votes(folder: pathlib.Path) -> bool:
    """Whether votes of paid queries lie in a ledger's folder."""
    return any((folder / VOTES).glob("*.npz"))


def quoted_heads(runs: Iterable[pathlib.Path]) -> dict[pathlib.Path, Head]:
    """Returns the statements of run folders, each with the head of the ledger that it quotes.

    A file that is no statement quotes nothing.
    """
    found = {}
    for run in runs:
        path = run / artifacts.RELEASED / STATEMENT
        if path.exists():
            try:
                sequence, digest = artifacts.read_json(path)["ledger_head"]
                found[path] = Head(sequence=int(sequence), digest=str(digest))
            except (KeyError, TypeError, ValueError):
                continue
    return found


def own_run(folder: pathlib.Path) -> tuple[pathlib.Path, ...]:
    """Returns the run folder of a ledger's folder; none where that is no `sensitive/`."""
    folder = folder.resolve()
    return (folder.parent,) if folder.name == artifacts.SENSITIVE else ()
