"""The page of results says what the JSON file says."""

import dataclasses
import json
import re

import numpy as np
import pytest
from script_processes import REPOSITORY

from benchmarks.paper import data_independent, figure5, frontier, page
from benchmarks.paper.bench import Measured
from benchmarks.paper.figure4 import THEIRS
from benchmarks.paper.forests import WHY, _falls_short
from benchmarks.paper.rows import Row, spread, with_interval
from benchmarks.paper.teachers import _row
from pate_tf.accounting.mechanisms import LaplaceNoisyMax, StabilityGate
from pate_tf.students.evaluation import Accuracy


def experiment(**row):
    full = dataclasses.asdict(Row(what="w", cells={}, seconds=1.25)) | row
    return {
        "command": "python -m benchmarks.paper --only=teachers",
        "seed": 3,
        "insecure_seed": None,
        "setting": "full",
        "versions": {"python": "3.11"},
        "machine": "2 cores",
        "seconds": 1.25,
        "rows": [full],
    }


def published(folder, result, benchmarks=None):
    for name, content in (benchmarks or {}).items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    page.publish({"experiments": {"teachers": result}}, folder, folder / "docs")
    return (folder / "docs/results.md").read_text()


def test_columns_stand_in_order_and_nothing_is_lost(tmp_path):
    cells = {"more": "3", "ours": "2", "the paper": "1"}
    text = published(tmp_path, experiment(cells=cells, resources={"MiB": "7"}))
    assert "|  | the paper | ours | more | MiB | seconds |" in text
    assert "| w | 1 | 2 | 3 | 7 | 1.2 |" in text
    assert "`python -m benchmarks.paper --only=teachers`: 1 s, seed 3, 2 cores; python 3.11" in text


def test_what_was_not_measured_anew_stays_on_the_page(tmp_path):
    (tmp_path / "ledger.json").write_text(json.dumps({"rows": []}))
    page.publish({"experiments": {"teachers": experiment(cells={"ours": "2"})}}, tmp_path, tmp_path)
    (tmp_path / "ledger.json").unlink()
    page.publish({"experiments": {"figure2": experiment(cells={"ours": "5"})}}, tmp_path, tmp_path)
    text = (tmp_path / "results.md").read_text()
    assert "| w | 2 | 1.2 |" in text and "| w | 5 | 1.2 |" in text
    kept = json.loads((tmp_path / "results.json").read_text())
    assert set(kept["experiments"]) == {"teachers", "figure2"} and "ledger" in kept["benchmarks"]


def test_ours_stands_first_where_the_paper_has_no_column(tmp_path):
    text = published(tmp_path, experiment(cells={"more": "3", "ours": "2"}))
    assert "|  | ours | more | seconds |" in text
    assert "| w | 2 | 3 | 1.2 |" in text


def trained(*right):
    return [Measured({"held_out": one, "num_held_out": 100}, seconds=1.0) for one in right]


@pytest.mark.parametrize(("right", "gain", "short"), [(93, "+3.00", False), (87, "-3.00", True)])
def test_a_gain_is_that_of_distillation_over_plurality(right, gain, short):
    students = {"plurality": trained(89, 91), "T = 1": trained(80, 80)}
    row = figure5._row("w", 100, students | {"T = 5": trained(right - 1, right + 1)})
    assert row.cells["plurality"] == "90.00 % (89.00 % to 91.00 %)"
    assert row.cells["mean gain of T = 5, points"] == gain
    assert row.cells["mean gain of T = 1, points"] == "-10.00"
    assert bool(row.why) == short


@pytest.mark.parametrize("kind", ["epsilon", "worst_case"])
@pytest.mark.parametrize(("accuracy", "epsilon", "best"), [(0.98, 1.0, "b"), (0.98, 0.4, "a")])
def test_a_goal_is_compared_with_what_it_pays_for(accuracy, epsilon, best, kind):
    other = {"epsilon": "worst_case", "worst_case": "epsilon"}[kind]
    rows = [
        Row(what=name, cells={"name": name}, numbers={kind: cost, other: 0, "accuracy": right})
        for name, cost, right in (("a", 0.4, 0.97), ("b", 1.0, 0.98), ("c", 1.1, 0.99))
    ]
    rows.append(Row(what="a gate that stayed shut", cells={}))
    row = frontier._goal_row(accuracy, epsilon, rows, kind=kind)
    assert row.cells["name"] == best
    assert row.what.endswith(": reached" if best == "b" else ": not reached")
    assert bool(row.why) == (best == "a")
    assert frontier._goal_row(accuracy, 0.1, rows, kind=kind).why.startswith("No labels left")


