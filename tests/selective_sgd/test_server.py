"""The server: a state machine, malformed uploads, kills."""

import multiprocessing
import os
import pathlib
import signal

import numpy as np
import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from uploads_for_tests import PARTICIPANTS, RUN, SETTINGS, SIZE, malformed, upload

from pate_tf.selective_sgd import server as journal
from pate_tf.selective_sgd.server import OK, SAME, Server
from pate_tf.selective_sgd.settings import Settings
from pate_tf.selective_sgd.upload import HEADER, RefusedUploadError, Upload, decode, encode


def server(**options: object) -> Server:
    return Server(SETTINGS, np.arange(SIZE, dtype=np.float32), run=RUN, **options)


def state_of(one: Server) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in one.state().items()}


class ServerMachine(RuleBasedStateMachine):
    """A server with a journal against a slow one, a dictionary: every upload is applied once."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = pathlib.Path(os.environ["PATE_TF_STATE"]) / os.urandom(8).hex()
        self.server = server(folder=self.folder)
        self.values = {index: np.float32(index) for index in range(SIZE)}
        self.counts = dict.fromkeys(range(SIZE), 0.0)
        self.version = 0
        self.last = dict.fromkeys(range(PARTICIPANTS), (-1, b""))

    @rule(
        participant=st.integers(0, PARTICIPANTS - 1),
        ahead=st.integers(1, 2),
        stale=st.integers(0, 3),
        changes=st.dictionaries(
            st.integers(0, SIZE - 1), st.floats(-2.0, 2.0, width=32), max_size=10
        ),
    )
    def push(self, participant, ahead, stale, changes):
        indices = np.array(sorted(changes), np.int64)
        stale = min(stale, self.version)
        content = encode(
            upload(
                participant,
                self.last[participant][0] + ahead,
                self.version - stale,
                indices=indices,
                values=np.array([changes[one] for one in indices], np.float32),
            )
        )
        assert self.server.push(content) == OK
        for index in indices.tolist():
            factor = np.float32((1.0 + stale) ** -0.5)
            self.values[index] = np.float32(
                self.values[index] + factor * np.float32(changes[index])
            )
            self.counts[index] += 1.0
        self.version += 1
        if self.version % PARTICIPANTS == 0:
            self.counts = {index: 0.9 * count for index, count in self.counts.items()}
        self.last[participant] = (self.last[participant][0] + ahead, content)

    @precondition(lambda self: self.version)
    @rule(participant=st.integers(0, PARTICIPANTS - 1))
    def push_again(self, participant):
        turn, content = self.last[participant]
        if turn >= 0:
            assert self.server.push(content) == SAME

    @precondition(lambda self: self.version)
    @rule(participant=st.integers(0, PARTICIPANTS - 1), back=st.integers(0, 3))
    def push_another_for_an_old_round(self, participant, back):
        turn, _ = self.last[participant]
        if turn - back >= 0:
            content = encode(upload(participant, turn - back, values=np.array([2.0, 2.0])))
            with pytest.raises(RefusedUploadError):
                self.server.push(content)

    @rule(participant=st.integers(0, PARTICIPANTS - 1))
    def pull(self, participant):
        found = self.server.pull(participant)
        again = self.server.pull(participant)
        assert found.indices.tolist() == again.indices.tolist()
        assert len(set(found.indices.tolist())) == SIZE // 2
        assert found.values.tolist() == [self.values[one] for one in found.indices.tolist()]
        least = min(self.counts[one] for one in found.indices.tolist())
        left_out = set(range(SIZE)) - set(found.indices.tolist())
        assert max(self.counts[one] for one in left_out) <= least

    @rule(compacts=st.booleans())
    def start_anew(self, compacts):
        if compacts:
            self.server.compact()
        self.server.close()
        self.server = server(folder=self.folder)

    @invariant()
    def holds_what_was_added_once(self):
        assert self.server.version == self.version
        assert self.server.values.tolist() == [self.values[one] for one in range(SIZE)]
        np.testing.assert_allclose(self.server.counts, [self.counts[one] for one in range(SIZE)])

    def teardown(self):
        self.server.close()


TestServer = ServerMachine.TestCase
TestServer.settings = hypothesis_settings(max_examples=25, stateful_step_count=20, deadline=None)


def test_a_hundred_malformed_uploads_are_refused_with_one_line_and_change_nothing(tmp_path):
    one = server(folder=tmp_path / "journal")
    before, size = state_of(one), sum(path.stat().st_size for path in tmp_path.rglob("*"))
    contents = malformed()
    assert len(contents) >= 100
    for content in contents:
        with pytest.raises(RefusedUploadError) as caught:
            one.push(content)
        assert str(caught.value).startswith("upload: ")
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 200
    assert state_of(one) == before
    assert sum(path.stat().st_size for path in tmp_path.rglob("*")) == size
    assert one.push(encode(upload())) == OK


def test_what_is_too_stale_is_refused():
    one = server(most_stale=2)
    for turn in range(3):
        one.push(encode(upload(1, turn, turn)))
    with pytest.raises(RefusedUploadError, match="at most 2 uploads stale, got 3"):
        one.push(encode(upload(0, 0, 0)))


def test_sums_that_no_parameter_can_take_are_refused():
    one = Server(Settings(num_participants=1, rounds=3), np.full(4, 3e38, np.float32), run=RUN)
    content = Upload(
        run=RUN,
        participant=0,
        round=0,
        version=0,
        num_parameters=4,
        indices=np.array([0]),
        values=np.array([3e38], np.float32),
    )
    with pytest.raises(RefusedUploadError):
        one.push(encode(content))
    assert np.isfinite(one.values).all()


@pytest.mark.parametrize("share", [0.0, 0.005, 0.03, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("size", [1, 40, 105_506, 1_000_000])
def test_encodings_give_back_what_went_in(size, share):
    generator = np.random.default_rng(1)
    indices = np.sort(generator.permutation(size)[: int(share * size)])
    given = Upload(
        run=RUN,
        participant=2,
        round=3,
        version=4,
        num_parameters=size,
        indices=indices,
        values=generator.normal(size=len(indices)).astype(np.float32),
    )
    found = decode(encode(given), num_parameters=size, most=size)
    assert found.indices.tolist() == indices.tolist()
    assert found.values.tobytes() == given.values.tobytes()
    assert (found.participant, found.round, found.version, found.run) == (2, 3, 4, RUN)
    for text in (repr(given), repr(found)):
        assert "indices" not in text and "values" not in text


def test_a_far_index_needs_no_gaps():
    given = Upload(
        run=RUN,
        participant=0,
        round=0,
        version=0,
        num_parameters=200_000,
        indices=np.array([100_000]),
        values=np.ones(1, np.float32),
    )
    content = encode(given)
    assert len(content) == HEADER.size + 8
    assert decode(content, num_parameters=200_000, most=1).indices.tolist() == [100_000]


def test_bytes_of_an_upload():
    size = 105_506
    for share, most in ((0.1, 0.14), (0.01, 0.02)):
        number = int(share * size)
        indices = np.sort(np.random.default_rng(2).permutation(size)[:number])
        content = encode(
            Upload(
                run=RUN,
                participant=0,
                round=0,
                version=0,
                num_parameters=size,
                indices=indices,
                values=np.ones(number, np.float32),
            )
        )
        assert len(content) <= most * 4 * size


def _push_and_die(folder: pathlib.Path, number: int, at: str) -> None:
    """A server that is killed while it takes an upload."""
    one = server(folder=folder)
    for turn in range(number):
        one.push(encode(upload(0, turn, turn)))
    die = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731
    if at == "half written":
        write = os.write

        def half(file: int, content: bytes) -> int:
            write(file, content[: len(content) // 2])
            die()
            return 0

        os.write = half
    elif at == "before it is durable":
        os.fsync = die
    else:
        one._apply = die
    one.push(encode(upload(0, number, number)))


@pytest.mark.parametrize("at", ["half written", "before it is durable", "before it is applied"])
def test_a_killed_server_goes_on_and_applies_each_upload_once(tmp_path, at):
    context = multiprocessing.get_context("fork")
    process = context.Process(target=_push_and_die, args=(tmp_path, 3, at))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    one = server(folder=tmp_path)
    assert one.version in (3, 4)
    # The participant never got an answer, and sends it again.
    answer = OK if one.version == 3 else SAME
    assert one.push(encode(upload(0, 3, 3))) == answer
    expected = server()
    for turn in range(4):
        expected.push(encode(upload(0, turn, turn)))
    assert state_of(one) == state_of(expected)
    one.close()
    assert state_of(server(folder=tmp_path)) == state_of(expected)


def test_a_damaged_journal_and_that_of_another_run_are_refused(tmp_path):
    one = server(folder=tmp_path)
    for turn in range(3):
        one.push(encode(upload(0, turn, turn)))
    one.close()
    (log,) = tmp_path.glob("*.log")
    content = bytearray(log.read_bytes())
    with pytest.raises(ValueError, match="that of another"):
        Server(SETTINGS, np.zeros(SIZE, np.float32), run=b"another run here", folder=tmp_path)
    content[40] ^= 1
    log.write_bytes(content)
    with pytest.raises(ValueError, match="a damaged one"):
        server(folder=tmp_path)


def test_a_full_disk_applies_nothing(tmp_path, monkeypatch):
    one = server(folder=tmp_path)
    before = state_of(one)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(journal.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        one.push(encode(upload()))
    monkeypatch.undo()
    assert state_of(one) == before
    assert one.push(encode(upload())) == OK


def test_ties_among_counts_fall_at_random():
    one = Server(
        Settings(num_participants=200, rounds=1, download=0.5), np.zeros(20, np.float32), run=RUN
    )
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
        one.push(encode(upload(0, turn, turn, **change)))
    assert one.counts[5] == 0.5**4 + 0.5**3
    assert one.counts[9] == 0.5**2 + 0.5
    assert one.pull(0).indices.tolist() == [9]
