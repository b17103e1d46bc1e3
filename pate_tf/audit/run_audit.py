"""Checks a run folder and all files that may be published from it.

Released files are compared with a list of allowed names and formats, with the ledger, and with
seals: digests of files that were recorded when the files were written. Nothing is charged, and the
run is not changed. Reports are SENSITIVE and stored in `sensitive/audit`.
"""

import contextlib
import dataclasses
import hmac
import math
import os
import pathlib
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from pate_tf.accounting.conversions import LATTICE
from pate_tf.core import artifacts
from pate_tf.core.reporting import QUIET, Reporting
from pate_tf.ledger import Ledger, LedgerError
from pate_tf.ledger.journal import Store
from pate_tf.ledger.ledger_file import DEBITS, charge_of
from pate_tf.ledger.rollback_guard import RollbackGuard
from pate_tf.queries.labels import COST_FILE, LABELS_FILE
from pate_tf.serving.served import DIGESTS, EXTRA, SCHEMA, ServedStudent, file_digests, load_student
from pate_tf.statement import JSON_FILE, check_statement, has_its_page, opened_stores, spent_since
from pate_tf.statement.privacy_statement import PrivacyStatement
from pate_tf.statement.report import STATEMENTS, ledger_folders
from pate_tf.teachers.run_folder import described_run, ensemble_folder

PASSED: Final = "passed"
VIOLATION: Final = "violation"
NOT_CHECKED: Final = "not checked"
NO_LEDGER: Final = "silos keep their own ledgers: verify the statement with --ledger=LEDGER"
HALF_WRITTEN: Final = "a stopped command left unfinished files: complete a run here, then publish"
LEFT_BEHIND: Final = r"(^|/)\.writing-|^unfinished_student(/[0-9a-f]{16}\.npz)?$"
LOGS: Final = r"logs(/(student|versions|train|validation|held_out|[1-9]\d*))*"
VERSION: Final = r"(student|shared_model)/[1-9]\d*/"
ALLOWED_FILES: Final = re.compile(
    r"labels\.(npz|json)|(privacy|shared_model)_statement\.(json|md)|schema\.toml|analysis\.json|"
    r"encoder\.npz|(privacy_)?report\.html|README\.md|"
    rf"({LOGS}/)?events\.out\.tfevents\.\d+\.host\.[0-9a-f]+(\.v2)?|"
    rf"{VERSION}((saved_model|fingerprint)\.pb|variables/variables\.(index|data-\d+-of-\d+)|"
    r"assets/\w+|assets\.extra/(digests\.json|privacy_statement\.json|dataset\.json|schema\.toml|"
    r"student\.(keras|onnx|tflite)))"
)
ALLOWED_FOLDERS: Final = re.compile(
    rf"({LOGS}|student|shared_model|{VERSION}(variables|assets)(\.extra)?|{VERSION[:-1]})"
)
# For each array of labels.npz: the kind of its NumPy type, and its shape. Each letter of a shape is
# a number: q is the number of queries, m of labels, l of training labels, c of classes, and r of
# rows of sums. Earlier versions also wrote `neighbours`, the k neighbors of each query.
LABELS: Final = {"query_indices": ("i", "m"), "labels": ("i", "m"), "weights": ("f", "mc")}
ALLOWED_ARRAYS: Final = {
    **{"queries": ("i", "q"), "neighbours": ("i", "qk")},
    **{"noisy_counts": ("i", "mc"), "noisy_sums": ("i", "rs")},
    **LABELS,
    **{f"learnt_{name}": (kind, "l" + axes[1:]) for name, (kind, axes) in LABELS.items()},
}
# Fields of a statement that change with later releases from the same ledger.
LEDGER_KEYS: Final = re.compile(r"(epsilon|delta)_|.*ledger|sanitised|secure_noise|num_other|date")
BROKEN: Final = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, OSError)


