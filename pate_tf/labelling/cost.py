"""What labels cost, whoever asks: the one place that counts how often a mechanism is charged."""

from collections import Counter
from collections.abc import Mapping, Sequence

from pate_tf.accounting.charge import Charge, Cost
from pate_tf.accounting.composition import smallest_epsilon
from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.ledger import Ledger
from pate_tf.ledger.payments import batches_before


def cost_of_labels(
    ledger: Ledger, mechanism: Mechanism, *, num_distinct: int, rows: Sequence[int], unit: str
) -> Cost:
    """Returns what labels cost at the ledger's delta, data-independent.

    Args:
      ledger: what paid.
      mechanism: what drew the labels.
      num_distinct: how many different queries were asked for them.
      rows: sequences of the rows that paid for them.
      unit: what is protected, "record" or "owner".
    """
    number = len(rows) if mechanism.is_paid_once else num_distinct
    charged = _charged(ledger, mechanism, number=number, rows=rows)
    epsilon, _ = smallest_epsilon(charged, ledger.delta)
    return Cost(
        charge=mechanism,
        number=number,
        epsilon=epsilon,
        delta=ledger.delta,
        unit=unit,
        before=before(charged, mechanism, number),
    )


def before(
    charged: Mapping[Charge, int], mechanism: Charge, number: int
) -> tuple[tuple[Charge, int], ...]:
    """Returns what was charged besides `number` of a mechanism, as `Cost.before` has it."""
    rest = Counter(charged) - Counter({mechanism: number})
    return tuple(rest.items())


def _charged(
    ledger: Ledger, mechanism: Mechanism, *, number: int, rows: Sequence[int]
) -> dict[Charge, int]:
    """Returns what labels cost: their own charges, and whatever led to them.

    A batch that stayed shut and made its user ask for these labels is a part of what they tell. Of
    a mechanism that is paid once for a batch every batch counts, up to theirs.

    Args:
      ledger: what paid.
      mechanism: what drew the labels.
      number: how often it was charged for them.
      rows: sequences of the rows that paid for them.
    """
    own: Counter[Charge] = Counter({} if mechanism.is_paid_once else {mechanism: number})
    return own + batches_before(ledger.history(), mechanism, last=max(rows, default=0))
