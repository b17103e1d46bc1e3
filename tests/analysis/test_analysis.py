"""Sources of votes, accounting, reports of ledgers, calibration, stored releases of files."""

import math
import re
import shutil
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from analysis_helpers import (
    DELTA,
    MECHANISM,
    GivenNoise,
    golden_counts,
    random_labels,
    release_labels,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from pate_tf.accounting import moments
from pate_tf.accounting.cost_release import PlannedRelease
from pate_tf.accounting.mechanisms import (
    ConfidentGaussianNoisyMax,
    ExponentialMechanism,
    GaussianNoisyMax,
    LaplaceNoisyMax,
    PermuteAndFlip,
)
from pate_tf.accounting.mechanisms.base import Target
from pate_tf.analysis import votes as analysis_votes
from pate_tf.analysis.accounting import (
    AnalysisConfig,
    analyse,
    with_smooth_sensitivity,
)
from pate_tf.analysis.release import release
from pate_tf.analysis.release_planning import ReleaseRequest
from pate_tf.analysis.report import ledger_report
from pate_tf.analysis.votes import AnsweredVotes, VoteSource, order_free_digest
from pate_tf.core.sensitive import VoteCounts
from pate_tf.core.source import PrivateSource
from pate_tf.ledger import Ledger, LedgerError

LAPLACE = LaplaceNoisyMax(gamma=0.05)


def source_of(*groups, **changes):
    answered = tuple(AnsweredVotes(*group) for group in groups)
    charges = Counter()
    for group in answered:
        charges[group.mechanism] += group.counts.num_queries + group.num_unanswered
    facts = {"groups": answered, "num_charged": charges, "identity": lambda: "these votes"}
    return VoteSource(**(facts | changes))


def counts_of(name, num_queries):
    return VoteCounts(golden_counts(name, num_queries))


# Sources


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 5))
def test_digest_of_votes_ignores_order_and_empty_classes(seed, num_queries, num_classes):
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(9, np.full(num_classes, 1.0 / num_classes), size=num_queries)
    digest = order_free_digest(counts)
    shuffled = rng.permuted(counts, axis=1)[rng.permutation(num_queries)]
    assert order_free_digest(shuffled) == digest
    assert order_free_digest(np.pad(counts, ((0, 0), (1, 2)))) == digest
    other = counts.copy()
    other[0, 0] += 1
    assert order_free_digest(other) != digest
    assert order_free_digest(np.concatenate([counts, counts[:1]])) != digest


def test_identity_is_that_of_the_whole_file(tmp_path):
    labels = random_labels(20, 12)
    np.save(tmp_path / "labels.npy", labels)
    np.save(tmp_path / "indices.npy", np.arange(5, 9))

    def read(**choice):
        return analysis_votes.read_votes_file(tmp_path / "labels.npy", LAPLACE, **choice)

    some = read(indices_file=tmp_path / "indices.npy", max_examples=2)
    assert some.identity() == read().identity() == read(num_classes=30).identity()
    assert some.num_queries == 2
    np.testing.assert_array_equal(some.labels.labels, labels[:, 5:7])
    np.testing.assert_array_equal(some.groups[0].counts.values, some.labels.counts().values)


def test_representations_hide_votes():
    source = source_of((LAPLACE, counts_of("H1", 3)))
    analysis = analyse(source, AnalysisConfig())
    for text in (repr(source), repr(source.groups), repr(analysis)):
        assert re.search(r"\b235\b", text) is None  # not the digits of a public epsilon
    assert f"{analysis.best_bound.epsilon}" not in repr(analysis)


def test_ledger_groups_by_mechanism_and_counts_lost_answers(tmp_path):
    release_labels(tmp_path, golden_counts("H1", 4))
    release_labels(tmp_path, golden_counts("H3", 3), mechanism=LAPLACE)
    release_labels(tmp_path, golden_counts("H2", 2))
    with Ledger.open(tmp_path, ensemble_digest="ab" * 32, delta=DELTA) as ledger:
        with ledger.exclusive():
            ledger.debit(LAPLACE, [b"lost in a crash."], secure_noise=False)
        source = analysis_votes.read_ledgers([ledger], votes_needed=True)
        spent = ledger.spent()
    sizes = {group.mechanism: group.counts.num_queries for group in source.groups}
    assert sizes == {MECHANISM: 6, LAPLACE: 3}
    assert source.num_charged == {MECHANISM: 6, LAPLACE: 4}
    assert not source.is_secure
    analysis = analyse(source, AnalysisConfig())
    assert analysis.data_independent.epsilon == pytest.approx(spent.epsilon, rel=1e-12)


