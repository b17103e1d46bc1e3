"""Audit of a run folder: what it claims is recomputed from data, shares, ledger and releases.

Nothing is charged and nothing of the run is changed. Each check says what it did and what it can't
see. SENSITIVE: what is found may say something of private data, so a report lies below
`sensitive/audit`.
"""

import contextlib
import dataclasses
import hashlib
import json
import math
import pathlib
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pate_tf.accounting.charge import Charge
from pate_tf.accounting.composition import smallest_epsilon
from pate_tf.accounting.conversions import LATTICE, FloatArray
from pate_tf.accounting.delta import is_delta_large
from pate_tf.accounting.mechanisms.base import OutcomeLaw
from pate_tf.api.reporting import QUIET, Reporting
from pate_tf.api.run_folder import DataSource, RunDescription, described_run, ensemble_folder
from pate_tf.audit.mechanism import PASSED, VIOLATION, Check, is_too_small, noise_check
from pate_tf.core import artifacts
from pate_tf.core.public import Pool
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.core.validation import IntArray
from pate_tf.ledger import Ledger, LedgerError
from pate_tf.ledger.chain import DEBITS, charge_of
from pate_tf.ledger.store import Store
from pate_tf.statement.check import JSON_FILE, check_statement

LEDGER: Final = "ledger.sqlite3"
# Statements, and the folder of the models that each is of.
STATEMENTS: Final = {JSON_FILE: "student", "shared_model_statement.json": "shared_model"}
NOT_CHECKED, WARNING = "not checked", "warning"
DEFAULT_NUM_TEACHERS: Final = 10
LARGEST_SEARCHED: Final = 2**28  # bytes of a released file that is searched
FEWEST_VALUES: Final = 8  # of an array that is looked for; fewer occur by chance
NEEDLE: Final = 64  # bytes of an array that are looked for
SECRET_KEYS: Final = re.compile(r"data_dependent|teacher_(balanced_)?accuracy|votes|gap")
PUBLIC_ARRAYS: Final = ("scale",)
NORM_ROUNDING: Final = 1e-9
SEEDS: Final = 64
FALSE_ALARM: Final = 1e-6


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunAudit:
    """SENSITIVE: what an audit of a run folder found.

    Attributes:
        folder: of the run.
        outcome: "passed" or "violation".
        checks: all that was checked or could not be.
        spending: of each charge its row, time and what was spent by then, at the ledger's delta.
        seconds: how long it took.
    """

    folder: str
    outcome: str
    checks: Sequence[Check]
    spending: Sequence[Mapping[str, Any]]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values."""
        return {"audit": "run", **dataclasses.asdict(self)}


@dataclasses.dataclass(frozen=True)
class Run:
    """SENSITIVE: what the checks look at."""

    root: pathlib.Path
    description: RunDescription | None
    examples: PrivateExamples | None
    why_no_data: str
    source: DataSource | None
    pool: Pool | None
    num_teachers: int
    reporting: Reporting

    def public_pool(self) -> Pool:
        """Returns the pool: as it was given, or where the run says that it lies.

        Raises:
            ValueError: if it says nothing, or nothing can be read.
        """
        if self.pool is not None:
            return self.pool
        if self.source is None or self.description is None:
            raise ValueError("the run does not say where its public pool lies")
        public = self.source.load_public(self.reporting)
        return public.split(self.description.pool_size or public.dataset.pool_size).pool

    @property
    def sensitive(self) -> pathlib.Path:
        """Of what depends on private data."""
        return self.root / artifacts.SENSITIVE

    @property
    def released(self) -> pathlib.Path:
        """Of what may be published."""
        return self.root / artifacts.RELEASED

    @property
    def directory(self) -> artifacts.RunDirectory:
        """The folder's two halves."""
        return artifacts.RunDirectory(self.root)


def audit_run(
    train_dir: str | pathlib.Path,
    *,
    data: Any = None,
    owners_file: pathlib.Path | None = None,
    num_teachers: int = DEFAULT_NUM_TEACHERS,
    reporting: Reporting = QUIET,
) -> RunAudit:
    """Recomputes and compares what a run folder holds; see docs/how-to/audit.md for the list.

    >>> import pate_tf
    >>> data = pate_tf.datasets.load("digits")
    >>> sums = pate_tf.FeatureSums(directory=folder / "audited", representation="raw")
    >>> student = pate_tf.Student("supervised", steps=20)
    >>> fitted = pate_tf.fit(
    ...     data, method="feature_sums", epsilon=4.0, delta=1e-5, source=sums, student=student)
    >>> published = fitted.publish(folder / "audited" / "released")
    >>> pate_tf.audit.audit_run(folder / "audited", data=data).outcome
    'passed'

    Args:
        train_dir: the folder of a run with teachers or feature sums; of a silo or a participant of
            shared training the account, statement and released files are checked.
        data: the private records (`pate_tf.Data` or `data.private`); default: where the run says
            that they lie. Without them what follows from the records is not checked.
        owners_file: the owner of each private record, `.npy`, where owners are protected and the
            records are read from where the run says.
        num_teachers: how many teachers, at random, are trained again. Default 10.
        reporting: how progress is shown; its `note` is told the expected time beforehand.

    Raises:
        ValueError: if there is no run in the folder.
    """
    root = pathlib.Path(train_dir)
    if num_teachers < 1:
        raise ValueError(f"num_teachers: expected at least 1, got {num_teachers}")
    halves = (root / artifacts.SENSITIVE, root / artifacts.RELEASED)
    if not any(one.is_dir() for one in halves) and not list(root.glob("*.sqlite3")):
        raise ValueError(f"train_dir: expected the folder of a run, got {root}, which is none")
    began = time.monotonic()
    run = opened(root, data, num_teachers, reporting, owners_file=owners_file)
    reporting.note(
        f"auditing {root}: about a minute, and what it takes to train {num_teachers} teachers and "
        f"the representation of the pool again"
    )
    groups: list[Callable[[Run], Iterator[Check]]] = [_ledger_checks, _statement_checks]
    # By what lies there: what a run says of itself could be made to leave a check out.
    if (run.directory.teachers / "partition.npz").exists():
        groups += [_share_checks, _teacher_checks]
    groups += [_label_checks]
    if (run.sensitive / "feature_sums").exists():
        groups += [_sum_checks]
    groups += [_released_checks, _delta_checks]
    checks: list[Check] = []
    with reporting.progress_bar("checking", len(groups), "part") as advance:
        for group in groups:
            checks += group(run)
            advance(1)
    if not any(one.outcome in (PASSED, VIOLATION) for one in checks[1:]):  # beyond the noise source
        raise ValueError(f"train_dir: expected a run to check, got {root}, which has nothing")
    outcome = VIOLATION if any(one.outcome == VIOLATION for one in checks) else PASSED
    return RunAudit(
        folder=str(root),
        outcome=outcome,
        checks=checks,
        spending=spending(root),
        seconds=time.monotonic() - began,
    )


