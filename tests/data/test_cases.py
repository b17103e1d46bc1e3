"""Tables as programs and people write them: the reader gets the correct values or names the
problem.
"""

import gzip
import os
import re
import warnings

import numpy as np
import pytest

from pate_tf.core.sensitive import SensitiveWarning
from pate_tf.data.loaded_data import Data, draft_schema
from pate_tf.data.schema import read_schema, schema_of

RECORDS = [("30.5", "100", "y", "no"), ("61", "180", "n", "yes"), ("45", "90", "y", "yes")]
AGES, PRESSURES, LABELS = [30.5, 61, 45], [100, 180, 90], [0, 1, 1]


def table(header="age,pressure,smoker,ill", *records, delimiter=","):
    lines = [header, *(delimiter.join(record) for record in records or RECORDS)]
    return "\n".join(lines) + "\n"


LONG = table("age,pressure,smoker,ill", *RECORDS * 4)


def with_columns(header, *fields):
    """Returns a table with some more columns in front."""
    names = f"{header},age,pressure,smoker,ill"
    return table(names, *((*fields, *record) for record in RECORDS))


GERMAN = table(
    "age;pressure;smoker;clock;ill",
    *[("30,5", "1.100,0", "y", "12.30", "no"), ("61", "1.180,5", "n", "12.40", "yes")],
    delimiter=";",
)


def bring(folder, public, private=None, *, suffix=".csv", edit=str, **options):
    """Drafts a schema from a public file and reads both files with it."""
    for name, content in (("public", public), ("private", private or public)):
        content = content if isinstance(content, bytes) else content.encode()
        (folder / f"{name}{suffix}").write_bytes(content)
    files = [folder / f"{name}{suffix}" for name in ("private", "public")]
    schema = folder / "schema.toml"
    text = draft_schema(files[1], schema, label="ill")
    schema.write_text(edit(text))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return Data.from_csv(*files, schema=schema, **options), text


def with_word(word):
    return table("age,pressure,smoker,ill", *RECORDS, (word, "120", "n", "no"))


@pytest.mark.parametrize(
    "content",
    [
        table(),
        with_columns("", "7"),
        with_columns(",", "7", ""),
        with_columns("score,score", "7", "8"),
        with_columns("note", '"line one\nline ""two"", with a comma"'),
        with_columns("note", "word " * 40_000),
        "\ufeff" + table(),
        "sep=;\n" + table("age;pressure;smoker;ill", delimiter=";"),
        table().replace("\n", "\r\n"),
        gzip.compress(table().encode(), mtime=0),
        table().encode("utf-16"),
        "# of 2020, all\nA title\n\n" + LONG,
        LONG.replace("\n", ",\n").replace("ill,", "ill"),
        re.sub(r"\n(?=.)", "\n7,", LONG),
        table("age pressure  smoker ill ", *RECORDS, delimiter="   "),
        table().replace("yes", '"yes"').replace(",", ", "),
        table(delimiter="\t", header="age\tpressure\tsmoker\till\tnote")
        .replace("no\n", 'no\t"open\n')
        .replace("yes\n", "yes\tclosed\n"),
    ],
)
def test_how_a_table_is_written_changes_no_value(tmp_path, content):
    # The reader ignores a column that the schema doesn't use.
    note = re.compile(r"\[columns\.note\]\n(.+\n)*")
    data, _ = bring(tmp_path, content, edit=lambda text: note.sub("", text))
    np.testing.assert_array_equal(data.private.inputs[:3, :2], np.transpose([AGES, PRESSURES]))
    assert data.private.labels[:3].tolist() == LABELS
    assert len(data.private) in (3, 12) and data.dataset.name == "private"


