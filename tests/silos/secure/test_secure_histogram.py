"""From votes to a noisy histogram: the result, silos that are left out, and refusals."""

import dataclasses
import functools
import math

import numpy as np
import pytest
from scipy import stats
from secure_helpers import FAINT, Batch, run_until, some_keys, some_terms

from pate_tf.accounting.conversions import LATTICE
from pate_tf.accounting.local import SecureHistogram
from pate_tf.net.wire_values import decode, encode
from pate_tf.release.noise import SystemNoise
from pate_tf.silos import protocol, sealing, shamir
from pate_tf.silos.aggregator import BatchSecrets, noise_scale
from pate_tf.silos.protocol import ProtocolError, Step

FALSE_ALARM = 1e-7
VICTIM = "silo-002"


def forged(terms, change):
    """Returns the sealed shares of a silo that somebody changed before sealing."""
    one_hot = np.zeros(terms.shape, np.uint64)
    one_hot[:, 0] = 1
    return sealing.seal_shares(change(one_hot, terms), terms, silo=VICTIM)


def sharing(query, *votes):
    def change(one_hot, terms):
        one_hot[query] = votes
        return sealing.deal(one_hot, terms, SystemNoise())

    return change


def of_higher_degree(one_hot, terms):
    shares = sealing.deal(one_hot, terms, SystemNoise())
    degree = terms.threshold + 1
    shares[:, 2 * terms.shape[0] :] = shamir.share(
        one_hot.reshape(-1),
        num_parties=len(terms.aggregators),
        degree=degree,
        words=SystemNoise().words,
    )
    return shares


def one_share_moved(one_hot, terms):
    shares = sealing.deal(one_hot, terms, SystemNoise())
    shares[0, 2 * terms.shape[0]] ^= np.uint64(1)
    return shares


def square_that_is_none(one_hot, terms):
    shares = sealing.deal(one_hot, terms, SystemNoise())
    shares[:, terms.shape[0]] = shamir.add(shares[:, terms.shape[0]], np.uint64(1))
    return shares


BAD = {
    "thousand": sharing(0, 1000, 0, 0),
    "two votes": sharing(1, 1, 1, 0),
    "no vote": sharing(2, 0, 0, 0),
    "sum of one": sharing(0, 2, shamir.PRIME - 1, 0),
    "none for the last": sharing(-1, 0, 0, 0),
    "degree": of_higher_degree,
    "one share": one_share_moved,
    "square": square_that_is_none,
}


@pytest.mark.parametrize(("num_parties", "threshold"), [(4, 1), (5, 1), (6, 2)])
def test_what_opens_is_the_histogram_with_noise_of_every_party(tmp_path, num_parties, threshold):
    batch = Batch(tmp_path, 7, num_parties=num_parties, threshold=threshold)
    opened = batch.open()
    assert np.abs(batch.noise(opened)).max() <= 3 * num_parties
    assert opened.silos == tuple(batch.labels) and opened.left_out == ()


def test_the_noise_has_the_variance_that_is_promised(tmp_path, monkeypatch):
    """At m = 4 and t = 1 the variance is 4 / 3 of sigma squared. The test notices 10 % more or
    less.
    """
    monkeypatch.setattr("pate_tf.silos.aggregator.MAX_SILOS", 2)
    batch = Batch(tmp_path, 2, sigma=3.0, num_queries=10_000, num_classes=2)
    noise = batch.noise(batch.open()).ravel() / LATTICE
    for factor, fits in ((1.0, True), (0.9, False), (1.1, False)):
        scale = factor * 3.0 * math.sqrt(4 / 3)
        assert (stats.kstest(noise / scale, "norm").pvalue > FALSE_ALARM) == fits


@pytest.mark.parametrize("change", BAD.values(), ids=BAD)
def test_bad_votes_are_left_out_and_their_silo_named(tmp_path, change):
    batch = Batch(tmp_path, 4)
    batch.sealed[VICTIM] = forged(batch.terms, change)
    opened = batch.open()
    assert opened.silos == tuple(silo for silo in batch.labels if silo != VICTIM)
    assert opened.left_out == (VICTIM,)
    assert np.abs(batch.noise(opened)).max() <= 3 * 4


def sealed_otherwise(labels, keys, **changes):
    return sealing.seal_votes(labels[VICTIM], some_terms(keys, **changes), silo=VICTIM)


# Replacements of a silo's sealed shares, by their error.
WRONG_SHARES = {
    "silo": lambda sealed, *_: sealed["silo-001"],
    "aggregators": lambda sealed, *_: sealed[VICTIM][::-1],
    "batch": lambda sealed, labels, keys, _: sealed_otherwise(labels, keys, question=b"before"),
    "noise": lambda sealed, labels, keys, _: sealed_otherwise(labels, keys, sigma=40.0),
    "bit": lambda sealed, *_: (
        sealed[VICTIM][0][:-1] + bytes([sealed[VICTIM][0][-1] ^ 1]),
        *sealed[VICTIM][1:],
    ),
    "length": lambda sealed, *_: (b"x", *sealed[VICTIM][1:]),
    "size": lambda sealed, labels, keys, batch: (
        sealing.seal(bytes(8), batch, sender=VICTIM, kind="votes", aggregator=1),
        *sealed[VICTIM][1:],
    ),
}


