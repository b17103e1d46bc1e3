"""Adds votes up among parties in this process and prints what it takes.

`python -m benchmarks.secure_aggregation [--silos=250] [--queries 1000 9000] [--classes=10]`

Compares with an aggregator that everybody trusts, who counts the votes and adds Gaussian noise.
"""

import argparse
import hashlib
import pathlib
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from pate_tf.accounting.conversions import LATTICE
from pate_tf.accounting.local.base import SecureHistogram
from pate_tf.accounting.mechanisms import GaussianHistogram
from pate_tf.aggregation.noise import SystemNoise
from pate_tf.silos.secure.keys import PartyKeys
from pate_tf.silos.secure.opening import open_histogram
from pate_tf.silos.secure.party import Party
from pate_tf.silos.secure.protocol import PartyMessage, PartyTask
from pate_tf.silos.secure.shares import seal_votes
from pate_tf.silos.secure.terms import BatchTerms

SIGMA = 40.0


class Timed:
    """A party whose processor time is counted, by step."""

    def __init__(self, party: Party) -> None:
        self.party = party
        self.seconds: dict[str, float] = {}

    def __call__(self, task: PartyTask) -> PartyMessage:
        """Answers a task."""
        begin = time.thread_time()
        message = self.party.answer(task)
        self.seconds[task.step.value] = time.thread_time() - begin
        return message


@contextmanager
def parties(number: int) -> Iterator[list[Timed]]:
    """Parties with journals in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        made = [
            Timed(Party(PartyKeys.generate(f"party-{one}"), pathlib.Path(folder) / str(one)))
            for one in range(1, number + 1)
        ]
        yield made
        for one in made:
            one.party.close()


def processor_seconds(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def measured(silos: int, queries: int, classes: int, num_parties: int) -> tuple[float, float]:
    """Prints what one batch takes; returns a party's seconds and a silo's bytes."""
    labels = np.random.default_rng(0).integers(classes, size=(silos, queries))
    counts = np.stack([(labels == one).sum(axis=0) for one in range(classes)], axis=1)
    trusted = processor_seconds(
        lambda: GaussianHistogram(SIGMA).draw(
            np.stack([(labels == one).sum(axis=0) for one in range(classes)], axis=1),
            SystemNoise(),
        )
    )
    with parties(num_parties) as asked:
        terms = BatchTerms(
            run_id="benchmark",
            batch_id="batch",
            queries_digest=hashlib.sha256(b"queries").digest(),
            num_queries=queries,
            num_classes=classes,
            mechanism=SecureHistogram(SIGMA, num_parties, (num_parties - 2) // 2),
            parties=tuple(one.party.identity for one in asked),
        )
        sealed = {}
        sealing = processor_seconds(
            lambda: sealed.update(
                {
                    f"silo-{number}": seal_votes(row, terms, silo=f"silo-{number}")
                    for number, row in enumerate(labels)
                }
            )
        )
        opened = open_histogram(terms, sealed, dict(enumerate(asked, start=1)))
        spent = max(sum(one.seconds.values()) for one in asked)
        steps = ", ".join(f"{step} {took:.2f}" for step, took in asked[0].seconds.items())
    mechanism = terms.mechanism
    total_sigma = mechanism.sigma * (mechanism.num_parties / mechanism.num_honest) ** 0.5
    deviations = (opened.noisy_counts - counts * LATTICE) / (LATTICE * total_sigma)
    size = max(sum(map(len, one)) for one in sealed.values())
    print(
        f"{silos} silos, {queries:,} queries, {classes} classes, {num_parties} parties, "
        f"{len(opened.left_out)} silos left out"
    )
    print(f"{spent:8.2f} s of processor time a party ({steps})")
    print(f"{trusted:8.2f} s of a trusted aggregator: 1 / {spent / trusted:.0f} of it")
    print(
        f"{1e3 * sealing / silos:8.2f} ms a silo, {size / 1e6:.2f} MB sent by each to all parties"
    )
    print(f"{deviations.std():8.3f} standard deviations of noise as a part of what is expected")
    return spent, size


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--silos", type=int, default=250)
    parser.add_argument("--queries", type=int, nargs="+", default=[1000, 9000])
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--parties", type=int, default=3)
    flags = parser.parse_args(arguments)
    found = [measured(flags.silos, each, flags.classes, flags.parties) for each in flags.queries]
    for queries, (seconds, size) in zip(flags.queries[1:], found[1:], strict=True):
        print(
            f"{queries / flags.queries[0]:g} times the queries: {seconds / found[0][0]:.1f} times "
            f"the processor time, {size / found[0][1]:.2f} times the bytes"
        )


if __name__ == "__main__":
    main()
