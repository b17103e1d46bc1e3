"""An aggregator that is killed, lied to, asked twice: a batch opens once, with noise drawn once."""

import dataclasses
import shutil

import numpy as np
import pytest
from scipy import stats
from secure_helpers import (
    asked,
    open_aggregators,
    run_until,
    sealed_votes,
    some_keys,
    some_labels,
    some_terms,
)
from silo_helpers import Silent

from pate_tf.ledger import LedgerError
from pate_tf.net.wire_values import decode, encode
from pate_tf.release.noise import SystemNoise
from pate_tf.silos import aggregator as journal
from pate_tf.silos import protocol
from pate_tf.silos.aggregator import Aggregator
from pate_tf.silos.coordinator import open_histogram
from pate_tf.silos.protocol import STEPS, AggregatorTask, ProtocolError, Step

FALSE_ALARM = 1e-7


@pytest.fixture
def batch(tmp_path):
    """Returns keys, terms, sealed votes of three silos, and aggregators; noise distinguishes two
    draws.
    """
    keys = some_keys()
    terms = some_terms(keys, sigma=1000.0)
    sealed = sealed_votes(some_labels(terms, 3), terms)
    return keys, terms, sealed, open_aggregators(keys, tmp_path)


def by_party(message, batch, **changes):
    """Returns an aggregator's message with changes, signed by it."""
    return dataclasses.replace(message, **changes).signed(batch[0][message.aggregator - 1])


def answers(aggregators, step, terms, stories):
    """Returns the answers of aggregators that were told different stories."""
    return {
        number: aggregators[number].answer(AggregatorTask(step=step, terms=terms, messages=story))
        for number, story in stories.items()
    }


@pytest.mark.parametrize("last", list(Step), ids=lambda step: step.value)
def test_a_party_that_was_killed_says_what_it_said(tmp_path, batch, last):
    keys, terms, sealed, aggregators = batch
    rounds = run_until(aggregators, terms, sealed, last)
    aggregators[2].close()
    aggregators[2] = Aggregator(keys[1], tmp_path / "aggregator-2")
    assert run_until(aggregators, terms, sealed, last) == rounds
    open_histogram(terms, sealed, asked(aggregators))


@pytest.mark.parametrize("last", list(Step), ids=lambda step: step.value)
def test_a_party_killed_before_its_word_is_written_draws_again_unheard(
    tmp_path, batch, last, monkeypatch
):
    keys, terms, sealed, aggregators = batch
    keep = journal.AggregatorJournal.keep

    def killed(self, task, message, transcript):
        if task.step is last and self.folder.name == "aggregator-2":
            raise KeyboardInterrupt
        keep(self, task, message, transcript)

    monkeypatch.setattr(journal.AggregatorJournal, "keep", killed)
    with pytest.raises(KeyboardInterrupt):
        run_until(aggregators, terms, sealed, last)
    monkeypatch.setattr(journal.AggregatorJournal, "keep", keep)
    aggregators[2].close()
    aggregators[2] = Aggregator(keys[1], tmp_path / "aggregator-2")
    opened = open_histogram(terms, sealed, asked(aggregators))
    again = open_histogram(terms, sealed, asked(aggregators))
    assert np.array_equal(opened.noisy_counts, again.noisy_counts)


def test_secrets_are_gone_once_released_and_none_is_told_without_all_noise(
    tmp_path, batch, monkeypatch
):
    keys, terms, sealed, aggregators = batch
    run_until(aggregators, terms, sealed, Step.AGREE)
    assert len(list(tmp_path.rglob("batch.secret"))) == 4
    open_histogram(terms, sealed, asked(aggregators))
    assert list(tmp_path.rglob("batch.secret")) == []
    for path in tmp_path.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0 or path.name == "lock" or path.parent == tmp_path
    silent = some_terms(keys, question=b"no-noise")
    sealed = sealed_votes(some_labels(silent, 3), silent)
    monkeypatch.setattr(journal.sealing, "seal", lambda *_, **__: bytes(100))
    with pytest.raises(ValueError, match="for another batch"):
        run_until(aggregators, silent, sealed, Step.REVEAL)


def test_a_journal_that_was_put_back_or_lost_is_refused(tmp_path, batch):
    """Otherwise it would answer twice, with other noise and under another challenge."""
    keys, terms, sealed, aggregators = batch
    run_until(aggregators, terms, sealed, Step.COMMIT)
    folder, copy = tmp_path / "aggregator-2", tmp_path / "copy"
    aggregators[2].close()
    shutil.copytree(folder, copy)
    aggregators[2] = Aggregator(keys[1], folder)
    run_until(aggregators, terms, sealed, Step.MASK)
    aggregators[2].close()
    for put_back in (False, True):
        shutil.rmtree(folder)
        if put_back:
            shutil.copytree(copy, folder)
        with pytest.raises(LedgerError, match=r"or create new keys, as a new aggregator$"):
            Aggregator(keys[1], folder)


# ---- lies ----------------------------------------------------------------------------------------


LIES = {
    "other content": lambda first, step, batch: dataclasses.replace(
        first, content=first.content[:-1] + bytes([first.content[-1] ^ 1])
    ),
    "another batch": lambda first, step, batch: by_party(
        first, batch, terms_digest=some_terms(batch[0], question=b"other").digest
    ),
    "another step": lambda first, step, batch: by_party(
        first, batch, step=STEPS[(STEPS.index(step) + 1) % len(STEPS)]
    ),
    "another aggregator": lambda first, step, batch: first.signed(batch[0][2]),
    "seen otherwise": lambda first, step, batch: by_party(first, batch, seen=bytes(32)),
    "no content": lambda first, step, batch: by_party(first, batch, content=b"\xff" * 20),
}


