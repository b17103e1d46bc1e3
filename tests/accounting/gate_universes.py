"""Every pair of neighboring vote tables of a small universe, and exact divergences between them.

Queries can be exchanged, and so can the teachers that don't change: only the multiset of the other
teachers' counts matters.
"""

import decimal
import itertools
from fractions import Fraction

import numpy as np

from pate_tf.accounting.mechanisms.charged_once import CERTAIN


def exponential_below(epsilon):
    """A rational in [1, e^epsilon], not from the gate's own series."""
    with decimal.localcontext(prec=150):
        value = decimal.Decimal(epsilon).exp()
        return max(Fraction(value) * (1 - Fraction(1, 10**140)), Fraction(1))


def other_counts(num_queries, num_classes, num_teachers, *, ordered=False):
    """Counts of all teachers but one, [num_queries, num_classes] each."""
    others = num_teachers - 1
    of_a_query = [
        row
        for row in itertools.product(range(others + 1), repeat=num_classes)
        if sum(row) == others
    ]
    tables = itertools.product if ordered else itertools.combinations_with_replacement
    choices = tables(of_a_query, repeat=num_queries) if ordered else tables(of_a_query, num_queries)
    for table in choices:
        yield np.array(table, np.int64)


def neighbours(counts):
    """Counts with every possible vote of the changing teacher, [tables, queries, classes]."""
    num_queries, num_classes = counts.shape
    votes = np.array(list(itertools.product(range(num_classes), repeat=num_queries)))
    return counts + np.eye(num_classes, dtype=np.int64)[votes]


def hockey_stick(here, there, growth):
    """Sum of max(0, P - growth Q) over outcomes, for dictionaries of probabilities."""
    return sum(
        max(0, probability - growth * there.get(outcome, 0))
        for outcome, probability in here.items()
    )


def gate_outcomes(label, numerator):
    law = {label: Fraction(numerator, CERTAIN), "shut": Fraction(CERTAIN - numerator, CERTAIN)}
    return {outcome: probability for outcome, probability in law.items() if probability}


def reached_pairs(universe, distances, *, ordered=False):
    """All (distance here, distance there, whether labels are the same) that neighbors have."""
    pairs = set()
    for counts in other_counts(*universe, ordered=ordered):
        tables = neighbours(counts)
        of_queries = distances(tables.reshape(-1, tables.shape[2])).reshape(tables.shape[:2])
        reached = {}
        labels = [tuple(row) for row in tables.argmax(axis=2)]
        for label, distance in zip(labels, of_queries.min(axis=1).tolist(), strict=True):
            reached.setdefault(distance, set()).add(label)
        for here, there in itertools.product(reached, repeat=2):
            if reached[here] & reached[there]:
                pairs.add((here, there, True))
            if len(reached[here] | reached[there]) > 1:
                pairs.add((here, there, False))
    return pairs


def worst_gate(universe, *, epsilon, delta, numerator, distances, ordered=False):
    """The largest hockey-stick divergence of all neighbors over delta, as a fraction.

    Args:
        numerator: of the pass probability over 2**128, a function of a distance.
        distances: a function of counts [num_queries, num_classes].
    """
    growth = exponential_below(epsilon)
    return max(
        hockey_stick(
            gate_outcomes(0, numerator(here)), gate_outcomes(1 - same, numerator(there)), growth
        )
        for here, there, same in reached_pairs(universe, distances, ordered=ordered)
    ) / Fraction(delta)
