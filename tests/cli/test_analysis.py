"""analysis.py as a user runs it."""

import json
import os
import pathlib
import stat

import numpy as np
import pytest
from analysis_helpers import MECHANISM, Script, golden, golden_counts, random_labels, release_labels
from script_processes import run_fresh

from pate_tf.accounting.charge import rounded_up
from pate_tf.accounting.mechanisms import GaussianNoisyMax
from pate_tf.analysis.vote_sources import read_votes_file
from pate_tf.ledger import Ledger


@pytest.fixture(scope="module")
def script():
    return Script()


@pytest.fixture
def run(script, tmp_path, capsys):
    def call(*arguments):
        return script.run(tmp_path, capsys, *arguments)

    return call


@pytest.fixture
def succeed(run):
    def call(*arguments):
        ended = run(*arguments)
        assert (ended.code, ended.err) == (0, "")
        return ended

    return call


def save(path, array):
    np.save(path, array)
    return path


@pytest.fixture
def h1(tmp_path):
    return f"--counts_file={save(tmp_path / 'h1.npy', golden_counts('H1'))}"


RELEASE = "--release=sanitised"


# Numbers


# Golden values of real moments and the classic conversion. Golden values of two-sided bounds use
# the continuous tail. With the tail of the discrete noise, where ties count against the plurality,
# they are a few percent larger.
@pytest.mark.parametrize(
    ("name", "epsilons"),
    [
        ("H1", {"paper": 0.3077, "two_sided": 0.3088, "class_aware": 0.2178, "exact": 0.1996}),
        ("H3", {"paper": 1.7351, "two_sided": 1.2302, "class_aware": 1.0631, "exact": 0.8530}),
    ],
)
def test_gives_the_table_of_the_design(succeed, tmp_path, name, epsilons):
    file = save(tmp_path / "counts.npy", golden_counts(name))
    report = succeed(
        f"--counts_file={file}",
        "--input_is_counts",
        "--noise_eps=0.05",
        "--conversion=classic",
        "--bound=paper,two_sided,class_aware,exact",
    ).report
    for bound, epsilon in epsilons.items():
        assert 0.998 * epsilon < report["bounds"][bound]["epsilon"] < 1.03 * epsilon
    assert report["epsilon_data_dependent"] == report["bounds"]["exact"]["epsilon"]
    assert 2.1 < report["epsilon_data_independent"] < 2.15


def test_the_first_line_says_how_many_teachers_queries_and_classes(succeed, run, tmp_path):
    labels = random_labels(12, 30)
    flag = f"--counts_file={save(tmp_path / 'labels.npy', labels)}"
    frame = "\n".join(f"{place},{','.join(map(str, row))}" for place, row in enumerate(labels))
    names = ",".join(f"q{place}" for place in range(30))
    np.savetxt(tmp_path / "plain.csv", labels, fmt="%d", delimiter=",")
    (tmp_path / "named.csv").write_text(f"{names}\n" + (tmp_path / "plain.csv").read_text())
    (tmp_path / "frame.csv").write_text(f",{','.join(map(str, range(30)))}\n{frame}\n")
    (tmp_path / "bad.csv").write_text("1,2\n3\n")
    ended = succeed(flag)
    assert ended.out.startswith("votes: 12 teachers, 30 queries, 10 classes\n")
    for name in ("plain", "named", "frame"):
        again = succeed(f"--counts_file={tmp_path / name}.csv")
        assert again.out.startswith("votes: 12 teachers, 30 queries, 10 classes\n")
        assert again.report["bounds"] == ended.report["bounds"]
    assert (
        "bad.csv must contain numbers separated by" in run(f"--counts_file={tmp_path}/bad.csv").err
    )
    transposed = f"--counts_file={save(tmp_path / 'transposed.npy', labels.T)}"
    told = "got 30 teachers, 12 queries, 10 classes: transpose them, or confirm"
    assert told in run(transposed).err and told in run(transposed, "--nb_teachers=12").err
    assert succeed(transposed, "--nb_teachers=30").report["queries"] == 12


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda labels: np.where(labels == 3, -1, labels), "not negative. Use a separate class"),
        (lambda labels: labels + 1, "They seem to start at 1: subtract 1"),
        (lambda labels: labels + 3, "votes must be labels from 0 to 9"),
        (lambda labels: labels[0], "got [200]; did you pass aggregated labels?"),
    ],
)
def test_labels_that_are_not_as_they_should_be_are_explained(run, tmp_path, change, told):
    assert (
        told in run(f"--counts_file={save(tmp_path / 'a.npy', change(random_labels(9, 200)))}").err
    )


