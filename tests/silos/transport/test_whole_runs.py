"""Silos, parties and a coordinator together: in one process, and on real ports."""

import threading
import types

import numpy as np
import pytest
from silo_helpers import NUM_CLASSES, batch, pool, silo, teacher
from transport_helpers import LIMITS, PARTIES, SILOS

from pate_tf.accounting.conversions import LATTICE
from pate_tf.accounting.local import SecureFeatureSums, SecureHistogram
from pate_tf.core.sensitive import SumsByClass
from pate_tf.silos import Asking, Coordinator, Member, Roster, SiloSums
from pate_tf.silos.clients import PartyConnection, SiloConnection
from pate_tf.silos.messages import Reason, Refusal, SealedShares
from pate_tf.silos.secure.keys import PartyKeys
from pate_tf.silos.secure.opening import PartySealer, simulated_parties
from pate_tf.silos.secure.party import Party
from pate_tf.silos.server import PartyService, serve_coordinator

POOL = pool(40)
TRUE = teacher(POOL.inputs)
SUMS = SecureFeatureSums(
    sigma=1.0, num_features=3, least_silos=2, colluding=1, num_parties=4, threshold=1
)
MADE_UP = np.arange(4 * NUM_CLASSES).reshape(4, NUM_CLASSES) * 2**25
ENCODER = types.SimpleNamespace(digest="encoder", num_features=3)
FOUND = SiloSums(sums=SumsByClass(MADE_UP), representation="encoder")
SECURE = {"name": "secure_histogram", "sigma": 0.5, "num_parties": 4, "threshold": 1}


def made_up_roster(names):
    members = tuple(Member(name=name, epsilon=20.0, queries=100) for name in names)
    return Roster(run_id="r", delta=1e-6, members=members)


def test_a_simulation_adds_votes_up_in_secret_and_goes_on_after_a_kill(tmp_path):
    sealer, sums = simulated_parties(tmp_path / "parties")
    names = [f"s{number}" for number in range(20)]
    silos = [
        silo(None, silo=name, sealer=sealer, least_sigma=0.1, epsilon_budget=1e6) for name in names
    ]
    asking = Asking(mechanism=SECURE)
    roster = made_up_roster(names)

    class KilledAfterwards:
        def histogram(self, batch, shares):
            opened.append(sums.histogram(batch, shares))
            raise KeyboardInterrupt

    opened = []
    arguments = {"silos": silos, "folder": tmp_path / "coordinator", "asking": asking}
    with (
        Coordinator(roster, secure=KilledAfterwards(), **arguments) as coordinator,
        pytest.raises(KeyboardInterrupt),
    ):
        coordinator.ask(POOL, np.arange(10))
    with Coordinator(roster, secure=sums, **arguments) as coordinator:
        labels = coordinator.ask(POOL, np.arange(10))
        assert np.array_equal(labels.noisy_counts, opened[0])  # one opening, one noise
        assert np.array_equal(labels.labels, TRUE[:10])
        assert labels.cost.number == 10 and labels.weights is not None
        charge = SecureHistogram(sigma=0.5, num_parties=4, threshold=1)
        assert all(spent.charges == {charge: 10} for spent in coordinator.spending())
        page = coordinator.statement(pool_name="lines").to_markdown()
    assert "up to 1 of the 4 aggregators together" in page


@pytest.mark.parametrize("mechanism", [SECURE, {"name": "randomised_response"}, SUMS.to_dict()])
def test_a_round_over_the_network(tmp_path, certificates, mechanism):
    are_sums = mechanism["name"] == SUMS.name
    keys = [PartyKeys.generate(name) for name in PARTIES]
    silo_keys = {name: PartyKeys.generate(name) for name in SILOS if are_sums}
    identities = [one.identity for one in keys]
    of_silos = [one.identity for one in silo_keys.values()]
    line = PartyService(identities, silos=of_silos, limits=LIMITS, seconds=60.0)
    roster = made_up_roster(SILOS)
    stop = threading.Event()
    with Coordinator(
        roster,
        folder=tmp_path / "coordinator",
        secure=line.sums,
        asking=Asking(mechanism=mechanism, seconds=60.0),
    ) as coordinator:
        server = serve_coordinator(
            "localhost:0",
            coordinator.queue,
            files=certificates["coordinator"],
            silos=roster.names,
            parties=line,
            limits=LIMITS,
        )
        address = f"localhost:{server.port}"

        def serve_silo(name, until):
            # Its account is its thread's, as it would be its process's.
            one = silo(
                tmp_path / name,
                silo=name,
                model=FOUND if are_sums else teacher,
                sealer=PartySealer(identities, silos=of_silos, keys=silo_keys.get(name)),
                allowed=(mechanism["name"],),
                least_sigma=0.1,
                least_silos=2,
                most_epsilon_per_query=100.0,
                epsilon_budget=1e6,
            )
            connection = SiloConnection(address, files=certificates[name], wait_seconds=0.5)
            with one, connection:
                one.serve(connection, until=until, sleep=lambda seconds: None)

        running = [(serve_silo, {"name": name}) for name in SILOS]
        known = {one.name: one for one in (*identities, *of_silos)}
        for one in keys:
            name = one.identity.name
            party = PartyConnection(
                Party(one, tmp_path / name),
                known,
                address,
                files=certificates[name],
                wait_seconds=0.5,
            )
            running.append((party.serve, {}))
        threads = [
            threading.Thread(target=serve, kwargs={**settings, "until": stop.is_set})
            for serve, settings in running
        ]
        for one in threads:
            one.start()
        try:
            if are_sums:
                found = coordinator.result_of_sums(coordinator.open_total(POOL, ENCODER))
            else:
                labels = coordinator.ask(POOL, np.arange(20))
        finally:
            stop.set()
            for one in threads:
                one.join()
            server.stop()
    if are_sums:
        noise = (found / LATTICE - 2 * MADE_UP / LATTICE) / SUMS.total_sigma(2)
        assert 1e-3 < np.abs(noise).max() < 8.0
    else:
        assert (labels.labels == TRUE[:20]).mean() > 0.7
        assert labels.cost.number == 20


@pytest.mark.parametrize("changes", [{"num_parties": 6, "threshold": 2}, {"num_parties": 5}])
def test_a_batch_for_other_parties_is_refused_before_it_is_paid(tmp_path, changes):
    sealer = PartySealer([PartyKeys.generate(name).identity for name in PARTIES])
    with silo(tmp_path, sealer=sealer, least_sigma=0.1) as one:
        reply = one.answer(batch(0, 5, mechanism={**SECURE, **changes}))
        assert isinstance(reply, Refusal) and reply.reason is Reason.MECHANISM_NOT_ALLOWED
        assert one.account.charges == {}
        assert isinstance(one.answer(batch(0, 5, mechanism=SECURE)), SealedShares)


def test_a_name_is_a_silo_s_or_a_party_s(certificates):
    line = PartyService([PartyKeys.generate("silo-1").identity])
    with pytest.raises(ValueError, match="other names than those of silos"):
        serve_coordinator(
            "localhost:0", None, files=certificates["coordinator"], silos=SILOS, parties=line
        )
