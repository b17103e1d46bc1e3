import dataclasses
import itertools
from math import ceil, exp, log

import mpmath as mp
import numpy as np
import pytest
import reference_release as twin
from analysis_helpers import GOLDEN
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom
from vote_tables import (
    H1,
    JOINT,
    MIX,
    UNIVERSES,
    ContinuousLaplace,
    golden,
    joint_universe,
    universe,
)

from pate_tf.accounting.charge import (
    CostRelease,
    PlannedRelease,
    gaussian_smooth_sensitivity_rdp,
    profile_counts,
    steps_above,
)
from pate_tf.accounting.composition import total_alphas
from pate_tf.accounting.conversions import DEFAULT_MOMENTS
from pate_tf.accounting.mechanisms import (
    ConfidentGaussianNoisyMax,
    GaussianNoisyMax,
    LaplaceNoisyMax,
)
from pate_tf.accounting.moments import data_dependent_alphas
from pate_tf.analysis.sanitised_epsilon import (
    SanitisedEpsilon,
    log_cost_epsilon,
    plan_release,
    prepare_draw,
)
from pate_tf.analysis.smooth_sensitivity import log_smooth_cost, smooth_sensitivity

FALSE_ALARM = 1e-7
FLOOR = 1e-12


def plan_by_hand(**changes):
    fields = {
        "release": "log_cost",
        "bound": "class_aware",
        "moment": 8.0,
        "smoothness": 0.2,
        "sigma": 3.0,
        "failure": 0.05,
        "num_queries": 2,
    }
    return CostRelease(**(fields | changes))


def planned_log_cost(counts, mechanism, plan):
    choices = {"bound": plan.bound, "moment": plan.moment, "eta": plan.smoothness}
    return log_smooth_cost(counts, mechanism, floor=plan.cost_floor, **choices)


def drawn_steps(counts, mechanism, plan, noise):
    return prepare_draw(counts, mechanism, plan, 1e-5)(noise)["steps"]


def released_epsilon(counts, mechanism, plan, noise, delta=1e-5):
    drawn = prepare_draw(counts, mechanism, plan, delta)(noise)
    if plan.release == "smooth_sensitivity":
        return SanitisedEpsilon(delta=delta, **drawn)
    return log_cost_epsilon(drawn["steps"], mechanism, plan, delta)


def no_noise(_sigma):
    return 0


class SeededNoise:
    """Discrete Gaussian draws by inversion, for tests only."""

    def __init__(self, seed):
        self._uniform = np.random.default_rng(seed).random

    def __call__(self, sigma):
        if sigma > 1e6:
            # A lattice this fine is indistinguishable from its continuous limit.
            from scipy.special import ndtri

            return round(float(ndtri(self._uniform())) * sigma)
        support, weights = gaussian_weights(sigma)
        return int(support[np.searchsorted(np.cumsum(weights), self._uniform())])


def gaussian_weights(sigma):
    """Returns the effective support of the discrete Gaussian, and probabilities."""
    reach = ceil(12 * sigma) + 1
    support = np.arange(-reach, reach + 1)
    weights = np.exp(-0.5 * (support / sigma) ** 2)
    return support, weights / weights.sum()


# ---- the smooth cost -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "counts", "bound", "moment", "eta"),
    [
        ("Cbar(mix; class-aware,l=20,eta=.06)", MIX, "class_aware", 20, 0.06),
        ("Cbar(100xH1; paper,l=32,eta=.06)", [H1] * 100, "paper", 32, 0.06),
        ("Cbar(100xH1; class-aware,l=40,eta=.08)", [H1] * 100, "class_aware", 40, 0.08),
    ],
)
def test_golden_smooth_cost(name, counts, bound, moment, eta):
    value = log_smooth_cost(
        np.array(counts),
        ContinuousLaplace(gamma=0.05),
        bound=bound,
        moment=moment,
        eta=eta,
        floor=1e-7,
    )
    assert exp(value) == golden(name)


