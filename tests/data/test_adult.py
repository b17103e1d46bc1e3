import csv
import dataclasses
import hashlib
import json
import re

import numpy as np
import pytest
import tensorflow_datasets as tfds
from table_helpers import ADULT_FEATURES, ADULT_ROWS, copy_raw, prepared_folder, write_adult

from pate_tf.data import adult, catalogue


@pytest.fixture(scope="module")
def real(shared_data, tmp_path_factory):
    """Both sides of the real Adult, prepared."""
    data_dir = copy_raw(shared_data, tmp_path_factory.mktemp("adult"), "adult")
    return (
        catalogue.load_private("adult", data_dir=data_dir),
        catalogue.load_public("adult", data_dir=data_dir),
    )


def assert_one_line(caught, *words: str) -> None:
    message = str(caught.value)
    assert "\n" not in message
    assert len(re.sub(r"/\S+", "", message)) < 500  # but for the names of folders
    for word in ("dataset adult", *words):
        assert word in message


def test_sizes_and_classes_are_ucis(real):
    private, public = real
    assert (len(private), len(public)) == (32_561, 16_281)
    # What adult.names says of the shares of the two labels.
    assert private.labels.mean() == pytest.approx(0.2408, abs=1e-4)
    assert public.majority_share == pytest.approx(0.7638, abs=1e-4)
    split = public.split(public.dataset.pool_size)
    assert (len(split.pool), len(split.held_out)) == (4_999, 11_282)


def test_every_field_of_the_real_files_is_kept_in_ucis_order(real, shared_data):
    names = [column.name for column in adult.COLUMNS]
    categories = {column.name: column.categories for column in adult.COLUMNS}
    fields = ["age", "workclass", "fnlwgt", *names[2:], "income"]
    for examples, file, skipped in zip(real, adult.FILES, (0, 1), strict=True):
        lines = (shared_data / "data" / "adult" / file).read_text().splitlines()[skipped:]
        rows = [row for row in csv.reader(lines, skipinitialspace=True) if row]
        assert len(rows) == len(examples)
        for place in (*range(500), *range(len(rows) - 500, len(rows))):
            row = dict(zip(fields, rows[place], strict=True))
            for name, value in zip(names, examples.inputs[place], strict=True):
                text = categories[name][int(value)] if categories[name] else f"{value:.0f}"
                assert text == row[name]
            expected = row["income"].rstrip(".")
            assert examples.dataset.class_names[examples.labels[place]] == expected


def test_the_categories_are_those_of_adult_names(shared_data):
    lines = (shared_data / "data" / "adult" / "adult.names").read_text().splitlines()
    documented = dict(line.split(":") for line in lines if line.endswith(".") and ":" in line)
    documented = {name: text for name, text in documented.items() if not name.startswith("|")}
    assert documented.pop("fnlwgt").strip() == "continuous."
    assert [column.name for column in adult.COLUMNS] == list(documented)
    for column in adult.COLUMNS:
        listed = documented[column.name].strip().removesuffix(".").split(", ")
        assert list(column.categories) == ([*listed, "?"] if listed != ["continuous"] else [])


def test_public_ranges_are_wide_enough_for_the_public_side(real):
    low, high = real[1].dataset.value_range
    assert (real[1].inputs >= low).all()
    assert (real[1].inputs <= high).all()


def test_small_files_become_the_numbers_worked_out_by_hand(tmp_path):
    private = catalogue.load_private("adult", data_dir=write_adult(tmp_path))
    public = catalogue.load_public("adult", data_dir=tmp_path)
    assert private.inputs.dtype == np.float32
    np.testing.assert_array_equal(private.inputs, np.array(ADULT_FEATURES))
    np.testing.assert_array_equal(private.labels, [0, 1, 0])
    np.testing.assert_array_equal(public.inputs, np.array(ADULT_FEATURES[:2]))
    np.testing.assert_array_equal(public.labels, [0, 1])


def test_it_is_registered_versioned_credited_and_checksummed():
    assert tfds.builder_cls("adult") is adult.Adult
    assert str(adult.Adult.VERSION) == "1.0.0"
    urls = {url: info for url, info in adult.Adult.url_infos.items() if "/adult/" in url}
    assert {url.rpartition("/")[2] for url in urls} == set(adult.FILES)
    assert "CC BY 4.0" in adult.__doc__


def test_the_checksums_are_those_of_ucis_files(shared_data):
    for url, info in adult.Adult.url_infos.items():
        (path,) = (shared_data / "data").glob(f"*/{url.rpartition('/')[2]}")
        content = path.read_bytes()
        assert (info.size, info.checksum) == (len(content), hashlib.sha256(content).hexdigest())


def test_a_record_does_not_change_with_another_record(tmp_path):
    rows = list(ADULT_ROWS) * 4
    other = [rows[0].replace("39", "17").replace("2174", "99999"), *rows[1:]]
    one = catalogue.load_private("adult", data_dir=write_adult(tmp_path / "one", rows))
    two = catalogue.load_private("adult", data_dir=write_adult(tmp_path / "two", other))
    assert not np.array_equal(one.inputs[0], two.inputs[0])
    np.testing.assert_array_equal(one.inputs[1:], two.inputs[1:])
    np.testing.assert_array_equal(one.labels, two.labels)
    assert one.dataset == two.dataset  # and so does what models scale by


