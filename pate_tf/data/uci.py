"""UCI's tables Adult and Diabetes, read from their raw files.

A record's features depend on that record and on public documentation alone: numbers as they are,
categories by their place in a public list.
"""

import contextlib
import csv
import dataclasses
import functools
import hashlib
import io
import math
import pathlib
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from pate_tf.core.dataset import Dataset

MOST_NAMED = 12  # categories in an error message
URL = "https://archive.ics.uci.edu/ml/machine-learning-databases/"
DEFAULT_FOLDER = pathlib.Path.home() / "tensorflow_datasets"  # as of TensorFlow Datasets

Arrays = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]
Records = Iterable[tuple[str, dict[str, str]]]  # where each stands, for messages; fields by name


@dataclasses.dataclass(frozen=True)
class Column:
    """One feature of a table: a number from `low` to `high` by which it is scaled, or a category.

    Attributes:
        name: as the table's documentation calls it.
        categories: what it can be, in the order of their numbers from 0 on; empty for a number.
        low: lowest value to scale by, in the column's own unit.
        high: highest value to scale by; values outside are allowed.
    """

    name: str
    categories: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 1.0

    def encode(self, text: str, place: str) -> float:
        """Returns a field as a number; ValueError, without the value, if it is none."""
        try:
            number = float(self.categories.index(text) if self.categories else float(text))
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            listed = ", ".join(self.categories[:MOST_NAMED])
            expected = f"one of {listed}" if self.categories else "a finite number"
            raise ValueError(
                f"{place}: {self.name}: expected {expected}, got something else"
            ) from None
        return number


@dataclasses.dataclass(frozen=True, kw_only=True)
class RawTable:
    """What is publicly known of a raw table.

    Attributes:
        name: of the data set, and of the folder of its files.
        files: SHA-256 of each file that UCI publishes, by its path there.
        columns: of the features, in their order.
        label: name of the label's column.
        labels: from a label in the file to its class.
        classes: names of the classes.
        pool_size: how many public samples form the pool by default.
    """

    name: str
    files: Mapping[str, str]
    columns: tuple[Column, ...]
    label: str
    labels: Mapping[str, int]
    classes: tuple[str, ...]
    pool_size: int

    @functools.cached_property
    def dataset(self) -> Dataset:
        """What a run knows of the table."""
        return Dataset(
            name=self.name,
            kind="tabular",
            input_shape=(len(self.columns),),
            value_range=(
                tuple(0.0 if column.categories else column.low for column in self.columns),
                tuple(
                    max(1.0, len(column.categories) - 1.0) if column.categories else column.high
                    for column in self.columns
                ),
            ),
            num_categories=tuple(len(column.categories) for column in self.columns),
            num_classes=len(self.classes),
            class_names=self.classes,
            pool_size=self.pool_size,
        )

    def paths(self, data_dir: pathlib.Path | None) -> list[pathlib.Path]:
        """Returns the raw files in the table's folder below `data_dir`; missing ones are fetched.

        Files that lie there already are taken as they are. Downloads are checked by their digests.

        Raises:
            ValueError: if a file is not there and can't be downloaded.
        """
        import keras  # takes seconds, which files at hand need not

        folder = (data_dir or DEFAULT_FOLDER) / self.name
        paths = [folder / pathlib.Path(file).name for file in self.files]
        for path, (file, digest) in zip(paths, self.files.items(), strict=True):
            if path.is_file():
                continue
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
                    f"expected {' and '.join(each.name for each in paths)} in {folder} or a "
                    f"network to download them from, got: {reason}"
                ) from error
        return paths

    def arrays(self, records: Records) -> Arrays:
        """Returns features float32 `[num_records, num_columns]` and labels int64 `[num_records]`.

        Raises:
            ValueError: if a field is an unknown category or label, or no finite number. The message
                names a place and no value.
        """
        rows, labels = [], []
        for place, record in records:
            label = record[self.label].removesuffix(".")  # in Adult's test file a full stop follows
            if label not in self.labels:
                raise ValueError(
                    f"{place}: label: expected one of {', '.join(self.labels)}, got something else"
                )
            labels.append(self.labels[label])
            rows.append([column.encode(record[column.name], place) for column in self.columns])
        inputs = np.array(rows, np.float32).reshape(len(rows), len(self.columns))
        return inputs, np.array(labels, np.int64)