def test_withheld_queries_are_counted(tmp_path):
    mechanism = ConfidentGaussianNoisyMax(threshold=240.0, sigma_threshold=9.0, sigma=30.0)
    released = release_labels(tmp_path, golden_counts("H1", 50), mechanism=mechanism)
    with Ledger.read(tmp_path) as ledger:
        (group,) = analysis_votes.read_ledgers([ledger], votes_needed=True).groups
    assert group.counts.num_queries == released.num_answered
    assert group.counts.num_queries + group.num_unanswered == 50


def test_ledger_summary_tells_of_seeds_and_raised_budgets(tmp_path):
    release_labels(tmp_path, golden_counts("H1", 2), budget=3.0)
    with Ledger.open(
        tmp_path, ensemble_digest="ab" * 32, delta=DELTA, epsilon_budget=3.0
    ) as ledger:
        ledger.raise_budget(epsilon_budget=9.0, delta=DELTA)
        with ledger.exclusive():
            ledger.debit(MECHANISM, [b"a seeded query.."], secure_noise=False)
        told = ledger_report(ledger)
    values = told.values
    assert (values["budget_was_raised"], values["secure_noise"]) == (True, False)
    assert any("budget RAISED: epsilon at most 9" in line for line in told.history)
    assert "SEEDED NOISE, NOT PRIVATE" in told.history[-1]
    assert (values["queries"], values["answered"]) == (3, 2)
    assert values["mechanism"] == MECHANISM.to_dict()


def test_an_empty_ledger_costs_nothing(tmp_path):
    Ledger.open(tmp_path, ensemble_digest="ab" * 32, delta=DELTA).close()
    with Ledger.read(tmp_path) as ledger:
        source = analysis_votes.read_ledgers([ledger], votes_needed=False)
        values = ledger_report(ledger).values
    analysis = analyse(source, AnalysisConfig())
    assert analysis.data_independent.epsilon == 0.0
    assert analysis.bounds == {}
    assert (values["mechanism"], values["affordable_queries"]) == (None, None)


# Accounting


def test_costs_of_mechanisms_add_up_moment_by_moment():
    config = AnalysisConfig()
    groups = [
        (LAPLACE, counts_of("H1", 30)),
        (ExponentialMechanism(gamma=0.1), counts_of("H3", 20)),
    ]
    found = analyse(source_of(*groups), config)
    assert set(found.bounds) == {"two_sided", "class_aware"}
    for bound, guarantee in found.bounds.items():
        alphas = sum(
            moments.data_dependent_alphas(
                counts.values, mechanism, moments.DEFAULT_MOMENTS, bound=bound
            )
            for mechanism, counts in groups
        )
        expected = moments.epsilon_from_alphas(alphas, moments.DEFAULT_MOMENTS, 1e-5)
        assert (guarantee.epsilon, guarantee.moment) == pytest.approx(expected, rel=1e-12)
    with pytest.raises(ValueError, match="exponential_mechanism, got 'paper'"):
        analyse(source_of(*groups), AnalysisConfig(bounds=("paper",)))


def test_unanswered_queries_pay_their_tests():
    mechanism = ConfidentGaussianNoisyMax(threshold=200.0, sigma_threshold=60.0, sigma=30.0)
    counts = counts_of("H1", 30)
    with_tests = analyse(source_of((mechanism, counts, 70)), AnalysisConfig())
    without = analyse(source_of((mechanism, counts)), AnalysisConfig())
    assert with_tests.num_queries == 100
    for bound in ("paper", "two_sided"):
        assert with_tests.bounds[bound].epsilon > without.bounds[bound].epsilon


