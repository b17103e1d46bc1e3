"""How one record is read never depends on another record: its numbers, label, or owner.

The tests replace one record, in each form that readers take, by any value that a file or list may
hold. All other records stay bit-identical, unless the run is refused with one line.
"""

import csv
import dataclasses
import decimal
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pyarrow import parquet

import pate_tf
from pate_tf.core.dataset import to_input_type
from pate_tf.core.sensitive import SensitiveWarning, owner_array, owner_partition
from pate_tf.core.source import owner_name
from pate_tf.data import image_folders
from pate_tf.data.schema import Schema, TableColumn

HIGHEST = 2**60
LARGE = 92233714011996159  # its conversion through float64 gives another float32
NUM = 12
BASE = {
    "x": [LARGE + 1000 * place for place in range(NUM)],
    "kind": ["b", "a", "c"] * (NUM // 3),
    "label": [1, 0] * (NUM // 2),
    "owner": [7 * place for place in range(NUM)],
}
WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=4)
ODD = ["1", " 1", "0.5", "1.0", "1e400", "nan", "B", "7", "", "-", None, True, 10**400, [1], b"1"]
VALUES = st.one_of(
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.sampled_from([*ODD, decimal.Decimal("0.5"), np.int8(1), np.float32(0.1)]),
    WORDS,
)
CHANGES = {"place": st.integers(0, NUM - 1), "column": st.sampled_from(list(BASE)), "value": VALUES}
SCHEMA = Schema(
    columns=(
        TableColumn(name="x", low=0.0, high=float(HIGHEST)),
        TableColumn(name="kind", categories=("a", "b", "c")),
    ),
    classes=("0", "1"),
    label="label",
)


def changed(place, column, value):
    other = {name: list(values) for name, values in BASE.items()}
    other[column][place] = value
    return other


def rows(records, names=None):
    """Returns the values of each record, by position or, if records are skipped, by name."""
    owners = records.owners
    names = range(len(records)) if names is None else names
    whose = [b""] * len(records) if owners is None else map(owner_name, owners.tolist())
    inputs = (row.tobytes() for row in records.inputs)
    read = zip(inputs, records.labels.tolist(), whose, strict=True)
    return dict(zip(names, read, strict=True))


def check(read, place, **change):
    """Checks all records except one; returns whether they were read."""
    before = read(BASE)
    try:
        after = read(changed(place, **change))
    except ValueError as error:
        assert str(change["value"]) not in str(error) or len(str(change["value"])) < 5
        return False
    assert after[0] == before[0]
    for one in (before[1], after[1]):
        one.pop(place, None)
    assert after[1] == before[1]
    return True


def of_lists(records):
    data = pate_tf.Data.from_arrays(
        [[number, 1] for number in records["x"]],
        records["label"],
        owners=records["owner"],
        num_classes=2,
        class_names=["1", "0"],
        value_range=(0, HIGHEST),
        kind="tabular",
    )
    return data.dataset, rows(data.private)


@settings(max_examples=300, deadline=None)
@given(**CHANGES)
def test_lists(place, column, value):
    check(of_lists, place, column=column, value=value)


@pytest.mark.parametrize("value", [-1, 0.5, 2**70, np.float32(3), np.uint8(3)])
def test_a_list_with_another_number_is_read(value):
    assert check(of_lists, 3, column="x", value=value)


@pytest.mark.parametrize("value", ["1", "0", 1.0, np.int8(0)])
def test_a_list_with_a_label_written_otherwise_is_read(value):
    assert check(of_lists, 3, column="label", value=value)
    read = of_lists(changed(3, "label", value))[1]
    assert read[3][1] == (["1", "0"].index(value) if isinstance(value, str) else value)


@pytest.mark.parametrize("kind", [np.int64, np.uint64, np.float64, np.float32])
@given(place=st.integers(0, NUM - 1), value=st.integers(-(2**70), 2**70))
@settings(max_examples=30, deadline=None)
def test_arrays_whatever_is_clipped(kind, place, value):
    """Covers mixed types, too: int64 and float64 are one number each."""
    limits = np.iinfo(kind) if kind in (np.int64, np.uint64) else np.finfo(np.float32)

    def of_arrays(records):
        array = np.array(records["x"], object).clip(int(limits.min), int(limits.max)).astype(kind)
        data = pate_tf.Data.from_arrays(
            array[:, None],
            records["label"],
            num_classes=2,
            value_range=(0, HIGHEST),
            kind="tabular",
        )
        return data.dataset, rows(data.private)

    assert check(of_arrays, place, column="x", value=value)
    exact = np.array(BASE["x"], np.int64).astype(np.float64).astype(np.float32)
    if kind != np.float32:
        assert [row[0] for row in of_arrays(BASE)[1].values()] == [one.tobytes() for one in exact]
    table = of_arrays(BASE)[0]
    whole = np.array(BASE["x"])[:, None]
    for form in (whole, whole.astype(np.float64), whole.tolist()):
        assert (to_input_type(form, table, "inputs")[:, 0] == exact).all()


def test_the_type_of_a_list_is_public_whatever_it_holds():
    """Pixels in a list are float32, with and without a fraction. Each list fits the
    pool's uint8.
    """
    pixels = np.random.default_rng(0).integers(0, 255, (NUM, 4, 4))
    for value in (7, 7.5, 300):
        lists = [*pixels[1:].tolist(), np.full((4, 4), value).tolist()]
        options = {"num_classes": 2, "value_range": (0, 255)}
        data = pate_tf.Data.from_arrays(lists, BASE["label"], **options)
        assert data.dataset.input_type == "float32"
        assert (data.private.inputs[:-1, ..., 0] == pixels[1:]).all()
    data = pate_tf.Data.from_arrays(lists, BASE["label"], pixels, **options)
    assert data.dataset.input_type == "uint8" and (data.private.inputs[-1] == 255).all()


class Series(list):
    def to_list(self):
        return list(self)


class Frame(dict):
    """A data frame of objects, or of the type that fits all values, as pandas makes it."""

    def __init__(self, columns, *, fits_all):
        for name, values in columns.items():
            numbers = all(isinstance(each, int | float) for each in values)
            if fits_all and numbers and any(isinstance(each, float) for each in values):
                values = np.array(values, np.float64).tolist()
            self[name] = Series(values)
        self.columns = list(columns)

    def __len__(self):
        return len(self["x"])


@pytest.mark.parametrize("fits_all", [False, True])
@settings(max_examples=100, deadline=None)
@given(**CHANGES)
def test_data_frames(fits_all, place, column, value):
    if isinstance(value, int) and abs(value) > 2**1000:  # no pandas column of floats contains it
        value = 2**60

    def of_frame(records):
        frame = Frame(records, fits_all=fits_all)
        data = pate_tf.Data.from_dataframe(frame, label="label", owner="owner", schema=SCHEMA)
        return data.dataset, rows(data.private)

    check(of_frame, place, column=column, value=value)


def test_a_type_that_fits_all_neither_rounds_owners_nor_writes_codes_otherwise():
    large = [2**53 + 1 + 2 * place for place in range(NUM)]
    one_fraction = Frame({**BASE, "owner": [0.5, *large[1:]]}, fits_all=True)
    with pytest.raises(ValueError, match="owner is a rounded number"):
        pate_tf.Data.from_dataframe(one_fraction, label="label", owner="owner", schema=SCHEMA)
    codes = TableColumn(name="kind", categories=("1", "2", "2.5"))
    read = []
    for first in ("2", "2.5"):
        kinds = pyarrow.array([decimal.Decimal(first), *[decimal.Decimal(1)] * (NUM - 1)])
        frame = pyarrow.table({"kind": kinds, "label": BASE["label"]})
        schema = dataclasses.replace(SCHEMA, columns=(codes,))
        read.append(pate_tf.Data.from_dataframe(frame, label="label", schema=schema).private)
    assert (read[0].inputs[1:] == read[1].inputs[1:]).all()


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("is_skipped", [False, True])
@settings(max_examples=60, deadline=None)
@given(**CHANGES)
def test_files(suffix, is_skipped, place, column, value):
    with tempfile.TemporaryDirectory() as folder:
        path, schema = Path(folder, f"private.{suffix}"), Path(folder, "schema.toml")
        schema.write_text(SCHEMA.to_toml())

        def of_file(records):
            texts = {
                name: ["" if each is None else str(each) for each in values]
                for name, values in records.items()
            }
            if suffix == "csv":
                with open(path, "w", newline="", encoding="utf-8") as file:
                    csv.writer(file).writerows([texts, *zip(*texts.values(), strict=True)])
            else:
                table = dict(texts, kind=[text.encode() for text in texts["kind"]])
                if all(type(each) in (int, float) and abs(each) < 2**63 for each in records["x"]):
                    table["x"] = np.array(records["x"])  # int64, or float64 if one value is
                parquet.write_table(pyarrow.table(table), path)
            bad = {"on_bad_record": "skip"} if is_skipped else {"owner": "owner"}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SensitiveWarning)
                data = pate_tf.Data.from_csv(path, schema=schema, **bad)
            return data.dataset, rows(data.private, data.private.owners if is_skipped else None)

        # Such a text field may have swallowed other fields, so no record is read.
        is_refused = suffix == "csv" and len(f"{value}.".splitlines()) > 1
        is_read = check(of_file, place, column=column, value=value)
        assert is_read or is_refused or not is_skipped


