"""From votes to a noisy histogram: what opens, who is left out, what is refused."""

import math

import numpy as np
import pytest
from scipy import stats
from secure_helpers import (
    FAINT,
    asked,
    counts_of,
    open_parties,
    run_until,
    sealed_votes,
    some_keys,
    some_labels,
    some_terms,
    tasks,
)

from pate_tf.accounting.local.secure_histogram import LATTICE, SecureHistogram
from pate_tf.noise import SystemNoise
from pate_tf.silos.messages import QueryBatch
from pate_tf.silos.secure import checks, field, sealing, shamir, terms, votes
from pate_tf.silos.secure.keys import PartyIdentity, PartyKeys
from pate_tf.silos.secure.messages import ProtocolError, Step
from pate_tf.silos.secure.opening import PartyMissingError, open_histogram
from pate_tf.silos.secure.sealing import SealingError
from pate_tf.silos.secure.terms import BatchTerms

FALSE_ALARM = 1e-7
VICTIM = "silo-002"


def forged(terms, change):
    """The sealed shares of a silo whose shares somebody changed before they were sealed."""
    one_hot = np.zeros(terms.shape, np.uint64)
    one_hot[:, 0] = 1
    return votes.seal_shares(change(one_hot, terms), terms, silo=VICTIM)


def sharing(change_votes):
    def change(one_hot, terms):
        change_votes(one_hot)
        return votes.vote_shares(one_hot, terms, SystemNoise())

    return change


def thousand(one_hot):
    one_hot[0, 0] = 1000


def two_votes(one_hot):
    one_hot[1, 1] = 1


def no_vote(one_hot):
    one_hot[2] = 0


def sum_of_one(one_hot):
    one_hot[0, 0], one_hot[0, 1] = 2, field.PRIME - 1


def vote_for_the_last(one_hot):
    one_hot[-1] = 0


def of_higher_degree(one_hot, terms):
    shares = votes.vote_shares(one_hot, terms, SystemNoise())
    degree = terms.threshold + 1
    shares[:, votes.NUM_MASKS :] = shamir.share(
        one_hot.reshape(-1),
        num_parties=len(terms.parties),
        degree=degree,
        words=SystemNoise().words,
    )
    return shares


def one_share_moved(one_hot, terms):
    shares = votes.vote_shares(one_hot, terms, SystemNoise())
    shares[0, votes.NUM_MASKS] ^= np.uint64(1)
    return shares


def mask_that_is_not_zero(one_hot, terms):
    shares = votes.vote_shares(one_hot, terms, SystemNoise())
    shares[:, 0] = field.add(shares[:, 0], np.uint64(1))
    return shares


BAD = [
    *(sharing(one) for one in (thousand, two_votes, no_vote, sum_of_one, vote_for_the_last)),
    *(of_higher_degree, one_share_moved, mask_that_is_not_zero),
]


@pytest.mark.parametrize(("num_parties", "threshold"), [(3, 1), (4, 1), (5, 2)])
def test_what_opens_is_the_histogram_with_noise_of_every_party(tmp_path, num_parties, threshold):
    keys = some_keys(num_parties)
    batch = some_terms(keys, threshold=threshold)
    labels = some_labels(batch, 7)
    opened = open_histogram(batch, sealed_votes(labels, batch), asked(open_parties(keys, tmp_path)))
    noise = opened.noisy_counts - counts_of(labels, batch) * LATTICE
    assert np.abs(noise).max() <= 3 * num_parties
    assert opened.silos == tuple(labels)
    assert opened.left_out == {}


def test_the_noise_has_the_variance_that_is_promised(tmp_path):
    """At m = 3 and t = 1: 1.5 times sigma squared; 5 % more or less is noticed."""
    keys = some_keys()
    batch = some_terms(keys, sigma=3.0, num_queries=10_000, num_classes=2)
    labels = some_labels(batch, 2)
    opened = open_histogram(batch, sealed_votes(labels, batch), asked(open_parties(keys, tmp_path)))
    noise = (opened.noisy_counts - counts_of(labels, batch) * LATTICE).ravel() / LATTICE
    for factor, fits in ((1.0, True), (0.9, False), (1.1, False)):
        scale = factor * 3.0 * math.sqrt(1.5)
        assert (stats.kstest(noise / scale, "norm").pvalue > FALSE_ALARM) == fits