def test_other_mechanisms_have_their_own_bounds(succeed, run, h1):
    report = succeed(h1, "--input_is_counts", "--sigma=28.28", "--conversion=classic").report
    assert report["mechanisms"] == [{"name": "gaussian_noisy_max", "sigma": 28.28}]
    assert 0.2878 < report["bounds"]["paper"]["epsilon"] < 1.02 * 0.2878
    flags = (h1, "--input_is_counts", "--mechanism=gaussian_noisy_max", "--sigma=28.28")
    assert set(succeed(*flags).report["bounds"]) == {"paper", "two_sided"}
    refused = run(*flags, "--bound=class_aware")
    assert refused.code == 1 and "has no bound" in refused.err


# Sensitive and publishable


def test_what_may_be_published_does_not_depend_on_votes(succeed, tmp_path):
    released = []
    for name in ("H1", "H3"):
        file = save(tmp_path / "counts.npy", golden_counts(name))
        ended = succeed(f"--counts_file={file}", "--input_is_counts")
        released.append((tmp_path / "out/released/analysis.json").read_bytes())
        publishable = ended.out.split("SENSITIVE, do not publish")[0]
        assert "noise: the default --noise_eps=0.1\n" in publishable
        assert rounded_up(ended.report["epsilon_data_dependent"]) not in publishable
    assert released[0] == released[1]
    assert "bounds" not in json.loads(released[0])
    sensitive = json.loads((tmp_path / "out/sensitive/analysis.json").read_text())
    assert set(sensitive) == {"epsilon_data_dependent", "bounds"}


def test_votes_of_a_file_are_released_only_when_asked_to_and_it_says_what_was_not_charged(
    succeed, tmp_path, h1
):
    succeed(h1, "--input_is_counts")
    assert not (tmp_path / "out/sensitive/releases").exists()
    before = os.umask(0)
    try:
        ended = succeed(h1, "--input_is_counts", RELEASE)
    finally:
        os.umask(before)
    assert ended.report["epsilon_data_dependent"] < ended.report["epsilon_sanitised"]
    assert "NO LEDGER WAS CHARGED" in ended.out and "of the labels only" in ended.out
    published = json.loads((tmp_path / "out/released/analysis.json").read_text())
    # The total includes the release, too.
    assert published["epsilon_data_independent"] > published["epsilon_labels_alone"]
    # Hidden without a request, because nothing proves that these are the same votes.
    assert "epsilon_sanitised" not in succeed(h1, "--input_is_counts").report
    sensitive = tmp_path / "out/sensitive"
    files = [path for path in sensitive.rglob("*") if path.is_file()]
    modes = {stat.S_IMODE(path.stat().st_mode) for path in [*files, tmp_path / "report.json"]}
    assert len(files) >= 2 and modes == {0o600}
    for name in ("epsilon_data_independent", "epsilon_labels_alone"):
        assert rounded_up(ended.report[name]) in ended.out
    for change in (["--release=smooth_sensitivity"], [RELEASE, "--max_examples=50"]):
        with pytest.raises(AssertionError):
            succeed(h1, "--input_is_counts", *change)


