"""A release from a ledger's votes is charged first, drawn once, and then read from the ledger."""

import functools
import signal

import numpy as np
import pytest
from analysis_helpers import DELTA, GivenNoise, golden_counts, read_ledger, release_labels
from script_processes import start
from statement_helpers import state

from pate_tf.accounting.charge import PlannedRelease
from pate_tf.accounting.mechanisms import ConfidentGaussianNoisyMax
from pate_tf.analysis import sanitised_epsilon as analysis_release
from pate_tf.analysis.analyse_run import AnalysisSettings, run
from pate_tf.ledger import BudgetExceeded, BudgetMismatch, Ledger, LedgerError
from pate_tf.release.noise import SeededNoise, SystemNoise
from pate_tf.statement import check_statement


def release(folder, noise, planned=None):
    source = read_ledger(folder)
    return analysis_release.release(
        source, GivenNoise(noise), folder=folder / "elsewhere", delta=DELTA, planned=planned
    )


def kinds(folder):
    """Returns the kinds of the rows. A debit of a release differs from a debit of queries."""
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
    # The votes have changed. The earlier draw does not belong to them, and the refusal costs
    # nothing.
    with pytest.raises(ValueError, match="already released with a different votes and plan"):
        release(tmp_path, no_noise)
    assert kinds(tmp_path).count("release") == 1


@pytest.mark.parametrize("drawn", [False, True])
def test_no_plan_but_the_one_from_before_there_were_votes(tmp_path, drawn):
    """Covers the reviewer's attack: print bounds at the true votes, then choose a plan."""
    release_labels(tmp_path, golden_counts("H1", 30))
    if drawn:
        assert release(tmp_path, zero).sanitised.plan_was_fixed
    before = kinds(tmp_path)
    for planned, differing in (
        (PlannedRelease(sigma=20.0), "sigma"),
        (PlannedRelease(profile=0.5), "profile"),
        (PlannedRelease(release="smooth_sensitivity"), "log_cost"),
    ):
        with pytest.raises(BudgetMismatch, match=differing):
            release(tmp_path, no_noise, planned)
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
        release(tmp_path, no_noise, PlannedRelease())
    sanitised = release(tmp_path, zero).sanitised
    assert (sanitised.plan_was_fixed, sanitised.confidence) == (True, 0.95)


def test_what_can_not_be_released_is_not_charged(tmp_path):
    mechanism = ConfidentGaussianNoisyMax(threshold=200.0, sigma_threshold=60.0, sigma=30.0)
    release_labels(tmp_path, golden_counts("H1", 30), mechanism=mechanism)
    before = kinds(tmp_path)
    with pytest.raises(ValueError, match="does not answer every query"):
        release(tmp_path, no_noise)
    assert kinds(tmp_path) == before


def account(folder, *, noise, asked="sanitised"):
    """Returns the report of an analysis of a run."""
    return run(AnalysisSettings(run=folder, release=asked), noise=noise)


def test_a_budget_refuses_it_and_nothing_is_charged(tmp_path):
    folder = tmp_path / "sensitive"
    release_labels(folder, golden_counts("H1", 30))
    budget = spent(folder) * 1.001
    release_labels(folder, golden_counts("H1", 0), budget=budget)
    with pytest.raises(BudgetExceeded, match="allows at most 0 more releases"):
        account(tmp_path, noise=GivenNoise(no_noise))
    assert "epsilon_sanitised" not in account(tmp_path, noise=None, asked=None).values
    assert "release" not in kinds(folder)
    assert spent(folder) <= budget


def test_a_statement_made_after_it_must_include_it(tmp_path):
    release_labels(tmp_path, golden_counts("H1", 30))
    labels_alone = spent(tmp_path)
    release(tmp_path, zero)
    released = release_labels(tmp_path, golden_counts("H1", 1))
    with Ledger.read(tmp_path) as ledger:
        statement = state(tmp_path, released)
        check_statement(statement, ledger)
        with pytest.raises(ValueError, match="epsilon must be at least"):
            check_statement({**statement, "epsilon_ledger": labels_alone * 1.01}, ledger)


def test_a_seeded_draw_is_on_record_for_ever(tmp_path):
    folder = tmp_path / "sensitive"
    release_labels(folder, golden_counts("H1", 30))
    for noise in (SeededNoise(3), GivenNoise(no_noise)):
        values = account(tmp_path, noise=noise).values
        assert values["secure_noise"] is False
    with Ledger.read(folder) as ledger:
        assert not ledger.is_secure
    again = account(tmp_path, noise=None).values
    assert "SEEDED NOISE" in again["ledgers"][0]["history"][3]


def test_others_may_write_while_the_exact_cost_is_computed(tmp_path, monkeypatch):
    release_labels(tmp_path, golden_counts("H1", 30))
    exact = analysis_release.prepare_draw

    def slow(*arguments):
        release_labels(
            tmp_path, golden_counts("H1", 1)
        )  # otherwise it would wait two minutes for a lock, then fail
        return exact(*arguments)

    monkeypatch.setattr(analysis_release, "prepare_draw", slow)
    with pytest.raises(LedgerError, match="other queries were answered in the meantime"):
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
    actual = release(tmp_path, zero)
    assert spent(tmp_path) > once
    assert actual.sanitised.worst_case_epsilon == spent(tmp_path)


def print_released(folder):
    print(release(folder, SystemNoise().discrete_gaussian).sanitised.epsilon)


def start_release(folder, point=None):
    return start(functools.partial(print_released, folder), folder=folder, point=point)


POINTS = [f"{kind}_{step}" for kind in ("debit", "released") for step in ("written", "committed")]


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_every_step_it_is_never_cheaper_than_what_left(tmp_path, point):
    release_labels(tmp_path, golden_counts("H1", 30))
    labels_alone = spent(tmp_path)
    killed = start_release(tmp_path, point).wait()
    assert (killed.code, killed.out) == (-signal.SIGKILL, "")
    was_charged, kept = point != "debit_written", point == "released_committed"
    assert (spent(tmp_path) > labels_alone) is was_charged
    assert ("released" in kinds(tmp_path)) is kept
    first = release(tmp_path, no_noise if kept else zero)
    assert kinds(tmp_path).count("release") == 1 + (was_charged and not kept)
    assert release(tmp_path, no_noise) == first


def test_two_processes_draw_once(tmp_path):
    release_labels(tmp_path, golden_counts("H1", 30))
    children = [start_release(tmp_path) for _ in range(2)]
    told = {float(child.wait().out) for child in children}
    assert len(told) == 1
    assert np.isfinite(told.pop())
    assert kinds(tmp_path).count("release") == 1
