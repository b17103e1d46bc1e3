"""Sources of votes, accounting, reports of ledgers, stored releases of files."""

import shutil
from collections import Counter

import numpy as np
import pytest
from analysis_helpers import (
    DELTA,
    MECHANISM,
    GivenNoise,
    golden_counts,
    random_labels,
    release_labels,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from pate_tf.accounting import moments
from pate_tf.accounting.charge import PlannedRelease
from pate_tf.accounting.mechanisms import (
    ConfidentGaussianNoisyMax,
    GaussianNoisyMax,
    LaplaceNoisyMax,
)
from pate_tf.analysis.sanitised_epsilon import release
from pate_tf.analysis.vote_sources import (
    AnsweredVotes,
    VoteSource,
    analyse,
    order_free_digest,
    read_ledgers,
    read_votes_file,
)
from pate_tf.core.sensitive import VoteCounts
from pate_tf.core.source import PrivateSource
from pate_tf.ledger import Ledger, LedgerError

LAPLACE = LaplaceNoisyMax(gamma=0.05)
GAUSSIAN = GaussianNoisyMax(sigma=20.0)


def source_of(*groups, **changes):
    answered = tuple(AnsweredVotes(*group) for group in groups)
    charges = Counter()
    for group in answered:
        charges[group.mechanism] += group.counts.num_queries + group.num_unanswered
    number = sum(charges.values())
    facts = {"groups": answered, "num_charged": charges, "identity": "these votes"}
    return VoteSource(**(facts | {"num_queries": number, "num_answered": number} | changes))


def counts_of(name, num_queries):
    return VoteCounts(golden_counts(name, num_queries))


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 5))
def test_digest_of_votes_ignores_order_and_empty_classes(seed, num_queries, num_classes):
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(9, np.full(num_classes, 1.0 / num_classes), size=num_queries)
    digest = order_free_digest(counts)
    shuffled = rng.permuted(counts, axis=1)[rng.permutation(num_queries)]
    assert order_free_digest(shuffled) == digest
    assert order_free_digest(np.pad(counts, ((0, 0), (1, 2)))) == digest
    other = counts.copy()
    other[0, 0] += 1
    assert order_free_digest(other) != digest
    assert order_free_digest(np.concatenate([counts, counts[:1]])) != digest


def test_identity_is_that_of_the_whole_file(tmp_path):
    labels = random_labels(12, 20)
    np.save(tmp_path / "labels.npy", labels)
    np.save(tmp_path / "indices.npy", np.arange(5, 9))

    def read(**choice):
        return read_votes_file(tmp_path / "labels.npy", LAPLACE, **choice)

    some = read(indices_file=tmp_path / "indices.npy", max_examples=2)
    assert some.identity == read().identity == read(num_classes=30).identity
    assert some.num_queries == 2
    expected = [(labels[:, 5:7] == label).sum(axis=0) for label in range(10)]
    np.testing.assert_array_equal(some.groups[0].counts.values.T, expected)


def test_ledger_groups_by_mechanism_and_counts_lost_answers(tmp_path):
    release_labels(tmp_path, golden_counts("H1", 4))
    release_labels(tmp_path, golden_counts("H3", 3), mechanism=GAUSSIAN)
    release_labels(tmp_path, golden_counts("H2", 2))
    with Ledger.open(tmp_path, ensemble_digest="ab" * 32, delta=DELTA) as ledger:
        with ledger.exclusive():
            ledger.debit(GAUSSIAN, [b"lost in a crash."], secure_noise=False)
        source = read_ledgers([ledger], votes_needed=True)
        spent = ledger.spent()
    sizes = {group.mechanism: group.counts.num_queries for group in source.groups}
    assert sizes == {MECHANISM: 6, GAUSSIAN: 3}
    assert source.num_charged == {MECHANISM: 6, GAUSSIAN: 4}
    assert not source.is_secure
    assert analyse(source).epsilon == pytest.approx(spent.epsilon, rel=1e-12)


def test_withheld_queries_are_counted_and_pay_their_tests(tmp_path):
    mechanism = ConfidentGaussianNoisyMax(threshold=240.0, sigma_threshold=9.0, sigma=30.0)
    released = release_labels(tmp_path, golden_counts("H1", 50), mechanism=mechanism)
    with Ledger.read(tmp_path) as ledger:
        (group,) = read_ledgers([ledger], votes_needed=True).groups
    assert group.counts.num_queries == released.num_answered
    assert group.counts.num_queries + group.num_unanswered == 50
    counts = counts_of("H1", 30)
    with_tests, without = (analyse(source_of((mechanism, counts, more))) for more in (70, 0))
    assert with_tests.num_queries == 100
    for bound in ("paper", "two_sided"):
        assert with_tests.bounds[bound] > without.bounds[bound]


