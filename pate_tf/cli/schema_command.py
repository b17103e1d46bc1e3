"""Drafts the schema of a table: `pate schema --public=visits.csv --label=diagnosis`.

The command reads only PUBLIC records, because everything in a schema is public. Ranges of numbers
and lists of categories come from the public file. Check these ranges and lists, extend them to all
possible values, and list the classes. A schema is never drafted from private records: with
`--private=visits.csv`, only the column names are copied, and you must fill in the rest. The command
fails if the first line of that file looks like a record or does not contain the label.
"""

import pathlib
import tomllib

from absl import flags

from pate_tf.cli import command_line
from pate_tf.core.dataset import TARGETS
from pate_tf.data import loaded_data
from pate_tf.data.schema import split_names

FLAGS = flags.FLAGS


def define() -> None:
    """Defines the flags of this command."""
    flags.DEFINE_string("public", None, "Public records: CSV or Parquet.")
    flags.DEFINE_string("private", None, "Private records. Only the column names are copied.")
    flags.DEFINE_string(
        "label", None, "Label columns, such as edema,effusion. The public file may lack them."
    )
    flags.DEFINE_enum("target", None, TARGETS, "Type of the label. Default: from public labels.")
    flags.DEFINE_string("classes", None, "All classes, such as no,yes. Default: the public labels.")
    flags.DEFINE_string("owner", None, "Private column that identifies the owner of each record.")
    flags.DEFINE_string("schema", "schema.toml", "File to create. It must not exist yet.")


def main() -> None:
    """Reads the flags and writes a draft of the schema."""
    path = pathlib.Path(FLAGS.schema)
    public, private = (command_line.path(FLAGS[name].value) for name in ("public", "private"))
    roles = {name: FLAGS[name].value for name in ("label", "owner", "target")}
    roles["classes"] = split_names(FLAGS.classes)
    draft = loaded_data.draft_schema(public, path, private=private, **roles)
    print(draft, end="")
    command_line.write_report(None, tomllib.loads(draft))
    print(f"\nWritten to {path}. Review it before you use it.")
