"""UCI's tables Adult and Diabetes: a schema each, and what reads the raw files.

A record's features depend on that record and on public documentation alone.
"""

import contextlib
import csv
import dataclasses
import hashlib
import io
import pathlib
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow

from pate_tf.data.schema import Schema, TableColumn
from pate_tf.data.tables import TextTable

URL = "https://archive.ics.uci.edu/ml/machine-learning-databases/"
DEFAULT_FOLDER = pathlib.Path.home() / "tensorflow_datasets"  # as of TensorFlow Datasets

Arrays = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class UciTable:
    """A table of UCI's.

    Attributes:
        schema: what is publicly known of it; its name is that of the folder of its files.
        files: SHA-256 of each file that UCI publishes, by its path there.
        read: from the paths of these files, and whether the public side is wanted, to its records.
    """

    schema: Schema
    files: Mapping[str, str]
    read: Callable[[list[pathlib.Path], bool], TextTable]

    def load(self, data_dir: pathlib.Path | None, *, public: bool) -> Arrays:
        """Returns features and labels of one side, in UCI's order.

        Raw files lie in the table's folder below `data_dir`. Those that lie there already are taken
        as they are; others are downloaded and checked by their digests.

        Raises:
            ValueError: if a file can't be had or is broken, or a record of it.
        """
        folder = (data_dir or DEFAULT_FOLDER) / str(self.schema.name)
        paths = [folder / pathlib.Path(file).name for file in self.files]
        for path, (file, digest) in zip(paths, self.files.items(), strict=True):
            if path.is_file():
                continue
            import keras  # takes seconds, which files at hand need not

            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    keras.utils.get_file(
                        *(path.name, URL + file),
                        file_hash=digest,
                        cache_dir=folder.parent,
                        cache_subdir=folder.name,
                    )
            except Exception as error:  # Keras and the network each raise their own kinds
                path.unlink(missing_ok=True)
                reason = str(error).strip().partition("\n")[0]
                raise ValueError(
                    f"expected {' and '.join(path.name for path in paths)} in {folder} or a "
                    f"network to download them from, got: {reason}"
                ) from error
        table = self.read(paths, public)
        labels = self.schema.labels(table.fields[str(self.schema.label)])
        if labels.min(initial=0) < 0:
            raise ValueError(f"{table.what}: expected labels of {self.schema.some_classes}")
        return table.inputs(self.schema)[0], labels


def table_of(lines: Iterable[str], what: str, names: Sequence[str] | None = None) -> TextTable:
    """Returns records of comma-separated values; the first names the columns unless `names` do.

    Raises:
        ValueError: if one has another number of fields.
    """
    records = list(filter(None, csv.reader(lines)))
    names = names or records.pop(0)
    try:
        columns = zip(*records, strict=True)
        fields = dict(zip(names, map(pyarrow.array, columns), strict=True))
    except ValueError:
        raise ValueError(f"{what}: expected {len(names)} fields in each line, got others") from None
    return TextTable(fields=fields, num_records=len(records), what=what)


def _columns(columns: Mapping[str, Any]) -> tuple[TableColumn, ...]:
    """Returns columns of numbers, by lowest and highest value, and of categories."""
    return tuple(
        TableColumn(name=name, categories=tuple(values.split()))
        if isinstance(values, str)
        else TableColumn(name=name, low=values[0], high=values[1])
        for name, values in columns.items()
    )


# Adult: does a person earn more than 50,000 dollars a year?
#
# 13 features as in the PATE paper: all of the table's but `fnlwgt`, which describes the sampling
# and not the person. Categories are those of `adult.names`, with `?` (not known) as one more. The
# files' own split and order stay, since the paper speaks of the first and last of the test file.
#
# Becker, B. and Kohavi, R. (1996). Adult. UCI Machine Learning Repository, CC BY 4.0,
# https://doi.org/10.24432/C5XW20.

# Ranges are those that the census allows or UCI documents, not measured on the records.
ADULT_COLUMNS = {
    "age": (0.0, 100.0),
    "workclass": "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov "
    "Without-pay Never-worked ?",
    "education": "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th "
    "12th Masters 1st-4th 10th Doctorate 5th-6th Preschool ?",
    "education-num": (1.0, 16.0),
    "marital-status": "Married-civ-spouse Divorced Never-married Separated Widowed "
    "Married-spouse-absent Married-AF-spouse ?",
    "occupation": "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty "
    "Handlers-cleaners Machine-op-inspct Adm-clerical Farming-fishing Transport-moving "
    "Priv-house-serv Protective-serv Armed-Forces ?",
    "relationship": "Wife Own-child Husband Not-in-family Other-relative Unmarried ?",
    "race": "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black ?",
    "sex": "Female Male ?",
    "capital-gain": (0.0, 99_999.0),
    "capital-loss": (0.0, 5_000.0),
    "hours-per-week": (0.0, 99.0),
    "native-country": "United-States Cambodia England Puerto-Rico Canada Germany "
    "Outlying-US(Guam-USVI-etc) India Japan Greece South China Cuba Iran Honduras Philippines "
    "Italy Poland Jamaica Vietnam Mexico Portugal Ireland France Dominican-Republic Laos Ecuador "
    "Taiwan Haiti Columbia Hungary Guatemala Nicaragua Scotland Thailand Yugoslavia El-Salvador "
    "Trinadad&Tobago Peru Hong Holand-Netherlands ?",
}
ADULT_FIELDS = (*list(ADULT_COLUMNS)[:2], "fnlwgt", *list(ADULT_COLUMNS)[2:], "income")


