"""`pate start`: the dialog, its flags, and the report and model card of a run."""

import html
import json
import re
import subprocess
import sys

import numpy as np
import pytest
from script_processes import REPOSITORY, run_script

from pate_tf.audit import audit_run

PATE = "pate_tf/cli/main.py"
CLASSES = ["<script>alert(1)</script>", "`d`", "b|c"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Writes two tables. A class has the name of a script, and a person has two private rows."""
    folder = tmp_path_factory.mktemp("start")
    random = np.random.default_rng(0)
    for name, number in (("private", 900), ("public", 300)):
        lines = ["person,age,rate,kind" if name == "private" else "age,rate,kind"]
        for row in range(number):
            label = random.integers(3)
            values = random.normal((2 * (label == 0), 2 * (label == 1)), 0.3)
            cells = [f"p{row // 2}"] * (name == "private") + [f"{one:.3f}" for one in values]
            lines.append(",".join([*cells, CLASSES[label]]))
        (folder / f"{name}.csv").write_text("\n".join(lines))
    return folder


def test_a_dialog_asks_again_and_charges_nothing_without_a_yes(folder, tmp_path):
    answers = ["nowhere.csv", f"{folder}/private.csv", "knd", "kind", "", f"{folder}/public.csv"]
    typed = [sys.executable, REPOSITORY / PATE, "start", "--train_dir=run"]
    ended = subprocess.run(
        typed,
        input="\n".join([*answers, "2", "no", ""]),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert (
        "nowhere.csv can't be read" in ended.stdout and "There is no column 'knd'" in ended.stdout
    )
    assert (
        "  1    usual: an attacker's guess about one person is right at most 73 %" in ended.stdout
    )
    assert "$ pate run --epsilon=2.0 --private=" in ended.stdout
    assert "Forecast, before anything is charged" in ended.stdout
    assert "Nothing was charged." in ended.stdout and not (tmp_path / "run").exists()
    assert (tmp_path / "schema.toml").exists()
    ended = run_script(PATE, "start", f"--private={folder}/private.csv", folder=tmp_path)
    assert ended.code == 1 and ended.err.count("\n") == 1, ended.err
    assert ended.err.startswith("error: --label is required: the input ended early")


def test_flags_answer_and_the_run_leaves_a_report_and_a_model_card(folder):
    files = ("--private=private.csv", "--public=public.csv")
    flags = (*files, "--label=kind", "--owner=person", "--epsilon=2", "--yes")
    ended = run_script(PATE, "start", *flags, "--train_dir=run", "--json", folder=folder)
    assert ended.code == 0, ended.err
    values = json.loads(ended.out)
    assert values["classes"] == CLASSES and "report  " in ended.err
    released = folder / "run" / "released"
    page = (released / "report.html").read_text()
    assert not {"script", "link", "img", "iframe", "a"} & set(re.findall(r"<(\w+)", page))
    assert '<meta name="viewport"' in page and page.count("<h1>") == 1
    texts = [html.unescape(text) for text in re.findall(r">([^<>]*[^<>\s])\s*<", page)]
    accuracy = f"{100 * values['student_accuracy']:.1f}\xa0%"
    assert {*CLASSES, "ε = 2.00", "Accuracy per class", accuracy} <= set(texts)
    assert texts[-1].startswith("Signed: ___")
    card = (released / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: keras\npipeline_tag: tabular-classification\n")
    assert f"value: {values['student_accuracy']:.4f}" in card and "<script>" not in card
    audit = audit_run(folder / "run")
    assert audit.outcome == "passed", audit.checks
    (released / "README.md").write_text("another")
    assert audit_run(folder / "run").outcome == "violation"
