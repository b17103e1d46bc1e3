"""`python -m benchmarks.paper`, as a user runs it, on the embedded digits."""

import json
import os
import pathlib
import signal

import pytest
from script_processes import Ended, learn_little, run_script

SCRIPT = "benchmarks/paper/__main__.py"
FIGURES = ("figure2", "figure3", "figure4")
FAST = ("teachers", *FIGURES, "forests", "data_independent")
SLOW = (
    *("figure5", "active", "students", "feature_sums", "feature_sums_fashion"),
    *("feature_sums_wavelets", "frontier", "pate_g"),
)
SHARED = ("selective_sgd", "selective_sgd_attacks", "selective_sgd_private")


def run(folder: pathlib.Path, *flags: str, name: str = "out", **options) -> Ended:
    return run_script(SCRIPT, f"--output_dir={folder / name}", *flags, folder=folder, **options)


def quick(folder: pathlib.Path, names, *flags: str, **options) -> Ended:
    options = {"setup": learn_little, **options}
    return run(folder, "--quick", "--insecure_seed=7", *flags, "--only", *names, **options)


def results(folder: pathlib.Path, name: str = "out") -> dict:
    return json.loads((folder / name / "results.json").read_text())["experiments"]


def without_times(value):
    if isinstance(value, dict):
        return {
            key: without_times(item)
            for key, item in value.items()
            if key not in ("seconds", "resources")
        }
    return [without_times(item) for item in value] if isinstance(value, list) else value


def measured(ended: Ended) -> list[str]:
    return [line for line in ended.err.splitlines() if line.startswith("  ... ")]


def die_after_three_units() -> None:
    from benchmarks.paper.bench import artifacts

    write, calls = artifacts.write_json, []

    def write_json(path, *arguments, **options):
        write(path, *arguments, **options)
        calls.extend([path] if path.parent.name == "units" else [])
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    artifacts.write_json = write_json


@pytest.fixture(scope="module")
def fast(tmp_path_factory):
    """A quick run of what is fast, published; don't write there."""
    folder = tmp_path_factory.mktemp("fast")
    publish = ("--publish", f"--docs_dir={folder}/docs")
    for names in (FAST[:4], FAST[4:]):  # two runs, into one file of results
        ended = quick(folder, names, *publish)
        assert ended.code == 0, ended.err
    return folder


def test_quick_yields_every_row_and_the_page(fast):
    found = results(fast)
    assert tuple(found) == FAST
    assert all(found[name]["rows"] for name in FAST)
    page = (fast / "docs/results.md").read_text()
    for name in FAST:
        for row in found[name]["rows"]:
            assert f"| {row['what']} |" in page
    assert (fast / "docs/pictures/results_figure2.png").stat().st_size > 1000
    assert json.loads((fast / "docs/results.json").read_text())["experiments"] == found
    accuracies = found["figure2"]["rows"][-1]["numbers"]["accuracies"]["20"]
    assert min(accuracies) > 0.7, "little noise on 20 teachers of digits"


def quick_and_published(folder: pathlib.Path, names) -> dict:
    ended = quick(folder, names, "--publish", f"--docs_dir={folder}/docs")
    assert ended.code == 0, ended.err
    found = results(folder)
    assert tuple(found) == tuple(names)
    page = (folder / "docs/results.md").read_text()
    assert all(f"| {row['what']} |" in page for name in names for row in found[name]["rows"])
    return found


@pytest.mark.long
def test_quick_compares_with_other_labels_and_other_queries(tmp_path):
    found = quick_and_published(tmp_path, SLOW[:2])
    assert (tmp_path / "docs/pictures/results_figure5.png").stat().st_size > 1000
    asked = [row for row in found["active"]["rows"] if row["cells"].get("epsilon")]
    assert len(asked) == 4, "strategies, random among them"


@pytest.mark.long
def test_quick_compares_students_and_draws_the_frontier(tmp_path):
    found = quick_and_published(tmp_path, SLOW[2:])
    assert (tmp_path / "docs/pictures/results_frontier.png").stat().st_size > 1000
    point = found["frontier"]["rows"][0]["numbers"]  # of the labels of `students`
    assert len(point["accuracies"]) == len(point["epsilons"]) == 2, "two repetitions"
    assert min(point["accuracies"]) > 0.5, "ten classes of digits"
    assert 0 < min(point["epsilons"]) <= point["epsilon"] <= max(point["epsilons"])


