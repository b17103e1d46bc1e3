"""UCI's tables Adult and Diabetes as data sets of TensorFlow Datasets.

A record's features depend on that record and on public documentation alone: numbers as they are,
categories by their place in a public list. The module imports TensorFlow Datasets.
"""

import csv
import dataclasses
import functools
import hashlib
import io
import math
import pathlib
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import tensorflow_datasets as tfds

from pate_tf.core.dataset import Dataset
from pate_tf.data.tfds_source import RawDataError

MOST_NAMED = 12  # categories in an error message
URL = "https://archive.ics.uci.edu/ml/machine-learning-databases/"


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

    @property
    def value_range(self) -> tuple[float, float]:
        """Public low and high values."""
        return (
            (0.0, max(1.0, len(self.categories) - 1.0))
            if self.categories
            else (self.low, self.high)
        )

    def encode(self, text: str, place: str) -> float:
        """Returns a field as a number; RawDataError, without the value, if it is none."""
        try:
            number = float(self.categories.index(text) if self.categories else float(text))
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            listed = ", ".join(self.categories[:MOST_NAMED])
            expected = f"one of {listed}" if self.categories else "a finite number"
            raise RawDataError(f"{place}: {self.name}: expected {expected}, got something else")
        return number


@dataclasses.dataclass(frozen=True, kw_only=True)
class RawTable:
    """What is publicly known of a raw table.

    Attributes:
        name: of the data set.
        columns: of the features, in their order.
        label: name of the label's column.
        labels: from a label in the file to its class.
        classes: names of the classes.
        pool_size: how many public samples form the pool by default.
    """

    name: str
    columns: tuple[Column, ...]
    label: str
    labels: Mapping[str, int]
    classes: tuple[str, ...]
    pool_size: int

    @functools.cached_property
    def dataset(self) -> Dataset:
        """What a run knows of the table."""
        lows, highs = zip(*(column.value_range for column in self.columns), strict=True)
        return Dataset(
            name=self.name,
            kind="tabular",
            input_shape=(len(self.columns),),
            value_range=(lows, highs),
            num_categories=tuple(len(column.categories) for column in self.columns),
            num_classes=len(self.classes),
            class_names=self.classes,
            pool_size=self.pool_size,
        )

    def example(self, record: Mapping[str, str], place: str) -> dict[str, Any]:
        """Returns a record's features float32 `[num_columns]` and its label.

        Raises:
            RawDataError: if a field is an unknown category or label, or no finite number.
        """
        label = record[self.label].removesuffix(".")  # in Adult's test file a full stop follows
        if label not in self.labels:
            raise RawDataError(
                f"{place}: label: expected one of {', '.join(self.labels)}, got something else"
            )
        row = [column.encode(record[column.name], place) for column in self.columns]
        return {"features": np.array(row, np.float32), "label": self.labels[label]}


def raw_files(dl_manager: Any, urls: Mapping[str, str]) -> dict[str, pathlib.Path]:
    """Returns paths by file name: of `urls`, those in the manual folder, else downloaded ones.

    Downloads are checked against `checksums.tsv`.
    """
    try:
        folder = pathlib.Path(dl_manager.manual_dir)
    except AssertionError:  # how TFDS says that there is no such folder
        by_hand = []
    else:
        by_hand = [folder / name for name in urls if (folder / name).is_file()]
    if len(by_hand) < len(urls):
        by_hand = [pathlib.Path(path) for path in dl_manager.download(list(urls.values()))]
    return dict(zip(urls, by_hand, strict=True))