def read_records(
    lines: Iterable[str], fields: Sequence[str], *, file: str, first_line: int = 1
) -> Records:
    """Yields where each comma-separated record stands, for messages, and its fields by name.

    Args:
        lines: of the file, without a header; blank ones are left out.
        fields: the name of each field.
        file: its name, for messages.
        first_line: the number of the first of `lines` in the file.

    Raises:
        ValueError: if a record has another number of fields, or the file is no text.
    """
    reader = csv.reader(lines)
    try:
        for record in filter(None, reader):
            place = f"{file}, line {reader.line_num + first_line - 1}"
            if len(record) != len(fields):
                raise ValueError(f"{place}: expected {len(fields)} fields, got {len(record)}")
            yield place, dict(zip(fields, (field.strip() for field in record), strict=True))
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"{file}: expected comma-separated text, got something else") from error


# Adult: does a person earn more than 50,000 dollars a year?
#
# 13 features as in the PATE paper: all of the table's but `fnlwgt`, which describes the sampling
# and not the person. Categories are numbered by the lists of `adult.names`, with `?` (not known) as
# one more. The files' own split and order stay, since the paper speaks of the first and last of the
# test file.
#
# Becker, B. and Kohavi, R. (1996). Adult. UCI Machine Learning Repository, CC BY 4.0,
# https://doi.org/10.24432/C5XW20.

ADULT_UNKNOWN = "?"


def _listed(name: str, categories: str) -> Column:
    return Column(name, (*categories.split(), ADULT_UNKNOWN))


# Ranges are those that the census allows or UCI documents, not measured on the records.
ADULT_COLUMNS = (
    Column("age", low=0.0, high=100.0),
    _listed(
        "workclass",
        "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay "
        "Never-worked",
    ),
    _listed(
        "education",
        "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th 12th "
        "Masters 1st-4th 10th Doctorate 5th-6th Preschool",
    ),
    Column("education-num", low=1.0, high=16.0),
    _listed(
        "marital-status",
        "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent "
        "Married-AF-spouse",
    ),
    _listed(
        "occupation",
        "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty "
        "Handlers-cleaners Machine-op-inspct Adm-clerical Farming-fishing Transport-moving "
        "Priv-house-serv Protective-serv Armed-Forces",
    ),
    _listed("relationship", "Wife Own-child Husband Not-in-family Other-relative Unmarried"),
    _listed("race", "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black"),
    _listed("sex", "Female Male"),
    Column("capital-gain", low=0.0, high=99_999.0),
    Column("capital-loss", low=0.0, high=5_000.0),
    Column("hours-per-week", low=0.0, high=99.0),
    _listed(
        "native-country",
        "United-States Cambodia England Puerto-Rico Canada Germany Outlying-US(Guam-USVI-etc) "
        "India Japan Greece South China Cuba Iran Honduras Philippines Italy Poland Jamaica "
        "Vietnam Mexico Portugal Ireland France Dominican-Republic Laos Ecuador Taiwan Haiti "
        "Columbia Hungary Guatemala Nicaragua Scotland Thailand Yugoslavia El-Salvador "
        "Trinadad&Tobago Peru Hong Holand-Netherlands",
    ),
)
_NAMES = tuple(column.name for column in ADULT_COLUMNS)
ADULT_FIELDS = (*_NAMES[:2], "fnlwgt", *_NAMES[2:], "income")
ADULT_TABLE = RawTable(
    name="adult",
    files={
        "adult/adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
        "adult/adult.test": "ceb625d3b5aeddf1e04cd5eec3268e18af4140fbde5a853a11223deeebcfe0f5",
    },
    columns=ADULT_COLUMNS,
    label="income",
    labels={"<=50K": 0, ">50K": 1},
    classes=("<=50K", ">50K"),
    pool_size=4_999,  # leaves the last 11,282 test records to evaluate on, as the paper does
)
ADULT = ADULT_TABLE.dataset