def test_bytes_that_are_no_text_are_one_bad_record(tmp_path):
    (tmp_path / "schema.toml").write_text(SCHEMA.to_toml())
    table = {**BASE, "kind": [b"a", b"\xff", *[b"c"] * (NUM - 2)]}
    parquet.write_table(pyarrow.table(table), tmp_path / "p.parquet")
    with pytest.warns(SensitiveWarning, match="1 records do not fit"):
        data = pate_tf.Data.from_csv(
            tmp_path / "p.parquet", schema=tmp_path / "schema.toml", on_bad_record="skip"
        )
    assert len(data.private.labels) == NUM - 1


@settings(max_examples=30, deadline=None)
@given(place=st.integers(0, NUM - 1), value=VALUES)
def test_texts(place, value):
    def of_texts(records):
        data = pate_tf.Data.from_arrays(records["kind"], [0, 1] * 6, num_classes=2, kind="text")
        return data.dataset, rows(data.private)

    assert check(of_texts, place, column="kind", value=value) == isinstance(value, str)


def test_owners_of_a_list_have_the_names_that_they_have_alone():
    mixed = [1, "1", "Ada", 2**70, np.int8(3)]
    assert owner_array(mixed).tolist() == ["1", "1", "Ada", str(2**70), "3"]
    number = {"num_teachers": 50, "seed": 3}
    alone = [owner_partition([owner], **number).assignment[0] for owner in mixed]
    assert owner_partition(mixed, **number).assignment.tolist() == alone
    for other in (1.0, True, None, b"1"):
        with pytest.raises(ValueError, match="owners must be whole numbers or strings"):
            owner_array([*mixed, other])


