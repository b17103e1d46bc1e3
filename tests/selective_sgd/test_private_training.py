"""Noisy shared training: clipping, noise, what never stops it, an audit."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy.stats import beta
from shared_helpers import DATASET, accuracy, changed, facts_of, model, records, shares

from pate_tf.accounting.noisy_training import SparseVectorTraining
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.release.noise import SeededNoise
from pate_tf.selective_sgd.models import FlatView
from pate_tf.selective_sgd.private_training import (
    RecordGradients,
    clipped_steps,
    train,
    training_with,
    uploaded,
)
from pate_tf.selective_sgd.settings import LATTICE, Privacy, Settings, noise_scale


def linear(dataset, first: str = "zeros") -> keras.Model:
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, kernel_initializer=first)])


def synchronous(**options: object) -> Settings:
    given = {"num_participants": 3, "rounds": 4, "upload": 1.0, "learning_rate": 1.0, **options}
    return Settings(protocol="synchronous", **given)


class Recorded(SeededNoise):
    """Records the scales and sizes of Gaussian noise."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.drawn: list[tuple[float, int]] = []

    def gaussian_integers(self, scale, size):
        self.drawn.append((scale, size))
        return super().gaussian_integers(scale, size)


def training(privacy: Privacy, settings: Settings, parts, noise=None, one=None):
    given = {"noise": noise or SeededNoise(0), "begin": facts_of}
    return training_with(privacy, settings, one or linear(None), parts, **given)


def test_sums_are_those_of_a_loop_over_records():
    one, parts = model(), shares(3, 20)
    view = FlatView(one)
    drawn = [np.arange(20), np.arange(0, 20, 3), np.zeros(0, np.int64)]
    indices = np.sort(np.random.default_rng(0).permutation(view.num_parameters)[:17])
    clip = 0.3
    found = RecordGradients(view, parts).sums(view.initial(), drawn, indices=indices, clip=clip)
    expected = np.zeros((3, 17))
    for owner, (share, numbers) in enumerate(zip(parts, drawn, strict=True)):
        for number in numbers:
            with tf.GradientTape() as tape:
                logits = one(share.inputs[number : number + 1])
                loss = keras.losses.sparse_categorical_crossentropy(
                    share.labels[number : number + 1], logits, from_logits=True
                )
            gradient = view.joined(tape.gradient(loss, one.trainable_variables)).numpy()
            gradient = gradient[indices].astype(np.float64)
            expected[owner] += gradient * min(1.0, clip / np.linalg.norm(gradient))
    np.testing.assert_allclose(found * clip / LATTICE, expected, atol=20 * clip / LATTICE)
    assert not found[2].any()


def test_no_record_adds_more_than_the_clipping_length():
    one = model()
    view = FlatView(one)
    every = np.arange(view.num_parameters)
    sums = RecordGradients(view, shares(30, 1)).sums(
        view.initial(), [np.arange(1)] * 30, indices=every, clip=1e-3
    )
    lengths = [sum(int(step) ** 2 for step in row) for row in sums.tolist()]
    assert max(lengths) <= LATTICE**2
    assert min(lengths) > 0.99 * LATTICE**2


WIDE = dataclasses.replace(DATASET, input_shape=(1024,), num_classes=10)