@pytest.mark.parametrize(("delimiter", "label"), [(" ", "column_4"), ("\t", "column_1")])
def test_a_file_without_names_is_read_by_numbers_of_its_columns(tmp_path, delimiter, label):
    fields = [record[::-1] if label == "column_1" else record for record in RECORDS * 3]
    for name in ("public", "private"):
        lines = "\n".join(delimiter.join(record) for record in fields)
        (tmp_path / f"{name}.csv").write_text(lines + "\n")
    files = [tmp_path / f"{name}.csv" for name in ("private", "public")]
    with pytest.raises(ValueError, match=r"is a record, so the names of the columns are column_1"):
        draft_schema(files[1], tmp_path / "schema.toml", label="ill")
    text = draft_schema(files[1], tmp_path / "schema.toml", label=label)
    (tmp_path / "schema.toml").write_text(text.replace(label, "ill"))  # a custom name
    data = Data.from_csv(*files, schema=tmp_path / "schema.toml")
    assert data.private.labels.tolist() == LABELS * 3
    assert sorted(data.private.inputs.max(axis=0)) == [0, 1, 1, 61, 180]
    if delimiter == " ":
        with pytest.raises(ValueError, match="looks like a record"):
            draft_schema(None, tmp_path / "new.toml", private=files[0], label="column_1")


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_a_link_to_the_private_file_is_refused_as_public(tmp_path, link):
    private, public, path = (tmp_path / name for name in ("a.csv", "b.csv", "schema.toml"))
    private.write_text("age,ill\n" + "".join(f"{20 + n},{n % 2}\n" for n in range(40)))
    link(private, public)
    with pytest.raises(ValueError, match="is also the private file"):
        draft_schema(public, path, private=private, label="ill")
    assert not path.exists()
    draft_schema(private, path, label="ill")
    with pytest.raises(ValueError, match="is also the private file"):
        Data.from_csv(private, public, schema=path)


@pytest.mark.parametrize("word", ["", "NA", "?", "null"])
@pytest.mark.parametrize("sides", [(True, True), (True, False), (False, True)])
def test_a_gap_may_be_in_either_file(tmp_path, word, sides):
    contents = [with_word(word) if has_gap else table() for has_gap in sides]
    data, _ = bring(tmp_path, *contents)
    age = data.schema.columns[0]
    assert data.private.inputs[:3, 0].tolist() == AGES
    assert len(data.private) == 3 + sides[1]
    if sides[1]:
        assert data.private.inputs[3, 0] == float(age.missing)


@pytest.mark.parametrize("word", ["nan", " nan ", "NA", "inf", "x"])
def test_what_a_field_says_does_not_depend_on_another(tmp_path, word):
    """A single text value makes the reader parse all columns as texts."""
    found = []
    for age in ("20", "y"):
        (tmp_path / age).mkdir()
        private = table(
            "age,pressure,smoker,ill", *RECORDS, *((x, *BAD[0][1:]) for x in (word, age))
        )
        data, _ = bring(tmp_path / age, table(), private, on_bad_record="skip")
        found.append(dict(zip(data.private.owners, data.private.inputs[:, 0], strict=True)).get(3))
    assert found[0] == found[1]


def test_decimal_marks_and_thousands_are_those_of_each_column(tmp_path):
    data, text = bring(tmp_path, GERMAN)
    names = [column.name for column in data.schema.columns]
    values = data.private.inputs[:, [names.index("age"), names.index("pressure"), -1]]
    np.testing.assert_allclose(values, [[30.5, 1100, 12.3], [61, 1180.5, 12.4]], rtol=1e-6)
    assert "# 1.100,0 is read as 1100" in text


@pytest.mark.parametrize(
    ("name", "fields", "values"),
    [
        ("a currency", ["$1,234.50", "-$5.00", "$ 7"], [1234.5, -5, 7]),
        ("a unit", ["1,5 %", "20%", "-3 %"], [1.5, 20, -3]),
        ("dates", ["31.12.1999", "1.1.2000", "3.1.2000"], [730119, 730120, 730122]),
        ("a total", ["1", "2", "Total 3"], [1, 2, None]),
        ("signs", ["(12)", "\u22123", "5"], [-12, -3, 5]),
        ("thousands", ["1,234", "12,500", "7"], [1234, 12500, 7]),
        ("large", [str(2**60), "1.5e3", "-2E-1"], [2.0**60, 1500, -0.2]),
    ],
)
def test_numbers_are_read_as_people_write_them(tmp_path, name, fields, values):
    more = [str(number) for number in range(60)] if name == "a total" else []
    records = [(f'"{field}"', "no") for field in [*fields, *more]]
    data, text = bring(tmp_path, table("x,ill", *records, ("", "yes")), edit=str)
    (column,) = data.schema.columns
    numbers = data.private.inputs[:3, 0].tolist()
    missing = numbers[2] if column.date else float(column.missing)
    assert numbers == pytest.approx([missing if x is None else x for x in values])
    assert "Total" not in text or 'gaps = ["Total 3"]' in text


