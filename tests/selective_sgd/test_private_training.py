"""Noisy shared training: clipping, noise, inputs that must not stop it, an audit."""

import dataclasses
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy.stats import beta
from shared_helpers import DATASET, accuracy, changed, linear, model, records, shards, training

from pate_tf.accounting.composition import smallest_epsilon
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.release.noise import SeededNoise
from pate_tf.selective_sgd.local_training import FlatView, NoisyParticipants, RecordGradients
from pate_tf.selective_sgd.training_settings import LATTICE, TrainingSettings, noise_scale

RECORD = {"privacy": "record", "target_epsilon": 2.0}


class Recorded(SeededNoise):
    """Records the scales and sizes of Gaussian noise."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.drawn: list[tuple[float, int]] = []

    def gaussian_integers(self, scale, size):
        self.drawn.append((scale, size))
        return super().gaussian_integers(scale, size)


def sum_of(network, shard, drawn, *, indices=None, clip=1.0) -> np.ndarray:
    view = FlatView(network)
    indices = np.arange(view.num_parameters) if indices is None else indices
    gradients = RecordGradients(view, {0: shard})
    return gradients.clipped_sum(
        0, np.asarray(drawn), view.parameters(), indices=indices, clip=clip
    )


def test_sums_are_those_of_a_loop_over_records(monkeypatch):
    monkeypatch.setattr("pate_tf.selective_sgd.local_training.MAX_RECORDS", 8)  # per batch
    network, shard, drawn = model(), records(20), np.arange(0, 20, 3)
    indices, clip = np.sort(np.random.default_rng(0).permutation(53)[:17]), 0.3
    steps = sum_of(network, shard, drawn, indices=indices, clip=clip)
    expected = np.zeros(17)
    for number in drawn:
        _, gradient = FlatView(network).loss_and_gradient(
            [variable.value for variable in network.trainable_variables],
            tf.constant(shard.inputs[number : number + 1]),
            tf.constant(shard.labels[number : number + 1]),
        )
        chosen = gradient.numpy()[indices].astype(np.float64)
        expected += chosen * min(1.0, clip / np.linalg.norm(chosen))
    np.testing.assert_allclose(steps * clip / LATTICE, expected, atol=20 * clip / LATTICE)
    assert not sum_of(network, shard, np.zeros(0, np.int64)).any()


def test_no_record_adds_more_than_the_clipping_length():
    for number in range(10):
        steps = sum_of(model(), records(10), [number], clip=1e-3)
        length = sum(int(step) ** 2 for step in steps)
        assert 0.99 * LATTICE**2 < length <= LATTICE**2


WIDE = dataclasses.replace(DATASET, input_shape=(1024,), num_classes=10)


class Kinks:
    """A network in which one unit decides the whole gradient of a record.

    Its bias is set so that a last bit decides whether the unit is active. The last bits of a row
    differ in two cases: if the batch has only one row, because matrix products use another kernel
    for it, and at the end of a batch, where exponentials are not vectorized. An odd number of units
    puts the last unit of the last record into the second case.
    """

    def __init__(self, num_records: int) -> None:
        self.generator = np.random.default_rng(1)
        inputs = self.generator.normal(size=(num_records, 1024)).astype(np.float32)
        inputs[5] = 3e38  # the result is not finite
        shard = PrivateExamples(WIDE, inputs, np.zeros(num_records, np.int64))
        sizes = ((131, "exponential"), (64, "relu"), (10, None))
        dense = [keras.layers.Dense(size, activation=name) for size, name in sizes]
        network = keras.Sequential([keras.Input((1024,)), *dense])
        first, _, second, _, third, _ = parts = [
            np.zeros(variable.shape, np.float32) for variable in network.trainable_variables
        ]
        first[:, -1] = self.generator.normal(size=1024) / 32.0
        second[-1, 0], third[0, :2] = 1.0, (-30.0, 30.0)
        self.parameters = np.concatenate([part.ravel() for part in parts])
        starts = np.cumsum([0, *(part.size for part in parts)])
        self.place_of_bias = starts[3]
        # Some weights into and out of the last unit, and its bias.
        self.indices = np.array([*range(130, first.size, 131 * 64), starts[3] - 64, starts[3]])
        self.gradients = RecordGradients(FlatView(network), {0: shard})

    def sum(self, bias: np.float32, drawn) -> np.ndarray:
        self.parameters[self.place_of_bias] = bias
        return self.gradients.clipped_sum(
            0, np.asarray(drawn), self.parameters, indices=self.indices, clip=1.0
        )

    def edges(self, record: int) -> tuple[np.float32, np.float32]:
        """Returns two adjacent numbers: the bias of an idle unit and the bias of an active unit."""
        low, middle, high = np.float32([-4096.0, 0.0, 4096.0])
        while middle not in (low, high):
            is_active = self.sum(middle, [record]).any()
            low, high = (low, middle) if is_active else (middle, high)
            middle = np.float32((low + high) / 2.0)
        return low, high


def test_what_a_record_adds_does_not_depend_on_which_others_are_drawn(monkeypatch):
    monkeypatch.setattr("pate_tf.selective_sgd.local_training.MAX_RECORDS", 64)
    kinks = Kinks(80)
    size = kinks.gradients._num_places
    assert size == 63  # the last records have the same places as the first ones
    for record in (0, size - 1, 79):
        others = np.setdiff1d(np.arange(80), [record])
        for bias in kinks.edges(record):
            single = kinks.sum(bias, [record])
            for number in (1, 3, size - 1, 79):
                some = kinks.generator.permutation(others)[:number]
                more = kinks.sum(bias, [*some, record]) - kinks.sum(bias, some)
                assert more.tolist() == single.tolist(), (record, number)


class Looked(keras.layers.Layer):
    """Looks up its first input, which fails for a number without a row."""

    def build(self, shape):
        self.table = self.add_weight(shape=(9, 3), name="table")

    def call(self, inputs):
        return tf.gather(self.table, tf.cast(inputs[:, 0], tf.int32))


def looked_up(lowest: float) -> tuple[keras.Model, PrivateExamples]:
    """Returns a model that fails for record 2, and records whose range begins at a value."""
    dataset = dataclasses.replace(DATASET, value_range=(lowest, 8.0))
    shard = records(12)
    shard = changed(PrivateExamples(dataset, np.abs(shard.inputs), shard.labels), 2, 50.0)
    return keras.Sequential([keras.Input((6,)), Looked()]), shard


def test_a_record_that_the_model_fails_for_adds_nothing_and_stops_no_run():
    network, shard = looked_up(0.0)
    without = sum_of(network, shard, np.setdiff1d(np.arange(12), [2]))
    assert without.any()
    assert sum_of(network, shard, np.arange(12)).tolist() == without.tolist()
    with pytest.raises(ValueError, match=r"^the model does not accept inputs"):
        RecordGradients(FlatView(network), {0: looked_up(-8.0)[1]})


class BranchLayer(keras.layers.Layer):
    def call(self, inputs):
        return tf.cond(tf.reduce_sum(inputs) > 0.0, lambda: inputs, lambda: 2.0 * inputs)


@pytest.mark.parametrize(
    ("layer", "options", "why"),
    [
        *((layer, {}, "must process each") for layer in (keras.layers.Dropout(0.5),)),
        (BranchLayer(), {}, "the model has branches"),
        (None, {"delta": 0.5}, "^delta must be"),
        (None, {"target_epsilon": 1e-3, "rounds": 10**6}, "Choose a larger target_epsilon"),
        (None, {}, "^charged"),
    ],
)
def test_nothing_is_charged_that_does_not_fit(layer, options, why):
    def charge(charge, *, secure_noise):
        raise AssertionError("charged")

    run = types.SimpleNamespace(charge=charge)
    settings = TrainingSettings(num_participants=3, **{**RECORD, **options})
    layers = () if layer is None else (layer,)
    with pytest.raises((ValueError, AssertionError), match=why):
        NoisyParticipants(settings, model(*layers), shards(3, 10), run=run)


def test_no_record_stops_a_run_or_changes_what_is_drawn():
    """If the loss of one record is infinite, all visible output is the same as without it."""
    settings = {"num_participants": 2, "rounds": 3, "upload": 0.3, **RECORD}
    first, second = shards(2, 10).values()
    seen = []
    for shard in (first, changed(first, 4, 3e38)):
        recorded, indices = Recorded(0), []
        trained = training(linear("ones"), {0: shard, 1: second}, recorded, **settings)
        push = trained.server.push
        trained.server.push = lambda sent, push=push, indices=indices: (
            indices.append(sent.indices.tolist()) or push(sent)
        )
        for _ in range(3):
            trained.run_round()
        assert np.isfinite(trained.server.released()).all()
        seen.append((recorded.drawn, indices))
    assert seen[0] == seen[1] and len(seen[0][1]) == 6
    public = np.random.default_rng([0, 0, 5]).permutation(21)[:6]
    assert seen[0][1][0] == np.sort(public).tolist()


def test_the_noise_has_the_scale_that_was_charged():
    recorded = Recorded(1)
    trained = training(linear(), noise=recorded, rounds=3, sampling_rate=0.3, **RECORD)
    charge = trained.participants.settings.charge()
    assert 1.9 < smallest_epsilon({charge: 1}, 1e-5)[0] <= 2.0
    trained.run_round()
    ((scale, size),) = set(recorded.drawn)
    assert scale**2 >= (charge.noise_multiplier * LATTICE) ** 2 + 64.0
    assert scale == pytest.approx(charge.noise_multiplier * LATTICE, rel=1e-9)
    assert size == 21
    with pytest.raises(ValueError, match=r"^target_epsilon needs"):
        noise_scale(dataclasses.replace(charge, noise_multiplier=2000.0))


def test_it_learns_where_noise_is_small():
    options = {"privacy": "record", "target_epsilon": 1e4, "clip": 2.0, "learning_rate": 2.0}
    trained = training(linear(), rounds=10, **options)
    for _ in range(10):
        trained.run_round()
    assert accuracy(trained) > 0.85


def canary_statistics(scale_factor: float, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the canary's effect at the server, along its gradient, with the canary and its
    opposite.

    Everything else is known. This is the first round of one participant with q = 1, so the sum is
    the canary's clipped gradient and the noise.
    """
    settings = TrainingSettings(
        num_participants=1, rounds=1, privacy="record", target_epsilon=1.0, sampling_rate=1.0
    )
    exact = sum_of(linear(), records(1), [0])
    direction = exact / np.linalg.norm(exact.astype(float))
    scale = scale_factor * noise_scale(settings.charge())
    noise = SeededNoise(5).gaussian_integers(scale, 21 * number).reshape(number, 21)
    return (exact + noise) @ direction, (-exact + noise) @ direction


def epsilon_that_is_shown(here: np.ndarray, there: np.ndarray, delta: float) -> float:
    """Returns a lower bound on epsilon, wrong with probability at most 1e-4 for each threshold."""
    shown = 0.0
    for threshold in np.quantile(np.concatenate([here, there]), (0.5, 0.9, 0.97, 0.99, 0.997)):
        hits, alarms, number = (here > threshold).sum(), (there > threshold).sum(), len(here)
        low = beta.ppf(1e-4, hits, number - hits + 1)
        high = beta.ppf(1 - 1e-4, alarms + 1, number - alarms)
        if low > delta:
            shown = max(shown, float(np.log((low - delta) / high)))
    return shown


def test_a_canary_shows_no_more_than_was_stated_and_half_the_noise_is_found_out():
    assert 0.2 < epsilon_that_is_shown(*canary_statistics(1.0, 100_000), 1e-5) <= 1.0
    assert epsilon_that_is_shown(*canary_statistics(0.5, 100_000), 1e-5) > 1.0