def ledger_folders(root: pathlib.Path) -> list[pathlib.Path]:
    """Returns the folders of ledgers: of a run, of shared training, of a silo's account."""
    sensitive = root / artifacts.SENSITIVE
    places = (sensitive, sensitive / "ledger", root, root / "account")
    return [one for one in places if (one / LEDGER).exists()]


def spending(root: pathlib.Path) -> list[dict[str, Any]]:
    """Returns of each charge of a run's ledger its row, time, words and what was spent then.

    Empty where there is no ledger, or none that can be read.
    """
    found: list[dict[str, Any]] = []
    for folder in ledger_folders(root)[:1]:
        with contextlib.suppress(LedgerError), contextlib.closing(_read(folder)) as store:
            charges: Counter[Charge] = Counter()
            for row in store.history():
                if row.kind in DEBITS:
                    charge, number = charge_of(row)
                    charges[charge] += number
                    found.append(
                        {
                            "row": row.sequence,
                            "time": row.time,
                            "charge": charge.several(number),
                            "epsilon": smallest_epsilon(charges, store.delta)[0],
                        }
                    )
    return found


def opened(
    root: pathlib.Path,
    data: Any,
    num_teachers: int,
    reporting: Reporting,
    *,
    owners_file: pathlib.Path | None = None,
) -> Run:
    """Returns a run folder with its description, and its records where they can be read."""
    description = described_run(root)
    examples = getattr(data, "private", data)
    source, why = None, ""
    if description is not None:
        with contextlib.suppress(ValueError):
            source = dataclasses.replace(description.data(), owners_file=owners_file)
    if examples is None:
        why = "the run folder does not say where its private records lie; name them"
        if source is not None:
            try:
                examples = source.load_private(reporting)
            except (ValueError, OSError) as error:
                why = f"the private records could not be read: {error}"
    unit = _unit_of(root, description)
    if examples is not None and unit and (examples.owners is not None) != (unit == "owner"):
        examples, why = None, "the owners of the records are not known; name their file"
    pool = getattr(data, "pool", None)
    return Run(root, description, examples, why, source, pool, num_teachers, reporting)


def _unit_of(root: pathlib.Path, description: RunDescription | None) -> str | None:
    """Returns what a run protects, by all that says so.

    Raises:
        ValueError: if they contradict each other.
    """
    sensitive = root / artifacts.SENSITIVE
    found = set() if description is None else {description.unit}
    for path in ("teachers/config.json", "feature_sums/description.json"):
        if (sensitive / path).exists():
            found.add(str(artifacts.read_json(sensitive / path).get("unit")))
    if len(found) > 1:
        raise ValueError(f"unit: expected one, got {' and '.join(sorted(found))} in {sensitive}")
    return next(iter(found), None)


def _skipped(name: str, why: str) -> Check:
    return Check(name=name, how="", outcome=NOT_CHECKED, found=why)


# The ledger, and where its noise came from.


def _ledger_checks(run: Run) -> Iterator[Check]:
    yield noise_check()
    ledgers = ledger_folders(run.root)
    if not ledgers:
        is_gone = run.sensitive.is_dir() and (run.released / JSON_FILE).exists()
        yield Check(
            name="ledger",
            how="a run with a released statement has a ledger",
            outcome=VIOLATION if is_gone else NOT_CHECKED,
            found="a statement was released, and the ledger that it is of is gone"
            if is_gone
            else "nothing was charged here yet",
        )
    for folder in ledgers:
        yield from _store_checks(folder)


def _store_checks(folder: pathlib.Path) -> Iterator[Check]:
    how = "every row is linked to those before it by its digest; answers are digested, too"
    blind = "rows that were removed with their note and every trace of them elsewhere"
    try:
        store = _read(folder)
    except LedgerError as error:
        yield Check(
            name="ledger: chain", how=how, outcome=VIOLATION, found=str(error), blind_spot=blind
        )
        return
    try:
        rows = store.history()
        yield Check(
            name="ledger: chain",
            how=how,
            outcome=PASSED,
            found=f"{len(rows)} rows, all as they were written",
            blind_spot=blind,
        )
        seeded = [
            row.sequence
            for row in rows
            if row.kind in DEBITS and not row.details.get("secure_noise", True)
        ]
        yield Check(
            name="ledger: noise",
            how="every charge notes where its noise came from",
            outcome=VIOLATION if seeded else PASSED,
            found=f"rows {seeded[:5]} drew noise from a seed" if seeded else "no seed was noted",
            blind_spot="a noise source that says that it is secure and is not; see noise source",
        )
    finally:
        store.close()