def test_golden_epsilon_by_the_formula_of_the_page():
    name = "B2 eps: (Cbar e^{eta sigma b})/l + (l+1)/(2 sigma^2) + ln(1/delta)/l, sigma=13, same"
    plan = plan_by_hand(moment=40.0, smoothness=0.08, sigma=13.0, failure=0.01, num_queries=100)
    page = float(GOLDEN["values"][name])
    cost = exp(planned_log_cost(np.array([H1] * 100), ContinuousLaplace(gamma=0.05), plan))
    b = float(GOLDEN["values"]["b = Phi^-1(0.99)"])
    alpha = cost * exp(0.08 * 13 * b) + plan.alphas(plan.moment)
    assert (alpha + log(1e5)) / plan.moment == pytest.approx(page, rel=1e-12)
    # Whole steps cost at most two steps more; the improved conversion costs less.
    released = released_epsilon(np.array([H1] * 100), ContinuousLaplace(gamma=0.05), plan, no_noise)
    steps = (alpha - plan.alphas(plan.moment)) * exp(2 * plan.step)
    improved = log(40 / 41) - log(41) / 40
    assert released.epsilon <= (
        (steps + plan.alphas(40.0) + log(1e5)) / plan.moment + improved + 1e-6
    )
    assert released.epsilon >= page + improved - (exp(0.16) - 1) * alpha / 40


MECHANISM_BOUNDS = [
    (LaplaceNoisyMax(gamma=0.9), "class_aware"),
    (LaplaceNoisyMax(gamma=0.3), "two_sided"),
    (LaplaceNoisyMax(gamma=0.9), "paper"),
    (LaplaceNoisyMax(gamma=0.7), "tight"),
    (GaussianNoisyMax(sigma=1.5), "two_sided"),
    (GaussianNoisyMax(sigma=1.5), "paper"),
    (GaussianNoisyMax(sigma=0.87277), "two_sided"),
]


def log_costs(tables, mechanism, bound, moment, eta, floor=FLOOR):
    """Computes one member of each class of tables that differ only in order."""
    canonical = [tuple(sorted(tuple(sorted(row)) for row in table)) for table in tables.tolist()]
    values = {
        table: log_smooth_cost(
            np.array(table), mechanism, bound=bound, moment=moment, eta=eta, floor=floor
        )
        for table in set(canonical)
    }
    return np.array([values[table] for table in canonical])


def tables_of(size):
    if len(size) == 3:
        return joint_universe(*size)
    counts, distances = universe(*size)
    return counts[:, None], distances


@pytest.mark.parametrize(
    "size",
    [*UNIVERSES, JOINT[-1], *(pytest.param(one, marks=pytest.mark.long) for one in JOINT[:-1])],
    ids=str,
)
@pytest.mark.parametrize(("mechanism", "bound"), MECHANISM_BOUNDS)
def test_log_cost_is_smooth_and_never_below_the_cost(mechanism, bound, size):
    tables, distances = tables_of(size)
    for moment, eta in ((0.5, 0.1), (2.0, 0.6), (8.0, 1.1)):
        logs = log_costs(tables, mechanism, bound, moment, eta)
        changes = np.abs(logs[:, None] - logs[None])[distances == 1]
        assert changes.max() <= eta * (1 + 1e-9)
        plan = plan_by_hand(smoothness=eta, num_queries=tables.shape[1])
        whole = np.ceil((logs + 1e-9) / plan.step)
        assert np.abs(whole[:, None] - whole[None])[distances == 1].max() <= 1
        for table, value in zip(tables[::7], logs[::7], strict=True):
            cost = data_dependent_alphas(table, mechanism, np.array([moment]), bound=bound)[0]
            assert exp(value) * (1 + 1e-9) >= cost * (1 - 1e-12)


@pytest.mark.parametrize(("mechanism", "bound"), MECHANISM_BOUNDS[::6])
def test_computing_in_pieces_changes_nothing(monkeypatch, mechanism, bound):
    tables = [np.array([[40, 8, 2]] * 50), np.array([[26, 24, 0], [50, 0, 0]] * 500)]

    def costs():
        return [
            log_smooth_cost(
                counts, mechanism, bound=bound, moment=moment, eta=eta, floor=FLOOR * len(counts)
            )
            for counts in tables
            for moment in (0.5, 8.0)
            for eta in (0.02, 0.2, 1.0)
        ]

    whole = costs()
    monkeypatch.setattr("pate_tf.analysis.smooth_sensitivity.CHUNK_ENTRIES", 1)
    assert costs() == whole


