"""UCI's tables: against their files and documentation, and against broken files."""

import csv
import io
import zipfile

import numpy as np
import pytest
from table_helpers import ADULT_ROWS, write_adult, write_diabetes

from benchmarks import uci
from pate_tf.data import datasets


def private_side(name, data_dir):
    return datasets.load_private(uci.FUNCTIONS[name], data_dir=data_dir)


def sides(name, data_dir):
    public = datasets.load_public(uci.FUNCTIONS[name], data_dir=data_dir)
    return private_side(name, data_dir), public


def assert_is_row(schema, features, row) -> None:
    np.testing.assert_array_equal(features, schema.encode(row))


def test_adult_has_every_field_of_the_real_files_in_ucis_order(shared_data):
    private, public = sides("adult", shared_data / "data")
    assert (len(private), len(public)) == (32_561, 16_281)
    # adult.names states the fractions of the two labels.
    assert private.labels.mean() == pytest.approx(0.2408, abs=1e-4)
    split = public.split(public.dataset.pool_size)
    assert (len(split.pool), len(split.held_out)) == (4_999, 11_282)
    for examples, path, skipped in zip((private, public), uci.FILES["adult"], (0, 1), strict=True):
        lines = (shared_data / "data" / path).read_text().splitlines()[skipped:]
        rows = [row for row in csv.reader(lines, skipinitialspace=True) if row]
        assert len(rows) == len(examples)
        for place in (*range(100), *range(len(rows) - 100, len(rows))):
            row = dict(zip(uci.ADULT_FIELDS, rows[place], strict=True))
            assert_is_row(uci.SCHEMAS["adult"], examples.inputs[place], row)
            expected = row["income"].rstrip(".")
            assert examples.dataset.class_names[examples.labels[place]] == expected


def test_diabetes_is_balanced_and_split_by_patient_in_ucis_order(shared_data):
    path = shared_data / "data" / "diabetes" / "dataset_diabetes.zip"
    with zipfile.ZipFile(path) as archive:
        text = archive.read("dataset_diabetes/diabetic_data.csv").decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == 101_766
    both = sides("diabetes", shared_data / "data")
    labels = np.concatenate([side.labels for side in both])
    assert (labels == 0).sum() == sum(row["readmitted"] == "<30" for row in rows) == 11_357
    assert len(both[1]) / len(labels) == pytest.approx(12_702 / 46_806, abs=0.02)
    patients = []
    for examples, is_public in zip(both, (False, True), strict=True):
        # Binomial: 6 standard deviations of the smaller side are 0.04.
        assert abs(examples.labels.mean() - 0.5) < 0.04
        taken = [
            row
            for row in rows
            if uci.is_public(row["patient_nbr"]) == is_public
            and uci.is_taken(row["encounter_id"], row["readmitted"])
        ]
        assert len(taken) == len(examples)
        for place in range(0, len(taken), 100):
            assert examples.labels[place] == (taken[place]["readmitted"] != "<30")
            assert_is_row(uci.SCHEMAS["diabetes"], examples.inputs[place], taken[place])
        patients.append({row["patient_nbr"] for row in taken})
    assert not patients[0] & patients[1]


def test_a_record_of_adult_does_not_change_with_another_record(tmp_path):
    rows = list(ADULT_ROWS) * 4
    other = [rows[0].replace("39", "17").replace("2174", "99999"), *rows[1:]]
    before, public = sides("adult", write_adult(tmp_path / "one", rows))
    after = private_side("adult", write_adult(tmp_path / "two", other))
    assert not np.array_equal(before.inputs[0], after.inputs[0])
    np.testing.assert_array_equal(before.inputs[1:], after.inputs[1:])
    assert before.labels[:3].tolist() == [0, 1, 0] and public.labels.tolist() == [0, 1]
    assert before.dataset == after.dataset == public.dataset


def encounter(number: int, patient: int = 7, **changes: str) -> dict[str, str]:
    fields = {column.name: str(column.example) for column in uci.SCHEMAS["diabetes"].columns}
    fields |= {"encounter_id": str(number), "patient_nbr": str(patient), "readmitted": "<30"}
    return {**fields, **changes}


def as_csv(records: list[dict[str, str]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, records[0])
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def test_whether_an_encounter_is_taken_does_not_depend_on_the_others(tmp_path):
    records = [
        encounter(n, patient=n, readmitted=">30" if n % 2 else "<30", num_medications=str(n % 80))
        for n in range(300)
    ]
    # Record 0 becomes another patient's, readmitted later, so the class counts change.
    changed = [encounter(10**6, patient=10**6, readmitted="NO"), *records[1:]]
    loaded = []
    for name, table in (("one", records), ("two", changed)):
        write_diabetes(tmp_path / name, as_csv(table))
        loaded.append(private_side("diabetes", tmp_path / name).inputs)
    before, after = loaded
    first = int(not uci.is_public("0"))  # whether the side has record 0
    assert len(before) > 50
    np.testing.assert_array_equal(before[first:], after[len(after) - len(before) + first :])


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (ADULT_ROWS[0] + ", more", "adult.data: each line must have 15 fields"),
        (ADULT_ROWS[0].replace("State-gov", "Pirate"), "record 2: workclass must be a category"),
        (ADULT_ROWS[0].replace("39", "inf"), "record 2: age must be a finite number"),
        (ADULT_ROWS[0].replace("<=50K", "50K"), "label must be a class, one of <=50K, >50K"),
        (b"\xff\xfe\x00", "15 fields|must be"),
    ],
)
def test_a_broken_file_of_adult_is_one_line_without_values(tmp_path, row, words):
    write_adult(tmp_path, [ADULT_ROWS[1], row if isinstance(row, str) else ""])
    if isinstance(row, bytes):
        (tmp_path / "adult" / "adult.data").write_bytes(row)
    with pytest.raises(ValueError, match=words) as caught:
        uci.adult("private", tmp_path)
    assert "Pirate" not in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [None, "changed on the way"])
def test_files_that_cannot_be_downloaded_whole_are_one_line(tmp_path, monkeypatch, content):
    def retrieve(url, path, progress):
        if content is None:
            raise OSError("no network")
        path = tmp_path / "adult" / url.rpartition("/")[2]
        path.write_text(content)

    monkeypatch.setattr("keras.src.utils.file_utils.urlretrieve", retrieve)
    with pytest.raises(ValueError, match=r"must contain adult\.data and adult\.test") as caught:
        uci.adult("private", tmp_path)
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "adult").iterdir())  # no broken file stays for the next call