def _read(folder: pathlib.Path) -> Store:
    with contextlib.suppress(LedgerError):
        return Ledger.read(folder)
    store = _Account(folder, read_only=True)
    try:
        store.catch_up()
    except BaseException:
        store.close()
        raise
    return store


class _Account(Store):
    """The store of a silo or a participant, whose files are named as a ledger's."""

    name = "ledger"


# The statement.


def _statement_checks(run: Run) -> Iterator[Check]:
    stated = [
        (path, models)
        for name, models in STATEMENTS.items()
        if (path := run.released / name).exists()
    ]
    if not stated:
        yield _skipped("statement", "no student was published here yet")
    for path, models in stated:
        yield from _checks_of_statement(run, path, run.released / models)


def _checks_of_statement(run: Run, path: pathlib.Path, models: pathlib.Path) -> Iterator[Check]:
    how = "numbers are recomputed from the ledger's rows, sentences and page from the numbers"
    try:
        fields = artifacts.read_json(path)
        with contextlib.ExitStack() as stack:
            stores = []
            for one in ledger_folders(run.root):
                stores.append(_read(one))
                stack.callback(stores[-1].close)
            statement = check_statement(fields, *stores)
        page = path.with_suffix(".md")
        if not page.exists() or page.read_text() != statement.to_markdown():
            raise ValueError(f"{page.name}: expected the page of {path.name}, got another or none")
    except (ValueError, LedgerError) as error:
        yield Check(name="statement", how=how, outcome=VIOLATION, found=str(error))
        return
    yield Check(
        name="statement",
        how=how,
        outcome=PASSED,
        found="it says no less than the ledger"
        if stores
        else "its words follow from its numbers; the accounts that these are of lie elsewhere",
        blind_spot="what another machine or user released of the same records",
    )
    folders = sorted(models.glob("[0-9]*"), key=lambda one: int(one.name))
    if not folders or not statement.student_digest:
        yield _skipped("student", "there is no exported student")
        return
    from pate_tf.serving.served import matches_statement, served_digest

    how = "the weights of every exported version are digested again, its other files compared"
    try:
        others = [
            one.name
            for one in folders
            if not matches_statement(one)
            or (one is folders[-1] and served_digest(one) != statement.student_digest)
        ]
    except ValueError as error:
        yield Check(name="student", how=how, outcome=VIOLATION, found=str(error))
        return
    yield Check(
        name="student",
        how=how,
        outcome=VIOLATION if others else PASSED,
        found=f"weights of version {', '.join(others)} are of another one"
        if others
        else "the statement is of these weights",
        blind_spot="whether a student learnt from anything but the released labels",
    )


# Shares and teachers.


def _assignment(run: Run) -> IntArray:
    found: IntArray = artifacts.read_arrays(run.directory.teachers / "partition.npz")["assignment"]
    return found


def _share_checks(run: Run) -> Iterator[Check]:
    assignment = _assignment(run)
    config = artifacts.read_json(run.directory.teachers / "config.json")
    number = int(config["num_teachers"])
    how = "the teacher of every record is read from the stored shares"
    ok = assignment.ndim == 1 and assignment.dtype.kind in "iu"
    ok = ok and (not assignment.size or (assignment.min() >= 0 and assignment.max() < number))
    found = f"{len(assignment):,} records, each with one of {number} teachers"
    if run.examples is not None and len(run.examples) != len(assignment):
        ok, found = False, "shares of another number of records than the data have"
    yield Check(
        name="partition is disjoint and complete",
        how=how,
        outcome=PASSED if ok else VIOLATION,
        found=found if ok or "another" in found else "a record has no teacher, or several",
        blind_spot="records that occur twice in the data, with two teachers",
    )
    if run.examples is None:
        yield _skipped("partition follows from the data", run.why_no_data)
        return
    examples = run.examples
    digests = {"records": examples.inputs, "labels": examples.labels}
    others = [name for name, one in digests.items() if artifacts.digest_array(one) != config[name]]
    yield Check(
        name="data are those of the run",
        how="records and labels are digested again",
        outcome=WARNING if others else PASSED,
        found=f"{' and '.join(others)} differ from those that the teachers were trained on"
        if others
        else "the same records and labels",
    )
    yield _partition_check(examples, assignment, config)
    yield _package_shares_check(assignment, number, str(config["unit"]))


def _partition_check(
    examples: PrivateExamples, assignment: IntArray, config: Mapping[str, Any]
) -> Check:
    from pate_tf.api.teacher_training import shares_of

    name = "partition follows from the data"
    how = "shares are dealt out again, by owner or by position and seed"
    owners = examples.owners
    if owners is not None:
        _, first, place = np.unique(owners, return_index=True, return_inverse=True)
        if (assignment[first][place] != assignment).any():
            found = "records of one owner are with two teachers"
            return Check(name=name, how=how, outcome=VIOLATION, found=found)
    again = shares_of(examples, num_teachers=int(config["num_teachers"]), seed=int(config["seed"]))
    if np.array_equal(again.assignment, assignment):
        return Check(name=name, how=how, outcome=PASSED, found="the same shares")
    return Check(
        name=name,
        how=how,
        outcome=WARNING,
        found="other shares than this rule gives: they came from a file (--partition_file), which "
        "must not depend on other records",
    )


def _package_shares_check(assignment: IntArray, number: int, unit: str) -> Check:
    from pate_tf.core.partition import Partition

    shares = Partition(assignment.copy(), number, unit=unit).all_records()
    together = np.concatenate([*shares, np.zeros(0, np.int64)])
    overlaps = len(together) - len(np.unique(together))
    ok = not overlaps and all(
        np.array_equal(np.sort(share), np.flatnonzero(assignment == teacher))
        for teacher, share in enumerate(shares)
    )
    return Check(
        name="shares that training takes",
        how="the records that training gives to each teacher are compared with the stored shares",
        outcome=PASSED if ok else VIOLATION,
        found="no two teachers share a record"
        if ok
        else f"{overlaps} records are in the shares of several teachers, or shares differ",
        blind_spot="what training does with records beyond these shares; see the next rows",
    )