@pytest.mark.parametrize(
    ("classes", "labels"),
    [(("0", "1"), ("0.0", "1.0")), (("no", "yes"), ("No", "YES.")), (("<5", ">5"), ("<5.", ">5."))],
)
def test_labels_that_are_equal_but_for_their_spelling_are_equal(tmp_path, classes, labels):
    public, private = (
        table().replace("no", no).replace("yes", yes) for no, yes in (classes, labels)
    )
    data, _ = bring(tmp_path, public, private)
    assert data.dataset.class_names == classes
    assert data.private.labels.tolist() == LABELS


def test_a_label_that_two_classes_are_like_is_none():
    schema = schema_of({"classes": ["a", "A"], "columns": {"x": {"low": 0, "high": 1}}})
    labels, fits = schema.labels(["a", "A", "A."])
    assert labels[:2].tolist() == [0, 1] and fits[:, 0].tolist() == [True, True, False]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"PK\x03\x04sheet", "Excel workbook or a zip archive. Save the sheet as CSV"),
        (b'{"age": 3}', "JSON file. Save it as CSV"),
        (b"\xd0\xcf\x11\xe0sheet", "Excel workbook. Save the sheet as CSV"),
        (b"PAR1", "Parquet file. Give it the suffix .parquet"),
        (gzip.compress(table().encode(), mtime=0)[:-9], "is truncated"),
        ("", "the first line contains no column names"),
        (
            table() + '30,100,"y,no\n20,80,n" a,no\n',
            r"^\S+public\.csv: the quotation mark in line 5 is not closed",
        ),
        (table("age,pressure,smoker,outcome"), "outcome|classes"),
    ],
    ids=["xlsx", "json", "xls", "parquet", "broken gzip", "empty", "quotes", "label"],
)
def test_what_is_no_table_is_named(tmp_path, content, told):
    with pytest.raises(ValueError, match=told):
        bring(tmp_path, content)


