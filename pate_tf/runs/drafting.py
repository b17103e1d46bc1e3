"""Drafts the schema of a table from its public records. TensorFlow is not imported."""

import pathlib

from pate_tf import artifacts
from pate_tf.data import schema_files, tables


def draft_schema(
    public: pathlib.Path,
    target: pathlib.Path,
    *,
    label: str | None = None,
    owner: str | None = None,
) -> str:
    """Writes a draft of a schema, and returns it.

    Args:
      public: a file of PUBLIC records.
      target: where the draft goes.
      label: name of the label's column, which public records need not have.
      owner: name of the owner's column.

    Raises:
      ValueError: if there is a file at `target` already, it can't be written, or the records can't
        be read.
    """
    if target.exists():
        raise ValueError(f"schema: expected a file that is not there yet, got {target}")
    artifacts.check_can_hold_files(target.parent)
    fields, _ = tables.read_fields(public)
    text = schema_files.draft(fields, label=label, owner=owner)
    artifacts.write_text(target, text)
    return text
