"""analysis.py as a user runs it."""

import json
import os
import pathlib
import stat
import subprocess
import sys

import numpy as np
import pytest
from analysis_helpers import (
    DELTA,
    MECHANISM,
    REPOSITORY,
    SCRIPT,
    Script,
    golden,
    golden_counts,
    random_labels,
    release_labels,
)

from pate_tf.accounting.charge import rounded_up
from pate_tf.accounting.mechanisms import (
    ConfidentGaussianNoisyMax,
    GaussianNoisyMax,
    LaplaceNoisyMax,
)
from pate_tf.analysis.release_planning import ReleaseRequest
from pate_tf.ledger import Ledger
from pate_tf.run.analysis import SourceSettings, read_votes


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


@pytest.fixture
def labels(tmp_path):
    return f"--counts_file={save(tmp_path / 'labels.npy', random_labels(50, 40))}"


PAPER = ("--noise_eps=0.05", "--moments=8", "--bound=paper", "--conversion=classic")


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


# Numbers


@pytest.mark.parametrize("name", ["H1", "H2", "H3"])
def test_gives_the_golden_epsilons_of_the_paper(succeed, tmp_path, name):
    file = save(tmp_path / "counts.npy", golden_counts(name))
    report = succeed(f"--counts_file={file}", "--input_is_counts", *PAPER).report
    expected = golden(f"eps paper l=8, T=100 x {name}, delta=1e-5")
    assert report["epsilon_data_dependent"] == pytest.approx(expected, rel=1e-9)
    assert report["epsilon_data_dependent"] >= expected * (1.0 - 1e-14)
    assert report["order"] == 8.0


