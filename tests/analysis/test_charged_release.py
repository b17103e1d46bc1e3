"""A release from a ledger's votes: charged first, drawn once, read from the ledger again."""

import json
import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
from analysis_helpers import (
    DELTA,
    REPOSITORY,
    GivenNoise,
    analysed,
    golden_counts,
    read_ledger,
    read_run,
    release_labels,
    release_of,
)
from statement_helpers import state

from pate_tf.accounting.cost_release import PlannedRelease
from pate_tf.accounting.mechanisms import ConfidentGaussianNoisyMax
from pate_tf.analysis import release as analysis_release
from pate_tf.analysis.release_planning import ReleaseRequest
from pate_tf.ledger import BudgetExceeded, BudgetMismatch, Ledger, LedgerError
from pate_tf.release.noise import SeededNoise
from pate_tf.run.analysis import ReleaseSettings
from pate_tf.statement.check import check_statement

SANITISED = ReleaseRequest(kinds=("sanitised",), delta=DELTA)
OTHER = ReleaseRequest(kinds=("sanitised",), delta=DELTA, planned=PlannedRelease(sigma=20.0))


@pytest.mark.parametrize("name", ["moment", "smoothness", "sigma"])
def test_a_plan_without_a_positive_scale_is_refused(name):
    with pytest.raises(ValueError, match=f"{name}: expected"):
        PlannedRelease(**{name: -1.0})


def test_a_threshold_may_be_negative():
    mechanism = ConfidentGaussianNoisyMax(threshold=-5.0, sigma_threshold=150.0, sigma=40.0)
    assert mechanism.threshold == -5.0


def release(folder, noise, request=SANITISED, **options):
    source = read_ledger(folder).source
    return release_of(source, request, GivenNoise(noise), folder / "elsewhere", **options)


def kinds(folder):
    """The kinds of the rows; a debit of a release is told apart from one of queries."""
    with Ledger.read(folder) as ledger:
        return [
            "release" if "release" in row.details.get("charge", ()) else row.kind
            for row in ledger.history()
        ]


def spent(folder):
    with Ledger.read(folder) as ledger:
        return ledger.spent().epsilon


def no_noise(sigma):
    raise RuntimeError("noise was drawn")


def zero(sigma):
    return 0


def test_it_is_charged_before_noise_is_drawn_and_then_read_again(tmp_path):
    release_labels(tmp_path, golden_counts("H1", 30))
    labels_alone, charged_by_then = spent(tmp_path), []

    def noise(sigma):
        with Ledger.read(tmp_path) as ledger:  # as another process sees it
            charged_by_then.append(ledger.spent().epsilon)
        return 1

    first = release(tmp_path, noise)
    assert kinds(tmp_path) == ["opened", "debit", "answers", "release", "released"]
    assert charged_by_then == [spent(tmp_path)]
    assert spent(tmp_path) > labels_alone
    assert first.sanitised.worst_case_epsilon == pytest.approx(spent(tmp_path), rel=1e-8)
    assert release(tmp_path, no_noise) == first
    assert len(kinds(tmp_path)) == 5
    assert not (tmp_path / "elsewhere").exists()


def test_labels_that_are_charged_later_stand_on_top_of_it(tmp_path):
    release_labels(tmp_path, golden_counts("H1", 30))
    release(tmp_path, zero)
    before = spent(tmp_path)
    release_labels(tmp_path, golden_counts("H1", 5))
    assert spent(tmp_path) > before
    # Other votes now: the earlier draw is not theirs, and nothing is charged for the refusal.
    with pytest.raises(ValueError, match="expected the votes and plan of the earlier release from"):
        release(tmp_path, no_noise)
    assert kinds(tmp_path).count("release") == 1


def test_a_discarded_draw_stays_charged(tmp_path):
    release_labels(tmp_path, golden_counts("H1", 30))
    release(tmp_path, zero)
    one = spent(tmp_path)
    release_labels(tmp_path, golden_counts("H1", 5))
    with pytest.raises(ValueError, match="discard_earlier"):
        release(tmp_path, no_noise)
    second = release(tmp_path, zero, discard_earlier=True)
    assert second.num_discarded == 1
    assert spent(tmp_path) > one
    assert second.sanitised.worst_case_epsilon == spent(tmp_path)
    assert release(tmp_path, no_noise) == second


