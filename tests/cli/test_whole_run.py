"""From two files to a published student: the commands schema, run and predict."""

import csv

import numpy as np
import pytest
import sklearn.datasets
from script_processes import run_script

import pate_tf
from pate_tf.core import artifacts

PATE = "pate_tf/cli/main.py"


def write(path, number, seed):
    """Writes visits like a German spreadsheet."""
    random = np.random.default_rng(seed)
    with open(path, "w", newline="", encoding="cp1252") as file:
        table = csv.writer(file, delimiter=";")
        table.writerow(["Größe", "Station", "krank"])
        for _ in range(number):
            size, ward = random.uniform(0, 2), random.choice(["a", "b", ""])
            sick = size + 0.5 * (ward == "a") + random.normal(0, 0.1) > 1.2
            table.writerow([f"{size:.2f}".replace(".", ","), ward, "ja" if sick else "nein"])


@pytest.fixture(scope="module")
def clinic(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clinic")
    write(folder / "private.csv", 1500, 0)
    write(folder / "public.csv", 600, 1)
    np.save(folder / "owners.npy", np.arange(1500) // 5)
    ended = run_script(PATE, "schema", "--public=public.csv", "--label=krank", folder=folder)
    assert ended.code == 0, ended.err
    return folder


def test_labels_that_are_not_worth_their_cost_are_not_charged(tmp_path):
    """The label is an identifier with 150 classes."""
    random = np.random.default_rng(0)
    for name, number in (("private.csv", 300), ("public.csv", 220)):
        rows = [f"{random.uniform(18, 90):.1f},p{row % 150:03}" for row in range(number)]
        (tmp_path / name).write_text("\n".join(["age,ill", *rows]))
    run_script(PATE, "schema", *FILES[1:2], "--label=ill", folder=tmp_path)
    flags = (*FILES, "--epsilon=8", "--train_dir=run")
    ended = run_script(PATE, "run", *flags, folder=tmp_path)
    assert ended.code == 4 and "Nothing was charged" in ended.err, ended.err
    assert "A constant answer, the most frequent" in ended.err and "--accept_forecast" in ended.err
    assert not (tmp_path / "run").exists()
    accepted = ("--method=feature_sums", "--accept_forecast")
    ended = run_script(PATE, "run", *flags, *accepted, folder=tmp_path)
    assert ended.code == 0 and "never predicts class p0" in ended.err, ended.err
    assert "student recall by class  " in ended.out and "label majority accuracy" in ended.out


def test_labels_of_the_pool_choose_the_method(tmp_path):
    """Judged only by margins, ten labels of votes look better, but a student learns little from
    them.
    """
    inputs, labels = sklearn.datasets.load_digits(return_X_y=True)
    private, public = (inputs[539:], labels[539:]), (inputs[:539], labels[:539])
    ranges = {"num_classes": 10, "value_range": (0.0, 16.0), "kind": "tabular"}
    data = pate_tf.Data.from_arrays(*private, *public, **ranges)
    fitted = pate_tf.fit(data, epsilon=1.0, directory=tmp_path / "run", publish=True)
    assert fitted.plan.method == "feature_sums"
    assert fitted.published.measured["student_accuracy"] > 0.5


FILES = ("--private=private.csv", "--public=public.csv", "--schema=schema.toml")


def test_two_commands_make_a_published_student(clinic):
    flags, report = ("--epsilon=3", "--train_dir=auto"), "--report_file=auto.json"
    ended = run_script(PATE, "run", *FILES, *flags, "--name=visits", report, folder=clinic)
    assert ended.code == 0, ended.err
    assert "only auto/released, after `pate audit run --train_dir=auto`" in ended.out
    assert ended.out.count("\nRun\n") == 1 and "\nTeachers\n" not in ended.out
    values = artifacts.read_json(clinic / "auto.json")
    assert values["student_accuracy"] > 0.85
    released = clinic / "auto" / "released"
    assert artifacts.read_json(released / "privacy_statement.json")["pool_name"] == "visits"
    assert values["epsilon_ledger"] <= 3.0
    # The run folder is enough for the same release, which costs nothing.
    typed = ("--train_dir=auto", "--epsilon=3", "--student=random_forest")
    report = "--report_file=auto-again.json"
    ended = run_script(PATE, "student", *typed, report, folder=clinic)
    assert ended.code == 0, ended.err
    again = artifacts.read_json(clinic / "auto-again.json")
    assert again["epsilon_ledger"] == values["epsilon_ledger"]
    assert (released / "student" / "2").is_dir()


def test_a_private_file_alone_makes_a_published_student(clinic):
    files, where = (FILES[0], FILES[2]), "--train_dir=alone"
    flags = (where, "--epsilon=8", "--evaluate_epsilon=1", "--report_file=alone.json")
    ended = run_script(PATE, "run", *files, *flags, folder=clinic)
    assert ended.code == 0, ended.err
    assert "not measured: there are no public labeled records for a test" in ended.out
    assert "95 % interval" in ended.out and "\n  queries" not in ended.out
    values = artifacts.read_json(clinic / "alone.json")
    assert values["student_accuracy"] is None and values["estimated_accuracy"][0] > 0.7
    inputs = "--inputs=alone/../private.csv"  # another path of the private file
    asked = ("--student=alone", inputs, "--report_file=measured-alone.json")
    ended = run_script(PATE, "predict", *asked, folder=clinic)
    assert ended.code == 0 and "says nothing about new records" in ended.err
    assert artifacts.read_json(clinic / "measured-alone.json")["accuracy"] > 0.8
    typed = ("student", where, "--epsilon=8", "--report_file=alone-again.json")
    ended = run_script(PATE, *typed, folder=clinic)
    assert ended.code == 0, ended.err
    again = artifacts.read_json(clinic / "alone-again.json")
    assert again["epsilon_ledger"] == values["epsilon_ledger"]
    stated = "--statement=alone/released/privacy_statement.json"
    assert "agrees" in run_script(PATE, "analysis", stated, folder=clinic).out
    ended = run_script(PATE, "run", *files, "--epsilon=1", "--method=pate", folder=clinic)
    assert ended.code == 1 and "public is required with method pate" in ended.err


def test_its_student_predicts_and_is_measured_on_files(clinic):
    if not (clinic / "auto").exists():
        test_two_commands_make_a_published_student(clinic)
    asked = ("--student=auto", "--inputs=public.csv")
    ended = run_script(PATE, "predict", *asked, "--output=predictions.csv", folder=clinic)
    assert ended.code == 0 and "has learned from" not in ended.err, ended.err
    # In the same format as the inputs.
    with (clinic / "predictions.csv").open(encoding="cp1252") as file:
        rows = list(csv.DictReader(file, delimiter=";"))
    with (clinic / "public.csv").open(encoding="cp1252") as file:
        given = list(csv.DictReader(file, delimiter=";"))
    assert [{name: row[name] for name in given[0]} for row in rows] == given
    sure = [float(row["probability of ja"].replace(",", ".")) for row in rows]
    assert all(0.0 <= one <= 1.0 for one in sure)
    assert any("," in row["probability of ja"] for row in rows)
    assert {row["predicted"] for row in rows} == {"ja", "nein"}
    right = np.mean([row["predicted"] == row["krank"] for row in rows])
    measured = run_script(PATE, "predict", *asked, "--report_file=measured.json", folder=clinic)
    assert measured.code == 0 and "has learned from most records" in measured.err, measured.err
    assert artifacts.read_json(clinic / "measured.json")["accuracy"] == pytest.approx(right)
    for line in ("recall of ja", "recall of nein", "calibration error", "the majority class"):
        assert line in measured.out


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (("run", *FILES), "--epsilon is required: the privacy budget of this run"),
        (("run", "--epsilon=1", "--owner=Station", *FILES), "line "),
        (("run", "--epsilon=1", "--student=gan", *FILES), "student gan needs images"),
        (
            ("run", "--epsilon=1", "--method=pate", "--owners_file=owners.npy", *FILES),
            "nb_teachers is required with unit owner",
        ),
        (("predict", "--student=auto", "--output=new.csv"), "--inputs is required"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(clinic, command, told):
    def files():  # except files that the test's own processes write
        return {one for one in clinic.iterdir() if not one.suffix.startswith(".std")}

    before = files()
    ended = run_script(PATE, *command, folder=clinic)
    assert ended.code in (1, 2) and told in ended.err
    first, *others = ended.err.strip().splitlines()
    assert first.startswith("error: ") and len(others) <= 11
    assert all(line.startswith("- ") for line in others)
    assert files() == before
