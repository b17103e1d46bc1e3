"""Noisy shared training: clipping, noise, payments, an audit."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from participants_for_tests import model, records, shares
from scipy.stats import beta, norm

from pate_tf.accounting.noisy_training import NoisyTraining, SparseVectorTraining
from pate_tf.ledger import Ledger, LedgerError
from pate_tf.noise import SeededNoise, SystemNoise
from pate_tf.selective_sgd import door, payment, sparse_vector
from pate_tf.selective_sgd.flat_view import FlatView
from pate_tf.selective_sgd.privacy import LATTICE, Privacy, noise_scale
from pate_tf.selective_sgd.private_training import GaussianTraining, clipped_steps, noisy_training
from pate_tf.selective_sgd.record_gradients import RecordGradients
from pate_tf.selective_sgd.settings import Settings


def linear(dataset) -> keras.Model:
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, kernel_initializer="zeros")])


def synchronous(**options: object) -> Settings:
    given = {"num_participants": 3, "rounds": 4, "upload": 1.0, "learning_rate": 1.0, **options}
    return Settings(protocol="synchronous", **given)


def training(folder, privacy: Privacy, settings: Settings, parts, noise=None):
    noise = noise or SeededNoise(0)
    one = linear(None)
    charge = privacy.training(settings, FlatView(one).num_parameters)
    paid = payment.pay(
        folder, parts, charge, privacy, paid_before=np.zeros(len(parts), int), secure_noise=False
    )
    return noisy_training(settings, one, parts, privacy=privacy, payments=paid, noise=noise)


def test_sums_are_those_of_a_loop_over_records():
    one, share = model(), records(40)
    view = FlatView(one)
    owners = np.arange(40) % 3
    indices = np.sort(np.random.default_rng(0).permutation(view.num_parameters)[:17])
    clip = 0.3
    found = RecordGradients(view, 3).sums(
        view.initial(), share.inputs, share.labels, owners, indices=indices, clip=clip
    )
    expected = np.zeros((3, 17))
    for number in range(40):
        with tf.GradientTape() as tape:
            logits = one(share.inputs[number : number + 1])
            loss = keras.losses.sparse_categorical_crossentropy(
                share.labels[number : number + 1], logits, from_logits=True
            )
        gradient = view.joined(tape.gradient(loss, one.trainable_variables)).numpy()
        gradient = gradient[indices].astype(np.float64)
        expected[owners[number]] += gradient * min(1.0, clip / np.linalg.norm(gradient))
    np.testing.assert_allclose(found * clip / LATTICE, expected, atol=20 * clip / LATTICE)


def test_no_record_adds_more_than_the_clipping_length():
    one, share = model(), records(30)
    view = FlatView(one)
    sums = RecordGradients(view, 30).sums(
        view.initial(),
        share.inputs,
        share.labels,
        np.arange(30),
        indices=np.arange(view.num_parameters),
        clip=1e-3,
    )
    lengths = [sum(int(step) ** 2 for step in row) for row in sums.tolist()]
    assert max(lengths) <= LATTICE**2
    assert min(lengths) > 0.99 * LATTICE**2


def test_clipped_steps():
    generator = np.random.default_rng(0)
    for scale in (1e-6, 1.0, 1e6):
        steps = clipped_steps((scale * generator.normal(size=500)).astype(np.float32), 0.5)
        assert sum(int(step) ** 2 for step in steps.tolist()) <= LATTICE**2
    assert clipped_steps(np.array([np.nan, 1.0], np.float32), 1.0).tolist() == [0, 0]
    small = np.array([0.25, -0.125], np.float32)
    np.testing.assert_allclose(clipped_steps(small, 1.0) / LATTICE, small, atol=1e-5)


def test_a_record_that_is_not_finite_adds_nothing():
    one = linear(None)
    one.set_weights([np.full((6, 3), 3e38, np.float32), np.zeros(3, np.float32)])
    view = FlatView(one)
    share = records(5)
    sums = RecordGradients(view, 1).sums(
        view.initial(),
        share.inputs * np.float32(1e10),
        share.labels,
        np.zeros(5, int),
        indices=np.arange(21),
        clip=1.0,
    )
    assert np.abs(sums).max() <= 5 * LATTICE


@pytest.mark.parametrize(
    "layers", [(keras.layers.BatchNormalization(),), (keras.layers.Dropout(0.5),)]
)
def test_models_that_mix_records_are_refused(layers):
    with pytest.raises(ValueError, match="treats records apart"):
        RecordGradients(FlatView(model(*layers)), 2)


def test_the_noise_has_the_scale_that_was_paid_for(tmp_path):
    privacy = Privacy(kind="record", target_epsilon=2.0, sampling_rate=0.3)
    settings = synchronous(num_participants=2, rounds=3)
    one = training(tmp_path, privacy, settings, shares(2, 10))
    charge = privacy.training(settings, 21)
    assert charge.epsilon(1e-5) <= 2.0
    assert one._scale**2 >= (charge.noise_multiplier * LATTICE) ** 2 + 64.0
    assert one._scale == pytest.approx(charge.noise_multiplier * LATTICE, rel=1e-9)

    drawn = []

    class Recorded(SeededNoise):
        def gaussian_integers(self, scale, size):
            drawn.append((scale, size))
            return super().gaussian_integers(scale, size)

    one._noise = Recorded(1)
    one.run_round()
    assert drawn == [(one._scale, 21)] * 2


@pytest.mark.parametrize("kind", ["record", "participant"])
@pytest.mark.parametrize("choice", ["shared_seed", "history"])
def test_the_choice_of_parameters_does_not_look_at_records(tmp_path, kind, choice):
    privacy = Privacy(kind=kind, target_epsilon=5.0, sampling_rate=1.0, momentum=0.0, choice=choice)
    settings = synchronous(upload=0.3, batch_size=5, num_participants=2)
    chosen = []
    for number, parts in enumerate((shares(2, 10), [records(10, seed) for seed in (7, 8)])):
        one = training(tmp_path / str(number), privacy, settings, parts)
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
    assert chosen[0][0] == chosen[1][0]
    if choice == "shared_seed":
        assert chosen[0][1] == chosen[1][1]


def test_nothing_is_uploaded_that_was_not_paid_for(tmp_path):
    privacy = Privacy(kind="record", target_epsilon=2.0)
    settings, parts = synchronous(), shares(3, 10)
    charge = privacy.training(settings, 21)
    paid = payment.pay(
        tmp_path, parts, charge, privacy, paid_before=np.zeros(3, int), secure_noise=True
    )
    options = {"privacy": privacy, "noise": SystemNoise()}
    for wrong in ([], paid[:2], [paid[0]] * 3):
        with pytest.raises(ValueError, match=r"^payments: expected"):
            GaussianTraining(settings, linear(None), parts, payments=wrong, **options)
    other = synchronous(rounds=5)
    with pytest.raises(ValueError, match=r"^payments: expected"):
        GaussianTraining(other, linear(None), parts, payments=paid, **options)


def test_each_ledger_is_charged_once_and_refuses_more(tmp_path):
    privacy = Privacy(kind="record", target_epsilon=2.0)
    settings, parts = synchronous(), shares(3, 10)
    charge = privacy.training(settings, 21)
    before = payment.times_paid(tmp_path, parts, charge, privacy)
    assert before.tolist() == [0, 0, 0]
    options = {"paid_before": before, "secure_noise": True}
    first = payment.pay(tmp_path, parts, charge, privacy, **options)
    assert payment.pay(tmp_path, parts, charge, privacy, **options) == first
    assert all(1.9 < one.epsilon <= 2.0 for one in first)
    for participant in range(3):
        with Ledger.read(tmp_path / f"{participant:04d}") as ledger:
            assert ledger.paid() == {charge: 1}
            assert ledger.epsilon_budget == 2.0
    options["paid_before"] = payment.times_paid(tmp_path, parts, charge, privacy)
    with pytest.raises(LedgerError, match="expected at most 0"):
        payment.pay(tmp_path, parts, charge, privacy, **options)


def test_what_several_participants_hold_costs_several_times(tmp_path):
    privacy = Privacy(kind="record", target_epsilon=2.0)
    parts = shares(3, 10)
    charge = privacy.training(synchronous(), 21)
    options = {"paid_before": np.zeros(3, int), "secure_noise": True, "holders": 2}
    paid = payment.pay(tmp_path, parts, charge, privacy, **options)
    assert paid[0].epsilon > 2.3


def test_a_private_run_that_was_stopped_goes_on(tmp_path):
    privacy = Privacy(kind="record", target_epsilon=50.0, sampling_rate=1.0)
    parts = shares(3, 30)
    one = training(tmp_path / "a", privacy, synchronous(), parts)
    other = training(tmp_path / "b", privacy, synchronous(), parts, SeededNoise(0))
    for _ in range(2):
        one.run_round()
        other.run_round()
    anew = training(tmp_path / "b", privacy, synchronous(), parts, other._noise)
    anew.restore(other.state())
    for _ in range(2):
        one.run_round()
        anew.run_round()
    assert anew.released_parameters().tobytes() == one.released_parameters().tobytes()


@pytest.mark.parametrize("kind", ["record", "participant", "sparse_vector"])
def test_every_kind_learns_where_noise_is_small(tmp_path, kind):
    privacy = Privacy(kind=kind, target_epsilon=1e4 if kind != "sparse_vector" else 1e6, clip=2.0)
    is_gaussian = kind != "sparse_vector"
    settings = Settings(
        num_participants=4,
        rounds=10,
        upload=1.0 if is_gaussian else 0.5,
        protocol="synchronous" if is_gaussian else "round_robin",
        learning_rate=0.3,
    )
    shared = door.train(
        records(400),
        settings,
        model=linear,
        privacy=privacy,
        directory=tmp_path,
        noise=SeededNoise(3),
    )
    samples = records(500, seed=99)
    logits = shared.global_model().predict(samples.inputs, verbose=0)
    assert (logits.argmax(axis=1) == samples.labels).mean() > 0.85


def canary_statistics(tmp_path, scale_factor: float, number: int) -> tuple[np.ndarray, np.ndarray]:
    """What a server sees of a canary, along its gradient, with it and with its opposite.

    All else is known. The first round of one participant with q = 1: the sum is the canary's
    clipped gradient and the noise.
    """
    privacy = Privacy(kind="record", target_epsilon=1.0, sampling_rate=1.0, momentum=0.0)
    settings = synchronous(num_participants=1, rounds=1)
    share = records(1)
    one = training(tmp_path, privacy, settings, [share], SeededNoise(5))
    one._scale *= scale_factor
    (exact,), _, _ = one._sums_of_records(np.arange(21))
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


def test_a_canary_shows_no_more_than_was_stated_and_half_the_noise_is_found_out(tmp_path):
    right = epsilon_that_is_shown(*canary_statistics(tmp_path / "a", 1.0, 200_000), 1e-5)
    half = epsilon_that_is_shown(*canary_statistics(tmp_path / "b", 0.5, 200_000), 1e-5)
    assert 0.2 < right <= 1.0
    assert half > 1.0


def test_who_knows_the_noise_to_be_there_sees_a_gaussian(tmp_path):
    here, _ = canary_statistics(tmp_path, 1.0, 4000)
    charge = Privacy(kind="record", target_epsilon=1.0, sampling_rate=1.0).training(
        synchronous(num_participants=1, rounds=1), 21
    )
    scale = noise_scale(charge)
    standard = (here - here.mean()) / scale
    assert abs(standard.std() - 1.0) < 0.06
    assert abs((standard < 1.0).mean() - norm.cdf(1.0)) < 0.03


def test_the_sparse_vector_uploads_few_and_clipped_numbers():
    charge = SparseVectorTraining(epsilon_each=50.0, num_uploaded=5, rounds=1)
    change = np.zeros(200, np.float32)
    change[[3, 50, 120]] = [0.5, -2.0, 1.0]
    options = {"charge": charge, "gamma": 1.0, "threshold": 0.3, "noise": SeededNoise(0)}
    seen: set[int] = set()
    for number in range(20):
        generator = np.random.default_rng(number)
        indices, values = sparse_vector.uploaded(change, generator=generator, **options)
        assert len(indices) <= 5
        assert (np.diff(indices) > 0).all()
        assert np.abs(values).max() <= 1.0
        seen.update(indices.tolist())
    assert {50, 120} <= seen
    faint = SparseVectorTraining(epsilon_each=1e-9, num_uploaded=5, rounds=1)
    with pytest.raises(ValueError, match=r"^target_epsilon: expected more"):
        sparse_vector.uploaded(
            change, generator=np.random.default_rng(0), **{**options, "charge": faint}
        )


def test_gaussian_noise_needs_synchronous_rounds():
    with pytest.raises(ValueError, match=r"^protocol: expected 'synchronous'"):
        Privacy(kind="record", target_epsilon=1.0).training(Settings(), 10)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("kind", "any"), ("target_epsilon", None), ("target_epsilon", 0.0), ("delta", 0.0)),
        *(("clip", 0.0), ("sampling_rate", 0.0), ("momentum", 1.0), ("choice", "largest")),
    ],
)
def test_privacy_is_checked(name, value):
    with pytest.raises(ValueError, match="expected"):
        Privacy(**{"kind": "record", "target_epsilon": 1.0, name: value})


def test_a_charge_that_cannot_be_drawn_is_refused():
    with pytest.raises(ValueError, match=r"^target_epsilon: expected"):
        noise_scale(NoisyTraining(sampling_rate=0.1, noise_multiplier=2000.0, rounds=1))