def read_adult(data_dir: pathlib.Path | None, *, public: bool) -> Arrays:
    """Returns features and labels of `adult.data`, or of `adult.test` if `public`."""
    path = ADULT_TABLE.paths(data_dir)[int(public)]
    with open(path, encoding="utf-8", newline="") as file:
        # The test file begins with a line that is no record.
        lines = ("\n" if line.startswith("|") else line for line in file)
        return ADULT_TABLE.arrays(read_records(lines, ADULT_FIELDS, file=path.name))


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
DIABETES_COLUMNS = (
    Column("gender", ("Female", "Male", "Unknown/Invalid")),
    Column("age", tuple(f"[{low}-{low + 10})" for low in range(0, 100, 10))),
    Column("admission_type_id", low=1.0, high=8.0),
    Column("discharge_disposition_id", low=1.0, high=30.0),
    Column("admission_source_id", low=1.0, high=26.0),
    Column("time_in_hospital", low=1.0, high=14.0),
    Column("num_lab_procedures", low=0.0, high=132.0),
    Column("num_procedures", low=0.0, high=6.0),
    Column("num_medications", low=0.0, high=81.0),
    Column("number_outpatient", low=0.0, high=42.0),
    Column("number_emergency", low=0.0, high=76.0),
    Column("number_inpatient", low=0.0, high=21.0),
    Column("number_diagnoses", low=1.0, high=16.0),
    Column("max_glu_serum", ("None", "Norm", ">200", ">300")),
    Column("A1Cresult", ("None", "Norm", ">7", ">8")),
    Column("insulin", ("No", "Down", "Steady", "Up")),
    Column("change", ("No", "Ch")),
    Column("diabetesMed", ("No", "Yes")),
)
DIABETES_TABLE = RawTable(
    name="diabetes",
    files={
        "00296/dataset_diabetes.zip": (
            "3a17a3b55b6dd4a1926703185c0ad8e2ed30bc8e2f9b927cdd1000b733d1de8e"
        ),
    },
    columns=DIABETES_COLUMNS,
    label="readmitted",
    labels={"<30": 0, ">30": 1, "NO": 1},  # the paper's classes 0 and 1
    classes=("within 30 days", "later or never"),
    pool_size=3_000,  # about half of the test split, as in the paper
)
DIABETES = DIABETES_TABLE.dataset


def is_taken(encounter: str, label: int) -> bool:
    """Whether an encounter is in the balanced set, by its number and its class alone."""
    return label == 0 or _fraction("encounter", encounter) < SHARE_OF_LATER_OR_NEVER


def is_public(patient: str) -> bool:
    """Whether a patient's encounters are in the test split: looks at the patient's number alone."""
    return _fraction("patient", patient) < TEST_SHARE


def _fraction(kind: str, number: str) -> float:
    """A fixed number in [0, 1) for each encounter or patient."""
    digest = hashlib.blake2b(f"{kind} {number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) / 2.0**64


def read_diabetes(data_dir: pathlib.Path | None, *, public: bool) -> Arrays:
    """Returns features and labels of the private or the public side, in UCI's order.

    Raises:
        ValueError: if the archive is broken, or a record of it.
    """
    (path,) = DIABETES_TABLE.paths(data_dir)
    named = ["encounter_id", "patient_nbr", "readmitted", *(each.name for each in DIABETES_COLUMNS)]
    try:
        with zipfile.ZipFile(path) as archive, archive.open(DIABETES_MEMBER) as member:
            lines = io.TextIOWrapper(member, encoding="utf-8", newline="")
            header = next(csv.reader(lines), [])
            if missing := [name for name in named if name not in header]:
                raise ValueError(f"{path.name}: expected a column {missing[0]}, got none")
            file = pathlib.Path(DIABETES_MEMBER).name
            return DIABETES_TABLE.arrays(
                (place, record)
                for place, record in read_records(lines, header, file=file, first_line=2)
                if is_public(record["patient_nbr"]) == public
                and is_taken(
                    record["encounter_id"], DIABETES_TABLE.labels.get(record["readmitted"], 0)
                )
            )
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError, UnicodeDecodeError) as error:
        raise ValueError(f"{path.name}: expected a zip archive with {DIABETES_MEMBER}") from error


# What reads a table, and what is known of it, by the name of its data set.
TABLES = {"adult": (ADULT, read_adult), "diabetes": (DIABETES, read_diabetes)}
