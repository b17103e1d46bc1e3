"""The server that knows whose turn it is: a state machine with kills, against a plain model."""

import os
import pathlib

import numpy as np
import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from uploads_for_tests import PARTICIPANTS, RUN, SIZE, upload

from pate_tf.selective_sgd.privacy import Privacy
from pate_tf.selective_sgd.settings import PROTOCOLS, Settings
from pate_tf.selective_sgd.turn_server import EARLY, OK, SAME, TurnServer, order_of_turns
from pate_tf.selective_sgd.upload import RefusedUploadError, encode

ROUNDS = 4
GAUSSIAN = Privacy(kind="record", target_epsilon=1.0)
INITIAL = np.arange(SIZE, dtype=np.float32)
CHANGES = st.dictionaries(
    st.integers(0, SIZE - 1), st.floats(-2.0, 2.0, width=32), min_size=1, max_size=10
)
PARTICIPANT = st.integers(0, PARTICIPANTS - 1)


def settings_of(protocol: str) -> Settings:
    return Settings(
        num_participants=PARTICIPANTS,
        rounds=ROUNDS,
        upload=0.25,
        download=1.0,
        gamma=2.0,
        protocol=protocol,
    )


class TurnMachine(RuleBasedStateMachine):
    """Participants that pull, push, repeat and cheat; a server that is killed at any moment.

    The model is a list of what was applied, and who holds which version.
    """

    protocol = "round_robin"

    def __init__(self) -> None:
        super().__init__()
        self.settings = settings_of(self.protocol)
        self.folder = pathlib.Path(os.environ["PATE_TF_STATE"]) / os.urandom(8).hex()
        self.server = self.started()
        self.values = [INITIAL.copy()]  # after each upload
        self.last: dict[int, tuple[int, bytes]] = {}
        self.held: dict[int, int] = {}  # version that a participant trains on

    def started(self) -> TurnServer:
        return TurnServer(self.settings, INITIAL, run=RUN, privacy=GAUSSIAN, folder=self.folder)

    @property
    def version(self) -> int:
        return len(self.values) - 1

    @property
    def round(self) -> int:
        return self.version // PARTICIPANTS

    def next_round(self, participant: int) -> int:
        return self.last.get(participant, (-1, b""))[0] + 1

    def is_next(self, participant: int) -> bool:
        if self.protocol == "asynchronous":
            return True
        order = order_of_turns(self.settings, self.round)
        return int(order[self.version % PARTICIPANTS]) == participant

    def content(self, participant, changes, turn=None, version=None):
        indices = np.array(sorted(changes), np.int64)
        return encode(
            upload(
                participant,
                self.next_round(participant) if turn is None else turn,
                self.held[participant] if version is None else version,
                indices=indices,
                values=np.array([changes[one] for one in indices.tolist()], np.float32),
            )
        )

    @rule(participant=PARTICIPANT)
    def pull(self, participant):
        turn = self.next_round(participant)
        found = self.server.parameters_for(participant, turn)
        if turn == ROUNDS:
            assert (found is not None) == (self.version == ROUNDS * PARTICIPANTS)
            return
        version = self.version
        if self.protocol == "synchronous":
            version = PARTICIPANTS * self.round
            may = turn == self.round
        else:
            may = self.is_next(participant)
        assert (found is not None) == may
        if found is not None:
            assert found.version == version
            assert found.values.tobytes() == self.values[version].tobytes()
            self.held[participant] = version

    @rule(participant=PARTICIPANT, changes=CHANGES)
    def push(self, participant, changes):
        if participant not in self.held:
            return
        content = self.content(participant, changes)
        turn, version = self.next_round(participant), self.held[participant]
        answer = self.server.push_in_turn(content)
        if not self.is_next(participant):
            assert (self.protocol, answer) == ("synchronous", EARLY)
            return
        assert answer == OK
        stale = 0 if self.protocol == "synchronous" else self.version - version
        rate = 1 / PARTICIPANTS if self.protocol == "synchronous" else 1.0
        factor = np.float32(rate * (1.0 + stale) ** -1.0)
        values = self.values[-1].copy()
        for index, change in changes.items():
            values[index] += factor * np.float32(change)
        self.values.append(values)
        self.last[participant] = (turn, content)
        del self.held[participant]

    @rule(number=st.integers(1, 5), changes=CHANGES)
    def take_turns(self, number, changes):
        """Several turns one after another, so that runs come to their end."""
        for _ in range(number):
            if self.version == ROUNDS * PARTICIPANTS:
                return
            if self.protocol == "asynchronous":
                participant = min(range(PARTICIPANTS), key=self.next_round)
            else:
                participant = next(filter(self.is_next, range(PARTICIPANTS)))
            if participant not in self.held:
                self.pull(participant)
            self.push(participant, changes)

    @precondition(lambda self: self.last)
    @rule(participant=PARTICIPANT, altered=st.booleans())
    def push_again(self, participant, altered):
        if participant not in self.last:
            return
        _, content = self.last[participant]
        if not altered:
            assert self.server.push_in_turn(content) == SAME
            return
        other = content[:-4] + np.float32(1.25).tobytes()
        if other != content:
            with pytest.raises(RefusedUploadError, match="with other content"):
                self.server.push_in_turn(other)

    @rule(participant=PARTICIPANT, changes=CHANGES, ahead=st.integers(1, 5))
    def push_of_a_later_round(self, participant, changes, ahead):
        turn = self.next_round(participant) + ahead
        content = self.content(participant, changes, turn, self.version)
        with pytest.raises(RefusedUploadError, match="upload: expected round"):
            self.server.push_in_turn(content)

    @precondition(lambda self: self.protocol in ("round_robin", "random"))
    @rule(participant=PARTICIPANT, changes=CHANGES)
    def push_out_of_turn(self, participant, changes):
        if self.is_next(participant) or self.next_round(participant) == ROUNDS:
            return
        content = self.content(participant, changes, version=self.version)
        with pytest.raises(RefusedUploadError, match="upload: expected one of"):
            self.server.push_in_turn(content)

    @rule(participant=PARTICIPANT, changes=CHANGES)
    def push_from_a_version_to_come(self, participant, changes):
        if self.next_round(participant) == ROUNDS:
            return
        content = self.content(participant, changes, version=self.version + 1)
        with pytest.raises(RefusedUploadError):
            self.server.push_in_turn(content)

    @rule()
    def kill(self):
        """What the process had in memory is gone; nothing is closed in order."""
        self.server = self.started()

    @invariant()
    def holds_what_was_applied_once(self):
        assert self.server.version == self.version
        assert self.server.values.tobytes() == self.values[-1].tobytes()

    @invariant()
    def averages_the_second_half_of_the_rounds(self):
        ends = self.values[PARTICIPANTS::PARTICIPANTS][ROUNDS // 2 :]
        if len(ends) == ROUNDS - ROUNDS // 2:
            expected = np.mean([one.astype(np.float64) for one in ends], axis=0)
            assert self.server.released().tolist() == expected.astype(np.float32).tolist()

    def teardown(self):
        self.server.close()


def machine(protocol: str) -> type:
    made = type(f"Machine_{protocol}", (TurnMachine,), {"protocol": protocol}).TestCase
    made.settings = hypothesis_settings(max_examples=12, stateful_step_count=40, deadline=None)
    return made


TestRoundRobin, TestRandom, TestAsynchronous, TestSynchronous = map(machine, PROTOCOLS)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_whole_run_is_over_when_everybody_is_done(protocol, tmp_path):
    server = TurnServer(settings_of(protocol), INITIAL, run=RUN, folder=tmp_path / "journal")
    for number in range(ROUNDS):
        assert not server.is_over
        given = {}
        for participant in order_of_turns(server.settings, number).tolist():
            if protocol == "synchronous" and not given:
                given = {one: server.parameters_for(one, number) for one in range(PARTICIPANTS)}
            found = given.get(participant) or server.parameters_for(participant, number)
            assert server.push_in_turn(encode(upload(participant, number, found.version))) == OK
    assert server.is_over and server.turn is None
    assert server.parameters_for(0, ROUNDS).values.tobytes() == server.values.tobytes()
    with pytest.raises(RefusedUploadError):
        server.push_in_turn(encode(upload(0, ROUNDS, server.version)))
    server.close()
    # The journal is begun anew after each round: it does not grow with the run.
    (log,) = (tmp_path / "journal").glob("*.log")
    assert log.stat().st_size < 100


@pytest.mark.parametrize("protocol", ["synchronous", "round_robin"])
def test_a_server_that_is_killed_all_the_time_goes_on_in_the_middle_of_rounds(protocol, tmp_path):
    steady = TurnServer(settings_of(protocol), INITIAL, run=RUN, privacy=GAUSSIAN)
    for number in range(ROUNDS):
        for participant in range(PARTICIPANTS):
            killed = TurnServer(
                settings_of(protocol), INITIAL, run=RUN, privacy=GAUSSIAN, folder=tmp_path
            )
            found = killed.parameters_for(participant, number)
            expected = steady.parameters_for(participant, number)
            assert found.version == expected.version
            assert found.values.tobytes() == expected.values.tobytes()
            content = encode(upload(participant, number, found.version))
            assert steady.push_in_turn(content) == killed.push_in_turn(content) == OK
    assert killed.released().tobytes() == steady.released().tobytes()
    # Both uploads of a round move parameter 3; the mean of the last two rounds of four.
    each = 0.5 if protocol == "synchronous" else 0.5 * PARTICIPANTS
    assert steady.released()[3] == pytest.approx(3.0 + 3.5 * each)


def test_a_participant_that_lost_its_folder_is_told():
    server = TurnServer(settings_of("round_robin"), INITIAL, run=RUN)
    server.push_in_turn(encode(upload(0, 0, 0)))
    with pytest.raises(ValueError, match="round 0 of participant 0 was applied already"):
        server.parameters_for(0, 0)
    with pytest.raises(ValueError, match="round: expected one from 0 to 4, got 5"):
        server.parameters_for(0, 5)
    with pytest.raises(ValueError, match="participant: expected one from 0"):
        server.parameters_for(PARTICIPANTS, 0)


def test_a_journal_that_can_t_be_begun_anew_loses_nothing(tmp_path, monkeypatch):
    server = TurnServer(settings_of("round_robin"), INITIAL, run=RUN, folder=tmp_path)
    for participant in range(PARTICIPANTS - 1):
        server.push_in_turn(encode(upload(participant, 0, participant)))

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    last = encode(upload(PARTICIPANTS - 1, 0, PARTICIPANTS - 1))
    with monkeypatch.context() as patch:
        patch.setattr("pate_tf.core.artifacts.write_arrays", full)
        with pytest.raises(OSError, match="No space"):
            server.push_in_turn(last)
    assert server.push_in_turn(last) == SAME
    again = TurnServer(settings_of("round_robin"), INITIAL, run=RUN, folder=tmp_path)
    assert again.values.tobytes() == server.values.tobytes()
    assert again.push_in_turn(encode(upload(0, 1, PARTICIPANTS))) == OK
