"""Participants that train elsewhere: bit for bit what one process does, wherever they die."""

import threading
import time

import keras
import numpy as np
import pytest
from participants_for_tests import model, shares

from pate_tf.aggregation.noise import SystemNoise
from pate_tf.selective_sgd.joined import JoinedParticipant, patiently
from pate_tf.selective_sgd.privacy import Payment, Privacy
from pate_tf.selective_sgd.private_training import noisy_training
from pate_tf.selective_sgd.roster import Roster
from pate_tf.selective_sgd.settings import Settings
from pate_tf.selective_sgd.training import SharedTraining
from pate_tf.selective_sgd.turn_server import OK, SAME, TurnServer

NAMES = ("a", "b", "c")
ROUNDS = 3


class NoNoise(SystemNoise):
    """Draws zeros, so that what is drawn in one process and in three is the same."""

    def gaussian_integers(self, scale, size):
        return np.zeros(size, np.int64)


def roster_of(privacy=None, **options):
    settings = Settings(num_participants=len(NAMES), rounds=ROUNDS, **options)
    return Roster(
        run="blobs", dataset="blobs", names=NAMES, settings=settings, privacy=privacy or Privacy()
    )


def payment_of(charge):
    return Payment(
        charge=charge,
        epsilon=1.0,
        delta=1e-5,
        ledger_head=(2, "a" * 64),
        secure_noise=True,
        was_reset=False,
    )


def pay_for(roster):
    return None if roster.privacy.kind == "none" else payment_of


def in_one_process(roster, layers=()):
    own = shares(len(NAMES), 20)
    if roster.privacy.kind == "none":
        training = SharedTraining(roster.settings, model(*layers), own)
    else:
        training = noisy_training(
            roster.settings,
            model(*layers),
            own,
            privacy=roster.privacy,
            pay=payment_of,
            noise=NoNoise(),
        )
    for _ in range(ROUNDS):
        training.run_round()
    return training


class KilledError(Exception):
    """A participant's process is gone."""


class Line:
    """To a server in this process; `dies_at` counts down the steps that a participant survives."""

    def __init__(self, server, lock, number, dies_at=None):
        self.server, self.lock, self.number, self.steps = server, lock, number, dies_at

    def step(self):
        if self.steps is not None:
            self.steps -= 1
            if self.steps < 0:
                raise KilledError

    def pull(self, round_number):
        with self.lock:
            found = self.server.parameters_for(self.number, round_number)
        if found is None:
            time.sleep(0.001)
        elif round_number < ROUNDS:
            self.step()
        return found

    def push(self, content):
        self.step()
        with self.lock:
            answer = self.server.push_in_turn(content)
        if answer not in (OK, SAME):
            time.sleep(0.001)
            return False
        self.step()
        return True


def joined(roster, name, make_layers, initial):
    number = roster.number(name)
    return JoinedParticipant(
        roster,
        name,
        model(*make_layers(), seed=number),  # of other first parameters: the server's count
        shares(len(NAMES), 20)[number],
        initial=initial,
        pay=pay_for(roster),
        noise=NoNoise(),
    )


def across(roster, make_layers=tuple, dies_at=(), dying=()):
    """Trains with a thread for each participant; returns the server and the participants."""
    first = SharedTraining(roster.settings, model(*make_layers()), shares(len(NAMES), 20))
    initial = first.view.initial()
    server = TurnServer(roster.settings, initial, run=roster.run_id, privacy=roster.privacy)
    lock, found, failed = threading.Lock(), {}, []

    def take_part(name):
        kills, saved, number = list(dies_at if name in dying else ()), {}, roster.number(name)
        while name not in found:
            line = Line(server, lock, number, kills.pop(0) if kills else None)
            one = joined(roster, name, make_layers, initial)
            if saved:
                one.restore(saved)
            try:

                def save(state, line=line):
                    line.step()
                    saved.update({key: np.array(value) for key, value in state.items()})
                    line.step()

                found[name] = (one, one.take_part(line, save=save))
            except KilledError:
                continue
            except Exception as error:
                failed.append(error)
                return

    threads = [threading.Thread(target=take_part, args=[name]) for name in NAMES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300.0)
    assert not failed, failed
    return server, [found[name] for name in NAMES]


