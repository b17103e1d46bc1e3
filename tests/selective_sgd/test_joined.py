"""Participants that train elsewhere: bit for bit what one process does, wherever they die."""

import threading
import time

import keras
import numpy as np
import pytest
from shared_helpers import facts_of, model, shares

from pate_tf.release.noise import SystemNoise
from pate_tf.selective_sgd.joined import JoinedParticipant, until_answered
from pate_tf.selective_sgd.private_training import training_with
from pate_tf.selective_sgd.roster import Roster
from pate_tf.selective_sgd.server import OK, SAME, Server
from pate_tf.selective_sgd.settings import Privacy, Settings
from pate_tf.selective_sgd.training import SharedTraining

NAMES = ("a", "b", "c")
ROUNDS = 3
SHARES = shares(len(NAMES), 20)


class NoNoise(SystemNoise):
    """Draws zeros, so that what is drawn in one process and in three is the same."""

    def gaussian_integers(self, scale, size):
        return np.zeros(size, np.int64)


def roster_of(privacy=None, **options):
    settings = Settings(num_participants=len(NAMES), rounds=ROUNDS, **options)
    return Roster(
        run="blobs", dataset="blobs", names=NAMES, settings=settings, privacy=privacy or Privacy()
    )


def in_one_process(roster, layers=()):
    given = {"begin": None if roster.privacy.kind == "none" else facts_of, "noise": NoNoise()}
    training = training_with(roster.privacy, roster.settings, model(*layers), SHARES, **given)
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
            found = self.server.pull_in_turn(self.number, round_number)
        if found is None:
            time.sleep(0.001)
        elif round_number < ROUNDS:
            self.step()
        return found

    def push(self, content):
        self.step()
        with self.lock:
            answer = self.server.push(content)
        if answer not in (OK, SAME):
            time.sleep(0.001)
            return False
        self.step()
        return True


def first_parameters():
    return SharedTraining(Settings(num_participants=3), model(), SHARES).view.initial()


def joined(roster, name, layers=(), initial=None, noise=None, **options):
    number = roster.number(name)
    return JoinedParticipant(
        roster,
        name,
        model(*layers, seed=number),  # of other first parameters: the server's count
        SHARES[number],
        initial=first_parameters() if initial is None else initial,
        noise=noise or NoNoise(),
        **{"begin": None if roster.privacy.kind == "none" else facts_of, **options},
    )


def across(roster, make_layers=tuple, dies_at=(), dying=()):
    """Trains with a thread for each participant; returns the server and the participants."""
    first = SharedTraining(roster.settings, model(*make_layers()), SHARES)
    initial = first.view.initial()
    server = Server(roster.settings, initial, run=roster.run_id, privacy=roster.privacy)
    lock, found, failed = threading.Lock(), {}, []

    def take_part(name):
        kills, saved, number = list(dies_at if name in dying else ()), {}, roster.number(name)
        while name not in found:
            line = Line(server, lock, number, kills.pop(0) if kills else None)
            one = joined(roster, name, make_layers(), initial)
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


@pytest.mark.parametrize(
    ("options", "privacy", "make_layers"),
    [
        ({}, None, tuple),
        ({"protocol": "random"}, None, tuple),
        ({"protocol": "synchronous"}, None, tuple),
        (
            {
                **{"upload": 0.3, "download": 0.4, "selection": "random", "gamma": 0.02},
                **{"optimizer": "adam", "learning_rate": 0.01},
            },
            None,
            lambda: (keras.layers.BatchNormalization(),),
        ),
        (
            {"protocol": "synchronous", "upload": 0.5},
            Privacy(kind="participant", target_epsilon=5.0),
            tuple,
        ),
    ],
    ids=["round robin", "random", "synchronous", "parts, optimizer and buffers", "averaged"],
)
def test_it_is_bit_for_bit_what_one_process_does(options, privacy, make_layers):
    roster = roster_of(privacy, **options)
    expected = in_one_process(roster, make_layers())
    server, found = across(roster, make_layers)
    for name, array in expected.server.state().items():
        assert server.state()[name].tobytes() == array.tobytes() or name == "digests", name
    for (one, given), state in zip(found, expected.participants, strict=True):
        assert given.values.tobytes() == expected.released_parameters().tobytes()
        own = one._training.participants[0]
        assert own.parameters.tobytes() == state.parameters.tobytes() or privacy
        for buffer, other in zip(own.buffers, state.buffers, strict=True):
            assert buffer.tobytes() == other.tobytes()


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
    server = Server(roster.settings, first_parameters(), run=roster.run_id, privacy=privacy)
    sent, saved = [], {}

    class Dying(Line):
        def push(self, content):
            sent.append(content)
            raise KilledError

    for _ in range(3):
        one = joined(roster, "a", noise=SystemNoise())
        if saved:
            one.restore(saved)
        with pytest.raises(KilledError):
            one.take_part(Dying(server, threading.Lock(), 0), save=saved.update)
    assert len(set(sent)) == 1 and len(sent) == 3


def test_with_privacy_nothing_is_trained_that_is_not_charged():
    roster = roster_of(Privacy(kind="participant", target_epsilon=5.0), protocol="synchronous")
    with pytest.raises(ValueError, match="begin: expected one with privacy"):
        joined(roster, "a", begin=None)


def test_another_model_is_refused():
    with pytest.raises(ValueError, match="model: expected 7 parameters, as the server has"):
        joined(roster_of(), "a", initial=np.zeros(7, np.float32))


def test_a_server_that_cannot_be_reached_is_asked_again_after_longer_waits():
    answers = [ConnectionError("gone"), ConnectionError("gone"), None, "there"]
    waits, events = [], []

    def ask():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert until_answered(ask, sleep=waits.append, on_event=events.append) == "there"
    assert len(waits) == 2 and waits[1] > waits[0] / 2
    assert events == ["gone; trying again"] * 2