THOUGHT = {
    "constant": ("constant: every public record has the same value", lambda n: "7"),
    "sentinel": (
        "999 is far from all other values: does it mean unknown?",
        lambda n: str(n % 9 or 999),
    ),
    "outlier": (
        "-2200 is far from all other values: correct the range if",
        lambda n: "-2200" if n == 3 else str(n),
    ),
    "skewed": ("half of the range, at most 24. Is high", lambda n: str(n % 25 if n else 90)),
    "range": ("is -200 possible?", lambda n: "-200" if n == 3 else str(n + 0.5)),
    "codes": (
        'these numbers codes? Then replace low, high and missing by categories = ["12E3", "5E0"]',
        lambda n: ("5E0", "12E3")[n % 2],
    ),
    "blanks": ("1\u202f234,5 is read as 1234.5", lambda n: "1\u202f234,5" if n else "1\xa0000"),
    "many": (
        "the most frequent of 60 values; `other` covers 30 more values. Add",
        lambda n: f"C{n % 60}x",
    ),
    "own": ("most values occur once (names?)", lambda n: f"Smith{n}"),
    "owner": ('a person\'s id? Write owner = "x" and', lambda n: str(1000 + n // 3)),
    "zeros": ('categories = ["007", "120"]', lambda n: ("007", "120")[n % 2]),
    "names": ("a different short text: if they are names", lambda n: f"Anna Maria of House{n}"),
    "gaps": ("the range includes it. The lowest number is 1", lambda n: str(n or "")),
    "identifier": ("every record has a different number: is it an identifier?", str),
    "day": ("%d/%m/%Y is also possible: does the day", lambda n: f"0{n % 9 + 1}/03/{1900 + n}"),
    "point": ("200.000 is read as 200", lambda n: f"{200 - n}.000"),
    "case": ('do "N" and "n" and "no" mean the same?', lambda n: ("y", "N", "n", "no")[n % 4]),
}


@pytest.mark.parametrize("kind", THOUGHT)
def test_a_draft_says_beside_a_column_what_needs_thought(tmp_path, kind):
    comment, field = THOUGHT[kind]
    path = tmp_path / "public.csv"
    records = [(field(n), str(n % 7), "ab"[n % 2]) for n in range(200)]
    path.write_text(table("x;age;ill", *records, delimiter=";"))
    text = draft_schema(path, tmp_path / "schema.toml", label="ill")
    column, _, others = text.partition("[columns.age]")
    assert comment in column.partition("# left out" if kind == "own" else "[columns.x]")[2]
    assert "#" not in others.replace("# replaces an empty field", "")


@pytest.mark.parametrize(
    ("header", "label", "comment"),
    [
        ("30,100,a,b", None, "the first line has numbers (30, 100): are they column names?"),
        ("Unnamed: 0,,smoker,ill", "ill", "2 columns without a name are left out"),
        ("age,a,a,ill", "ill", "left out: several columns are named 'a', or the column is nested"),
        (
            "age,Admitted on,b,c",
            "admit",
            "there is no column 'admit': do public records lack the label?",
        ),
        ("age,a,b,Smoke", "smoker", "there is no column 'smoker': is 'Smoke' the label?"),
        ("pressure,smoker,ill", "ill", "1 columns without a name are left out"),
        ("age,pressure,smoker,ill", "ill", 'do "NO" and "no" mean the same?'),
    ],
)
def test_a_draft_says_what_needs_thought_of_all(tmp_path, header, label, comment):
    path = tmp_path / "public.csv"
    path.write_text(table(header, *RECORDS, ("20", "80", "n", "NO")))
    assert f"# {comment}\n" in draft_schema(path, tmp_path / "schema.toml", label=label)


@pytest.mark.parametrize("kind", ["number", "text", "category"])
def test_the_name_of_one_of_two_columns_may_be_a_value_of_it(tmp_path, kind):
    fields = {"number": "{}.5", "text": "number {} of many", "category": "c"}
    records = [(fields[kind].format(n), ("ill", "well")[n % 2]) for n in range(60)]
    (tmp_path / "public.csv").write_text(table("x,ill", *records))
    text = draft_schema(tmp_path / "public.csv", tmp_path / "schema.toml", label="ill")
    assert 'classes = ["ill", "well"]' in text and "[columns.x]" in text


def test_a_draft_of_a_private_file_has_its_first_line_alone(tmp_path):
    path = tmp_path / "patients.csv"
    path.write_bytes(b"age;smoker;Outcome\n" + b"\xff\x00 no record at all")
    text = draft_schema(None, tmp_path / "schema.toml", private=path, label="Outcome")
    assert "[columns.age]" in text and "[columns.smoker]" in text and 'delimiter = ";"' in text
    with pytest.raises(ValueError, match=r"has no column outcome. Use the spelling in that line"):
        draft_schema(None, tmp_path / "other.toml", private=path, label="outcome")
    with pytest.raises(ValueError, match=r"- columns\.age .*\n- columns\.smoker ") as caught:
        read_schema(tmp_path / "schema.toml")
    assert '- classes needs a list of classes, such as classes = ["a", "b"]' in str(caught.value)


@pytest.mark.parametrize("label", [None, "ill", "Meyer"])
@pytest.mark.parametrize(
    "records",
    [
        [("Meyer", "34", "Positive"), ("Weber", "35", "Negative")],
        [("Meyer", "1999-01-31", "Positive")],
        [("Meyer", "Ill", "Positive"), ("Weber", "Well", "Positive"), ("Adam", "Ill", "")],
        [("Meyer", "NA", "Positive"), ("Weber", "NA", "")],
    ],
    ids=["number", "date", "again", "gap"],
)
def test_no_field_of_a_private_record_is_in_a_draft_or_a_message(tmp_path, records, label):
    path = tmp_path / "patients.csv"
    path.write_text(table(",".join(records[0]), *records[1:]))
    with pytest.raises(ValueError, match="looks like a record") as caught:
        draft_schema(None, tmp_path / "new.toml", private=path, label=label)
    assert "\n" not in str(caught.value) and not (tmp_path / "new.toml").exists()
    assert not any(field in str(caught.value) for field in ("Meyer", "Ill", "Positive", "1999"))


def test_a_first_line_without_the_label_is_not_copied(tmp_path):
    path, target = tmp_path / "patients.csv", tmp_path / "new.toml"
    path.write_text("Meyer,Ill,Positive\n")
    for label, told in ((None, "label is required"), ("ill", "has no column ill")):
        with pytest.raises(ValueError, match=told) as caught:
            draft_schema(None, target, private=path, label=label)
        assert not any(field in str(caught.value) for field in ("Meyer", "Ill", "Positive"))
    # A label that its own column repeats is a value, not a name.
    path.write_text("Meyer,Berlin,ill\nWeber,Bonn,well\nAdam,Ulm,ill\n")
    with pytest.raises(ValueError, match=r"a record, because of field 3\. If that is a"):
        draft_schema(None, target, private=path, label="ill")
    (tmp_path / "public.csv").write_text(table())
    with pytest.raises(ValueError, match=r"has no column age, pressure, smoker. Use the spelling"):
        path.write_text("Meyer,Berlin,ill\n")
        draft_schema(tmp_path / "public.csv", target, private=path, label="ill")
    path.write_text("age,pressure,smoker,ill\nx,x,smoker,ill\n")  # a public file has these names
    draft_schema(tmp_path / "public.csv", tmp_path / "other.toml", private=path, label="ill")
    path.write_text("ill,2019,2020,2021\nill,1,2,3\n")  # years are names, and ill is one, too
    text = draft_schema(None, target, private=path, label="ill", classes=("no", "yes"))
    assert "[columns.2019]" in text and 'classes = ["no", "yes"]' in text


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([f"{n % 20}.5" for n in range(60)], "low = 0.5\nhigh = 19.5"),
        ([str(7 * n) for n in range(60)], "low = 0.0\nhigh = 413.0"),
        (
            [str(7 * (n % 30)) for n in range(60)],
            "# is the label a number? If it is a class, use --target=class",
        ),
        ([str(n) for n in range(60)], "has 60 values: is it an identifier or a number?"),
        ([f"d{n:03}" for n in range(60)], "has 60 values: is it an identifier or a number?"),
        (["flu", "ill", "flu;ill"] * 20, 'classes = ["flu", "ill"]\nseparator = ";"'),
        (["flu", "ill", "flu, ill"] * 20, "several labels. For classes, use --target=class"),
        (["New York, NY", "Albany, NY", "Reno, NV"] * 20, 'NV"]'),
        (["0", "1"] * 30, "smoker: same values as the label. If these are labels"),
    ],
)
def test_a_label_that_may_be_no_class_is_drafted_by_its_values(tmp_path, values, told):
    path = tmp_path / "public.csv"
    records = [(str(n % 9), str(n % 2), f'"{value}"') for n, value in enumerate(values)]
    path.write_text(table("age,smoker,ill", *records))
    text = draft_schema(path, tmp_path / "schema.toml", label="ill")
    assert told in text.partition("[columns")[0]
    assert read_schema(tmp_path / "schema.toml").label == "ill"


