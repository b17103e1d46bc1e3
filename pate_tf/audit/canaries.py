"""Audit by canaries: records of the worst kind among one holder's data, in or out by coin.

Hundreds of canaries in one run bound epsilon from below by how many coins can be guessed (Steinke,
Nasr and Jagielski 2023, arXiv 2305.08846); one canary with noise drawn anew thousands of times
bounds it by false and true positives. Everything happens in memory and in a temporary folder:
nothing is charged to the run, and nothing of it may be published.
"""

import dataclasses
import pathlib
import tempfile
import time
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pate_tf.accounting.conversions import LATTICE, FloatArray
from pate_tf.accounting.mechanisms.base import Mechanism
from pate_tf.aggregation.noise import SystemNoise
from pate_tf.api.reporting import QUIET, Reporting
from pate_tf.api.run_folder import ensemble_folder
from pate_tf.audit import run as run_audit
from pate_tf.audit import statistics
from pate_tf.audit.mechanism import (
    DELTAS,
    FEWEST,
    NO_POWER,
    PASSED,
    VIOLATION,
    Check,
    Pair,
    Releases,
    mean_of_rounds,
    measure,
    noise_check,
    own_registry,
)
from pate_tf.core.validation import IntArray
from pate_tf.ledger import Ledger
from pate_tf.ledger.chain import DEBITS, charge_of

DEFAULT_CANARIES: Final = 400
DEFAULT_RERUNS: Final = 20_000
FALSE_POSITIVES: Final = 1e-3
SHARES: Final = (0.1, 0.25, 0.5, 1.0)  # of the canaries that are guessed, the clearest first