class Kinks:
    """A network in which one unit decides on the whole gradient of a record.

    Its bias is put where a last bit decides whether it is active. Last bits of a row come out
    otherwise where a batch has one row alone, as matrix products have another kernel for that, and
    at the end of a batch, where exponentials are not computed several at a time: an odd number of
    units makes the last unit of the last record such a one.
    """

    def __init__(self, num_records: int) -> None:
        self.generator = np.random.default_rng(1)
        inputs = self.generator.normal(size=(num_records, 1024)).astype(np.float32)
        inputs[5] = 3e38  # what it comes to is not finite
        self.share = PrivateExamples(WIDE, inputs, np.zeros(num_records, np.int64))
        sizes = ((131, "exponential"), (64, "relu"), (10, None))
        dense = [keras.layers.Dense(size, activation=name) for size, name in sizes]
        network = keras.Sequential([keras.Input((1024,)), *dense])
        first, _, second, _, third, _ = parts = [
            np.zeros(one.shape, np.float32) for one in network.trainable_variables
        ]
        first[:, -1] = self.generator.normal(size=1024) / 32.0
        second[-1, 0], third[0, :2] = 1.0, (-30.0, 30.0)
        self.parameters = np.concatenate([one.ravel() for one in parts])
        starts = np.cumsum([0, *(one.size for one in parts)])
        self.place_of_bias = starts[3]
        # Some weights of the last unit, what comes of it, and the bias.
        self.indices = np.array([*range(130, first.size, 131 * 64), starts[3] - 64, starts[3]])
        self.gradients = RecordGradients(FlatView(network), [self.share])

    def sums(self, bias: np.float32, drawn) -> np.ndarray:
        self.parameters[self.place_of_bias] = bias
        return self.gradients.sums(
            self.parameters, [np.asarray(drawn)], indices=self.indices, clip=1.0
        )[0]

    def edges(self, record: int) -> tuple[np.float32, np.float32]:
        """Two numbers beside each other: the bias of an idle unit and that of an active one."""
        low, middle, high = np.float32([-4096.0, 0.0, 4096.0])
        while middle not in (low, high):
            is_active = self.sums(middle, [record]).any()
            low, high = (low, middle) if is_active else (middle, high)
            middle = np.float32((low + high) / 2.0)
        return low, high


def test_what_a_record_adds_does_not_depend_on_which_others_are_drawn():
    kinks = Kinks(300)
    size = kinks.gradients._num_places
    assert 200 < size < 300  # the last records share places with the first
    for record in (0, 1, size - 1, size, 299):
        others = np.setdiff1d(np.arange(300), [record])
        for bias in kinks.edges(record):
            single = kinks.sums(bias, [record])
            for number in (1, 2, 3, 7, 16, 63, size - 1, size, 299):
                some = kinks.generator.permutation(others)[:number]
                more = kinks.sums(bias, [*some, record]) - kinks.sums(bias, some)
                assert more.tolist() == single.tolist(), (record, number)


def test_clipped_steps():
    generator = np.random.default_rng(0)
    for scale in (1e-6, 0.01, 1.0, 1e6):
        for drawn in (generator.normal(size=500), generator.uniform(size=500)):
            values = (scale * drawn).astype(np.float32)
            steps = clipped_steps(values, 0.5).tolist()
            length = np.sqrt(sum(int(step) ** 2 for step in steps)) / LATTICE
            assert length <= 1.0
            expected = min(1.0, np.linalg.norm(values.astype(np.float64)) / 0.5)
            assert length == pytest.approx(expected, abs=1e-4)
    assert clipped_steps(np.array([np.nan, 1.0], np.float32), 1.0).tolist() == [0, 0]
    small = np.array([0.25, -0.125], np.float32)
    np.testing.assert_allclose(clipped_steps(small, 1.0) / LATTICE, small, atol=1e-5)


def test_a_record_that_is_not_finite_adds_nothing():
    share, weights = records(5), np.zeros(21, np.float32)
    weights[:6] = 3e38
    share = changed(share, 3, 3e38)
    gradients = RecordGradients(FlatView(linear(None)), [share])
    options = {"indices": np.arange(21), "clip": 1.0}
    assert not gradients.sums(weights, [np.array([3])], **options).any()
    some = gradients.sums(np.zeros(21, np.float32), [np.array([0, 1, 2, 4])], **options)
    every = gradients.sums(np.zeros(21, np.float32), [np.arange(5)], **options)
    assert some.any()
    assert np.linalg.norm((every - some).astype(float)) <= LATTICE


class Looked(keras.layers.Layer):
    """Looks its first input up, which fails for what is in no row."""

    def build(self, shape):
        self.table = self.add_weight(shape=(9, 3), name="table")

    def call(self, inputs):
        return tf.gather(self.table, tf.cast(inputs[:, 0], tf.int32))


