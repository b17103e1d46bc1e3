import itertools

import mpmath as mp
import numpy as np
import pytest
import reference_release as twin
from hypothesis import given, settings
from hypothesis import strategies as st
from vote_tables import (
    H1,
    H2,
    JOINT,
    MIX,
    UNIVERSES,
    ContinuousLaplace,
    golden,
    joint_universe,
    universe,
)

from pate_tf.accounting.charge import gaussian_smooth_sensitivity_rdp
from pate_tf.accounting.mechanisms import (
    ConfidentGaussianNoisyMax,
    GaussianNoisyMax,
    LaplaceNoisyMax,
)
from pate_tf.accounting.moments import bound_of
from pate_tf.analysis.smooth_sensitivity import (
    ball_maxima,
    ball_minima,
    local_sensitivities,
    smooth_sensitivity,
    tail_table,
)

HL = [60, 50, 18, 18, 18, 18, 18, 18, 18, 14]


PURE = [LaplaceNoisyMax(gamma=0.9), LaplaceNoisyMax(gamma=0.3)]
NAMES = ["laplace", "laplace_quiet"]
MECHANISM_BOUNDS = [
    pytest.param(mechanism, bound, id=f"{name}-{bound}")
    for mechanism, name in zip(PURE, NAMES, strict=True)
    for bound in ("paper", "tight", "two_sided")
]


@pytest.mark.parametrize(
    ("name", "counts", "gamma", "bound", "moment", "beta", "where"),
    [
        ("SS([60,50,18x7,14]; paper,l=8,beta=.05)", [HL], 0.05, "paper", 8, 0.05, 43),
        ("SS(100 x H1; paper,l=8,beta=.02)", [H1] * 100, 0.05, "paper", 8, 0.02, 99),
        ("SS(100 x H2; paper,l=8,beta=.05)", [H2] * 100, 0.05, "paper", 8, 0.05, 77),
        ("SS(50xH1+30xH2+20xH3; paper,l=8,beta=.02)", MIX, 0.05, "paper", 8, 0.02, 99),
        ("SS(50xH1+30xH2+20xH3; two,l=20,beta=.02)", MIX, 0.05, "two_sided", 20, 0.02, 92),
        ("SS([5,3,2]; paper,l=3,g=.3,beta=.1)", [[5, 3, 2]], 0.3, "paper", 3, 0.1, 3),
    ],
)
def test_golden_smooth_sensitivity(name, counts, gamma, bound, moment, beta, where):
    counts, mechanism = np.array(counts), ContinuousLaplace(gamma=gamma)
    value = smooth_sensitivity(counts, mechanism, moment=moment, beta=beta, bound=bound)
    assert value == golden(name)
    table = local_sensitivities(counts, mechanism, moment=moment, bound=bound)
    assert np.argmax(np.exp(-beta * np.arange(len(table))) * table) == where


@pytest.mark.parametrize(
    ("name", "order", "beta", "sigma", "b"),
    [
        ("GNSS rdp(lam=20,beta=.01,sigma=5)", 20, 0.01, 5, 0.0),
        ("GNSS rdp(lam=9,beta=.05,sigma=1)", 9, 0.05, 1, 0.0),
        ("GNSS rdp(lam=20,beta=.01,sigma=5,b=2)", 20, 0.01, 5, 2.0),
    ],
)
def test_golden_gaussian_rdp(name, order, beta, sigma, b):
    assert gaussian_smooth_sensitivity_rdp(order, beta=beta, sigma=sigma, b=b) == golden(name)


# ---- whole universes -------------------------------------------------------------------------


def errors(counts, tail):
    return np.array([float(twin.union_bound(tuple(row), tail)[0]) for row in counts])


TAILS = {
    "laplace": twin.discrete_laplace_tail(0.9),
    "laplace_quiet": twin.discrete_laplace_tail(0.3),
    "gaussian": twin.gaussian_tail(1.7),
}
BALL_MECHANISMS = dict(zip(NAMES, PURE, strict=True)) | {"gaussian": GaussianNoisyMax(sigma=1.7)}