@dataclasses.dataclass(frozen=True, kw_only=True)
class CanaryAudit:
    """SENSITIVE: what canaries among the data of a run gave away.

    Attributes:
        folder: of the run.
        summary: the mechanism, and what a canary was.
        outcome: "passed", "violation", or "no power" where half the noise was not caught either.
        delta: the ledger's.
        claimed: epsilon of the release that all canaries were in.
        lower_bound: what a guarantee must have by the guesses in this one run, confidence 99.9 %.
        num_canaries: each in or out by a coin of its own.
        num_guesses: the clearest ones, which gave the bound.
        num_right: of these.
        rerun_claimed: epsilon of what was drawn anew for one canary.
        rerun_lower_bound: by these draws.
        true_positive_rate: share of draws with the canary that are found at `FALSE_POSITIVES`.
        num_draws: draws with that canary, and without it.
        control_caught: whether half the noise was caught by as many draws.
        roc: false and true positive rates, pairs.
        checks: all that was checked.
        seconds: how long it took.
    """

    folder: str
    summary: str
    outcome: str
    delta: float
    claimed: float
    lower_bound: float
    num_canaries: int
    num_guesses: int
    num_right: int
    rerun_claimed: float
    rerun_lower_bound: float
    true_positive_rate: float
    num_draws: int
    control_caught: bool
    roc: Sequence[tuple[float, float]]
    checks: Sequence[Check]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values."""
        return {"audit": "canaries", **dataclasses.asdict(self)}


@dataclasses.dataclass(frozen=True, repr=False)
class _Guesses:
    """What one run with all canaries gave: which were in, and how much each looks like it."""

    is_in: npt.NDArray[np.bool_]
    scores: FloatArray
    claimed: float
    pair: Pair
    what: str


def audit_canaries(
    train_dir: str | pathlib.Path,
    *,
    data: Any = None,
    num_canaries: int = DEFAULT_CANARIES,
    num_reruns: int = DEFAULT_RERUNS,
    reporting: Reporting = QUIET,
) -> CanaryAudit:
    """Puts canaries among a run's records and guesses from the release which are in.

    >>> import pate_tf
    >>> found = pate_tf.audit.audit_canaries(folder / "audited")
    >>> found.outcome, found.lower_bound <= found.claimed
    ('passed', True)

    A canary of feature sums is a vector of norm 1 along a direction of its own, or its opposite. A
    canary of votes is a public query with a label that the teachers do not give it, in the place of
    a record of some teacher, or that record.

    Args:
        train_dir: the folder of a run that has released something.
        data: the private records, as `audit_run` takes them; feature sums do without.
        num_canaries: in one run, at least 20.
        num_reruns: draws with one canary, and as many without, at least 4 * 400.
        reporting: how progress is shown; its `note` is told the expected time beforehand.

    Raises:
        ValueError: if the run has released nothing yet, or its records are not found.
    """
    if num_canaries < 20:
        raise ValueError(f"num_canaries: expected at least 20, got {num_canaries}")
    if num_reruns < 4 * FEWEST:
        raise ValueError(f"num_reruns: expected at least {4 * FEWEST}, got {num_reruns}")
    began, root = time.monotonic(), pathlib.Path(train_dir)
    mechanism, delta = _of_ledger(root)
    run = run_audit.opened(root, data, 1, reporting)
    reporting.note(
        f"auditing {root} by {num_canaries} canaries: about {5 + num_reruns // 4_000} s, and what "
        f"it takes to train its teachers once"
    )
    with (
        tempfile.TemporaryDirectory(prefix="pate_audit_") as folder,
        own_registry(pathlib.Path(folder)),
    ):
        releases = Releases(mechanism, delta, pathlib.Path(folder))
        if releases.is_of_sums:
            guesses = _among_sums(run, releases, num_canaries)
        else:
            guesses = _among_records(run, releases, num_canaries)
        deltas = (delta, *(one for one in DELTAS if one > delta))
        found = measure(releases, guesses.pair, num_reruns, deltas, reporting=reporting)
    bound, number, right = _one_run_bound(guesses, delta)
    checks = [
        Check(
            name="canaries in one run",
            how=f"{len(guesses.is_in)} canaries ({guesses.what}), each in by a coin; the clearest "
            f"are guessed; Steinke, Nasr and Jagielski 2023, 99.9 %",
            outcome=VIOLATION if bound > guesses.claimed else PASSED,
            found=f"{right} of {number} guesses are right: at least epsilon {bound:.4g}, claimed "
            f"{guesses.claimed:.4g}",
            blind_spot="canaries of another kind; one run is far from tight",
        ),
        dataclasses.replace(found.check, name="one canary, noise drawn anew"),
        noise_check(),
    ]
    outcome = PASSED if found.control_caught else NO_POWER
    if any(one.outcome == VIOLATION for one in checks):
        outcome = VIOLATION
    members, others = found.scores
    return CanaryAudit(
        folder=str(root),
        summary=f"{mechanism.summary()}; canary: {guesses.what}",
        outcome=outcome,
        delta=delta,
        claimed=guesses.claimed,
        lower_bound=bound,
        num_canaries=len(guesses.is_in),
        num_guesses=number,
        num_right=right,
        rerun_claimed=found.claimed,
        rerun_lower_bound=found.lower_bound,
        true_positive_rate=statistics.rate_at_false_positives(members, others, FALSE_POSITIVES),
        num_draws=found.num_draws,
        control_caught=found.control_caught,
        roc=[
            (rate, statistics.rate_at_false_positives(members, others, rate))
            for rate in (1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.999)
        ],
        checks=checks,
        seconds=time.monotonic() - began,
    )


def _of_ledger(root: pathlib.Path) -> tuple[Mechanism, float]:
    """Returns what a run's ledger was charged for last, and its delta."""
    folder = root / "sensitive"
    if not (folder / "ledger.sqlite3").exists():
        raise ValueError(f"train_dir: expected a run that has released something, got {root}")
    with Ledger.read(folder) as ledger:
        charges = [charge_of(row)[0] for row in ledger.history() if row.kind in DEBITS]
        found = [one for one in charges if isinstance(one, Mechanism)]
        if not found:
            raise ValueError(f"train_dir: expected a run that has released something, got {root}")
        return found[-1], ledger.delta


def _coins(number: int) -> npt.NDArray[np.bool_]:
    bits = SystemNoise().words(number) & np.uint64(1)
    return bits.astype(np.bool_)