CASES = {
    "round robin": {},
    "random order": {"protocol": "random"},
    "synchronous": {"protocol": "synchronous"},
    "some of the parameters, a local optimizer": {
        **{"upload": 0.3, "download": 0.4, "selection": "random", "gamma": 0.02},
        **{"optimizer": "adam", "learning_rate": 0.01},
    },
}


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_it_is_bit_for_bit_what_one_process_does(options):
    roster = roster_of(**options)
    expected = in_one_process(roster)
    server, found = across(roster)
    assert server.values.tobytes() == expected.server.values.tobytes()
    assert server.counts.tobytes() == expected.server.counts.tobytes()
    for (one, given), state in zip(found, expected.participants, strict=True):
        assert given.values.tobytes() == expected.released_parameters().tobytes()
        own = one._training.participants[0]
        assert own.parameters.tobytes() == state.parameters.tobytes()


def test_what_stays_local_stays_local():
    make_layers = lambda: (keras.layers.BatchNormalization(),)  # noqa: E731
    roster = roster_of()
    expected = in_one_process(roster, make_layers())
    server, found = across(roster, make_layers)
    assert server.values.tobytes() == expected.server.values.tobytes()
    for (one, _), state in zip(found, expected.participants, strict=True):
        for own, other in zip(one._training.participants[0].buffers, state.buffers, strict=True):
            assert own.tobytes() == other.tobytes()


def test_noisy_uploads_are_averaged_as_in_one_process():
    privacy = Privacy(kind="participant", target_epsilon=5.0)
    roster = roster_of(privacy, protocol="synchronous", upload=0.5)
    expected = in_one_process(roster)
    server, found = across(roster)
    assert server.values.tobytes() == expected.server.values.tobytes()
    assert server.released().tobytes() == expected.released_parameters().tobytes()
    assert found[0][1].values.tobytes() == expected.released_parameters().tobytes()


def test_asynchronous_participants_all_come_to_an_end():
    server, _ = across(roster_of(protocol="asynchronous"))
    assert server.is_over and np.isfinite(server.values).all()
    assert server.rounds.tolist() == [ROUNDS - 1] * len(NAMES)


@pytest.mark.parametrize(
    ("protocol", "dying"),
    [
        ("round_robin", "b"),
        pytest.param("round_robin", "abc", marks=pytest.mark.long),
        pytest.param("synchronous", "abc", marks=pytest.mark.long),
    ],
)
def test_killed_at_every_step_it_comes_to_the_same(protocol, dying):
    """After each of: pulled, about to save, saved, about to push, pushed; in a later round too."""
    roster = roster_of(protocol=protocol)
    server, _ = across(roster, dies_at=[0, 1, 2, 3, 4, 8], dying=dying)
    assert server.values.tobytes() == in_one_process(roster).server.values.tobytes()


def test_noise_is_drawn_once_for_what_may_have_left():
    """A participant that was killed sends the very bytes that it saved, not new noise."""
    privacy = Privacy(kind="participant", target_epsilon=5.0)
    roster = roster_of(privacy, protocol="synchronous")
    initial = SharedTraining(roster.settings, model(), shares(3, 20)).view.initial()
    server = TurnServer(roster.settings, initial, run=roster.run_id, privacy=privacy)
    sent, saved = [], {}

    class Dying(Line):
        def push(self, content):
            sent.append(content)
            raise KilledError

    for _ in range(3):
        one = JoinedParticipant(
            roster,
            "a",
            model(),
            shares(3, 20)[0],
            initial=initial,
            pay=payment_of,
            noise=SystemNoise(),
        )
        if saved:
            one.restore(saved)
        with pytest.raises(KilledError):
            one.take_part(Dying(server, threading.Lock(), 0), save=saved.update)
    assert len(set(sent)) == 1 and len(sent) == 3


def test_with_privacy_nothing_is_trained_that_is_not_charged(monkeypatch):
    roster = roster_of(Privacy(kind="participant", target_epsilon=5.0), protocol="synchronous")
    monkeypatch.setitem(globals(), "pay_for", lambda roster: None)
    with pytest.raises(ValueError, match="pay: expected one with privacy"):
        joined(roster, "a", tuple, np.zeros(53, np.float32))


def test_another_model_is_refused():
    roster = roster_of()
    with pytest.raises(ValueError, match="model: expected 7 parameters, as the server has"):
        joined(roster, "a", tuple, np.zeros(7, np.float32))


def test_who_can_t_be_reached_is_asked_again_after_longer_waits():
    answers = [ConnectionError("gone"), ConnectionError("gone"), None, "there"]
    waits, told = [], []

    def ask():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert patiently(ask, sleep=waits.append, on_event=told.append) == "there"
    assert len(waits) == 2 and waits[1] > waits[0] / 2
    assert told == ["gone; trying again"] * 2
