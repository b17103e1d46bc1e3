"""Aggregators, terms and silos of synthetic batches."""

import dataclasses

import numpy as np

from pate_tf.accounting.conversions import LATTICE
from pate_tf.accounting.local import SecureHistogram
from pate_tf.silos.aggregator import Aggregator
from pate_tf.silos.coordinator import open_histogram
from pate_tf.silos.protocol import STEPS, AggregatorTask, BatchTerms, Keys, Step, Transcript
from pate_tf.silos.sealing import seal_sums, seal_votes

FAINT = 1e-7  # in votes: noise of a tenth of a lattice step


def some_keys(number=4):
    return [Keys(f"aggregator-{index + 1}") for index in range(number)]


def some_terms(keys, *, sigma=FAINT, threshold=1, num_queries=4, num_classes=3, question=b"b"):
    return BatchTerms(
        question=question.ljust(32),
        shape=(num_queries, num_classes),
        mechanism=SecureHistogram(sigma=sigma, num_parties=len(keys), threshold=threshold),
        aggregators=tuple(each.identity for each in keys),
    )


def some_labels(terms, num_silos, seed=1):
    num_queries, num_classes = terms.shape
    drawn = np.random.default_rng(seed).integers(num_classes, size=(num_silos, num_queries))
    return {f"silo-{index:03d}": row for index, row in enumerate(drawn)}


def counts_of(labels, terms):
    counts = np.zeros(terms.shape, np.int64)
    for row in labels.values():
        counts[np.arange(terms.shape[0]), row] += 1
    return counts


def sealed_votes(labels, terms):
    return {silo: seal_votes(row, terms, silo=silo) for silo, row in labels.items()}


def open_aggregators(keys, folder, *, noise=None):
    return {
        number + 1: Aggregator(one, folder / one.identity.name, noise=noise)
        for number, one in enumerate(keys)
    }


def asked(aggregators):
    return [aggregators[number].answer for number in sorted(aggregators)]


def tasks(terms, sealed, step, messages=()):
    """Returns the tasks of an honest coordinator for the aggregators, by aggregator number."""
    return {
        number: AggregatorTask(
            step=step,
            terms=terms,
            sealed={silo: shares[number - 1] for silo, shares in sealed.items()}
            if step is Step.COMMIT
            else {},
            messages=tuple(messages),
        )
        for number in terms.numbers
    }


def run_until(aggregators, terms, sealed, last):
    """Returns the messages of every step up to the last one, by step."""
    rounds, messages = {}, ()
    for step in STEPS:
        asked_now = tasks(terms, sealed, step, messages)
        messages = tuple(aggregators[number].answer(task) for number, task in asked_now.items())
        rounds[step] = messages
        if step is last:
            break
    return rounds


def transcript_of(aggregator, terms, step):
    """Returns the transcript that an aggregator knew when it answered a step, from its journal."""
    said = Transcript(terms)
    for following in STEPS[1 : STEPS.index(step) + 1]:
        said = said.after(aggregator.journal.step(terms, following)[1:])
    return said


def sums_terms(keys, silos, release, *, num_classes):
    """Returns terms of a batch of feature sums, `num_classes` numbers, with silos' keys by name."""
    terms = some_terms(keys, num_queries=1, num_classes=num_classes)
    listed = tuple(one.identity for one in silos.values())
    return dataclasses.replace(terms, mechanism=release, silos=listed)


def sealed_sums(silos, terms, sums, noises):
    """Returns the sealed sums of the silos, with noise by name. Silos without noise drop out."""
    return {
        name: seal_sums(sums[name], terms, keys=silos[name], noise=noise)
        for name, noise in noises.items()
    }


class Batch:
    """Keys, terms, silos' votes and aggregators of one batch."""

    def __init__(self, folder, num_silos=3, *, num_parties=4, noise=None, **changes):
        self.keys = some_keys(num_parties)
        self.terms = some_terms(self.keys, **changes)
        self.labels = some_labels(self.terms, num_silos)
        self.sealed = sealed_votes(self.labels, self.terms)
        self.aggregators = open_aggregators(self.keys, folder, noise=noise)
        self.ways = asked(self.aggregators)

    def open(self):
        return open_histogram(self.terms, self.sealed, self.ways)

    def noise(self, opened):
        """Returns the noise of a histogram, in lattice steps, by subtracting its votes."""
        counted = {silo: self.labels[silo] for silo in opened.silos}
        return opened.noisy_counts - counts_of(counted, self.terms) * LATTICE