@pytest.mark.parametrize("change", BAD, ids=lambda one: one.__qualname__)
@pytest.mark.parametrize(("num_parties", "threshold"), [(3, 1), (5, 2)])
def test_bad_votes_are_left_out_and_their_silo_named(tmp_path, change, num_parties, threshold):
    keys = some_keys(num_parties)
    batch = some_terms(keys, threshold=threshold)
    labels = some_labels(batch, 4)
    sealed = sealed_votes(labels, batch)
    sealed[VICTIM] = forged(batch, change)
    opened = open_histogram(batch, sealed, asked(open_parties(keys, tmp_path)))
    del labels[VICTIM]
    assert opened.silos == tuple(labels)
    assert opened.left_out.keys() == {VICTIM}
    assert "one for each query" in opened.left_out[VICTIM]
    noise = opened.noisy_counts - counts_of(labels, batch) * LATTICE
    assert np.abs(noise).max() <= 3 * num_parties


def test_bad_votes_alone_open_nothing(tmp_path):
    keys = some_keys()
    batch = some_terms(keys)
    sealed = {VICTIM: forged(batch, sharing(thousand))}
    with pytest.raises(ProtocolError, match="at least one silo"):
        open_histogram(batch, sealed, asked(open_parties(keys, tmp_path)))


def swapped_silos(sealed, labels, batch, keys):
    sealed[VICTIM] = sealed["silo-001"]


def swapped_parties(sealed, labels, batch, keys):
    sealed[VICTIM] = sealed[VICTIM][::-1]


def of_another_batch(sealed, labels, batch, keys):
    other = some_terms(keys, batch_id="before")
    sealed[VICTIM] = votes.seal_votes(labels[VICTIM], other, silo=VICTIM)


def under_other_noise(sealed, labels, batch, keys):
    other = some_terms(keys, sigma=40.0)
    sealed[VICTIM] = votes.seal_votes(labels[VICTIM], other, silo=VICTIM)


def altered(sealed, labels, batch, keys):
    first, *others = sealed[VICTIM]
    sealed[VICTIM] = (first[:-1] + bytes([first[-1] ^ 1]), *others)


def too_short(sealed, labels, batch, keys):
    sealed[VICTIM] = (b"x", *sealed[VICTIM][1:])


def of_another_size(sealed, labels, batch, keys):
    short = sealing.seal(bytes(8), batch, sender=VICTIM, kind="votes", party=1)
    sealed[VICTIM] = (short, *sealed[VICTIM][1:])


@pytest.mark.parametrize(
    "change",
    [
        *(swapped_silos, swapped_parties, of_another_batch, under_other_noise),
        *(altered, too_short, of_another_size),
    ],
)
def test_shares_that_are_not_sealed_for_this_are_left_out(tmp_path, change):
    keys = some_keys()
    batch = some_terms(keys)
    labels = some_labels(batch, 4)
    sealed = sealed_votes(labels, batch)
    change(sealed, labels, batch, keys)
    opened = open_histogram(batch, sealed, asked(open_parties(keys, tmp_path)))
    assert opened.left_out == {VICTIM: "a party could not open its share"}
    assert opened.silos == ("silo-000", "silo-001", "silo-003")


def test_sealed_bytes_tell_nothing_and_open_for_their_party_alone():
    keys = some_keys()
    batch = some_terms(keys)
    sealed = sealing.seal(b"secret", batch, sender="a", kind="votes", party=2)
    assert len(sealed) == len(b"secret") + sealing.OVERHEAD and b"secret" not in sealed
    right = {"sender": "a", "kind": "votes", "keys": keys[1]}
    assert sealing.unseal(sealed, batch, **right) == b"secret"
    for wrong in ({"sender": "b"}, {"kind": "noise"}, {"keys": keys[0]}):
        with pytest.raises(SealingError, match="sealed for this batch and party"):
            sealing.unseal(sealed, batch, **{**right, **wrong})