@pytest.mark.parametrize("size", UNIVERSES)
@pytest.mark.parametrize("name", BALL_MECHANISMS)
def test_ball_ends_are_exact(size, name):
    counts, distances = universe(*size)
    mechanism = BALL_MECHANISMS[name]
    q = errors(counts, TAILS[name])
    descending = -np.sort(-counts, axis=1)
    tail = tail_table("two_sided", mechanism, size[0])
    steps = np.arange(1, size[0] + 1)
    q_max, _ = ball_maxima(descending, steps, tail)
    q_min = list(itertools.islice(ball_minima(descending, tail), len(steps)))
    lead = descending[:, 0] - descending[:, 1]
    for row, d in enumerate(steps):
        inside = distances <= d
        np.testing.assert_allclose(
            q_min[row],
            np.where(inside, q, np.inf).min(axis=1),
            rtol=1e-5 if name == "gaussian" else 1e-12,
        )
        largest = np.where(inside, q, -np.inf).max(axis=1)
        apart = lead >= 2 * d
        np.testing.assert_allclose(
            q_max[row][apart], largest[apart], rtol=1e-5 if name == "gaussian" else 1e-12
        )
        assert (q_max[row][~apart] == 1.0).all()


@pytest.mark.parametrize("size", UNIVERSES)
@pytest.mark.parametrize("moment", [0.5, 3.0, 8.0])
@pytest.mark.parametrize(("mechanism", "bound"), MECHANISM_BOUNDS)
def test_theorem_a_dominates_the_true_smooth_sensitivity(mechanism, bound, size, moment):
    counts, distances = universe(*size)
    tail = tail_table(bound, mechanism, size[0])
    q = ball_maxima(-np.sort(-counts, axis=1), np.zeros(1, np.int64), tail)[0][0]
    costs = bound_of(bound, mechanism).costs(q, q, np.array([moment]))[:, 0]
    jumps = np.abs(costs[:, None] - costs[None])
    local = np.where(distances == 1, jumps, 0.0).max(axis=1)
    num_teachers = size[0]
    within = np.array(
        [np.where(distances <= d, local[None], 0.0).max(axis=1) for d in range(num_teachers)]
    )
    # Sorted histograms share one result. A test below shows that the order of classes does not
    # matter.
    kinds, kind = np.unique(-np.sort(-counts, axis=1), axis=0, return_inverse=True)
    kind = kind.reshape(-1)
    bounds = np.array(
        [local_sensitivities(row[None], mechanism, moment=moment, bound=bound) for row in kinds]
    ).T[:, kind]
    assert (bounds >= within * (1 - 1e-12)).all()
    assert within.max() > 0 or size != (10, 2)
    for beta in (0.02, 0.1, 0.4):
        discount = np.exp(-beta * np.arange(num_teachers))[:, None]
        true = (discount * within).max(axis=0)
        claimed = np.array(
            [
                smooth_sensitivity(row[None], mechanism, moment=moment, beta=beta, bound=bound)
                for row in kinds
            ]
        )[kind]
        assert (claimed >= true * (1 - 1e-12)).all()
        np.testing.assert_allclose(claimed, (discount * bounds).max(axis=0), rtol=1e-15)
        smooth = claimed[:, None] <= np.exp(beta) * (1 + 1e-9) * claimed[None]
        assert smooth[distances == 1].all()


@pytest.mark.parametrize("size", JOINT)
@pytest.mark.parametrize(("mechanism", "bound"), MECHANISM_BOUNDS[1:])
def test_theorem_a_on_joint_vote_tables(mechanism, bound, size):
    counts, distances = joint_universe(*size)
    moment, beta, num_teachers = 3.0, 0.2, size[0]
    tail = tail_table(bound, mechanism, num_teachers)
    rows = -np.sort(-counts.reshape(-1, size[1]), axis=1)
    q = ball_maxima(rows, np.zeros(1, np.int64), tail)[0][0]
    costs = bound_of(bound, mechanism).costs(q, q, np.array([moment]))[:, 0]
    totals = costs.reshape(counts.shape[:2]).sum(axis=1)
    local = np.where(distances == 1, np.abs(totals[:, None] - totals[None]), 0.0).max(axis=1)
    true = np.max(
        [
            np.exp(-beta * d) * np.where(distances <= d, local[None], 0.0).max(axis=1)
            for d in range(num_teachers + 1)
        ],
        axis=0,
    )
    tables = rows.reshape(len(counts), size[2], size[1]).tolist()
    rows = np.array([sorted(table) for table in tables])
    kinds, kind = np.unique(rows, axis=0, return_inverse=True)
    claimed = np.array(
        [
            smooth_sensitivity(table, mechanism, moment=moment, beta=beta, bound=bound)
            for table in kinds
        ]
    )[kind.reshape(-1)]
    assert (claimed >= true * (1 - 1e-12)).all()
    smooth = claimed[:, None] <= np.exp(beta) * (1 + 1e-9) * claimed[None]
    assert smooth[distances == 1].all()


# ---- reference versions ------------------------------------------------------------------------

HISTOGRAMS = st.lists(st.integers(0, 30), min_size=2, max_size=5).filter(lambda c: sum(c) > 1)


