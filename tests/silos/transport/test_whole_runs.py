"""Whole rounds in which silos, aggregators and a coordinator communicate over the network."""

import contextlib
import functools
import threading
import time
import types

import numpy as np
import pytest
from silo_helpers import NUM_CLASSES, pool, secure_sums, silo, teacher
from transport_helpers import AGGREGATORS, SILOS, connect, serve

from pate_tf.accounting.conversions import LATTICE
from pate_tf.accounting.local import SecureHistogram
from pate_tf.net.health import CONTACT_AGE
from pate_tf.silos import Asking, Coordinator, Member, SiloRoster, SiloSums
from pate_tf.silos.aggregator import Aggregator
from pate_tf.silos.messages import Answer
from pate_tf.silos.protocol import Keys
from pate_tf.silos.transport import AggregatorService, TaskConnection, task_result

POOL = pool(40)
TRUE = teacher(POOL.inputs)
SUMS = secure_sums(sigma=1.0, least_silos=2)
MADE_UP = np.arange(4 * NUM_CLASSES).reshape(4, NUM_CLASSES) * 2**25
ENCODER = types.SimpleNamespace(digest="encoder", num_features=3)
SECURE = SecureHistogram(sigma=0.5, num_parties=4, threshold=1)
KEYS = {name: Keys(name) for name in (*SILOS, *AGGREGATORS)}


def made_up_roster(names):
    members = tuple(
        Member(name=name, epsilon=20.0, identity=KEYS[name].identity if name in KEYS else None)
        for name in names
    )
    aggregators = tuple(KEYS[name].identity for name in AGGREGATORS)
    return SiloRoster(run="r", delta=1e-6, members=members, aggregators=aggregators)


def test_a_simulation_adds_votes_up_in_secret_and_goes_on_after_a_kill(tmp_path):
    aggregators = [Aggregator(KEYS[name], tmp_path / name) for name in AGGREGATORS]
    asks = [aggregator.answer for aggregator in aggregators]
    names = [f"s{number}" for number in range(20)]
    roster = made_up_roster(names)
    limits = {"least_sigma": 0.1, "epsilon_budget": 1e6, "roster": roster}
    arguments = {
        "silos": [silo(None, silo=name, **limits) for name in names],
        "folder": tmp_path / "coordinator",
        "asking": Asking(mechanism=SECURE),
    }

    def killed(event):
        if event.startswith("opened a sum"):
            raise KeyboardInterrupt

    with (
        Coordinator(roster, aggregators=asks, on_event=killed, **arguments) as coordinator,
        pytest.raises(KeyboardInterrupt),
    ):
        coordinator.ask(POOL, np.arange(10))
    steps = sorted(path.read_bytes() for path in tmp_path.rglob("batch.release"))
    with Coordinator(roster, aggregators=asks, **arguments) as coordinator:
        labels = coordinator.ask(POOL, np.arange(10))
        # One opening, one noise.
        assert sorted(path.read_bytes() for path in tmp_path.rglob("batch.release")) == steps
        assert np.array_equal(labels.labels, TRUE[:10])
        assert labels.cost.number == 10 and labels.weights is not None
        assert all(spent.charges == {SECURE: 10} for spent in coordinator.spending())
        page = coordinator.statement(pool_name="lines").to_markdown()
    assert "up to 1 of the 4 aggregators together" in page


def open_silo(folder, name, mechanism, **options):
    sums = SiloSums(values=MADE_UP, encoder_digest="encoder", num_records=1_000)
    return silo(
        folder / name,
        silo=name,
        model=sums if mechanism is SUMS else teacher,
        roster=made_up_roster(SILOS),
        keys=KEYS[name],
        allowed=("randomised_response" if mechanism is None else mechanism.name,),
        least_sigma=0.1,
        least_silos=2,
        most_epsilon=100.0,
        epsilon_budget=1e6,
        **options,
    )