@dataclasses.dataclass(frozen=True)
class Check:
    """Result of one check.

    Attributes:
        name: name of the check.
        outcome: "passed", "violation", "not checked" or "out of date".
        detail: description of the result, only for the data holder. If the outcome is "not
            checked", `detail` is the reason, which may be published.
        blind_spot: problems that the check can't detect.
    """

    name: str
    outcome: str
    detail: str
    blind_spot: str = ""

    @property
    def remark(self) -> str:
        """Public: problems that the check can't detect, or the reason why it has no result."""
        return self.blind_spot if self.outcome in (PASSED, VIOLATION) else self.detail


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunAudit:
    """SENSITIVE: the result of an audit of a run folder.

    Attributes:
        folder: the run folder.
        outcome: "passed", "violation", or "not checked" if the folder has no ledger.
        checks: results of all checks. Checks that were not possible are included.
    """

    folder: str
    outcome: str
    checks: Sequence[Check]

    def to_dict(self) -> dict[str, Any]:
        """Returns the result as JSON values."""
        return {"audit": "run", **dataclasses.asdict(self)}


def verdict(name: str, problems: Sequence[str], passed: str = "", blind_spot: str = "") -> Check:
    """Returns a passed check if `problems` is empty, else a violation with the first problem."""
    more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
    detail = f"{problems[0]}{more}" if problems else passed
    outcome = VIOLATION if problems else PASSED
    return Check(name, outcome, detail, blind_spot)


def audit_run(train_dir: str | pathlib.Path, *, reporting: Reporting = QUIET) -> RunAudit:
    """Checks the contents of a run folder. docs/how-to/audit.md lists all checks.

    >>> import pate_tf
    >>> data = pate_tf.Data.load("digits")
    >>> sums = pate_tf.FeatureSums(directory=folder / "audited", representation="raw")
    >>> student = pate_tf.Student("supervised", steps=20)
    >>> fitted = pate_tf.fit(
    ...     data, method="feature_sums", epsilon=4.0, delta=1e-5, source=sums, student=student)
    >>> published = fitted.student.publish(folder / "audited" / "released")
    >>> pate_tf.audit.audit_run(folder / "audited").outcome
    'passed'

    Args:
        train_dir: run folder of a data holder, a silo, a coordinator or a shared training.
        reporting: functions that show progress, notes and warnings.

    Raises:
        ValueError: if the folder does not contain a run.
        PermissionError: if a file in the folder can't be read.
    """
    run = _Run(pathlib.Path(train_dir))
    checks: list[Check] = []
    if not (run.sensitive.is_dir() or run.released.is_dir() or list(run.root.rglob("*.sqlite3"))):
        raise ValueError(f"train_dir: {run.root} is not a run folder")
    for path in run.root.rglob("*"):  # reading a named pipe would never end
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise ValueError(f"train_dir: {path} is neither a file nor a folder. Remove it.")
    with reporting.progress_bar(desc="checking", total=len(CHECKS), unit="part") as bar:
        for name, check in CHECKS.items():
            try:
                for result in check(run):  # results before an error are kept
                    checks.append(result)
            except PermissionError:
                raise
            except (*BROKEN, LedgerError) as error:  # modified files can cause any of these errors
                words = " ".join(str(error).split()) or type(error).__name__
                checks.append(verdict(name, [f"broken: {words}"]))
            bar.update()
    outcomes = {check.outcome for check in checks}
    if outcomes <= {NOT_CHECKED}:
        raise ValueError(f"train_dir: {run.root} contains nothing to check")
    honest = PASSED if run.ledgers else NOT_CHECKED
    outcome = VIOLATION if VIOLATION in outcomes else honest
    return RunAudit(folder=str(run.root), outcome=outcome, checks=checks)


@dataclasses.dataclass
class _Run:
    """SENSITIVE: the folder that is checked."""

    root: pathlib.Path

    def __post_init__(self) -> None:
        self.sensitive = self.root / artifacts.SENSITIVE
        self.released = self.root / artifacts.RELEASED
        self.ledgers = ledger_folders(self.root)

    def ledger(self) -> contextlib.AbstractContextManager[Ledger | None]:
        """Returns the ledger of labels; None if it does not exist."""
        is_there = (self.sensitive / f"{Store.name}.sqlite3").exists()
        return Ledger.read(self.sensitive) if is_there else contextlib.nullcontext()

    def sums(self) -> Any:
        """Returns the stored feature sums, or None. Raises ValueError if they are damaged."""
        from pate_tf.release.feature_sums import FeatureSums

        is_there = (self.sensitive / "feature_sums").exists()
        return FeatureSums.load(self.root) if is_there else None

    def assignment(self) -> tuple[Any, dict[str, Any]] | None:
        """Returns the assignment of records to teachers and their settings.

        Returns None if the run has no teachers.
        """
        teachers = artifacts.RunDirectory(self.root).teachers
        if not (teachers / "config.json").exists():
            return None
        facts = artifacts.read_json(teachers / "config.json")
        return artifacts.read_arrays(teachers / "partition.npz")["assignment"], facts

    def versions(self, models: str) -> list[pathlib.Path]:
        """Returns the folders of the exported versions of a model, oldest first."""
        paths = [path for path in self.released.glob(f"{models}/*") if path.name.isdecimal()]
        return sorted(paths, key=lambda path: int(path.name))


