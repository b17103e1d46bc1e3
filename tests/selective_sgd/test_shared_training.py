"""Distributed selective SGD in one process: the contract, orders, selection, going on."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from shared_helpers import DATASET, accuracy, model, records, shares, training

from pate_tf.core.dataset import Dataset
from pate_tf.core.public import PublicExamples
from pate_tf.selective_sgd import upload
from pate_tf.selective_sgd.models import FlatView, cnn, dealt_shares, mlp, most_holders
from pate_tf.selective_sgd.settings import Settings
from pate_tf.selective_sgd.shared_training import calibrated_model
from pate_tf.selective_sgd.training import SharedTraining


def plain_sgd(given: SharedTraining, rounds: int, learning_rate: float) -> np.ndarray:
    """SGD over the participants' batches in order, by hand, on a model of its own."""
    one = model()

    @tf.function  # whose kernels round as those of the participants do
    def gradients_of(inputs, labels):
        with tf.GradientTape() as tape:
            logits = one(inputs, training=True)
            losses = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
            loss = tf.reduce_mean(losses)
        return tape.gradient(loss, one.trainable_variables)

    step = np.float32(learning_rate)
    parts = shares(given.settings.num_participants, len(given._shares[0]))
    for turn in range(rounds):
        for participant, share in enumerate(parts):
            generator = np.random.default_rng([given.settings.seed, turn, 3, participant])
            order = generator.permutation(len(share))
            gradients = gradients_of(
                tf.constant(share.inputs[order]), tf.constant(share.labels[order])
            )
            for variable, gradient in zip(one.trainable_variables, gradients, strict=True):
                variable.assign(variable.numpy() - step * gradient.numpy())
    return FlatView(one).initial()


def test_all_of_one_batch_in_turn_is_plain_sgd_bit_for_bit():
    one = training(upload=1.0, rounds=5, batch_size=20, learning_rate=0.3, final_learning_rate=1.0)
    for _ in range(5):
        one.run_round()
    assert one.server.values.tobytes() == plain_sgd(one, 5, 0.3).tobytes()


@pytest.mark.parametrize("protocol", ["round_robin", "random", "asynchronous", "synchronous"])
def test_every_protocol_learns(protocol):
    one = training(
        protocol=protocol, rounds=12, upload=0.5, learning_rate=0.2, download=0.9, batch_size=5
    )
    for _ in range(12):
        statistics = one.run_round()
    assert accuracy(one) > 0.9
    expected = {"round_robin": 0.0, "random": 0.0, "asynchronous": 3.0, "synchronous": 1.5}
    assert statistics.staleness == expected[protocol]


def test_asynchronous_stays_finite_where_without_damping_it_diverges():
    options = {"protocol": "asynchronous", "num_participants": 30, "rounds": 12, "upload": 1.0}
    options |= {"learning_rate": 1.0, "final_learning_rate": 1.0, "batch_size": 5}
    damped, plain = training(**options), training(**options, damping=0.0)
    for _ in range(12):
        statistics = damped.run_round()
        plain.run_round()
    assert statistics.staleness == 29.0
    assert accuracy(damped) > 0.9
    assert np.abs(damped.server.values).max() < 0.5 * np.abs(plain.server.values).max()


def test_synchronous_uploads_are_averaged():
    one = training(protocol="synchronous", upload=1.0, rounds=1, final_learning_rate=1.0)
    before = one.server.values.copy()
    one.run_round()
    changes = [state.parameters - before for state in one.participants]
    np.testing.assert_allclose(
        one.server.values, before + np.mean(changes, axis=0), rtol=1e-4, atol=1e-6
    )


def test_a_part_is_uploaded_and_a_part_downloaded():
    one = training(upload=0.1, download=0.5, rounds=3)
    number, size = one.settings.num_uploaded(one.view.num_parameters), one.view.num_parameters
    assert number == size // 10
    before = one.server.values.copy()
    one._turn(0)
    changed = np.flatnonzero(one.server.values != before)
    assert len(changed) <= number
    change = one.participants[0].parameters - before
    assert np.abs(change[changed]).min() >= np.sort(np.abs(change))[-number] * (1 - 1e-5)
    one._turn(1)
    # Half of the parameters stay as the participant had them: at its own first ones here.
    assert len(one.server.pull(1).indices) == size // 2