def test_costs_of_mechanisms_add_up_moment_by_moment():
    groups = [(LAPLACE, counts_of("H1", 30)), (GAUSSIAN, counts_of("H3", 20))]
    analysis = analyse(source_of(*groups))
    assert set(analysis.bounds) == {"paper", "two_sided"}
    for bound, guarantee in analysis.bounds.items():
        alphas = sum(
            moments.data_dependent_alphas(
                counts.values, mechanism, moments.DEFAULT_MOMENTS, bound=bound
            )
            for mechanism, counts in groups
        )
        expected = moments.epsilon_from_alphas(alphas, moments.DEFAULT_MOMENTS, 1e-5)
        assert guarantee == pytest.approx(expected, rel=1e-12)
    with pytest.raises(ValueError, match="gaussian_noisy_max has no bound 'class_aware'"):
        analyse(source_of(*groups), bounds=("class_aware",))
    with pytest.raises(ValueError, match="needs queries that one mechanism answered"):
        analyse(source_of(*groups), beta=0.09)


@pytest.mark.parametrize("gamma", [1e-6, 1e3])
def test_extreme_noise_gives_numbers_on_the_safe_side(gamma):
    analysis = analyse([[5, 4, 0], [9, 0, 0], [3, 3, 3]], LaplaceNoisyMax(gamma=gamma))
    epsilons = [analysis.epsilon, *(epsilon for epsilon, _ in analysis.bounds.values())]
    assert all(epsilon >= 0.0 for epsilon in epsilons)  # NaN is invalid
    assert gamma < 1.0 or all(epsilon > 100.0 for epsilon in epsilons)
    one_class = analyse(np.full((10, 1), 30), LaplaceNoisyMax(gamma=gamma))
    assert {epsilon for epsilon, _ in one_class.bounds.values()} == {0.0}


# Releases of files. Each has a ledger of its votes.


class Draws:
    """A noise source that counts its draws."""

    is_secure = True

    def __init__(self):
        self.number = 0

    def discrete_gaussian(self, sigma):
        self.number += 1
        return self.number


FILE = PrivateSource.named("votes")


def votes_of(name="H1", identity="these votes", **changes):
    changes = {"source": FILE, **changes}
    return source_of((LAPLACE, counts_of(name, 20)), identity=identity, **changes)


def full_disk(sigma):
    raise OSError("no space left")


def test_noise_is_drawn_once_and_stored_before_it_is_returned(tmp_path):
    noise = Draws()
    first = release(votes_of(), noise, folder=tmp_path)
    assert release(votes_of(), noise, folder=tmp_path) == first
    assert noise.number == 1
    (folder,) = (path for path in (tmp_path / "releases").iterdir() if path.is_dir())
    with Ledger.read(folder) as ledger:
        assert [row.kind for row in ledger.history()] == ["opened", "debit", "released"]
        assert ledger.stored_release()["key"]["plan"] == first.plan.to_dict()
    # Different votes get a new draw, in a separate ledger.
    other = votes_of("H2", "other votes", source=PrivateSource.named("other"))
    with pytest.raises(OSError, match="no space"):
        release(other, GivenNoise(full_disk), folder=tmp_path)
    release(other, noise, folder=tmp_path)
    assert noise.number == 2
    assert len([path for path in (tmp_path / "releases").iterdir() if path.is_dir()]) == 2


@pytest.mark.parametrize("is_deleted", [False, True])
def test_the_same_votes_are_not_drawn_from_afresh(tmp_path, is_deleted):
    """The library refuses a second draw in another folder or after the ledger was deleted, because
    somebody saw the first draw.
    """
    noise, there = Draws(), tmp_path / "there"
    release(votes_of(), noise, folder=there)
    if is_deleted:
        shutil.rmtree(there)
    with pytest.raises(ValueError, match="a release of these votes was already drawn"):
        release(votes_of(), noise, folder=there if is_deleted else tmp_path / "here")
    assert noise.number == 1


@pytest.mark.parametrize(
    "planned", [PlannedRelease(profile=0.5), PlannedRelease(release="smooth_sensitivity")]
)
def test_another_plan_for_the_same_votes_is_refused(tmp_path, planned):
    noise = Draws()
    first = release(votes_of(), noise, folder=tmp_path)
    with pytest.raises(ValueError, match=r"already released with a different .*plan"):
        release(votes_of(), noise, folder=tmp_path, planned=planned)
    assert release(votes_of(), noise, folder=tmp_path) == first and noise.number == 1


def test_a_damaged_draw_is_refused_not_replaced(tmp_path):
    noise = Draws()
    release(votes_of(), noise, folder=tmp_path)
    (file,) = (tmp_path / "releases").glob("*/ledger.sqlite3")
    file.write_bytes(file.read_bytes()[:50] + bytes(40) + file.read_bytes()[90:])
    with pytest.raises(LedgerError):
        release(votes_of(), noise, folder=tmp_path)
    assert noise.number == 1


@pytest.mark.parametrize("source", [votes_of(groups=()), votes_of(source=None)])
def test_adaptive_queries_and_several_ledgers_draw_nothing(tmp_path, source):
    noise = Draws()
    with pytest.raises(ValueError, match="release needs"):
        release(source, noise, folder=tmp_path)
    assert noise.number == 0
