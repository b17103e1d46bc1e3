"""`python -m benchmarks.silos`, as a user runs it, on the embedded digits."""

import json

import numpy as np
import pytest
from script_processes import run_script

from benchmarks.silos.shares import shares
from benchmarks.silos.skew import by_similarity

SCRIPT = "benchmarks/silos/__main__.py"


def run(folder, *parts, flags=()):
    ended = run_script(
        SCRIPT, "--quick", f"--folder={folder}", "--only", *parts, *flags, folder=folder
    )
    assert ended.code == 0, ended.err
    rows = [line.split(" | ") for line in ended.out.splitlines() if line.startswith("| random")]
    return ended, rows


def test_tables_are_measured_once_and_agree_with_what_is_expected(tmp_path):
    ended, rows = run(tmp_path, "survival", "secure")
    survived = [row for row in rows if len(row) == 11]
    assert len(survived) == 4 and len(rows) == 6
    # Standard errors: 6 of them have a false alarm of 1e-8 or so, more in the tails of few queries.
    assert all(abs(float(row[5])) < 6 for row in survived), ended.out
    again, same = run(tmp_path, "survival", "secure")
    assert (again.err.count("  ... "), same) == (0, rows), "nothing was measured again"
    assert (tmp_path / "sensitive").stat().st_mode & 0o777 == 0o700


@pytest.mark.long
def test_skewed_silos_students_and_sums(tmp_path):
    flags = (f"--picture={tmp_path / 'students.png'}", f"--json={tmp_path / 'sums.json'}")
    ended, _ = run(tmp_path, "skew", "students", "sums", flags=flags)
    compared = json.loads((tmp_path / "sums.json").read_text())
    assert list(compared) == ["one holder", "even, 5", "even, 50", "users, 120"]
    assert ended.out.count("\n| skewed |") == 2 and ended.out.count("\n| even |") == 1
    assert "\n| local | 20 |" in ended.out and "\n| secure | 20 |" in ended.out
    assert (tmp_path / "students.png").stat().st_size > 1000


def test_skewed_shares_are_disjoint_of_mostly_two_classes_and_of_unequal_size():
    labels = np.random.default_rng(0).integers(0, 10, 20_000)
    parts = shares("skewed", labels, 40, 10)
    together = np.concatenate(parts)
    assert len(set(together.tolist())) == len(together)
    sizes = np.array([len(part) for part in parts])
    assert sizes.max() > 10 * np.median(sizes) > 10 * sizes.min() / 2
    of_two = [np.sort(np.bincount(labels[part]))[-2:].sum() / len(part) for part in parts]
    assert np.median(of_two) > 0.8


def test_histograms_are_read_by_similarity_where_one_class_seldom_leads():
    """No silo knows class 2: its inputs get as many votes for 0 as for 1."""
    means = np.array([[90.0, 5.0, 5.0], [5.0, 90.0, 5.0], [35.0, 34.0, 36.0]])
    truth = np.repeat(np.arange(3), 100)
    histograms = means[truth] + np.random.default_rng(0).normal(0.0, 3.0, (300, 3))
    assert (histograms.argmax(axis=1) == truth).mean() < 0.9
    assert (by_similarity(histograms) == truth).all()