def test_a_text_among_labels_of_the_classifier_is_no_class_whatever_texts_are():
    """A text among the labels used to turn all labels into texts, which were then classes."""
    classifier = pate_tf.PateClassifier(classes=["0", "1"], value_range=(0, 1))
    with pytest.raises(ValueError, match="y must only contain labels in `classes`"):
        classifier.fit(np.zeros((60, 2)), [*[0, 1] * 29, 0, "1"])


def test_images_in_folders(tmp_path):
    """Another mode, depth, size, transparency or a broken file: the other images stay."""
    for name in "abcdef":
        path = tmp_path / "cd"[name < "d"] / f"{name}.png"
        path.parent.mkdir(exist_ok=True)
        Image.new("L", (8, 8), ord(name)).save(path)
    samples, read = image_folders.load_public(None, tmp_path, size=(8, 8)), []
    for other in ("RGB", "RGBA", "I;16", "P", "1", None):
        path.write_bytes(b"no image")
        if other is not None:
            Image.new(other, (9, 30)).save(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SensitiveWarning)
            records = image_folders.load_private(tmp_path, samples, on_bad_record="skip")
        read.append(rows(records, records.owners))
    assert len(read[-1]) == 5 and all(read[-1].items() < each.items() for each in read[:-1])


@pytest.mark.parametrize("on_bad_record", ["refuse", "skip"])
@pytest.mark.parametrize(
    ("opening", "closing"),
    [('0.5,u,a,"x', '0.5,v,b,y"'), ('0.5,"u,a,x', '0.5,v",b,y'), ('"0.5,u,a,x', '0.5",v,b,y')],
    ids=["unread", "category", "first"],
)
def test_a_quotation_mark_swallows_no_record_of_others(tmp_path, opening, closing, on_bad_record):
    """One record opens a quoted field that a second, complete record would close."""
    (tmp_path / "schema.toml").write_text(
        'label = "k"\nclasses = ["a", "b"]\n[columns.x]\nlow = 0\nhigh = 1\n'
        '[columns.t]\ncategories = ["u", "v"]\nother = true\n'
    )
    lines = [f"0.{row},u,{'ab'[row % 2]},note" for row in range(10, 90)]
    lines[10] = opening
    lines[50] = closing
    path = tmp_path / "private.csv"
    path.write_text("\n".join(["x,t,k,note", *lines, ""]))
    with pytest.raises(ValueError, match=r"line 52 has 41 lines and may contain other records"):
        pate_tf.Data.from_csv(path, schema=tmp_path / "schema.toml", on_bad_record=on_bad_record)
    # A field of several lines in a column that is not read. No line is a record.
    lines[10] = '0.5,u,a,"first, then\nx,y,z,w\nsecond"'
    lines[50] = "0.5,v,b,y"
    path.write_text("\n".join(["x,t,k,note", *lines, ""]))
    data = pate_tf.Data.from_csv(path, schema=tmp_path / "schema.toml", on_bad_record=on_bad_record)
    assert len(data.private) == 80


def test_empty_lines_between_blanks_keep_the_places_of_records(tmp_path):
    (tmp_path / "schema.toml").write_text(
        'label = "k"\nclasses = ["a", "b"]\n[columns.x]\nlow = 0\nhigh = 1\n'
    )
    lines = [f"0.{row}  {'ab'[row % 2]}" for row in range(10, 90)]
    path = tmp_path / "private.txt"
    owners = []
    for changed in (lines[5], "", "   "):
        path.write_text("\n".join(["x k", *lines[:5], changed, *lines[6:], ""]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            data = pate_tf.Data.from_csv(
                path, schema=tmp_path / "schema.toml", on_bad_record="skip"
            )
        owners.append([owner for owner in data.private.owners.tolist() if owner != 5])
    assert owners[0] == owners[1] == owners[2]
