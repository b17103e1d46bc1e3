"""Where a run keeps its files, and how they are written: whole or not at all.

A run directory has two halves. `sensitive/` (mode 0700, files 0600) holds whatever depends on
private data: teachers, partition, votes, ledger, teacher logs. `released/` holds what may be
published: noisy labels, student, statement.
"""

from pate_tf.artifacts.atomic import (
    atomic_file,
    atomic_folder,
    check_can_hold_files,
    one_at_a_time,
    only_writer,
    remove_abandoned,
    sync_folder,
)
from pate_tf.artifacts.digests import digest_array, digest_arrays, digest_paths
from pate_tf.artifacts.folders import (
    NEUTRAL_HOST,
    RELEASED,
    SENSITIVE,
    RunDirectory,
    hide_host,
    is_within,
    make_private,
    make_sensitive_folder,
)
from pate_tf.artifacts.formats import (
    read_array,
    read_arrays,
    read_json,
    write_arrays,
    write_json,
    write_text,
)
from pate_tf.artifacts.transactions import transaction

__all__ = [
    "NEUTRAL_HOST",
    "RELEASED",
    "SENSITIVE",
    "RunDirectory",
    "atomic_file",
    "atomic_folder",
    "check_can_hold_files",
    "digest_array",
    "digest_arrays",
    "digest_paths",
    "hide_host",
    "is_within",
    "make_private",
    "make_sensitive_folder",
    "one_at_a_time",
    "only_writer",
    "read_array",
    "read_arrays",
    "read_json",
    "remove_abandoned",
    "sync_folder",
    "transaction",
    "write_arrays",
    "write_json",
    "write_text",
]