def read_records(
    lines: Iterable[str], fields: Sequence[str], *, file: str, first_line: int = 1
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yields where each comma-separated record stands, for messages, and its fields by name.

    Args:
        lines: of the file, without a header; blank ones are left out.
        fields: the name of each field.
        file: its name, for messages.
        first_line: the number of the first of `lines` in the file.

    Raises:
        RawDataError: if a record has another number of fields, or the file is no text.
    """
    reader = csv.reader(lines)
    try:
        for record in reader:
            if not record:
                continue
            place = f"{file}, line {reader.line_num + first_line - 1}"
            if len(record) != len(fields):
                raise RawDataError(f"{place}: expected {len(fields)} fields, got {len(record)}")
            yield place, dict(zip(fields, (field.strip() for field in record), strict=True))
    except (csv.Error, UnicodeDecodeError) as error:
        raise RawDataError(f"{file}: expected comma-separated text, got something else") from error


def builder_info(builder: Any, table: RawTable, homepage: str, **further: Any) -> Any:
    """Returns what TFDS is told of a table; `further` are features besides input and label."""
    dataset = table.dataset
    return tfds.core.DatasetInfo(
        builder=builder,
        description=type(builder).__doc__,
        features=tfds.features.FeaturesDict(
            {
                "features": tfds.features.Tensor(shape=dataset.input_shape, dtype=np.float32),
                "label": tfds.features.ClassLabel(names=dataset.class_names),
                **further,
            }
        ),
        supervised_keys=("features", "label"),
        homepage=f"https://archive.ics.uci.edu/dataset/{homepage}",
        license="CC BY 4.0",
        disable_shuffling=True,
    )


# Adult: does a person earn more than 50,000 dollars a year?

ADULT_FILES = ("adult.data", "adult.test")
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
ADULT_FIELDS = (
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation"),
    *("relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week"),
    *("native-country", "income"),
)
ADULT_TABLE = RawTable(
    name="adult",
    columns=ADULT_COLUMNS,
    label="income",
    labels={"<=50K": 0, ">50K": 1},
    classes=("<=50K", ">50K"),
    pool_size=4_999,  # leaves the last 11,282 test records to evaluate on, as the paper does
)
ADULT = ADULT_TABLE.dataset


class Adult(tfds.core.GeneratorBasedBuilder):
    """UCI Adult, the US census of 1994: 32,561 records in `adult.data`, 16,281 in `adult.test`.

    13 features as in the PATE paper: all of the table's but `fnlwgt`, which describes the sampling
    and not the person. Categories are numbered by the lists of `adult.names`, with `?` (not known)
    as one more. The files' own split and order stay, since the paper speaks of the first and last
    of the test file.

    Becker, B. and Kohavi, R. (1996). Adult. UCI Machine Learning Repository, CC BY 4.0,
    https://doi.org/10.24432/C5XW20.
    """

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES: ClassVar = {
        "1.0.0": "13 features, categories numbered by adult.names, UCI's order."
    }
    MANUAL_DOWNLOAD_INSTRUCTIONS = "Put UCI's adult.data and adult.test there."

    def _info(self) -> tfds.core.DatasetInfo:
        return builder_info(self, ADULT_TABLE, "2/adult")

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[Any]]:
        paths = raw_files(dl_manager, {name: f"{URL}adult/{name}" for name in ADULT_FILES})
        train, test = (self._generate_examples(paths[name]) for name in ADULT_FILES)
        return {"train": train, "test": test}

    def _generate_examples(self, path: pathlib.Path) -> Iterator[tuple[int, dict[str, Any]]]:
        with open(path, encoding="utf-8", newline="") as file:
            # The test file begins with a line that is no record.
            lines = ("\n" if line.startswith("|") else line for line in file)
            records = read_records(lines, ADULT_FIELDS, file=path.name)
            for index, (place, record) in enumerate(records):
                yield index, ADULT_TABLE.example(record, place)


# Diabetes: is a patient readmitted within 30 days?

DIABETES_FILES = ("dataset_diabetes.zip",)
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


class Diabetes(tfds.core.GeneratorBasedBuilder):
    """UCI Diabetes 130-US hospitals 1999-2008: is a patient readmitted within 30 days?

    The PATE paper's set can't be rebuilt: it has 34,104 + 12,702 samples "balanced between the two
    output classes", but only 11,357 of the file's 101,766 encounters end in a readmission within 30
    days. 93.94 % accuracy does not fit balanced classes either: a forest on all records of this
    set, without privacy, gets 60 % right (`benchmarks/forests.py`). This builder makes a set of its
    own:

    * 18 features: those that are never missing, identifiers aside, with the two laboratory results
      ("None": not measured) and of the 23 drugs insulin, the only one whose dose often changes.
    * Balanced by a rule for each encounter alone: every readmission within 30 days is taken, and
      any other encounter with the probability 11,357 / 90,409, from a hash of its public number.
      Neither class has more than 52 % of a split.
    * A patient's encounters are all private or all public, by a hash of the patient's number, with
      the paper's share of 12,702 / 46,806 in the test split.

    Clore, J., Cios, K., DeShazo, J. and Strack, B. (2014). Diabetes 130-US Hospitals for Years
    1999-2008. UCI Machine Learning Repository, CC BY 4.0, https://doi.org/10.24432/C5230J.
    """

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES: ClassVar = {
        "1.0.0": "18 features, classes balanced, patients on one side alone."
    }
    MANUAL_DOWNLOAD_INSTRUCTIONS = "Put UCI's dataset_diabetes.zip there."

    def _info(self) -> tfds.core.DatasetInfo:
        return builder_info(self, DIABETES_TABLE, "296", patient=tfds.features.Text())

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[Any]]:
        (name,) = DIABETES_FILES
        path = raw_files(dl_manager, {name: f"{URL}00296/{name}"})[name]
        sides = {"train": False, "test": True}
        return {side: self._generate_examples(path, public=one) for side, one in sides.items()}

    def _generate_examples(
        self, path: pathlib.Path, *, public: bool
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        index = 0
        for place, record in _encounters(path):
            patient, example = record["patient_nbr"], DIABETES_TABLE.example(record, place)
            if is_public(patient) == public and is_taken(record["encounter_id"], example["label"]):
                yield index, {**example, "patient": patient}
                index += 1


def _encounters(path: pathlib.Path) -> Iterator[tuple[str, dict[str, str]]]:
    needed = ["encounter_id", "patient_nbr", "readmitted", *(one.name for one in DIABETES_COLUMNS)]
    try:
        with zipfile.ZipFile(path) as archive, archive.open(DIABETES_MEMBER) as member:
            lines = io.TextIOWrapper(member, encoding="utf-8", newline="")
            header = next(csv.reader(lines), [])
            missing = [name for name in needed if name not in header]
            if missing:
                raise RawDataError(f"{path.name}: expected a column {missing[0]}, got none")
            yield from read_records(
                lines, header, file=pathlib.Path(DIABETES_MEMBER).name, first_line=2
            )
    except (zipfile.BadZipFile, KeyError, EOFError, UnicodeDecodeError) as error:
        raise RawDataError(f"{path.name}: expected a zip archive with {DIABETES_MEMBER}") from error