def test_optimizers_and_buffers_stay_local():
    one = training(
        rounds=2, optimizer="adam", learning_rate=0.01, layers=(keras.layers.BatchNormalization(),)
    )
    one.run_round()
    one.run_round()
    moving = [state.buffers[0] for state in one.participants]
    assert not np.allclose(moving[0], moving[1])
    slots = [state.slots for state in one.participants]
    assert not np.allclose(slots[0][-1], slots[1][-1])
    first = model(keras.layers.BatchNormalization())
    assert all(
        np.array_equal(buffer, variable.numpy())
        for buffer, variable in zip(
            one.global_model().non_trainable_variables, first.non_trainable_variables, strict=True
        )
    )
    # The global model gets statistics of public inputs instead.
    samples = records(300, seed=50)
    public = PublicExamples(samples.dataset, samples.inputs, samples.labels)
    found = [
        each.numpy()
        for each in calibrated_model(
            one.view, one.released_parameters(), public
        ).non_trainable_variables
    ]
    hidden = one.view.model.layers[0](samples.inputs).numpy()
    np.testing.assert_allclose(found[0], hidden.mean(axis=0), atol=0.05)
    # Nothing of a participant's statistics is left in it, whatever the model held before.
    for sample, expected in (
        (public, found),
        (None, [v.numpy() for v in first.non_trainable_variables]),
    ):
        one.local_model(0)
        again = calibrated_model(
            one.view, one.released_parameters(), sample
        ).non_trainable_variables
        np.testing.assert_array_equal(again[0].numpy(), expected[0])
        one.local_model(0)
        assert not np.array_equal(one.view.model.non_trainable_variables[0].numpy(), expected[0])


def test_weight_decay_and_unknown_optimizers_are_refused():
    with pytest.raises(ValueError, match="optimizer: expected a name"):
        training(optimizer="best")
    with pytest.raises(ValueError, match="without weight decay"):
        training(optimizer="adamw")


@pytest.mark.parametrize("protocol", ["round_robin", "asynchronous"])
def test_a_run_that_was_stopped_goes_on_to_the_last_bit(protocol):
    options = {"protocol": protocol, "rounds": 4, "optimizer": "adam", "learning_rate": 0.01}
    whole, first, second = (training(**options) for _ in range(3))
    for _ in range(4):
        whole.run_round()
    for _ in range(2):
        first.run_round()
    second.restore({name: array.copy() for name, array in first.state().items()})
    for _ in range(2):
        second.run_round()
    assert second.server.values.tobytes() == whole.server.values.tobytes()
    assert second.traffic == whole.traffic


def test_the_state_of_another_run_is_refused():
    for other, why in (({"num_participants": 3}, "parameters"), ({"optimizer": "sgd"}, "lacks")):
        with pytest.raises(ValueError, match=f"expected .*{why}"):
            training(optimizer="adam").restore(training(**other).state())


def test_a_loss_that_is_not_finite_ends_in_one_line():
    with pytest.raises(ValueError, match="expected a finite loss"):
        one = training(learning_rate=1e30, rounds=3)
        for _ in range(3):
            one.run_round()


def test_uploads_are_clipped():
    one = training(gamma=1e-4, rounds=1, upload=1.0)
    before = one.server.values.copy()
    one._turn(0)
    change = one.server.values - before
    assert 0.9e-4 < np.abs(change).max() < 1.01e-4


def test_selection():
    changes = np.array([0.0, -3.0, 2.0, 0.5, -0.1, 2.5], np.float32)
    assert upload.largest(changes, 3).tolist() == [1, 2, 5]
    assert upload.largest(changes, 9).tolist() == list(range(6))
    generator = np.random.default_rng(0)
    assert upload.random_above(changes, 9, 1.0, generator).tolist() == [1, 2, 5]
    seen = {tuple(upload.random_above(changes, 2, 1.0, generator)) for _ in range(50)}
    assert seen == {(1, 2), (1, 5), (2, 5)}


def test_shares_are_disjoint_until_there_are_too_few_records():
    even = dealt_shares(100, 7, None, seed=0)
    assert sorted(np.concatenate(even).tolist()) == list(range(100))
    assert most_holders(even) == 1
    paper = dealt_shares(60_000, 150, 600, seed=0)
    assert len(paper) == 150
    assert most_holders(paper[:100]) == 1
    assert most_holders(paper) == 2
    with pytest.raises(ValueError, match="records_each"):
        dealt_shares(100, 2, 101, seed=0)


def images(side: int, channels: int) -> Dataset:
    shape = (side, side, channels)
    values = {"kind": "image", "input_shape": shape, "value_range": (0.0, 255.0)}
    return dataclasses.replace(DATASET, num_classes=10, **values)


def test_the_networks_of_the_paper():
    assert FlatView(cnn(images(28, 1))).num_parameters == 105_506
    assert FlatView(cnn(images(32, 3))).num_parameters == 313_546
    assert FlatView(mlp(images(28, 1))).num_parameters == 140_106
    padded = keras.Sequential(cnn(images(28, 1)).layers[:4])(np.zeros((1, 28, 28, 1)))
    assert set(np.unique(padded).tolist()) == {-1.0}
    with pytest.raises(ValueError, match="expected images"):
        cnn(records(3).dataset)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("num_participants", 0), ("rounds", 0), ("upload", 0.0), ("upload", 1.1)),
        *(("download", -1.0), ("gamma", 0.0), ("tau", -1.0), ("damping", np.inf)),
        *(("protocol", "any"), ("selection", "any"), ("server_rate", 0.0), ("stat_period", 0)),
        *(("learning_rate", 0.0), ("learning_rate", np.nan), ("gamma", np.nan)),
    ],
)
def test_settings_are_checked(name, value):
    with pytest.raises(ValueError, match=f"^{name}: expected"):
        Settings(**{name: value})