def test_the_smoothness_test_has_teeth():
    """Without smoothing, the same check finds neighbors that are too far apart. With smoothing, eta
    is reached.
    """
    tables, distances = tables_of((10, 2))
    largest = {}
    for eta in (0.2, 50.0):
        logs = log_costs(tables, LaplaceNoisyMax(gamma=0.9), "class_aware", 0.5, eta)
        largest[eta] = np.abs(logs[:, None] - logs[None])[distances == 1].max()
    assert 0.999 * 0.2 < largest[0.2] <= 0.2 * (1 + 1e-9)
    assert largest[50.0] > 5 * 0.2


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(
        st.sampled_from([(20, 3, 2), (24, 1, 0), (11, 9, 5), (18, 7, 0)]), min_size=1, max_size=3
    ),
    gamma=st.sampled_from([0.05, 0.3, 1.0]),
    moment=st.sampled_from([0.5, 6.0, 30.0]),
    bound=st.sampled_from(["two_sided", "class_aware"]),
    eta=st.sampled_from([0.03, 0.4]),
)
def test_log_cost_matches_its_twin(rows, gamma, moment, bound, eta):
    value = log_smooth_cost(
        np.array(rows),
        LaplaceNoisyMax(gamma=gamma),
        bound=bound,
        moment=moment,
        eta=eta,
        floor=1e-200,
    )
    tail = twin.discrete_laplace_tail(gamma)

    def cost_at(row, moved):
        first, *others = sorted(row, reverse=True)
        q = twin.ball_maximum(row, moved, tail)
        near = first - others[0] - 2 * moved
        return twin.mp_cost(bound, gamma, q, tail(near) if near >= 0 else 1, moment)

    with mp.workdps(twin.DIGITS):
        expected, _ = twin.log_smooth_cost(tuple(rows), eta, cost_at)
        assert value == pytest.approx(float(mp.log(expected)), abs=1e-9)


@settings(max_examples=30, deadline=None)
@given(
    row=st.sampled_from([(60, 3, 2), (64, 1, 0), (31, 29, 5), (45, 20, 0)]),
    sigma=st.sampled_from([2.0, 8.0, 20.0]),
    moment=st.sampled_from([0.5, 3.0, 12.0]),
)
def test_gaussian_log_cost_matches_its_twin(row, sigma, moment):
    value = log_smooth_cost(
        np.array([row]),
        GaussianNoisyMax(sigma=sigma),
        bound="two_sided",
        moment=moment,
        eta=0.1,
        floor=1e-200,
    )
    tail = twin.gaussian_tail(sigma)

    def cost_at(counts, moved):
        return twin.gaussian_forward_cost(twin.ball_maximum(counts, moved + 1, tail), moment, sigma)

    with mp.workdps(twin.DIGITS):
        expected, _ = twin.log_smooth_cost((row,), 0.1, cost_at)
        # The library lowers every gap by two lattice steps, so its result is slightly larger.
        assert value == pytest.approx(float(mp.log(expected)), abs=1e-3)
        assert value >= float(mp.log(expected)) - 1e-12


# ---- B2 --------------------------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [0.3, 1.0, 4.2, 60.0])
@pytest.mark.parametrize("failure", [0.3, 0.01, 5e-6])
def test_steps_above_is_the_least_safe_number(sigma, failure):
    steps = steps_above(sigma, failure)
    with mp.workdps(30):
        weights = [mp.exp(-(mp.mpf(k) ** 2) / (2 * mp.mpf(sigma) ** 2)) for k in range(2000)]
        total = weights[0] + 2 * mp.fsum(weights[1:])
        assert mp.fsum(weights[steps + 1 :]) / total <= failure
        assert steps == 0 or mp.fsum(weights[steps:]) / total > failure


@pytest.mark.parametrize("count", range(26, 51))
def test_steps_are_rounded_up(count):
    counts, mechanism = np.array([[count, 50 - count]] * 2), LaplaceNoisyMax(gamma=0.2)
    plan = plan_by_hand()
    exact = planned_log_cost(counts, mechanism, plan)
    steps = drawn_steps(counts, mechanism, plan, no_noise)
    assert exact <= plan.step * steps <= exact + plan.step * (1 + 1e-6)
    more = drawn_steps(counts, mechanism, plan, lambda scale: 3)
    assert more == steps + 3


