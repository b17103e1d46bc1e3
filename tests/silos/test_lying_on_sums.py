"""Those who lie where silos add up feature sums: coordinator, aggregators, and a silo.

What random liars can read is `secure/test_lying.py`'s subject; here are the lies that have a name.
"""

import dataclasses
import types

import numpy as np
import pytest
import sums_child
from hypothesis import given, settings
from hypothesis import strategies as st
from secure_helpers import (
    asked,
    open_aggregators,
    run_until,
    sealed_sums,
    some_keys,
    sums_terms,
)
from silo_helpers import Silent
from sums_child import ENCODER, NAMES, POOL, RELEASE, open_silo, sums_of

from pate_tf.accounting.conversions import LATTICE
from pate_tf.models.encoder import record_vectors
from pate_tf.release.noise import SystemNoise
from pate_tf.release.noisy_sums import sums_by_class
from pate_tf.silos import SiloSums, shamir
from pate_tf.silos.coordinator import check_total, open_histogram
from pate_tf.silos.protocol import Keys, ProtocolError, Step
from pate_tf.silos.sealing import deal, seal_shares

TABLES = {name: sums_of(name) for name in NAMES}


@pytest.fixture
def setting(tmp_path):
    """Parties, silos' keys, terms, and what each silo shared."""
    keys, silos = some_keys(), {name: Keys(name) for name in NAMES}
    terms = sums_terms(keys, silos, RELEASE, num_classes=20)
    sealed = sealed_sums(silos, terms, TABLES, dict.fromkeys(silos, Silent()))
    aggregators = open_aggregators(keys, tmp_path)
    yield aggregators, silos, terms, sealed
    for aggregator in aggregators.values():
        aggregator.close()


def without(sealed, *names):
    return {name: each for name, each in sealed.items() if name not in names}


def total_of(names):
    return sum(sums_of(name).reshape(-1) for name in names).tolist()


@pytest.mark.parametrize("last", list(Step))
def test_a_silo_is_not_dropped_after_parties_spoke(setting, last):
    """The coordinator has heard a step, and begins again without one silo.

    The difference of two totals would be the table of one silo.
    """
    aggregators, _, terms, sealed = setting
    run_until(aggregators, terms, sealed, last)
    with pytest.raises(ProtocolError):
        open_histogram(terms, without(sealed, "c"), asked(aggregators))
    opened = open_histogram(terms, sealed, asked(aggregators))
    assert opened.noisy_counts.reshape(-1).tolist() == total_of(NAMES)


def test_a_share_that_is_replaced_leaves_its_silo_out(setting):
    """The attack that read a silo's votes: one aggregator gets a share of the adversary's making.

    Aggregator 4 and the coordinator know that share; were it added up with the others' true ones,
    the other aggregators' sums would tell the silo's table.
    """
    aggregators, silos, terms, sealed = setting
    made = deal(shamir.from_integers(np.zeros(terms.shape, np.int64)), terms, SystemNoise())
    for keys in (None, Keys("c"), silos["d"]):
        forged = seal_shares(made, terms, silo="c", keys=keys)
        changed = {**sealed, "c": (forged[0], *sealed["c"][1:])}
        opened = open_histogram(terms, changed, asked(aggregators))
        assert set(opened.left_out) == {"c"}
        assert opened.noisy_counts.reshape(-1).tolist() == total_of("abde")
        terms = dataclasses.replace(terms, batch_id=terms.batch_id + "b")
        sealed = sealed_sums(silos, terms, TABLES, dict.fromkeys(silos, Silent()))


def test_a_total_that_no_records_have_is_refused(tmp_path):
    """A silo that shares huge numbers spoils the total, and is noticed before anyone trusts it."""
    tables = {name: np.full((4, 5), 10**6) for name in NAMES}
    tables["c"] = np.full((4, 5), -(2**62))
    sums = {name: SiloSums(values=tables[name], representation=ENCODER.digest) for name in NAMES}
    silos = [open_silo(tmp_path, name, sums=sums[name]) for name in NAMES]
    representation = types.SimpleNamespace(encoder_=ENCODER)
    running, _ = sums_child.coordinator(tmp_path, silos)
    with running:
        for _ in range(2):
            with pytest.raises(ValueError, match="silos: expected a total of records' features"):
                running.label_from_sums(POOL, representation)
        assert len(running.journal.rounds()) == 1
    for silo in silos:
        silo.close()


@settings(max_examples=30)
@given(st.integers(0, 2**32), st.sampled_from([0, 1, 40]), st.sampled_from([1e-3, 3.0, 300.0]))
def test_a_total_of_records_is_never_refused(seed, number, noise):
    """Records that are all the same, and far from each other, with and without an owner."""
    random = np.random.default_rng(seed)
    features = random.normal(size=(number, 30)).astype(np.float32) + random.choice([0.0, 50.0])
    features[random.random(number) < 0.1] = np.nan
    vectors, labels = record_vectors(features, None), random.integers(0, 3, number)
    owners = random.integers(0, 5, number) if random.random() < 0.5 else None
    total = sums_by_class(vectors, labels, num_classes=3, owners=owners) / LATTICE
    check_total(total + random.normal(scale=noise, size=total.shape), noise)