# ---- what the checks open ------------------------------------------------------------------------


def opened_by_a_model(vote, prime=5, masked=True):
    """All that one party (number 1 of 3, t = 1) and the public see of a check, over all randomness.

    One query of two classes, challenge fixed, in plain whole numbers modulo a small prime.
    """
    rho, tau, chi = (2, 3), 1, (1, 4)
    seen = {}
    places = range(prime)
    masks = [(u1, u2, r, w) for u1 in places for u2 in places for r in places for w in places]
    for c in ((a, b) for a in places for b in places):
        for u1, u2, r, w in masks if masked else [(0, 0, 0, 0)]:
            shares = [
                [(v + k * x) % prime for v, k in zip(vote, c, strict=True)] for x in (1, 2, 3)
            ]
            zeros = [(u1 * x + u2 * x * x) % prime for x in (1, 2, 3)]
            randoms = [(r + w * x) % prime for x in (1, 2, 3)]
            opened = tuple(
                (
                    (
                        zero
                        + sum(p * s * (s - 1) for p, s in zip(rho, share, strict=True))
                        + tau * (sum(share) - 1)
                    )
                    % prime,
                    (random + sum(p * s for p, s in zip(chi, share, strict=True))) % prime,
                )
                for share, zero, random in zip(shares, zeros, randoms, strict=True)
            )
            view = (tuple(shares[0]), zeros[0], randoms[0], opened)
            seen[view] = seen.get(view, 0) + 1
    return seen


def test_what_checks_open_and_one_party_knows_has_one_law_for_all_votes():
    assert opened_by_a_model((1, 0)) == opened_by_a_model((0, 1))
    assert opened_by_a_model((1, 0)) != opened_by_a_model((1, 1))


def test_without_the_masks_the_checks_would_tell_votes():
    assert opened_by_a_model((1, 0), masked=False) != opened_by_a_model((0, 1), masked=False)


def test_without_its_mask_a_check_gives_a_single_vote_away():
    """Party 1 guesses the vote from its share and what party 2 opens; the mask stops it."""
    keys = some_keys()
    batch = some_terms(keys, num_queries=1, num_classes=5)
    challenge = checks.Challenge.of_seeds([b"1", b"2", b"3"], batch, bytes(32))
    one_hot = np.zeros((1, 5), np.uint64)
    one_hot[0, 3] = 1

    def guesses(shares):
        mine, opened = shares[0], checks.check_values(shares[1], challenge)
        found = []
        for guess in range(5):
            guessed = np.zeros(5, np.uint64)
            guessed[guess] = 1
            doubled = field.multiply(np.uint64(2), mine[votes.NUM_MASKS :])
            others = np.concatenate([np.zeros(2, np.uint64), field.subtract(doubled, guessed)])
            if checks.check_values(others, challenge)[0] == opened[0]:
                found.append(guess)
        return found

    shares = votes.vote_shares(one_hot, batch, SystemNoise())
    assert guesses(shares) == []
    shares[:, : votes.NUM_MASKS] = 0
    assert guesses(shares) == [3]


def test_challenges_are_those_of_all_seeds():
    keys = some_keys()
    batch = some_terms(keys)
    seeds = [b"1" * 32, b"2" * 32, b"3" * 32]
    first = checks.Challenge.of_seeds(seeds, batch, bytes(32))
    others = [
        ([b"1" * 32, b"2" * 32, b"4" * 32], batch, bytes(32)),
        (seeds, some_terms(keys, batch_id="c"), bytes(32)),
        (seeds, batch, bytes(31) + b"1"),
    ]
    for arguments in others:
        assert (checks.Challenge.of_seeds(*arguments).rho != first.rho).all()
    parts = np.concatenate([first.rho, first.tau, first.chi])
    assert len(set(parts.tolist())) == len(parts) == 12 + 4 + 12