def looked_up(lowest: float) -> tuple[keras.Model, PrivateExamples]:
    """A model that fails for record 2, and records whose range begins at a value."""
    dataset = dataclasses.replace(DATASET, value_range=(lowest, 8.0))
    share = records(12)
    inputs = np.abs(share.inputs)
    share = changed(PrivateExamples(dataset, inputs, share.labels), 2, 50.0)
    return keras.Sequential([keras.Input((6,)), Looked()]), share


def test_a_record_that_the_model_fails_for_adds_nothing_and_stops_no_run():
    one, share = looked_up(0.0)
    view = FlatView(one)
    gradients = RecordGradients(view, [share])
    options = {"indices": np.arange(27), "clip": 1.0}
    expected = gradients.sums(view.initial(), [np.setdiff1d(np.arange(12), [2])], **options)
    assert expected.any()
    found = gradients.sums(view.initial(), [np.arange(12)], **options)
    assert found.tolist() == expected.tolist()
    # Whole uploads are clipped: nothing of its training remains.
    privacy = Privacy(kind="participant", target_epsilon=2.0)
    trained = training(privacy, synchronous(num_participants=1), [share], one=one)
    trained.run_round()
    assert not trained._clipped_changes(np.arange(27))[0].any()
    with pytest.raises(ValueError, match=r"^model: expected one that takes inputs"):
        RecordGradients(view, [looked_up(-8.0)[1]])


class BranchLayer(keras.layers.Layer):
    def call(self, inputs):
        return tf.cond(tf.reduce_sum(inputs) > 0.0, lambda: inputs, lambda: 2.0 * inputs)


@pytest.mark.parametrize(
    "layers",
    [(keras.layers.BatchNormalization(),), (keras.layers.Dropout(0.5),), (BranchLayer(),)],
)
def test_models_that_mix_records_are_refused(layers):
    with pytest.raises(ValueError, match="treats records apart"):
        RecordGradients(FlatView(model(*layers)), shares(2, 3))


@pytest.mark.parametrize("kind", ["record", "participant", "sparse_vector"])
def test_no_record_stops_a_run_or_changes_what_is_drawn(kind):
    """With a record whose loss is infinite everything that others see goes on as without it."""
    is_gaussian = kind != "sparse_vector"
    privacy = Privacy(kind=kind, target_epsilon=8.0 if is_gaussian else 1e3)
    settings = Settings.with_defaults_of(
        privacy, {"num_participants": 2, "rounds": 3, "optimizer": "adam", "learning_rate": 0.05}
    )
    first, second = shares(2, 10)
    seen = []
    for share in (first, changed(first, 4, 3e38)):
        recorded = Recorded(0)
        one = linear(None, "ones")
        one = training(privacy, settings, [share, second], recorded, one)
        for _ in range(settings.rounds):
            one.run_round()
        assert np.isfinite(one.participants[0].parameters).all()
        assert np.isfinite(one.released_parameters()).all()
        seen.append((one.server.version, recorded.drawn if is_gaussian else []))
    assert seen[0] == seen[1]
    assert seen[0][0] == 6


def test_the_noise_has_the_scale_that_was_charged():
    privacy = Privacy(kind="record", target_epsilon=2.0, sampling_rate=0.3)
    settings = synchronous(num_participants=2, rounds=3)
    one = training(privacy, settings, shares(2, 10))
    charge = privacy.training(settings, 21)
    assert charge.epsilon(1e-5) <= 2.0
    assert one._scale**2 >= (charge.noise_multiplier * LATTICE) ** 2 + 64.0
    assert one._scale == pytest.approx(charge.noise_multiplier * LATTICE, rel=1e-9)
    with pytest.raises(ValueError, match=r"^target_epsilon: expected"):
        noise_scale(dataclasses.replace(charge, noise_multiplier=2000.0))
    one._noise = Recorded(1)
    one.run_round()
    assert one._noise.drawn == [(one._scale, 21)] * 2


