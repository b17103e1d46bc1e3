"""Distributed selective SGD in one process: the contract, orders, selection, terms."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from shared_helpers import NoNoise, accuracy, model, records, shards, training

from pate_tf.selective_sgd.local_training import FlatView, largest
from pate_tf.selective_sgd.shared_training import train
from pate_tf.selective_sgd.training_settings import Terms, TrainingSettings


def plain_sgd(rounds: int, rates: list[float]) -> np.ndarray:
    """Runs SGD over the participants' batches in order, by hand, on a separate model."""
    network = model()

    @tf.function  # its kernels round like the participants' kernels
    def gradients_of(inputs, labels):
        with tf.GradientTape() as tape:
            logits = network(inputs, training=True)
            losses = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
            loss = tf.reduce_mean(losses)
        return tape.gradient(loss, network.trainable_variables)

    for turn in range(rounds):
        for participant, shard in shards(4, 20).items():
            order = np.random.default_rng([0, turn, 3, participant]).permutation(len(shard))
            gradients = gradients_of(
                tf.constant(shard.inputs[order]), tf.constant(shard.labels[order])
            )
            for variable, gradient in zip(network.trainable_variables, gradients, strict=True):
                step = np.float32(rates[turn]) * gradient.numpy()
                variable.assign(variable.numpy() - step)
    return FlatView(network).parameters()


def test_all_of_one_batch_in_turn_is_plain_sgd_bit_for_bit():
    trained = training(upload=1.0, rounds=3, batch_size=20, learning_rate=0.3)
    for _ in range(3):
        trained.run_round()
    rates = [0.3 * (1.0 - 0.9 * progress) for progress in (0.0, 0.5, 1.0)]
    assert trained.server.state.values.tobytes() == plain_sgd(3, rates).tobytes()


@pytest.mark.parametrize("protocol", ["round_robin", "asynchronous", "synchronous"])
def test_every_protocol_learns(protocol):
    trained = training(protocol=protocol, rounds=12, upload=0.5, learning_rate=0.4, batch_size=5)
    for _ in range(12):
        trained.run_round()
    assert accuracy(trained) > 0.9


def test_the_largest_changes_are_uploaded_and_clipped():
    changes = np.array([0.0, -3.0, 2.0, 0.5, -0.1, 2.5], np.float32)
    assert largest(changes, 3).tolist() == [1, 2, 5]
    assert largest(changes, 9).tolist() == list(range(6))
    for options in ({}, {"gamma": 1e-4}):
        trained = training(upload=0.1, rounds=2, **options)
        participants, parameters = trained.participants, trained.server.pull(0, 0)
        change, _ = participants.change(0, 0, parameters.values)
        upload, _ = participants.upload(0, 0, parameters)
        assert len(upload.values) == participants.view.num_parameters // 10
        sizes = np.abs(change[upload.indices])
        assert sizes.min() >= np.sort(np.abs(change))[-len(sizes)]
        if "gamma" in options:
            assert np.abs(upload.values).max() <= np.float32(1e-4)


@pytest.mark.parametrize(
    "options",
    [{}, {"protocol": "synchronous"}, {"privacy": "record", "target_epsilon": 50.0}],
    ids=["round robin", "synchronous", "noisy"],
)
def test_a_run_that_was_stopped_resumes_to_the_last_bit(options, tmp_path, monkeypatch):
    settings = TrainingSettings(num_participants=3, rounds=4, **options)

    def run(folder, until=4):
        def stop(round_number, loss):
            if round_number + 1 == until < 4:
                raise KeyboardInterrupt

        given = {"directory": tmp_path / folder, "noise": NoNoise(), "on_round": stop}
        return train(records(60), settings, model=lambda dataset: model(), **given)

    whole = run("whole")
    with pytest.raises(KeyboardInterrupt):
        run("stopped", until=2)
    resumed = run("stopped")
    assert [each.numpy().tobytes() for each in whole.model.variables] == [
        each.numpy().tobytes() for each in resumed.model.variables
    ]


NOISY = {"privacy": "record", "target_epsilon": 1.0}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *(("num_participants", {"num_participants": 0}), ("rounds", {"rounds": 0})),
        *(("upload", {"upload": 1.1}), ("gamma", {"gamma": np.nan})),
        *(("protocol", {"protocol": "any"}), ("learning_rate", {"learning_rate": 0.0})),
        *(("privacy", {"privacy": "any"}), ("target_epsilon", {"privacy": "record"})),
        *(("target_epsilon", {"target_epsilon": 1.0}), ("clip", {"clip": 1.0})),
        *(("delta", {**NOISY, "delta": 0.0}), ("clip", {**NOISY, "clip": 1e-310})),
        ("gamma", {**NOISY, "gamma": 1.0}),
        *(("protocol", {**NOISY, "protocol": "asynchronous"}),),
        *(("sampling_rate", {"sampling_rate": 0.5}), ("privacy", {"privacy": "participant"})),
    ],
)
def test_settings_are_checked(name, options):
    with pytest.raises(ValueError, match=rf"^[^\n]*\b{name}\b[^\n]+$"):
        TrainingSettings(**options)


ROSTER = """
run = "r-1"
dataset = "digits"

[settings]
rounds = 3
gamma = 0.5

[[participant]]
name = "clinic"

[[participant]]
name = "school"
"""


def test_terms_say_who_and_how_and_two_files_are_told_apart(tmp_path):
    path = tmp_path / "roster.toml"

    def read(text):
        path.write_text(text)
        return Terms.read(path)

    terms = read(ROSTER)
    assert (terms.names, terms.dataset, terms.model) == (("clinic", "school"), "digits", None)
    assert terms.settings == TrainingSettings(num_participants=2, rounds=3, gamma=0.5)
    private = ROSTER.replace("gamma = 0.5", 'privacy = "record"\ntarget_epsilon = 4')
    assert read(private).settings.protocol == "synchronous"
    others = [private, ROSTER.replace("3", "4"), ROSTER.replace("clinic", "hospital")]
    assert len({read(text).run_id for text in (ROSTER, ROSTER + "# same\n", *others)}) == 4
    for old, new in (
        *(('run = "r-1"', ""), ('dataset = "digits"', "dataset = 3"), ("rounds = 3", "rounds = 0")),
        *(("rounds = 3", 'rounds = "three"'), ("rounds = 3", "num_participants = 9")),
        *(("gamma = 0.5", 'protocol = "chaos"'), ('"school"', '"clinic"'), ('"school"', '"a b"')),
        *(('"school"', '"school"\nkey = 1'), ("[settings]", "[settings")),
    ):
        with pytest.raises(ValueError) as caught:
            read(ROSTER.replace(old, new))
        assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)
