"""The server and what it takes: state machines with kills against a plain model, bad uploads."""

import multiprocessing
import os
import pathlib
import signal

import numpy as np
import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from shared_helpers import INITIAL, PARTICIPANTS, RUN, SIZE, content, malformed, upload

from pate_tf.core import artifacts
from pate_tf.selective_sgd.server import EARLY, OK, SAME, Server, order_of_turns
from pate_tf.selective_sgd.settings import PROTOCOLS, Privacy, Settings
from pate_tf.selective_sgd.upload import HEADER, RefusedUploadError, decode, encode

ROUNDS = 4
GAUSSIAN = Privacy(kind="record", target_epsilon=1.0)
CHANGES = st.dictionaries(
    st.integers(0, SIZE - 1), st.floats(-2.0, 2.0, width=32), min_size=1, max_size=10
)
PARTICIPANT = st.integers(0, PARTICIPANTS - 1)


def server(protocol: str = "round_robin", folder=None, **options: object) -> Server:
    given = {"num_participants": PARTICIPANTS, "rounds": ROUNDS, "upload": 0.25, "gamma": 2.0}
    settings = Settings(protocol=protocol, **{**given, **options})
    return Server(settings, INITIAL, run=RUN, privacy=GAUSSIAN, folder=folder)


def state_of(one: Server) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in one.state().items()}