def test_the_release_is_noisy(succeed, tmp_path, monkeypatch, h1):
    # Six equal draws of a discrete Gaussian of scale above 5: probability below 0.08^5 = 4e-6.
    drawn = set()
    for number in range(6):  # six independent machines
        monkeypatch.setenv("PATE_TF_STATE", str(tmp_path / f"state {number}"))
        flags = (h1, "--input_is_counts", RELEASE, f"--output_dir={tmp_path / str(number)}")
        drawn.add(succeed(*flags).report["epsilon_sanitised"])
    assert len(drawn) > 1


def test_smooth_sensitivity_is_tabulated_and_sensitive(succeed, h1):
    flags = ("--input_is_counts", "--noise_eps=0.05", "--moments=8", "--bound=paper")
    ended = succeed(h1, *flags, "--beta=0.02", "--release=smooth_sensitivity")
    table = ended.report["smooth_sensitivity"]
    assert list(table) == [str(moment) for moment in range(1, 9)]
    assert table["8"] == pytest.approx(golden("SS(100 x H1; paper,l=8,beta=.02)"), rel=1e-12)
    assert "smooth_sensitivity" in ended.report["sensitive"]
    assert ended.report["plan"]["release"] == "smooth_sensitivity"
    assert "smooth sensitivity" not in ended.out.split("SENSITIVE, do not publish")[0]


# Bad input


def hostile_files(folder):
    good = golden_counts("H1", 4)
    uneven = good.copy()
    uneven[0, 0] += 1
    negative = good.copy()
    negative[0, :2] = [-1, 238]
    missing = good.astype(float)
    missing[1, 1] = np.nan
    files = {
        "a vector": good[0],
        "no queries": good[:0],
        "row sums differ": uneven,
        "negative": negative,
        "fractions": good + 0.5,
        "nan": missing,
        "truth values": good > 3,
        "text": good.astype(str),
        "no votes": np.zeros((3, 4), int),
        "complex": good.astype(complex),
    }
    paths = {name: save(folder / f"{name}.npy", array) for name, array in files.items()}
    paths["objects"] = folder / "objects.npy"
    np.save(paths["objects"], np.array([{}, []], dtype=object), allow_pickle=True)
    paths["empty"] = folder / "empty.npy"
    paths["empty"].touch()
    paths["truncated"] = folder / "truncated.npy"
    paths["truncated"].write_bytes(save(folder / "whole.npy", good).read_bytes()[:-9])
    paths["archive"] = folder / "archive.npz"
    np.savez(paths["archive"], good)
    paths["missing"] = folder / "missing.npy"
    paths["a folder"] = folder
    return paths


def assert_refused(ended, tmp_path, code=1):
    assert ended.code == code
    assert ended.err.startswith("error: ")
    assert ended.err.count("\n") == 1
    assert ended.report is None
    assert not (tmp_path / "out").exists()


def test_a_bad_file_is_refused_in_one_line_that_shows_no_count(run, tmp_path, h1):
    def refusal(path, **settings):
        with pytest.raises((ValueError, OSError)) as caught:
            read_votes_file(path, MECHANISM, **settings)
        return str(caught.value)

    for path in hostile_files(tmp_path).values():
        message = refusal(path, input_is_counts=True)
        assert str(path) in message and "\n" not in message
        assert "235" not in message.replace(str(path), "")
    for kind in ("a vector", "fractions", "nan", "text", "objects", "truncated"):
        assert "\n" not in refusal(tmp_path / f"{kind}.npy")
    good = pathlib.Path(h1.removeprefix("--counts_file="))
    for indices in ([0, 100], [-1], [0.5], [[0, 1]], ["0"], [True], [np.nan], [], [1, 2, 1]):
        file = save(tmp_path / "indices.npy", np.array(indices))
        assert "\n" not in refusal(good, input_is_counts=True, indices_file=file)
    ended = run(f"--counts_file={tmp_path / 'nan.npy'}", "--input_is_counts")
    assert_refused(ended, tmp_path)