@pytest.mark.parametrize("kind", ["record", "participant"])
@pytest.mark.parametrize("choice", ["shared_seed", "history"])
def test_the_choice_of_parameters_does_not_look_at_records(kind, choice):
    privacy = Privacy(kind=kind, target_epsilon=5.0, sampling_rate=1.0, momentum=0.0, choice=choice)
    settings = synchronous(upload=0.3, batch_size=5, num_participants=2)
    chosen = []
    for parts in (shares(2, 10), [records(10, seed) for seed in (7, 8)]):
        one = training(privacy, settings, parts)
        chosen.append([one._chosen().tolist()])
        one.run_round()
        chosen[-1].append(one._chosen().tolist())
        assert len(set(chosen[-1][1])) == settings.num_uploaded(21) == 6
        if choice == "history":
            # What left decides, and nothing else.
            largest = np.argsort(-one._history)[:3].tolist()
            assert set(largest) <= set(chosen[-1][1])
            assert set(np.flatnonzero(one._history)) <= set(chosen[-1][0])
            assert set(chosen[-1][1]) != set(chosen[-1][0])
    public = np.random.default_rng([settings.seed, 0, 5]).permutation(21)[:6]
    assert chosen[0][0] == chosen[1][0] == np.sort(public).tolist()
    if choice == "shared_seed":
        assert chosen[0][1] == chosen[1][1]


def test_nothing_is_charged_that_does_not_fit():
    def charged(charge):
        raise AssertionError("charged")

    record = Privacy(kind="record", target_epsilon=2.0)
    faint = Privacy(kind="sparse_vector", target_epsilon=1e-6)
    many = Settings(num_participants=3, upload=1.0, rounds=1000)
    mixing = (keras.layers.BatchNormalization(),)
    for privacy, settings, layers, why in (
        (record, synchronous(), mixing, "treats records apart"),
        (record, Settings(num_participants=3), (), "^protocol: expected 'synchronous'"),
        (record, synchronous(download=0.5), (), "^download: expected 1 with privacy record"),
        (faint, many, (), "^target_epsilon: expected more"),
        (record, synchronous(), (), "^charged"),
    ):
        given = {"noise": SeededNoise(0), "begin": charged}
        with pytest.raises((ValueError, AssertionError), match=why):
            training_with(privacy, settings, model(*layers), shares(3, 10), **given)


def test_a_record_of_several_participants_is_part_of_all_their_uploads():
    """The target is what a record loses in all of them together."""
    privacy = Privacy(kind="record", target_epsilon=2.0)
    one, several = (privacy.training(synchronous(), 21, holders) for holders in (1, 3))
    assert several.rounds == 3 * one.rounds
    assert several.noise_multiplier > one.noise_multiplier
    assert several.epsilon(1e-5) <= 2.0
    whole = Privacy(kind="participant", target_epsilon=2.0)
    assert whole.training(synchronous(), 21, 3) == whole.training(synchronous(), 21)


def test_a_private_run_that_was_stopped_goes_on():
    privacy = Privacy(kind="record", target_epsilon=50.0, sampling_rate=1.0)
    parts = shares(3, 30)
    whole, stopped = (training(privacy, synchronous(), parts) for _ in range(2))
    for number in range(4):
        whole.run_round()
        stopped.run_round()
        if number == 1:
            state = stopped.state()
            stopped = training(privacy, synchronous(), parts, stopped._noise)
            stopped.restore(state)
    assert stopped.released_parameters().tobytes() == whole.released_parameters().tobytes()


@pytest.mark.parametrize("kind", ["record", "participant", "sparse_vector"])
def test_every_kind_learns_where_noise_is_small(tmp_path, kind):
    privacy = Privacy(kind=kind, target_epsilon=1e4 if kind != "sparse_vector" else 1e6, clip=2.0)
    given = {"num_participants": 4, "rounds": 10, "learning_rate": 0.3}
    given |= {"upload": 0.5} if kind == "sparse_vector" else {}
    settings = Settings.with_defaults_of(privacy, given)
    options = {"privacy": privacy, "directory": tmp_path, "noise": SeededNoise(3)}
    assert accuracy(train(records(400), settings, model=linear, **options)) > 0.85