def read_adult(paths: list[pathlib.Path], public: bool) -> TextTable:
    """Returns the records of `adult.data`, or of `adult.test` if `public`."""
    path = paths[int(public)]
    # The test file begins with a line that is no record, and a full stop follows its labels.
    lines = [
        "" if line.startswith("|") else line.removesuffix(".")
        for line in path.read_text("utf-8", errors="replace").splitlines()
    ]
    return table_of(lines, path.name, ADULT_FIELDS)


ADULT = UciTable(
    schema=Schema(
        name="adult",
        columns=_columns(ADULT_COLUMNS),
        label="income",
        classes=("<=50K", ">50K"),
        pool_size=4_999,  # leaves the last 11,282 test records to evaluate on, as the paper does
    ),
    files={
        "adult/adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
        "adult/adult.test": "ceb625d3b5aeddf1e04cd5eec3268e18af4140fbde5a853a11223deeebcfe0f5",
    },
    read=read_adult,
)

# Diabetes: is a patient readmitted within 30 days?
#
# The PATE paper's set can't be rebuilt: it has 34,104 + 12,702 samples "balanced between the two
# output classes", but only 11,357 of the file's 101,766 encounters end in a readmission within 30
# days. So this is a set of its own:
#
# * 18 features: those that are never missing, identifiers aside, with the two laboratory results
#   ("None": not measured) and of the 23 drugs insulin, the only one whose dose often changes.
# * Balanced by a rule for each encounter alone: every readmission within 30 days is taken, and any
#   other encounter with the probability 11,357 / 90,409, from a hash of its public number. Neither
#   class has more than 52 % of a split.
# * A patient's encounters are all private or all public, by a hash of the patient's number, with
#   the paper's share of 12,702 / 46,806 in the test split.
#
# Clore, J., Cios, K., DeShazo, J. and Strack, B. (2014). Diabetes 130-US Hospitals for Years
# 1999-2008. UCI Machine Learning Repository, CC BY 4.0, https://doi.org/10.24432/C5230J.

DIABETES_MEMBER = "dataset_diabetes/diabetic_data.csv"
SHARE_OF_LATER_OR_NEVER = 11_357 / 90_409
TEST_SHARE = 12_702 / 46_806

# Codes and counts as `IDs_mapping.csv` and the article of Strack et al. (2014) list them.
DIABETES_COLUMNS = {
    "gender": "Female Male Unknown/Invalid",
    "age": " ".join(f"[{low}-{low + 10})" for low in range(0, 100, 10)),
    "admission_type_id": (1.0, 8.0),
    "discharge_disposition_id": (1.0, 30.0),
    "admission_source_id": (1.0, 26.0),
    "time_in_hospital": (1.0, 14.0),
    "num_lab_procedures": (0.0, 132.0),
    "num_procedures": (0.0, 6.0),
    "num_medications": (0.0, 81.0),
    "number_outpatient": (0.0, 42.0),
    "number_emergency": (0.0, 76.0),
    "number_inpatient": (0.0, 21.0),
    "number_diagnoses": (1.0, 16.0),
    "max_glu_serum": "None Norm >200 >300",
    "A1Cresult": "None Norm >7 >8",
    "insulin": "No Down Steady Up",
    "change": "No Ch",
    "diabetesMed": "No Yes",
}
READMISSIONS = {"<30": "within 30 days", ">30": "later or never", "NO": "later or never"}


def is_taken(encounter: str, readmitted: str) -> bool:
    """Whether an encounter is in the balanced set, by its number and its class alone."""
    is_late = readmitted in (">30", "NO")
    return not is_late or _fraction("encounter", encounter) < SHARE_OF_LATER_OR_NEVER


def is_public(patient: str) -> bool:
    """Whether a patient's encounters are in the test split: looks at the patient's number alone."""
    return _fraction("patient", patient) < TEST_SHARE


def _fraction(kind: str, number: str) -> float:
    """A fixed number in [0, 1) for each encounter or patient."""
    digest = hashlib.blake2b(f"{kind} {number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) / 2.0**64


def read_diabetes(paths: list[pathlib.Path], public: bool) -> TextTable:
    """Returns the encounters of the private or the public side.

    Raises:
        ValueError: if the archive is broken, or a record of it.
    """
    try:
        with zipfile.ZipFile(paths[0]) as archive:
            text = archive.read(DIABETES_MEMBER).decode("utf-8", errors="replace")
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError) as error:
        name = paths[0].name
        raise ValueError(f"{name}: expected a zip archive with {DIABETES_MEMBER}") from error
    table = table_of(text.splitlines(), pathlib.Path(DIABETES_MEMBER).name)
    encounters, patients, readmitted = (
        table.texts(name) for name in ("encounter_id", "patient_nbr", "readmitted")
    )
    kept = [
        place
        for place, patient in enumerate(patients)
        if is_public(patient) == public and is_taken(encounters[place], readmitted[place])
    ]
    taken = table.take(kept)
    labels = pyarrow.array([READMISSIONS.get(readmitted[place], "?") for place in kept])
    return dataclasses.replace(taken, fields={**taken.fields, "readmitted": labels})


DIABETES = UciTable(
    schema=Schema(
        name="diabetes",
        columns=_columns(DIABETES_COLUMNS),
        label="readmitted",
        classes=("within 30 days", "later or never"),  # the paper's classes 0 and 1
        pool_size=3_000,  # about half of the test split, as in the paper
    ),
    files={
        "00296/dataset_diabetes.zip": (
            "3a17a3b55b6dd4a1926703185c0ad8e2ed30bc8e2f9b927cdd1000b733d1de8e"
        )
    },
    read=read_diabetes,
)

TABLES = {"adult": ADULT, "diabetes": DIABETES}
