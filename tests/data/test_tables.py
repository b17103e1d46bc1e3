"""Tables of a user's own: comma-separated values and Parquet."""

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from pate_tf.api.data import Data
from pate_tf.data import tables
from pate_tf.data.schema import schema_of

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
    return tables.read_table(write(folder, "patients.csv", text)).private(SCHEMA, public)


def test_both_sides_of_a_table_are_of_one_data_set(tmp_path):
    public = read_public(tmp_path, PUBLIC)
    private = read_private(tmp_path, PRIVATE, public)
    assert private.dataset == public.dataset
    assert public.dataset.name == "visits" and public.labels is None
    assert public.dataset.pool_size == 3  # without labels nothing is held out
    assert private.inputs.tolist() == [[39, 1, 0], [20, 0, 1], [90, 1, 0]]
    assert private.labels.tolist() == [1, 0, 1]
    assert private.owners.tolist() == ["a", "b", "a"]


def test_public_labels_are_known_as_far_as_they_are_there(tmp_path):
    text = "age,sex,diagnosis\n30,F,ill\n40,M,\n50,F,well\n60,M,\n"
    public = read_public(tmp_path, text)
    assert public.labels.tolist() == [1, -1, 0, -1]
    assert public.dataset.pool_size == 3


def test_parquet_is_read_as_the_same_table(tmp_path):
    ages, labels = [39, 20, 95], ["ill", "well", "ill"]
    table = {"patient": ["a", "b", "a"], "age": ages, "sex": ["F", "M", "F"], "diagnosis": labels}
    parquet.write_table(pyarrow.table(table), tmp_path / "patients.parquet")
    public = read_public(tmp_path, PUBLIC)
    found = [
        tables.read_table(path).private(SCHEMA, public)
        for path in (tmp_path / "patients.parquet", write(tmp_path, "patients.csv", PRIVATE))
    ]
    assert np.array_equal(found[0].inputs, found[1].inputs)
    assert np.array_equal(found[0].labels, found[1].labels)
    assert np.array_equal(found[0].owners, found[1].owners)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "expected a name for each column"),
        ("age,age\n1,2\n", "each once"),
        ("age,,sex\n1,2,3\n", "expected a name for each column"),
        ("patient,age,sex,diagnosis\n", "expected at least one record"),
        ("patient,age,sex\na,39,F\n", "expected a column diagnosis"),
        ("age,sex,diagnosis\n39,F,ill\n", "expected a column patient"),
        ("patient,sex,diagnosis\na,F,ill\n", "expected a column age"),
        ("patient,age,sex,diagnosis\na,39,F\n", "line 2: expected 4 fields, got 3"),
        ("patient,age,sex,diagnosis\na,39,F,hidden\n", "line 2: label: expected one of well, ill"),
        ("patient,age,sex,diagnosis\na,39,F,\n", "line 2: label: expected one of well, ill"),
        ("patient,age,sex,diagnosis\na,39,hidden,ill\n", "line 2: sex: expected a category"),
        ("patient,age,sex,diagnosis\na,hidden,F,ill\n", "line 2: age: expected a finite number"),
        ('patient,age,sex,diagnosis\na,39,"F,ill\n', "expected comma-separated text"),
    ],
    ids=str,
)
def test_a_private_file_that_does_not_fit_is_told_by_place_alone(tmp_path, text, told):
    public = read_public(tmp_path, PUBLIC)
    with pytest.raises(ValueError, match=told) as caught:
        read_private(tmp_path, text, public)
    assert "hidden" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_no_table_is_one_line(tmp_path):
    binary = tmp_path / "binary.csv"
    binary.write_bytes(bytes(range(256)))
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"something else")
    for path, told in (
        (binary, "expected comma-separated text"),
        (broken, "expected Parquet"),
        (tmp_path / "nosuch.csv", "can be read"),
        (tmp_path, "can be read"),
    ):
        with pytest.raises(ValueError, match=told):
            tables.read_table(path)


