"""Labels that are numbers, or several labels at once: declared, drafted, read independently, or
refused.
"""

import numpy as np
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from script_processes import run_script

import pate_tf
from pate_tf.core.sensitive import SensitiveWarning
from pate_tf.data.loaded_data import draft_schema
from pate_tf.data.schema import schema_of

COLUMNS = {"columns": {"x": {"low": 0, "high": 9}}}
NUMBER = {"label": "cost", "low": 0, "high": 100, "unit": "$", "decimal": ","} | COLUMNS
COLUMNWISE = {"labels": ["edema", "effusion", "mass"], "max_labels": 2} | COLUMNS
ONE_FIELD = {"label": "found", "classes": ["edema", "mass"], "separator": "|"} | COLUMNS
SEVERAL = np.array([[1, 0], [0, 0], [1, 1], [0, 1]] * 15)
AMOUNTS = np.arange(60) * 7.5


def bring(folder, values, public, private, **options):
    """Reads two files by a schema that was written to a file and read back."""
    (folder / "schema.toml").write_text(schema_of(values).to_toml())
    for name, lines in (("public", public), ("private", private)):
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    files = [folder / f"{name}.csv" for name in ("private", "public")]
    return pate_tf.Data.from_csv(*files, schema=folder / "schema.toml", **options)


def test_a_number_is_read_as_columns_are_and_clipped(tmp_path):
    public = ["x;cost", "1;", "2;$12,5", "3;NA", "4;7 $"]
    private = ["x;cost", "1;$ 2,5", "2;$99", "3;-3", "4;1e3"]
    with pytest.warns(SensitiveWarning, match=r"cost: 50\.00% of the values are outside") as told:
        data = bring(tmp_path, NUMBER, public, private)
    assert len(told) == 1
    assert (data.dataset.target, data.dataset.target_range) == ("number", (0, 100))
    assert data.private.labels.tolist() == [2.5, 99, 0, 100]
    np.testing.assert_array_equal(data.pool.true_labels, [np.nan, 12.5, np.nan])
    assert data.held_out.labels.tolist() == [7] and "number    from 0 to 100" in repr(data)
    with pytest.raises(ValueError, match=r"line 3: cost must be a finite number or none$"):
        bring(tmp_path, NUMBER, ["x;cost", "1;2", "2;two"], private)


@pytest.mark.parametrize("field", ["", "NA", "two", "nan", "1e400"])
def test_a_private_label_that_is_no_number_is_a_bad_record(tmp_path, field):
    lines = ["x;cost", "1;2", f"2;{field}"]
    public = ["x;cost", "1;2", "2;3"]
    with pytest.raises(ValueError, match=r"line 3: cost must be a finite number$"):
        bring(tmp_path, NUMBER, public, lines)
    with pytest.warns(SensitiveWarning, match="1 records do not fit"):
        data = bring(tmp_path, NUMBER, public, lines, on_bad_record="skip")
    assert data.private.labels.tolist() == [2]


def test_several_labels_have_a_column_each(tmp_path):
    public = ["x,mass,edema,effusion", "1,0,1,", "2,True,no,Y", "3,0.0,1,F"]
    data = bring(tmp_path, COLUMNWISE, public, public[:1] + public[2:])
    assert (data.dataset.target, data.dataset.max_labels) == ("labels", 2)
    assert data.dataset.class_names == ("edema", "effusion", "mass")
    assert data.private.labels.tolist() == [[0, 1, 1], [1, 0, 0]]
    assert data.pool.true_labels.tolist() == [[-1, -1, -1], [0, 1, 1]]
    expected = "effusion must be 1, yes or true, or 0, no or false"
    with pytest.raises(ValueError, match=f"line 2: {expected}$"):
        bring(tmp_path, COLUMNWISE, public, public)
    with pytest.raises(ValueError, match="label: the schema has edema, effusion, mass, got mass"):
        bring(tmp_path, COLUMNWISE, public, public, label="mass")


def test_several_labels_are_in_one_field(tmp_path):
    public = ["x,found", "1,", "2,Mass", "3,edema|mass|", "4,|"]
    data = bring(tmp_path, ONE_FIELD, public, public[:1] + public[2:])
    assert data.private.labels.tolist() == [[0, 1], [1, 1], [0, 0]]
    assert data.pool.true_labels.tolist() == [[-1, -1], [0, 1], [1, 1]]
    told = r"found must be labels separated by '\|', one of edema, mass$"
    for lines in (public, [*public[:1], "2,edema|cyst"]):
        with pytest.raises(ValueError, match=told):
            bring(tmp_path, ONE_FIELD, public, lines)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({**ONE_FIELD, "label": ["a", "b"]}, r'for several labels, write labels = \["edema"'),
        ({**COLUMNWISE, "max_labels": 4}, "max_labels must be from 1 to the number of labels, 3"),
        ({**NUMBER, "max_labels": 1}, "max_labels must be from 1 to the number of labels, 0"),
        (
            {**NUMBER, "classes": ["a", "b"]},
            r"low and high \(for a number\) .* got low and high, label, classes",
        ),
        ({**COLUMNWISE, "label": "x2"}, "got labels, label$"),
        ({**COLUMNWISE, "labels": ["a"]}, 'For one label, write label = "a" and classes'),
        ({**COLUMNWISE, "labels": ["a", "x"]}, "columns.x is the label"),
        ({**NUMBER, "low": 100}, "low must be below high for the label, got 100 and 100"),
        ({"label": "cost", "unit": "$"} | COLUMNS, "low must be below high .* got None and None"),
        ({**ONE_FIELD, "classes": ["a", "b|c"]}, "classes: a label must not be empty, or contain"),
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_one_line(values, told):
    with pytest.raises(ValueError, match=told) as caught:
        schema_of(values)
    assert "\n" not in str(caught.value)