@pytest.mark.parametrize("discard", [False, True])
@pytest.mark.parametrize("drawn", [False, True])
def test_no_plan_but_the_one_from_before_there_were_votes(tmp_path, discard, drawn):
    """The reviewer's attack: bounds at the true votes are printed, then a plan is chosen."""
    release_labels(tmp_path, golden_counts("H1", 30))
    if drawn:
        assert release(tmp_path, zero).plan_was_fixed
    before = kinds(tmp_path)
    smooth = ReleaseRequest(kinds=("smooth_sensitivity",), delta=DELTA)
    planned = PlannedRelease(profile=0.5)
    profile = ReleaseRequest(kinds=("sanitised",), delta=DELTA, planned=planned)
    for request, differing in ((OTHER, "sigma"), (profile, "profile 0.8"), (smooth, "log_cost")):
        with pytest.raises(BudgetMismatch, match=f"expected .*{differing}.* before there were"):
            release(tmp_path, no_noise, request, discard_earlier=discard)
    assert kinds(tmp_path) == before


def test_a_plan_of_ones_own_is_fixed_with_the_ledger(tmp_path):
    own = PlannedRelease(profile=0.6, confidence=0.95)
    Ledger.open(tmp_path, ensemble_digest="ab" * 32, delta=DELTA, planned_release=own).close()
    release_labels(tmp_path, golden_counts("H1", 30))
    with pytest.raises(BudgetMismatch):
        Ledger.open(
            tmp_path, ensemble_digest="ab" * 32, delta=DELTA, planned_release=PlannedRelease()
        )
    with pytest.raises(BudgetMismatch):
        release(tmp_path, no_noise)
    request = ReleaseRequest(kinds=("sanitised",), delta=DELTA, planned=own)
    found = release(tmp_path, zero, request)
    assert (found.plan_was_fixed, found.sanitised.confidence) == (True, 0.95)


def test_a_ledger_of_an_earlier_version_takes_one_plan_late(tmp_path):
    shutil.copytree(REPOSITORY / "tests/ledger/version_2", tmp_path, dirs_exist_ok=True)
    with Ledger.read(tmp_path) as ledger:
        assert (ledger.planned_release, ledger.plan_is_late) == (None, True)
        opened = {"ensemble_digest": ledger.ensemble_digest, "delta": ledger.delta}
    one = PlannedRelease(profile=0.6)
    Ledger.open(tmp_path, **opened, planned_release=one).close()
    with Ledger.open(tmp_path, **opened, planned_release=one) as ledger:
        assert (ledger.planned_release, ledger.plan_is_late) == (one, True)
    with pytest.raises(BudgetMismatch, match=r"expected profile 0\.6"):
        Ledger.open(tmp_path, **opened, planned_release=PlannedRelease())


def test_what_can_not_be_released_is_not_charged(tmp_path):
    mechanism = ConfidentGaussianNoisyMax(threshold=200.0, sigma_threshold=60.0, sigma=30.0)
    release_labels(tmp_path, golden_counts("H1", 30), mechanism=mechanism)
    before = kinds(tmp_path)
    with pytest.raises(ValueError, match="noise that answers every query"):
        release(tmp_path, no_noise)
    assert kinds(tmp_path) == before


def account(folder, *, optional, noise):
    request = ReleaseSettings(kinds=None if optional else ("sanitised",))
    return analysed(folder, SANITISED, noise=noise, release=request)


def test_a_budget_refuses_it_and_a_default_release_is_left_out(tmp_path):
    folder = tmp_path / "sensitive"
    release_labels(folder, golden_counts("H1", 30))
    budget = spent(folder) * 1.001
    release_labels(folder, golden_counts("H1", 0), budget=budget)
    with pytest.raises(BudgetExceeded, match="epsilon_budget: expected at most 0 new releases"):
        account(tmp_path, optional=False, noise=GivenNoise(no_noise))
    report = account(tmp_path, optional=True, noise=GivenNoise(no_noise))
    assert report.released is None
    assert "epsilon_budget: expected at most 0 new releases" in report.refusal
    assert "release" not in kinds(folder)
    assert spent(folder) <= budget