def _teacher_checks(run: Run) -> Iterator[Check]:
    names = (
        "teachers depend on their share alone",
        "a record exchanged changes one teacher",
        "stored teachers are those that answer",
    )
    if run.examples is None:
        for name in names:
            yield _skipped(name, run.why_no_data)
        return
    try:
        work, kind, pool_note = work_of(run, run.examples)
    except (ValueError, OSError) as error:
        for name in names:
            yield _skipped(name, f"teachers can't be trained here: {error}")
        return
    from pate_tf.teachers.store import Finished

    finished = Finished(run.directory.teachers)
    stored = dict(zip(finished.teachers, finished.each(), strict=True))
    number = min(run.num_teachers, len(stored))
    sample = sorted(_drawn(sorted(stored), number))
    assignment = work.partition.assignment
    how = f"{number} teachers, at random, are trained again, with all other records replaced"
    alone = []
    with run.reporting.progress_bar("training teachers again", number, "teacher") as advance:
        for teacher in sample:
            only = _with_others_replaced(work.examples, assignment != teacher)
            again = _trained(kind, work, only, [teacher])
            alone.append(_equal(again[teacher], stored[teacher]))
            advance(1)
    different = [teacher for teacher, same in zip(sample, alone, strict=True) if not same]
    found = "the same, bit for bit"
    if different:
        truth = _trained(kind, work, work.examples, different)
        depends = [one for one in different if _equal(truth[one], stored[one])]
        found = (
            f"{len(different)} of {number} differ: with the true records of the others they are "
            f"the stored ones, so they saw records of other teachers"
            if depends
            else f"{len(different)} of {number} differ from the stored ones, also with all true "
            f"records: they were not trained so, or not on this kind of machine"
        )
    yield Check(
        name=names[0],
        how=how,
        outcome=VIOLATION if different else PASSED,
        found=found,
        blind_spot=f"teachers that were not sampled{pool_note}",
    )
    yield _exchange_check(run, kind, work, sample)
    yield _ensemble_check(run, kind, work, finished)


def _ensemble_check(run: Run, kind: Any, work: Any, finished: Any) -> Check:
    """Compares what answers queries with the stored teachers, and with what the ledger is of."""
    import tempfile

    from pate_tf.teachers import kinds

    name = "stored teachers are those that answer"
    how = "the ensemble is put together again from the stored teachers; its digest is the ledger's"
    try:
        digests = {kinds.load_ensemble(ensemble_folder(run.directory)).digest}
        with tempfile.TemporaryDirectory(prefix="pate_audit_") as again:
            path = pathlib.Path(again) / "ensemble"
            kinds.save_ensemble(kind, path, work.config, finished, work.encoder)
            digests.add(kinds.load_ensemble(path).digest)
        if (run.sensitive / LEDGER).exists():
            with Ledger.read(run.sensitive) as ledger:
                digests.add(ledger.ensemble_digest)
    except (ValueError, LedgerError) as error:
        return Check(name=name, how=how, outcome=VIOLATION, found=str(error))
    return Check(
        name=name,
        how=how,
        outcome=PASSED if len(digests) == 1 else VIOLATION,
        found="the same" if len(digests) == 1 else "another ensemble answers, or was charged",
        blind_spot="answers that were given by other code",
    )


def _exchange_check(run: Run, kind: Any, work: Any, sample: Sequence[int]) -> Check:
    assignment = work.partition.assignment
    own = np.flatnonzero(np.isin(assignment, sample))
    record = int(own[secrets.randbelow(len(own))]) if len(own) else 0
    mask = np.zeros(len(assignment), bool)
    mask[record] = True
    before = _trained(kind, work, work.examples, sample)
    after = _trained(kind, work, _with_others_replaced(work.examples, mask), sample)
    changed = [one for one in sample if not _equal(before[one], after[one])]
    ok = set(changed) <= {int(assignment[record])}
    return Check(
        name="a record exchanged changes one teacher",
        how=f"one record, at random, is replaced; its teacher and {len(sample) - 1} others are "
        f"trained with either",
        outcome=PASSED if ok else VIOLATION,
        found=f"{len(changed)} of {len(sample)} changed"
        + ("" if ok else ", others than the record's own among them"),
        blind_spot="other records and teachers",
    )


def _drawn(items: Sequence[int], number: int) -> list[int]:
    left, drawn = list(items), []
    for _ in range(number):
        drawn.append(left.pop(secrets.randbelow(len(left))))
    return drawn


def _with_others_replaced(
    examples: PrivateExamples, others: npt.NDArray[np.bool_]
) -> PrivateExamples:
    """Returns records of which some are replaced by others of valid values and labels."""
    inputs, labels = np.array(examples.inputs), np.array(examples.labels)
    places = np.flatnonzero(others)
    if examples.inputs.dtype.kind in "fiu" and len(places):
        turned = np.roll(inputs[places].reshape(len(places), -1), 1, axis=1)
        inputs[places] = turned.reshape(inputs[places].shape)[::-1]
    labels[places] = (labels[places] + 1) % examples.dataset.num_classes
    return dataclasses.replace(examples, inputs=inputs, labels=labels)


