"""The scoreboard compares fairly: its baselines are correct, it resumes, and its pages are its
results.
"""

import json
import math
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from script_processes import REPOSITORY, run_script

from benchmarks.board import dp_sgd, methods, page
from benchmarks.board.methods import OURS, Setting, grid, trained_heads
from benchmarks.board.problems import DATA_SETS, DELTA, Problem
from pate_tf.accounting.composition import smallest_epsilon
from pate_tf.accounting.noisy_training import NoisyTraining

DOCS = REPOSITORY / "docs"


def loop(model, inputs, labels, clip):
    """Returns gradients of one example after another."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    total = [np.zeros(variable.shape) for variable in model.trainable_variables]
    lengths = []
    for one, label in zip(inputs, labels, strict=True):
        with tf.GradientTape() as tape:
            value = loss(label[np.newaxis], model(one[np.newaxis]))
        actual = [part.numpy() for part in tape.gradient(value, model.trainable_variables)]
        length = np.sqrt(sum((part**2).sum() for part in actual))
        lengths.append(length)
        for place, part in enumerate(actual):
            total[place] += part * min(1.0, clip / length)
    return total, np.array(lengths)


@pytest.mark.parametrize("shape", [(5,), (28, 28, 1)])
def test_clipped_sums_are_those_of_a_loop(shape):
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(7, *shape)).astype(np.float32)
    labels = np.arange(7, dtype=np.int64) % 3
    keras.utils.set_random_seed(0)
    model = dp_sgd.network(shape, 3).model
    _, lengths = loop(model, inputs, labels, 1.0)
    clip = float(np.median(lengths))  # some are clipped, some are not
    expected, _ = loop(model, inputs, labels, clip)
    clipped = dp_sgd.clipped_sum(model, tf.constant(inputs), tf.constant(labels), clip)
    for one, other in zip(clipped, expected, strict=True):
        np.testing.assert_allclose(one.numpy(), other, rtol=2e-4, atol=2e-5)


def test_networks_learn_and_their_noise_has_the_deviation_that_is_charged():
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 3, 300)
    inputs = (np.eye(3)[labels] + 0.1 * generator.random((300, 3))).astype(np.float32)
    network = dp_sgd.network((3,), 3)
    start = network.initial_weights(0)

    def trained(**settings):
        return dp_sgd.fit(network, inputs, labels, start=start, rate=0.5, seed=0, **settings)

    weights = trained(batch=100, steps=100, sigma=0.1)
    assert (network.logits(weights, inputs).argmax(axis=1) == labels).mean() > 0.95
    weights = trained(batch=100, steps=1, sigma=1e5)  # one step of only noise, on 451 numbers
    moved = np.concatenate([(new - old).ravel() for new, old in zip(weights, start, strict=True)])
    with_nesterov = 0.5 * (1.0 + dp_sgd.MOMENTUM)
    assert moved.std() == pytest.approx(with_nesterov * 1e5 / 100, rel=0.2)


def charged(noise: float, rate: float, steps: int) -> float:
    """Returns the epsilon of noisy training under replacement, by the library's accounting."""
    training = NoisyTraining(sampling_rate=rate, noise_multiplier=noise, rounds=steps)
    return smallest_epsilon({training: 1}, DELTA)[0]


@pytest.mark.parametrize("rate", [0.1, 1.0])
def test_noise_keeps_to_epsilon_against_replacement(rate):
    sigma = dp_sgd.noise_multiplier(1.0, DELTA, rate, 20)
    assert charged(sigma, rate, 20) <= 1.0 < charged(0.98 * sigma, rate, 20)