@pytest.mark.parametrize("step", list(Step)[:-1], ids=lambda step: step.value)
@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_forged_messages_are_refused(tmp_path, batch, step, lie):
    _, terms, sealed, aggregators = batch
    rounds = run_until(aggregators, terms, sealed, step)
    messages = (lie(rounds[step][0], step, batch), *rounds[step][1:])
    task = AggregatorTask(step=STEPS[STEPS.index(step) + 1], terms=terms, messages=messages)
    with pytest.raises(ProtocolError, match=r"sign|not (see|list|a message)|seed|must have"):
        aggregators[2].answer(task)
    honest = open_histogram(terms, sealed, asked(aggregators))  # a lie harms no one
    assert len(honest.silos) == 3


def test_a_party_that_tells_two_stories_gets_nothing_released(tmp_path, batch):
    """Aggregator 4 and the coordinator collude. They want two sums that differ in one silo."""
    _, terms, sealed, aggregators = batch
    rounds = run_until(aggregators, terms, sealed, Step.CHECK)
    honest = rounds[Step.CHECK]
    values = honest[3].content
    lie = by_party(honest[3], batch, content=bytes([values[0] ^ 1]) + values[1:])
    stories = {1: honest, 2: (*honest[:3], lie), 3: honest}
    agreed = answers(aggregators, Step.AGREE, terms, stories)
    silos = {number: decode(tuple[str, ...], agreed[number].content) for number in (1, 2)}
    assert len(silos[2]) == len(silos[1]) - 1  # one silo fewer
    for number in stories:
        last = by_party(dataclasses.replace(agreed[number], aggregator=4), batch)
        task = AggregatorTask(step=Step.RELEASE, terms=terms, messages=(*agreed.values(), last))
        with pytest.raises(ProtocolError, match=r"agree: .* did not see the same messages"):
            aggregators[number].answer(task)


def test_two_challenges_for_the_same_shares_are_refused(tmp_path, batch):
    """Aggregator 4 commits to another seed toward aggregator 2. No share is opened under both."""
    _, terms, sealed, aggregators = batch
    rounds = run_until(aggregators, terms, sealed, Step.COMMIT)
    honest = rounds[Step.COMMIT]
    told = protocol.Commitment.of(honest[3].content, terms)
    other = dataclasses.replace(told, part_digest=protocol.seed_digest(b"s" * 32, 4, terms))
    lie = by_party(honest[3], batch, content=encode(other))
    stories = {1: honest, 2: (*honest[:3], lie), 3: honest}
    revealed = answers(aggregators, Step.REVEAL, terms, stories)
    last = by_party(dataclasses.replace(revealed[2], aggregator=4), batch, content=b"s" * 32)
    task = AggregatorTask(step=Step.MASK, terms=terms, messages=(*revealed.values(), last))
    for number in stories:
        with pytest.raises(ProtocolError, match=r"reveal: .* did not see the same messages"):
            aggregators[number].answer(task)


def test_broken_journals_are_refused(tmp_path, batch):
    _, terms, sealed, aggregators = batch
    run_until(aggregators, terms, sealed, Step.COMMIT)
    (path,) = (tmp_path / "aggregator-2").rglob("batch.commit")
    whole = path.read_bytes()
    for broken in (b"", whole[:-1], whole + b"x"):
        path.write_bytes(broken)
        with pytest.raises(LedgerError, match=r"batch.commit: this file was changed"):
            run_until(aggregators, terms, sealed, Step.COMMIT)


# ---- the guarantee, from outside ----------------------------------------------------------------


def audited_distance(folder, *, sigma, cheats, num_queries=10_000):
    """Returns a lower bound on the distance of the opened laws, wrong with probability at most
    FALSE_ALARM.

    One vote moves from the first class to the second.
    """
    errors = []
    for place, label in enumerate((0, 1)):
        keys = some_keys()
        terms = some_terms(
            keys, sigma=sigma, num_queries=num_queries, num_classes=2, question=bytes([place])
        )
        sealed = sealed_votes({"silo": np.full(num_queries, label)}, terms)
        aggregators = open_aggregators(keys, folder / str(place), noise=SystemNoise())
        for number in cheats:
            aggregators[number]._noise = Silent()
        opened = open_histogram(terms, sealed, asked(aggregators)).noisy_counts
        first_leads = opened[:, 0] - opened[:, 1] > 0
        wrong = int((first_leads == bool(label)).sum())
        errors.append(stats.beta.isf(FALSE_ALARM / 2, wrong + 1, num_queries - wrong))
    return -sum(stats.norm.ppf(errors))


def test_epsilon_holds_where_a_threshold_of_parties_adds_no_noise(tmp_path):
    claimed = np.sqrt(2.0) / 2.0
    distance = audited_distance(tmp_path, sigma=2.0, cheats={4})
    assert 0.65 * claimed <= distance <= claimed  # more than six standard deviations below


def test_the_audit_notices_one_cheat_too_many(tmp_path):
    distance = audited_distance(tmp_path, sigma=2.0, cheats={1, 4}, num_queries=40_000)
    assert distance > np.sqrt(2.0) / 2.0
