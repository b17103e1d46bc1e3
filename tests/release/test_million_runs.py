"""A million draws of each mechanism, against its claim; about two minutes each.

What the labeller makes of the draws is audited with fewer in `test_audit.py`. Here both tables of a
pair get the same noise: within a table draws are independent, which is all that a bound needs.
"""

import dataclasses
import functools
import math

import numpy as np
import pytest
from audits import WORST_CASE, audited_distance, audited_epsilon, audited_probability

from pate_tf.accounting.mechanisms import (
    LATTICE,
    ConfidentGaussianNoisyMax,
    ExponentialMechanism,
    GaussianHistogram,
    GaussianNoisyMax,
    InteractiveGaussianNoisyMax,
    LaplaceNoisyMax,
    PermuteAndFlip,
    StabilityGate,
    StabilityGateOrHistogram,
)
from pate_tf.accounting.mechanisms import stability_gate as gate_module
from pate_tf.accounting.mechanisms.stability_gate import stability_distances
from pate_tf.release.noise import SystemNoise

pytestmark = pytest.mark.long

MILLION = 10**6
DELTA = 1e-5
# A student that leans to what few teachers say.
SAID = np.array([0.2, 0.8])


class SameNoise(SystemNoise):
    """Gives the slow draws that it made first again, in the same order, after `again`."""

    def __init__(self):
        self.drawn, self.place = [], None

    def again(self):
        self.place = iter(self.drawn)

    def _once(self, draw, *arguments):
        if self.place is None:
            self.drawn.append(draw(*arguments))
            return self.drawn[-1].copy()
        return next(self.place).copy()

    def laplace_integers(self, scale, size):
        return self._once(super().laplace_integers, scale, size)

    def gaussian_integers(self, scale, size):
        return self._once(super().gaussian_integers, scale, size)


def drawn(mechanism, num_runs=MILLION):
    """Answers for both tables of the worst case."""
    noise = SameNoise()
    for counts in WORST_CASE:
        table = np.tile(counts, (num_runs, 1))
        if mechanism.uses_student_predictions:
            yield mechanism.draw_with(np.tile(SAID, (num_runs, 1)), table, noise)
        else:
            yield mechanism.draw(table, noise)
        noise.again()


def outcomes(answers):
    """How often each label was drawn, and none."""
    labels = np.array([2 if label is None else label for label in answers.labels])
    return np.bincount(labels, minlength=3)


# Of those with a threshold one is audited for its labels and one for its test.
PAIRS = {
    "laplace": (LaplaceNoisyMax(gamma=0.5), LaplaceNoisyMax(gamma=1.0)),
    "permute and flip": (PermuteAndFlip(gamma=0.5), PermuteAndFlip(gamma=1.0)),
    "exponential": (ExponentialMechanism(gamma=0.5), ExponentialMechanism(gamma=1.0)),
    "gaussian": (GaussianNoisyMax(sigma=2.0), GaussianNoisyMax(sigma=1.0)),
    "histogram": (GaussianHistogram(sigma=2.0), GaussianHistogram(sigma=1.0)),
    **{
        f"{name}, {what}": tuple(
            kind(threshold=threshold, sigma_threshold=of_test / less, sigma=of_label / less)
            for less in (1.0, 2.0)
        )
        for name, kind, least in (
            ("confident", ConfidentGaussianNoisyMax, 1.5),
            ("interactive", InteractiveGaussianNoisyMax, 0.5),
        )
        for what, threshold, of_test, of_label in (
            ("label", -50.0, 6.0, 2.0),
            ("test", least, 2.0, 20.0),
        )
    },
}