def _ledger_checks(run: _Run) -> Iterator[Check]:
    is_released = (run.released / LABELS_FILE).exists() or any(
        run.versions(models) for models in STATEMENTS.values()
    )
    is_made_here = any((run.sensitive / name).exists() for name in ("teachers", "feature_sums"))
    if not run.ledgers and is_released and is_made_here:
        yield verdict("ledger", ["it is missing"])
    elif not run.ledgers:
        yield Check("ledger", NOT_CHECKED, NO_LEDGER)
    for folder in run.ledgers:
        place = f" of {folder.relative_to(run.root)}" if len(run.ledgers) > 1 else ""
        with opened_stores([folder]) as (store,):
            rows = store.history()
            yield verdict(
                f"ledger{place}: chain",
                [],
                f"{len(rows)} rows and their answers match the digests in the next rows",
                "changes of all rows, with new digests, by somebody who can write to the ledger",
            )
            seeded = [
                f"row {row.sequence} drew noise from a seed"
                for row in rows
                if row.kind in DEBITS and not row.details.get("secure_noise", True)
            ]
            blind = "a noise source that was replaced"
            yield verdict(f"ledger{place}: noise", seeded, "no row has noise from a seed", blind)
            yield _registry_check(folder, store, f"ledger{place}: registry")


def _registry_check(folder: pathlib.Path, store: Store, name: str) -> Check:
    rows = store.history()
    if not rows:
        return Check(name, NOT_CHECKED, "it is empty")
    opened = rows[0]
    identity = ("silo", str(opened.details["silo"])) if "silo" in opened.details else None
    with contextlib.closing(RollbackGuard(folder, store.source, identity=identity)) as guard:
        if guard.registry is None:
            return Check(name, NOT_CHECKED, "this user has no registry of ledgers")
        resets = [row for row in rows if row.kind == "acknowledged"]
        gone = {digest for row in resets for digest in row.details["missing"]}
        sequences = {row.digest: row.sequence for row in rows}
        missing = guard.missing_from(opened.digest, sequences, gone)
        noted = guard.query("SELECT 1 FROM ledgers WHERE ledger = ?", opened.digest)
        if missing is None and not noted:
            return Check(name, NOT_CHECKED, "this ledger is not in this user's registry")
    problems = [] if missing is None else [missing.reason]
    blind = "rows written by another user or on another machine"
    return verdict(name, problems, "the ledger has all rows of this user's registry", blind)


def _file_checks(run: _Run) -> Iterator[Check]:
    problems = ["released/ is a link"] if run.released.is_symlink() else []
    found = sorted(run.released.glob("**/*"))
    number = artifacts.next_version(run.released / "student")
    logs = rf"^logs/student/{number}(/\w+)?(/events\.out\.tfevents\.[\w.-]+)?$"
    left = re.compile(f"{LEFT_BEHIND}|{logs}")
    paths = [path for path in found if not left.search(str(path.relative_to(run.released)))]
    if len(paths) < len(found):
        yield Check("released files: half-written", NOT_CHECKED, HALF_WRITTEN)
    for path in paths:
        name = path.relative_to(run.released).as_posix()
        if path.is_symlink():
            problems.append(f"{name} is a link")
        elif not (ALLOWED_FOLDERS if path.is_dir() else ALLOWED_FILES).fullmatch(name):
            problems.append(f"{name} is an unknown name")
        elif path.is_file() and not _has_its_format(path):
            problems.append(f"{name} does not have the format of its name")
        elif name[-1].isdigit() and path.is_dir() and not any(map(os.path.isfile, path.rglob("*"))):
            problems.append(f"{name} contains no files")
    if not paths:
        yield Check("released files", NOT_CHECKED, "nothing has been released yet")
        return
    attributes: Any = getattr(os, "listxattr", lambda path, follow_symlinks: ())
    problems += [
        f"{path.relative_to(run.root)} has extended attributes"
        for path in (run.released, *paths)
        if any(name.startswith("user.") for name in attributes(path, follow_symlinks=False))
    ]
    yield verdict(
        "released files",
        problems,
        f"{len(paths)} files and folders have known names and formats, and none is a link",
        "values in TensorBoard logs or analysis.json; times and modes of files",
    )
    yield _seals_check(run, [path for path in paths if path.is_file()])