# Golden values of real moments and the classic conversion. Those of two-sided bounds use the
# continuous tail; that of the discrete noise, ties counted against the plurality, is a few percent
# larger.
@pytest.mark.parametrize(
    ("name", "epsilons"),
    [
        ("H1", {"paper": 0.3077, "two_sided": 0.3088, "class_aware": 0.2178, "exact": 0.1996}),
        ("H2", {"paper": 0.4861, "two_sided": 0.4679, "class_aware": 0.3101, "exact": 0.2735}),
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
        "--release=none",
    ).report
    for bound, epsilon in epsilons.items():
        assert 0.998 * epsilon < report["bounds"][bound]["epsilon"] < 1.03 * epsilon
    assert report["epsilon_data_dependent"] == report["bounds"]["exact"]["epsilon"]
    assert report["order"] == report["bounds"]["exact"]["order"]
    assert 2.1 < report["epsilon_data_independent"] < 2.15


def test_default_report_has_the_fields_that_users_rely_on(succeed, h1):
    report = succeed(h1, "--input_is_counts").report
    assert report["queries"] == 100
    assert report["mechanism"] == {"name": "laplace_noisy_max", "gamma": 0.1}
    assert report["delta"] == 1e-5
    assert set(report["bounds"]) == {"paper", "two_sided", "class_aware"}
    assert all(set(found) == {"epsilon", "order"} for found in report["bounds"].values())
    assert "sanitised" not in report
    spent, _ = LaplaceNoisyMax(gamma=0.1).data_independent_epsilon(num_queries=100, delta=1e-5)
    assert report["epsilon_data_independent"] == spent
    tightest = min(report["bounds"].values(), key=lambda found: found["epsilon"])
    assert (report["epsilon_data_dependent"], report["order"]) == (
        tightest["epsilon"],
        tightest["order"],
    )
    assert report["sensitive"] == ["epsilon_data_dependent", "order", "bounds"]
    assert "gate" not in report
    assert "smooth_sensitivity" not in report


def test_votes_of_a_file_are_released_only_when_asked_to_and_it_says_what_was_not_charged(
    succeed, tmp_path, h1
):
    assert not (tmp_path / "out/sensitive/releases").exists()
    ended = succeed(h1, "--input_is_counts", "--release=sanitised")
    assert set(ended.report["sanitised"]) == {"epsilon", "confidence"}
    assert ended.report["epsilon_data_dependent"] < ended.report["sanitised"]["epsilon"]
    published = json.loads((tmp_path / "out/released/analysis.json").read_text())
    assert published["ledger_charged"] is False
    assert "NO LEDGER WAS CHARGED" in ended.out
    # The numbers of the labels alone no longer say it all.
    assert published["epsilon_data_independent"] > published["epsilon_labels_alone"]
    assert "epsilon, data-independent, of the labels alone" in ended.out
    # Not shown again without asking: nothing says that these are the same votes.
    assert "sanitised" not in succeed(h1, "--input_is_counts").report


def test_printed_epsilons_are_never_below_the_numbers(succeed, h1):
    ended = succeed(h1, "--input_is_counts", "--release=sanitised")
    for field, name in (
        ("epsilon_data_independent", "data-independent  "),
        ("epsilon_labels_alone", "of the labels alone  "),
    ):
        (row,) = [line for line in ended.out.splitlines() if name in line]
        shown = float(row.split("  ")[-1].split()[0])
        assert ended.report[field] <= shown < 1.001 * ended.report[field]


PLAN_FLAGS = ["profile=0.7", "release_moment=3", "release_smoothness=0.1", "release_sigma=9"]
PLAN_FLAGS += ["gate_budget=1", "confidence=0.9", "discard_release"]


@pytest.mark.parametrize("flag", PLAN_FLAGS)
def test_flags_of_a_release_need_one(run, tmp_path, h1, flag):
    ended = run(h1, "--input_is_counts", f"--{flag}")
    assert_refused(ended, tmp_path)
    assert f"{flag.split('=')[0]}: expected a release with it" in ended.err


def test_a_charge_without_a_draw_is_not_charged_again_unasked(succeed, tmp_path):
    folder = tmp_path / "run/sensitive"
    release_labels(folder, golden_counts("H2", 30))
    plan = ReleaseRequest(kinds=("sanitised",), delta=DELTA).plan(
        MECHANISM, num_queries=30, num_teachers=250, num_classes=10
    )
    with Ledger.open(folder, ensemble_digest="ab" * 32, delta=DELTA) as ledger:
        with ledger.exclusive():
            ledger.debit(plan, secure_noise=True)  # and then a crash
        before = ledger.history()
    for source in (f"--train_dir={tmp_path}/run", f"--ledger={folder}"):
        assert "sanitised" not in succeed(source).report
    with Ledger.read(folder) as ledger:
        assert ledger.history() == before


def test_gaussian_noise_has_its_own_bounds(succeed, h1):
    report = succeed(h1, "--input_is_counts", "--sigma=28.28", "--conversion=classic").report
    assert report["mechanism"] == {"name": "gaussian_noisy_max", "sigma": 28.28}
    assert set(report["bounds"]) == {"paper", "two_sided"}
    assert 0.2878 < report["bounds"]["paper"]["epsilon"] < 1.02 * 0.2878


@pytest.mark.parametrize("name", ["permute_and_flip", "exponential_mechanism"])
def test_other_mechanisms_have_no_paper_bound(succeed, run, h1, name):
    report = succeed(h1, "--input_is_counts", f"--mechanism={name}", "--noise_eps=0.05").report
    assert set(report["bounds"]) == {"two_sided", "class_aware"}
    refused = run(h1, "--input_is_counts", f"--mechanism={name}", "--bound=paper")
    assert refused.code == 1
    assert "bound: expected" in refused.err


def test_warns_where_the_best_moment_is_at_an_end(succeed, h1):
    # So little noise that the best moment of the worst case lies within the grid.
    warned = succeed(h1, "--input_is_counts", *PAPER, "--noise_eps=0.1", "--release=none").out
    assert "warning, paper" in warned
    publishable, sensitive = warned.split("SENSITIVE, do not publish")
    assert "warning" not in publishable
    assert "an end of the grid (1 to 8)" in sensitive
    quiet = succeed(h1, "--input_is_counts", "--noise_eps=0.05", "--release=none").out
    assert "warning" not in quiet


# Sensitive and publishable


def test_what_may_be_published_does_not_depend_on_votes(succeed, tmp_path):
    released = []
    for name in ("H1", "H3"):
        file = save(tmp_path / "counts.npy", golden_counts(name))
        ended = succeed(f"--counts_file={file}", "--input_is_counts", "--release=none")
        released.append((tmp_path / "out/released/analysis.json").read_bytes())
        publishable = ended.out.split("SENSITIVE, do not publish")[0]
        assert rounded_up(ended.report["epsilon_data_dependent"]) not in publishable
    assert released[0] == released[1]
    assert "bounds" not in json.loads(released[0])
    sensitive = json.loads((tmp_path / "out/sensitive/analysis.json").read_text())
    assert set(sensitive) == {"epsilon_data_dependent", "order", "bounds"}


def test_sensitive_files_are_private_under_any_umask(succeed, tmp_path, h1):
    before = os.umask(0)
    try:
        succeed(h1, "--input_is_counts", "--release=sanitised")
    finally:
        os.umask(before)
    sensitive = tmp_path / "out/sensitive"
    assert mode(sensitive) == mode(sensitive / "releases") == 0o700
    files = [path for path in sensitive.rglob("*") if path.is_file()]
    assert len(files) >= 2
    assert {mode(path) for path in [*files, tmp_path / "report.json"]} == {0o600}


def test_report_may_not_lie_beside_published_files(run, tmp_path, h1):
    ended = run(h1, "--input_is_counts", f"--report_file={tmp_path}/released/report.json")
    assert ended.code == 1
    assert "report_file: expected a path outside of released/" in ended.err
    assert not (tmp_path / "out").exists()


# Releases

RELEASE = "--release=sanitised"


def test_the_release_is_noisy(succeed, tmp_path, monkeypatch, h1):
    # Six equal draws of a discrete Gaussian of scale above 5: probability below 0.08^5 = 4e-6.
    drawn = set()
    for number in range(6):  # six machines, which know nothing of each other
        monkeypatch.setenv("PATE_TF_STATE", str(tmp_path / f"state {number}"))
        flags = (h1, "--input_is_counts", RELEASE, f"--output_dir={tmp_path / str(number)}")
        drawn.add(succeed(*flags).report["sanitised"]["epsilon"])
    assert len(drawn) > 1


@pytest.mark.parametrize(
    "change",
    [
        ["--release=smooth_sensitivity"],
        ["--release=sanitised", "--noise_eps=0.2"],
        ["--release=sanitised", "--max_examples=50"],
        ["--release=sanitised", "--release_sigma=20"],
        ["--release=sanitised", "--profile=0.5"],
    ],
)
def test_other_releases_of_the_same_votes_are_refused(run, succeed, tmp_path, h1, change):
    first = succeed(h1, "--input_is_counts", RELEASE).report["sanitised"]
    (file,) = (tmp_path / "out/sensitive/releases").glob("*/ledger.sqlite3")
    refused = run(h1, "--input_is_counts", *change)
    assert refused.code == 1
    assert str(file.parent) in refused.err
    assert "--discard_release" in refused.err
    assert succeed(h1, "--input_is_counts", RELEASE).report["sanitised"] == first
    replaced = succeed(h1, "--input_is_counts", *change, "--discard_release")
    assert replaced.report["discarded_releases"] == 1
    # A reader of both could choose: either may fail.
    assert replaced.report["sanitised"]["confidence"] == pytest.approx(0.98)
    assert "stated by the user never to have been published" in replaced.out
    assert run(h1, "--input_is_counts", RELEASE).code == 1


def test_no_gate_after_a_draw_that_somebody_saw(run, succeed, h1):
    succeed(h1, "--input_is_counts", RELEASE)
    refused = run(h1, "--input_is_counts", "--release=gate", "--discard_release")
    assert refused.code == 1
    assert "expected no gate after an earlier draw" in refused.err


def test_labels_and_release_together_cost_more_than_labels_alone(succeed, h1):
    report = succeed(h1, "--input_is_counts", RELEASE, "--release_sigma=0.5").report
    assert report["epsilon_data_independent"] > 1.5 * report["epsilon_labels_alone"]


def test_the_number_of_classes_is_never_read_off_the_votes(run, succeed, tmp_path):
    votes = np.zeros((20, 5), np.int64)
    np.save(tmp_path / "nine.npy", np.where(np.arange(5) == 4, 9, votes))
    np.save(tmp_path / "ten.npy", np.where(np.arange(5) == 4, 10, votes))
    profile = succeed(f"--counts_file={tmp_path / 'nine.npy'}", RELEASE).report["plan"]["profile"]
    assert "10 classes" in profile
    refused = run(f"--counts_file={tmp_path / 'ten.npy'}")
    assert refused.code == 1
    assert "give the number of classes as --nb_labels" in refused.err


def test_a_ledger_has_one_draw_whichever_way_it_is_analysed(run, succeed, tmp_path):
    folder = tmp_path / "run" / "sensitive"
    release_labels(folder, golden_counts("H1", 30))
    drawn = {
        succeed(*flags, "--release=sanitised").report["sanitised"]["epsilon"]
        for flags in (
            [f"--train_dir={tmp_path / 'run'}"],
            [f"--train_dir={tmp_path / 'run'}", f"--output_dir={tmp_path / 'elsewhere'}"],
            [f"--ledger={folder}"],
        )
    }
    assert len(drawn) == 1
    assert not list(tmp_path.rglob("releases"))
    with Ledger.read(folder) as ledger:
        kinds = [row.kind for row in ledger.history()]
        assert kinds == ["opened", "debit", "answers", "debit", "released"]
    refused = run(f"--train_dir={tmp_path / 'run'}", "--release=gate")
    assert refused.code == 1
    assert "which were released already" in refused.err
    other = tmp_path / "other"
    release_labels(other, golden_counts("H2", 30), ensemble="cd" * 32)
    refused = run(f"--ledger={folder},{other}", "--release=sanitised")
    assert refused.code == 1
    assert "expected one ledger, got several" in refused.err


def test_discarding_does_not_draw_the_same_plan_again(succeed, h1):
    drawn = {
        succeed(h1, "--input_is_counts", RELEASE, "--discard_release").report["sanitised"][
            "epsilon"
        ]
        for _ in range(6)
    }
    assert len(drawn) == 1


def test_a_gate_on_a_file_is_no_worst_case_unless_its_tries_are_counted(
    run, succeed, tmp_path, monkeypatch, h1
):
    """The reviewer's attack: 40 fresh folders, until it passes."""
    # So little noise that 40 tries don't reach the data-independent epsilon, which would cap them.
    flags = (h1, "--input_is_counts", "--noise_eps=0.1", "--release=gate")
    alone = succeed(*flags)
    gate = alone.report["gate"]
    assert (gate["attempts"], gate["worst_case"]) == (None, False)
    row = next(line for line in alone.out.splitlines() if line.strip().startswith("gate"))
    assert "for this one try alone" in alone.out
    assert "worst case" not in row
    costs = []
    refused = run(*flags, f"--output_dir={tmp_path}/fresh")
    assert refused.code == 1 and "--attempts covers several" in refused.err
    for attempts in (1, 2, 40):
        monkeypatch.setenv("PATE_TF_STATE", str(tmp_path / f"state {attempts}"))
        ended = succeed(*flags, f"--attempts={attempts}", f"--output_dir={tmp_path}/{attempts}")
        gate = ended.report["gate"]
        assert (gate["attempts"], gate["worst_case"]) == (attempts, True)
        assert "worst case over all data" in ended.out
        assert ended.report["plan"]["failure"] * attempts == pytest.approx(5e-6)
        costs.append(gate["epsilon"])
    assert costs[0] == alone.report["gate"]["epsilon"]
    assert costs[0] < costs[1] < costs[2]
    assert 3.0 * costs[0] < costs[2] < ended.report["epsilon_data_independent"]
    assert "attempts" in run(h1, "--input_is_counts", RELEASE, "--attempts=2").err


def test_gate_and_sanitised_epsilon_read_one_draw(succeed, tmp_path, h1):
    report = succeed(h1, "--input_is_counts", "--noise_eps=0.05", "--release=gate,sanitised").report
    assert report["plan"]["release"] == "gate"
    assert set(report["gate"]) == {"epsilon", "delta", "released", "attempts", "worst_case"}
    assert report["gate"]["delta"] == 1e-5
    assert report["plan"]["failure"] == 5e-6
    assert report["sanitised"]["confidence"] == 1.0 - 5e-6
    assert report["gate"]["epsilon"] < report["epsilon_data_independent"]
    published = json.loads((tmp_path / "out/released/analysis.json").read_text())
    assert set(published) == {
        *("queries", "queries_answered", "mechanism", "delta", "conversion", "secure_noise"),
        *("epsilon_data_independent", "epsilon_labels_alone"),
        *("plan", "discarded_releases", "sanitised", "gate"),
        *("ledger_charged", "plan_was_fixed"),
    }
    assert published["queries_answered"] == published["queries"]
    assert set(report) == {*published, "epsilon_data_dependent", "order", "bounds", "sensitive"}
    assert len(list((tmp_path / "out/sensitive/releases").glob("*/ledger.sqlite3"))) == 1


def test_a_gate_with_no_budget_to_speak_of_stays_shut(succeed, tmp_path):
    file = save(tmp_path / "counts.npy", np.full((20, 4), 5))
    report = succeed(
        f"--counts_file={file}", "--input_is_counts", "--release=gate", "--gate_budget=1e-6"
    ).report
    assert report["gate"]["released"] is False


def test_plan_flags_reach_the_plan(succeed, h1):
    plan = succeed(
        h1,
        "--input_is_counts",
        RELEASE,
        "--release_moment=20",
        "--release_smoothness=0.1",
        "--release_sigma=9",
        "--confidence=0.95",
    ).report["plan"]
    assert (plan["moment"], plan["smoothness"], plan["sigma"]) == (20.0, 0.1, 9.0)
    assert plan["failure"] == pytest.approx(0.05)


def test_smooth_sensitivity_is_tabulated_and_sensitive(succeed, h1):
    ended = succeed(
        h1,
        "--input_is_counts",
        "--noise_eps=0.05",
        "--moments=8",
        "--bound=paper",
        "--beta=0.02",
        "--release=smooth_sensitivity",
    )
    table = ended.report["smooth_sensitivity"]
    assert list(table) == [str(moment) for moment in range(1, 9)]
    assert table["8"] == pytest.approx(golden("SS(100 x H1; paper,l=8,beta=.02)"), rel=1e-12)
    assert "smooth_sensitivity" in ended.report["sensitive"]
    assert ended.report["plan"]["release"] == "smooth_sensitivity"
    assert "smooth sensitivity" not in ended.out.split("SENSITIVE, do not publish")[0]


def test_adaptive_queries_get_data_independent_accounting_alone(run, succeed, tmp_path, h1):
    refused = run(h1, "--input_is_counts", RELEASE, "--adaptive")
    assert refused.code == 1
    assert "adaptive" in refused.err
    assert not (tmp_path / "out").exists()
    report = succeed(h1, "--input_is_counts", "--adaptive").report
    assert "bounds" not in report
    assert report["epsilon_data_independent"] > 0.0


# Bad input


def hostile_files(folder):
    good = golden_counts("H1", 4)
    uneven = good.copy()
    uneven[0, 0] += 1
    negative = good.copy()
    negative[0, :2] = [-1, 238]
    fraction = good + 0.5
    missing = good.astype(float)
    missing[1, 1] = np.nan
    files = {
        "a vector": good[0],
        "no queries": good[:0],
        "different sums": uneven,
        "negative": negative,
        "fractions": fraction,
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
    def refusal(**settings):
        with pytest.raises((ValueError, OSError)) as caught:
            read_votes(SourceSettings(**settings), MECHANISM)
        return str(caught.value)

    for path in hostile_files(tmp_path).values():
        message = refusal(counts_file=path, input_is_counts=True)
        assert str(path) in message and "\n" not in message
        assert "235" not in message.replace(str(path), "")
    for kind in ("a vector", "fractions", "nan", "text", "objects", "truncated"):
        assert "\n" not in refusal(counts_file=tmp_path / f"{kind}.npy")
    good = pathlib.Path(h1.removeprefix("--counts_file="))
    for indices in ([0, 100], [-1], [0.5], [[0, 1]], ["0"], [True], [np.nan], []):
        file = save(tmp_path / "indices.npy", np.array(indices))
        assert "\n" not in refusal(counts_file=good, input_is_counts=True, indices_file=file)
    ended = run(f"--counts_file={tmp_path / 'nan.npy'}", "--input_is_counts")
    assert_refused(ended, tmp_path)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--counts_file={h1}", "--calibrate", "--target_epsilon=1", "--queries=2"],
        ["--counts_file={h1}", "--ledger=here"],
        ["--counts_file={h1}", "--delta=1"],
        ["--counts_file={h1}", "--delta=1"],
        ["--counts_file={h1}", "--delta=nan"],
        ["--counts_file={h1}", "--noise_eps=0"],
        ["--counts_file={h1}", "--noise_eps=inf"],
        ["--counts_file={h1}", "--noise_eps=-1"],
        ["--counts_file={h1}", "--sigma=0"],
        ["--counts_file={h1}", "--moments=0"],
        ["--counts_file={h1}", "--max_examples=0"],
        ["--counts_file={h1}", "--beta=0"],
        ["--counts_file={h1}", "--profile=1.5"],
        ["--counts_file={h1}", "--mechanism=plurality"],
        ["--counts_file={h1}", "--conversion=best"],
        ["--counts_file={h1}", "--no_such_flag"],
        ["--counts_file={h1}", "stray"],
        ["--calibrate"],
        ["--calibrate", "--target_epsilon=0", "--queries=2"],
        ["--calibrate", "--target_epsilon=1", "--queries=0"],
        ["--calibrate", "--nb_teachers=9"],
        ["--calibrate", "--target_epsilon=1", "--nb_teachers=0"],
        ["--calibrate", "--target_epsilon=1", "--nb_teachers=9", "--margin=0"],
        ["--calibrate", "--target_epsilon=1", "--nb_teachers=9", "--margin=1.1"],
        ["--counts_file={h1}", "--nb_teachers=9"],
        ["--counts_file={h1}", "--release=sanitised", "--confidence=0.3"],
        ["--counts_file={h1}", "--margin=0.5"],
    ],
    ids=" ".join,
)
def test_bad_flags_get_one_line_and_code_2(run, tmp_path, h1, arguments):
    path = h1.removeprefix("--counts_file=")
    assert_refused(run(*[argument.format(h1=path) for argument in arguments]), tmp_path, code=2)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--bound=tighter"],
        ["--bound=paper,"],
        ["--release=sometimes"],
        ["--release=none,gate"],
        ["--release=sanitised,smooth_sensitivity"],
        ["--release=sanitised", "--gate_budget=1"],
        ["--release=gate", "--confidence=0.9"],
        ["--release=sanitised", "--release_sigma=1e9"],
        ["--release=sanitised", "--release_sigma=1e-200"],
        ["--release=sanitised", "--release_sigma=1e-155"],
        ["--sigma=3", "--noise_eps=3"],
        ["--sigma=3", "--mechanism=permute_and_flip"],
        ["--adaptive", "--release=none", "--bound=paper"],
        ["--nb_labels=3"],
    ],
    ids=" ".join,
)
def test_flags_that_do_not_go_together_get_one_line(run, tmp_path, h1, arguments):
    assert_refused(run(h1, "--input_is_counts", *arguments), tmp_path)


