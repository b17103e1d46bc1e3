"""Compares all mechanisms within one budget, and recommends one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

from pate_tf.accounting.assumed_votes import DEFAULT_MARGIN, AssumedVotes
from pate_tf.accounting.mechanisms import Mechanism, registry
from pate_tf.accounting.planned_queries import GOOD_SHARE, largest_batch, planned_num_queries
from pate_tf.accounting.recommendation import Candidate, Recommendation
from pate_tf.accounting.target import Target

DEFAULT_DELTA: Final = 1e-5
# Mechanisms whose right labels differ by less than this share of the queries count as equally good.
EQUALLY_GOOD: Final = 0.005


def recommend(
    *,
    target_epsilon: float,
    num_teachers: int,
    num_classes: int,
    delta: float = DEFAULT_DELTA,
    num_queries: int | None = None,
    pool_size: int | None = None,
    unit: str = "record",
    num_changed_teachers: int = 1,
    margin: float = DEFAULT_MARGIN,
    num_exceptions: int = 0,
    mechanism: type[Mechanism] | str | None = None,
    adaptive: bool = False,
) -> Recommendation:
    """Compares all mechanisms within a budget, and recommends one. Reads no votes.

    Each gets the least noise whose worst-case epsilon, over all data, keeps to the target. Compared
    are the expected numbers of right labels, right as most teachers see it, under a public
    assumption about votes. Those that give as many, but for half a hundredth of the queries, are
    ranked by what is left if teachers agree half as well. A gate, which labels all of a batch or
    none of it, is recommended only where nothing else labels 95 % of the queries right: it pays for
    nothing if the assumption fails on a single query.

    >>> import pate_tf
    >>> plan = pate_tf.recommend(target_epsilon=0.25, num_teachers=250, num_classes=10)
    >>> plan.mechanism.name, plan.num_queries
    ('stability_gate', 50)
    >>> print(plan)  # the comparison, and what to type

    Args:
        target_epsilon: the most that the labels may cost together.
        num_teachers: who vote.
        num_classes: that they choose from.
        delta: what epsilon holds at. Default 1e-5.
        num_queries: how many labels. Default: planned, `planned_queries.planned_num_queries`.
        pool_size: the most that can be asked; no limit by default.
        unit: what is protected, "record" (default) or "owner".
        num_changed_teachers: how many teachers the change may reach that epsilon protects against:
            1 (default) for one record replaced, or one owner added or removed; 2 for one owner
            replaced by another; k for k records of one person.
        margin: by how many of the teachers, as a share, the first class leads the second on every
            query: an assumption, never measured on the votes that are to be labelled. Default 0.8:
            what teachers that are nearly always right have on inputs typical of their class.
        num_exceptions: queries on which teachers are assumed to be divided. Default 0.
        mechanism: the only one to calibrate, by class or name. Default: all.
        adaptive: whether queries will be chosen by earlier noisy labels, which leaves out whatever
            labels a batch that was fixed beforehand.

    Raises:
        ValueError: if a number is out of range, or no mechanism can be planned for.
    """
    assumed = AssumedVotes(
        num_teachers=num_teachers,
        num_classes=num_classes,
        margin=margin,
        num_exceptions=num_exceptions,
    )
    kinds = _kinds(mechanism, adaptive=adaptive)
    target = Target(
        epsilon=target_epsilon,
        delta=delta,
        num_queries=1 if num_queries is None else num_queries,
        unit=unit,
        num_changed_teachers=num_changed_teachers,
    )
    if num_queries is None:
        number = planned_num_queries(
            target,
            assumed,
            kinds=kinds if mechanism else None,
            at_most=pool_size,
            adaptive=adaptive,
        )
        target = dataclasses.replace(target, num_queries=number)
    elif pool_size is not None and num_queries > pool_size:
        raise ValueError(
            f"num_queries: expected from 1 to the pool's {pool_size}, got {num_queries}"
        )
    return Recommendation(
        target=target,
        assumed=assumed,
        candidates=_ranked(
            _candidates(kinds, target, assumed),
            target.num_queries,
            num_in_batch=largest_batch(assumed) if num_queries is None else target.num_queries,
        ),
        is_num_queries_planned=num_queries is None,
    )


def _kinds(mechanism: type[Mechanism] | str | None, *, adaptive: bool) -> list[type[Mechanism]]:
    offered = registry.offered()
    if mechanism is None:
        return [kind for kind in offered.values() if not (adaptive and kind.is_paid_once)]
    if isinstance(mechanism, str):
        if mechanism not in offered:
            raise ValueError(f"mechanism: expected one of {', '.join(offered)}, got {mechanism!r}")
        mechanism = offered[mechanism]
    if adaptive and mechanism.is_paid_once:
        raise ValueError(
            f"mechanism: expected one that answers queries chosen by earlier labels, got "
            f"{mechanism.name}, whose batch is fixed beforehand"
        )
    return [mechanism]


def _candidates(
    kinds: Sequence[type[Mechanism]], target: Target, assumed: AssumedVotes
) -> list[Candidate]:
    counts = assumed.counts(target.num_queries)
    at_half = assumed.with_half_the_margin().counts(target.num_queries)
    found, refused = [], ""
    for kind in kinds:
        try:
            planned = kind.for_target(target, counts)
            found.append(
                Candidate(
                    mechanism=planned,
                    epsilon=target.epsilon_of(planned),
                    expected_right=planned.expected_right(counts),
                    expected_right_at_half=planned.expected_right(at_half),
                )
            )
        except ValueError as error:  # it says what it lacks
            refused = str(error)
    if not found:
        raise ValueError(f"mechanism: expected one that can be planned for: {refused}")
    return found


def _ranked(
    candidates: Sequence[Candidate], num_queries: int, *, num_in_batch: int
) -> tuple[Candidate, ...]:
    def is_suited(one: Candidate) -> bool:
        return num_queries <= num_in_batch or not one.mechanism.is_paid_once

    def is_sure(one: Candidate) -> bool:
        is_good = one.expected_right >= GOOD_SHARE * num_queries
        return is_good and not one.mechanism.is_paid_once

    suited = [one for one in candidates if is_suited(one)] or candidates
    compared = [one for one in suited if is_sure(one)] or suited
    enough = max(one.expected_right for one in compared) - EQUALLY_GOOD * num_queries

    def rank(one: Candidate) -> tuple[bool, float]:
        is_best = one in compared and one.expected_right >= enough
        return not is_best, -(one.expected_right_at_half if is_best else one.expected_right)

    return tuple(sorted(candidates, key=rank))
