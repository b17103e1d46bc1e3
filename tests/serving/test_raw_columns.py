"""A served student of a table takes the raw columns of the user's files."""

import datetime

import keras
import numpy as np
import pyarrow
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from pate_tf.core.public import PublicExamples
from pate_tf.data.schema import read_schema, schema_of
from pate_tf.data.tables import TextTable
from pate_tf.models import architectures
from pate_tf.serving.export import column_features, export_student, student_digest
from pate_tf.serving.served import EXTRA, SCHEMA, ServedStudent, matches_statement

VISITS = schema_of(
    {
        "label": "ill",
        "classes": ["no", "yes"],
        "columns": {
            "age": {"low": 18, "high": 90},
            "blood pressure (mmHg)": {"low": 80.5, "high": 200, "missing": 120.25},
            "from": {"categories": ["A&E", "ward", "1"], "other": True},
            "sex": {"categories": ["F", "M"]},
            "since": {
                "low": datetime.date(2020, 1, 1),
                "high": datetime.date(2025, 12, 31),
                "date": "%d.%m.%Y",
                "missing": "01.06.2021",
            },
            "notes": {"text": 16},
        },
    }
)
NAMES = ("age", "blood_pressure__mmHg_", "column_from", "sex", "since", "notes")
FIELDS = {
    "age": ["39", "101.5", "-4"],
    "blood pressure (mmHg)": ["", "121.7", "80.5"],
    "from": ["ward", "1", "elsewhere"],
    "sex": ["F", "M", "F"],
    "since": ["29.2.2024", "", "1999-01-01"],
    "notes": ["A cough, and fever.", "", "cough"],
}


def raw(fields):
    tensors = {}
    for column, name in zip(VISITS.columns, NAMES, strict=True):
        values = fields[column.name]
        if column.is_number:
            values = np.array([float(one) if one else np.nan for one in values], np.float32)
        tensors[name] = tf.constant(values)
    return tensors


COLUMNS = {name: pyarrow.array(values) for name, values in FIELDS.items()}
TABLE = TextTable(fields=COLUMNS, what="visits")


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    dataset = VISITS.dataset("visits", 10)
    model = architectures.build("mlp", dataset, seed=1)
    statement = {"student_digest": student_digest(model)}
    folder = tmp_path_factory.mktemp("raw") / "student"
    return model, dataset, export_student(model, dataset, folder, statement)


def test_raw_columns_are_answered_as_their_features_are(exported):
    *_, folder = exported
    signatures = tf.saved_model.load(str(folder)).signatures
    assert set(signatures["serving_default"].structured_input_signature[1]) == set(NAMES)
    features = TABLE.inputs(VISITS)[0]
    labels, probabilities = ServedStudent(folder).answer(features)
    answer = signatures["serving_default"](**raw(FIELDS))
    np.testing.assert_array_equal(answer["probabilities"], probabilities)
    np.testing.assert_array_equal(answer["label"], labels)
    assert {one.decode() for one in answer["class_name"].numpy()} <= {"no", "yes"}


@pytest.mark.parametrize(
    ("name", "value"),
    [("age", np.nan), ("age", np.inf), ("sex", ""), ("sex", "D"), ("since", "31.31.2024")],
)
def test_a_value_that_does_not_fit_is_an_error_that_names_its_column(exported, name, value):
    serve = tf.saved_model.load(str(exported[2])).signatures["serving_default"]
    tensors = raw(FIELDS)
    changed = tensors[name].numpy()
    changed[1] = value
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"{name} must be"):
        serve(**{**tensors, name: tf.constant(changed)})


def test_schema_and_keras_model_lie_beside_the_saved_model(exported):
    model, dataset, folder = exported
    assert read_schema(str(folder / EXTRA / SCHEMA)) == VISITS
    features = TABLE.inputs(VISITS)[0]
    loaded = keras.saving.load_model(folder / EXTRA / "student.keras")
    np.testing.assert_allclose(loaded(features), model(features), atol=1e-6)
    assert matches_statement(folder)
    text = (folder / EXTRA / SCHEMA).read_text()
    (folder / EXTRA / SCHEMA).write_text(text.replace("low = 18", "low = 17"))
    assert not matches_statement(folder)
    (folder / EXTRA / SCHEMA).write_text(text)
    assert PublicExamples(dataset, features).dataset.schema is VISITS


NUMBERS = st.floats(-1e6, 1e6, width=32)
DATES = st.dates()


@settings(max_examples=50, deadline=None)
@given(numbers=st.lists(NUMBERS | st.none(), min_size=1), dates=st.lists(DATES, min_size=1))
def test_the_graph_encodes_as_the_schema_does(numbers, dates):
    pressure, since = VISITS.columns[1], VISITS.columns[4]
    texts = ["" if one is None else repr(one) for one in numbers]
    tensor = tf.constant([np.nan if one is None else one for one in numbers], tf.float32)
    np.testing.assert_array_equal(column_features(tensor, pressure), pressure.encode(texts)[0])
    written = [f"{one.day}.{one.month}.{one.year:04}" for one in dates]
    np.testing.assert_array_equal(
        column_features(tf.constant(written), since), since.encode(written)[0]
    )
