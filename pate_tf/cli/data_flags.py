"""The flags that name a user's own data: two tables with a schema, or two folders of images."""

import pathlib

from absl import flags

from pate_tf.cli import command_line
from pate_tf.runs.files import FileSource

FLAGS = flags.FLAGS
NAMES = ("public", "schema", "label")


def define(*, with_private: bool) -> None:
    """Defines the flags.

    Args:
      with_private: whether the command may open private records.
    """
    if with_private:
        flags.DEFINE_string(
            "private",
            None,
            "Private records, instead of --dataset: a file of comma-separated values or Parquet, "
            "or a folder with a folder of images for each class. --public goes with it.",
        )
        flags.DEFINE_string(
            "owner",
            None,
            "Column that says whose a private record is: all records of one owner go to one "
            "teacher. Default: what the schema says, if anything.",
        )
    flags.DEFINE_string(
        "public",
        None,
        "Public records, instead of --dataset: a file, or a folder of images. They need no labels.",
    )
    flags.DEFINE_string(
        "schema",
        None,
        "Of files: a TOML file with each column's range or categories, and the classes, from "
        "public knowledge; pate-schema drafts it from the public file.",
    )
    flags.DEFINE_string("label", None, "Of files: the label's column. Default: the schema's.")


def own_files(*, with_private: bool) -> FileSource | None:
    """Returns the files that the flags name; None for none.

    Raises:
      ValueError: if flags are missing that belong together, or --dataset is given too.
    """
    names = (*NAMES, *(("private", "owner") if with_private else ()))
    given = {name: FLAGS[name].value for name in names if FLAGS[name].present}
    if not given:
        return None
    for name in ("public", *(("private",) if with_private else ())):
        if not given.get(name):
            raise ValueError(f"{name}: expected it with --{next(iter(given))}, got none")
    for name in ("dataset", "data_dir"):
        if FLAGS[name].present:
            raise ValueError(f"{name}: expected --{name} or --public, got both")
    return FileSource(
        public=pathlib.Path(given["public"]),
        private=command_line.path(given.get("private")),
        schema=command_line.path(given.get("schema")),
        label=given.get("label"),
        owner=given.get("owner"),
    )