def work_of(run: Run, examples: PrivateExamples) -> tuple[Any, Any, str]:
    """Returns what trains the run's teachers again, their kind, and what remains unseen."""
    from pate_tf.api.teacher_training import encoder_for
    from pate_tf.core.partition import Partition
    from pate_tf.teachers import kinds
    from pate_tf.teachers.kinds import Engine, Work
    from pate_tf.teachers.settings import TeacherConfig

    description = artifacts.read_json(ensemble_folder(run.directory) / kinds.DESCRIPTION)
    kind = kinds.KINDS[description.pop("kind")]
    config = TeacherConfig.from_dict(description)
    shares = Partition(_assignment(run).copy(), config.num_teachers, unit=config.unit)
    encoder, note = None, ""
    if config.representation is not None:
        encoder = encoder_for(config, run.public_pool(), run.reporting)
        note = "; what the representation learnt from, beyond its digest"
    work = Work(
        config=config, examples=examples, partition=shares, encoder=encoder, engine=Engine()
    )
    return work, kind, note


def _trained(kind: Any, work: Any, examples: PrivateExamples, teachers: Sequence[int]) -> Any:
    """Returns what teachers learn from records, by number; a store of their own is thrown away."""
    import tempfile

    from pate_tf.teachers.store import TeacherStore

    with tempfile.TemporaryDirectory(prefix="pate_audit_") as folder:
        store = TeacherStore(pathlib.Path(folder) / "teachers", {})
        new = dataclasses.replace(work, examples=examples)
        return {
            teacher: [*state.weights, *state.buffers]
            for teacher, state in kind.train(new, list(teachers), store)
        }


def _equal(one: Sequence[npt.NDArray[Any]], other: Sequence[npt.NDArray[Any]]) -> bool:
    return len(one) == len(other) and all(
        a.shape == b.shape and a.tobytes() == b.tobytes() for a, b in zip(one, other, strict=True)
    )


# Feature sums.


def _sum_checks(run: Run) -> Iterator[Check]:
    from pate_tf.api.feature_sums import StoredSums, sums_folder

    names = (
        "every vector's norm is at most 1",
        "sums are those of the records",
        "cluster counts are those of the records",
    )
    try:
        stored = StoredSums(sums_folder(run.directory))
    except ValueError as error:
        yield Check(name="feature sums", how="they are read", outcome=VIOLATION, found=str(error))
        return
    counts = {number: one.values for number, one in stored.cluster_counts.items()}
    if run.examples is None:
        tables = {None: stored.sums.values, **counts}
        for name in names:
            yield _skipped(name, run.why_no_data)
    else:
        largest, tables, without_clipping, are_vectors = _recomputed(run, stored, run.examples)
        ok = largest <= 1.0 + NORM_ROUNDING
        yield Check(
            name=names[0],
            how="the vector of every record is computed again; what owners add is clipped by the "
            "audit itself, and the next row compares the sums",
            outcome=PASSED if ok else VIOLATION,
            found=f"the largest norm is {largest:.6g}" if largest else "owners are clipped",
            blind_spot="whether the encoder learnt from the public pool alone",
        )
        is_same = np.array_equal(tables[None], stored.sums.values)
        found = "the same, bit for bit"
        if not is_same:
            found = "other sums than these records give"
            if np.array_equal(without_clipping, stored.sums.values):
                found += ": they are sums of vectors that were not clipped"
        elif not are_vectors:
            is_same, found = False, "the same, but later rounds read other vectors or labels"
        yield Check(
            name=names[1],
            how="vectors are truncated to the lattice and summed again, by code of the audit's own",
            outcome=PASSED if is_same else VIOLATION,
            found=found,
        )
        others = [one for one in counts if not np.array_equal(tables[one], counts[one])]
        yield Check(
            name=names[2],
            how="each record is assigned to the nearest centre and counted again, for every number "
            "of clusters",
            outcome=VIOLATION if others else PASSED,
            found=f"other counts than these records give, for {others} clusters"
            if others
            else f"the same, for {list(counts)} clusters",
        )
    yield _centres_check(run, stored)
    yield from _noise_of_sums(run, stored, tables)


def _centres_check(run: Run, stored: Any) -> Check:
    from pate_tf.accounting.planning import cluster_numbers
    from pate_tf.models.encoder import record_vectors
    from pate_tf.representations.label_propagation import cluster_centres

    name = "cluster centres follow from the pool"
    try:
        pool = run.public_pool()
    except (ValueError, OSError) as error:
        return _skipped(name, str(error))
    vectors = record_vectors(stored.features(pool.inputs), stored.scale)[:, :-1]
    numbers = cluster_numbers(len(pool), pool.dataset.num_classes)
    again = dict(zip(numbers, cluster_centres(vectors, numbers), strict=True))
    is_same = list(again) == list(stored.centres) and all(
        np.array_equal(again[one], stored.centres[one]) for one in again
    )
    return Check(
        name=name,
        how="centres are computed again from the public pool",
        outcome=PASSED if is_same else WARNING,
        found="the same, bit for bit"
        if is_same
        else "other centres than this pool gives here: of another pool or kind of machine, or they "
        "depend on private records",
    )


