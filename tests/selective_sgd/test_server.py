"""The server and its uploads: state machines with kills against a plain model, bad uploads."""

import functools
import os
import pathlib
import signal

import numpy as np
import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from script_processes import start
from shared_helpers import INITIAL, PARTICIPANTS, SIZE, upload

from pate_tf.selective_sgd.run_state import DurableRun
from pate_tf.selective_sgd.server import ParameterServer, Upload
from pate_tf.selective_sgd.training_settings import PROTOCOLS, TrainingSettings

ROUNDS = 4
CHANGES = st.dictionaries(
    st.integers(0, SIZE - 1), st.floats(-2.0, 2.0, width=32), min_size=1, max_size=10
)
PARTICIPANT = st.integers(0, PARTICIPANTS - 1)


def server(protocol="round_robin", folder=None, run=None, **options) -> ParameterServer:
    given = {"num_participants": PARTICIPANTS, "rounds": ROUNDS, "upload": 0.25, "gamma": 2.0}
    settings = TrainingSettings(protocol=protocol, **{**given, **options})
    if folder is not None:
        run = DurableRun(folder, "server", {"run": "a run"})
        run.close()  # another server may open the folder
    return ParameterServer(settings, INITIAL, run=run)


def state_of(served: ParameterServer) -> dict[str, bytes]:
    return {name: np.asarray(array).tobytes() for name, array in vars(served.state).items()}


