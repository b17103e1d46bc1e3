"""Dishonest coordinators, aggregators and silos in runs of feature sums.

`secure/test_lying.py` tests random lies against the aggregators. This file tests known attacks, and
a coordinator that lies to silos with their ledgers and to aggregators, which are killed.
"""

import collections
import contextlib
import dataclasses
import itertools
import pathlib
import tempfile
import types

import five_silos
import numpy as np
import pytest
from five_silos import ENCODER, NAMES, POOL, RELEASE, batch, keys_of, open_silo, sums_of
from hypothesis import HealthCheck, given, settings, stateful
from hypothesis import strategies as st
from secure_helpers import asked, open_aggregators, run_until, sealed_sums, some_keys, sums_terms
from silo_helpers import Silent, answer_until

from pate_tf.accounting.conversions import LATTICE
from pate_tf.models.encoder import record_vectors
from pate_tf.net.wire_values import digest
from pate_tf.release.exact_sums import sums_by_class
from pate_tf.release.noise import SystemNoise
from pate_tf.silos import SiloSums, protocol, shamir
from pate_tf.silos.aggregator import Aggregator
from pate_tf.silos.coordinator import check_total, open_histogram
from pate_tf.silos.messages import SealedShares
from pate_tf.silos.protocol import STEPS, BatchTerms, Keys, ProtocolError, Step
from pate_tf.silos.sealing import deal, seal_shares

TABLES = {name: sums_of(name) for name in NAMES}


@pytest.fixture
def setting(tmp_path):
    """Returns aggregators, silos' keys, terms, and the secret shares of each silo."""
    keys, silos = some_keys(), {name: Keys(name) for name in NAMES}
    terms = sums_terms(keys, silos, RELEASE, num_classes=20)
    sealed = sealed_sums(silos, terms, TABLES, dict.fromkeys(silos, Silent()))
    aggregators = open_aggregators(keys, tmp_path)
    yield aggregators, silos, terms, sealed
    for aggregator in aggregators.values():
        aggregator.close()


def total_of(names):
    return sum(sums_of(name).reshape(-1) for name in names).tolist()


@pytest.mark.parametrize("last", list(Step))
def test_a_silo_is_not_dropped_after_parties_spoke(setting, last):
    """The coordinator has heard a step, and starts again without one silo.

    The difference of two totals would be the table of one silo.
    """
    aggregators, _, terms, sealed = setting
    run_until(aggregators, terms, sealed, last)
    with pytest.raises(ProtocolError):
        open_histogram(terms, {name: sealed[name] for name in "abde"}, asked(aggregators))
    opened = open_histogram(terms, sealed, asked(aggregators))
    assert opened.noisy_counts.reshape(-1).tolist() == total_of(NAMES)


def test_a_share_that_is_replaced_leaves_its_silo_out(setting):
    """Covers the attack that read a silo's votes: one aggregator gets a share made by the
    adversary.

    Aggregator 4 and the coordinator know that share. If it were added to the true shares of the
    rest, the sums of the other aggregators would reveal the silo's table.
    """
    aggregators, silos, terms, sealed = setting
    made = deal(shamir.from_integers(np.zeros(terms.shape, np.int64)), terms, SystemNoise())
    for keys in (None, Keys("c"), silos["d"]):
        forged = seal_shares(made, terms, silo="c", keys=keys)
        changed = {**sealed, "c": (forged[0], *sealed["c"][1:])}
        opened = open_histogram(terms, changed, asked(aggregators))
        assert opened.left_out == ("c",)
        assert opened.noisy_counts.reshape(-1).tolist() == total_of("abde")
        terms = dataclasses.replace(terms, question=digest(terms.question))
        sealed = sealed_sums(silos, terms, TABLES, dict.fromkeys(silos, Silent()))


def test_a_total_that_no_records_have_is_refused(tmp_path):
    """A silo that shares huge numbers spoils the total. This is noticed before anyone trusts it."""
    tables = {name: np.full((4, 5), 10**6) for name in NAMES}
    tables["c"] = np.full((4, 5), -(2**62))
    sums = {
        name: SiloSums(values=tables[name], encoder_digest=ENCODER.digest, num_records=1_000)
        for name in NAMES
    }
    silos = [open_silo(tmp_path, name, sums=sums[name]) for name in NAMES]
    representation = types.SimpleNamespace(encoder_=ENCODER)
    running, _ = five_silos.coordinator(tmp_path, silos)
    with running:
        for _ in range(2):
            with pytest.raises(ValueError, match="silos: no records can have this sum"):
                running.label_from_sums(POOL, representation)
        assert len(running.journal.rounds) == 1
    for silo in silos:
        silo.close()


