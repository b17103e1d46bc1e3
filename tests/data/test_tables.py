"""Tables of a user's own: comma-separated values and Parquet."""

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

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


def test_both_sides_of_a_table_are_of_one_data_set(tmp_path):
    public = tables.load_public(write(tmp_path, "visits.csv", PUBLIC), SCHEMA)
    private = tables.load_private(write(tmp_path, "patients.csv", PRIVATE), SCHEMA, public)
    assert private.dataset == public.dataset
    assert public.dataset.name == "visits" and public.labels is None
    assert public.dataset.pool_size == 3  # without labels nothing is held out
    assert private.inputs.tolist() == [[39, 1, 0], [20, 0, 1], [90, 1, 0]]
    assert private.labels.tolist() == [1, 0, 1]
    assert private.owners.tolist() == ["a", "b", "a"]


def test_public_labels_are_known_as_far_as_they_are_there(tmp_path):
    text = "age,sex,diagnosis\n30,F,ill\n40,M,\n50,F,well\n60,M,\n"
    public = tables.load_public(write(tmp_path, "visits.csv", text), SCHEMA)
    assert public.labels.tolist() == [1, -1, 0, -1]
    assert public.dataset.pool_size == 3


def test_parquet_is_read_as_the_same_table(tmp_path):
    ages, labels = [39, 20, 95], ["ill", "well", "ill"]
    table = {"patient": ["a", "b", "a"], "age": ages, "sex": ["F", "M", "F"], "diagnosis": labels}
    parquet.write_table(pyarrow.table(table), tmp_path / "patients.parquet")
    public = tables.load_public(write(tmp_path, "visits.csv", PUBLIC), SCHEMA)
    found = [
        tables.load_private(path, SCHEMA, public)
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
    public = tables.load_public(write(tmp_path, "visits.csv", PUBLIC), SCHEMA)
    with pytest.raises(ValueError, match=told) as caught:
        tables.load_private(write(tmp_path, "patients.csv", text), SCHEMA, public)
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
            tables.read_fields(path)


def test_a_mark_at_the_beginning_and_blank_lines_do_no_harm(tmp_path):
    path = tmp_path / "visits.csv"
    path.write_bytes(b"\xef\xbb\xbfage, sex\r\n\r\n30 , F\r\n")
    fields, places = tables.read_fields(path)
    assert fields == {"age": ["30"], "sex": ["F"]}
    assert places == ["line 3"]