@pytest.mark.parametrize("change", WRONG_SHARES.values(), ids=WRONG_SHARES)
def test_shares_that_are_not_sealed_for_this_are_left_out(tmp_path, change):
    batch = Batch(tmp_path, 4)
    batch.sealed[VICTIM] = change(batch.sealed, batch.labels, batch.keys, batch.terms)
    opened = batch.open()
    assert opened.left_out == (VICTIM,)
    assert opened.silos == ("silo-000", "silo-001", "silo-003")


# ---- results of the checks -----------------------------------------------------------------------


def check_number(one_hot, seed, error=0):
    """Returns the value of the last check of a vector of votes, in Python integers, and by the
    library.
    """
    one_hot = np.array([one_hot], np.uint64)
    batch = some_terms(some_keys(), num_queries=1, num_classes=one_hot.size)
    challenge = protocol.Challenge.of_seed(bytes([seed]) * 32, batch)
    shares = sealing.deal(one_hot, batch, SystemNoise())
    shares[:, 1] = shamir.add(shares[:, 1], np.uint64(error))
    places = range(1, 5)
    (y,) = protocol.opened(
        {i: challenge.masked(shares[i - 1])[np.newaxis] for i in places}, threshold=1
    )
    (value,) = protocol.opened(
        {i: np.array([[challenge.check_value(shares[i - 1], y)]]) for i in places}, threshold=1
    )
    prime, weights = shamir.PRIME, [int(rho) for rho in challenge.rho[0]]
    numbers = [int(number) for number in one_hot[0]]
    z = sum(rho * v for rho, v in zip(weights, numbers, strict=True))
    squares = sum(rho * rho * v for rho, v in zip(weights, numbers, strict=True))
    expected = int(challenge.tau[0]) * (z * z - squares + error)
    expected += int(challenge.chi[0]) * (sum(numbers) - 1)
    assert int(value[0]) == expected % prime
    return int(value[0])


@pytest.mark.parametrize("seed", range(5))
def test_the_last_check_is_zero_for_votes_alone(seed):
    assert check_number([0, 1, 0], seed) == 0
    half = pow(2, -1, shamir.PRIME)
    for wrong in ([0, 0, 0], [1, 1, 0], [2, shamir.PRIME - 1, 0], [half, half, 0], [1000, 0, 0]):
        assert check_number(wrong, seed) != 0
    assert check_number([0, 1, 0], seed, error=1) != 0


# ---- an absent aggregator ------------------------------------------------------------------------


@pytest.mark.parametrize("step", list(Step)[:-1], ids=lambda step: step.value)
@pytest.mark.parametrize("num_parties", [4, 5])
def test_a_missing_party_opens_nothing_and_is_named(tmp_path, step, num_parties):
    batch = Batch(tmp_path, num_parties=num_parties)
    answer = batch.ways[1]

    def fails(task):
        if task.step is step:
            raise ConnectionError("gone")
        return answer(task)

    batch.ways[1] = fails
    with pytest.raises(ConnectionError, match=f"aggregator-2.*{step.value}.*No sum was opened"):
        batch.open()
    batch.ways[1] = answer  # it is back
    assert batch.open().silos == tuple(batch.labels)


def test_the_last_step_needs_few_parties_and_gives_the_same(tmp_path):
    batch = Batch(tmp_path, sigma=5.0)
    ways, gone = list(batch.ways), set()

    def guarded(number, task):
        if task.step is Step.RELEASE and number in gone:
            raise TimeoutError
        return ways[number - 1](task)

    batch.ways = [functools.partial(guarded, number) for number in batch.terms.numbers]
    results = []
    for missing in ([1], [2], [4], []):
        gone.clear()
        gone.update(missing)
        results.append(batch.open().noisy_counts)
    assert all(np.array_equal(result, results[0]) for result in results)
    gone.update([2, 3])
    with pytest.raises(ConnectionError, match="release"):
        batch.open()


def test_a_party_that_adds_wrongly_is_noticed(tmp_path):
    batch = Batch(tmp_path)
    journal = batch.aggregators[3].journal
    run_until(batch.aggregators, batch.terms, batch.sealed, Step.AGREE)
    path = journal.path_of(batch.terms, "secret")
    held = decode(BatchSecrets, path.read_bytes())
    changed = bytearray(held.shares["silo-000"])
    changed[-8] ^= 1  # the lowest byte of the last share of a vote
    held = encode(dataclasses.replace(held, shares={**held.shares, "silo-000": bytes(changed)}))
    journal.write_file(batch.terms, "secret", held)
    with pytest.raises(ProtocolError, match="sent a wrong sum"):
        batch.open()


# ---- terms and keys ------------------------------------------------------------------------------


def test_the_scale_is_never_below_the_promise():
    from fractions import Fraction

    for sigma in (FAINT, 0.1, 1 / 3, 40.0, 12345.678):
        for aggregators, threshold in ((4, 1), (6, 2), (8, 3), (9, 2)):
            one = SecureHistogram(sigma=sigma, num_parties=aggregators, threshold=threshold)
            scale = Fraction(noise_scale(one))
            assert scale**2 * one.num_honest >= (Fraction(sigma) * LATTICE) ** 2
            assert float(scale) <= sigma * LATTICE / math.sqrt(one.num_honest) * (1 + 1e-14)