@pytest.mark.parametrize("conversion", ["classic", "improved"])
def test_says_where_the_grid_ends(conversion):
    def ends(name, num_moments):
        config = AnalysisConfig(num_moments=num_moments, conversion=conversion, bounds=("paper",))
        return analyse(source_of((LAPLACE, counts_of(name, 100))), config).bounds["paper"].at_end

    assert ends("H1", 8)
    assert not ends("H3", 40)
    assert not ends("H1", 1)  # one moment is a choice, not a grid


def test_nothing_known_to_be_released_is_free_and_without_warning():
    one_class = VoteCounts(np.full((10, 1), 30))
    analysis = analyse(source_of((LAPLACE, one_class)), AnalysisConfig())
    for guarantee in analysis.bounds.values():
        assert (guarantee.epsilon, guarantee.at_end) == (0.0, False)


@pytest.mark.parametrize("gamma", [1e-6, 1e3])
def test_extreme_noise_gives_numbers_on_the_safe_side(gamma):
    counts = VoteCounts(np.array([[5, 4, 0], [9, 0, 0], [3, 3, 3]]))
    analysis = analyse(source_of((LaplaceNoisyMax(gamma=gamma), counts)), AnalysisConfig())
    found = [analysis.data_independent, *analysis.bounds.values()]
    assert all(guarantee.epsilon >= 0.0 for guarantee in found)  # NaN is not
    if gamma > 1.0:
        assert all(guarantee.epsilon > 100.0 for guarantee in found)


@pytest.mark.parametrize(
    "wrong", [{"delta": -1e-9}, {"delta": math.nan}, {"num_moments": 0}, {"bounds": ("best",)}]
)
def test_configuration_is_checked(wrong):
    with pytest.raises(ValueError, match="expected"):
        AnalysisConfig(**wrong)


def test_smooth_sensitivity_needs_one_mechanism():
    source = source_of((LAPLACE, counts_of("H1", 3)), (MECHANISM, counts_of("H1", 3)))
    with pytest.raises(ValueError, match="expected one mechanism, got 2"):
        with_smooth_sensitivity(analyse(source, AnalysisConfig()), source, beta=0.09)


# Calibration


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from([LaplaceNoisyMax, PermuteAndFlip, ExponentialMechanism, GaussianNoisyMax]),
    st.floats(0.05, 20.0),
    st.integers(1, 3_000),
)
def test_calibration_never_exceeds_its_target(kind, target, num_queries):
    stated = Target(epsilon=target, delta=DELTA, num_queries=num_queries)
    assert 0.99 * target < stated.epsilon_of(stated.least_noise(kind.of_scale)) <= target


# Releases of files, each with a ledger of its votes


class Draws:
    """A noise source that tells how often it was drawn from."""

    is_secure = True

    def __init__(self):
        self.number = 0

    def discrete_gaussian(self, sigma):
        self.number += 1
        return self.number


def request_of(*kinds, **changes):
    return ReleaseRequest(kinds=kinds or ("sanitised",), delta=DELTA, **changes)


FILE = PrivateSource.named("votes")


def votes_of(name="H1", identity="these votes", **changes):
    return source_of((LAPLACE, counts_of(name, 20)), identity=lambda: identity, **changes)


def full_disk(sigma):
    raise OSError("no space left")


def test_noise_is_drawn_once_and_stored_before_it_is_returned(tmp_path):
    noise = Draws()
    first = release(votes_of(), request_of(), noise, folder=tmp_path)
    assert release(votes_of(), request_of(), noise, folder=tmp_path) == first
    assert noise.number == 1
    (folder,) = (one for one in (tmp_path / "releases").iterdir() if one.is_dir())
    with Ledger.read(folder) as ledger:
        assert [row.kind for row in ledger.history()] == ["opened", "debit", "released"]
        assert ledger.stored_release()["key"]["plan"] == first.plan.to_dict()
    # The gate reads the same draw, other votes get one of their own, in a ledger of their own.
    other = votes_of("H2", "other votes")
    with pytest.raises(OSError, match="no space"):
        release(other, request_of(), GivenNoise(full_disk), folder=tmp_path)
    release(other, request_of(), noise, folder=tmp_path)
    assert noise.number == 2
    assert len([one for one in (tmp_path / "releases").iterdir() if one.is_dir()]) == 2


