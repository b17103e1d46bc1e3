"""Tables and images in files, by the commands, as a user types them."""

import csv
import pathlib
import shutil

import numpy as np
import pytest
from script_processes import run_script

FILES = ("--public=visits.csv", "--schema=schema.toml")
SCHEMA = """
label = "diagnosis"
classes = ["well", "ill"]
owner = "patient"

[columns.age]
low = 18
high = 90

[columns.site]
categories = ["north", "south"]
"""


def write_table(path: pathlib.Path, number: int, *, seed: int, has_labels: bool) -> None:
    """Writes visits. 4 % of them, the visits of old patients in the north, have the outcome ill."""
    random = np.random.default_rng(seed)
    with open(path, "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["patient", "age", "site", *(["diagnosis"] if has_labels else [])])
        for index in range(number):
            age, site = random.uniform(18, 90), random.choice(["north", "south"])
            label = "ill" if age > 84 and site == "north" else "well"
            row = [f"patient {index // 2}", f"{age:.1f}", site]
            table.writerow([*row, *([label] if has_labels else [])])


@pytest.fixture(scope="module")
def clinic(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clinic")
    write_table(folder / "patients.csv", 1200, seed=0, has_labels=True)
    write_table(folder / "visits.csv", 600, seed=1, has_labels=True)
    write_table(folder / "unlabelled.csv", 300, seed=2, has_labels=False)
    (folder / "schema.toml").write_text(SCHEMA)
    return folder


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--private=patients.csv"], "--schema is required. "),
        (["--schema=schema.toml"], "--private is required with --schema"),
        (
            ["--private=patients.csv", *FILES, "--dataset=digits"],
            "use either --dataset or --private",
        ),
        (["--private=patients.csv", *FILES, "--label=nosuch"], "there is no column nosuch"),
        (["--private=patients.csv", *FILES, "--classes=a,b"], "--classes is only for folders"),
        (["--private=.", *FILES], "must both be folders, or both be files"),
        (["--private=unlabelled.csv", *FILES], "unlabelled.csv: there is no column diagnosis"),
        (["--private=.", "--public=.", "--schema=schema.toml"], "--schema is only for tables"),
    ],
    ids=str,
)
def test_what_does_not_stand_together_is_one_line(clinic, flags, told):
    ended = run_script("train_teachers.py", "--train_dir=new", *flags, folder=clinic)
    assert ended.code == 1
    assert ended.err.startswith("error: ") and ended.err.count("\n") == 1
    assert told in ended.err
    assert not (clinic / "new").exists()


def test_a_draft_is_written_once(clinic, tmp_path):
    shutil.copy(clinic / "visits.csv", tmp_path)
    flags = ("--public=visits.csv", "--label=diagnosis", "--owner=patient", "--schema=new.toml")
    drafted = run_script("pate_tf/cli/main.py", "schema", *flags, folder=tmp_path)
    assert drafted.code == 0, drafted.err
    text = (tmp_path / "new.toml").read_text()
    assert text in drafted.out
    assert 'classes = ["ill", "well"]' in text and 'categories = ["north", "south"]' in text
    assert 'owner = "patient"' in text
    again = run_script("pate_tf/cli/main.py", "schema", *flags, folder=tmp_path)
    assert again.code == 1
    assert (
        again.err == "error: --schema: new.toml already exists. Remove it or choose another name.\n"
    )
    of_nothing = run_script("pate_tf/cli/main.py", "schema", "--schema=other.toml", folder=tmp_path)
    assert of_nothing.code == 1 and not (tmp_path / "other.toml").exists()
    assert of_nothing.err.startswith("error: --public or --private is required")
    assert of_nothing.err.count("\n") == 1