def test_a_mark_at_the_beginning_and_blank_lines_do_no_harm(tmp_path):
    path = tmp_path / "visits.csv"
    path.write_bytes(b"\xef\xbb\xbfage, sex\r\n\r\n30 , F\r\n")
    table = tables.read_table(path)
    assert table.fields == {"age": ["30"], "sex": ["F"]}
    assert table.places == ["line 3"]


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
    assert (columns["age"].low, columns["age"].high, columns["age"].missing) == (30, 61, "30.0")
    assert columns["sex"].categories == ("F", "M", "") and columns["sex"].other
    assert columns["ward"].categories == ("0", "1", "2")
    assert data.dataset.class_names == ("ill", "well")
    # Ages are clipped to the public range; a category that is not public is the one for others.
    assert data.private.inputs[:, 0].tolist() == [61, 61, 30, 45]
    assert data.private.inputs[:, 1:5].argmax(axis=1).tolist() == [0, 3, 1, 0]
    assert data.private.owners.tolist() == TABLE["patient"]
    assert (len(data.pool), len(data.held_out)) == (3, 1)


def test_a_data_frame_without_public_labels_needs_classes():
    private = pyarrow.table(TABLE)
    public = private.drop_columns(["diagnosis", "patient"])
    with pytest.raises(ValueError, match="classes: expected what diagnosis can be"):
        Data.from_dataframe(private, public, label="diagnosis")
    data = Data.from_dataframe(private, public, label="diagnosis", classes=["well", "ill"])
    assert data.private.labels.tolist() == [1, 0, 1, 0]
    with pytest.raises(ValueError, match="private: expected a column age"):
        Data.from_dataframe(
            private.drop_columns(["age"]), public, label="diagnosis", classes=["well", "ill"]
        )
    with pytest.raises(ValueError, match="expected a data frame"):
        Data.from_dataframe(private, [1, 2], label="diagnosis")


def test_columns_with_too_many_texts_are_left_out_with_a_warning():
    many = pyarrow.table(
        {"text": [f"{n} words" for n in range(40)], "age": range(40), "y": ["a", "b"] * 20}
    )
    with pytest.warns(UserWarning, match="columns text have too many values"):
        data = Data.from_dataframe(many, many, label="y")
    assert [column.name for column in data.schema.columns] == ["age"]


ROWS = np.array([[0, 1.5], [2, 0.5], [1, 1.0], [2, 2.0]])


def from_arrays(rows, **options):
    return Data.from_arrays(rows, [0, 1, 0, 1], rows, num_classes=2, **options)


def test_codes_of_categories_become_a_feature_each():
    data = from_arrays(ROWS, categories={0: 3}, value_range=(0, 2))
    expected = np.column_stack([np.eye(3)[[0, 2, 1, 2]], ROWS[:, 1]]).astype(np.float32)
    np.testing.assert_array_equal(data.private.inputs, expected)
    np.testing.assert_array_equal(data.pool.inputs, expected)
    assert data.dataset.value_range[1] == (1.0, 1.0, 1.0, 2.0)
    named = np.array([[("x", "z", "y")[int(code)], number] for code, number in ROWS], dtype=object)
    data = from_arrays(named, categories={0: ["x", "z", "y"]}, value_range=(0, 2))
    np.testing.assert_array_equal(data.private.inputs, expected)
    assert data.schema.encode({"column 0": "z", "column 1": 0.25}).tolist() == [0, 1, 0, 0.25]


def test_small_whole_numbers_are_warned_of_unless_they_are_said_to_be_numbers(recwarn):
    with pytest.warns(UserWarning, match=r"columns 0 hold few whole numbers.*categories=\{0: "):
        from_arrays(ROWS, value_range=(0, 2))
    recwarn.clear()
    data = from_arrays(ROWS, value_range=(0, 2), categories={})
    np.testing.assert_array_equal(data.private.inputs, ROWS.astype(np.float32))
    from_arrays(ROWS[:, 1:] + 0.25, value_range=(0, 3))
    assert not recwarn


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"categories": {7: 3}}, "categories: expected columns from 0 to 1, got 7"),
        ({"categories": {0: 2}}, r"x_public, row 1: column 0: expected a category of the schema"),
        ({"categories": {0: 3}, "value_range": (0, 1)}, "x_public: column 1: expected numbers in"),
        ({"categories": {0: 3}, "value_range": None}, "value_range: expected the lowest"),
        ({"categories": {0: 3}, "kind": "image"}, "categories: expected with tables"),
    ],
    ids=str,
)
def test_categories_that_do_not_fit_are_one_line(options, told):
    with pytest.raises(ValueError, match=told):
        from_arrays(ROWS, **{"value_range": (0, 2), **options})