def test_two_analyses_at_once_draw_once(tmp_path):
    drawn, both_wait = [], threading.Barrier(2)

    def slow_noise(sigma):
        time.sleep(0.3)  # long enough for the other one to look for a draw, were it let
        drawn.append(sigma)
        return len(drawn)

    def draw():
        both_wait.wait()
        return release(votes_of(), request_of(), GivenNoise(slow_noise), folder=tmp_path)

    with ThreadPoolExecutor(2) as pool:
        first, second = [pool.submit(draw) for _ in range(2)]
    assert first.result() == second.result()
    assert len(drawn) == 1


def test_the_gate_and_its_epsilon_share_a_draw(tmp_path):
    noise = Draws()
    both = release(votes_of(), request_of("gate", "sanitised"), noise, folder=tmp_path)
    gate = release(votes_of(), request_of("gate"), noise, folder=tmp_path)
    assert (noise.number, gate.sanitised, gate.gate) == (1, None, both.gate)


@pytest.mark.parametrize("is_deleted", [False, True])
def test_the_same_votes_are_not_drawn_from_afresh(tmp_path, is_deleted):
    """In another folder, or once their ledger was deleted: somebody saw the first draw."""
    noise, there, votes = Draws(), tmp_path / "there", votes_of(source=FILE)
    release(votes, request_of(), noise, folder=there)
    if is_deleted:
        shutil.rmtree(there)
    place = there if is_deleted else tmp_path / "here"
    for request in (request_of(), request_of("gate"), request_of("gate", attempts=5)):
        with pytest.raises(ValueError, match="expected no draw from these votes elsewhere"):
            release(votes, request, noise, folder=place)
    assert noise.number == 1
    found = release(votes, request_of(), noise, folder=place, discard_earlier=True)
    assert (found.num_discarded, found.sanitised.confidence) == (1, pytest.approx(0.98))
    with pytest.raises(ValueError, match="elsewhere"):
        third = tmp_path / "third"
        release(votes, request_of("gate"), noise, folder=third, discard_earlier=True)


def test_a_gate_is_tried_as_often_as_was_stated(tmp_path):
    noise, votes, gate = Draws(), votes_of(source=FILE), request_of("gate", attempts=3)
    for number in range(3):
        release(votes, gate, noise, folder=tmp_path / str(number))
    with pytest.raises(ValueError, match="elsewhere, got 3"):
        release(votes, gate, noise, folder=tmp_path / "fourth")
    assert noise.number == 3


def test_a_damaged_draw_is_refused_not_replaced(tmp_path):
    noise = Draws()
    release(votes_of(), request_of(), noise, folder=tmp_path)
    (file,) = (tmp_path / "releases").glob("*/ledger.sqlite3")
    file.write_bytes(file.read_bytes()[:50] + bytes(40) + file.read_bytes()[90:])
    with pytest.raises(LedgerError):
        release(votes_of(), request_of(), noise, folder=tmp_path, discard_earlier=True)
    assert noise.number == 1


def test_adaptive_queries_draw_nothing(tmp_path):
    noise = Draws()
    with pytest.raises(ValueError, match="adaptive"):
        release(votes_of(), request_of(adaptive=True), noise, folder=tmp_path)
    assert noise.number == 0


def test_the_plan_reads_no_vote():
    facts = {"num_queries": 20, "num_teachers": 250, "num_classes": 10}
    plan = request_of("gate").plan(LAPLACE, **facts)
    assert plan == request_of("gate").plan(LAPLACE, **facts)
    assert plan.failure == DELTA / 2
    planned = PlannedRelease(moment=7.0, sigma=3.0)
    changed = request_of("gate", planned=planned, budget=2.0).plan(LAPLACE, **facts)
    assert (changed.moment, changed.sigma, changed.budget) == (7.0, 3.0, 2.0)
    assert changed.smoothness == plan.smoothness