@settings(max_examples=60, deadline=None)
@given(
    counts=HISTOGRAMS,
    gamma=st.sampled_from([0.02, 0.1, 0.5, 1.5]),
    moment=st.sampled_from([0.5, 4.0, 20.0]),
    bound=st.sampled_from(["paper", "tight", "two_sided"]),
    data=st.data(),
)
def test_local_sensitivities_match_their_twin(counts, gamma, moment, bound, data):
    tail = twin.continuous_laplace_tail if bound == "paper" else twin.discrete_laplace_tail
    distance = data.draw(st.integers(0, sum(counts) - 1))
    table = local_sensitivities(
        np.array([counts]), LaplaceNoisyMax(gamma=gamma), moment=moment, bound=bound
    )
    with mp.workdps(twin.DIGITS):
        expected = twin.local_sensitivity_bound(
            tuple(counts), distance, bound, moment, gamma, tail(gamma)
        )
        cap = float(twin.mp_cost(bound, gamma, 1, 1, moment))
    # For a difference of two costs, errors are relative to the costs, not to the difference.
    assert table[distance] == pytest.approx(float(expected), rel=1e-9, abs=1e-12 * cap)


@pytest.mark.parametrize("order", [1.5, 9.0])
@pytest.mark.parametrize("b", [0.0, 2.0])
def test_gaussian_rdp_covers_every_allowed_pair(order, b):
    beta, sigma = 0.04, 2.0
    claimed = gaussian_smooth_sensitivity_rdp(order, beta=beta, sigma=sigma, b=b)
    largest = 0.0
    with mp.workdps(25):
        for growth in np.exp(np.linspace(-beta, beta, 5)):
            small = min(1.0, growth)
            for shift in (-small, 0.0, small):
                # U = 1 under the first table, `growth` under the second.
                first, second = sigma * b, shift + sigma * b * growth
                largest = max(
                    largest,
                    float(twin.gaussian_divergence(order, first, sigma, second, sigma * growth)),
                )
    assert largest <= claimed * (1 + 1e-9)
    assert largest >= 0.9 * claimed


# ---- edges -----------------------------------------------------------------------------------


def test_order_of_classes_and_queries_has_no_influence():
    rng = np.random.default_rng(3)
    counts = rng.multinomial(40, [0.7, 0.2, 0.1], size=20)
    arguments = {"moment": 4.0, "beta": 0.05, "bound": "two_sided"}
    value = smooth_sensitivity(counts, LaplaceNoisyMax(gamma=0.1), **arguments)
    shuffled = rng.permutation(rng.permuted(counts, axis=1))
    assert smooth_sensitivity(shuffled, LaplaceNoisyMax(gamma=0.1), **arguments) == pytest.approx(
        value, rel=1e-13
    )


@pytest.mark.parametrize(
    ("mechanism", "bound"),
    [
        (LaplaceNoisyMax(gamma=0.1), "class_aware"),
        (LaplaceNoisyMax(gamma=0.1), "exact"),
        (GaussianNoisyMax(sigma=10.0), "two_sided"),
        (ConfidentGaussianNoisyMax(threshold=5.0, sigma_threshold=3.0, sigma=4.0), "two_sided"),
    ],
)
def test_bounds_without_a_smooth_sensitivity_are_refused(mechanism, bound):
    with pytest.raises(ValueError, match=r"smooth sensitivity needs|has no bound"):
        smooth_sensitivity(np.array([[3, 1]]), mechanism, moment=2.0, beta=0.1, bound=bound)


def test_gaussian_rdp_is_infinite_where_the_theorem_ends():
    assert gaussian_smooth_sensitivity_rdp(11.0, beta=np.log1p(0.1) / 2, sigma=5.0) > 1.0
    assert gaussian_smooth_sensitivity_rdp(12.0, beta=np.log1p(0.1) / 2, sigma=5.0) == np.inf
    assert gaussian_smooth_sensitivity_rdp(2.0, beta=1e9, sigma=5.0) == np.inf


@pytest.mark.parametrize("gamma", [1e-6, 1e3])
@pytest.mark.parametrize("bound", ["paper", "tight", "two_sided"])
@pytest.mark.parametrize("counts", [[1, 0], [1000, 3, 0], [4, 4, 4]])
def test_extreme_noise_stays_finite_and_safe(gamma, bound, counts):
    mechanism = LaplaceNoisyMax(gamma=gamma)
    value = smooth_sensitivity(np.array([counts]), mechanism, moment=2.0, beta=0.1, bound=bound)
    cap = bound_of(bound, mechanism).costs(np.ones(1), np.ones(1), np.array([2.0]))[0, 0]
    assert 0.0 <= value <= cap
