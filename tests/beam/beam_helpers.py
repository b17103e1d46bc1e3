"""A synthetic table in several formats, and the result of one process.

Run with a folder of that table and a run folder, this script adds the records in one process.
"""

import csv
import os
import pathlib
import sys

import numpy as np
import pyarrow

from pate_tf.core.dataset import Dataset
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.data.data_source import DataSource, FileSource
from pate_tf.data.schema import read_schema
from pate_tf.data.tables import TextTable

SCHEMA = """
label = "ill"
classes = ["no", "yes", "7"]
[columns.age]
low = 0
high = 100
[columns.dose]
low = -1
high = 1
missing = 0.25
[columns.town]
categories = ["A", "B", "3"]
other = true
"""
NUMBER = 400
NAMES = ["age", "dose", "town", "ill", "who"]


def table(number: int = NUMBER, seed: int = 0) -> list[list[object]]:
    """Returns rows with empty fields, numbers out of range, and duplicate rows."""
    random = np.random.default_rng(seed)
    rows: list[list[object]] = []
    for _ in range(number):
        age, label = float(random.integers(-5, 120)), int(random.integers(3))
        dose = "" if random.random() < 0.1 else float(random.normal())
        rows.append(
            [
                *(age, dose, ["A", "B", "3", "elsewhere"][random.integers(4)]),
                *(["no", "yes", "7"][label], f"owner {random.integers(number // 4)}"),
            ]
        )
    return [*rows, *rows[:20]]


def write_csv(path: pathlib.Path, rows) -> None:
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([NAMES, *rows])


def write_parquet(path: pathlib.Path, rows, group: int = 70) -> None:
    import pyarrow
    from pyarrow import parquet

    columns = {
        name: [None if row[place] == "" else row[place] for row in rows]
        for place, name in enumerate(NAMES)
    }
    parquet.write_table(pyarrow.table(columns), path, row_group_size=group)


def write_public(folder: pathlib.Path) -> DataSource:
    """Writes a public file and a schema."""
    write_csv(folder / "public.csv", [[*row[:4], ""] for row in table(60, seed=9)])
    (folder / "schema.toml").write_text(SCHEMA)
    return DataSource(files=FileSource(public=folder / "public.csv", schema=folder / "schema.toml"))


def examples(data: DataSource, rows, *, owners: bool) -> PrivateExamples:
    """Returns the examples that one process reads."""
    schema, dataset = read_schema(data.files.schema), data.files.load_public().dataset
    assert isinstance(dataset, Dataset)
    fields = {
        name: pyarrow.array([str(row[place]) for row in rows]) for place, name in enumerate(NAMES)
    }
    records = TextTable(fields=fields, what="table")
    return PrivateExamples(
        dataset,
        records.inputs(schema)[0],
        schema.labels(fields["ill"])[0],
        np.array(fields["who"].to_pylist()) if owners else None,
    )


def object_store(root: pathlib.Path):
    """Makes `kept://` a Beam file system that has objects and no folders, below `root`."""
    from apache_beam.io.filesystem import FileMetadata
    from apache_beam.io.localfilesystem import LocalFileSystem

    def local(path: str) -> str:
        assert path.startswith("kept://"), path
        return str(root / path.removeprefix("kept://").replace("/", "%"))

    class ObjectStore(LocalFileSystem):
        @classmethod
        def scheme(cls):
            return "kept"

        def join(self, base, *paths):
            return "/".join([base.rstrip("/"), *paths])

        def mkdirs(self, path):
            pass

        def has_dirs(self):
            return False

        def _list(self, prefix):
            for path in sorted(root.iterdir()):
                name = "kept://" + path.name.replace("%", "/")
                if name.startswith(prefix):
                    yield FileMetadata(name, path.stat().st_size, 0.0)

        def create(self, path, *given, **named):
            return super().create(local(path), *given, **named)

        def open(self, path, *given, **named):
            return super().open(local(path), *given, **named)

        def exists(self, path):
            return os.path.exists(local(path))

        def rename(self, sources, targets):
            super().rename([*map(local, sources)], [*map(local, targets)])

        def delete(self, paths):
            for path in paths:
                below = [one.path for one in self._list(path)] if path.endswith("/") else [path]
                for one in below:
                    os.remove(local(one))

    return ObjectStore


if __name__ == "__main__":
    from pate_tf import beam

    here, run = map(pathlib.Path, sys.argv[1:])
    data = DataSource(files=FileSource(public=here / "public.csv", schema=here / "schema.toml"))
    beam.sums(data, directory=run, private=str(here / "records-*.csv"), pool_size=40)