def test_an_output_that_cannot_be_written_gets_one_line(run, tmp_path, h1):
    (tmp_path / "file").touch()
    ended = run(h1, "--input_is_counts", f"--output_dir={tmp_path}/file/out")
    assert_refused(ended, tmp_path)


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
    assert "opened: epsilon at most 20 at delta 1e-05" in history[0]
    assert "charged 30 queries of permute_and_flip, gamma 0.05 (scale 20 votes)" in history[1]
    assert "answered 30 of the 30 queries that row 2 charged" in history[2]
    assert "charged 10 queries" in history[3]
    report = ended.report
    assert report["queries"] == 40
    assert report["epsilon_data_independent"] == pytest.approx(spent, rel=1e-12)
    (summary,) = report["ledgers"]
    assert summary["epsilon_spent"] == spent
    assert summary["epsilon_remaining"] == remaining
    assert summary["affordable_queries"] == affordable
    assert f"{affordable:,} queries of permute_and_flip" in ended.out
    assert set(report["bounds"]) == {"two_sided", "class_aware"}
    assert report["epsilon_data_dependent"] < report["epsilon_data_independent"]
    assert "sanitised" not in report


def test_the_file_names_the_ledger_too(succeed, tmp_path):
    release_labels(tmp_path / "run/sensitive", golden_counts("H2", 3))
    by_folder = succeed(f"--ledger={tmp_path}/run/sensitive").report
    by_file = succeed(f"--ledger={tmp_path}/run/sensitive/ledger.sqlite3").report
    assert by_folder == by_file