def _seals_check(run: _Run, files: Sequence[pathlib.Path]) -> Check:
    """Checks that released files still have the digests that commands recorded for them."""
    seals = run.sensitive / artifacts.SEALS
    if not seals.exists() and run.ledgers and run.sensitive.exists():
        return verdict("released files: seals", ["they are missing"])
    if not seals.exists():
        return Check("released files: seals", NOT_CHECKED, "this folder has no seals")
    lines = [line.partition("  ") for line in seals.read_text().splitlines()]
    sealed = {name: digest for digest, _, name in lines}  # the last line of each name is valid
    digests = artifacts.file_digests(run.released)
    names = [path.relative_to(run.released).as_posix() for path in files]
    changed = [name for name in names if sealed.get(name) != digests[name]]
    return verdict(
        "released files: seals",
        [f"{name} was changed after a command wrote it" for name in changed],
        f"{len(names)} files are unchanged since the commands wrote them",
        "changes by somebody who can also write to sensitive/",
    )


def _has_its_format(path: pathlib.Path) -> bool:
    content = path.read_bytes()
    try:
        if path.suffix == ".json":
            artifacts.read_json(path)
        elif path.name == "encoder.npz":
            names = set(artifacts.read_arrays(path, is_exact=True))
            return names == {"description", *map(str, range(len(names) - 1))}
        elif path.suffix in (".md", ".toml", ".html"):
            content.decode()
        elif "tfevents" in path.name:
            from tensorboard.compat.proto import event_pb2

            start = 0
            while start < len(content):  # an event comes after its length; both have a checksum
                (length,) = struct.unpack_from("<Q", content, start)
                event_pb2.Event.FromString(content[start + 12 : start + 12 + length])
                start += length + 16
            return start == len(content)
    except Exception:  # parsers raise many types of exceptions
        return False
    return True


def _label_checks(run: _Run) -> Iterator[Check]:
    if not (run.released / LABELS_FILE).exists() and not (run.released / COST_FILE).exists():
        yield Check("released labels", NOT_CHECKED, "no labels were saved")
        return
    arrays = artifacts.read_arrays(run.released / LABELS_FILE, is_exact=True)
    fields = artifacts.read_json(run.released / COST_FILE)
    sizes = {"q": fields["num_queries"], "c": fields["num_classes"]}
    problems = []
    for name, array in arrays.items():
        kind, axes = ALLOWED_ARRAYS.get(name, ("", ""))
        shape = zip(axes, array.shape, strict=False)
        if not kind:
            problems.append(f"{name} is an unknown array")
        elif array.dtype.kind != kind or array.ndim != len(axes):
            problems.append(f"{name} has an unexpected type")
        elif any(sizes.setdefault(axis, size) != size for axis, size in shape):
            problems.append(f"{name} has an unexpected shape")
    passed = f"{len(arrays)} arrays have known names, types and shapes"
    yield verdict("released labels: arrays", problems, passed)
    with run.ledger() as ledger:
        if ledger is None:
            yield Check("released labels: seal", NOT_CHECKED, "their ledger is not here")
            return
        record = {name: value for name, value in fields.items() if name != "seal"}
        digest = artifacts.digest_arrays(arrays[name] for name in sorted(arrays))
        is_sealed = hmac.compare_digest(str(fields.get("seal")), ledger.mac(record))
        yield verdict(
            "released labels: seal",
            [] if is_sealed and record["labels_digest"] == digest else ["they were changed"],
            "all arrays and facts match the seal of the ledger",
            "labels that were sealed by somebody who can write to the ledger",
        )