@pytest.mark.parametrize("mechanism", [SUMS, None], ids=["sums", "votes"])
def test_a_coordinator_that_was_away_for_a_quarter_of_an_hour_finishes_its_round(
    tmp_path, certificates, mechanism
):
    aggregators = [Aggregator(KEYS[name], tmp_path / name) for name in AGGREGATORS]
    present = SILOS[:1]
    now = time.time()

    def clock():
        return now

    def waiting(event):
        """Lets the present silos reply over the network; kills a coordinator that waits."""
        if not event.startswith("waiting"):
            return
        for name in present:
            silo_there = open_silo(tmp_path, name, mechanism, clock=clock)
            with connect(server, certificates[name]) as connection, silo_there:
                if batch := connection.poll():
                    assert connection.submit(silo_there.answer(batch)) is Answer.OK
        if present != SILOS:
            raise KeyboardInterrupt

    for is_last in (False, False, True):
        coordinator = Coordinator(
            made_up_roster(SILOS),
            folder=tmp_path / "coordinator",
            aggregators=[aggregator.answer for aggregator in aggregators],
            asking=Asking(mechanism=mechanism, seconds=600.0),
            on_event=waiting,
            clock=clock,
        )
        asks = functools.partial(coordinator.ask, POOL, np.arange(20))
        if mechanism is SUMS:
            asks = functools.partial(coordinator.open_total, POOL, ENCODER)
        if is_last:
            present = SILOS
        with coordinator, serve(coordinator.journal, certificates["coordinator"]) as server:
            with contextlib.nullcontext() if is_last else pytest.raises(KeyboardInterrupt):
                asks()
            (one_round,) = coordinator.journal.rounds
            assert (one_round.result is not None) is is_last
        now += 900.0
    for name in SILOS:
        with open_silo(tmp_path, name, mechanism) as one:
            assert one.account.charges.total() == (1 if mechanism is SUMS else 20)


@pytest.mark.parametrize("mechanism", [SECURE, None, SUMS], ids=["secure", "local", "sums"])
def test_a_round_over_the_network(tmp_path, certificates, mechanism):
    line, roster = AggregatorService(AGGREGATORS), made_up_roster(SILOS)

    def serve_silo(address, name):
        # Its ledger belongs to its thread, as it would belong to its process.
        connection = TaskConnection(address, files=certificates[name], wait_seconds=0.5)
        with open_silo(tmp_path, name, mechanism) as opened, connection:
            connection.serve(opened.result, sleep=lambda seconds: None)

    def serve_aggregator(address, name):
        aggregator, files = Aggregator(KEYS[name], tmp_path / name), certificates[name]
        connection = TaskConnection(address, files=files, is_aggregator=True, wait_seconds=0.5)
        with contextlib.closing(aggregator), connection:
            connection.serve(functools.partial(task_result, aggregator, roster))

    with (
        Coordinator(
            roster,
            folder=tmp_path / "coordinator",
            aggregators=line.asks,
            asking=Asking(mechanism=mechanism, seconds=60.0),
        ) as coordinator,
        serve(coordinator.journal, certificates["coordinator"], aggregators=line) as server,
    ):
        running = [(serve_silo, name) for name in SILOS]
        running += [(serve_aggregator, name) for name in AGGREGATORS]
        address = f"localhost:{server.port}"
        threads = [threading.Thread(target=serve, args=(address, name)) for serve, name in running]
        for thread in threads:
            thread.start()
        try:
            if mechanism is SUMS:
                total = coordinator.open_total(POOL, ENCODER).result[0]
            else:
                labels = coordinator.ask(POOL, np.arange(20))
        finally:
            assert all(thread.is_alive() for thread in threads)  # they wait for more
            trouble, numbers = server.health(coordinator.journal.numbers())
            server.end()  # they are told that the run is over
            for thread in threads:
                thread.join(5.0)
                assert not thread.is_alive()
    assert not trouble and (numbers["pate_rounds_total"], numbers["pate_refusals_total"]) == (1, 0)
    assert all(CONTACT_AGE.format(name) in numbers for name in AGGREGATORS)
    assert all(0.0 <= numbers[CONTACT_AGE.format(name)] < 60.0 for name in SILOS)
    if mechanism is SUMS:
        noise = (total / LATTICE - 2 * MADE_UP / LATTICE) / SUMS.total_sigma(2)
        assert 1e-3 < np.abs(noise).max() < 8.0
    else:
        assert (labels.labels == TRUE[:20]).mean() > 0.7
        assert labels.cost.number == 20