def test_several_owners_are_one_line(tmp_path):
    path = tmp_path / "public.csv"
    path.write_text(table())
    with pytest.raises(ValueError, match=r"^owner: .*Join several"):
        draft_schema(path, tmp_path / "new.toml", owner="smoker,ill")
    values = {"classes": ["a", "b"], "columns": {"x": {"low": 0, "high": 1}}}
    with pytest.raises(ValueError, match=r"owner: .*Join several"):
        schema_of({**values, "owner": ["smoker", "ill"]})


@pytest.mark.parametrize("blank", [" ", "\xa0", "\u2009", "\u202f"])
def test_blanks_between_thousands_are_read_whatever_their_width(tmp_path, blank):
    fields = [f"{n}{blank}{n:03},5{blank}\u20ac" for n in range(1, 60)]
    content = table(
        "cost;ill", *((field, "no") for field in fields), ("7 \u20ac", "yes"), delimiter=";"
    )
    data, _ = bring(tmp_path, content)
    assert data.private.inputs[:3, 0].tolist() == [1001.5, 2002.5, 3003.5]


def test_a_draft_states_how_its_file_is_written(tmp_path):
    content = table("größe;ill", ("1,5", "no"), ("2,5", "yes"), delimiter=";").encode("cp1252")
    _, text = bring(tmp_path, content)
    assert 'delimiter = ";"\nencoding = "cp1252"\n' in text
    alone = Data.from_csv(tmp_path / "private.csv", schema=tmp_path / "schema.toml")
    assert alone.private.inputs[:, 0].tolist() == [1.5, 2.5]


