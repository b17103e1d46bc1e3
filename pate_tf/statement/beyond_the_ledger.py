"""What a statement says that no row of its own ledger does: resets, and other ensembles."""

from math import isfinite
from typing import Any

from pate_tf.accounting.composition import smallest_epsilon
from pate_tf.ledger import Ledger

LARGEST_DELTA = 0.5


def facts_beyond_the_ledger(ledger: Ledger) -> dict[str, Any]:
    """Returns what a statement says of resets, and of other ensembles of the same records."""
    everything = ledger.all_ensembles()
    epsilon = delta = None
    if everything is not None and not everything.num_unknown:
        delta = ledger.delta
        epsilon, _ = smallest_epsilon(everything.paid, delta)
        if not isfinite(epsilon):  # batches of other ensembles spent more delta than this one's
            spent = sum(
                number * charge.approximate[1]
                for charge, number in everything.paid.items()
                if charge.approximate is not None
            )
            delta = min(delta + spent, LARGEST_DELTA)
            epsilon, _ = smallest_epsilon(everything.paid, delta)
    return {
        "ledger_was_reset": ledger.was_reset,
        "epsilon_all_ensembles": epsilon,
        "delta_all_ensembles": delta,
        "num_ledgers": None if everything is None else everything.num_ledgers,
        "records_are_known": everything is not None and everything.records_are_known,
    }
