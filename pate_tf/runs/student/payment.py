"""Labels that were kept meanwhile are held against the ledger that paid for them."""

import hmac
from typing import Final

from pate_tf.accounting.mechanisms import Mechanism, mechanism_from_dict
from pate_tf.accounting.released_labels import ReleasedLabels
from pate_tf.labelling import labeller
from pate_tf.labelling.class_sums import sums_digest
from pate_tf.labelling.cost import cost_of_labels
from pate_tf.ledger import Ledger
from pate_tf.queries.queried import QueriedLabels
from pate_tf.values.public import Pool

NOT_PAID: Final = "labels: expected labels that this ledger paid for, got others"


def check_paid(labels: QueriedLabels, pool: Pool, ledger: Ledger) -> None:
    """Checks that a ledger paid for labels, whoever kept them meanwhile.

    Raises:
      ValueError: if they are of another pool, the ledger did not give these answers or holds them
        at another delta, or anything about them was changed, such as how queries were chosen.
    """
    labels.check_pool(pool)
    released = labels.released
    mechanism = mechanism_from_dict(released.cost.charge.to_dict())
    if mechanism.adds_records:
        num_distinct, rows = 1, _check_sums(released, mechanism, ledger)
    else:
        num_distinct, rows = _check_answers(labels, mechanism, pool, ledger)
    expected = cost_of_labels(
        ledger, mechanism, num_distinct=num_distinct, rows=rows, unit=released.cost.unit
    )
    cost = released.cost
    if cost.delta != ledger.delta or not cost.epsilon >= expected.epsilon:
        raise ValueError(
            f"labels: expected epsilon {expected.epsilon:g} at the ledger's delta "
            f"{ledger.delta:g}, got {cost.epsilon:g} at {cost.delta:g}: ask again, what was paid "
            f"for is free"
        )
    if not hmac.compare_digest(labels.seal or "", ledger.seal(labels.record())):
        raise ValueError(
            "labels: expected what this ledger gave out, and how it was chosen, got something that "
            "was changed since: ask again, what was paid for is free"
        )


def _check_sums(released: ReleasedLabels, mechanism: Mechanism, ledger: Ledger) -> tuple[int, ...]:
    """Returns the row that paid for noisy sums, if the ledger has them.

    That the labels follow from these is sealed; to work them out again would take minutes.
    """
    digest = sums_digest(mechanism)
    with ledger.exclusive():
        answer = ledger.stored_answers([digest]).get(digest)
    sums = released.noisy_sums
    given = None if sums is None else tuple(sums.ravel().tolist())
    if answer is None or given != answer.noisy_counts or released.ledger_rows != (answer.debit,):
        raise ValueError(NOT_PAID)
    return (answer.debit,)


def _check_answers(
    labels: QueriedLabels, mechanism: Mechanism, pool: Pool, ledger: Ledger
) -> tuple[int, tuple[int, ...]]:
    """Returns how many different queries were answered, and the rows that paid, if they did."""
    released = labels.released
    digests = labeller.query_digests(labels.asked(pool), mechanism)
    with ledger.exclusive():
        answers = ledger.stored_answers(sorted(set(digests)))
    given = [answers.get(digest) for digest in digests]
    counts = released.noisy_counts
    known = {
        # Counts that this batch has and others have not are left out of all.
        (index, answer.label, None if counts is None else answer.noisy_counts)
        for index, answer in zip(labels.queries.tolist(), given, strict=True)
        if answer is not None and answer.label is not None
    }
    said = set(
        zip(
            released.query_indices.tolist(),
            released.labels.tolist(),
            [None] * len(released.labels) if counts is None else map(tuple, counts.tolist()),
            strict=True,
        )
    )
    rows = tuple(sorted({answer.debit for answer in given if answer is not None}))
    if None in given or known != said or rows != released.ledger_rows:
        raise ValueError(NOT_PAID)
    return len(set(digests)), rows