def test_reports_state_labels_and_releases_apart(tmp_path):
    release_labels(tmp_path / "sensitive", golden_counts("H1", 30))
    first, second = (
        account(tmp_path, optional=False, noise=GivenNoise(noise)).publishable
        for noise in (zero, no_noise)
    )
    assert first == second
    # The release is included, as in what the ledger has spent.
    assert second["epsilon_data_independent"] == spent(tmp_path / "sensitive")
    assert second["epsilon_labels_alone"] < second["epsilon_data_independent"]
    assert second["ledger_charged"] is True
    history = read_run(tmp_path).ledgers[0].history
    assert "charged 1 release of the data-dependent cost (log_cost, sigma" in history[3]
    assert "stored the release that row 4 charged" in history[4]


def test_a_statement_made_after_it_must_include_it(tmp_path):
    release_labels(tmp_path, golden_counts("H1", 30))
    labels_alone = spent(tmp_path)
    release(tmp_path, zero)
    released = release_labels(tmp_path, golden_counts("H1", 1))
    with Ledger.read(tmp_path) as ledger:
        statement = state(tmp_path, released)
        check_statement(statement, ledger)
        with pytest.raises(ValueError, match="at least epsilon"):
            check_statement({**statement, "epsilon_ledger": labels_alone * 1.01}, ledger)


def test_a_seeded_draw_is_on_record_for_ever(tmp_path):
    folder = tmp_path / "sensitive"
    release_labels(folder, golden_counts("H1", 30))
    for noise in (SeededNoise(3), GivenNoise(no_noise)):
        report = account(tmp_path, optional=False, noise=noise)
        assert report.publishable["secure_noise"] is False
    with Ledger.read(folder) as ledger:
        assert not ledger.is_secure
    assert "SEEDED NOISE" in read_run(tmp_path).ledgers[0].history[3]


def test_others_may_write_while_the_exact_cost_is_computed(tmp_path, monkeypatch):
    release_labels(tmp_path, golden_counts("H1", 30))
    exact = analysis_release._prepared

    def slow(*arguments):
        release_labels(
            tmp_path, golden_counts("H1", 1)
        )  # would wait two minutes for a lock, then fail
        return exact(*arguments)

    monkeypatch.setattr(analysis_release, "_prepared", slow)
    with pytest.raises(LedgerError, match="expected 30 answered queries, got 31"):
        release(tmp_path, no_noise)
    assert "release" not in kinds(tmp_path)


def test_a_draw_that_fails_once_it_is_charged_is_charged_again(tmp_path):
    release_labels(tmp_path, golden_counts("H1", 30))

    def broken(sigma):
        raise OSError("no entropy")

    with pytest.raises(OSError, match="no entropy"):
        release(tmp_path, broken)
    assert kinds(tmp_path)[-1] == "release"
    once = spent(tmp_path)
    found = release(tmp_path, zero)
    assert spent(tmp_path) > once
    assert found.sanitised.worst_case_epsilon == spent(tmp_path)


CHILD = """
import json, pathlib, sys
from pate_tf.release.noise import SystemNoise
from pate_tf.analysis.release import ReleaseRequest, release
from pate_tf.run.analysis import SourceSettings, read_votes
folder = pathlib.Path(sys.argv[1])
source = read_votes(SourceSettings(ledgers=(folder,))).source
request = ReleaseRequest(kinds=("sanitised",), delta=1e-5)
found = release(source, request, SystemNoise(), folder=folder)
print(json.dumps(found.sanitised.epsilon))
"""


def start(folder, **variables):
    return subprocess.run(
        [sys.executable, "-c", CHILD, str(folder)],
        cwd=REPOSITORY,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )


POINTS = [f"{kind}_{step}" for kind in ("debit", "released") for step in ("written", "committed")]


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_every_step_it_is_never_cheaper_than_what_left(tmp_path, point):
    release_labels(tmp_path, golden_counts("H1", 30))
    labels_alone = spent(tmp_path)
    killed = start(tmp_path, PATE_TF_FAULT_POINT=point)
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, "")
    was_charged, kept = point != "debit_written", point == "released_committed"
    assert (spent(tmp_path) > labels_alone) is was_charged
    assert ("released" in kinds(tmp_path)) is kept
    first = release(tmp_path, no_noise if kept else zero)
    assert kinds(tmp_path).count("release") == 1 + (was_charged and not kept)
    assert release(tmp_path, no_noise) == first


def test_two_processes_draw_once(tmp_path):
    release_labels(tmp_path, golden_counts("H1", 30))
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path)],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    told = {json.loads(child.communicate(timeout=120)[0]) for child in children}
    assert len(told) == 1
    assert np.isfinite(told.pop())
    assert kinds(tmp_path).count("release") == 1