def test_a_read_only_folder_is_left_alone(tmp_path, monkeypatch):
    write_adult(tmp_path / "raw")
    (tmp_path / "raw" / "adult").chmod(0o555)
    monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(tmp_path / "default"))
    assert len(catalogue.load_private("adult", data_dir=tmp_path / "raw")) == 3
    assert {path.name for path in (tmp_path / "raw" / "adult").iterdir()} == set(adult.FILES)
    (folder,) = (tmp_path / "default").glob("from-*")
    assert len(list(folder.rglob("*.tfrecord*"))) == 2


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("39, State-gov, 77516", ["adult.data, line 2", "expected 15 fields, got 3"]),
        (ADULT_ROWS[0] + ", more", ["line 2", "expected 15 fields, got 16"]),
        (ADULT_ROWS[0].replace("State-gov", "Pirate"), ["line 2", "workclass: expected one of"]),
        (ADULT_ROWS[0].replace("39", "old"), ["line 2", "age: expected a finite number"]),
        (ADULT_ROWS[0].replace("39", "inf"), ["line 2", "age: expected a finite number"]),
        (ADULT_ROWS[0].replace("<=50K", "50K"), ["line 2", "label: expected one of <=50K, >50K"]),
        ("\xff\xfe\x00", ["expected"]),
    ],
)
def test_a_broken_file_is_one_clear_line_without_the_records_values(tmp_path, row, words):
    write_adult(tmp_path, [ADULT_ROWS[1], row])
    if row.startswith("\xff"):
        (tmp_path / "adult" / "adult.data").write_bytes(row.encode("latin-1"))
    with pytest.raises(ValueError) as caught:
        catalogue.load_private("adult", data_dir=tmp_path)
    assert_one_line(caught, *words)
    assert "Pirate" not in str(caught.value)
    assert not prepared_folder(tmp_path, "adult").exists()


def test_a_broken_test_file_is_named_with_its_line(tmp_path):
    write_adult(tmp_path, test=["1, 2"])
    with pytest.raises(ValueError) as caught:
        catalogue.load_public("adult", data_dir=tmp_path)
    assert_one_line(caught, "adult.test, line 2: expected 15 fields, got 2")


def test_broken_prepared_records_are_one_clear_line(tmp_path):
    catalogue.load_private("adult", data_dir=write_adult(tmp_path))
    (records,) = tmp_path.rglob("adult-train.tfrecord*")
    records.write_bytes(records.read_bytes()[:-7])
    with pytest.raises(ValueError) as caught:
        catalogue.load_private("adult", data_dir=tmp_path)
    assert_one_line(caught)


def test_missing_files_without_a_network_are_one_clear_line(tmp_path, monkeypatch):
    def offline(*arguments, **options):
        raise OSError("no network")

    monkeypatch.setattr(tfds.download.DownloadManager, "download", offline)
    with pytest.raises(ValueError) as caught:
        catalogue.load_private("adult", data_dir=tmp_path)
    assert_one_line(caught, "adult.data and adult.test in", "no network")


RECORD = {
    column.name: column.categories[0] if column.categories else "1" for column in adult.COLUMNS
}


def test_a_record_is_encoded_for_prediction_as_in_the_files():
    names = [column.name for column in adult.COLUMNS]
    fields = [field.strip() for field in ADULT_ROWS[1].split(",")]
    record = dict(zip(names, [*fields[:2], *fields[3:]], strict=False))
    np.testing.assert_array_equal(adult.encode(record), ADULT_FEATURES[1])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"workclass": "Pirate"}, "workclass: expected one of Private, .*got 'Pirate'"),
        ({"native-country": "Atlantis"}, "native-country: .* or 30 more, got 'Atlantis'"),
        ({"age": ""}, "age: expected a finite number, got ''"),
        ({"age": "nan"}, "age: expected a finite number, got 'nan'"),
    ],
)
def test_an_unknown_category_at_prediction_time_is_one_clear_line(change, words):
    with pytest.raises(ValueError, match=words) as caught:
        adult.encode({**RECORD, **change})
    assert "\n" not in str(caught.value)


def test_a_missing_field_at_prediction_time_is_named():
    with pytest.raises(ValueError, match="age: expected a field of this name"):
        adult.encode({name: text for name, text in RECORD.items() if name != "age"})


def test_the_dataset_survives_json():
    fields = json.loads(json.dumps(adult.ADULT.to_dict()))
    assert adult.ADULT.from_dict(fields) == adult.ADULT
    with pytest.raises(ValueError, match="value_range: expected two numbers"):
        dataclasses.replace(adult.ADULT, value_range=((0.0,), (1.0,)))
    with pytest.raises(ValueError, match="value_range: expected low < high"):
        dataclasses.replace(adult.ADULT, value_range=((0.0,) * 13, (0.0,) * 13))