@pytest.mark.parametrize("name", PAIRS)
def test_labels_tell_no_more_than_is_claimed_and_half_the_noise_is_rejected(name, capsys):
    mechanism, half = PAIRS[name]
    claimed, _ = mechanism.data_independent_epsilon(num_queries=1, delta=DELTA)
    found = audited_epsilon(*map(outcomes, drawn(mechanism)), DELTA)
    of_half = audited_epsilon(*map(outcomes, drawn(half, MILLION // 2)), DELTA)
    with capsys.disabled():
        print(f"\n{name}: epsilon {found:.3f} of {claimed:.3f}, half the noise {of_half:.3f}")
    assert 0.2 * claimed <= found <= claimed < of_half


def test_a_histogram_tells_no_more_than_its_distance_and_half_the_noise_is_rejected(capsys):
    claimed = math.sqrt(2.0) / 2.0

    def found(mechanism, num_runs):
        return audited_distance(*(one.noisy_counts for one in drawn(mechanism, num_runs)))

    right, of_half = (
        found(GaussianHistogram(sigma=2.0), MILLION),
        found(GaussianHistogram(sigma=1.0), 10**5),
    )
    with capsys.disabled():
        print(f"\ngaussian_histogram: {right:.4f} of {claimed:.4f}, half the noise {of_half:.3f}")
    assert 0.95 * claimed <= right <= claimed < of_half


class WordsAhead(SystemNoise):
    """Words of the operating system, fetched by the million."""

    def __init__(self):
        self.block, self.place = super().words(0), 0

    def words(self, size):
        if self.place + size > len(self.block):
            self.block, self.place = super().words(2**20), 0
        self.place += size
        return self.block[self.place - size : self.place]


@pytest.fixture
def remembered(monkeypatch):
    """What the gate computes of votes alone is computed once, not a million times."""
    found = functools.cache(lambda counts, shape: stability_distances(from_bytes(counts, shape)))
    monkeypatch.setattr(
        gate_module, "stability_distances", lambda counts: found(counts.tobytes(), counts.shape)
    )
    kind = gate_module.StabilityGate
    monkeypatch.setattr(kind, "pass_numerator", functools.cache(kind.pass_numerator))
    weights, withheld, distance = kind.selection_weights, kind.withheld_queries, kind.distance
    by_weights = functools.cache(lambda self, given: weights(self, np.array(given)))
    by_place = functools.cache(
        lambda self, given, k, others: withheld(
            self, np.array(given), num_least_stable=k, others=others
        )
    )
    by_set = functools.cache(
        lambda self, given, places: distance(self, np.array(given), np.array(places, np.int64))
    )
    monkeypatch.setattr(
        kind, "selection_weights", lambda self, given: by_weights(self, tuple(given.tolist()))
    )
    monkeypatch.setattr(
        kind,
        "withheld_queries",
        lambda self, given, *, num_least_stable, others: by_place(
            self, tuple(given.tolist()), num_least_stable, tuple(others)
        ),
    )
    monkeypatch.setattr(
        kind,
        "distance",
        lambda self, given, places: by_set(self, tuple(given.tolist()), tuple(places.tolist())),
    )


def from_bytes(counts, shape):
    return np.frombuffer(counts, np.int64).reshape(shape)


def gate_outcomes(gate, leads, num_runs):
    """How often each set of labels left of 20 teachers; by which queries have one, and none."""
    counts = np.array([[10 + lead, 10 - lead] for lead in leads])
    noise, number = WordsAhead(), len(leads)
    place = {tuple(range(number)): 0, (): 1}
    found = np.zeros(len(place), np.int64)
    for _ in range(num_runs):
        labels = gate.draw(counts, noise).labels
        found[place[tuple(one for one in range(number) if labels[one] is not None)]] += 1
    return found


EPSILON, LARGE_DELTA = 0.5, 0.01  # large enough that openings are counted by the hundred
PLAIN = StabilityGate(epsilon=EPSILON, delta=LARGE_DELTA)


class TwiceAsOften(StabilityGate):
    """p(1) = 2 delta."""

    def pass_numerator(self, distance):
        return (2 if distance == 1 else 1) * super().pass_numerator(distance)


def audited_gate(gate, num_runs):
    """Lower bounds on delta, from labels that a neighbour can't have, and on epsilon.

    One teacher makes ties of the first two queries of (1, 1, 8), which never leave.
    """
    *left, _ = gate_outcomes(gate, (1, 1, 8), num_runs)
    pair = [gate_outcomes(gate, (lead, lead + 1, 8), num_runs) for lead in (4, 5)]
    return audited_probability(sum(left), num_runs), audited_epsilon(*pair, LARGE_DELTA)


def test_a_gate_tells_no_more_than_is_claimed_and_worse_ones_are_rejected(remembered, capsys):
    gate, claimed = PLAIN, EPSILON
    delta, epsilon = audited_gate(gate, MILLION)
    twice, _ = audited_gate(TwiceAsOften(**dataclasses.asdict(gate)), 10**5)
    _, of_half = audited_gate(dataclasses.replace(gate, epsilon=2 * gate.epsilon), 10**5)
    with capsys.disabled():
        print(
            f"\nstability_gate: delta {delta:.5f} of {LARGE_DELTA}, "
            f"epsilon {epsilon:.3f} of {claimed:g}; p(1) = 2 delta: {twice:.4f}, half the "
            f"protection: {of_half:.3f}"
        )
    assert 0.9 * LARGE_DELTA <= delta <= LARGE_DELTA < twice
    assert 0.2 * claimed <= epsilon <= claimed < of_half


BOTH = StabilityGateOrHistogram(epsilon=EPSILON, delta=LARGE_DELTA, sigma=5.0, most_queries=1)


class OpensTwiceAsOften(StabilityGateOrHistogram):
    """p(1) = 2 delta."""

    def pass_numerator(self, distance):
        return (2 if distance == 1 else 1) * super().pass_numerator(distance)


class HalfTheNoise(StabilityGateOrHistogram):
    """Counts with half the noise that they are accounted with."""

    def drawn_while_shut(self, counts, noise, noisy_winners):
        histogram = GaussianHistogram(sigma=self.sigma / 2.0)
        return histogram.draw(counts, noise, noisy_winners=noisy_winners)


def both_outcomes(mechanism, lead, num_runs, middle=0.0):
    """How often counts of one query left, low, between or high, and its label without noise."""
    counts, noise = np.array([[10 + lead, 10 - lead]]), WordsAhead()
    edges = middle + np.array([-0.7, 0.7]) * BOTH.sigma / math.sqrt(2.0)
    found = np.zeros(4, np.int64)
    for _ in range(num_runs):
        sums = mechanism.draw(counts, noise).noisy_counts
        found[3 if sums is None else np.digitize((sums[0, 0] - sums[0, 1]) / LATTICE, edges)] += 1
    return found


def audited_both(mechanism, num_runs):
    """Lower bounds on delta, from labels that a neighbour can't have, and on epsilon."""
    unheard = int(both_outcomes(mechanism, 1, num_runs)[3])
    pairs = [
        [both_outcomes(mechanism, one, num_runs, middle=sum(pair)) for one in pair]
        for pair in ((0, 1), (5, 6))
    ]
    epsilon = max(audited_epsilon(*pair, LARGE_DELTA) for pair in pairs)
    return audited_probability(unheard, num_runs), epsilon


def test_labels_or_counts_tell_no_more_than_is_claimed_and_worse_ones_are_rejected(
    monkeypatch, capsys
):
    numerator = functools.cache(StabilityGateOrHistogram.pass_numerator)
    monkeypatch.setattr(StabilityGateOrHistogram, "pass_numerator", numerator)
    fields = dataclasses.asdict(BOTH)
    delta, epsilon = audited_both(BOTH, MILLION // 10)
    twice, _ = audited_both(OpensTwiceAsOften(**fields), 20_000)
    _, of_half = audited_both(HalfTheNoise(**fields), 50_000)
    with capsys.disabled():
        print(
            f"\nstability_gate_or_histogram: delta {delta:.5f} of {BOTH.gate_delta:.5f}, epsilon "
            f"{epsilon:.3f} of {EPSILON:g}; p(1) = 2 delta: {twice:.4f}, half the noise: "
            f"{of_half:.3f}"
        )
    assert 0.7 * BOTH.gate_delta <= delta <= BOTH.gate_delta < twice
    assert 0.2 * EPSILON <= epsilon <= EPSILON < of_half