def _recomputed(
    run: Run, stored: Any, examples: PrivateExamples
) -> tuple[float, dict[int | None, IntArray], IntArray, bool]:
    """Returns what one record (or owner) adds at most, tables of sums and counts, unclipped sums.

    The norm is 0 where owners are clipped. Tables are by number of clusters; of sums under None.
    Last, whether the vectors that later rounds read are those of the records.
    """
    from pate_tf.aggregation.feature_sums import BELOW, OWNER_STEP
    from pate_tf.api.feature_sums import PARTS
    from pate_tf.core import partition
    from pate_tf.models.encoder import record_features, record_vectors

    owners, num_classes = examples.owners, examples.dataset.num_classes
    parts = (
        partition.Partition(np.arange(len(examples)) % PARTS, PARTS, unit="owner")
        if owners is None
        else partition.owner_partition(owners, num_teachers=PARTS, seed=0)
    )
    largest, lattice, are_vectors = 0.0, LATTICE * BELOW, True
    clipped = np.zeros((len(stored.scale) + 1, num_classes), np.int64)
    plain = clipped.copy()
    tables = {one: np.zeros((one, num_classes), np.int64) for one in stored.centres}
    with run.reporting.progress_bar("computing vectors again", PARTS, "part") as advance:
        for share in parts.all_records():
            vectors = np.empty((len(share), len(stored.scale) + 1))
            for some, features in record_features(stored.encoder, examples.inputs, share):
                vectors[np.searchsorted(share, some)] = record_vectors(features, stored.scale)
            labels = examples.labels[share]
            if stored.has_vectors:
                are_vectors &= stored.are_vectors(share, vectors, labels)
            weights: Any = LATTICE
            if owners is not None:
                _, owner, number = np.unique(owners[share], return_inverse=True, return_counts=True)
                weights = LATTICE // number[owner]
            for one, centres in stored.centres.items():
                np.add.at(tables[one], (_nearest(vectors[:, :-1], centres), labels), weights)
            for _, rows in _grouped(np.arange(len(share)) if owners is None else owners[share]):
                own = np.zeros((num_classes, vectors.shape[1]))
                if owners is None:
                    own[labels[rows[0]]] = vectors[rows[0]]
                    largest = max(largest, float(np.sqrt(np.square(own).sum())))
                else:  # in whole steps, whose sum does not depend on their order
                    np.add.at(own, labels[rows], np.rint(vectors[rows] / OWNER_STEP))
                    own *= OWNER_STEP
                plain += np.trunc(own * lattice).astype(np.int64).T
                if owners is not None:
                    own /= max(math.sqrt(sum(np.square(own).sum(axis=1).tolist(), 0.0)), 1.0)
                steps = np.trunc(own * lattice).astype(np.int64)
                if int(np.square(steps).sum()) <= LATTICE**2:
                    clipped += steps.T
            advance(1)
    return largest, {None: clipped, **tables}, plain, are_vectors


def _nearest(vectors: FloatArray, centres: FloatArray) -> IntArray:
    """Returns the nearest centre of each vector in whole steps, of equals the first."""
    from pate_tf.models.encoder import CENTRE_STEP

    steps, own = (np.rint(one / CENTRE_STEP).astype(np.int64) for one in (centres, vectors))
    found: IntArray = (np.square(steps).sum(axis=1) - 2 * (own @ steps.T)).argmin(axis=1)
    return found


def _grouped(units: npt.NDArray[Any]) -> Iterator[tuple[Any, IntArray]]:
    unique, place = np.unique(units, return_inverse=True)
    order = np.argsort(place, kind="stable")
    ends = np.cumsum(np.bincount(place, minlength=len(unique)))
    yield from zip(unique, np.split(order, ends[:-1]), strict=True)


def _noise_of_sums(run: Run, stored: Any, tables: Mapping[int | None, IntArray]) -> Iterator[Check]:
    from pate_tf.aggregation.feature_sums import sums_in_ledger

    if not (run.sensitive / "ledger.sqlite3").exists():
        return
    with Ledger.read(run.sensitive) as ledger:
        for row in ledger.history():
            if row.kind not in DEBITS:
                continue
            mechanism: Any = charge_of(row)[0]
            if not getattr(mechanism, "releases_feature_sums", False):
                continue
            numbers, _ = sums_in_ledger(ledger, mechanism)
            if not numbers:
                continue
            table = tables[mechanism.num_clusters]
            drawn = np.array(numbers).reshape(-1, *table.shape)
            yield _seed_check(row.sequence, mechanism.draw_sums, table, drawn[0].tolist())
            claimed, exact = mechanism.standard_deviation, [table]
            try:
                if len(drawn) > 1:
                    stored.check_vectors()
                for number in range(1, len(drawn)):  # each round follows from the noisy ones before
                    exact.append(stored.residuals(drawn[:number], claimed))
            except ValueError as error:
                yield Check(
                    name=f"noise of the sums released in row {row.sequence}",
                    how="what later rounds sum is computed again from stored vectors",
                    outcome=VIOLATION,
                    found=str(error),
                )
                continue
            noise = (drawn - exact) / LATTICE
            yield Check(
                name=f"noise of the sums released in row {row.sequence}",
                how="released sums less those of the records; their variance is tested at 1e-6",
                outcome=VIOLATION if is_too_small(noise, claimed) else PASSED,
                found=f"standard deviation {noise.std():.4g}, claimed {claimed:.4g}",
                blind_spot="noise of the right size that somebody can predict",
            )


# Votes and labels.


def _label_checks(run: Run) -> Iterator[Check]:
    """Compares what every charged batch of labels released with the law of its mechanism."""
    from scipy import stats

    from pate_tf.aggregation.labeller import stored_counts

    if not (run.sensitive / "ledger.sqlite3").exists():
        return
    try:
        with Ledger.read(run.sensitive) as ledger:
            batches = list(stored_counts(ledger))
            answers = _answers_by_debit(ledger)
            sums = _released_sums(ledger)
    except LedgerError as error:
        yield Check(
            name="votes behind labels",
            how="stored counts are compared with the ledger",
            outcome=VIOLATION,
            found=str(error),
        )
        return
    yield from _released_labels(run, answers, sums)
    yield from _votes_check(run, batches)
    for batch in batches:
        mechanism, counts = batch.mechanism, batch.counts.values
        labels = answers.get(batch.debit, [])
        if len(labels) != len(counts):
            continue

        if len(labels) >= FEWEST_VALUES and len(set(labels)) > 1:
            yield _seed_check(
                batch.debit, lambda *given, own=mechanism: own.draw(*given).labels, counts, labels
            )
        if not isinstance(mechanism, OutcomeLaw) or not batch.answered.any():
            continue
        rows = counts[batch.answered]
        leaders = rows.argmax(axis=1)
        law = mechanism.outcome_probabilities(rows)[np.arange(len(rows)), leaders]
        given = np.array([one for one in labels if one is not None])
        right = int((given == leaders).sum())
        # Hoeffding 1956: in the tails a sum of coins is at most as heavy as one of equal coins.
        mean = float(law.mean())
        too_right = stats.binom.sf(right - 1, len(rows), mean) < FALSE_ALARM
        yield Check(
            name=f"noise of the labels charged in row {batch.debit}",
            how="labels are compared with the counts that they were drawn from; one-sided binomial "
            "test at 1e-6",
            outcome=VIOLATION if too_right and right > mean * len(rows) else PASSED,
            found=f"{right} of {len(rows)} are the class with most votes, "
            f"{mean * len(rows):.1f} are expected",
            blind_spot="noise that is a little too small, which pate audit mechanism finds",
        )


