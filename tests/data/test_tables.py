"""Custom tables: comma-separated values and Parquet."""

import datetime
import types

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from pate_tf.data import tables
from pate_tf.data.loaded_data import Data, as_examples, as_inputs, draft_schema
from pate_tf.data.schema import TableColumn, read_schema, schema_of, texts_of

SCHEMA = schema_of(
    {
        "label": "diagnosis",
        "classes": ["well", "ill"],
        "owner": "patient",
        "columns": {"age": {"low": 18, "high": 90}, "sex": {"categories": ["F", "M"]}},
    }
)
PRIVATE = "patient,age,sex,diagnosis\na,39,F,ill\nb,20,M,well\na,95,F,ill\n"
PUBLIC = "age,sex\n30,F\n40,M\n50,F\n"


def write(folder, name, text):
    path = folder / name
    path.write_text(text)
    return path


def read_public(folder, text):
    return tables.read_table(write(folder, "visits.csv", text)).public(SCHEMA, name="visits")


def read_private(folder, text, public):
    return tables.read_table(write(folder, "patients.csv", text)).private(public.dataset)


def test_both_sides_of_a_table_are_of_one_data_set(tmp_path):
    public = read_public(tmp_path, PUBLIC)
    private = read_private(tmp_path, PRIVATE, public)
    assert private.dataset == public.dataset
    assert public.dataset.name == "visits" and public.labels is None
    assert public.dataset.pool_size == 3  # without labels nothing is held out
    assert private.inputs.tolist() == [[39, 1, 0], [20, 0, 1], [90, 1, 0]]
    assert private.labels.tolist() == [1, 0, 1]
    assert private.owners.tolist() == ["a", "b", "a"]


def test_parquet_is_read_as_the_same_table(tmp_path):
    ages, labels = [39, 20, 95], ["ill", "well", "ill"]
    table = {"patient": ["a", "b", "a"], "age": ages, "sex": ["F", "M", "F"], "diagnosis": labels}
    parquet.write_table(pyarrow.table(table), tmp_path / "patients.parquet")
    public = read_public(tmp_path, PUBLIC)
    found = [
        tables.read_table(path).private(public.dataset)
        for path in (tmp_path / "patients.parquet", write(tmp_path, "patients.csv", PRIVATE))
    ]
    assert np.array_equal(found[0].inputs, found[1].inputs)
    assert np.array_equal(found[0].labels, found[1].labels)
    assert np.array_equal(found[0].owners, found[1].owners)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("patient,age,sex,diagnosis\n", "contains no record"),
        ("patient,age,sex\na,39,F\n", "there is no column diagnosis"),
        ("patient,sex,diagnosis\na,F,ill\n", "there is no column age"),
        ("patient,age,sex,diagnosis\n,39,F,ill\n", "line 2: patient is empty"),
        ("patient,age,sex,diagnosis\na,39,hidden,ill\n", "line 2: sex must be a category"),
        ('patient,age,sex,diagnosis\na,39,"F,ill\n', "the quotation mark in line 2 is not closed"),
    ],
    ids=str,
)
def test_a_private_file_that_does_not_fit_is_told_by_place_alone(tmp_path, text, told):
    public = read_public(tmp_path, PUBLIC)
    with pytest.raises(ValueError, match=told) as caught:
        read_private(tmp_path, text, public)
    assert "hidden" not in str(caught.value)
    assert "\n" not in str(caught.value)


TABLE = {
    "age": [30, 61, None, 45],
    "sex": ["F", "M", "F", None],
    "ward": [2, 0, 1, 2],
    "remark": [f"remark {number}" for number in range(4)],
    "diagnosis": ["ill", "well", "ill", "well"],
    "patient": ["a", "b", "a", "c"],
}


def test_a_data_frame_is_encoded_by_what_its_public_side_shows():
    private = pyarrow.table({**TABLE, "age": [99, 61, 2, 45], "sex": ["F", "X", "M", "F"]})
    public = pyarrow.table({**TABLE, "remark": [str(n) * 40 for n in range(4)]})
    data = Data.from_dataframe(
        private, public, label="diagnosis", owner="patient", categories=["ward"]
    )
    columns = {column.name: column for column in data.schema.columns}
    assert (columns["age"].low, columns["age"].high, columns["age"].missing) == (22, 61, "22.0")
    assert columns["sex"].categories == ("F", "M", "") and columns["sex"].other
    assert columns["ward"].categories == ("0", "1", "2")
    assert data.dataset.class_names == ("ill", "well")
    # Ages are clipped to the drafted range, whose lowest number marks an empty field. A category
    # that is not public becomes the "other" category.
    assert data.private.inputs[:, 0].tolist() == [61, 61, 22, 45]
    assert data.private.inputs[:, 1:5].argmax(axis=1).tolist() == [0, 3, 1, 0]
    assert data.private.owners.tolist() == TABLE["patient"]
    assert (len(data.pool), len(data.held_out)) == (3, 1)
    # A student takes frames, too.
    raw = as_inputs(private.drop_columns(["diagnosis"]), data.dataset)
    np.testing.assert_array_equal(raw, data.private.inputs)
    with pytest.raises(ValueError, match="inputs: there is no column sex"):
        as_inputs(private.drop_columns(["sex"]), data.dataset)


