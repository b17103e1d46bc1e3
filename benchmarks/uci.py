"""UCI's tables Adult and Diabetes: `--dataset=benchmarks.uci:adult` and `benchmarks.uci:diabetes`.

Each has a schema and a function that reads the raw files. A record's features depend only on that
record and on public documentation.
"""

import contextlib
import csv
import dataclasses
import hashlib
import io
import pathlib
import zipfile
import zlib
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow

from pate_tf.core.dataset import Dataset
from pate_tf.data.schema import read_schema, texts_of
from pate_tf.data.tables import TextTable

URL = "https://archive.ics.uci.edu/ml/machine-learning-databases/"
DEFAULT_FOLDER = pathlib.Path.home() / "tensorflow_datasets"  # as in TensorFlow Datasets

# SHA-256 of each file from UCI, by its path on the server.
FILES = {
    "adult": {
        "adult/adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
        "adult/adult.test": "ceb625d3b5aeddf1e04cd5eec3268e18af4140fbde5a853a11223deeebcfe0f5",
    },
    "diabetes": {
        "00296/dataset_diabetes.zip": (
            "3a17a3b55b6dd4a1926703185c0ad8e2ed30bc8e2f9b927cdd1000b733d1de8e"
        )
    },
}
SCHEMAS = {name: read_schema(pathlib.Path(__file__).with_name(f"{name}.toml")) for name in FILES}
FUNCTIONS = {name: f"benchmarks.uci:{name}" for name in FILES}  # as `--dataset` takes them
Side = tuple[Dataset, npt.NDArray[np.float32], npt.NDArray[np.int64]]


def adult(side: str, data_dir: pathlib.Path | None) -> Side:
    """Returns Adult's `side`, "private" or "public": the data set, features, labels.

    Records are in UCI's order. Raw files are in the table's folder below `data_dir`. Existing files
    are used unchanged. Missing files are downloaded and checked by their digests.

    Raises:
        ValueError: if a file or one of its records is broken, or if the download fails.
    """
    path = raw_files("adult", data_dir)[int(side == "public")]
    lines = path.read_text("utf-8", errors="replace").splitlines()
    # The first line of the test file is not a record.
    records = (line for line in lines if not line.startswith("|"))
    return _side("adult", table_of(records, path.name, ADULT_FIELDS))


def diabetes(side: str, data_dir: pathlib.Path | None) -> Side:
    """Returns a side of Diabetes; see `adult`."""
    return _side("diabetes", read_diabetes(*raw_files("diabetes", data_dir), side == "public"))


def raw_files(name: str, data_dir: pathlib.Path | None) -> list[pathlib.Path]:
    folder = (data_dir or DEFAULT_FOLDER) / name
    paths = [folder / pathlib.Path(file).name for file in FILES[name]]
    for path, (file, digest) in zip(paths, FILES[name].items(), strict=True):
        if path.is_file():
            continue
        import keras  # takes seconds, and existing files do not need it

        try:
            with contextlib.redirect_stdout(io.StringIO()):
                keras.utils.get_file(
                    path.name,
                    URL + file,
                    file_hash=digest,
                    cache_dir=folder.parent,
                    cache_subdir=folder.name,
                )
        except Exception as error:  # Keras and the network have different exceptions
            path.unlink(missing_ok=True)
            reason = str(error).strip().partition("\n")[0]
            raise ValueError(
                f"{folder} must contain {' and '.join(path.name for path in paths)}, because they "
                f"can't be downloaded: {reason}"
            ) from error
    return paths


def _side(name: str, table: TextTable) -> Side:
    schema = SCHEMAS[name]
    labels, fits = schema.labels(table.fields[str(schema.label)])
    if not fits.all():
        raise ValueError(f"{table.what}: label must be {schema.expected_label()}")
    return schema.dataset(name, 1), table.inputs(schema)[0], labels