def test_points_of_the_frontier_take_their_mechanisms_from_the_plan():
    points = {
        (one.num_teachers, one.num_queries, one.target): one for one in frontier.POINTS["full"]
    }
    gate = points[250, 50, 0.25].planned(10, 1e-5)
    assert gate == StabilityGate(epsilon=0.25, delta=1e-5 * (1 / 3))
    assert points[250, 100, None].planned(10, 1e-5) == LaplaceNoisyMax(gamma=1 / 20)
    with pytest.raises(ValueError, match="expected a mechanism or a target"):
        frontier.Point(20, 5).planned(10, 1e-5)


def test_rows_keep_the_words_that_they_were_measured_by(tmp_path):
    assert "As it was done then." in published(
        tmp_path, experiment() | {"about": "As it was done then."}
    )


def test_a_gate_that_stayed_shut_reaches_no_goal():
    rows = [
        Row(
            what="w",
            cells={},
            numbers={
                "worst_case": 0.25,
                "accuracy": float(np.median(frontier.counted(accuracies, of=3))),
            },
        )
        for accuracies in ([0.99], [0.98, 0.98, 0.985])
    ]
    assert frontier.counted([0.99], of=3) == [0.99, 0.0, 0.0]
    goals = [
        frontier._goal_row(one, 0.25, rows, kind="worst_case").what.split(": ")[1]
        for one in (0.985, 0.98)
    ]
    assert goals == ["not reached", "reached"]


def test_a_spread_names_the_range_where_there_is_one():
    assert spread([0.5, 0.25, 3.0]) == "0.50 (0.25 to 3.00)"
    assert spread([0.401, 0.402]) == "0.40"


@pytest.mark.parametrize("why", ["", "Because of that."])
def test_a_reason_is_shown_where_there_is_one(tmp_path, why):
    text = published(tmp_path, experiment(why=why))
    assert ("Where ours falls short" in text) == bool(why)
    assert ("- w: Because of that." in text) == bool(why)


def test_seeded_noise_is_named(tmp_path):
    assert "NOISE SEEDED" not in published(tmp_path, experiment())
    result = experiment() | {"insecure_seed": 5}
    assert "NOISE SEEDED with 5: not private" in published(tmp_path, result)


def test_other_benchmarks_are_taken_in(tmp_path):
    text = published(
        tmp_path,
        experiment(),
        {
            "accounting_small": {"exact, 100 queries": [{"ratio": 98.125, "seconds": 7}]},
            "ledger": {"seconds": 1.5, "mechanism": "laplace"},
            "unknown": {"never": 1},
        },
    )
    assert "## Accounting, against plain loops timed on a part and scaled: small" in text
    assert "| exact, 100 queries, run 1 | 98.12 | 7 |" in text
    assert "python benchmarks/ledger.py" in text
    assert "| mechanism | laplace |" in text
    assert "never" not in text


@pytest.mark.parametrize("ours, falls_short", [(0.9, False), (0.8386, False), (0.83, True)])
def test_a_row_has_a_reason_exactly_where_it_falls_short(ours, falls_short):
    assert bool(_row("w", 0.8386, ours, "", "reason", 0.0).why) == falls_short
    assert not _row("w", None, ours, "", "reason", 0.0).why


def test_forests_are_compared_at_the_papers_precision():
    assert not _falls_short("adult", 2, 0.8489)
    assert _falls_short("adult", 2, 0.8449)
    assert _falls_short("diabetes", 0, 0.9393)
    assert not _falls_short("diabetes", 0, 0.93996)
    assert not _falls_short("digits", 0, 0.0)


def test_what_the_paper_says():
    assert THEIRS["mnist", 100] == (0.98, 2.04)
    assert set(WHY) == {"adult", "diabetes"}
    assert with_interval(Accuracy(0.98, 1000)) == "98.00 % (96.93 to 98.70)"
    assert Row(what="w", cells={}).why == ""


def test_published_epsilons_of_laplace_noise_are_those_of_the_code():
    published = json.loads((REPOSITORY / "docs/notes/results.json").read_text())["experiments"]
    compared = 0
    for name, column in (
        ("figure4", "data-independent"),
        ("forests", "data-independent"),
        ("active", "epsilon"),
    ):
        for row in published[name]["rows"]:
            if column in row["cells"]:
                queries = re.search(r"(\d+) queries", row["what"])
                expected, _ = LaplaceNoisyMax(gamma=0.05).data_independent_epsilon(
                    num_queries=int(queries[1]) if queries else 500, delta=1e-5
                )
                assert row["cells"][column] == f"{expected:.2f}", row["what"]
                compared += 1
    assert compared == 18
    rows = [dataclasses.asdict(row) for row in data_independent.EXPERIMENT.rows(None)]
    assert [row["cells"] for row in published["data_independent"]["rows"]] == [
        row["cells"] for row in rows
    ]