class TurnMachine(RuleBasedStateMachine):
    """Participants that pull, push, repeat and cheat, and a server that is killed at any moment.

    The model is a list of the applied uploads, and the version that each participant has.
    """

    protocol = "round_robin"

    def __init__(self) -> None:
        super().__init__()
        self.folder = pathlib.Path(os.environ["PATE_TF_STATE"]) / os.urandom(8).hex()
        self.kill()
        self.values = [INITIAL.copy()]  # after each upload
        self.last: dict[int, Upload] = {}
        self.held: dict[int, int] = {}  # version that a participant trains on

    @rule()
    def kill(self):
        """Kills the process: its memory is lost, and nothing is closed in order."""
        self.server = server(self.protocol, self.folder)

    @property
    def version(self) -> int:
        return len(self.values) - 1

    def next_round(self, participant: int) -> int:
        return self.last[participant].round + 1 if participant in self.last else 0

    def is_next(self, participant: int) -> bool:
        return self.protocol == "asynchronous" or self.version % PARTICIPANTS == participant

    def upload(self, participant, changes, turn=None, version=None):
        indices = np.array(sorted(changes), np.int64)
        values = np.array([changes[index] for index in indices.tolist()], np.float32)
        turn = self.next_round(participant) if turn is None else turn
        version = self.held[participant] if version is None else version
        return upload(participant, turn, version, indices=indices, values=values)

    @rule(participant=PARTICIPANT)
    def pull(self, participant):
        turn, version = self.next_round(participant), self.version
        pulled = self.server.pull(participant, turn)
        if turn == ROUNDS:
            assert (pulled is not None) == (version == ROUNDS * PARTICIPANTS)
            return
        is_turn = self.is_next(participant)
        if self.protocol == "synchronous":
            is_turn = turn == version // PARTICIPANTS
            version = PARTICIPANTS * (version // PARTICIPANTS)
        assert (pulled is not None) == is_turn
        if pulled is not None:
            assert pulled.version == version
            assert pulled.values.tobytes() == self.values[version].tobytes()
            self.held[participant] = version

    @rule(participant=PARTICIPANT, changes=CHANGES)
    def push(self, participant, changes):
        if participant not in self.held:
            return
        sent = self.upload(participant, changes)
        is_applied = self.server.push(sent)
        assert is_applied == self.is_next(participant)
        if not is_applied:
            assert self.protocol == "synchronous"
            return
        stale = self.version - self.held.pop(participant)
        factor = np.float32(1 / PARTICIPANTS if self.protocol == "synchronous" else 1 / (1 + stale))
        values = self.values[-1].copy()
        for index, change in changes.items():
            values[index] += factor * np.float32(change)
        self.values.append(values)
        self.last[participant] = sent

    @rule(number=st.integers(1, 5), changes=CHANGES)
    def take_turns(self, number, changes):
        """Takes several turns one after another, so that runs finish."""
        for _ in range(number):
            if self.version < ROUNDS * PARTICIPANTS:
                if self.protocol == "asynchronous":
                    participant = min(range(PARTICIPANTS), key=self.next_round)
                else:
                    participant = self.version % PARTICIPANTS
                if participant not in self.held:
                    self.pull(participant)
                self.push(participant, changes)

    @precondition(lambda self: self.last)
    @rule(participant=PARTICIPANT, altered=st.booleans())
    def push_again(self, participant, altered):
        if participant not in self.last:
            return
        sent = self.last[participant]
        if not altered:
            assert self.server.push(sent)
            return
        values = np.full(len(sent.values), 1.25, np.float32)
        if values.tolist() != sent.values.tolist():
            parts = {"indices": sent.indices, "values": values}
            self.refused(upload(participant, sent.round, sent.version, **parts), "another upload")

    @rule(
        participant=PARTICIPANT, changes=CHANGES, ahead=st.integers(-2, 5), newer=st.integers(0, 1)
    )
    def push_out_of_turn(self, participant, changes, ahead, newer):
        """Pushes a round before or after the next one, or a version that does not exist yet."""
        turn = self.next_round(participant) + ahead
        if turn < 0 or ahead == -1 or (ahead == 0 and not newer and self.is_next(participant)):
            return
        is_early = self.protocol == "synchronous" and turn == self.version // PARTICIPANTS
        if is_early and not newer and self.version % PARTICIPANTS == 0:
            return  # valid, although others come first
        self.refused(self.upload(participant, changes, turn, self.version + newer), "upload|turn")

    def refused(self, sent, why):
        with pytest.raises(ValueError, match=why):
            self.server.push(sent)

    @invariant()
    def holds_what_was_applied_once(self):
        assert self.server.version == self.version
        assert self.server.state.values.tobytes() == self.values[-1].tobytes()


def machine(protocol: str) -> type:
    made = type(f"Machine_{protocol}", (TurnMachine,), {"protocol": protocol}).TestCase
    made.settings = hypothesis_settings(max_examples=10, stateful_step_count=30, deadline=None)
    return made


TestRoundRobin, TestAsynchronous, TestSynchronous = map(machine, PROTOCOLS)


def test_with_noise_the_second_half_of_the_rounds_is_averaged():
    noisy = {"privacy": "record", "target_epsilon": 1.0, "gamma": None, "upload": 1.0}
    served, ends = server("synchronous", **noisy), []
    for turn in range(ROUNDS):
        for participant in range(PARTICIPANTS):
            served.push(upload(participant, turn, turn * PARTICIPANTS))
        ends.append(served.state.values.astype(np.float64))
    np.testing.assert_allclose(served.released(), np.mean(ends[ROUNDS // 2 :], axis=0))
    assert served.pull(0, ROUNDS).values.tobytes() == served.released().tobytes()


def test_a_participant_that_lost_its_folder_gets_an_error():
    served = server()
    served.push(upload())
    with pytest.raises(ValueError, match="round 0 of participant 0 was already applied"):
        served.pull(0, 0)
    with pytest.raises(ValueError, match="round must be a whole number from 0 to 4, got 5"):
        served.pull(0, 5)


@pytest.mark.parametrize(
    ("indices", "values"),
    [
        *(([7, 3], [0.5, 1.0]), ([3, 3], [0.5, 1.0]), ([3, SIZE], [0.5, 1.0])),
        *(([-1, 3], [0.5, 1.0]), (range(11), [0.5] * 11), ([3, 7], [0.5])),
        *(([3], [value]) for value in (np.nan, np.inf, -np.inf, 2.1, -2.1, 3e38)),
    ],
)
def test_what_is_malformed_is_refused_in_a_line_and_changes_nothing(indices, values):
    served = server()
    before = state_of(served)
    sent = upload(indices=np.array(indices), values=np.array(values, np.float32))
    with pytest.raises(ValueError, match=r"^(an upload|the upload|indices) [^\n]{10,200}$"):
        served.push(sent)
    assert state_of(served) == before


def _push_and_die(folder: pathlib.Path, at: str) -> None:
    """Kills the server while it receives an upload."""
    served = server(folder=folder)
    for participant in range(2):
        served.push(upload(participant, 0, participant))
    die = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731
    if at == "half written":
        os.replace = os.rename = pathlib.Path.replace = pathlib.Path.rename = die
    else:
        served._run.save = die
    served.push(upload(2, 0, 2))


@pytest.mark.parametrize("at", ["half written", "before it is durable"])
def test_a_killed_server_resumes_and_applies_each_upload_once(tmp_path, at):
    folder = tmp_path / "run"
    dying = start(functools.partial(_push_and_die, folder, at), folder=tmp_path)
    assert dying.wait().code == -signal.SIGKILL
    served, expected = server(folder=folder), server()
    assert served.version == 2  # the participant got no answer, so it sends the upload again
    assert served.push(upload(2, 0, 2))
    for participant in range(3):
        expected.push(upload(participant, 0, participant))
    assert state_of(served) == state_of(server(folder=folder)) == state_of(expected)


def test_a_damaged_state_and_that_of_another_run_are_refused(tmp_path):
    server(folder=tmp_path).push(upload())
    with pytest.raises(ValueError, match=r"has a run with other settings: run."):
        DurableRun(tmp_path, "server", {"run": "another"})
    run = DurableRun(tmp_path, "server", {"run": "a run"})
    with pytest.raises(ValueError, match="the stored state is for another model"):
        ParameterServer(TrainingSettings(num_participants=3), INITIAL[:7], run=run)
    run.close()
    (run.folder / "state.npz").write_bytes(b"PK")
    with pytest.raises(ValueError, match="is not a complete"):
        server(folder=tmp_path)
