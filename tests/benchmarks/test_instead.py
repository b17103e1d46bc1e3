"""`python -m benchmarks.instead`, as a user runs it, on a tiny table."""

import json
import os
import pathlib
import sys

import pytest
from script_processes import Ended, run_script

from benchmarks.instead import reference
from benchmarks.instead.__main__ import reference_line

SCRIPT = "benchmarks/instead/__main__.py"
FAST = ("no_privacy", "noisy_means", "linear_head", "dp_sgd", "private_knn", "linear_head_student")
OF_IMAGES = "scattering_head"
TABLE = """
import numpy as np
from pate_tf.core.dataset import Dataset


def table(side, data_dir):
    dataset = Dataset(name="tiny", kind="tabular", input_shape=(4,), value_range=(-1.0, 2.0),
                      num_classes=2, pool_size=60)
    generator = np.random.default_rng(side == "private")
    labels = generator.integers(0, 2, 600 if side == "private" else 160)
    inputs = 0.5 * labels[:, None] + 0.2 * generator.normal(size=(len(labels), 4))
    return dataset, np.clip(inputs, -1, 2).astype("float32"), labels
"""


def as_python_m_does() -> None:
    sys.path.insert(0, os.getcwd())


def run(folder: pathlib.Path, *flags: str) -> Ended:
    (folder / "tiny_table.py").write_text(TABLE)
    return run_script(
        SCRIPT,
        "--dataset=tiny_table:table",
        "--quick",
        "--insecure_seed=3",
        f"--output_dir={folder}/out",
        *flags,
        folder=folder,
        setup=as_python_m_does,
    )


def results(folder: pathlib.Path) -> dict:
    return json.loads((folder / "out/results.json").read_text())


def measured(ended: Ended) -> list[str]:
    return [line for line in ended.err.splitlines() if line.startswith("  ... ")]


def test_every_cell_is_there_and_kept(tmp_path):
    ended = run(tmp_path, "--epsilons", "8", "--methods", *FAST, OF_IMAGES)
    assert ended.code == 0, ended.err
    rows = results(tmp_path)["rows"]
    assert {(row["method"], row["epsilon"]) for row in rows} == {
        ("no_privacy", None),
        *((name, 8.0) for name in FAST[1:]),
    }
    assert len(rows) == len(FAST)
    right = {(row["method"], row["epsilon"]): row["accuracy"] for row in rows}
    assert right["no_privacy", None] > 0.9
    assert right["noisy_means", 8.0] > 0.8
    table = (tmp_path / "out/table.md").read_text()
    assert all(row["title"] in table for row in rows)
    assert (tmp_path / "out/picture.png").stat().st_size > 1000
    assert "no --reference=DIR was given" in ended.out
    assert "protect labels alone" in ended.out
    # What is kept is not measured again, but for what is to be.
    docs = tmp_path / "docs"
    docs.mkdir()
    marks = "<!-- measured: tiny_table:table -->\n", "<!-- end: tiny_table:table -->\n"
    (docs / "instead.md").write_text("before\n" + "".join(marks) + "after\n")
    again = run(
        tmp_path,
        *("--epsilons", "8", "--methods", *FAST, "--again", "noisy_means"),
        *("--publish", f"--docs_dir={docs}", f"--reference={tmp_path}/none"),
    )
    assert again.code == 0, again.err
    assert [line.split()[1] for line in measured(again)[:1]] == ["noisy_means:"]
    page = (docs / "instead.md").read_text()
    assert table.splitlines()[2] in page
    assert page.startswith("before\n") and page.endswith("after\n")
    (missing,) = (line for line in page.splitlines() if line.startswith("Not measured yet: "))
    assert "pate_tf, stability gate" in missing and "wavelets" not in missing
    assert "not timed, analysis.py ended with 2" in again.out
    unchanged = [row for row in rows if row["method"] != "noisy_means"]
    assert [row for row in results(tmp_path)["rows"] if row in unchanged] == unchanged
    shown = ("--epsilons", "0.5", "8", "--repetitions=2", "--kept")
    record = json.loads((docs / "instead.json").read_text())["tiny_table:table"]
    assert [row["method"] for row in record] == [row["method"] for row in results(tmp_path)["rows"]]
    removed = {**record[0], "method": "of_an_earlier_version", "title": "gone"}
    record[1]["repetitions"] *= 2  # what the next run does not measure stays as it is
    before = json.dumps({"tiny_table:table": [*record, removed]})
    (docs / "instead.json").write_text(before)
    kept = run(
        tmp_path,
        *(*shown, "--methods", "linear_head", "library", "--publish", f"--docs_dir={docs}"),
    )
    assert kept.code == 0, kept.err
    after = json.loads((docs / "instead.json").read_text())["tiny_table:table"]
    assert [row["method"] for row in after] == [row["method"] for row in record]
    assert after[1] == record[1]
    (head,) = (row for row in after if row["method"] == "linear_head")
    assert "0.5 8 --repetitions=2" in head["command"]
    page = (docs / "instead.md").read_text()
    assert all(row["title"] in page for row in record) and "gone" not in page
    assert "--repetitions=2`, a few cells at a time" in page
    assert not measured(kept)
    rows_kept = results(tmp_path)["rows"]
    assert [(row["method"], row["epsilon"]) for row in rows_kept] == [("linear_head", 8.0)]


def test_wavelets_of_images_are_compared(tmp_path):
    ended = run_script(
        SCRIPT,
        *("--dataset=digits", "--epsilons", "8", "--methods", OF_IMAGES),
        *("--insecure_seed=3", f"--output_dir={tmp_path}/out"),
        folder=tmp_path,
        setup=as_python_m_does,
    )
    assert ended.code == 0, ended.err
    (row,) = results(tmp_path)["rows"]
    assert row["accuracy"] > 0.75


@pytest.mark.long
def test_the_library_is_compared(tmp_path):
    ended = run(tmp_path, "--epsilons", "8", "--methods", "library", "library_histogram")
    assert ended.code == 0, ended.err
    for row in results(tmp_path)["rows"]:
        (cell,) = row["repetitions"]
        assert cell["epsilon"] <= 8.0
        assert row["teachers"] == 20


def test_an_unknown_method_is_one_line(tmp_path):
    ended = run(tmp_path, "--methods", "magic")
    assert ended.code == 1
    assert "error: methods: expected some of no_privacy" in ended.err
    assert not (tmp_path / "out").exists()


def test_the_first_release_is_timed_beside_us(tmp_path, monkeypatch):
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    for folder in (theirs, ours):
        folder.mkdir()
        (folder / "analysis.py").write_text("")
    (theirs / "train_teachers.py").write_text("raise ImportError('tensorflow.contrib')")
    (ours / "train_teachers.py").write_text("")
    monkeypatch.setattr(reference, "REPOSITORY", ours)
    told = []
    analysis, teacher = reference.compare(
        theirs, sys.executable, dataset="mnist", data_dir=None, quick=True, report=told.append
    )
    assert analysis["ratio"] == pytest.approx(analysis["seconds"] / analysis["ours"])
    assert "ratio" not in teacher
    assert teacher["why"].endswith("ended with 1: ImportError: tensorflow.contrib")
    assert "ratio " in reference_line(analysis)
    assert "not timed, train_teachers.py" in reference_line(teacher)
    assert len(told) == 2