def test_composes_several_ensembles(run, succeed, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    release_labels(first, golden_counts("H1", 30))
    release_labels(
        second, golden_counts("H3", 20), ensemble="cd" * 32, mechanism=GaussianNoisyMax(sigma=40.0)
    )
    alone = [succeed(f"--ledger={folder}").report for folder in (first, second)]
    both = succeed(f"--ledger={first},{second}").report
    assert both["queries"] == 50
    assert [entry["queries"] for entry in both["mechanism"]] == [30, 20]
    for field in ("epsilon_data_independent", "epsilon_data_dependent"):
        assert max(report[field] for report in alone) < both[field]
    assert set(both["bounds"]) == {"two_sided"}
    twice = run(f"--ledger={first},{first}")
    assert twice.code == 1
    assert "one of them twice" in twice.err


def test_ledgers_of_different_deltas_need_one(run, succeed, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    release_labels(first, golden_counts("H1", 3))
    release_labels(second, golden_counts("H1", 3), ensemble="cd" * 32, delta=1e-6)
    assert "delta: expected one, as the ledgers differ" in run(f"--ledger={first},{second}").err
    assert succeed(f"--ledger={first},{second}", "--delta=1e-7").report["delta"] == 1e-7
    assert succeed(f"--ledger={second}").report["delta"] == 1e-6


def test_a_ledger_without_votes_is_accounted_data_independently(run, succeed, tmp_path):
    folder = tmp_path / "run/sensitive"
    release_labels(folder, golden_counts("H2", 3))
    for file in (folder / "votes").iterdir():
        file.unlink()
    (folder / "votes").rmdir()
    report = succeed(f"--ledger={folder}").report
    assert "bounds" not in report
    assert report["queries"] == 3
    ended = run(f"--train_dir={tmp_path}/run")
    assert (ended.code, ended.err.count("\n")) == (1, 1)
    assert "expected the counts of" in ended.err


def test_analyses_a_run(succeed, tmp_path):
    release_labels(tmp_path / "run/sensitive", golden_counts("H2", 30))
    release_labels(tmp_path / "run/sensitive", golden_counts("H3", 20))
    report = succeed(f"--train_dir={tmp_path}/run", "--release=sanitised").report
    table = np.concatenate([golden_counts("H2", 30), golden_counts("H3", 20)])
    file = save(tmp_path / "counts.npy", table)
    by_file = succeed(
        f"--counts_file={file}",
        "--input_is_counts",
        "--mechanism=permute_and_flip",
        "--noise_eps=0.05",
        RELEASE,
    ).report
    for field in ("queries", "mechanism", "delta", "epsilon_data_independent", "plan"):
        assert report[field] == by_file[field]
    for bound, found in report["bounds"].items():
        assert found["epsilon"] == pytest.approx(by_file["bounds"][bound]["epsilon"], rel=1e-12)
    assert report["sanitised"]["epsilon"] > report["epsilon_data_dependent"]


def test_writes_into_the_run_folder(script, tmp_path, capsys):
    release_labels(tmp_path / "run/sensitive", golden_counts("H2", 3))
    ended = script.run(tmp_path, capsys, f"--train_dir={tmp_path}/run", "--output_dir=")
    assert ended.code == 0
    assert (tmp_path / "run/sensitive/analysis.json").exists()
    assert (tmp_path / "run/released/analysis.json").exists()


def test_a_ledger_is_charged_for_a_release_only_when_asked_to(succeed, tmp_path):
    flag = f"--train_dir={tmp_path}/run"

    def last_row() -> str:
        with Ledger.read(tmp_path / "run/sensitive") as ledger:
            return ledger.history()[-1].kind

    release_labels(tmp_path / "run/sensitive", golden_counts("H2", 3))
    ended = succeed(flag)
    assert last_row() == "answers"
    assert "sanitised" not in ended.report
    assert "--release=sanitised draws one" in ended.out
    drawn = succeed(flag, "--release=sanitised").report["sanitised"]
    assert last_row() == "released"
    # What was charged is shown without asking.
    for again in (flag, f"--ledger={tmp_path}/run/sensitive"):
        assert succeed(again).report["sanitised"] == drawn
    assert last_row() == "released"
    assert "sanitised" not in succeed(flag, "--release=none").report


def test_a_threshold_is_accounted_but_not_released(succeed, run, tmp_path):
    mechanism = ConfidentGaussianNoisyMax(threshold=150.0, sigma_threshold=60.0, sigma=30.0)
    release_labels(tmp_path / "run/sensitive", golden_counts("H3", 20), mechanism=mechanism)
    ended = succeed(f"--train_dir={tmp_path}/run")
    assert set(ended.report["bounds"]) == {"paper", "two_sided"}
    assert "sanitised" not in ended.report
    asked = run(f"--train_dir={tmp_path}/run", "--release=sanitised")
    assert asked.code == 1
    assert "answers every query" in asked.err


def test_what_is_said_about_the_mechanism_must_agree_with_the_ledger(run, succeed, tmp_path):
    release_labels(tmp_path / "run/sensitive", golden_counts("H2", 3))
    run_flag = f"--train_dir={tmp_path}/run"
    succeed(run_flag, "--noise_eps=0.05", "--mechanism=permute_and_flip")
    for arguments in (
        ["--noise_eps=0.1"],
        ["--mechanism=laplace_noisy_max"],
        ["--sigma=3"],
        ["--input_is_counts"],
        ["--max_examples=2"],
    ):
        ended = run(run_flag, *arguments)
        assert ended.code == 1
        assert ended.err.count("\n") == 1


def test_a_missing_or_damaged_ledger_gets_one_line(run, tmp_path):
    assert_refused(run(f"--ledger={tmp_path}/nowhere"), tmp_path)
    assert_refused(run(f"--train_dir={tmp_path}/nowhere"), tmp_path)
    assert not (tmp_path / "nowhere").exists()
    folder = tmp_path / "run/sensitive"
    release_labels(folder, golden_counts("H2", 3))
    content = bytearray((folder / "ledger.sqlite3").read_bytes())
    content[50:90] = bytes(40)
    (folder / "ledger.sqlite3").write_bytes(content)
    assert_refused(run(f"--ledger={folder}"), tmp_path)
    assert_refused(run(f"--train_dir={tmp_path}/run"), tmp_path)


def test_damaged_votes_get_one_line(run, tmp_path):
    folder = tmp_path / "run/sensitive"
    release_labels(folder, golden_counts("H2", 3))
    (votes,) = (folder / "votes").iterdir()
    votes.write_bytes(votes.read_bytes()[:-30])
    assert_refused(run(f"--train_dir={tmp_path}/run"), tmp_path)


def test_sums_up_a_run(succeed, run, tmp_path):
    folder = tmp_path / "run/sensitive"
    release_labels(folder, golden_counts("H2", 30))
    assert "The run" not in succeed(f"--train_dir={tmp_path}/run").out
    teachers = {"nb_teachers": 250, "dataset": "digits", "teacher_accuracy_mean": 0.8312}
    student = {"queries": 30, "answered": 30, "label_accuracy": 0.9, "student_accuracy": 0.8766}
    (folder / "teachers_report.json").write_text(json.dumps(teachers))
    (folder / "student_report.json").write_text(json.dumps(student))
    ended = succeed(f"--train_dir={tmp_path}/run")
    table = ended.out.split("The run\n")[1]
    for text in ("250 on digits", "83.12% (SENSITIVE)", "30 asked", "90.00%", "87.66%"):
        assert text in table
    assert str(tmp_path / "run/released") in table


def test_a_run_is_read_before_its_ledger_is_charged(succeed, run, tmp_path):
    """Public data without labels have no accuracy; a broken report must not cost a draw."""
    folder, flags = tmp_path / "run/sensitive", (f"--train_dir={tmp_path}/run", RELEASE)
    release_labels(folder, golden_counts("H2", 30))
    teachers = {"nb_teachers": 250, "dataset": "digits", "teacher_accuracy_mean": None}
    (folder / "teachers_report.json").write_text(json.dumps(teachers))
    (folder / "student_report.json").write_text("{}")
    assert run(*flags).code == 1
    with Ledger.read(folder) as ledger:
        assert ledger.history()[-1].kind == "answers"
    student = {"queries": 30, "answered": 30, "label_accuracy": None, "student_accuracy": None}
    (folder / "student_report.json").write_text(json.dumps(student))
    assert succeed(*flags).out.count("not measured: these public samples have no labels") == 3


# Calibration


def test_without_noise_methods_and_mechanisms_are_compared(succeed, run):
    ended = succeed("--calibrate", "--epsilon=1", "--nb_teachers=60", "--delta=1e-6")
    assert {one["mechanism"]["name"] for one in ended.report["candidates"]} > {
        "stability_gate",
        "gaussian_histogram",
    }
    assert ended.report["delta"] == 1e-6 and "feature_sums" in ended.report
    for text in ("Recommended", "pate student", "feature_sums", "--nb_teachers=60"):
        assert text in ended.out
    assert "Recommended" in succeed("--calibrate", "--epsilon=1").out
    for more in ("--queries=2", "--nb_teachers=9"):
        refused = run("--calibrate", "--epsilon=1", more, "--sigma=3")
        assert (refused.code, refused.err.count("\n")) == (1, 1)


# The process


def fresh(*arguments, folder):
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


FORBIDDEN = ("tensorflow", "keras", "sklearn", "matplotlib", "tensorboard", "dp_accounting")


def test_starts_light(tmp_path, h1):
    code = (
        "import runpy, sys\n"
        "sys.argv = [sys.argv[1], *sys.argv[2:]]\n"
        "try:\n"
        "    runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "except SystemExit as end:\n"
        "    assert not end.code, end.code\n"
        f"print([name for name in {FORBIDDEN} if name in sys.modules], 'opendp' in sys.modules)\n"
    )
    ended = fresh("-c", code, SCRIPT, h1, "--input_is_counts", "--release=none", folder=tmp_path)
    assert ended.stderr == ""
    assert ended.stdout.endswith("[] False\n")
    assert (tmp_path / "runs/analysis/released/analysis.json").exists()


def test_help_is_complete_and_the_short_one_short(tmp_path):
    whole, short = (
        fresh(SCRIPT, flag, folder=tmp_path).stdout.split("\n  --")
        for flag in ("--helpfull", "--help")
    )
    assert len(short) - 1 <= 20 < len(whole)
    for name in ("release_sigma", "indices_file", "noise_eps", "nb_labels"):
        assert any(one.startswith(name) for one in whole)


def test_exit_codes_of_the_process(tmp_path, h1):
    bad_flag = fresh(SCRIPT, "--delta=3", h1, folder=tmp_path)
    assert (bad_flag.returncode, bad_flag.stderr.count("\n")) == (2, 1)
    bad_file = fresh(SCRIPT, "--counts_file=nowhere.npy", folder=tmp_path)
    assert (bad_file.returncode, bad_file.stderr.count("\n")) == (1, 1)
    assert "Traceback" not in bad_flag.stderr + bad_file.stderr


def test_transposed_votes_are_noticed(run, tmp_path):
    file = save(tmp_path / "transposed.npy", random_labels(300, 20))
    ended = run(f"--counts_file={file}", "--release=none")
    assert ended.code == 0 and "read as labels of 300 teachers for 20 queries" in ended.err