@pytest.mark.parametrize("steps", [-60, -7, 0, 4])
def test_a_cost_that_may_have_been_rounded_down_counts_as_the_next_step(monkeypatch, steps):
    plan = plan_by_hand()
    computed = steps * plan.step
    monkeypatch.setattr(
        "pate_tf.analysis.smooth_sensitivity.log_smooth_cost", lambda *_, **__: computed
    )
    released = drawn_steps(np.array([[3, 1], [3, 1]]), LaplaceNoisyMax(gamma=0.2), plan, no_noise)
    assert computed + 1e-10 <= plan.step * released <= computed + 1.001 * plan.step


def test_confidence_of_the_released_epsilon():
    """Counts failures and compares them with their exact probability, in both directions."""
    counts = np.array([[40, 8, 2], [30, 12, 8]])
    mechanism = LaplaceNoisyMax(gamma=0.1)
    plan = plan_by_hand(failure=0.1, sigma=4.0, smoothness=0.05)
    cost = data_dependent_alphas(counts, mechanism, np.array([plan.moment]), bound=plan.bound)[0]
    log_cost = planned_log_cost(counts, mechanism, plan)
    support, weights = gaussian_weights(plan.sigma)
    whole = ceil((log_cost + 1e-9) / plan.step)
    upper = plan.step * (whole + support + steps_above(plan.sigma, plan.failure))
    below_smooth = weights[upper < log_cost].sum()
    assert 0.02 < below_smooth <= plan.failure
    assert weights[upper < log(cost)].sum() <= below_smooth

    noise = SeededNoise(11)
    draws = 600
    draw = prepare_draw(counts, mechanism, plan, 1e-5)
    steps = [draw(noise)["steps"] for _ in range(draws)]
    upper = plan.step * (np.array(steps) + steps_above(plan.sigma, plan.failure))
    failures = int((upper < log_cost).sum())
    low, high = binom.ppf([FALSE_ALARM, 1 - FALSE_ALARM], draws, below_smooth)
    assert low <= failures <= high
    # The test would notice noise of twice the scale, or an upper bound without its steps.
    support, twice = gaussian_weights(2 * plan.sigma)
    upper = plan.step * (whole + support + steps_above(plan.sigma, plan.failure))
    assert high < draws * twice[upper < log_cost].sum()
    assert high < draws * twice[plan.step * (whole + support) < log_cost].sum()


def test_released_epsilon_covers_the_labels_and_itself():
    counts, mechanism = np.array([[80, 8, 2], [72, 12, 6]] * 50), LaplaceNoisyMax(gamma=0.2)
    plan = plan_by_hand(num_queries=100)
    moment = plan.moment
    steps = drawn_steps(counts, mechanism, plan, lambda sigma: -2 if sigma == 3.0 else 99)
    alpha = exp(plan.step * (steps + steps_above(3.0, 0.05)))
    alpha += moment * (moment + 1) / (2 * 3.0**2)
    expected = (alpha + log(1e5) - log(moment + 1)) / moment + log(moment / (moment + 1))
    released = log_cost_epsilon(steps, mechanism, plan, 1e-5)
    assert released.epsilon == pytest.approx(expected, rel=1e-8)
    assert released.epsilon >= expected
    assert (released.delta, released.confidence) == (1e-5, 0.95)
    again = released_epsilon(counts, mechanism, plan, lambda sigma: np.int64(-2))
    assert again == released


def test_released_epsilon_is_never_above_the_worst_case_of_both():
    plan = plan_by_hand(moment=100.0, num_queries=1)
    mechanism = LaplaceNoisyMax(gamma=0.1)
    released = log_cost_epsilon(10**6, mechanism, plan, 1e-5)
    alone, _ = mechanism.data_independent_epsilon(num_queries=1, delta=1e-5)
    assert alone < released.epsilon < plan.alphas(100.0) / 100.0
    worst = total_alphas({mechanism: 1}, DEFAULT_MOMENTS)
    worst = worst + DEFAULT_MOMENTS * (DEFAULT_MOMENTS + 1) / (2 * plan.sigma**2)
    improved = (
        worst / DEFAULT_MOMENTS
        + np.log(DEFAULT_MOMENTS / (DEFAULT_MOMENTS + 1))
        + (log(1e5) - np.log(DEFAULT_MOMENTS + 1)) / DEFAULT_MOMENTS
    )
    assert released.epsilon == pytest.approx(improved.min(), rel=1e-8)