# ---- a party that is not there -------------------------------------------------------------------


@pytest.mark.parametrize("step", list(Step)[:-1], ids=lambda step: step.value)
@pytest.mark.parametrize("num_parties", [3, 4])
def test_a_missing_party_opens_nothing_and_is_named(tmp_path, step, num_parties):
    keys = some_keys(num_parties)
    batch = some_terms(keys)
    labels = some_labels(batch, 3)
    sealed = sealed_votes(labels, batch)
    ways = asked(open_parties(keys, tmp_path))
    answer = ways[2]

    def fails(task):
        if task.step is step:
            raise ConnectionError("gone")
        return answer(task)

    with pytest.raises(
        PartyMissingError, match=f"party-2.*{step.value}.*nothing has opened"
    ) as caught:
        open_histogram(batch, sealed, {**ways, 2: fails})
    assert caught.value.can_do_without == (num_parties == 4)
    assert ("asked again" in str(caught.value)) == (num_parties == 4)
    opened = open_histogram(batch, sealed, ways)  # it is back
    assert opened.silos == tuple(labels)


def test_the_last_step_needs_few_parties_and_gives_the_same(tmp_path):
    keys = some_keys()
    batch = some_terms(keys, sigma=5.0)
    sealed = sealed_votes(some_labels(batch, 3), batch)
    ways = asked(open_parties(keys, tmp_path))
    results = []
    for gone in ({1}, {2}, {3}, set()):

        def guarded(number, gone=gone):
            def way(task):
                if task.step is Step.RELEASE and number in gone:
                    raise TimeoutError
                return ways[number](task)

            return way

        results.append(open_histogram(batch, sealed, {n: guarded(n) for n in ways}).noisy_counts)
    assert all(np.array_equal(result, results[0]) for result in results)
    with pytest.raises(PartyMissingError, match="release"):
        open_histogram(batch, sealed, {1: ways[1], 2: guarded(2, {2}), 3: guarded(3, {3})})


def test_a_party_that_adds_wrongly_is_noticed(tmp_path):
    keys = some_keys()
    batch = some_terms(keys)
    sealed = sealed_votes(some_labels(batch, 3), batch)
    parties = open_parties(keys, tmp_path)
    journal = parties[3]._journal
    run_until(parties, batch, sealed, Step.AGREE)
    secret = journal.secret(batch, Step.REVEAL)
    journal.keep_secret(batch, Step.REVEAL, {**secret, "noise": secret["noise"] ^ np.uint64(1)})
    with pytest.raises(ProtocolError, match="a party added wrongly"):
        open_histogram(batch, sealed, asked(parties))


# ---- terms and keys ------------------------------------------------------------------------------


def test_terms_are_those_of_the_batch_that_was_asked():
    keys = some_keys()
    batch = QueryBatch.of(
        np.ones((2, 3), np.uint8),
        run_id="run",
        batch_id="b",
        num_classes=4,
        mechanism={"name": "secure_histogram", "sigma": 3.0, "num_parties": 3, "threshold": 1},
        deadline=0.0,
    )
    parties = tuple(each.identity for each in keys)
    made = BatchTerms.of_batch(batch, parties)
    assert made.shape == (2, 4) and made.mechanism == SecureHistogram(3.0, 3, 1)
    assert made.digest == BatchTerms.of_batch(batch, parties).digest
    assert made.digest != BatchTerms.of_batch(batch, parties[::-1]).digest
    with pytest.raises(ValueError, match="parties: expected 3, got 2"):
        BatchTerms.of_batch(batch, parties[:2])
    other = QueryBatch.of(
        np.ones((2, 3), np.uint8),
        run_id="run",
        batch_id="b",
        num_classes=4,
        mechanism={"name": "randomised_response", "epsilon": 1.0},
        deadline=0.0,
    )
    with pytest.raises(ValueError, match="expected secure_histogram"):
        BatchTerms.of_batch(other, parties)


def test_sums_that_could_wrap_around_are_refused(monkeypatch):
    monkeypatch.setattr(terms, "MOST_SILOS", 2**40)
    with pytest.raises(ValueError, match="can't wrap around"):
        some_terms(some_keys())