def test_gaps_are_not_counted_as_outside_of_a_range(tmp_path):
    content = table("age,ill", *((str(n or ""), ("no", "yes")[n % 2]) for n in range(60)))
    (tmp_path / "public.csv").write_text(content)
    text = draft_schema(tmp_path / "public.csv", tmp_path / "draft.toml", label="ill")
    corrected = re.sub("low = .*", "low = 1", text)
    assert corrected != text
    (tmp_path / "schema.toml").write_text(corrected)
    files = [tmp_path / f"{side}.csv" for side in ("private", "public")]
    # The private file contains the public rows; or twice, as by chance in a table of few rows.
    for private, found in ((content, [True]), (content + content.partition("\n")[2], [])):
        files[0].write_text(private)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            Data.from_csv(*files, schema=tmp_path / "schema.toml")
        assert ["nearly all public inputs" in str(each.message) for each in caught] == found


BAD = [("x", "100", "y", "no"), ("30", "?", "y", "perhaps"), ("30", "100"), ("30", "100", "n", "")]


def strict(text):
    return text.replace("other = true", "other = false")


def test_all_faults_of_a_private_file_are_told_at_once_by_place_alone(tmp_path):
    private = table("age,pressure,smoker,ill", *RECORDS, *BAD * 4)
    with pytest.raises(ValueError, match=r"private\.csv") as caught:
        bring(tmp_path, table(), private, edit=strict)
    first, *lines = str(caught.value).split("\n")
    assert first.endswith("sensitive; `on_bad_record=skip` leaves such records out):")
    assert lines[:4] == [
        "- line 5: age must be a finite number",
        "- line 6: ill must be a class, one of no, yes",
        "- line 7 has 2 fields instead of 4",
        "- line 8: ill must be a class",
    ]
    assert len(lines) == 11 and lines[-1] == "- and 6 more"
    assert "perhaps" not in str(caught.value) and "x" not in "".join(lines)


def test_records_that_do_not_fit_are_skipped_by_themselves_alone(tmp_path):
    private = table("age,pressure,smoker,ill", BAD[2], BAD[0], *RECORDS, *BAD[1::2])
    for name, text in (("public", table()), ("private", private)):
        (tmp_path / f"{name}.csv").write_text(text)
    draft_schema(tmp_path / "public.csv", tmp_path / "schema.toml", label="ill")
    files = [tmp_path / f"{name}.csv" for name in ("private", "public")]
    with pytest.warns(SensitiveWarning, match="4 records do not fit and are left out"):
        data = Data.from_csv(*files, schema=tmp_path / "schema.toml", on_bad_record="skip")
    assert data.private.inputs[:, 0].tolist() == AGES
    assert data.private.labels.tolist() == LABELS
    # no other record's teacher depends on a bad record
    assert data.private.owners.tolist() == [2, 3, 4]
