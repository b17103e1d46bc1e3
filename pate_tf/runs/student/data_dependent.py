"""What the labels of one student cost at the true votes. SENSITIVE."""

import warnings

from pate_tf.accounting import moments
from pate_tf.accounting.released_labels import ReleasedLabels
from pate_tf.labelling.paid_counts import paid_counts
from pate_tf.ledger import Ledger, LedgerError, LedgerWarning


def known_data_dependent_epsilon(ledger: Ledger, released: ReleasedLabels) -> float | None:
    """Sensitive: as `_data_dependent_epsilon`; None, with a warning, if kept votes are broken.

    All is published by then, and nothing that is published depends on them.
    """
    try:
        return _data_dependent_epsilon(ledger, released)
    except LedgerError as error:
        warnings.warn(
            f"{error}; so the data-dependent epsilon is not known", LedgerWarning, stacklevel=2
        )
        return None


def _data_dependent_epsilon(ledger: Ledger, released: ReleasedLabels) -> float | None:
    """Sensitive: two-sided epsilon, at the true votes, of the batches that paid for the labels.

    None if a batch depended on earlier noisy labels: its realised cost is itself random; or if no
    two-sided bound of its mechanism is known.
    """
    if "bounds" in released.cost.charge.lacks:
        return None
    total = 0.0 * moments.DEFAULT_MOMENTS
    for paid in paid_counts(ledger):
        if paid.debit in released.ledger_rows:
            known = [one for one in ("class_aware", "two_sided") if one in paid.mechanism.bounds]
            if paid.adaptive or not known:
                return None
            total = total + moments.data_dependent_alphas(
                paid.counts.values[paid.answered],
                paid.mechanism,
                moments.DEFAULT_MOMENTS,
                bound=known[0],
                num_unanswered=int((~paid.answered).sum()),
            )
    epsilon, _ = moments.epsilon_from_alphas(total, moments.DEFAULT_MOMENTS, released.cost.delta)
    return min(epsilon, released.cost.epsilon)