def test_one_key_for_two_parties_is_refused():
    keys = some_keys(2)
    with pytest.raises(ValueError, match="another name of each"):
        some_terms([*keys, keys[0]])
    first, twin = keys[0].identity, PartyKeys.generate("twin").identity
    copied = PartyIdentity(name="twin", sealing_key=first.sealing_key, signing_key=twin.signing_key)
    with pytest.raises(ValueError, match="another sealing_key of each"):
        BatchTerms(
            run_id="run",
            batch_id="b",
            queries_digest=bytes(32),
            num_queries=1,
            num_classes=2,
            mechanism=SecureHistogram(FAINT, 3, 1),
            parties=(first, keys[1].identity, copied),
        )


def test_the_scale_is_never_below_the_promise():
    from fractions import Fraction

    for sigma in (FAINT, 0.1, 1 / 3, 40.0, 12345.678):
        for parties, threshold in ((3, 1), (5, 2), (7, 3), (9, 2)):
            one = SecureHistogram(sigma, parties, threshold)
            scale = Fraction(terms.party_scale(one))
            assert scale**2 * one.num_honest >= (Fraction(sigma) * LATTICE) ** 2
            assert float(scale) <= sigma * LATTICE / math.sqrt(one.num_honest) * (1 + 1e-14)


def test_keys_are_kept_for_their_owner(tmp_path):
    path = tmp_path / "keys" / "party.json"
    keys = PartyKeys.load_or_create(path, "party-1")
    assert path.stat().st_mode & 0o777 == 0o600
    assert PartyKeys.load_or_create(path, "party-1").identity == keys.identity
    with pytest.raises(ValueError, match="expected the keys of party-2"):
        PartyKeys.load_or_create(path, "party-2")
    path.write_text("{}")
    with pytest.raises(ValueError, match="expected the keys of a party"):
        PartyKeys.load_or_create(path, "party-1")
    assert path.read_text() == "{}"
    identity = keys.identity
    assert PartyIdentity.of_text("party-1", identity.to_text()) == identity
    assert keys.sealing.private_bytes_raw().hex() not in repr(keys)
    for text in ("", "zz", identity.to_text()[:-2]):
        with pytest.raises(ValueError, match="128 hexadecimal digits"):
            PartyIdentity.of_text("party-1", text)


@pytest.mark.parametrize(
    "labels", [np.array([0, 1]), np.array([0, 1, 2, 3]), np.array([-1, 0, 0, 0])]
)
def test_labels_that_are_no_votes_are_refused_without_being_told(labels):
    batch = some_terms(some_keys())
    with pytest.raises(ValueError, match=r"labels: expected (one class|classes 0 to 2)"):
        votes.seal_votes(labels, batch, silo="a")


def test_tasks_of_the_helpers_are_those_of_the_coordinator():
    keys = some_keys()
    batch = some_terms(keys)
    assert set(tasks(batch, {}, Step.COMMIT)) == {1, 2, 3}


@pytest.mark.parametrize(
    ("num_queries", "num_classes"), [(0, 3), (2**31 - 1, 2), (2**20, 17), (1, 1), (1, 2**16 + 1)]
)
def test_batches_of_absurd_size_are_refused_before_anything_is_made(num_queries, num_classes):
    with pytest.raises(ValueError, match=r"expected at (least|most)"):
        some_terms(some_keys(), num_queries=num_queries, num_classes=num_classes)


def test_a_party_draws_no_noise_where_no_share_opens(tmp_path):
    class NeverDraws(SystemNoise):
        def gaussian_integers(self, scale, size):
            raise AssertionError

    keys = some_keys()
    batch = some_terms(keys)
    parties = open_parties(keys, tmp_path, noise=NeverDraws())
    with pytest.raises(ProtocolError, match="at least one silo that open"):
        open_histogram(batch, {"a": (b"x",) * 3}, asked(parties))
    assert list(tmp_path.rglob("*.step")) == []