class TurnMachine(RuleBasedStateMachine):
    """Participants that pull, push, repeat and cheat; a server that is killed at any moment.

    The model is a list of what was applied, counts of updates, and who holds which version.
    """

    protocol = "round_robin"

    def __init__(self) -> None:
        super().__init__()
        self.folder = pathlib.Path(os.environ["PATE_TF_STATE"]) / os.urandom(8).hex()
        self.kill()
        self.values = [INITIAL.copy()]  # after each upload
        self.counts = [np.zeros(SIZE)]
        self.last: dict[int, tuple[int, bytes]] = {}
        self.held: dict[int, int] = {}  # version that a participant trains on

    @rule()
    def kill(self):
        """What the process had in memory is gone; nothing is closed in order."""
        self.server = server(self.protocol, self.folder, download=0.5, damping=0.5)

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
        order = order_of_turns(self.server.settings, self.round)
        return int(order[self.version % PARTICIPANTS]) == participant

    def content(self, participant, changes, turn=None, version=None):
        indices = np.array(sorted(changes), np.int64)
        values = np.array([changes[one] for one in indices.tolist()], np.float32)
        turn = self.next_round(participant) if turn is None else turn
        version = self.held[participant] if version is None else version
        return content(participant, turn, version, indices=indices, values=values)

    @rule(participant=PARTICIPANT)
    def pull(self, participant):
        turn = self.next_round(participant)
        found = self.server.pull_in_turn(participant, turn)
        if turn == ROUNDS:
            assert (found is not None) == (self.version == ROUNDS * PARTICIPANTS)
            return
        version = self.version
        if self.protocol == "synchronous":
            version = PARTICIPANTS * self.round
        is_synchronous = self.protocol == "synchronous"
        may = turn == self.round if is_synchronous else self.is_next(participant)
        assert (found is not None) == may
        if found is None:
            return
        assert found.version == version
        chosen = found.indices
        assert chosen.tolist() == self.server.pull_in_turn(participant, turn).indices.tolist()
        assert len(set(chosen.tolist())) == SIZE // 2
        assert found.values.tobytes() == self.values[version][chosen].tobytes()
        left_out = np.setdiff1d(np.arange(SIZE), chosen)
        assert self.counts[version][left_out].max() <= self.counts[version][chosen].min()
        self.held[participant] = version

    @rule(participant=PARTICIPANT, changes=CHANGES)
    def push(self, participant, changes):
        if participant not in self.held:
            return
        sent = self.content(participant, changes)
        turn, version = self.next_round(participant), self.held[participant]
        answer = self.server.push(sent)
        if not self.is_next(participant):
            assert (self.protocol, answer) == ("synchronous", EARLY)
            return
        assert answer == OK
        stale = 0 if self.protocol == "synchronous" else self.version - version
        rate = 1 / PARTICIPANTS if self.protocol == "synchronous" else 1.0
        factor = np.float32(rate * (1.0 + stale) ** -0.5)
        values, counts = self.values[-1].copy(), self.counts[-1].copy()
        for index, change in changes.items():
            values[index] += factor * np.float32(change)
            counts[index] += 1.0
        self.values.append(values)
        self.counts.append(counts * (1.0 if (self.version) % PARTICIPANTS else 0.9))
        self.last[participant] = (turn, sent)
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
        _, sent = self.last[participant]
        if not altered:
            assert self.server.push(sent) == SAME
            return
        other = sent[:-4] + np.float32(1.25).tobytes()
        if other != sent:
            self.refused(other, "with other content")

    @rule(
        participant=PARTICIPANT,
        changes=CHANGES,
        ahead=st.integers(-2, 5),
        newer=st.integers(0, 1),
    )
    def push_out_of_turn(self, participant, changes, ahead, newer):
        """A round before or after the one that is due, or a version that is yet to come."""
        turn = self.next_round(participant) + ahead
        if turn < 0 or ahead == -1 or (ahead == 0 and not newer and self.is_next(participant)):
            return
        sent = self.content(participant, changes, turn, self.version + newer)
        is_early = self.protocol == "synchronous" and turn == self.round and not newer
        if is_early and self.version % PARTICIPANTS == 0:
            return  # as it should be, though others come first
        self.refused(sent, "upload: ")

    def refused(self, sent, why):
        with pytest.raises(RefusedUploadError, match=why):
            self.server.push(sent)

    @invariant()
    def holds_what_was_applied_once(self):
        assert self.server.version == self.version
        assert self.server.values.tobytes() == self.values[-1].tobytes()
        np.testing.assert_allclose(self.server.counts, self.counts[-1])

    @invariant()
    def averages_the_second_half_of_the_rounds(self):
        ends = self.values[PARTICIPANTS::PARTICIPANTS][ROUNDS // 2 :]
        expected = np.mean([one.astype(np.float64) for one in ends or self.values[-1:]], axis=0)
        assert self.server.released().tolist() == expected.astype(np.float32).tolist()


def machine(protocol: str) -> type:
    made = type(f"Machine_{protocol}", (TurnMachine,), {"protocol": protocol}).TestCase
    made.settings = hypothesis_settings(max_examples=12, stateful_step_count=40, deadline=None)
    return made


TestRoundRobin, TestRandom, TestAsynchronous, TestSynchronous = map(machine, PROTOCOLS)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_run_is_over_when_all_are_done_though_the_server_is_killed_all_the_time(
    protocol, tmp_path
):
    steady = server(protocol)
    for number in range(ROUNDS):
        for participant in order_of_turns(steady.settings, number).tolist():
            killed = server(protocol, tmp_path)
            assert not killed.is_over
            found = killed.pull_in_turn(participant, number)
            expected = steady.pull_in_turn(participant, number)
            assert found.version == expected.version
            assert found.values.tobytes() == expected.values.tobytes()
            sent = content(participant, number, found.version)
            assert steady.push(sent) == killed.push(sent) == OK
    assert killed.is_over and killed.turn is None
    assert state_of(server(protocol, tmp_path)) == state_of(steady)
    assert killed.pull_in_turn(0, ROUNDS).values.tobytes() == steady.released().tobytes()
    # All uploads of a round move parameter 3; the mean of the last two rounds of four.
    if protocol != "asynchronous":
        each = 0.5 if protocol == "synchronous" else 0.5 * PARTICIPANTS
        assert steady.released()[3] == pytest.approx(3.0 + 3.5 * each)
    with pytest.raises(RefusedUploadError, match="below 4"):
        killed.push(content(0, ROUNDS, killed.version))


def test_a_participant_that_lost_its_folder_gets_an_error():
    one = server()
    one.push(content(0, 0, 0))
    with pytest.raises(ValueError, match="round 0 of participant 0 was applied already"):
        one.pull_in_turn(0, 0)
    with pytest.raises(ValueError, match="round: expected one from 0 to 4, got 5"):
        one.pull_in_turn(0, 5)
    with pytest.raises(ValueError, match="participant: expected one from 0"):
        one.pull_in_turn(PARTICIPANTS, 0)


def test_a_hundred_malformed_uploads_are_refused_with_one_line_and_change_nothing(tmp_path):
    one = server(folder=tmp_path, rounds=50)
    before, contents = state_of(one), malformed()
    assert len(contents) >= 100
    for sent in contents:
        with pytest.raises(RefusedUploadError) as caught:
            one.push(sent)
        assert str(caught.value).startswith("upload: ")
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 200
    assert state_of(one) == before
    assert not list(tmp_path.rglob("*.npz"))
    assert one.push(content()) == OK


def test_sums_that_no_parameter_can_take_are_refused():
    one = Server(Settings(num_participants=1, rounds=3), np.full(SIZE, 3e38, np.float32), run=RUN)
    with pytest.raises(RefusedUploadError, match="that parameters can take"):
        one.push(content(values=np.array([3e38, 0.0], np.float32)))
    assert np.isfinite(one.values).all()


@pytest.mark.parametrize("share", [0.0, 0.005, 0.03, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("size", [1, 40, 105_506, 1_000_000])
def test_encodings_give_back_what_went_in(size, share):
    generator = np.random.default_rng(1)
    indices = np.sort(generator.permutation(size)[: int(share * size)])
    values = generator.normal(size=len(indices)).astype(np.float32)
    given = upload(2, 3, 4, num_parameters=size, indices=indices, values=values)
    found = decode(encode(given), num_parameters=size, most=size)
    assert found.indices.tolist() == indices.tolist()
    assert found.values.tobytes() == given.values.tobytes()
    assert (found.participant, found.round, found.version, found.run) == (2, 3, 4, RUN)


def test_what_prints_an_upload_shows_no_value_of_it():
    text = repr(upload())
    assert "participant=0" in text and "indices" not in text and "values" not in text


def test_bytes_of_an_upload():
    size = 105_506
    for share, most in ((0.1, 0.14), (0.01, 0.02)):
        number = int(share * size)
        indices = np.sort(np.random.default_rng(2).permutation(size)[:number])
        values = np.ones(number, np.float32)
        sent = content(num_parameters=size, indices=indices, values=values)
        assert len(sent) <= most * 4 * size
    # A far index needs no gaps.
    far = {"indices": np.array([100_000]), "values": np.ones(1, np.float32)}
    sent = content(num_parameters=200_000, **far)
    assert len(sent) == HEADER.size + 8
    assert decode(sent, num_parameters=200_000, most=1).indices.tolist() == [100_000]


def _push_and_die(folder: pathlib.Path, at: str) -> None:
    """A server that is killed while it takes an upload."""
    one = server(folder=folder)
    for participant in range(2):
        one.push(content(participant, 0, participant))
    die = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731
    if at == "before it is applied":
        one._apply = die
    elif at == "half written":
        os.replace = os.rename = pathlib.Path.replace = pathlib.Path.rename = die
    else:
        one._store.save = die
    one.push(content(2, 0, 2))


@pytest.mark.parametrize("at", ["half written", "before it is durable", "before it is applied"])
def test_a_killed_server_goes_on_and_applies_each_upload_once(tmp_path, at):
    context = multiprocessing.get_context("fork")
    process = context.Process(target=_push_and_die, args=(tmp_path, at))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    one, expected = server(folder=tmp_path), server()
    assert one.version == 2  # the participant never got an answer, and sends it again
    assert one.push(content(2, 0, 2)) == OK
    for participant in range(3):
        expected.push(content(participant, 0, participant))
    assert state_of(one) == state_of(server(folder=tmp_path)) == state_of(expected)


def test_a_damaged_state_and_that_of_another_run_are_refused(tmp_path):
    server(folder=tmp_path).push(content())
    with pytest.raises(ValueError, match="holds a run of other settings: run;"):
        Server(Settings(), INITIAL, run=b"another run here", folder=tmp_path)
    with pytest.raises(ValueError, match="expected the state of 7 parameters"):
        Server(Settings(), INITIAL[:7], run=RUN, folder=tmp_path)
    (tmp_path / "state.npz").write_bytes(b"PK")
    with pytest.raises(ValueError, match="got a broken one"):
        server(folder=tmp_path)


def test_a_full_disk_applies_nothing(tmp_path, monkeypatch):
    one = server(folder=tmp_path)
    before = state_of(one)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(artifacts, "write_arrays", full)
        with pytest.raises(OSError, match="No space"):
            one.push(content())
    assert state_of(one) == before
    assert one.push(content()) == OK


def test_ties_among_counts_fall_at_random():
    settings = Settings(num_participants=200, rounds=1, download=0.5)
    one = Server(settings, np.zeros(20, np.float32), run=RUN)
    times = np.zeros(20)
    for participant in range(200):
        times[one.pull(participant).indices] += 1
    assert times.min() > 60  # 100 expected, 7 the standard deviation
    assert times.max() < 140


def test_decay_makes_recent_updates_weigh_more():
    settings = Settings(num_participants=1, rounds=9, download=1 / 40, stat_decay=0.5)
    one = Server(settings, np.zeros(SIZE, np.float32), run=RUN)
    for turn, index in enumerate([5, 5, 9, 9]):
        change = {"indices": np.array([index]), "values": np.ones(1, np.float32)}
        one.push(content(0, turn, turn, **change))
    assert one.counts[5] == 0.5**4 + 0.5**3
    assert one.counts[9] == 0.5**2 + 0.5
    assert one.pull(0).indices.tolist() == [9]
