"""What the methods beside us do is right: gradients, accounting, sensitivity."""

import functools
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy.special import logsumexp

from benchmarks.harness import DELTA
from benchmarks.instead import dp_sgd, methods, private_knn
from benchmarks.instead.dp_sgd import check_layers, clipped_sum
from benchmarks.paper.laboratory import costs
from pate_tf.accounting.mechanisms import LaplaceNoisyMax
from pate_tf.accounting.noisy_training import NoisyTraining
from pate_tf.core.dataset import Dataset


def images(side: int) -> Dataset:
    return Dataset(
        name="tiny",
        kind="image",
        input_shape=(side, side, 1),
        value_range=(0.0, 1.0),
        num_classes=3,
        pool_size=5,
    )


def loop(model, inputs, labels, clip):
    """Gradients of one example after the other."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    total = [np.zeros(variable.shape) for variable in model.trainable_variables]
    lengths = []
    for one, label in zip(inputs, labels, strict=True):
        with tf.GradientTape() as tape:
            value = loss(label[np.newaxis], model(one[np.newaxis]))
        found = [part.numpy() for part in tape.gradient(value, model.trainable_variables)]
        length = np.sqrt(sum((part**2).sum() for part in found))
        lengths.append(length)
        for place, part in enumerate(found):
            total[place] += part * min(1.0, clip / length)
    return total, np.array(lengths)


@pytest.mark.parametrize("side", [8, 28])
def test_clipped_sums_are_those_of_a_loop(side):
    generator = np.random.default_rng(0)
    inputs = generator.random((7, side, side, 1)).astype(np.float32)
    labels = np.arange(7, dtype=np.int64) % 3
    model = dp_sgd.network(images(side), seed=1, inputs=inputs)
    _, lengths = loop(model, inputs, labels, 1.0)
    clip = float(np.median(lengths))  # some are clipped, some are not
    expected, _ = loop(model, inputs, labels, clip)
    found = clipped_sum(model, tf.constant(inputs), tf.constant(labels), clip)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.numpy(), other, rtol=2e-4, atol=2e-5)
    for number in range(7):
        alone = clipped_sum(model, inputs[number : number + 1], labels[number : number + 1], clip)
        length = np.sqrt(sum((part.numpy() ** 2).sum() for part in alone))
        assert length <= clip * 1.0001


def test_layers_whose_gradients_are_not_known_are_refused():
    for layer in (keras.layers.BatchNormalization(), keras.layers.Dense(2, activation="relu")):
        with pytest.raises(ValueError, match="model: expected"):
            check_layers(keras.Sequential([keras.Input((3,)), layer]))


def test_training_learns_and_its_noise_has_the_deviation_that_is_charged():
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 3, 300)
    inputs = (np.eye(3)[labels] + 0.1 * generator.random((300, 3))).astype(np.float32)
    table = Dataset(
        name="table",
        kind="tabular",
        input_shape=(3,),
        value_range=(0.0, 2.0),
        num_classes=3,
        pool_size=5,
    )

    def trained(steps, sigma):
        training = dp_sgd.Training(batch=100, steps=steps, learning_rate=0.5, momentum=0.0)
        model = dp_sgd.network(table, seed=0, inputs=inputs)
        before = [variable.numpy() for variable in model.trainable_variables]
        dp_sgd.fit(model, inputs, labels, training=training, sigma=sigma)
        return model, before

    model, _ = trained(100, 0.1)
    assert (model(inputs).numpy().argmax(axis=1) == labels).mean() > 0.95
    model, before = trained(1, 1e5)  # one step of noise alone, of 451 numbers
    moved = [
        (variable.numpy() - old).ravel()
        for variable, old in zip(model.trainable_variables, before, strict=True)
    ]
    assert np.concatenate(moved).std() == pytest.approx(0.5 * 1e5 / 100, rel=0.2)


def test_noise_keeps_to_epsilon_against_replacement():
    training = dp_sgd.Training(batch=500, steps=20, learning_rate=1.0)
    sigma = dp_sgd.noise_multiplier(1.0, training, 5_000)

    def charged(noise):
        return NoisyTraining(sampling_rate=0.1, noise_multiplier=noise, rounds=20).epsilon(DELTA)

    assert charged(sigma) <= 1.0 < charged(0.98 * sigma)


def test_the_papers_accounting_is_the_golden_value():
    # H2 of tests/accounting/golden.json.
    counts = np.tile([200, 6, 6, 6, 6, 6, 5, 5, 5, 5], (100, 1))
    mechanism = LaplaceNoisyMax(gamma=0.05)
    epsilons = costs(counts, mechanism, delta=1e-5, is_adaptive=False)
    assert epsilons["paper"] == pytest.approx(1.47991480486117489)
    assert epsilons["exact"] < epsilons["sanitised"] and epsilons["exact"] < epsilons["worst_case"]
    adaptive = costs(counts, mechanism, delta=1e-5, is_adaptive=True)
    assert adaptive["exact"] is None and adaptive["worst_case"] == epsilons["worst_case"]


def test_neighbours_without_drawing_cost_what_two_gaussians_cost():
    # All are drawn: one vote replaced by another, sqrt(2) apart.
    found = private_knn.alphas(1.0, 40.0)
    moments = private_knn.MOMENTS
    np.testing.assert_allclose(found, moments * (moments + 1.0) / 40.0**2, rtol=1e-6)


def test_removing_a_neighbour_costs_what_dp_accounting_says():
    accounting = pytest.importorskip("dp_accounting")
    rate, sigma = 0.05, 4.0
    is_exact = (private_knn.MOMENTS > 5.0) & (private_knn.MOMENTS < 20.0)  # in that library
    moments = private_knn.MOMENTS[is_exact]
    accountant = accounting.rdp.RdpAccountant(
        orders=(moments + 1.0).tolist(),
        neighboring_relation=accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    )
    gaussian = accounting.GaussianDpEvent(sigma / np.sqrt(2.0))
    accountant.compose(accounting.PoissonSampledDpEvent(rate, gaussian))
    removal = np.asarray(accountant._rdp) * moments
    replacement = private_knn.alphas(rate, sigma)[is_exact]
    assert (replacement >= removal * (1.0 - 1e-6)).all()
    assert (replacement <= 1.1 * removal).all(), "one vote is replaced by either"


def test_no_pair_of_changed_votes_costs_more():
    rate, sigma, classes = 0.1, 3.0, 3
    place = int(np.searchsorted(private_knn.MOMENTS, 2.0))
    moment = private_knn.MOMENTS[place]
    most = private_knn.alphas(rate, sigma)[place]
    axis = np.arange(-30.0, 30.0, 1.0)
    grid = np.stack(np.meshgrid(*[axis] * classes, indexing="ij"), axis=-1).reshape(-1, classes)
    log_still = -(grid**2).sum(1) / (2 * sigma**2) - classes * np.log(sigma * np.sqrt(2 * np.pi))
    votes = np.eye(classes)

    def cost(change, other):
        mixtures = [
            np.log1p(rate * np.expm1((grid @ one - one @ one / 2) / sigma**2))
            for one in (change, other)
        ]
        return logsumexp(log_still + (moment + 1) * mixtures[0] - moment * mixtures[1])

    displaced = [*votes, np.zeros(classes)]  # the k-th neighbour's vote; none below k
    costs = [
        cost(first, second)
        for gone in displaced
        for first, second in itertools.product(
            [*(vote - gone for vote in votes), np.zeros(classes)], repeat=2
        )
    ]
    assert max(costs) <= most * (1.0 + 1e-6)
    assert max(costs) == pytest.approx(most, rel=1e-6), "one of them costs as much"


def test_a_plan_of_neighbours_keeps_to_epsilon():
    plan = private_knn.planned(0.5)
    spent = private_knn.epsilon_of(rate=private_knn.RATE, sigma=plan.sigma, queries=plan.queries)
    assert 0.45 < spent <= 0.5
    assert private_knn.planned(0.05).queries <= plan.queries


def test_one_record_moves_at_most_one_vote():
    generator = np.random.default_rng(0)
    features, labels = generator.random((40, 3)), generator.integers(0, 4, 40)
    query = generator.random(3)

    def votes(features, labels, drawn=40):
        return private_knn.counts(
            query,
            features,
            labels,
            drawn=np.arange(drawn),
            neighbours=10,
            num_classes=4,
        )

    nearest = np.argsort(np.linalg.norm(features - query, axis=1))[:10]
    assert (votes(features, labels) == np.bincount(labels[nearest], minlength=4)).all()
    for record in range(40):
        changed, changed_labels = features.copy(), labels.copy()
        changed[record], changed_labels[record] = query, (labels[record] + 1) % 4
        moved = votes(changed, changed_labels) - votes(features, labels)
        assert moved.sum() == 0
        assert np.abs(moved).sum() <= 2
    assert votes(features, labels, drawn=4).sum() == 4


@pytest.mark.parametrize(
    "solve",
    [methods.means_head, functools.partial(methods.trained_head, rate=4.0)],
    ids=["sums", "DP-SGD"],
)
def test_heads_are_right_without_noise_and_poor_with_much(solve):
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 3, 900)
    features = np.eye(5)[labels] + 0.2 * generator.normal(size=(900, 5))
    features /= np.linalg.norm(features, axis=1, keepdims=True) + 1e-9
    right = {}
    for epsilon in (100.0, 0.1):
        few = slice(900 if epsilon > 1.0 else 30)
        heads = [
            solve(
                features[few],
                labels[few],
                num_classes=3,
                public=features[:100],
                epsilon=epsilon,
            )
            for _ in range(20)
        ]
        right[epsilon] = np.mean([(features @ head).argmax(axis=1) == labels for head in heads])
    assert right[100.0] > 0.97
    assert right[0.1] < 0.8  # a head of noise alone is right on a third in the mean


@pytest.mark.parametrize("steps", [1, 9])
def test_a_heads_noise_pays_for_all_of_its_steps(steps):
    # Features without length have no gradient: what moves is noise.
    found = methods.trained_head(
        np.zeros((50, 4_000), np.float32),
        np.zeros(50, np.int64),
        num_classes=5,
        public=np.zeros((1, 4_000), np.float32),
        epsilon=0.7,
        rate=2.0,
        steps=steps,
    )
    velocity, weights, mean = np.zeros(steps), np.zeros(steps), np.zeros(steps)
    for step in range(steps):  # by how much each step's noise moves what comes of it
        velocity = 0.9 * velocity + np.eye(steps)[step]
        weights = weights - 2.0 * velocity
        if step >= steps // 2:
            mean += weights / (steps - steps // 2)
    each = found.std() * 50 / np.linalg.norm(mean)  # in clipping lengths
    one = each / np.sqrt(steps)  # the single mechanism that all of them are together
    charged = NoisyTraining(sampling_rate=1.0, noise_multiplier=one, rounds=1).epsilon(DELTA)
    # 20,000 numbers: five standard deviations of theirs are 2.5 %.
    assert charged == pytest.approx(0.7, rel=0.03)