@settings(max_examples=200, deadline=None)
@given(
    place=st.integers(0, 3),
    field=st.one_of(st.text(max_size=4), st.sampled_from(["$5", "1,5", "1e400", "|", "NO", "7"])),
    values=st.sampled_from([NUMBER, COLUMNWISE, ONE_FIELD]),
    may_be_empty=st.booleans(),
)
def test_a_label_is_read_by_itself(place, field, values, may_be_empty):
    fields = ["2,5", "edema", "yes", ""]
    other = [field if row == place else text for row, text in enumerate(fields)]
    schema = schema_of(values)
    read = []
    for column in (fields, other, [field]):
        columns = [pyarrow.array(column)] * len(schema.label_names())
        read.append(schema.labels(*columns, may_be_empty=may_be_empty))
    for before, after, alone in zip(*read, strict=True):
        others = np.arange(4) != place
        np.testing.assert_array_equal(before[others], after[others])
        np.testing.assert_array_equal(after[place], alone[0])


def test_drafts(tmp_path):
    lines = [f"{n % 9};{n % 30};{n % 2};{('no', 'yes')[n % 2]};x{n % 2}" for n in range(60)]
    path = tmp_path / "public.csv"
    path.write_text("\n".join(["x;days;edema;mass;site", *lines]))
    drafted = iter(range(20))

    def draft(label, target=None, private=None):
        files = (None if private else path, tmp_path / f"{next(drafted)}.toml")
        return draft_schema(*files, private=private, label=label, target=target)

    for private in (None, path):
        assert 'labels = ["edema", "mass"]\n' in draft("edema,mass", private=private)
    for target, key in ((None, "classes"), ("number", "high"), ("class", "classes")):
        text = draft("days", target)
        assert f"\n{key} = " in text.partition("[columns")[0]
        assert ("is the label a class? If" in text) == (target is None)
    assert '\nseparator = "|"\n' in draft("site", "labels")
    assert "# low = LOWEST" in draft("days", "number", private=path).partition("[columns")[0]
    for label, target in (("site", "number"), ("edema,mass", "class")):
        with pytest.raises(ValueError, match=r"^target: .*(not numbers|single column)"):
            draft(label, target)
    command = ("pate_tf/cli/main.py", "schema", f"--public={path}", "--label=edema")
    shown = run_script(*command, "--target=number", folder=tmp_path)
    assert 'label = "edema"\nlow = 0.0\nhigh = 1.0\n' in shown.out


def of_arrays(y_private, y_public=None, **options):
    x = np.arange(60.0)[:, np.newaxis]
    return pate_tf.Data.from_arrays(x, y_private, x, y_public, value_range=(0, 60), **options)


def test_arrays_and_lists():
    with pytest.warns(UserWarning, match="^y_public: 1.67% of the values"):
        data = of_arrays(AMOUNTS.tolist(), [None, 500, *AMOUNTS[2:]], target_range=(0, 442.5))
    assert data.private.labels.tolist() == AMOUNTS.tolist()
    np.testing.assert_array_equal(data.pool.true_labels[:2], [np.nan, 442.5])
    with pytest.warns(SensitiveWarning, match="y_private: 98.33%"):
        assert set(of_arrays(AMOUNTS, target_range=(0, 5)).private.labels) == {0.0, 5.0}
    data = of_arrays(SEVERAL.astype(bool), label_names=["edema", "mass"], max_labels=1)
    assert np.array_equal(data.private.labels, SEVERAL)
    assert data.dataset.max_labels == 1 and "labels    2: edema, mass" in repr(data)
    unknown = [[-1, -1], *SEVERAL[1:].tolist()]
    data = of_arrays(SEVERAL.tolist(), unknown, label_names=["edema", "mass"])
    assert data.pool.true_labels[:2].tolist() == unknown[:2]
    for labels, options, told in (
        ([np.nan, *AMOUNTS[1:]], {"target_range": (0, 450)}, "must be finite, got NaN"),
        (SEVERAL, {}, "num_classes: pass one of num_classes, target_range and"),
        (unknown, {"label_names": ["a", "b"]}, "labels of arrays must be"),
        (SEVERAL[:, 0], {"label_names": ["a", "b"]}, "labels of arrays must have one entry"),
    ):
        with pytest.raises(ValueError, match=told):
            of_arrays(labels, **options)


def test_data_frames_are_drafted_in_the_same_way():
    frame = pyarrow.table({"x": AMOUNTS, "cost": AMOUNTS, "a": SEVERAL[:, 0], "b": SEVERAL[:, 1]})
    data = pate_tf.Data.from_dataframe(frame, frame, label="cost")
    assert data.private.labels.tolist() == AMOUNTS.tolist()
    data = pate_tf.Data.from_dataframe(frame, frame, label=["a", "b"])
    assert np.array_equal(data.private.labels, SEVERAL) and data.dataset.class_names == ("a", "b")
    again = pate_tf.Data.from_dataframe(frame, label=["a", "b"], schema=data.schema)
    assert np.array_equal(again.private.labels, SEVERAL)
    whole = pyarrow.table({"x": AMOUNTS, "day": np.arange(60) % 25})
    with pytest.warns(UserWarning, match="is the label a"):
        assert pate_tf.Data.from_dataframe(whole, whole, label="day").dataset.num_classes == 25