def table_of(lines: Iterable[str], what: str, names: Sequence[str] | None = None) -> TextTable:
    """Returns comma-separated records; the first names the columns unless `names` are given.

    Raises:
        ValueError: if a record has another number of fields.
    """
    records = list(filter(None, csv.reader(lines)))
    names = names or records.pop(0)
    try:
        columns = zip(*records, strict=True)
        fields = dict(zip(names, map(pyarrow.array, columns), strict=True))
    except ValueError:
        raise ValueError(f"{what}: each line must have {len(names)} fields") from None
    return TextTable(fields=fields, what=what)


# Adult: does a person earn more than 50,000 dollars a year?
#
# `adult.toml` lists its columns. The split and order of the files stay, because the paper refers
# to the first and last records of the test file.
#
# Becker, B. and Kohavi, R. (1996). Adult. UCI Machine Learning Repository, CC BY 4.0,
# https://doi.org/10.24432/C5XW20.

ADULT_FIELDS = [column.name for column in SCHEMAS["adult"].columns]
ADULT_FIELDS[2:] = ["fnlwgt", *ADULT_FIELDS[2:], "income"]


# Diabetes: is a patient readmitted within 30 days?
#
# The PATE paper's set can't be rebuilt: it has 34,104 + 12,702 samples "balanced between the two
# output classes", but only 11,357 of the file's 101,766 encounters end in a readmission within 30
# days. So this is a different set:
#
# * 18 features: all that are never missing, except identifiers, and the two laboratory results
#   ("None": not measured). Only insulin of the 23 drugs is used, because its dose often changes.
# * Balanced by a rule that looks at one encounter only: every readmission within 30 days is taken.
#   Any other encounter is taken with the probability 11,357 / 90,409, from a hash of its public
#   number. Neither class has more than 52 % of a split.
# * A patient's encounters are all private or all public, by a hash of the patient's number. The
#   test split has the paper's fraction of 12,702 / 46,806.
#
# Clore, J., Cios, K., DeShazo, J. and Strack, B. (2014). Diabetes 130-US Hospitals for Years
# 1999-2008. UCI Machine Learning Repository, CC BY 4.0, https://doi.org/10.24432/C5230J.

DIABETES_MEMBER = "dataset_diabetes/diabetic_data.csv"
SHARE_OF_LATER_OR_NEVER = 11_357 / 90_409
TEST_SHARE = 12_702 / 46_806

READMISSIONS = {"<30": "within 30 days", ">30": "later or never", "NO": "later or never"}


def is_taken(encounter: str, readmitted: str) -> bool:
    """Returns whether an encounter is in the balanced set, from its number and class only."""
    is_late = readmitted in (">30", "NO")
    return not is_late or _fraction("encounter", encounter) < SHARE_OF_LATER_OR_NEVER


def is_public(patient: str) -> bool:
    """Returns whether a patient's encounters are in the test split, from the patient's number."""
    return _fraction("patient", patient) < TEST_SHARE


def _fraction(kind: str, number: str) -> float:
    """Returns a fixed number in [0, 1) for each encounter or patient."""
    digest = hashlib.blake2b(f"{kind} {number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) / 2.0**64


def read_diabetes(path: pathlib.Path, public: bool) -> TextTable:
    """Returns the encounters of the private or the public side.

    Raises:
        ValueError: if the archive or one of its records is broken.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            text = archive.read(DIABETES_MEMBER).decode("utf-8", errors="replace")
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError) as error:
        raise ValueError(f"{path.name} must be a zip archive with {DIABETES_MEMBER}") from error
    table = table_of(text.splitlines(), pathlib.Path(DIABETES_MEMBER).name)
    encounters, patients, readmitted = (
        texts_of(table.fields[name]).to_pylist()
        for name in ("encounter_id", "patient_nbr", "readmitted")
    )
    kept = [
        place
        for place, patient in enumerate(patients)
        if is_public(patient) == public and is_taken(encounters[place], readmitted[place])
    ]
    fields = {name: column.take(kept) for name, column in table.fields.items()}
    fields["readmitted"] = pyarrow.array(
        [READMISSIONS.get(readmitted[place], "?") for place in kept]
    )
    return dataclasses.replace(table, fields=fields)
