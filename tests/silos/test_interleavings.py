"""Random interleavings of requests, replies, replays, changes, kills, and inconsistent clocks.

A kill is an error at a point where a real kill may occur, and a new object on the same folder.
`test_silo_crashes` kills processes at the same points.
"""

import itertools
import os
import pathlib
import shutil
import tempfile

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from silo_helpers import RANDOMISED, SECURE, answer_until, batch, roster, silo

from pate_tf.accounting.composition import smallest_epsilon
from pate_tf.silos.messages import Answer, Reason, Refusal, SealedShares
from pate_tf.silos.round_journal import CoordinatorJournal, Round, RoundResult

BUDGET, A_DAY = 9.0, 13
NAMES = ("a", "b")
POINTS = ("silo_debited", "silo_drawn", "silo_stored")


class Interleavings(RuleBasedStateMachine):
    """Two silos, two coordinators with a run each, and clocks that jump independently
    in each silo.
    """

    def __init__(self):
        super().__init__()
        self.folder = pathlib.Path(tempfile.mkdtemp())
        os.environ["PATE_TF_STATE"] = str(self.folder / "state")  # a fixture restores it
        self.now = 1_000.0
        self.ahead = dict.fromkeys(NAMES, 0.0)  # of a silo's clock
        self.sealed = {name: {} for name in NAMES}  # all sealed shares that were sent, by batch
        self.sealed_in = {name: {} for name in NAMES}  # the only batch in which a query is sealed
        self.silos = {name: self.open_silo(name) for name in NAMES}
        self.cores = {}
        for run in ("r1", "r2"):
            self.restart_coordinator(run)
        self.numbers = itertools.count(1)
        self.left = {name: {} for name in NAMES}  # everything that a silo sent, by query
        self.drawn = []
        self.unsent = []

    def open_silo(self, name):
        return silo(
            self.folder / name,
            silo=name,
            roster=roster(*NAMES),
            epsilon_budget=BUDGET,
            queries_per_day=A_DAY,
            clock=lambda: self.now + self.ahead[name],
        )

    def teardown(self):
        for one in self.silos.values():
            one.close()
        for core in self.cores.values():
            core.close()
        shutil.rmtree(self.folder)

    @rule(
        run=st.sampled_from(("r1", "r2")),
        first=st.integers(0, 12),  # queries meet in many batches
        size=st.integers(1, 5),
        mechanism=st.sampled_from((RANDOMISED, SECURE)),
    )
    def ask(self, run, first, size, mechanism):
        number = next(self.numbers)
        asked = batch(
            first,
            first + size,
            run_id=run,
            batch_id=f"round-{number}",
            mechanism=mechanism,
            deadline=self.now + 50.0,
        )
        opened = Round(number=number, batch=asked, mechanisms=dict.fromkeys(NAMES, mechanism))
        self.cores[run].keep(opened)

    @rule(run=st.sampled_from(("r1", "r2")), name=st.sampled_from(NAMES))
    def reply_to_all(self, run, name):
        for one in self.cores[run].rounds:
            if one.is_open:
                self.reply(run, name, True)

    @rule(run=st.sampled_from(("r1", "r2")), name=st.sampled_from(NAMES), sends=st.booleans())
    def reply(self, run, name, sends):
        asked = self.cores[run].poll(name)
        if asked is None:
            return
        answer = self.silos[name].answer(asked)
        self.note(name, asked, answer)
        if sends:
            assert self.cores[run].submit(answer) is Answer.OK
        self.unsent.append((run, name, asked, answer, sends))

    @rule(
        run=st.sampled_from(("r1", "r2")), name=st.sampled_from(NAMES), at=st.sampled_from(POINTS)
    )
    def reply_and_be_killed(self, run, name, at):
        asked = self.cores[run].poll(name)
        if asked is None:
            return

        answer = answer_until(self.silos[name], asked, at)
        if answer is not None:  # a refusal, or an answer that was stored before
            self.note(name, asked, answer)
            return
        self.restart_silo(name)
        # Stored decisions are binding, even if no one has received them.
        account = self.silos[name].account
        for query, answer in account.stored_answers(asked.digests).items():
            assert self.left[name].setdefault(query, answer.label) == answer.label
        assert all(query in account.charge_of for query in asked.digests)

    def note(self, name, asked, answer):
        if isinstance(answer, Refusal):
            if answer.reason is Reason.TOO_LATE:
                assert self.now + self.ahead[name] >= asked.deadline, "by the silo's own clock"
            return
        if isinstance(answer, SealedShares):
            key = (asked.run_id, asked.batch_id)
            assert self.sealed[name].setdefault(key, answer.sealed) == answer.sealed
            for query in asked.digests:
                assert self.sealed_in[name].setdefault(query, key) == key
                assert query not in self.left[name]
            return
        assert not set(asked.digests) & set(self.sealed_in[name])
        for query, label in zip(asked.digests, answer.labels.tolist(), strict=True):
            assert self.left[name].setdefault(query, label) == label

    @precondition(lambda self: self.unsent)
    @rule(data=st.data())
    def replay(self, data):
        run, _, _, answer, was_sent = data.draw(st.sampled_from(self.unsent))
        submitted = self.cores[run].submit(answer)
        if was_sent:
            assert submitted is Answer.SAME
        else:
            # Another reply to the batch may have been accepted since. It is the same reply unless
            # the silo refused it at the time.
            assert submitted in (Answer.OK, Answer.SAME, Answer.LATE, Answer.CONFLICT)

    @rule(name=st.sampled_from(NAMES))
    def restart_silo(self, name):
        self.silos[name].close()
        self.silos[name] = self.open_silo(name)

    @rule(run=st.sampled_from(("r1", "r2")))
    def restart_coordinator(self, run):
        if run in self.cores:
            self.cores[run].close()
        clock = lambda: self.now  # noqa: E731
        self.cores[run] = CoordinatorJournal(run, NAMES, self.folder / run, clock=clock)

    @rule(seconds=st.sampled_from((-30.0, 1.0, 60.0)))
    def clock_jumps(self, seconds):
        self.now += seconds

    @rule(name=st.sampled_from(NAMES), seconds=st.sampled_from((-40.0, 0.0, 70.0)))
    def a_silo_s_clock_is_wrong(self, name, seconds):
        self.ahead[name] = seconds

    @rule(run=st.sampled_from(("r1", "r2")))
    def close_round(self, run):
        core = self.cores[run]
        for one in core.rounds:
            if one.is_open:
                labels = np.zeros(len(one.batch.queries), np.int64)
                core.keep(RoundResult(number=one.number, values=labels))
                return

    @invariant()
    def nothing_left_that_was_not_paid(self):
        for name, one in self.silos.items():
            released = len(self.left[name]) + len(self.sealed_in[name])
            assert released <= one.account.charges.total() <= A_DAY
            assert smallest_epsilon(one.account.charges, 1e-6)[0] <= BUDGET


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(
    max_examples=30, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
