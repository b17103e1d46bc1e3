"""Drafts the schema of a table: `pate schema --public=visits.csv --label=diagnosis`.

Reads PUBLIC records alone: what a schema says is known to everybody. Ranges of numbers and lists of
categories are those found in the public file; look them through, widen them to what is possible,
and state the classes. Never draft a schema from private records: of `--private=visits.csv` only the
names of columns are copied, and all else is yours to state. A first line that looks like a record,
or doesn't name the label, is refused.
"""

import pathlib

from absl import flags

from pate_tf.cli import command_line
from pate_tf.core.dataset import TARGETS
from pate_tf.data import loaded_data

FLAGS = flags.FLAGS


def define() -> None:
    """Defines the flags of this command."""
    flags.DEFINE_string("public", None, "Public records: comma-separated values or Parquet.")
    flags.DEFINE_string(
        "private", None, "Private records, of which only the column names are copied."
    )
    flags.DEFINE_string(
        "label", None, "The label's column, or several: edema,effusion. A public file may lack it."
    )
    flags.DEFINE_enum("target", None, TARGETS, "What the label is. Default: by public values.")
    flags.DEFINE_string("owner", None, "The column that says whose a private record is, if any.")
    flags.DEFINE_string("schema", "schema.toml", "Where the draft goes; never over another file.")


def main() -> None:
    """Reads the flags, drafts, writes."""
    path = pathlib.Path(FLAGS.schema)
    public, private = (command_line.path(FLAGS[name].value) for name in ("public", "private"))
    roles = {name: FLAGS[name].value for name in ("label", "owner", "target")}
    draft = loaded_data.draft_schema(public, path, private=private, **roles)
    print(draft, end="")
    print(f"\nWritten to {path}: look it through before you use it.")
