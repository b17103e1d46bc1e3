"""Schemas: a user's declarations for a table, and drafts from public records."""

import numpy as np
import pyarrow
import pytest

from pate_tf.data.schema import TableColumn, draft, read_schema, schema_of
from pate_tf.data.tables import TextTable

VISITS = {
    "label": "diagnosis",
    "classes": ["well", "ill"],
    "owner": "patient",
    "columns": {
        "age": {"low": 18, "high": 90},
        "sex": {"categories": ["F", "M"]},
        "site": {"categories": ["north", "south"], "other": True},
        "pulse": {"low": 40.0, "high": 200.0, "missing": 70},
    },
}


def changed(**columns):
    return {**VISITS, "columns": {**VISITS["columns"], **columns}}


def test_a_record_becomes_features_by_the_schema_alone():
    schema = schema_of(VISITS)
    features = schema.encode({"age": 120, "sex": "F", "site": "elsewhere", "pulse": ""})
    assert features.tolist() == [90.0, 1.0, 0.0, 0.0, 0.0, 1.0, 70.0]
    features = schema.encode({"age": "39", "sex": "M", "site": "north", "pulse": 80.5})
    assert features.tolist() == [39.0, 0.0, 1.0, 1.0, 0.0, 0.0, 80.5]
    dataset = schema.dataset("visits", 10)
    assert dataset.input_shape == features.shape == (7,)
    assert dataset.value_range == (
        (18.0, 0.0, 0.0, 0.0, 0.0, 0.0, 40.0),
        (90.0, 1.0, 1.0, 1.0, 1.0, 1.0, 200.0),
    )
    assert dataset.class_names == ("well", "ill")


def test_a_record_is_encoded_as_it_is_alone():
    schema = schema_of(VISITS)
    records = [
        {"age": str(age), "sex": sex, "site": site, "pulse": str(pulse)}
        for age, sex, site, pulse in ((5, "F", "north", 60), (50, "M", "x", 70), (99, "F", "", 80))
    ]
    fields = {name: pyarrow.array([record[name] for record in records]) for name in records[0]}
    together = TextTable(fields=fields, what="table").inputs(schema)[0]
    assert np.array_equal(together, [schema.encode(record) for record in records])


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({**VISITS, "classes": ["one"]}, "at least 2 different"),
        ({**VISITS, "classes": ["a", "a"]}, "at least 2 different"),
        ({**VISITS, "columns": {}}, "columns must contain at least one"),
        ({**VISITS, "colums": {}}, "unknown entry 'colums'"),
        ({**VISITS, "label": "age"}, "age is the label"),
        ({**VISITS, "owner": "age"}, "age is the owner"),
        ({**VISITS, "pool_size": True}, "pool_size has the wrong type"),
        (changed(age={"low": 1}), "needs both low and high"),
        (changed(age={"low": float("-inf"), "high": 1}), "low must be below high, both finite"),
        (changed(age={"low": 0, "high": float("nan")}), "low must be below high, both finite"),
        (changed(age={"low": 5, "high": 5}), "low must be below high, both finite, got 5 and 5"),
        (changed(age={"low": 9, "high": 5}), "low must be below high, both finite, got 9 and 5"),
        (changed(age={"unit": "s"}), "needs exactly one of: low and high, categories, text"),
        ({**VISITS, "classes": []}, 'a list of classes, such as classes = \\["a", "b"\\]'),
        (
            changed(age={"low": 1, "high": 2, "categories": ["a"]}),
            "needs exactly one of: low and high, categories, text",
        ),
        (changed(sex={"categories": ["F", "F"]}), "a category is listed twice"),
    ],
    ids=str,
)
def test_a_schema_that_says_nothing_clear_is_refused(values, told):
    with pytest.raises(ValueError, match=told):
        schema_of(values)


def test_a_draft_of_public_records_is_a_schema_once_its_classes_are_stated(tmp_path):
    fields = {
        "patient": ["1", "2", "3"],
        "age": ["39", "20.5", "61"],
        "sex": ["F", "M", "F"],
        "pulse": ["70", "", "80"],
        "remark text": [f"remark {number}" for number in range(3)],
        "note": [f"{number} {'x' * number}" for number in range(3)],
        "diagnosis": ["ill", "", "well"],
    }
    text = draft(fields, label="diagnosis", owner="patient")
    path = tmp_path / "schema.toml"
    path.write_text(text)
    schema = read_schema(path)
    assert (schema.label, schema.owner, schema.classes) == ("diagnosis", "patient", ("ill", "well"))
    columns = {column.name: column for column in schema.columns}
    assert columns["age"] == TableColumn(name="age", low=20.5, high=61.0, missing="39.0")
    pulse = columns["pulse"]  # no value of the file is treated as an empty field
    assert pulse == TableColumn(name="pulse", low=67.0, high=80.0, missing="67.0")
    assert columns["sex"].categories == ("F", "M") and columns["sex"].other
    assert "remark text" in columns


def test_a_draft_takes_sentences_for_texts(tmp_path):
    """A file of texts and labels goes from `pate schema` to `pate run` unedited."""
    texts = [f"the parcel of day {number // 2} came late" for number in range(80)]
    fields = {"text": [*texts, ""], "label": ["no", "yes", *["no"] * 79]}
    path = tmp_path / "schema.toml"
    for others, width in (({"age": [str(number) for number in range(81)]}, 2_048), ({}, 8_192)):
        path.write_text(draft({**fields, **others}, label="label"))
        column = read_schema(path).columns[0]
        assert (column.name, column.text) == ("text", width)
        assert column.encode(["the parcel came", ""])[0].shape == (2, width)