def _statement_checks(run: _Run) -> Iterator[Check]:
    for name, models in STATEMENTS.items():
        path = run.released / name
        versions = run.versions(models)
        title = "statement" if name == JSON_FILE else "statement of shared training"
        if not path.exists():
            if versions:
                yield verdict(title, [f"{name} is missing"])
            continue
        fields = artifacts.read_json(path)
        copy: dict[str, Any] = {}
        with opened_stores(run.ledgers) as stores:
            statement = check_statement(fields, *stores)
            since = spent_since(statement, stores)
            for version in versions:
                copy = artifacts.read_json(version / EXTRA / JSON_FILE)
                PrivacyStatement.from_dict(copy).check(stores)
        problems = []
        if not has_its_page(path, statement):
            problems.append(f"{path.stem}.md differs from {name}")
        if versions:
            # A release of the data-dependent epsilon updates the statement, but not its copies in
            # exported versions. If the statement is later than a copy, only the fields that such a
            # release changes may differ.
            heads = [each.get("ledger_head") or (0,) for each in (fields, copy)]
            is_later = heads[0][0] > heads[1][0]
            known = {field.name for field in dataclasses.fields(statement)}
            problems += [
                f"its {field} differs from the newest version's copy"
                for field in sorted(known if is_later else {*fields, *copy})
                if fields.get(field) != copy.get(field)
                and not (is_later and LEDGER_KEYS.match(field))
            ]
        else:
            problems.append("its model is missing")
        problems += _contradictions(run, statement)
        about = "the ledger" if stores else "its own numbers (its ledger is not here)"
        yield verdict(
            title,
            problems,
            f"the statement, its page and the copies in {len(versions)} versions agree with "
            f"{about} and with the data in the folder",
            "other releases from the same records",
        )
        if since:
            yield Check(f"{title}: releases since", "out of date", since)


def _contradictions(run: _Run, statement: PrivacyStatement) -> list[str]:
    """Describes each field of a statement that contradicts the data in the folder."""
    due: dict[str, Any] = {}
    description = described_run(run.root)
    sums = run.sums()
    teachers = run.assignment()
    if description is not None:
        due |= {"pool_name": description.data_name, "unit": description.unit}
        due["num_teachers"] = description.num_teachers
    if sums is not None:
        due |= {"unit": sums.unit, "num_records": sums.num_records}
    elif teachers is not None:
        assignment, facts = teachers
        due |= {name: facts[name] for name in ("unit", "num_teachers")}
        due["num_records"] = len(assignment)
    if due.get("unit") == "owner":
        due["num_records"] = None  # private
    for version in run.versions(STATEMENTS[statement.file])[-1:]:
        due |= ServedStudent(version).dataset.model_facts
    return [
        f"its {name} is {getattr(statement, name)}, but the folder has {value}"
        for name, value in due.items()
        if getattr(statement, name, value) != value
    ]


def _version_checks(run: _Run) -> Iterator[Check]:
    for name, models in STATEMENTS.items():
        versions = run.versions(models)
        if not versions:
            continue
        problems: list[str] = []
        seal = "the ledger's seal"
        with run.ledger() as ledger:
            for version in versions:
                place = f"{models}/{version.name}"
                manifest = artifacts.read_json(version / EXTRA / DIGESTS)
                mark = manifest.pop("seal")
                due = manifest["files"]
                files = file_digests(version)
                changed = sorted(
                    path for path in {*files, *due} if files.get(path) != due.get(path)
                )
                problems += [f"{place}/{path} was changed after its export" for path in changed]
                if (manifest["model"], manifest["version"]) != (models, int(version.name)):
                    problems.append(f"{place} was exported under a different name")
                if ledger is None:
                    seal = "no seal, because its ledger is not here"
                elif not hmac.compare_digest(str(mark), ledger.mac(manifest)):
                    problems.append(f"{place}: the ledger did not seal its manifest")
        schemas = [
            path.read_bytes() if path.exists() else None
            for path in (run.released / SCHEMA, versions[-1] / EXTRA / SCHEMA)
        ]
        if models == "student" and schemas[0] != schemas[1]:
            problems.append("schema.toml differs from the newest version's copy")
        stated = artifacts.read_json(run.released / name)["student_digest"]
        if not problems:
            digest = artifacts.digest_arrays(load_student(versions[-1]).weights)
            if digest != stated:
                problems.append("the weights of the newest version don't match the statement")
        yield verdict(
            f"versions of {models}",
            problems,
            f"all files of {len(versions)} versions match the SHA-256 digests of their manifests, "
            f"which have {seal}; the weights of the newest version match the statement",
            "whether a student was trained on anything other than the released labels",
        )