def canary_statistics(scale_factor: float, number: int) -> tuple[np.ndarray, np.ndarray]:
    """What a server sees of a canary, along its gradient, with it and with its opposite.

    All else is known. The first round of one participant with q = 1: the sum is the canary's
    clipped gradient and the noise.
    """
    privacy = Privacy(kind="record", target_epsilon=1.0, sampling_rate=1.0, momentum=0.0)
    settings = synchronous(num_participants=1, rounds=1)
    share = records(1)
    one = training(privacy, settings, [share], SeededNoise(5))
    one._scale *= scale_factor
    (exact,), _, _ = one._sums_of_records(one._gradients, np.arange(21))
    direction = exact / np.linalg.norm(exact.astype(float))
    noise = one._noise.gaussian_integers(one._scale, 21 * number).reshape(number, 21)
    return (exact + noise) @ direction, (-exact + noise) @ direction


def epsilon_that_is_shown(here: np.ndarray, there: np.ndarray, delta: float) -> float:
    """A lower bound of epsilon, wrong with probability 1e-4 at most for each threshold."""
    shown = 0.0
    for threshold in np.quantile(np.concatenate([here, there]), (0.5, 0.9, 0.97, 0.99, 0.997)):
        hits, alarms, number = (here > threshold).sum(), (there > threshold).sum(), len(here)
        low = beta.ppf(1e-4, hits, number - hits + 1)
        high = beta.ppf(1 - 1e-4, alarms + 1, number - alarms)
        if low > delta:
            shown = max(shown, float(np.log((low - delta) / high)))
    return shown


def test_a_canary_shows_no_more_than_was_stated_and_half_the_noise_is_found_out():
    right = epsilon_that_is_shown(*canary_statistics(1.0, 200_000), 1e-5)
    half = epsilon_that_is_shown(*canary_statistics(0.5, 200_000), 1e-5)
    assert 0.2 < right <= 1.0
    assert half > 1.0


def test_the_sparse_vector_uploads_few_and_clipped_numbers():
    charge = SparseVectorTraining(epsilon_each=50.0, num_uploaded=5, rounds=1)
    change = np.zeros(200, np.float32)
    change[[3, 50, 120]] = [0.5, -2.0, 1.0]
    options = {"charge": charge, "gamma": 1.0, "threshold": 0.3, "noise": SeededNoise(0)}
    seen: set[int] = set()
    for number in range(20):
        generator = np.random.default_rng(number)
        indices, values = uploaded(change, generator=generator, **options)
        assert len(indices) <= 5
        assert (np.diff(indices) > 0).all()
        assert np.abs(values).max() <= 1.0
        seen.update(indices.tolist())
    assert {50, 120} <= seen
    faint = SparseVectorTraining(epsilon_each=1e-9, num_uploaded=5, rounds=1)
    with pytest.raises(ValueError, match=r"^target_epsilon: expected more"):
        uploaded(change, generator=np.random.default_rng(0), **{**options, "charge": faint})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("kind", "any"), ("target_epsilon", None), ("target_epsilon", 0.0), ("delta", 0.0)),
        *(("clip", 0.0), ("clip", 1e-310), ("clip", np.inf), ("sampling_rate", 0.0)),
        *(("momentum", 1.0), ("choice", "largest"), ("threshold", -0.1)),
    ],
)
def test_privacy_is_checked(name, value):
    with pytest.raises(ValueError, match="expected"):
        Privacy(**{"kind": "record", "target_epsilon": 1.0, name: value})


@pytest.mark.parametrize("target", [0.5, 8.0, 300.0])
def test_the_sparse_vector_uses_the_whole_target(target):
    privacy = Privacy(kind="sparse_vector", target_epsilon=target)
    charge = privacy.training(synchronous(), 21)
    assert 0.9999 * target < charge.epsilon(privacy.delta) <= target
    assert charge.composed_epsilon(3, delta=1e-5) == 3 * charge.pure_epsilon
    with pytest.raises(ValueError, match="delta"):
        charge.composed_epsilon(1, delta=1.0)