@settings(max_examples=30)
@given(st.integers(0, 2**32), st.sampled_from([0, 1, 40]), st.sampled_from([1e-3, 3.0, 300.0]))
def test_a_total_of_records_is_never_refused(seed, number, noise):
    """Tests records that are all equal, and records that are far apart, with and
    without an owner.
    """
    random = np.random.default_rng(seed)
    features = random.normal(size=(number, 30)).astype(np.float32) + random.choice([0.0, 50.0])
    features[random.random(number) < 0.1] = np.nan
    vectors, labels = record_vectors(features, None), random.integers(0, 3, number)
    owners = random.integers(0, 5, number) if random.random() < 0.5 else None
    total = sums_by_class(vectors, labels, num_classes=3, owners=owners) / LATTICE
    check_total(total + random.normal(scale=noise, size=total.shape), noise)


HONEST = (1, 2, 3)
# Batches that the coordinator requests. A silo's policy allows only the first two.
BATCHES = {
    "first": batch(1),
    "second": batch(2),
    "of three": batch(1, mechanism=dataclasses.replace(RELEASE, least_silos=3)),
    "of two": batch(1, mechanism=dataclasses.replace(RELEASE, least_silos=2)),
}
# Requests to aggregators, with a complete or reduced roster. Batches with honest silos are more
# likely.
TERMS = st.tuples(
    st.sampled_from([*BATCHES, "first", "first", "second"]), st.sampled_from([5, 5, 5, 4, 2])
)
FIRST, KEPT = st.just(("first", 5)), st.sampled_from([5, 3])
LAST = st.sampled_from([Step.RELEASE, Step.RELEASE, *STEPS])


def choose(data, choices):
    """Draws the adversary's choice; without `data`, the first, which follows the protocol."""
    return choices[0] if data is None else data.draw(st.sampled_from(choices))