def _mode_checks(run: _Run) -> Iterator[Check]:
    if not run.sensitive.exists():
        return
    problems = []
    for path in (run.sensitive, *sorted(run.sensitive.rglob("*"))):
        if path.is_symlink():
            problems.append(f"{path.relative_to(run.root)} is a link")
        elif artifacts.is_half_written(path) or not path.exists():
            continue
        elif path.stat().st_mode & 0o077:
            problems.append(f"{path.relative_to(run.root)} can be read by other users")
    yield verdict(
        "sensitive files",
        problems,
        "only the user who owns them can read them",
        "changes of votes and run.json, because the ledger has no digests of them",
    )


def _teacher_checks(run: _Run) -> Iterator[Check]:
    teachers = run.assignment()
    if teachers is None:
        return
    assignment, facts = teachers
    number = int(facts["num_teachers"])
    ok = assignment.dtype.kind in "iu" and assignment.ndim == 1
    ok = ok and (not assignment.size or 0 <= assignment.min() <= assignment.max() < number)
    blind = "duplicate records; whether training used records outside the partition"
    name = "partition: one teacher for each record"
    yield verdict(name, [] if ok else ["a record has no teacher"], f"{number} teachers", blind)
    folder = ensemble_folder(artifacts.RunDirectory(run.root))
    with run.ledger() as ledger:
        if ledger is not None and folder.exists():
            from pate_tf.teachers.teacher_kinds import load_ensemble

            ok = ledger.ensemble_digest == load_ensemble(folder).digest
            problems = [] if ok else ["the ledger was charged for another ensemble"]
            passed = "the ledger was opened for the stored ensemble"
            yield verdict("ensemble", problems, passed, "how teachers were trained")


def _sum_checks(run: _Run) -> Iterator[Check]:
    from pate_tf.release.noisy_sums import sums_in_ledger

    stored = run.sums()
    if stored is None:
        return
    _ = stored.has_vectors and stored.moments  # raises ValueError if the vectors don't match
    with run.ledger() as ledger:
        if ledger is None:
            return
        ok = ledger.ensemble_digest == stored.digest
        problems = [] if ok else ["the ledger was charged for other sums"]
        yield verdict("sums", problems, "the ledger was opened for the stored sums")
        for row in ledger.history():
            charge: Any = charge_of(row)[0] if row.kind in DEBITS else None
            if charge is None or not charge.releases_feature_sums:
                continue
            clusters = charge.num_clusters
            if clusters is not None and clusters not in stored.cluster_counts:
                continue  # the exact counts of an accuracy estimate are not stored
            exact = (stored.sums if clusters is None else stored.cluster_counts[clusters]).values
            numbers = np.array(sums_in_ledger(ledger, charge)[0])
            if numbers.size:
                # Only the first round is checked, because the exact sums of later rounds are not
                # stored.
                noise = (numbers.reshape(-1, *exact.shape)[0] - exact) / LATTICE
                sigma = charge.standard_deviation
                drawn = f"standard deviation {noise.std():.4g} of {noise.size:,} draws"
                detail = f"{drawn}, claimed {sigma:.4g}"
                ratio = float(np.square(noise).mean()) / sigma**2
                # If the tails of the noise are at most as heavy as Laplace tails, the false alarm
                # rate is about 1e-6. The squares of such noise have a standard deviation of at most
                # sqrt(5) times the variance of the noise.
                is_small = ratio < 1.0 - 4.9 * math.sqrt(5.0 / noise.size)
                problems = [detail] if is_small or (ratio < 1e-3 and noise.size > 9) else []
                name = f"noise of the sums of row {row.sequence}"
                yield verdict(name, problems, detail, "predictable noise of the correct size")


CHECKS: Final[Mapping[str, Callable[[_Run], Iterator[Check]]]] = {
    "sensitive files": _mode_checks,  # must be the first check, because other checks create folders
    "ledger": _ledger_checks,
    "released files": _file_checks,
    "released labels": _label_checks,
    "statement": _statement_checks,
    "versions": _version_checks,
    "teachers": _teacher_checks,
    "feature sums": _sum_checks,
}
