"""`pate start`: the dialog, its flags, and the report and model card of a run."""

import html
import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from script_processes import REPOSITORY, run_script

from pate_tf.audit import audit_run, report_page

PATE = "pate_tf/cli/main.py"
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
# Puts the texts that reach beyond their page into the title.
CUT = """onload = () => { document.title = "cut: " + [...document.getElementsByTagName("iframe")]
    .flatMap((frame) => [...frame.contentDocument.querySelectorAll("*")].filter((one) =>
        one.getBoundingClientRect().right > frame.clientWidth + 1
    ).map((one) => frame.width + one.textContent)) }"""
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
    roles = ["knd", "kind", "person,age", ""]
    answers = ["nowhere.csv", f"{folder}/private.csv", *roles, f"{folder}/public.csv"]
    typed = [sys.executable, REPOSITORY / PATE, "start", "--train_dir=run"]
    ended = subprocess.run(
        typed,
        input="\n".join([*answers, "2", "0.5", "no", ""]),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    said = ended.stdout
    assert "nowhere.csv can't be read" in said and "There is no column 'knd'" in said
    assert "  1    usual: an attacker's guess about one person is right at most 73 %" in said
    assert "owner: name one column" in said and "\n[columns.age]\n" in said
    assert "$ pate run --epsilon=2.0 --evaluate_epsilon=0.5 --private=" in said
    assert "It spends epsilon 2, and 0.5 for the estimate." in said
    assert "Forecast, before privacy budget is spent" in said
    assert "No privacy budget was spent." in said and not (tmp_path / "run").exists()
    flags = (f"--private={folder}/private.csv", f"--public={folder}/public.csv", "--epsilon=2")
    ended = run_script(PATE, "start", *flags, "--label=rate", "--yes", folder=tmp_path)
    assert (ended.code, ended.err.count("\n")) == (1, 1) and "predicts kind, not rate" in ended.err
    ended = run_script(PATE, "start", *flags, "--train_dir=run", folder=tmp_path)
    assert ended.code == 0 and "(empty: kind)" in ended.out and "No privacy budget" in ended.out
    assert run_script(PATE, "start", folder=tmp_path).err.startswith("error: --private is required")


def test_public_records_without_labels_need_the_classes(folder, tmp_path):
    (tmp_path / "public.csv").write_text("age,rate\n" + "1.5,2.5\n0.5,0.25\n" * 40)
    files = (f"--private={folder}/private.csv", "--public=public.csv", "--label=kind")
    flags = ("start", *files, "--epsilon=1", "--yes", "--train_dir=run", "--method=pate")
    ended = run_script(PATE, *flags, folder=tmp_path)
    assert ended.code == 1 and "error: --classes must be at least two, such as no,yes" in ended.err
    assert not (tmp_path / "schema.toml").exists()
    run_script(PATE, *flags, "--classes=a, b", folder=tmp_path)
    typed = ("schema", "--public=public.csv", "--label=kind", "--schema=new.toml")
    run_script(PATE, *typed, "--classes=a, b", folder=tmp_path)
    for name in ("schema.toml", "new.toml"):
        assert 'classes = ["a", "b"]\n' in (tmp_path / name).read_text()


def test_images_are_folders(tmp_path):
    (tmp_path / "images" / "a").mkdir(parents=True)
    ended = run_script(PATE, "start", "--private=images", "--public=web", "--yes", folder=tmp_path)
    assert ended.code == 1 and "web is not a folder" in ended.err


@pytest.fixture(scope="module")
def values(folder):
    """Starts a run with flags only; returns its results."""
    files = ("--private=private.csv", "--public=public.csv")
    flags = (*files, "--label=kind", "--owner=person", "--epsilon=2", "--yes")
    ended = run_script(PATE, "start", *flags, "--train_dir=run", "--json", folder=folder)
    assert ended.code == 0 and "report  " in ended.err, ended.err
    return json.loads(ended.out)


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium: apt-get install chromium")
def test_no_text_of_the_report_is_cut_on_any_screen_and_it_prints_on_two_pages(
    folder, values, tmp_path
):
    page = tmp_path / "report.html"
    page.write_text(report_page(folder / "run", audit=audit_run(folder / "run")))
    text = html.escape(page.read_text())
    frames = [f'<iframe width="{width}" srcdoc="{text}"></iframe>' for width in (390, 768, 1400)]
    (tmp_path / "frames.html").write_text(f"{''.join(frames)}<script>{CUT}</script>")

    def browse(page, *flags):
        shared = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
        browser = [BROWSER, *shared, f"--user-data-dir={tmp_path}/profile", *flags, page.as_uri()]
        return subprocess.run(browser, capture_output=True, text=True, timeout=120, check=True)

    shown = browse(tmp_path / "frames.html", "--virtual-time-budget=5000", "--dump-dom").stdout
    assert "<title>cut: </title>" in shown, re.findall("<title>.*</title>", shown, re.DOTALL)
    browse(page, f"--print-to-pdf={tmp_path}/report.pdf")
    assert len(re.findall(rb"/Type /Page\b", (tmp_path / "report.pdf").read_bytes())) == 2


def test_flags_answer_and_the_run_leaves_a_report_and_a_model_card(folder, values):
    assert values["classes"] == CLASSES
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
