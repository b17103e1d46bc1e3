"""What a statement promises: every kind of epsilon, and what follows from one in plain numbers."""

import dataclasses
from typing import Final

from pate_tf.accounting.special import expit
from pate_tf.statement import words
from pate_tf.statement.facts import StatedFacts

LARGEST_DELTA_TIMES_RECORDS: Final = 0.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Guarantee:
    """One kind of epsilon, what it promises and to whom. Publishable.

    Attributes:
      kind: "data-independent", "sanitised", "gated" or "data-dependent"; for owners also
        "data-independent, against replacement".
      covers: what it counts.
      epsilon: None where no such number was published.
      delta: None likewise.
      promises: what somebody may rely on, or why there is no number.
      to_whom: who may rely on it.
    """

    kind: str
    covers: str
    epsilon: float | None = None
    delta: float | None = None
    promises: str
    to_whom: str


def guarantees(stated: StatedFacts) -> tuple[Guarantee, ...]:
    """Returns every kind of epsilon, those without a number too."""
    holds_always = {
        "kind": "data-independent",
        "promises": words.in_words(words.DATA_INDEPENDENT, stated.unit),
        "to_whom": words.TO_EVERYBODY,
    }
    found = [
        Guarantee(
            covers="this student's labels",
            epsilon=stated.epsilon,
            delta=stated.delta,
            **holds_always,
        ),
        Guarantee(
            covers="whatever this ensemble released up to here",
            epsilon=stated.epsilon_ensemble,
            delta=stated.delta,
            **holds_always,
        ),
    ]
    if stated.epsilon_all_ensembles is not None:
        found.append(
            Guarantee(
                covers=words.all_ensembles(stated.num_ledgers),
                epsilon=stated.epsilon_all_ensembles,
                delta=stated.delta_all_ensembles or stated.delta,
                **holds_always,
            )
        )
    if stated.unit == "owner":
        found += [
            Guarantee(
                kind=words.AGAINST_REPLACEMENT,
                covers=f"{one.covers}, against replacement by another owner's records",
                epsilon=epsilon,
                delta=stated.delta,
                promises=words.OWNER_REPLACED,
                to_whom=words.TO_EVERYBODY,
            )
            for one, epsilon in zip(
                found[:2], (stated.epsilon_replaced, stated.epsilon_ensemble_replaced), strict=True
            )
        ]
    missing = {
        "sanitised": words.NO_RELEASE_IF_ADAPTIVE if stated.is_adaptive else words.NO_RELEASE,
        "gated": words.NOT_GATED,
        "data-dependent": words.DATA_DEPENDENT,
    }
    if stated.sanitised is not None:
        del missing["sanitised"]
        found += [
            Guarantee(
                kind="sanitised",
                covers="all labels of this ensemble, and this number",
                epsilon=stated.sanitised.epsilon,
                delta=stated.sanitised.delta,
                promises=words.sanitised(
                    failure=1.0 - stated.sanitised.confidence,
                    plan_was_fixed=stated.sanitised.plan_was_fixed,
                ),
                to_whom=words.TO_THOSE_IN_THE_DATA,
            ),
            Guarantee(
                covers="all labels of this ensemble, and the sanitised number",
                epsilon=stated.sanitised.worst_case_epsilon,
                delta=stated.sanitised.delta,
                **holds_always,
            ),
        ]
    if not stated.secure_noise:
        found = [
            dataclasses.replace(one, promises=words.NOTHING, to_whom=words.TO_NOBODY)
            for one in found
        ]
    return (
        *found,
        *(
            Guarantee(kind=kind, covers="", promises=reason, to_whom=words.TO_NOBODY)
            for kind, reason in missing.items()
        ),
    )


def largest_share_of_right_guesses(epsilon: float, delta: float) -> float:
    """Returns how often a guess between two equally likely candidates can be right at most.

    (exp(epsilon) + delta) / (1 + exp(epsilon)): for any test between them, false alarms plus
    exp(epsilon) times misses are at least 1 - delta, and the other way round, so that half of what
    goes wrong is at least (1 - delta) / (1 + exp(epsilon)) (Kairouz, Oh and Viswanath 2015,
    Theorem 2.1; docs/theory.md, Proposition C6).

    Args:
      epsilon: at least 0.
      delta: from 0 to 1.
    """
    return float(1.0 - (1.0 - delta) * expit(-epsilon))


def is_delta_large(delta: float, num_records: int) -> bool:
    """Whether delta is above a tenth of one over the number of private records.

    What publishes one record in so many, chosen at random, has that delta at epsilon 0.
    """
    return delta * num_records > LARGEST_DELTA_TIMES_RECORDS