def test_a_data_frame_without_public_labels_needs_classes():
    private = pyarrow.table(TABLE)
    public = private.drop_columns(["diagnosis", "patient"])
    with pytest.raises(ValueError, match="classes is required"):
        Data.from_dataframe(private, public, label="diagnosis")
    data = Data.from_dataframe(private, public, label="diagnosis", classes=["well", "ill"])
    assert data.private.labels.tolist() == [1, 0, 1, 0]
    with pytest.raises(ValueError, match="private: there is no column age"):
        Data.from_dataframe(
            private.drop_columns(["age"]), public, label="diagnosis", classes=["well", "ill"]
        )
    with pytest.raises(ValueError, match="a list is not a data frame"):
        Data.from_dataframe(private, [1, 2], label="diagnosis")
    lazy = types.SimpleNamespace(columns=["age"], collect=lambda: private)
    with pytest.raises(ValueError, match=r"call its collect\(\)"):
        Data.from_dataframe(private, lazy, label="diagnosis")
    with pytest.raises(ValueError, match=r"call its collect\(\)"):
        as_inputs(lazy, data.dataset)


def test_columns_of_one_name_are_not_looked_at_unless_they_are_used():
    columns = [[1, 2, 3], [1, 2, 3], [2, 0, 4], ["a", "b", "a"]]
    frame = pyarrow.table([pyarrow.array(values) for values in columns], list("xxzy"))
    data = Data.from_dataframe(frame, frame, label="y")
    assert data.private.inputs.tolist() == [[2], [0], [4]]
    with pytest.raises(ValueError, match="private: there are several columns x"):
        Data.from_dataframe(frame, frame, label="x", classes=["1", "2"])


def test_columns_with_too_many_texts_are_left_out_with_a_warning():
    texts, ages = [f"{n} words" for n in range(40)], range(40)
    many = pyarrow.table({"text": texts, "age": ages, "Unnamed: 0": ages, "y": ["a", "b"] * 20})
    with pytest.warns(UserWarning, match="columns text have too many values.*text = 2048") as seen:
        data = Data.from_dataframe(many, many, label="y")
    assert str(seen[0].message) == "public: 1 columns without a name are left out"
    assert [column.name for column in data.schema.columns] == ["age"]
    assert as_examples(many, data.dataset).labels.tolist() == [0, 1] * 20


# Files as people have them.

GERMAN = "Größe;Stand;Urteil\n1,82;ledig;ja\n-0,5;verheiratet;nein\n1e3;ledig;\n"
OF_GERMAN = {
    "label": "Urteil",
    "classes": ["ja", "nein"],
    "columns": {"Größe": {"low": -1, "high": 2}, "Stand": {"categories": ["ledig", "verheiratet"]}},
}


@pytest.mark.parametrize(
    ("encoding", "delimiter"),
    [("utf-8", ";"), ("utf-8-sig", "\t"), ("cp1252", "|"), ("utf-16", ";")],
)
def test_how_a_file_is_written_is_found_from_the_public_one(tmp_path, encoding, delimiter):
    text = GERMAN.replace(";", delimiter)
    (tmp_path / "public.csv").write_text(text, encoding=encoding)
    (tmp_path / "private.csv").write_text(text[:-1] + "ja\n", encoding=encoding)
    assert tables.text_form(tmp_path / "public.csv").delimiter == delimiter
    draft_schema(tmp_path / "public.csv", tmp_path / "drafted.toml", label="Urteil")
    drafted = read_schema(str(tmp_path / "drafted.toml"))
    assert [column.name for column in drafted.columns] == ["Größe", "Stand"]
    schema = schema_of(OF_GERMAN)
    (tmp_path / "schema.toml").write_text(schema.to_toml(), encoding="utf-8")
    with pytest.warns(UserWarning, match="Größe: 33.33% of the values are outside"):
        data = Data.from_csv(
            tmp_path / "private.csv", tmp_path / "public.csv", schema=tmp_path / "schema.toml"
        )
    expected = np.array([[1.82, 1, 0], [-0.5, 0, 1], [2, 1, 0]], np.float32)
    np.testing.assert_array_equal(data.private.inputs, expected)
    assert data.private.labels.tolist() == [0, 1, 0]
    assert len(data.pool) + len(data.held_out) == 3


