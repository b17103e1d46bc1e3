"""Releases the data-dependent privacy cost with noise. A plan is fixed before votes are read.

| release | published value | docs/proofs/theory.md |
|---|---|---|
| `log_cost` | the noisy logarithm of a smooth cost, and an epsilon from it | Theorem B2 |
| `smooth_sensitivity` | the cost with noise scaled to its smooth sensitivity | Theorem B1 |

The guarantee is as follows. With probability at least `confidence` over the noise of the release,
the true data and each of its neighbors satisfy the (epsilon, delta) inequalities for everything
that is published, including epsilon itself. Nothing is guaranteed for other pairs of data sets.

Prefer `log_cost` to `smooth_sensitivity`: it costs less, and it adds integer noise, so no
floating-point noise is published.

Only one draw may be published for the same votes. The average of two draws would contain less
noise, and the smaller of two draws would violate the guarantee. Therefore, the first draw is stored
in a ledger. A repeated release with the same plan returns the stored result. Every other plan,
mechanism or selection of the same votes is refused. The ledger of the labels is charged before the
draw. If the votes are from a file, a separate ledger is created.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import operator
import pathlib
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from math import ceil, exp, isfinite
from typing import Any, Final, cast

import numpy as np

from pate_tf.accounting.charge import (
    CostRelease,
    PlannedRelease,
    SanitisedEpsilon,
    charge_from_dict,
    gaussian_smooth_sensitivity_rdp,
    integer_step,
    profile_counts,
    steps_above,
)
from pate_tf.accounting.composition import Charge, total_alphas
from pate_tf.accounting.conversions import (
    DEFAULT_DELTA,
    DEFAULT_MOMENTS,
    SAFETY_MARGIN,
    FloatArray,
    epsilon_from_alphas,
)
from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.accounting.moments import bound_of, check_bound, data_dependent_alphas, union_bound
from pate_tf.analysis import smooth_sensitivity as smooth
from pate_tf.analysis.vote_sources import VoteSource, order_free_digest
from pate_tf.core import artifacts, checks
from pate_tf.core.checks import IntArray
from pate_tf.ledger import Ledger, LedgerError
from pate_tf.ledger.ledger_file import DEBITS, charge_of
from pate_tf.release.noise import NoiseSource

DiscreteGaussian = Callable[[float], int]

FOLDER: Final = "releases"
_FINE_BITS: Final = 55  # for smooth sensitivity, noise is a multiple of 2^-55 standard deviations
_COARSE: Final = 2.0**14  # number of possible published values per unit of Renyi divergence


def sanitised(
    alpha: float, mechanism: Mechanism, plan: CostRelease, delta: float
) -> SanitisedEpsilon:
    """Returns the smaller of two epsilons: the epsilon for a noisy cost and the worst-case epsilon.

    `alpha` is the noisy cost at the moment of the plan. The worst-case epsilon of the labels and
    the release together is valid for all votes. This worst-case epsilon is computed at the best
    moment.
    """
    moment = np.array([plan.moment])
    charged: dict[Charge, int] = {mechanism: mechanism.number_charged(plan.num_queries)}
    cap = float(total_alphas(charged, moment)[0])
    total = (min(alpha, cap) + float(plan.alphas(moment)[0])) * (1.0 + SAFETY_MARGIN)
    worst = total_alphas({**charged, plan: 1}, DEFAULT_MOMENTS) * (1.0 + SAFETY_MARGIN)
    worst_epsilon, _ = epsilon_from_alphas(worst, DEFAULT_MOMENTS, delta)
    return SanitisedEpsilon(
        epsilon=min(epsilon_from_alphas([total], [plan.moment], delta)[0], worst_epsilon),
        delta=delta,
        confidence=1.0 - plan.failure,
        worst_case_epsilon=worst_epsilon,
    )


def log_cost_epsilon(
    steps: int, mechanism: Mechanism, plan: CostRelease, delta: float
) -> SanitisedEpsilon:
    """Computes the total epsilon of the labels and their release from a noisy log cost.

    Args:
        steps: Y plus a discrete Gaussian of scale plan.sigma, where Y = ceil(ln Cbar / plan.step)
            (Theorem B2). Releasing this number costs moment (moment + 1) / (2 sigma^2). All further
            computations are post-processing and cost nothing.
        mechanism: mechanism that drew the labels.
        plan: parameters of the release, fixed before the votes were read.
        delta: delta of the guarantee, above 0.
    """
    # `upper_steps` is below Y with probability at most plan.failure.
    upper_steps = steps + steps_above(plan.sigma, plan.failure)
    return sanitised(exp(min(plan.step * upper_steps, 700.0)), mechanism, plan, delta)


def stored_epsilon(drawn: Mapping[str, Any], *, delta: float, spent: float) -> SanitisedEpsilon:
    """Returns the published epsilon that follows from a stored draw.

    Args:
        drawn: return value of `Ledger.stored_release`.
        delta: delta of the guarantee. A draw by smooth sensitivity is valid only for the delta that
            is stored with it.
        spent: worst-case epsilon of all charges of the ledger at `delta`; 0 if there is no ledger.
    """
    key = drawn["key"]
    if key["delta"] is None:
        mechanism = cast(Mechanism, charge_from_dict(key["mechanism"]))
        plan = cast(CostRelease, charge_from_dict(key["plan"]))
        epsilon = log_cost_epsilon(drawn["drawn"]["steps"], mechanism, plan, delta)
    else:
        epsilon = SanitisedEpsilon(delta=key["delta"], **drawn["drawn"])
    return dataclasses.replace(
        epsilon,
        confidence=max(0.0, 1.0 - drawn["failure"]),
        worst_case_epsilon=max(epsilon.worst_case_epsilon, spent),
        plan_was_fixed=bool(drawn.get("plan_was_fixed", False)),
    )


def prepare_draw(
    counts: IntArray, mechanism: Mechanism, plan: CostRelease, delta: float
) -> Callable[[DiscreteGaussian], dict[str, Any]]:
    """Computes the privacy cost of votes, and returns a function that draws its noisy release.

    The computation may be slow. Y = ceil(ln Cbar / step) changes by at most 1 between neighbors, so
    adding a discrete Gaussian of scale sigma costs lambda / (2 sigma^2) at Renyi order lambda
    (Theorem B2).

    Args:
        counts: int64 [num_queries, num_classes], with one vote of every teacher in every row, for
            queries chosen without looking at noisy labels.
        mechanism: mechanism that draws the labels.
        plan: parameters of the release, fixed before the votes were read.
        delta: delta of the guarantee, only for smooth sensitivity.

    Returns:
        SENSITIVE: a function that draws the release and must be called only once. Its argument is a
            sampler, which takes a scale and returns a discrete Gaussian (see
            `pate_tf.release.noise`). The function returns `steps` for `log_cost_epsilon`, or for
            smooth sensitivity the fields of a `SanitisedEpsilon`.

    Raises:
        ValueError: if the plan does not match the number of queries, the mechanism or the release.
    """
    plan.check_mechanism(mechanism)
    checks.between(0, 1, delta=delta)
    if len(counts) != plan.num_queries:
        raise ValueError(f"the plan is for {plan.num_queries} queries, but there are {len(counts)}")
    moment = np.array([plan.moment])
    if not isfinite(total_alphas({mechanism: mechanism.number_charged(len(counts))}, moment)[0]):
        raise ValueError(f"the cost at moment {plan.moment} is infinite. Plan a smaller moment.")
    if plan.release == "smooth_sensitivity":
        return _prepare_by_smooth_sensitivity(counts, mechanism, plan, delta)
    exact = smooth.log_smooth_cost(
        counts,
        mechanism,
        bound=plan.bound,
        moment=plan.moment,
        eta=plan.smoothness,
        floor=plan.cost_floor,
    )
    exact_steps = ceil((exact + SAFETY_MARGIN) / plan.step)
    return lambda noise: {"steps": exact_steps + operator.index(noise(plan.sigma))}


def _prepare_by_smooth_sensitivity(
    counts: IntArray, mechanism: Mechanism, plan: CostRelease, delta: float
) -> Callable[[DiscreteGaussian], dict[str, Any]]:
    """Implements Theorem B1 with Gaussian noise on a lattice that is finer than rounding errors.

    The result is rounded up to a public grid. Rounding errors of relative size 2^-51 can change the
    rounded result. The public lower limit of U keeps the probability of such a change at about
    1e-9. Delta does not include this probability.
    """
    moment = np.array([plan.moment])
    cap = plan.num_queries * float(check_bound(plan.bound, mechanism).cost_cap(moment)[0])
    cost = float(data_dependent_alphas(counts, mechanism, moment, bound=plan.bound)[0])
    sensitivity = smooth.smooth_sensitivity(
        counts, mechanism, moment=plan.moment, beta=plan.smoothness, bound=plan.bound
    )
    sensitivity = sensitivity * (1.0 + SAFETY_MARGIN) + 1e-6 * cap

    def draw(noise: DiscreteGaussian) -> dict[str, Any]:
        # The noise is the sum of two draws, because a noise source may limit the scale of one draw.
        # The second draw has a standard deviation of eight lattice steps of the first draw. It
        # fills the gaps of that lattice and increases the variance by 2^-54.
        rough = operator.index(noise(2.0**30))
        fill = operator.index(noise(2.0**28))
        normal = ((rough << (_FINE_BITS - 30)) + fill) / 2.0**_FINE_BITS
        divergence = (cost + plan.sigma * sensitivity * (normal + plan.shift)) / plan.moment
        published = max(0.0, ceil(divergence * _COARSE) / _COARSE)
        epsilon = sanitised(plan.moment * published, mechanism, plan, delta)
        names = ("epsilon", "confidence", "worst_case_epsilon")
        return {name: getattr(epsilon, name) for name in names}

    return draw


@dataclasses.dataclass(frozen=True, kw_only=True)
class Released:
    """Public: the published results of a release.

    Attributes:
        plan: parameters of the release, fixed before the votes were read.
        sanitised: epsilon that covers both the labels and this release.
        is_charged: whether the ledger of the labels was charged for this release. False if the
            votes are from a file, which has no ledger of labels.
        secure_noise: False if the noise was drawn with a seed.
    """

    plan: CostRelease
    sanitised: SanitisedEpsilon
    is_charged: bool
    secure_noise: bool


def _stored_draw(
    ledger: Ledger, source: VoteSource, key: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """Returns the stored draw for the given key; None if nothing was drawn from these votes.

    Raises:
        ValueError: if a different draw was made from these votes.
    """
    stored = ledger.stored_release()
    if stored is None:  # a missing ledger or a different folder may have a draw
        debits = [row for row in ledger.history() if row.kind in DEBITS]
        elsewhere = [charge_of(row)[0] for row in debits if "carried_from" in row.details]
        spending = None if source.source is None else ledger.source_spending()
        if spending is not None:
            elsewhere += (Counter(spending.charges) - ledger.charges).elements()
        if any(isinstance(charge, CostRelease) for charge in elsewhere):
            raise ValueError(
                "a release of these votes was already drawn, in another folder or in a ledger that "
                "is missing. Use that release again: a second draw would weaken privacy."
            )
    elif stored["key"] != key:
        differing = [name for name in key if stored["key"].get(name) != key[name]]
        raise ValueError(
            f"these votes were already released with a different {' and '.join(differing)}. Repeat "
            f"the earlier release, which is stored in {ledger.folder}."
        )
    return stored


def release(
    source: VoteSource,
    noise: NoiseSource,
    *,
    folder: pathlib.Path,
    delta: float = DEFAULT_DELTA,
    planned: PlannedRelease | None = None,
) -> Released:
    """Returns the stored release for the same plan, or charges, draws and stores a new release.

    If the votes are from a ledger, the release is stored in this ledger. For a file of votes, a new
    ledger in `folder` stores the release. The user's registry of ledgers detects earlier releases
    from the same file in other folders.

    Args:
        source: votes on queries that one mechanism answered.
        noise: source of the noise. If the ledger contains a release for the same plan, no noise is
            drawn. Otherwise, the noise is drawn after the ledger was charged.
        folder: sensitive folder. Ledgers for files of votes are in its subfolder `releases/`.
        delta: delta of the guarantee.
        planned: plan of the release. Default: the plan that was fixed when the ledger was opened,
            else `PlannedRelease()`.

    Raises:
        ValueError: if queries were chosen by looking at noisy labels, if the source or mechanism
            does not support the release, or if a different release from the same votes exists.
        BudgetExceeded: if the ledger's budget does not cover the release. In this case, no noise is
            drawn.
        LedgerError: if the ledger can't be read or written. In this case, no draw is returned.
    """
    group = source.only_group()
    if source.source is None and source.folder is None:
        raise ValueError("release needs a single ledger or file. Run one release for each.")
    counts = group.counts.values
    mechanism = group.mechanism
    planned = planned or source.planned_release or PlannedRelease()
    plan = plan_release(
        mechanism,
        planned,
        num_queries=len(counts),
        num_teachers=int(counts[0].sum()),
        num_classes=counts.shape[1],
        delta=delta,
    )
    # The key contains all values that determine the published value.
    key = {
        "votes": order_free_digest(counts),
        "mechanism": mechanism.to_dict(),
        "plan": plan.to_dict(),
        "delta": delta if plan.release == "smooth_sensitivity" else None,
    }

    is_of_ledger = source.folder is not None
    with _opened(source, folder) as ledger:
        if is_of_ledger:
            ledger.check_plan(planned)
        stored = _stored_draw(ledger, source, key)
        spent = ledger.spent(delta).epsilon
    if stored is None:
        # The ledger is not locked during this computation, which may take longer than other
        # processes wait for the lock.
        draw = prepare_draw(counts, mechanism, plan, delta)
        with _opened(source, folder) as ledger:
            stored = _stored_draw(ledger, source, key)
            if stored is None:
                if is_of_ledger and ledger.num_answered != len(counts):
                    raise LedgerError(
                        "other queries were answered in the meantime; run the release again"
                    )
                debit = ledger.debit(plan, secure_noise=noise.is_secure)
                stored = {
                    "key": key,
                    "failure": plan.failure,
                    "secure_noise": noise.is_secure,
                    "plan_was_fixed": is_of_ledger and not ledger.plan_is_late,
                    "drawn": draw(noise.discrete_gaussian),
                }
                ledger.store_release(debit, stored)
            spent = ledger.spent(delta).epsilon
    return Released(
        plan=plan,
        sanitised=stored_epsilon(stored, delta=delta, spent=spent),
        is_charged=is_of_ledger,
        secure_noise=stored["secure_noise"],
    )


@contextlib.contextmanager
def _opened(source: VoteSource, folder: pathlib.Path) -> Iterator[Ledger]:
    """Opens and locks the ledger that is charged for a draw.

    Args:
        source: votes on queries that one mechanism answered.
        folder: folder for the ledgers of files of votes. The names of these ledgers are random, so
            they reveal nothing about the votes.
    """
    digest = hashlib.sha256(source.identity.encode()).hexdigest()
    delta = DEFAULT_DELTA
    with contextlib.ExitStack() as stack:
        place = source.folder
        if place is None:
            releases = artifacts.make_sensitive_folder(folder / FOLDER)
            stack.enter_context(artifacts.only_writer(releases, waits=True))
            place = releases / secrets.token_hex(8)
            for path in sorted(releases.glob("*/ledger.sqlite3")):
                with Ledger.read(path.parent) as ledger:
                    place = path.parent if ledger.ensemble_digest == digest else place
        if place.exists():
            with Ledger.read(place) as ledger:
                digest = ledger.ensemble_digest
                delta = ledger.delta
        ledger = stack.enter_context(
            Ledger.open(
                place,
                ensemble_digest=digest,
                delta=delta,
                unit="record" if source.folder is None else None,
                source=source.source,
            )
        )
        stack.enter_context(ledger.exclusive())
        yield ledger


# As the theorems require, a plan does not depend on the true votes. It assumes a profile of votes.
# If the true votes differ from the profile, the released epsilon is larger, but still valid.

FAILURE = 0.01
_MIN_SMOOTHNESS = 1e-3
_MOMENTS = np.geomspace(0.5, 256.0, 46)
_FRACTIONS = np.linspace(0.1, 1.0, 10)
_BETA_FRACTIONS = np.linspace(0.1, 0.9, 9)
_SIGMAS = np.geomspace(0.5, 200.0, 41)
_MAX_STEPS = 400

Candidate = tuple[float, float, float, float]  # epsilon, moment, smoothness, sigma


def plan_release(
    mechanism: Mechanism,
    planned: PlannedRelease | None = None,
    *,
    num_queries: int,
    num_teachers: int,
    num_classes: int,
    delta: float,
) -> CostRelease:
    """Returns the plan that gives the smallest epsilon if all queries have the assumed votes.

    The plan minimizes the median of the published epsilon over a grid of values for moment,
    smoothness and sigma. The plan uses the tightest bound that covers both directions. It does not
    depend on any vote.

    Args:
        mechanism: mechanism that will draw the labels.
        planned: kind of release and assumed profile. Parameters that are not None are kept.
            Default: `PlannedRelease()`.
        num_queries: number of labeled queries.
        num_teachers: number of teachers.
        num_classes: number of classes.
        delta: delta of the privacy statement.

    Raises:
        ValueError: if an argument is out of range, or the mechanism does not support this release.
    """
    checks.between(0, 1, delta=delta)
    planned = planned or PlannedRelease()
    counts = profile_counts(num_teachers, num_classes, planned.profile)
    is_smooth = planned.release == "smooth_sensitivity"
    aware = not is_smooth and "class_aware" in mechanism.bounds
    blank = CostRelease(
        release=planned.release,
        bound="class_aware" if aware else "two_sided",
        moment=1.0,
        smoothness=1.0,
        sigma=1.0,
        failure=FAILURE,
        num_queries=num_queries,
        profile=(
            f"{num_queries} queries of {num_teachers} teachers and {num_classes} classes, all led "
            f"by {planned.profile:g} of the teachers"
        ),
    )
    blank.check_mechanism(mechanism)
    candidates = _smooth_sensitivity if is_smooth else _log_cost
    _, moment, smoothness, sigma = min(candidates(mechanism, blank, counts, delta))
    failure = FAILURE if planned.confidence is None else 1.0 - planned.confidence
    return dataclasses.replace(
        blank,
        moment=planned.moment or moment,
        smoothness=planned.smoothness or smoothness,
        sigma=planned.sigma or sigma,
        failure=failure,
    )


def _log_cost(
    mechanism: Mechanism, plan: CostRelease, counts: IntArray, delta: float
) -> list[Candidate]:
    """Returns candidate plans for the release `log_cost`, with different values of eta."""
    num_teachers = int(counts.sum())
    steps = np.unique(np.linspace(0, num_teachers // 2 + 1, _MAX_STEPS).astype(np.int64))
    formula = bound_of(plan.bound, mechanism)
    tail = smooth.tail_table(plan.bound, mechanism, num_teachers)
    q, u = smooth.ball_maxima(counts, steps + formula.reach, tail)
    costs = formula.costs(q[:, 0], u[:, 0], _MOMENTS)
    logs = np.log(np.maximum(plan.num_queries * costs, plan.cost_floor))  # [num_steps, num_moments]
    steepest = np.max((logs[1:] - logs[0]) / steps[1:, None], axis=0)
    cap = total_alphas({mechanism: mechanism.number_charged(plan.num_queries)}, _MOMENTS)
    candidates = list[Candidate]()
    for fraction in _FRACTIONS:
        smoothness = np.maximum(fraction * steepest, _MIN_SMOOTHNESS)
        step = integer_step(smoothness)
        whole = np.ceil(np.max(logs - smoothness * steps[:, None], axis=0) / step)
        for sigma in _SIGMAS:
            above = float(steps_above(sigma, plan.failure))
            bounds = np.exp(np.minimum(step * (whole + above), 700.0))
            release = _MOMENTS * (_MOMENTS + 1.0) / (2.0 * sigma**2)
            alphas = np.minimum(bounds, cap) + release
            epsilon, moment = epsilon_from_alphas(alphas, _MOMENTS, delta)
            place = int(np.searchsorted(_MOMENTS, moment))
            candidates.append((epsilon, moment, float(smoothness[place]), float(sigma)))
    return candidates


def _smooth_sensitivity(
    mechanism: Mechanism, plan: CostRelease, counts: IntArray, delta: float
) -> list[Candidate]:
    """Returns candidate plans for smooth sensitivity, with different values of beta."""
    formula = bound_of(plan.bound, mechanism)
    q, u = union_bound(formula.tail, counts)
    costs = plan.num_queries * formula.costs(q, u, _MOMENTS)[0]
    caps = total_alphas({mechanism: mechanism.number_charged(plan.num_queries)}, _MOMENTS)
    largest_betas: FloatArray = np.log1p(1.0 / _MOMENTS) / 2.0  # where l (e^{2 beta} - 1) = 1
    alphas = np.empty((len(_BETA_FRACTIONS), len(_SIGMAS), len(_MOMENTS)))
    for place, (moment, cost, cap) in enumerate(zip(_MOMENTS, costs, caps, strict=True)):
        slopes = plan.num_queries * smooth.local_sensitivities(
            counts, mechanism, moment=float(moment), bound=plan.bound
        )
        for row, beta in enumerate(_BETA_FRACTIONS * largest_betas[place]):
            largest = float(np.max(np.exp(-beta * np.arange(len(slopes))) * slopes))
            for column, sigma in enumerate(_SIGMAS):
                release = gaussian_smooth_sensitivity_rdp(
                    moment + 1.0, beta=beta, sigma=sigma, b=plan.shift
                )
                noisy = min(cost + plan.shift * sigma * largest, cap)
                alphas[row, column, place] = noisy + moment * release
    candidates = list[Candidate]()
    for fraction, of_fraction in zip(_BETA_FRACTIONS, alphas, strict=True):
        for sigma, of_sigma in zip(_SIGMAS, of_fraction, strict=True):
            epsilon, moment = epsilon_from_alphas(of_sigma, _MOMENTS, delta)
            beta = float(fraction * np.log1p(1.0 / moment) / 2.0)
            candidates.append((epsilon, moment, beta, float(sigma)))
    return candidates
