"""What is written to a SQLite database together becomes durable together."""

import contextlib
import sqlite3
from collections.abc import Iterator


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection, *, read_only: bool = False) -> Iterator[None]:
    """Runs the block as one transaction: all of it, or nothing if it raises.

    Args:
      connection: with `isolation_level=None`.
      read_only: whether the block only reads, and sees the database as it was at one moment; else
        no other process writes meanwhile.
    """
    connection.execute("BEGIN" if read_only else "BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
