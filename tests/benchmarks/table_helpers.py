"""Raw UCI files that tests write into a data folder."""

import pathlib
import zipfile
from collections.abc import Iterable

ADULT_ROWS = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, "
    "2174, 0, 40, United-States, <=50K",
    "52, ?, 287927, HS-grad, 9, Married-civ-spouse, ?, Wife, White, Female, 15024, 0, 45, "
    "Outlying-US(Guam-USVI-etc), >50K",
    "18, Private, 1, Preschool, 1, Widowed, Armed-Forces, Unmarried, Black, Male, 0, 4356, 99, ?, "
    "<=50K",
)


def write_adult(
    data_dir: pathlib.Path, train: Iterable[str] = ADULT_ROWS, test: Iterable[str] = ADULT_ROWS[:2]
) -> pathlib.Path:
    """Writes `adult.data` and `adult.test` as UCI does: `train` and `test` are lines."""
    folder = data_dir / "adult"
    folder.mkdir(parents=True)
    (folder / "adult.data").write_text("".join(f"{row}\n" for row in train) + "\n")
    lines = "".join(f"{row}.\n" for row in test)
    (folder / "adult.test").write_text(f"|1x3 Cross validator\n{lines}\n")
    return data_dir


def write_diabetes(data_dir: pathlib.Path, text: str) -> pathlib.Path:
    folder = data_dir / "diabetes"
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / "dataset_diabetes.zip", "w") as archive:
        archive.writestr("dataset_diabetes/diabetic_data.csv", text)
    return data_dir