@pytest.mark.parametrize(
    "counts", [[[9, 0, 0]], [[3, 3, 3]], [[9]], [[1, 0]], [[0, 0]], [[10**6, 0]], [[5] * 200]]
)
@pytest.mark.parametrize("gamma", [1e-6, 0.1, 1e3])
def test_edges_stay_finite_and_positive(counts, gamma):
    plan = plan_by_hand(num_queries=1)
    released = released_epsilon(np.array(counts), LaplaceNoisyMax(gamma=gamma), plan, no_noise)
    assert 0.0 < released.epsilon < np.inf


def test_noise_of_any_size_gives_a_finite_epsilon_that_grows_with_it():
    counts, plan = np.array([[200, 40, 10]] * 100), plan_by_hand(num_queries=100)
    epsilons = []
    for drawn in (-(10**30), -4, 0, 4, 10**30):
        released = released_epsilon(counts, LaplaceNoisyMax(gamma=0.1), plan, lambda _, k=drawn: k)
        epsilons.append(released.epsilon)
    assert 0.0 < epsilons[0] < epsilons[1] < epsilons[2] < epsilons[3] <= epsilons[4] < 50.0


# ---- B1 --------------------------------------------------------------------------------------


def smooth_plan(**changes):
    return plan_by_hand(
        **(
            {
                "release": "smooth_sensitivity",
                "bound": "two_sided",
                "smoothness": 0.03,
                "sigma": 5.0,
            }
            | changes
        )
    )


def test_smooth_release_is_that_of_theorem_b1():
    counts, mechanism, plan = (
        np.array([[240, 8, 2], [230, 12, 8]]),
        LaplaceNoisyMax(gamma=0.1),
        smooth_plan(),
    )
    moment, b = plan.moment, 1.6448536269514722
    draws = {2.0**30: 3 * 2**28, 2.0**28: 5}
    released = released_epsilon(counts, mechanism, plan, lambda sigma: draws[sigma])
    cost = data_dependent_alphas(counts, mechanism, np.array([moment]), bound="two_sided")[0]
    cap = total_alphas({mechanism: 2}, np.array([moment]))[0]
    sensitivity = smooth_sensitivity(counts, mechanism, moment=moment, beta=0.03, bound="two_sided")
    divergence = (cost + 5.0 * (sensitivity + 1e-6 * cap) * (0.75 + b)) / moment
    assert divergence < cap / moment
    own = gaussian_smooth_sensitivity_rdp(moment + 1, beta=0.03, sigma=5.0, b=b)
    expected = divergence + own + (log(1e5) - log(moment + 1)) / moment + log(moment / (moment + 1))
    assert expected <= released.epsilon <= expected * (1 + 1e-7) + 2.0**-14
    assert released.confidence == 0.95


def test_smooth_release_is_too_low_as_often_as_it_says():
    counts, mechanism = np.array([[240, 8, 2]] * 100), LaplaceNoisyMax(gamma=0.1)
    plan = smooth_plan(failure=0.2, num_queries=100, sigma=8.0)
    noise, draws = SeededNoise(4), 500

    draw = prepare_draw(counts, mechanism, plan, 1e-5)

    # Minus b standard deviations: the result of the true cost.
    at_cost = draw(lambda sigma: round(-0.8416212335729143 * sigma) if sigma > 2**29 else 0)
    low = sum(draw(noise)["epsilon"] < at_cost["epsilon"] for _ in range(draws))
    least, most = binom.ppf([FALSE_ALARM, 1 - FALSE_ALARM], draws, 0.2)
    assert least <= low <= most


# ---- plans -----------------------------------------------------------------------------------


PUBLIC = {"num_queries": 100, "num_teachers": 250, "num_classes": 10, "delta": 1e-5}


@pytest.mark.parametrize("release", ["log_cost", "smooth_sensitivity"])
def test_planned_numbers_beat_their_neighbours_on_the_profile(release):
    mechanism = LaplaceNoisyMax(gamma=0.05)
    plan = plan_release(mechanism, PlannedRelease(release=release), **PUBLIC)
    counts = np.repeat(profile_counts(250, 10, 0.8), 100, axis=0)

    def epsilon(candidate):
        return released_epsilon(counts, mechanism, candidate, no_noise).epsilon

    best = epsilon(plan)
    worst, _ = mechanism.data_independent_epsilon(num_queries=100, delta=1e-5)
    assert best < worst
    for name, factor in itertools.product(("moment", "smoothness", "sigma"), (0.6, 1.6)):
        changed = dataclasses.replace(plan, **{name: getattr(plan, name) * factor})
        assert epsilon(changed) > best * 0.994