def test_what_a_schema_says_of_files_counts_more(tmp_path):
    path = write(tmp_path, "public.csv", "a;b\n1,5;x\n")
    said = schema_of({**OF_GERMAN, "delimiter": ",", "decimal": "."})
    form = tables.text_form(path, said)
    assert (form.delimiter, form.encoding) == (",", "utf-8")
    assert {column.decimal for column in said.columns} == {"."}
    for wrong in ({"decimal": "x"}, {"delimiter": ";;"}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
            schema_of({**OF_GERMAN, **wrong})
    (tmp_path / "bad.csv").write_bytes(b"a;b\n\xff\xfe;1\n")
    with pytest.raises(ValueError, match="is not text in utf-8"):
        tables.text_form(tmp_path / "bad.csv", schema_of({**OF_GERMAN, "encoding": "utf-8"}))


def test_dates_are_days(tmp_path):
    columns = {
        "since": {"low": datetime.date(2020, 1, 1), "high": datetime.date(2021, 1, 1)},
        "born": {
            "low": datetime.date(1900, 1, 1),
            "high": datetime.date(2000, 1, 1),
            "date": "%d.%m.%Y",
            "missing": datetime.date(1950, 1, 1),
        },
    }
    schema = schema_of({"classes": ["0", "1"], "columns": columns})
    days = schema.encode({"since": "2020-02-29T10:00", "born": ""})
    expected = [datetime.date(2020, 2, 29), datetime.date(1950, 1, 1)]
    assert days.tolist() == [one.toordinal() for one in expected]
    days = schema.encode({"since": datetime.date(2024, 1, 1), "born": "1.2.1903"})
    expected = [datetime.date(2021, 1, 1), datetime.date(1903, 2, 1)]  # clipped
    assert days.tolist() == [one.toordinal() for one in expected]
    with pytest.raises(ValueError, match=r"born must be a date %d.%m.%Y"):
        schema.encode({"since": "2020-02-29", "born": "30.2.1903"})
    for wrong in ({"date": "%d.%m"}, {"date": "%Y-%m-%d", "low": 3}):
        with pytest.raises(ValueError, match=r"born"):
            schema_of({"classes": ["0", "1"], "columns": {"born": {**columns["born"], **wrong}}})


def test_values_of_parquet_are_in_no_message_whatever_their_type(tmp_path):
    columns = {
        "age": pyarrow.array([2**60 + 1, None, 30], pyarrow.int64()),
        "sex": pyarrow.array([b"F", b"M", b"F"]),
        "patient": pyarrow.array([10**18 + 1] * 3, pyarrow.timestamp("ns")),
        "nested": pyarrow.array([[1]] * 3),
        "diagnosis": pyarrow.array(["ill", "well", "ill"]).dictionary_encode(),
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "patients.parquet")
    table = tables.read_table(tmp_path / "patients.parquet")
    assert texts_of(table.fields["age"]).to_pylist() == [str(2**60 + 1), "", "30"]
    column = TableColumn(name="age", low=0, high=2.0**62, missing="0")
    assert column.numbers(table.fields["age"]).tolist() == [2.0**60, 0.0, 30.0]
    assert table.fields["sex"].to_pylist() == ["F", "M", "F"]
    with pytest.raises(
        ValueError, match="there are several columns nested, or its values are nested"
    ):
        table.check_columns(["nested", "age", "patient", "diagnosis"])


@pytest.mark.parametrize("replaced", ["", "1", "1,a,b,c", "1,c"])
def test_a_skipped_record_leaves_the_owners_of_all_others(tmp_path, replaced):
    (tmp_path / "schema.toml").write_text(
        'label = "k"\nclasses = ["a", "b"]\n[columns.x]\nlow = 0\nhigh = 9\n'
    )
    owners = []
    for fourth in ("3,a", replaced):
        lines = ["x,k", "0,a", "1,b", "2,a", fourth, "4,a", "5,b", ""]
        (tmp_path / "p.csv").write_text("\n".join(lines))
        data = Data.from_csv(
            tmp_path / "p.csv", schema=tmp_path / "schema.toml", on_bad_record="skip"
        )
        owners.append(data.private.owners.tolist())
    assert owners == [[0, 1, 2, 3, 4, 5], [0, 1, 2, 4, 5]]


@pytest.mark.parametrize("is_skipped", [False, True])
def test_a_quotation_mark_swallows_no_records_whatever_column_it_is_in(tmp_path, is_skipped):
    """Covers columns that are not read, far below the names."""
    lines = [f"{place % 9},a,note {place}" for place in range(200)]
    lines[150] = '5,a,"a note"'
    (tmp_path / "schema.toml").write_text(
        'label = "k"\nclasses = ["a", "b"]\n[columns.x]\nlow = 0\nhigh = 9\n'
    )
    flags = {
        "schema": tmp_path / "schema.toml",
        "on_bad_record": "skip" if is_skipped else "refuse",
    }
    for note, expected in (('"two\nlines"', 200), ('a "mark"', 200), ('"', None), ('"open', None)):
        lines[60] = f"5,a,{note}"
        (tmp_path / "p.csv").write_text("x,k,notes\n" + "\n".join(lines))
        if expected is None:
            with pytest.raises(ValueError, match="line 62 is not closed"):
                Data.from_csv(tmp_path / "p.csv", **flags)
        else:
            assert len(Data.from_csv(tmp_path / "p.csv", **flags).private) == expected
