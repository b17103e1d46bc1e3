import csv
import io
import zipfile

import numpy as np
import pytest
import tensorflow_datasets as tfds
from table_helpers import copy_raw, write_diabetes

from pate_tf.data import catalogue, diabetes

NAMES = [column.name for column in diabetes.COLUMNS]


@pytest.fixture(scope="module")
def rows(shared_data) -> list[dict[str, str]]:
    path = shared_data / "data" / "diabetes" / "dataset_diabetes.zip"
    with zipfile.ZipFile(path) as archive:
        text = archive.read("dataset_diabetes/diabetic_data.csv").decode()
    return list(csv.DictReader(io.StringIO(text)))


@pytest.fixture(scope="module")
def real(shared_data, tmp_path_factory):
    data_dir = copy_raw(shared_data, tmp_path_factory.mktemp("diabetes"), "diabetes")
    return (
        data_dir,
        catalogue.load_private("diabetes", data_dir=data_dir),
        catalogue.load_public("diabetes", data_dir=data_dir),
    )


def encounter(number: int, patient: int = 7, **changes: str) -> dict[str, str]:
    fields = {
        column.name: column.categories[0] if column.categories else "1"
        for column in diabetes.COLUMNS
    }
    fields |= {"encounter_id": str(number), "patient_nbr": str(patient), "readmitted": "<30"}
    return {**fields, **changes}


def as_csv(records: list[dict[str, str]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, records[0])
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def test_the_features_are_never_missing(rows):
    assert len(NAMES) == 18
    assert len(rows) == 101_766
    for name in NAMES:
        assert all(row[name] != "?" for row in rows)


def test_classes_are_balanced_and_sizes_are_as_documented(real, rows):
    _, private, public = real
    assert sum(row["readmitted"] == "<30" for row in rows) == 11_357
    for examples in (private, public):
        # Binomial: 6 standard deviations of the smaller side are 0.04.
        assert abs(examples.labels.mean() - 0.5) < 0.04
    labels = np.concatenate([private.labels, public.labels])
    assert (labels == 0).sum() == 11_357
    assert len(public) / len(labels) == pytest.approx(12_702 / 46_806, abs=0.02)
    assert len(public) > 2 * public.dataset.pool_size * 0.9


def test_records_are_encoded_in_ucis_order_from_the_sides_own_patients(real, rows):
    _, private, public = real
    for examples, is_public in ((private, False), (public, True)):
        kept = [
            row
            for row in rows
            if diabetes.is_public(row["patient_nbr"]) == is_public
            and diabetes.is_kept(row["encounter_id"], int(row["readmitted"] != "<30"))
        ]
        assert len(kept) == len(examples)
        for place in range(0, len(kept), 100):
            np.testing.assert_array_equal(examples.inputs[place], diabetes.encode(kept[place]))
            assert examples.labels[place] == (kept[place]["readmitted"] != "<30")
            for column, value in zip(diabetes.COLUMNS, examples.inputs[place], strict=True):
                text = column.categories[int(value)] if column.categories else f"{value:.0f}"
                assert text == kept[place][column.name]


def test_no_patient_is_on_both_sides(real):
    sides = [
        {
            example["patient"]
            for example in tfds.as_numpy(tfds.load("diabetes", split=split, data_dir=real[0]))
        }
        for split in ("train", "test")
    ]
    assert min(len(side) for side in sides) > 1_000
    assert not sides[0] & sides[1]


def test_public_ranges_are_wide_enough_for_the_public_side(real):
    low, high = real[2].dataset.value_range
    assert (real[2].inputs >= low).all()
    assert (real[2].inputs <= high).all()


def test_whether_a_record_is_kept_does_not_depend_on_the_others(tmp_path):
    records = [
        encounter(n, patient=n, readmitted=">30" if n % 2 else "<30", num_lab_procedures=str(n))
        for n in range(300)
    ]
    # Record 0 becomes another patient's, readmitted later: the classes' numbers change.
    changed = [encounter(10**6, patient=10**6, readmitted="NO"), *records[1:]]
    sides = []
    for name, table in (("one", records), ("two", changed)):
        write_diabetes(tmp_path / name, as_csv(table))
        private = catalogue.load_private("diabetes", data_dir=tmp_path / name)
        own = private.inputs[:, NAMES.index("num_lab_procedures")]
        sides.append({int(n): (row.tobytes()) for n, row in zip(own, private.inputs, strict=True)})
    one, two = sides
    assert len(one) > 50
    for number in range(2, 300):
        assert one.get(number) == two.get(number)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (as_csv([encounter(1)]) + "1,2,3\n", "line 3: expected 21 fields, got 3"),
        (as_csv([encounter(1, insulin="Sometimes")]), "line 2: insulin: expected one of No, Down"),
        (as_csv([encounter(1, readmitted="maybe")]), "line 2: label: expected one of <30, >30, NO"),
        (as_csv([{"encounter_id": "1"}]), "expected a column patient_nbr, got none"),
        ("", "expected a column encounter_id, got none"),
    ],
)
def test_a_broken_table_is_one_clear_line(tmp_path, text, words):
    write_diabetes(tmp_path, text)
    with pytest.raises(ValueError) as caught:
        catalogue.load_public("diabetes", data_dir=tmp_path)
        catalogue.load_private("diabetes", data_dir=tmp_path)
    message = str(caught.value)
    assert message.startswith("dataset diabetes: ")
    assert words in message
    assert "\n" not in message
    assert "Sometimes" not in message


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no archive", b"text"])
def test_a_broken_archive_is_one_clear_line(tmp_path, content):
    (tmp_path / "diabetes").mkdir()
    (tmp_path / "diabetes" / "dataset_diabetes.zip").write_bytes(content)
    with pytest.raises(ValueError, match="expected a zip archive with dataset_diabetes/") as caught:
        catalogue.load_private("diabetes", data_dir=tmp_path)
    assert "\n" not in str(caught.value)


def test_a_truncated_archive_is_one_clear_line(shared_data, tmp_path):
    copy_raw(shared_data, tmp_path, "diabetes")
    path = tmp_path / "diabetes" / "dataset_diabetes.zip"
    content = bytearray(path.read_bytes())
    content[1_000_000:1_000_100] = bytes(100)  # in the middle of the compressed table
    path.write_bytes(content)
    with pytest.raises(ValueError, match="dataset diabetes: ") as caught:
        catalogue.load_private("diabetes", data_dir=tmp_path)
    assert "\n" not in str(caught.value)


def test_it_is_registered_versioned_and_credited():
    assert tfds.builder_cls("diabetes") is diabetes.Diabetes
    assert str(diabetes.Diabetes.VERSION) == "1.0.0"
    assert any("diabetes" in url for url in diabetes.Diabetes.url_infos)
    assert "CC BY 4.0" in diabetes.__doc__


def test_an_unknown_category_at_prediction_time_is_one_clear_line():
    with pytest.raises(ValueError, match=r"age: expected one of \[0-10\), .*got '\[100-110\)'"):
        diabetes.encode(encounter(1, age="[100-110)"))