def test_ensembles_and_votes_are_kept_from_others(fast):
    assert (fast / "out/sensitive").stat().st_mode & 0o777 == 0o700


@pytest.mark.long
def test_a_killed_run_goes_on_and_ends_as_an_undisturbed_one(fast, tmp_path):
    killed = quick(tmp_path, FIGURES, setup=die_after_three_units)
    assert killed.code == -signal.SIGKILL
    units = tmp_path / "out/units"
    kept = {path: path.stat().st_mtime_ns for path in units.iterdir()}
    assert len(kept) == 3
    assert not (tmp_path / "out/results.json").exists()
    ended = quick(tmp_path, FIGURES)
    assert ended.code == 0, ended.err
    assert all(path.stat().st_mtime_ns == time for path, time in kept.items())
    assert len(measured(ended)) == len(list(units.iterdir())) - 3
    found = results(tmp_path)
    assert all(row["what"] in ended.out for name in FIGURES for row in found[name]["rows"])
    # Two runs, too: the same but for times.
    expected = {name: one for name, one in results(fast).items() if name in FIGURES}
    assert without_times(found) == without_times(expected)


def test_noise_is_not_seeded_unless_asked_for(tmp_path):
    from benchmarks.paper.bench import Bench
    from benchmarks.paper.ensembles import Workshop
    from benchmarks.paper.setting import QUICK

    def draws(insecure_seed, name):
        bench = Bench(
            setting=QUICK,
            workshop=Workshop(folder=tmp_path, data_dirs={}, seed=0),
            folder=tmp_path / name,
            insecure_seed=insecure_seed,
            report=lambda line: None,
        )

        def measure(noise):
            return {"words": noise.words(4).tolist(), "secure": noise.is_secure}

        first = bench.unit("one", {"a": 1}, measure).result
        assert bench.unit("one", {"a": 1}, measure).result == first
        assert bench.unit("one", {"a": 2}, measure).result["words"] != first["words"]
        return first

    assert draws(None, "a")["secure"]
    assert draws(None, "a")["words"] != draws(None, "b")["words"]
    assert not draws(3, "c")["secure"]
    assert draws(3, "c") == draws(3, "d")
    assert draws(3, "c")["words"] != draws(4, "c")["words"]


def test_an_unknown_name_is_one_line(tmp_path):
    ended = run(tmp_path, "--only", "figure3", "figure6")
    assert ended.code == 1
    errors = [line for line in ended.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "expected some of teachers, figure2" in errors[0]
    assert "'figure6'" in errors[0]
    assert not (tmp_path / "out").exists()


def test_rows_of_missing_data_say_so_and_the_others_run(tmp_path):
    ended = run(tmp_path, f"--data_dir={tmp_path}/a", f"--tables_dir={tmp_path}/b")
    assert ended.code == 0, ended.err
    found = results(tmp_path)
    assert set(found) == {*FAST, *SLOW, *SHARED}
    for name, result in found.items():
        missing = [row for row in result["rows"] if "not run" in row["what"]]
        assert len(missing) == (0 if name == "data_independent" else len(result["rows"]))
    row = found["teachers"]["rows"][0]
    assert row["what"] == f"mnist, 250 teachers: not run, mnist is not prepared in {tmp_path}/a"
    assert row["cells"] == {"the paper": "83.86 %"}
    formula = [row["cells"]["ours"] for row in found["data_independent"]["rows"]]
    assert formula == ["26.62", "5.80"]


@pytest.mark.long
def test_everything_else_comes_out_the_same_again(tmp_path):
    names = ("teachers", "forests", *SLOW)
    for folder in ("once", "twice"):
        for name in names:  # each in a process of its own, with the ensembles of those before
            ended = quick(tmp_path, [name], name=folder)
            assert ended.code == 0, ended.err
    assert set(results(tmp_path, "once")) == set(names)
    assert without_times(results(tmp_path, "once")) == without_times(results(tmp_path, "twice"))


@pytest.mark.long
def test_quick_trains_together(tmp_path):
    found = quick_and_published(tmp_path, SHARED)
    assert all("not run" not in row["what"] for one in found.values() for row in one["rows"])
