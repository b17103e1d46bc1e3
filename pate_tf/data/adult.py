"""UCI Adult: does a person earn more than 50,000 dollars a year (US census of 1994)?

13 features as in the paper: all of the table's but `fnlwgt`, which describes the sampling and not
the person. Categories are numbered by the lists of `adult.names`, with `?` (not known) as one more.
The files' own split and order are kept, since the paper speaks of the first and last of the test
file.

Becker, B. and Kohavi, R. (1996). Adult. UCI Machine Learning Repository, CC BY 4.0,
https://doi.org/10.24432/C5XW20.
"""

import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import tensorflow_datasets as tfds

from pate_tf.core.dataset import Dataset
from pate_tf.data import columns
from pate_tf.data.columns import Column

TRAIN_FILE, TEST_FILE = "adult.data", "adult.test"
FILES = (TRAIN_FILE, TEST_FILE)
_URL = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/"
_UNKNOWN = "?"


def _listed(name: str, categories: str) -> Column:
    return Column(name, (*categories.split(), _UNKNOWN))


# Ranges are those that the census allows or UCI documents, not measured on the records.
COLUMNS = (
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
_FIELDS = (
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation"),
    *("relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week"),
    *("native-country", "income"),
)
_CLASSES = ("<=50K", ">50K")

ADULT = Dataset(
    name="adult",
    kind="tabular",
    input_shape=(len(COLUMNS),),
    value_range=columns.value_range(COLUMNS),
    num_classes=len(_CLASSES),
    class_names=_CLASSES,
    num_categories=columns.num_categories(COLUMNS),
    pool_size=4_999,  # leaves the last 11,282 test records to evaluate on, as the paper does
)


def encode(record: Mapping[str, str]) -> npt.NDArray[np.float32]:
    """Returns one record as the float32 `[13]` features that teachers and students take.

    Args:
      record: the fields of `COLUMNS` by name, as UCI writes them, e.g. `{"age": "39", ...}`.

    Raises:
      ValueError: if a field is missing, an unknown category, or no finite number.
    """
    return np.array(columns.encode(COLUMNS, record), np.float32)


class Adult(tfds.core.GeneratorBasedBuilder):
    """Reads UCI's `adult.data` (32,561 records) and `adult.test` (16,281 records)."""

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES: ClassVar = {
        "1.0.0": "13 features, categories numbered by adult.names, UCI's order."
    }
    MANUAL_DOWNLOAD_INSTRUCTIONS = "Put UCI's adult.data and adult.test there."

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description=__doc__,
            features=tfds.features.FeaturesDict(
                {
                    "features": tfds.features.Tensor(shape=ADULT.input_shape, dtype=np.float32),
                    "label": tfds.features.ClassLabel(names=_CLASSES),
                }
            ),
            supervised_keys=("features", "label"),
            homepage="https://archive.ics.uci.edu/dataset/2/adult",
            license="CC BY 4.0",
            disable_shuffling=True,
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[Any]]:
        paths = columns.raw_files(dl_manager, {name: _URL + name for name in FILES})
        return {
            "train": self._generate_examples(paths[TRAIN_FILE]),
            "test": self._generate_examples(paths[TEST_FILE]),
        }

    def _generate_examples(self, path: pathlib.Path) -> Iterator[tuple[int, dict[str, Any]]]:
        labels = {name: index for index, name in enumerate(_CLASSES)}
        with open(path, encoding="utf-8", newline="") as file:
            # The test file begins with a line that is no record.
            lines = ("\n" if line.startswith("|") else line for line in file)
            records = columns.read_records(lines, _FIELDS, file=path.name)
            for index, (place, record) in enumerate(records):
                # In the test file a full stop follows the label.
                label = record["income"].removesuffix(".")
                yield (
                    index,
                    {
                        "features": np.array(
                            columns.encode_record(COLUMNS, place, record), np.float32
                        ),
                        "label": columns.encode_label(labels, place, label),
                    },
                )