@pytest.mark.parametrize(
    "argument",
    [
        *("--delta=1", "--delta=nan", "--noise_eps=-1", "--moments=0", "--max_examples=0"),
        *("--beta=0", "--mechanism=plurality", "--conversion=best", "--no_such_flag", "stray"),
        *("--release=sometimes", "--sigma=0", "--sigma=3 --noise_eps=3"),
        "--sigma=3 --mechanism=laplace_noisy_max",
    ],
)
def test_bad_flags_get_one_line_and_code_2(run, tmp_path, h1, argument):
    assert_refused(run(h1, "--input_is_counts", *argument.split()), tmp_path, code=2)


@pytest.mark.parametrize(
    "argument", ["--bound=tighter", "--bound=paper,", "--nb_labels=3", "--ledger=here"]
)
def test_flags_that_do_not_go_together_get_one_line(run, tmp_path, h1, argument):
    assert_refused(run(h1, "--input_is_counts", argument), tmp_path)


def test_without_votes_or_a_place_for_results_it_is_one_line(run, tmp_path, h1):
    assert_refused(run(), tmp_path)
    (tmp_path / "file").touch()
    assert_refused(run(h1, "--input_is_counts", f"--output_dir={tmp_path}/file/out"), tmp_path)
    beside = run(h1, "--input_is_counts", f"--report_file={tmp_path}/released/report.json")
    assert "--report_file is sensitive and must be outside of released/" in beside.err


# Ledgers and runs


def test_prints_a_ledger(succeed, tmp_path):
    folder = tmp_path / "run/sensitive"
    release_labels(folder, golden_counts("H2", 30), budget=20.0)
    release_labels(folder, golden_counts("H3", 10))
    ended = succeed(f"--ledger={folder}")
    with Ledger.read(folder) as ledger:
        spent, remaining = ledger.spent().epsilon, ledger.remaining()
        affordable = ledger.affordable(MECHANISM)
        rows = ledger.history()
    history = ended.out.split("Ledger, publishable")[0].strip().splitlines()[1:]
    assert len(history) == len(rows) == 5
    assert "opened: epsilon 20 at delta 1e-05" in history[0]
    assert "charged 30 queries of laplace_noisy_max, gamma 0.05 (scale 20 votes)" in history[1]
    assert "answered 30 of the 30 queries that row 2 charged" in history[2]
    report = ended.report
    assert report["queries"] == 40
    assert report["epsilon_data_independent"] == pytest.approx(spent, rel=1e-12)
    (summary,) = report["ledgers"]
    assert (summary["epsilon_spent"], summary["epsilon_remaining"]) == (spent, remaining)
    assert summary["affordable_queries"] == affordable
    assert f"{affordable:,} queries of laplace_noisy_max" in ended.out
    assert set(report["bounds"]) == {"paper", "two_sided", "class_aware"}
    assert report["epsilon_data_dependent"] < report["epsilon_data_independent"]
    assert succeed(f"--ledger={folder}/ledger.sqlite3").report == report