@pytest.mark.parametrize("steps", [1, 9])
def test_a_heads_noise_pays_for_all_of_its_steps(steps):
    # Features of length 0 have no gradient, so only noise moves the weights.
    heads = trained_heads(
        np.zeros((50, 4_000), np.float32),
        np.zeros(50, np.int64),
        start=np.zeros((4_000, 5), np.float32),
        rates=(2.0, 1.0),
        steps=steps,
        sigma=dp_sgd.noise_multiplier(0.7, DELTA, 1.0, steps),
        seed=0,
    )
    np.testing.assert_allclose(heads[0], 2.0 * heads[1], rtol=1e-4, atol=1e-6)
    velocity, weights, mean = np.zeros(steps), np.zeros(steps), np.zeros(steps)
    for step in range(steps):  # the effect of each step's noise on the result
        velocity = 0.9 * velocity + np.eye(steps)[step]
        weights = weights - 2.0 * velocity
        if step >= steps // 2:
            mean += weights / (steps - steps // 2)
    each = heads[0].std() * 50 / np.linalg.norm(mean)  # in clipping lengths
    # 20,000 numbers: five standard deviations are 2.5 %.
    assert charged(each, 1.0, steps) == pytest.approx(0.7, rel=0.03)


def test_the_epsilon_of_dp_ebm_is_converted_in_both_directions():
    for records, bins, part in ((1, 0.1, 1.0), (2, 0.3, 0.5)):
        passed = methods.epsilon_of_ebm(1.0, bins, records, part)
        # Replacement changes two counts by 1, and the sum of a leaf by twice one record's range.
        grows = {bins: records**0.5, 1.0 - bins: records}
        moved = [part * grows[x] * methods._gaussian_mu(x * passed, DELTA / 2) for x in grows]
        # A Gaussian mechanism with noise 1; ours has twice the clipping length.
        assert charged(2.0 / math.hypot(*moved), 1.0, 1) == pytest.approx(1.0, rel=1e-3)


def test_settings_are_chosen_on_left_out_records():
    labels = np.arange(90) % 2
    problem = Problem(name="digits", has_pool=False)
    seen = []

    def scores(settings, rows, left_out, seed):
        assert not set(rows) & set(left_out)
        seen.extend(left_out)
        right = np.eye(2)[labels[left_out]]
        for setting in settings:
            yield right if setting == Setting(rate=2.0, steps=7) else 1.0 - right

    best = methods.chosen(problem, grid(rate=(1.0, 2.0, 3.0), steps=(5, 7)), scores, labels)
    assert (best.rate, best.steps) == (2.0, 7) and set(seen) == set(range(90))
    some = grid(2, rate=(1.0, 2.0, 3.0), steps=(5, 7))
    assert len(set(some)) == 3 and some[0] == Setting(rate=1.0, steps=5)


def test_a_stopped_smoke_run_resumes_and_its_cells_are_published(tmp_path):
    results = tmp_path / "board.jsonl"
    flags = ("--smoke", f"--results={results}", "--methods", OURS, "head", "network", "public")
    ended = run_script("benchmarks/board/__main__.py", *flags, folder=tmp_path)
    assert ended.code == 0, ended.err
    lines = page.read(results)
    measured = [line for line in lines if "skipped" not in line]
    assert len({page.key_of(line) for line in lines}) == len(lines)
    # With and without a pool, two seeds. Public labels need a pool and no second run.
    assert len(measured) == 2 * 2 * 3 + 1
    assert all(line[name] >= 0.0 for line in measured for name in page.MEASURES)
    results.write_text("".join(f"{json.dumps(line)}\n" for line in lines if line["seed"] != 1))
    ended = run_script("benchmarks/board/__main__.py", *flags, folder=tmp_path)
    assert ended.code == 0 and len(ended.out.splitlines()) == 6
    assert {page.key_of(line) for line in page.read(results)} == set(map(page.key_of, lines))


def test_pages_are_what_was_measured(tmp_path):
    docs = tmp_path / "docs"
    for name in page.PAGES:
        (docs / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(DOCS / name, docs / name)
    page.publish(page.read(DOCS / "notes" / "board.jsonl"), docs)
    for name in (*page.PAGES, "notes/board.csv", "notes/board_cells.csv"):
        assert (docs / name).read_text() == (DOCS / name).read_text(), name


def test_a_tie_is_within_one_standard_error_and_lost_cells_are_marked():
    def line(method, seed, accuracy):
        values = dict.fromkeys(page.MEASURES, accuracy)
        key = {"dataset": "digits", "pool": False, "method": method, "epsilon": 1.0, "seed": seed}
        return {**key, **values}

    def outcome(ours, others, at_smaller_epsilon=0.0):
        lines = [line(OURS, seed, value) for seed, value in enumerate(ours)]
        lines += [line("head", seed, value) for seed, value in enumerate(others)]
        lines += [line("network", seed, 0.1) for seed in range(2)]
        lines += [line("ebm_removal", seed, 1.0) for seed in range(2)]  # not ranked
        lines.append({**line("head", 0, at_smaller_epsilon), "epsilon": 0.1})
        board = page.Board.of(lines)
        return board.outcome(("digits", False), 1.0), page.cells(board)

    tie, table = outcome((0.8, 0.9), (0.84, 0.94))
    assert tie == page.TIE and '"**85.0±5.0**, head **89.0±5.0**"' in table
    lost, table = outcome((0.8, 0.81), (0.9, 0.91))
    assert lost == page.BEHIND and '"80.5±0.5, head **90.5±0.5**"' in table
    assert outcome((0.9, 0.9), (0.8, 0.8))[0] == page.AHEAD
    assert outcome((0.9, 0.9), (0.8, 0.8), at_smaller_epsilon=0.95)[0] == page.BEHIND
    kinds = [entry.kind for entry in DATA_SETS.values()]
    assert (kinds.count("table"), kinds.count("text")) == (12, 2)


def test_means_are_over_the_tables_of_both_methods():
    names = [name for name, entry in DATA_SETS.items() if entry.kind == "table"][:6]
    accuracies = {OURS: 0.8, "head": 0.75, "network": 0.7, "majority": 0.5, "ebm": 0.9}
    lines = []
    for name in names:
        for method, accuracy in accuracies.items():
            if (name, method) != (names[0], "network") and (method != "ebm" or name in names[:2]):
                epsilon = 1.0 if methods.METHODS[method].has_epsilon else None
                key = {"dataset": name, "pool": False, "method": method, "epsilon": epsilon}
                lines.append({**key, "seed": 0, **dict.fromkeys(page.MEASURES, accuracy)})
    table = page.differences(page.Board.of(lines))
    assert "| tables, no pool | DP-SGD, linear head | +5.0, +5.0 (6) |" in table
    assert "EBM" not in table  # too few tables