class LyingCoordinator(stateful.RuleBasedStateMachine):
    """It relays, replays, mixes and kills as it likes, and has the keys of aggregator 4.

    Silos draw no noise, so a total shows exactly whose tables it contains.
    """

    num_opened = 0

    def __init__(self):
        super().__init__()
        self.stack = contextlib.ExitStack()
        patch = self.stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr("pate_tf.silos.sealing.SystemNoise", Silent)
        self.folder = pathlib.Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        patch.setenv("PATE_TF_STATE", str(self.folder / "state"))
        roster = five_silos.roster(self.folder)
        self.terms, self.processes = {}, {}
        for name, number in itertools.product(BATCHES, (5, 4, 2)):
            listed = roster.identities[: max(number, BATCHES[name].mechanism.least_silos)]
            terms = BatchTerms.of_batch(BATCHES[name], roster.aggregators, listed)
            self.terms[name, number] = terms
        self.sealed = {name: {} for name in BATCHES}  # by batch: the messages of each silo
        self.heard = collections.defaultdict(list)  # by terms, step, aggregator
        for name in (*five_silos.AGGREGATORS, *NAMES):
            self.restart(name)

    def teardown(self):
        self.stack.close()
        super().teardown()

    @stateful.rule(name=st.sampled_from([*five_silos.AGGREGATORS, *NAMES]))
    def restart(self, name):
        if name in self.processes:
            self.processes[name].close()
        if name in NAMES:
            opened = open_silo(self.folder, name, least_silos=4, epsilon_budget=2.0)
        else:
            opened = Aggregator(keys_of(self.folder, name), self.folder / name)
        self.processes[name] = self.stack.enter_context(opened)

    @stateful.rule(
        name=st.sampled_from(NAMES),
        batch_name=st.sampled_from([*BATCHES]),
        point=st.sampled_from([None, "silo_debited", "silo_drawn", "silo_stored"]),
    )
    def ask_a_silo(self, name, batch_name, point):
        reply = answer_until(self.processes[name], BATCHES[batch_name], point)
        if isinstance(reply, SealedShares):
            assert batch_name in ("first", "second")
            assert self.sealed[batch_name].setdefault(name, reply.sealed) == reply.sealed
        elif reply is None:
            self.restart(name)

    @stateful.rule(
        data=st.data(), terms=TERMS, step=st.sampled_from(STEPS), number=st.integers(1, 4)
    )
    def ask_an_aggregator(self, data, terms, step, number, kept=None):
        """Sends a request with any of the existing messages and shares."""
        messages, dealt = [], []
        if step is Step.COMMIT:
            name = choose(data, [terms[0]] * 60 + [*BATCHES])
            kept = kept or choose(data, [5] * 6 + [4, 3, 1])
            dealt = [(silo, row[number - 1]) for silo, row in self.sealed[name].items()][:kept]
        else:
            before = STEPS[STEPS.index(step) - 1]
            choices = [self.heard[terms, before, other] for other in (*HONEST, 4)]
            messages = [choose(data, each) for each in choices if each]
        task = protocol.AggregatorTask(
            step=step, terms=self.terms[terms], sealed=dict(dealt), messages=tuple(messages)
        )
        with contextlib.suppress(ProtocolError):
            message = self.processes[f"aggregator-{number}"].answer(task)
            heard = self.heard[terms, step, number]
            assert message in heard or not heard or number == 4, "it answers a step in one way"
            assert step in STEPS[:2] or len({m.seen for m in messages}) == 1
            if message not in heard:
                heard.append(message)

    def ask_in_order(self, data, terms, last, is_lying=False, kept=None):
        """Sends all requests of each step. Its lies are repeated requests and contradictions of
        aggregator 4.
        """
        for name in NAMES:
            self.ask_a_silo(name, terms[0], None)
        for step in STEPS[: STEPS.index(last) + 1]:
            for number in (*HONEST, 4):
                if is_lying or not self.heard[terms, step, number]:
                    self.ask_an_aggregator(data, terms, step, number, kept)
            if is_lying:
                self.lie(data, terms, step)

    # Lies matter most for a batch that is nearly complete, or opened. Each example begins with such
    # a batch, of enough silos or of too few.
    begin = stateful.initialize(data=st.none(), terms=FIRST, last=LAST, kept=KEPT)(ask_in_order)
    ask = stateful.rule(data=st.data(), terms=TERMS, last=LAST, is_lying=st.booleans())(
        ask_in_order
    )

    @stateful.rule(data=st.data(), terms=TERMS, step=st.sampled_from(STEPS))
    def lie(self, data, terms, step):
        others = [message for number in HONEST for message in self.heard[terms, step, number]]
        if others:
            message = dataclasses.replace(data.draw(st.sampled_from(others)), aggregator=4)
            lie = message.signed(keys_of(self.folder, "aggregator-4"))
            self.heard[terms, step, 4].append(lie)

    @stateful.invariant()
    def no_account_is_charged_less_than_was_sent(self):
        for name in NAMES:
            num_sent = sum(name in sent for sent in self.sealed.values())
            assert num_sent <= self.processes[name].account.charges.total() <= 2

    @stateful.invariant()
    def no_total_of_fewer_silos_opens_and_none_twice(self):
        for terms, values in self.terms.items():
            shares = {}
            for number in HONEST:
                for message in self.heard[terms, Step.RELEASE, number]:
                    shares[number] = shamir.from_bytes(message.content, (values.size,), "sums")
            totals = set()
            for pair in itertools.combinations(shares, values.threshold + 1):
                rows = {number: shares[number] for number in pair}
                opened = shamir.reconstruct(rows, degree=values.threshold)
                totals.add(tuple(shamir.to_integers(opened).tolist()))
            assert len(totals) <= 1
            for total in totals:
                silos = [name for place, name in enumerate(NAMES) if total[1] // 10**place % 10]
                assert list(total) == total_of(silos) and len(silos) >= RELEASE.least_silos
                LyingCoordinator.num_opened += 1


def test_a_lying_coordinator_opens_totals_of_enough_silos_alone():
    limits = settings(max_examples=30, stateful_step_count=20, suppress_health_check=[*HealthCheck])
    stateful.run_state_machine_as_test(LyingCoordinator, settings=limits)
    assert LyingCoordinator.num_opened