def _votes_check(run: Run, batches: Sequence[Any]) -> Iterator[Check]:
    """Asks the teachers again what they were asked, and compares their votes with the stored."""
    from pate_tf.queries.labels import asked_inputs
    from pate_tf.teachers.kinds import load_ensemble

    name, folder = "stored votes are the teachers'", ensemble_folder(run.directory)
    path = run.released / "labels.npz"
    if not batches or not path.exists() or not folder.exists():
        return
    try:
        arrays = artifacts.read_arrays(path)
        rows = artifacts.read_json(path.with_suffix(".json"))["ledger_rows"]
        stored = np.concatenate([one.counts.values for one in batches if one.debit in rows])
        pool = run.public_pool()
        again = load_ensemble(folder).counts(
            asked_inputs(pool, arrays["queries"], arrays.get("neighbours"))
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        yield _skipped(name, f"they can't be asked again: {error}")
        return
    if len(again.values) != len(stored):
        yield _skipped(name, "queries were asked in several rounds, or are equal to each other")
        return
    is_same = np.array_equal(again.values, stored)
    yield Check(
        name=name,
        how="the ensemble votes again on the queries of the released labels",
        outcome=PASSED if is_same else VIOLATION,
        found="the same" if is_same else "other votes are stored than the teachers give",
        blind_spot="votes of other releases",
    )


def _released_sums(ledger: Ledger) -> list[tuple[int, ...]]:
    """Returns the numbers of each release of sums, of all its rounds."""
    from pate_tf.aggregation.feature_sums import sums_in_ledger

    charges: list[Any] = [charge_of(row)[0] for row in ledger.history() if row.kind in DEBITS]
    of_sums = [one for one in charges if getattr(one, "releases_feature_sums", False)]
    return [sums_in_ledger(ledger, one)[0] for one in of_sums]


def _released_labels(
    run: Run, answers: Mapping[int, list[int | None]], sums: Sequence[Sequence[int]]
) -> Iterator[Check]:
    """Compares the labels, or noisy sums, that were released with what the ledger answered."""
    name, path = "released labels are the ledger's answers", run.released / "labels.npz"
    if not path.exists():
        return
    try:
        arrays = artifacts.read_arrays(path)
        rows = artifacts.read_json(path.with_suffix(".json"))["ledger_rows"]
        noisy = arrays.get("noisy_sums")
        if noisy is not None:
            is_same = any(np.array_equal(noisy.ravel(), one) for one in sums)
        else:
            known = [one for row in rows for one in answers.get(row, []) if one is not None]
            given = arrays["labels"].tolist()
            # Equal queries have one answer, so there may be more labels than answers.
            is_same = given == known or (len(given) > len(known) and set(given) <= set(known))
    except (OSError, ValueError, KeyError, TypeError) as error:
        yield Check(name=name, how="both are read", outcome=VIOLATION, found=str(error))
        return
    yield Check(
        name=name,
        how="released/labels.npz is compared with what the ledger stored",
        outcome=PASSED if is_same else VIOLATION,
        found="the same" if is_same else "others were released than were charged",
        blind_spot="what a student learnt from",
    )


def _answers_by_debit(ledger: Ledger) -> dict[int, list[int | None]]:
    """Returns the labels that each debit charged, in the order of its queries."""
    found: dict[int, list[int | None]] = {}
    for debit, label in ledger.stored_labels():
        found.setdefault(debit, []).append(label)
    return found


def _seed_check(
    row: int, draw: Callable[[IntArray, Any], Any], values: IntArray, released: list[Any]
) -> Check:
    """Draws again from small seeds what was released for some counts or sums."""
    from pate_tf.aggregation.noise import SeededNoise

    def repeats(seed: int) -> bool:
        drawn = draw(values, SeededNoise(seed))
        return bool((drawn.tolist() if isinstance(drawn, np.ndarray) else list(drawn)) == released)

    seed = next((one for one in range(SEEDS) if repeats(one)), None)
    return Check(
        name=f"noise of row {row} is from no small seed",
        how=f"what was released is drawn again from the seeds 0 to {SEEDS - 1}",
        outcome=PASSED if seed is None else VIOLATION,
        found="none gives it" if seed is None else f"seed {seed} gives what was released",
        blind_spot="larger seeds, other generators",
    )


# What was released, searched for what is sensitive.


def _released_checks(run: Run) -> Iterator[Check]:
    files = [path for path in sorted(run.released.rglob("*")) if path.is_file()]
    if not files:
        yield _skipped("released files", "nothing was released yet")
        return
    secret_files = [
        path
        for path in sorted(run.sensitive.rglob("*"))
        # An encoder is public; an audit names what it found.
        if path.is_file() and not {"audit", "encoder"} & {*path.relative_to(run.sensitive).parts}
    ]
    digests = {
        hashlib.sha256(path.read_bytes()).hexdigest(): path
        for path in secret_files
        if path.stat().st_size > NEEDLE
    }
    copies = [path for path in files if hashlib.sha256(path.read_bytes()).hexdigest() in digests]
    how = f"{len(files)} released files are compared with {len(secret_files)} sensitive ones"
    yield Check(
        name="no sensitive file is released",
        how=how,
        outcome=VIOLATION if copies else PASSED,
        found=f"{_relative(copies[0], run)} is a sensitive file" if copies else "none is",
        blind_spot="a file that was changed or packed",
    )
    needles = dict(_needles(secret_files))
    numbers = dict(_secret_numbers(secret_files))
    found, leaked_numbers = [], []
    with run.reporting.progress_bar("searching released files", len(files), "file") as advance:
        for path in files:
            advance(1)
            if path.stat().st_size > LARGEST_SEARCHED:
                continue
            for content in _contents(path):
                found += [(name, path) for needle, name in needles.items() if needle in content]
                if path.suffix in (".json", ".md", ".txt", ".html"):
                    text = content.decode(errors="replace")
                    leaked_numbers += [
                        (name, path) for number, name in numbers.items() if number in text
                    ]
    yield Check(
        name="no sensitive array is released",
        how=f"{len(needles)} arrays (shares, teachers, votes, sums) are looked for in the bytes of "
        f"released files",
        outcome=VIOLATION if found else PASSED,
        found=f"{found[0][0]} stands in {_relative(found[0][1], run)}" if found else "none is",
        blind_spot="an array of another type, compressed or encoded",
    )
    yield Check(
        name="no sensitive number is released",
        how=f"{len(numbers)} numbers (data-dependent costs, accuracies of teachers) are looked for "
        f"in released texts",
        outcome=VIOLATION if leaked_numbers else PASSED,
        found=f"{leaked_numbers[0][0]} stands in {_relative(leaked_numbers[0][1], run)}"
        if leaked_numbers
        else "none is",
        blind_spot="a number that was rounded to fewer than seven digits",
    )


def _relative(path: pathlib.Path, run: Run) -> str:
    return str(path.relative_to(run.root))


def _needles(files: Sequence[pathlib.Path]) -> Iterator[tuple[bytes, str]]:
    """Yields bytes of sensitive arrays, with their names."""
    for path in files:
        if path.suffix not in (".npz", ".npy"):
            continue
        try:
            arrays = (
                {"": artifacts.read_array(path)}
                if path.suffix == ".npy"
                else artifacts.read_arrays(path)
            )
        except (OSError, ValueError):
            continue
        for name, array in arrays.items():
            values = np.ascontiguousarray(array)
            if name in PUBLIC_ARRAYS or values.dtype.kind not in "iuf":
                continue
            start = _telling_place(values.ravel(), NEEDLE // values.dtype.itemsize)
            if start is not None:
                piece = values.ravel()[start : start + NEEDLE // values.dtype.itemsize]
                yield piece.tobytes(), f"{path.name}:{name}" if name else path.name


def _telling_place(values: npt.NDArray[Any], width: int) -> int | None:
    """Returns where so many values begin of which enough are different; None for nowhere."""
    for start in range(0, max(len(values) - width, 0) + 1, max(width, len(values) // 64)):
        piece = values[start : start + width]
        if len(piece) == width and len(np.unique(piece)) >= min(FEWEST_VALUES, width // 2):
            return start
    return None


def _contents(path: pathlib.Path) -> Iterator[bytes]:
    """Yields a file's bytes, and those of the arrays in an archive."""
    yield path.read_bytes()
    if path.suffix == ".npz":
        with contextlib.suppress(OSError, ValueError):
            for array in artifacts.read_arrays(path).values():
                yield np.ascontiguousarray(array).tobytes()


def _secret_numbers(files: Sequence[pathlib.Path]) -> Iterator[tuple[str, str]]:
    """Yields sensitive numbers as text of seven digits, with the names of their keys.

    A number that is something else, too, tells nothing: a data-dependent epsilon may be the
    data-independent one.
    """
    numbers: list[tuple[str, str]] = []
    for path in files:
        if path.suffix != ".json":
            continue
        with contextlib.suppress(OSError, ValueError, json.JSONDecodeError):
            numbers += _numbers_of(artifacts.read_json(path), "")
    public = {text for text, key in numbers if not SECRET_KEYS.search(key)}
    yield from ((text, key) for text, key in numbers if text not in public)


def _numbers_of(value: Any, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, one in value.items():
            yield from _numbers_of(one, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for one in value:
            yield from _numbers_of(one, key)
    elif isinstance(value, float):
        text = repr(value)
        if len(text.replace(".", "").lstrip("0")) >= 7:
            yield text[:9], key


# Delta.


def _delta_checks(run: Run) -> Iterator[Check]:
    from pate_tf.teachers.voters import records_in

    name, how = "delta against the number of records", "delta times the number of records"
    if not (folders := ledger_folders(run.root)):
        yield _skipped(name, "nothing was charged here yet")
        return
    try:
        with contextlib.closing(_read(folders[0])) as store:
            delta = store.delta
    except LedgerError as error:
        yield _skipped(name, str(error))
        return
    number = None if run.examples is None else len(run.examples)
    if number is None and (records := records_in(run.directory.teachers)) is not None:
        number = records.num_records
    if number is None:
        yield _skipped(name, "the number of records is not known")
        return
    yield Check(
        name=name,
        how=how,
        outcome=VIOLATION if is_delta_large(delta, number) else PASSED,
        found=f"delta {delta:g} times the number of records is {delta * number:.2g}; expected at "
        f"most 1",
    )