def test_plan_matches_the_golden_value():
    """`log_cost` with `class_aware` on H1 at the median, classic conversion: 0.488."""
    plan = plan_release(LaplaceNoisyMax(gamma=0.05), **PUBLIC)
    released = released_epsilon(np.array([H1] * 100), LaplaceNoisyMax(gamma=0.05), plan, no_noise)
    assert released.epsilon < 0.488


def test_gaussian_noise_has_a_plan_too():
    mechanism, public = GaussianNoisyMax(sigma=40.0), {**PUBLIC, "num_queries": 1000}
    plan = plan_release(mechanism, **public)
    assert plan.bound == "two_sided"
    released = released_epsilon(np.array([H1] * 1000), mechanism, plan, no_noise)
    assert released.epsilon < mechanism.data_independent_epsilon(num_queries=1000, delta=1e-5)[0]


@pytest.mark.parametrize(
    "public",
    [
        {"num_queries": 1, "num_teachers": 1, "num_classes": 2},
        {"num_queries": 3, "num_teachers": 5, "num_classes": 1},
        {"num_queries": 10**6, "num_teachers": 20_000, "num_classes": 100},
    ],
)
@pytest.mark.parametrize(
    "mechanism",
    [LaplaceNoisyMax(gamma=1e3), LaplaceNoisyMax(gamma=1e-5), GaussianNoisyMax(sigma=0.1)],
)
def test_extreme_questions_get_a_plan(mechanism, public):
    plan = plan_release(mechanism, delta=1e-5, **public)
    assert plan.num_queries == public["num_queries"]


def test_a_plan_takes_what_was_fixed_and_describes_its_profile():
    planned = PlannedRelease(profile=0.6, moment=7.0, sigma=3.0, confidence=0.9)
    public = {"num_queries": 7, "num_teachers": 50, "num_classes": 4, "delta": 1e-5}
    plan = plan_release(LaplaceNoisyMax(gamma=0.1), planned, **public)
    assert plan.profile == "7 queries of 50 teachers and 4 classes, all led by 0.6 of the teachers"
    assert (plan.moment, plan.sigma, plan.failure) == (7.0, 3.0, pytest.approx(0.1))


@pytest.mark.parametrize(
    "changes",
    [
        {"release": "by mail"},
        {"bound": "exact"},
        {"moment": 0.0},
        {"smoothness": np.inf},
        {"sigma": 0.0},
        {"failure": 0.5},
        {"num_queries": 0},
    ],
)
def test_plans_refuse_what_is_out_of_range(changes):
    with pytest.raises(ValueError, match="must be"):
        plan_by_hand(**changes)


# ---- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mechanism", "changes"),
    [
        (
            ConfidentGaussianNoisyMax(threshold=5.0, sigma_threshold=3.0, sigma=4.0),
            {"bound": "two_sided"},
        ),
        (GaussianNoisyMax(sigma=4.0), {}),
        (LaplaceNoisyMax(gamma=0.1), {"num_queries": 3}),
        (LaplaceNoisyMax(gamma=0.1), {"release": "smooth_sensitivity"}),
        (GaussianNoisyMax(sigma=4.0), {"release": "smooth_sensitivity", "bound": "two_sided"}),
    ],
)
def test_releases_that_do_not_fit_are_refused_without_telling_counts(mechanism, changes):
    with pytest.raises(ValueError, match=r"plan|bound|release|every query") as error:
        released_epsilon(
            np.array([[7777, 1], [7776, 2]]), mechanism, plan_by_hand(**changes), no_noise
        )
    assert "777" not in str(error.value)


def test_abstaining_teachers_are_refused():
    with pytest.raises(ValueError, match="every teacher must vote"):
        released_epsilon(
            np.array([[3, 1], [3, 0]]), LaplaceNoisyMax(gamma=0.1), plan_by_hand(), no_noise
        )