def _one_run_bound(guesses: _Guesses, delta: float) -> tuple[float, int, int]:
    """Returns the best bound of several numbers of guesses, that number, and how many are right."""
    order, total = np.argsort(guesses.scores, kind="stable"), len(guesses.scores)
    confidence = 1.0 - (1.0 - statistics.CONFIDENCE) / len(SHARES)
    found = []
    for share in SHARES:
        each = max(int(share * total / 2), 1)
        low, high = order[:each], order[total - each :]
        right = int(guesses.is_in[high].sum() + (~guesses.is_in[low]).sum())
        bound = statistics.one_run_epsilon(
            total, 2 * each, right, delta=delta, confidence=confidence
        )
        found.append((bound, 2 * each, right))
    return max(found)


def _among_sums(run: Any, releases: Releases, number: int) -> _Guesses:
    """Adds canaries to stored sums: unit vectors along single numbers of the sums."""
    from pate_tf.api.feature_sums import StoredSums, sums_folder

    sums = StoredSums(sums_folder(run.directory)).sums.values
    number = min(number, sums.size)
    places = np.argsort(SystemNoise().words(sums.size))[:number]
    is_in = _coins(number)
    with_canaries = sums.copy().ravel()
    with_canaries[places] += np.where(is_in, LATTICE, -LATTICE)
    noisy, claimed = releases.release_table(with_canaries.reshape(sums.shape))
    scores = (mean_of_rounds(noisy) - sums).ravel()[places] / LATTICE
    return _Guesses(
        is_in, scores, claimed, Pair((1,), (-1,)), "a vector along one direction, or its opposite"
    )


def _among_records(run: Any, releases: Releases, number: int) -> _Guesses:
    """Trains the run's teachers with canaries that are in, and has their votes labelled."""
    from pate_tf.teachers import kinds
    from pate_tf.teachers.kinds import load_ensemble
    from pate_tf.teachers.store import Finished, TeacherStore

    if run.examples is None:
        raise ValueError(f"data: expected the private records of the run: {run.why_no_data}")
    if releases.is_batched:
        raise ValueError(
            f"train_dir: expected a mechanism that answers queries one by one, got "
            f"{releases.mechanism.name}; audit it by pate audit mechanism"
        )
    work, kind, _ = run_audit.work_of(run, run.examples)
    pool = run.public_pool()
    number = min(number, len(pool), len(run.examples))
    queries = pool.inputs[:number]
    ensemble = load_ensemble(ensemble_folder(run.directory))
    before = ensemble.counts(queries).values
    flipped = _runners_up(before)
    records = np.argsort(SystemNoise().words(len(run.examples)))[:number]
    is_in = _coins(number)
    inputs, labels = np.array(run.examples.inputs), np.array(run.examples.labels)
    inputs[records[is_in]] = queries[is_in].astype(inputs.dtype)
    labels[records[is_in]] = flipped[is_in]
    changed = dataclasses.replace(run.examples, inputs=inputs, labels=labels)
    teachers = range(work.config.num_teachers)
    with tempfile.TemporaryDirectory(prefix="pate_audit_") as name:
        folder = pathlib.Path(name) / "teachers"
        store = TeacherStore(folder, {})
        new = dataclasses.replace(work, examples=changed)
        with run.reporting.progress_bar("training teachers", len(teachers), "teacher") as advance:
            store.save_all(kind.train(new, list(teachers), store), advance)
        done = Finished(folder, len(teachers))
        kinds.save_ensemble(kind, folder / "ensemble", work.config, done, work.encoder)
        counts = load_ensemble(folder / "ensemble").counts(queries).values
    surplus, claimed = releases.release_counts(counts, flipped)
    place = int(np.argmax(counts[np.arange(number), flipped] * is_in))
    row = counts[place]
    leader = int(before[place].argmax())
    pair = _pair_of(int(row[flipped[place]]), int(row[leader]))
    return _Guesses(
        is_in, surplus, claimed, pair, "a public query with another label than its teachers give"
    )


def _runners_up(counts: IntArray) -> IntArray:
    """Returns for each query the class with most votes after the first."""
    without = counts.copy()
    without[np.arange(len(counts)), counts.argmax(axis=1)] = -1
    return np.asarray(without.argmax(axis=1))


def _pair_of(of_canary: int, of_leader: int) -> Pair:
    """Returns votes for the canary's label and the leader, with the canary and without it."""
    high = max(of_canary, 1)
    return Pair((high, of_leader), (high - 1, of_leader + 1))