def test_composes_several_ensembles(run, succeed, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    release_labels(first, golden_counts("H1", 30))
    noise = GaussianNoisyMax(sigma=40.0)
    release_labels(second, golden_counts("H3", 20), ensemble="cd" * 32, mechanism=noise, delta=1e-6)
    assert "--delta is required" in run(f"--ledger={first},{second}").err
    delta = "--delta=1e-5"
    alone = [succeed(f"--ledger={folder}", delta).report for folder in (first, second)]
    both = succeed(f"--ledger={first},{second}", delta).report
    assert both["queries"] == 50
    for field in ("epsilon_data_independent", "epsilon_data_dependent"):
        assert max(report[field] for report in alone) < both[field]
    assert set(both["bounds"]) == {"paper", "two_sided"}
    assert "--ledger names the same ledger twice" in run(f"--ledger={first},{first}").err
    assert (
        "--release needs queries that one mechanism answered"
        in run(f"--ledger={first},{second}", delta, RELEASE).err
    )


def test_a_ledger_without_votes_is_accounted_data_independently(run, succeed, tmp_path):
    folder = tmp_path / "run/sensitive"
    release_labels(folder, golden_counts("H2", 3))
    for file in (folder / "votes").iterdir():
        file.unlink()
    (folder / "votes").rmdir()
    report = succeed(f"--ledger={folder}").report
    assert "bounds" not in report and report["queries"] == 3
    ended = run(f"--train_dir={tmp_path}/run")
    assert (ended.code, ended.err.count("\n")) == (3, 1)
    assert "the vote counts of a charge" in ended.err


def test_a_run_is_charged_once_and_only_when_asked_to(succeed, script, capsys, tmp_path):
    folder, flag = tmp_path / "run/sensitive", f"--train_dir={tmp_path}/run"
    release_labels(folder, golden_counts("H2", 30))
    assert "epsilon_sanitised" not in succeed(flag).report
    drawn = succeed(flag, RELEASE).report
    file = save(tmp_path / "counts.npy", golden_counts("H2", 30))
    of_file = ("--input_is_counts", "--mechanism=laplace_noisy_max", "--noise_eps=0.05", RELEASE)
    by_file = succeed(f"--counts_file={file}", *of_file).report
    for field in ("queries", "mechanisms", "delta", "epsilon_data_independent", "plan", "bounds"):
        assert drawn[field] == by_file[field]
    # Charges are shown without a request, for every output folder.
    for again in ([flag], [f"--ledger={folder}"], [flag, "--output_dir=", RELEASE]):
        ended = script.run(tmp_path, capsys, *again)
        assert ended.report["epsilon_sanitised"] == drawn["epsilon_sanitised"]
    assert "epsilon_sanitised" not in succeed(flag, "--release=none").report
    assert (tmp_path / "run/released/analysis.json").exists()
    assert not list((tmp_path / "run").rglob("releases"))
    with Ledger.read(folder) as ledger:
        kinds = [row.kind for row in ledger.history()]
    assert kinds == ["opened", "debit", "answers", "debit", "released"]


def test_missing_or_damaged_ledgers_and_votes_get_one_line(run, tmp_path):
    for flag in ("ledger", "train_dir"):
        assert_refused(run(f"--{flag}={tmp_path}/nowhere"), tmp_path, code=3)
    assert not (tmp_path / "nowhere").exists()
    folder = tmp_path / "run/sensitive"
    release_labels(folder, golden_counts("H2", 3))
    (votes,) = (folder / "votes").iterdir()
    votes.write_bytes(votes.read_bytes()[:-30])
    assert_refused(run(f"--train_dir={tmp_path}/run"), tmp_path, code=3)
    content = bytearray((folder / "ledger.sqlite3").read_bytes())
    content[50:90] = bytes(40)
    (folder / "ledger.sqlite3").write_bytes(content)
    assert_refused(run(f"--ledger={folder}"), tmp_path, code=3)
    assert_refused(run(f"--train_dir={tmp_path}/run", "--noise_eps=0.1"), tmp_path, code=2)


# The process


FORBIDDEN = {"opendp", "tensorflow", "keras", "sklearn", "matplotlib", "tensorboard"}


def test_starts_light(tmp_path, h1):
    code = "import atexit, sys; atexit.register(lambda: print(*sys.modules))"
    typed = ("analysis", str(h1), "--input_is_counts")
    code = f"{code}\nfrom pate_tf.cli import main; main.run()"
    ended = run_fresh("-c", code, *typed, folder=tmp_path)
    assert ended.err == "" and not FORBIDDEN & {*ended.out.splitlines()[-1].split()}
    assert (tmp_path / "runs/analysis/released/analysis.json").exists()
