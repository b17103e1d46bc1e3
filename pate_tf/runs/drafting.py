"""Drafts the schema of a table from its public records. TensorFlow is not imported."""

import pathlib

from pate_tf import artifacts
from pate_tf.data import schema_files, tables


def draft_schema(
    public: pathlib.Path | None,
    target: pathlib.Path,
    *,
    label: str | None = None,
    owner: str | None = None,
) -> str:
    """Writes a draft of a schema, and returns it.

    Args:
      public: a file of PUBLIC records; None, which is refused, where nobody named one.
      target: where the draft goes.
      label: name of the label's column, which public records need not have.
      owner: name of the owner's column.

    Raises:
      ValueError: if no records are named or they can't be read, there is a file at `target`
        already, or it can't be written.
    """
    if public is None:
        raise ValueError(
            "public: expected a file of public records, of comma-separated values or Parquet, got "
            "none"
        )
    if target.exists():
        raise ValueError(f"schema: expected a file that is not there yet, got {target}")
    artifacts.check_can_hold_files(target.parent)
    fields, _ = tables.read_fields(public)
    text = schema_files.draft(fields, label=label, owner=owner)
    artifacts.write_text(target, text)
    return text
