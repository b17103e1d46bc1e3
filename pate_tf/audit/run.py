"""Verification of a run folder: released files against an allow-list, the ledger and the records.

Nothing is charged and nothing of the run is changed. SENSITIVE: what is found may depend on private
data, so a report lies below `sensitive/audit`.
"""

import contextlib
import dataclasses
import functools
import hmac
import pathlib
import re
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from pate_tf.accounting.charge import shares
from pate_tf.accounting.conversions import LATTICE
from pate_tf.accounting.mechanisms.base import OutcomeLaw
from pate_tf.audit.mechanism import NOT_CHECKED, PASSED, VIOLATION, Check, is_too_small, verdict
from pate_tf.audit.report import (
    PAGE,
    STATEMENTS,
    as_made,
    ledger_folders,
    read_store,
    report_page,
)
from pate_tf.audit.search import PrivateBytes, PrivateText, contents
from pate_tf.core import artifacts
from pate_tf.core.public import Pool
from pate_tf.core.reporting import QUIET, Reporting
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.core.validation import IntArray
from pate_tf.ledger import Ledger, LedgerError
from pate_tf.ledger.journal import DEBITS, Store, charge_of
from pate_tf.ledger.rollback_guard import RollbackGuard
from pate_tf.queries.labels import COST_FILE, LABELS_FILE, asked_inputs
from pate_tf.statement.check import JSON_FILE, check_statement
from pate_tf.statement.privacy_statement import PrivacyStatement
from pate_tf.teachers.run_folder import RunDescription, described_run, ensemble_folder

LOGS: Final = r"logs(/(student|versions|train|validation|held_out|[1-9]\d*))*"
VERSION: Final = r"(student|shared_model)/[1-9]\d*/"
ALLOWED_FILES: Final = re.compile(
    r"labels\.(npz|json)|(privacy|shared_model)_statement\.(json|md)|schema\.toml|analysis\.json|"
    rf"encoder\.npz|{re.escape(PAGE)}|(epsilon_data_independent|cost_by_gap_\d+)\.png|"
    rf"({LOGS}/)?events\.out\.tfevents\.(0\.analysis|\d+\.host\.[0-9a-f]+(\.v2)?)|"
    rf"{VERSION}((saved_model|fingerprint)\.pb|variables/variables\.(index|data-\d+-of-\d+)|"
    r"assets/\w+|assets\.extra/(digests\.json|privacy_statement\.json|dataset\.json|schema\.toml|"
    r"tf_serving_warmup_requests|student\.(keras|onnx|tflite)))"
)
ALLOWED_FOLDERS: Final = re.compile(
    rf"({LOGS}|student|shared_model|unfinished_student|{VERSION}(variables|assets)(\.extra)?"
    rf"|{VERSION[:-1]})"
)
# Arrays of labels.npz: kind of type, and shape: q queries, k neighbors, m labels, l learned ones,
# c classes, r rows of sums.
LABELS: Final = {"query_indices": ("i", "m"), "labels": ("i", "m"), "weights": ("f", "mc")}
LEARNED: Final = {f"learnt_{name}": (one, "l" + axes[1:]) for name, (one, axes) in LABELS.items()}
ALLOWED_ARRAYS: Final = {
    **{"queries": ("i", "q"), "neighbours": ("i", "qk")},
    **{"noisy_counts": ("i", "mc"), "noisy_sums": ("i", "rc")},
    **LABELS,
    **LEARNED,
}
# Fields of a statement that a later release of the same ledger changes.
OF_LEDGER: Final = re.compile(r"(epsilon|delta)_|.*ledger|sanitised|secure_noise|num_other|date")
PUBLIC_ARRAYS: Final = re.compile(r"scale|groups|resolutions|centres_\d+|moments")
SECRET_KEYS: Final = re.compile(r"data_dependent|teacher_(balanced_)?accuracy|votes|gap")
NO_TABLE: Final = "no private table of text can be read here"
EXTRA: Final = "assets.extra"
SEEDS: Final = 64
FALSE_ALARM: Final = 1e-6
BROKEN: Final = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, OSError)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunAudit:
    """SENSITIVE: what an audit of a run folder found.

    Attributes:
        folder: of the run.
        outcome: "passed" or "violation".
        checks: all that was checked or could not be.
        seconds: how long it took.
    """

    folder: str
    outcome: str
    checks: Sequence[Check]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values."""
        return {"audit": "run", **dataclasses.asdict(self)}


def audit_run(
    train_dir: str | pathlib.Path,
    *,
    data: Any = None,
    owners_file: pathlib.Path | None = None,
    reporting: Reporting = QUIET,
) -> RunAudit:
    """Verifies what a run folder holds; docs/how-to/audit.md lists the checks.

    >>> import pate_tf
    >>> data = pate_tf.Data.load("digits")
    >>> sums = pate_tf.FeatureSums(directory=folder / "audited", representation="raw")
    >>> student = pate_tf.Student("supervised", steps=20)
    >>> fitted = pate_tf.fit(
    ...     data, method="feature_sums", epsilon=4.0, delta=1e-5, source=sums, student=student)
    >>> published = fitted.student.publish(folder / "audited" / "released")
    >>> pate_tf.audit.audit_run(folder / "audited", data=data).outcome
    'passed'

    Args:
        train_dir: the folder of a run: of one holder, a silo, a coordinator or shared training.
        data: the private records (`pate_tf.Data` or `data.private`); default: where the run says
            that they lie. Without them what follows from the records is not checked.
        owners_file: the owner of each private record, `.npy`, where owners are protected and the
            records are read from where the run says.
        reporting: how progress is shown.

    Raises:
        ValueError: if there is no run in the folder.
        PermissionError: if a file of it can't be read.
    """
    root, began = pathlib.Path(train_dir), time.monotonic()
    halves = (root / artifacts.SENSITIVE, root / artifacts.RELEASED)
    if not any(half.is_dir() for half in halves) and not list(root.rglob("*.sqlite3")):
        raise ValueError(f"train_dir: expected the folder of a run, got {root}, which is none")
    checks: list[Check] = []
    run = _Run(root, data, owners_file, reporting)
    with reporting.progress_bar("checking", len(CHECKS), "part") as advance:
        for name, check in CHECKS.items():
            try:
                for result in check(run):
                    checks.append(result)
            except PermissionError:
                raise
            except (*BROKEN, LedgerError) as error:  # tampered files may break anything
                words = " ".join(str(error).split()) or type(error).__name__
                checks.append(verdict(name, [f"broken: {words}"]))
            advance(1)
    if not any(check.outcome in (PASSED, VIOLATION) for check in checks):
        raise ValueError(f"train_dir: expected a run to check, got {root}, which has nothing")
    is_violated = any(check.outcome == VIOLATION for check in checks)
    return RunAudit(
        folder=str(root),
        outcome=VIOLATION if is_violated else PASSED,
        checks=checks,
        seconds=time.monotonic() - began,
    )


class _Run:
    """SENSITIVE: what the checks look at; what is expensive is read once."""

    def __init__(
        self,
        root: pathlib.Path,
        data: Any,
        owners_file: pathlib.Path | None,
        reporting: Reporting,
    ) -> None:
        self.root, self.reporting = root, reporting
        self.sensitive, self.released = root / artifacts.SENSITIVE, root / artifacts.RELEASED
        self.directory, self.ledgers = artifacts.RunDirectory(root), ledger_folders(root)
        self._data, self._owners_file = data, owners_file
        self.why_no_data = "the run folder does not say where its private records lie; name them"

    @functools.cached_property
    def description(self) -> RunDescription | None:
        return described_run(self.root)

    @functools.cached_property
    def source(self) -> Any:
        """Where the run's data lie; None where the folder does not say."""
        if self.description is None or not self.description.source:
            return None
        return dataclasses.replace(self.description.data(), owners_file=self._owners_file)

    @functools.cached_property
    def examples(self) -> PrivateExamples | None:
        """The private records; None, with a reason, where they can't be read here."""
        examples: PrivateExamples | None = getattr(self._data, "private", self._data)
        if examples is None and self.source is not None:
            try:
                examples = self.source.load_private(self.reporting)
            except (ValueError, OSError) as error:
                self.why_no_data = f"the private records could not be read: {error}"
        unit = None if self.description is None else self.description.unit
        if examples is not None and unit and (examples.owners is not None) != (unit == "owner"):
            self.why_no_data = "the owners of the records are not known; name their file"
            return None
        return examples

    @functools.cached_property
    def pool(self) -> Pool | None:
        """The public pool; None where it can't be read here."""
        pool: Pool | None = getattr(self._data, "pool", None)
        if pool is not None:
            return pool
        with contextlib.suppress(ValueError, OSError):
            if self.source is not None and self.description is not None:
                public = self.source.load_public(self.reporting)
                size = self.description.pool_size or public.dataset.pool_size
                pool = public.split(size).pool
        return pool

    @functools.cached_property
    def sums(self) -> Any:
        """The stored feature sums; ValueError if they are broken."""
        from pate_tf.release.feature_sums import FeatureSums

        return FeatureSums.load(self.directory.root)

    def ledger(self) -> contextlib.AbstractContextManager[Ledger | None]:
        """Returns the one ledger of labels; None where there is none."""
        is_there = (self.sensitive / f"{Store.name}.sqlite3").exists()
        return Ledger.read(self.sensitive) if is_there else contextlib.nullcontext()

    @functools.cached_property
    def assignment(self) -> IntArray | None:
        """The teacher of each record; None in a run without teachers."""
        path = self.directory.teachers / "partition.npz"
        return artifacts.read_arrays(path)["assignment"] if path.exists() else None

    @functools.cached_property
    def teacher_config(self) -> dict[str, Any]:
        return artifacts.read_json(self.directory.teachers / "config.json")

    def paths(self, pattern: str) -> list[pathlib.Path]:
        """Returns what lies below `released/`."""
        return sorted(self.released.glob(pattern))

    def versions(self, models: str) -> list[pathlib.Path]:
        """Returns the exported versions of a model, the newest last."""
        found = [path for path in self.paths(f"{models}/*") if path.name.isdecimal()]
        return sorted(found, key=lambda path: int(path.name))


def _skipped(name: str, why: str) -> Check:
    return Check(name=name, outcome=NOT_CHECKED, found=why)


# The ledger.


def _ledger_checks(run: _Run) -> Iterator[Check]:
    is_released = run.paths(LABELS_FILE) or any(map(run.versions, STATEMENTS.values()))
    is_made_here = any((run.sensitive / one).exists() for one in ("teachers", "feature_sums"))
    if not run.ledgers:
        is_gone = is_released and is_made_here
        yield verdict("ledger", ["it is gone"]) if is_gone else _skipped("ledger", "there is none")
    for folder in run.ledgers:
        place = f" of {folder.relative_to(run.root)}" if len(run.ledgers) > 1 else ""
        with read_store(folder) as store:
            rows = store.history()
            yield verdict(
                f"ledger{place}: chain",
                [],
                f"{len(rows)} rows and their answers, with the digests that link them",
                "rows rewritten together by somebody who may write to the ledger",
            )
            seeded = [
                f"row {row.sequence} drew noise from a seed"
                for row in rows
                if row.kind in DEBITS and not row.details.get("secure_noise", True)
            ]
            blind = "a noise source that was replaced; see pate audit mechanism"
            yield verdict(f"ledger{place}: noise", seeded, "no charge notes a seed", blind)
            yield _registry_check(folder, store, f"ledger{place}: registry")


def _registry_check(folder: pathlib.Path, store: Store, name: str) -> Check:
    opened, rows = store.opened, store.history()
    details: Mapping[str, Any] = {} if opened is None else opened.details
    if opened is None:
        return _skipped(name, "it is empty")
    identity = ("silo", str(details["silo"])) if "silo" in details else None
    with contextlib.closing(RollbackGuard(folder, store.source, identity=identity)) as guard:
        if not guard.is_kept:
            return _skipped(name, "this user has no registry of ledgers")
        gone = {one for row in rows if row.kind == "acknowledged" for one in row.details["missing"]}
        missing = guard.missing_from(
            opened.digest, {row.digest: row.sequence for row in rows}, gone
        )
    problems = [] if missing is None else [missing.reason]
    blind = "rows written by another user or on another machine"
    return verdict(name, problems, "no row that this user's registry has seen is missing", blind)


# Released files.


def _file_checks(run: _Run) -> Iterator[Check]:
    problems = ["released/ is a link"] if run.released.is_symlink() else []
    paths = run.paths("**/*")
    for path in paths:
        name = path.relative_to(run.released).as_posix()
        if path.is_symlink():
            problems.append(f"{name} is a link")
        elif not (ALLOWED_FOLDERS if path.is_dir() else ALLOWED_FILES).fullmatch(name):
            problems.append(f"{name} is no known name")
        elif path.is_file() and not _is_of_its_kind(path):
            problems.append(f"{name} does not hold what its name says")
    if not paths:
        yield _skipped("released files", "nothing was released yet")
        return
    yield verdict(
        "released files",
        problems,
        f"{len(paths)} files and folders of known names and formats, none a link",
        "values within a picture, a log of TensorBoard or analysis.json",
    )


def _is_of_its_kind(path: pathlib.Path) -> bool:
    content = path.read_bytes()
    try:
        if path.suffix == ".json":
            artifacts.read_json(path)
        elif path.name == "encoder.npz":
            names = set(artifacts.read_arrays(path))
            return names == {"description", *map(str, range(len(names) - 1))}
        elif path.suffix in (".md", ".toml", ".html"):
            content.decode()
        elif path.suffix == ".png":
            return content.startswith(b"\x89PNG\r\n\x1a\n") and content.endswith(b"IEND\xaeB`\x82")
        elif "tfevents" in path.name:
            from tensorboard.compat.proto import event_pb2

            start = 0
            while start < len(content):  # length, its checksum, the event, its checksum
                (length,) = struct.unpack_from("<Q", content, start)
                event_pb2.Event.FromString(content[start + 12 : start + 12 + length])
                start += length + 16
            return start == len(content)
    except Exception:  # each parser raises its own kinds
        return False
    return True


# Released labels.


def _label_checks(run: _Run) -> Iterator[Check]:
    if not run.paths(LABELS_FILE) and not run.paths(COST_FILE):
        yield _skipped("released labels", "no labels were saved")
        return
    arrays = artifacts.read_arrays(run.released / LABELS_FILE)
    fields = artifacts.read_json(run.released / COST_FILE)
    sizes, problems = {"q": fields["num_queries"], "c": fields["num_classes"]}, []
    for name, array in arrays.items():
        kind, axes = ALLOWED_ARRAYS.get(name, ("", ""))
        shape = zip(axes, array.shape, strict=False)
        if not kind:
            problems.append(f"{name} is an array of no known name")
        elif array.dtype.kind != kind or array.ndim != len(axes):
            problems.append(f"{name} is of another type")
        elif any(sizes.setdefault(axis, size) != size for axis, size in shape):
            problems.append(f"{name} is of another shape")
    yield verdict(
        "released labels: arrays", problems, f"{len(arrays)} of known names, types and shapes"
    )
    with run.ledger() as ledger:
        if ledger is None:
            yield _skipped("released labels: seal", "no ledger here charged them")
        else:
            record = {name: value for name, value in fields.items() if name != "seal"}
            digest = artifacts.digest_arrays(arrays[name] for name in sorted(arrays))
            is_sealed = hmac.compare_digest(str(fields.get("seal")), ledger.recognise(record))
            yield verdict(
                "released labels: seal",
                [] if is_sealed and record["labels_digest"] == digest else ["they were changed"],
                "all arrays and facts are as the ledger sealed them",
                "labels sealed by somebody who may write to the ledger",
            )
            yield _answers_check(ledger, arrays, fields["ledger_rows"])


def _answers_check(ledger: Ledger, arrays: Mapping[str, Any], rows: Sequence[int]) -> Check:
    problems = []
    if "noisy_sums" in arrays:
        if not any(np.array_equal(arrays["noisy_sums"].ravel(), sums) for _, sums in _sums(ledger)):
            problems.append("noisy sums that the ledger does not hold")
    else:
        answers = _answers(ledger)
        charged = [one for row in rows for one in answers.get(row, ()) if one is not None]
        labels = arrays["labels"].tolist()
        # Equal queries have one answer, and earlier answers are given again.
        if labels != charged and not (set(labels) <= set(charged) and len(labels) != len(charged)):
            problems.append("labels that the ledger does not hold")
    counts, weights = arrays.get("noisy_counts"), arrays.get("weights")
    if counts is not None and (weights is None or not np.array_equal(weights, shares(counts))):
        problems.append("weights that do not follow from noisy counts")
    return verdict(
        "released labels: answers",
        problems,
        "labels or noisy sums are the ledger's, weights follow from noisy counts",
        "labels inferred from these, which the seal alone covers",
    )


def _sums(ledger: Ledger) -> Iterator[tuple[Any, tuple[int, ...]]]:
    """Yields each row that charged sums, with the numbers of all rounds that were released."""
    from pate_tf.release.noisy_sums import sums_in_ledger

    for row in ledger.history():
        if row.kind in DEBITS:
            charge: Any = charge_of(row)[0]
            if charge.releases_feature_sums and (numbers := sums_in_ledger(ledger, charge)[0]):
                yield row, numbers


def _answers(ledger: Ledger) -> dict[int, list[int | None]]:
    found: dict[int, list[int | None]] = {}
    for debit, label in ledger.stored_labels():
        found.setdefault(debit, []).append(label)
    return found


# Statements and exported versions.


def _statement_checks(run: _Run) -> Iterator[Check]:
    for name, models in STATEMENTS.items():
        path, versions = run.released / name, run.versions(models)
        title = "statement" if name == JSON_FILE else "statement of shared training"
        if not path.exists():
            if versions:
                yield verdict(title, [f"{name} is gone"])
            continue
        fields = artifacts.read_json(path)
        with contextlib.ExitStack() as stack:
            stores = [stack.enter_context(read_store(one)) for one in run.ledgers]
            statement = check_statement(fields, *stores)
            page = path.with_suffix(".md")
            is_page = page.exists() and page.read_text() == statement.to_markdown()
            problems = [] if is_page else [f"{page.name} is not its page"]
            for version in versions:
                copy = artifacts.read_json(version / EXTRA / JSON_FILE)
                PrivacyStatement.from_dict(copy).check(stores)
        problems += _differences(fields, copy) if versions else ["its model is gone"]
        about = "the ledger" if stores else "its own numbers (no ledger of it lies here)"
        yield verdict(
            title,
            problems,
            f"it, its page and the copies in {len(versions)} versions agree with {about}",
            "other releases of the same records",
        )
        yield _facts_check(run, statement, title)


def _differences(fields: Mapping[str, Any], copy: Mapping[str, Any]) -> list[str]:
    """Returns what of a statement differs from the newest version's copy and may not.

    A release of the data-dependent epsilon brings the statement up to date, and not the copy.
    """
    heads = [one.get("ledger_head") or (0,) for one in (fields, copy)]
    is_later = heads[0][0] > heads[1][0]
    known = {field.name for field in dataclasses.fields(PrivacyStatement.from_dict(fields))}
    return [
        f"its {name} differs from the newest version's copy"
        for name in sorted(known if is_later else {*fields, *copy})
        if fields.get(name) != copy.get(name) and not (is_later and OF_LEDGER.match(name))
    ]


def _facts_check(run: _Run, statement: PrivacyStatement, title: str) -> Check:
    """Compares what a statement says of the records with what the folder knows of them."""
    due: dict[str, Any] = {}
    if run.description is not None:
        due |= {"pool_name": run.description.data_name, "unit": run.description.unit}
        due["num_teachers"] = run.description.num_teachers
    if (run.sensitive / "feature_sums").exists():
        due |= {"unit": run.sums.unit, "num_records": run.sums.num_records}
    elif run.assignment is not None:
        due |= {name: run.teacher_config[name] for name in ("unit", "num_teachers")}
        due["num_records"] = len(run.assignment)
    if due.get("unit") == "owner":
        due["num_records"] = None  # private
    problems = [
        f"it says {name} {getattr(statement, name)}, the folder {value}"
        for name, value in due.items()
        if getattr(statement, name, value) != value
    ]
    if not due:
        return _skipped(f"{title}: facts", "the folder knows nothing of the records")
    return verdict(f"{title}: facts", problems, f"{', '.join(due)} are the folder's")


def _version_checks(run: _Run) -> Iterator[Check]:
    from pate_tf.serving.served import DIGESTS, SCHEMA, file_digests, served_digest

    for name, models in STATEMENTS.items():
        versions, problems, seal = run.versions(models), list[str](), "the ledger's seal"
        if not versions:
            continue
        with run.ledger() as ledger:
            for version in versions:
                manifest = artifacts.read_json(version / EXTRA / DIGESTS)
                mark, place = manifest.pop("seal"), f"{models}/{version.name}"
                files, due = file_digests(version), manifest["files"]
                changed = sorted(one for one in {*files, *due} if files.get(one) != due.get(one))
                problems += [f"{place}/{one} is not what was exported" for one in changed]
                if (manifest["model"], manifest["version"]) != (models, int(version.name)):
                    problems.append(f"{place} was exported by another name")
                if ledger is None:
                    seal = "no seal, as no ledger of it lies here"
                elif not hmac.compare_digest(str(mark), ledger.recognise(manifest)):
                    problems.append(f"{place}: the ledger did not seal its manifest")
        extra = versions[-1] / EXTRA
        schemas = [
            one.read_bytes() if one.exists() else None
            for one in (run.released / SCHEMA, extra / SCHEMA)
        ]
        if models == "student" and schemas[0] != schemas[1]:
            problems.append("schema.toml is not the newest version's")
        stated = artifacts.read_json(run.released / name)["student_digest"]
        if not problems and served_digest(versions[-1]) != stated:
            problems.append("the weights of the newest version are not the statement's")
        for path in ("feature_sums/description.json", "teachers/ensemble/description.json"):
            if (run.sensitive / path).exists():
                known = artifacts.read_json(run.sensitive / path).get("dataset")
                if known not in (None, artifacts.read_json(extra / "dataset.json")):
                    problems.append("dataset.json is of other data than the records")
        yield verdict(
            f"versions of {models}",
            problems,
            f"every file of {len(versions)} versions has the SHA-256 of its manifest, which has "
            f"{seal}; the newest has the statement's weights",
            "whether a student learned from anything but the released labels",
        )


def _page_check(run: _Run) -> Iterator[Check]:
    """Makes the page for the signer again, with the date and audits that it says."""
    if run.paths(PAGE):
        text = (run.released / PAGE).read_text()
        is_same = report_page(run.root, **as_made(text)) == text
        problems = [] if is_same else [f"{PAGE} is not this run's page; make it again"]
        yield verdict("report page", problems, "the page of this run", "which audits were run")


# The sensitive half.


def _mode_checks(run: _Run) -> Iterator[Check]:
    if not run.sensitive.exists():
        return
    problems = []
    for path in (run.sensitive, *sorted(run.sensitive.rglob("*"))):
        if path.is_symlink():
            problems.append(f"{path.relative_to(run.root)} is a link")
        elif path.exists() and path.stat().st_mode & 0o077:
            problems.append(f"{path.relative_to(run.root)} is open to other users")
    yield verdict("sensitive files", problems, "their modes let their owner alone read them")


def _teacher_checks(run: _Run) -> Iterator[Check]:
    if run.assignment is None:
        return
    number, name = int(run.teacher_config["num_teachers"]), "partition: one teacher for each record"
    assignment = run.assignment
    ok = assignment.dtype.kind in "iu" and assignment.ndim == 1
    ok = ok and (not assignment.size or 0 <= assignment.min() <= assignment.max() < number)
    blind = "records that occur twice; whether training read other records than the partition's"
    yield verdict(name, [] if ok else ["a record has no teacher"], f"{number} teachers", blind)
    name = "partition follows from the records"
    yield _skipped(name, run.why_no_data) if run.examples is None else _partition_check(run, name)
    if ensemble_folder(run.directory).exists():
        from pate_tf.teachers.kinds import load_ensemble

        ensemble = load_ensemble(ensemble_folder(run.directory))
        with run.ledger() as ledger:
            if ledger is not None:
                ok = ledger.ensemble_digest == ensemble.digest
                problems = [] if ok else ["another ensemble than was charged"]
                found = "the ledger was opened for the stored ensemble"
                yield verdict("ensemble", problems, found, "how teachers were trained")
                yield from _vote_checks(run, ledger, ensemble)


def _partition_check(run: _Run, name: str) -> Check:
    from pate_tf.teachers.run_folder import shards_of

    examples, assignment, config = run.examples, run.assignment, run.teacher_config
    if examples is None or assignment is None or len(examples) != len(assignment):
        return verdict(name, ["a partition of another number of records"])
    if examples.owners is not None:
        _, first, place = np.unique(examples.owners, return_index=True, return_inverse=True)
        if (assignment[first][place] != assignment).any():
            return verdict(name, ["records of one owner have two teachers"])
    again = shards_of(examples, num_teachers=int(config["num_teachers"]), seed=int(config["seed"]))
    if np.array_equal(again.assignment, assignment):
        return verdict(name, [], "dealt out by owner or seed, it is the same")
    found = "dealt out by owner or seed, it is another one, as from --partition_file"
    return Check(name=name, outcome="warning", found=found)


def _vote_checks(run: _Run, ledger: Ledger, ensemble: Any) -> Iterator[Check]:
    """Asks the teachers again, and compares released labels with the law of their mechanism."""
    from scipy import stats

    from pate_tf.release.votes import stored_counts

    batches, answers, name = list(stored_counts(ledger)), _answers(ledger), "stored votes"
    if batches and run.pool is not None and run.paths(LABELS_FILE):
        arrays = artifacts.read_arrays(run.released / LABELS_FILE)
        rows = artifacts.read_json(run.released / COST_FILE)["ledger_rows"]
        queries = asked_inputs(run.pool, arrays["queries"], arrays.get("neighbours"))
        again = ensemble.group_counts if "neighbours" in arrays else ensemble.counts
        votes = {tuple(row) for row in again(queries).values.tolist()}
        stored = {tuple(row) for one in batches if one.debit in rows for row in one.counts.values}
        problems = ["votes that the teachers do not give"] if stored - votes else []
        blind = "votes of other releases, and which query each is of"
        yield verdict(name, problems, "the teachers give them again", blind)
    elif batches:
        yield _skipped(name, "the pool or the labels can't be read here")
    for batch in batches:
        mechanism, counts = batch.mechanism, batch.counts.values
        labels, title = answers.get(batch.debit, []), f"noise of the labels of row {batch.debit}"
        if len(labels) != len(counts):
            yield verdict(title, ["votes of another number of answers"])
            continue
        yield _seed_check(title, functools.partial(mechanism.draw, counts), labels)
        if not isinstance(mechanism, OutcomeLaw) or not batch.answered.any():
            continue
        leaders = counts[batch.answered].argmax(axis=1)
        law = mechanism.outcome_probabilities(counts[batch.answered])
        mean = float(law[np.arange(len(leaders)), leaders].mean())
        equal = int((np.array([one for one in labels if one is not None]) == leaders).sum())
        # Hoeffding 1956: the tail of a sum of coins is at most that of as many equal coins.
        tail = stats.binom.sf(equal - 1, len(leaders), mean)
        is_small = tail < FALSE_ALARM and equal > mean * len(leaders)
        found = (
            f"{equal} of {len(leaders)} labels have most votes, {mean * len(leaders):.1f} should"
        )
        blind = "noise a little too small, which pate audit mechanism finds"
        yield verdict(title, [found] if is_small else [], found, blind)


def _seed_check(title: str, draw: Callable[[Any], Any], released: Sequence[Any]) -> Check:
    """Draws again from small seeds what was released for some counts or sums."""
    from pate_tf.release.noise import SeededNoise

    title = f"{title} is from no small seed"
    again, half = [draw(SeededNoise(seed)) for seed in range(SEEDS)], len(released) // 2
    draws = [tuple(one.ravel() if isinstance(one, np.ndarray) else one.labels) for one in again]
    # Each half tells all seeds apart, so that a fresh draw equals one with negligible probability.
    if min(len({one[:half] for one in draws}), len({one[half:] for one in draws})) < SEEDS:
        return _skipped(title, "different seeds give equal releases here")
    problems = [f"seed {seed} gives it" for seed, one in enumerate(draws) if one == tuple(released)]
    blind = "larger seeds, other generators"
    return verdict(title, problems, f"none of 0 to {SEEDS - 1} gives it", blind)


def _sum_checks(run: _Run) -> Iterator[Check]:
    if not (run.sensitive / "feature_sums").exists():
        return
    from pate_tf.models.encoder import record_vectors
    from pate_tf.release.feature_sums import VECTORS, sums_of_records

    stored, arrays = run.sums, dict[str, Any]()
    with run.ledger() as ledger:
        if ledger is not None:
            ok = ledger.ensemble_digest == stored.digest
            problems = [] if ok else ["other sums than were charged"]
            yield verdict("sums", problems, "the ledger was opened for the stored sums")
    if stored.has_vectors:
        moments = stored.moments  # raises ValueError where vectors are others
        arrays = artifacts.read_arrays(run.sensitive / "feature_sums" / VECTORS)
        yield verdict("sums are those of the stored vectors", [], "the same, up to rounding")
        name = "moments are those of the pool"
        if run.pool is None:
            yield _skipped(name, "the public pool can't be read here")
        else:
            features = record_vectors(stored.features(run.pool.inputs), stored.summands.scale)
            expected = features.T @ features / len(features)
            ok = np.allclose(expected, moments, rtol=1e-6, atol=1e-9)
            yield verdict(name, [] if ok else ["others"], "the same, up to rounding")
    name = "sums are those of the records"
    if run.examples is None:
        yield _skipped(name, run.why_no_data)
    else:
        summands, examples = stored.summands, run.examples
        size = (len(examples), len(stored.sums.values))
        vectors = np.zeros(size, np.int16) if stored.has_vectors else None
        table = sums_of_records(examples, stored.encoder, summands, run.reporting, vectors=vectors)
        ok = np.array_equal(table, stored.table)
        if vectors is not None:
            ok &= np.array_equal(vectors, arrays["vectors"])
            ok &= np.array_equal(examples.labels, arrays["labels"])
        found = "sums, cluster counts and vectors are computed again, bit for bit"
        problems = [] if ok else ["sums or vectors of other records"]
        yield verdict(name, problems, found, "errors of the code that adds up")
    with run.ledger() as ledger:
        for row, numbers in () if ledger is None else _sums(ledger):
            mechanism: Any = charge_of(row)[0]
            clusters, title = mechanism.num_clusters, f"noise of the sums of row {row.sequence}"
            exact = [(stored.sums if clusters is None else stored.cluster_counts[clusters]).values]
            drawn = np.array(numbers).reshape(-1, *exact[0].shape)
            draw = functools.partial(mechanism.draw_sums, exact[0])
            yield _seed_check(title, draw, drawn[0].ravel().tolist())
            claimed = mechanism.standard_deviation
            for number in range(1, len(drawn)):  # each round follows from the noisy ones before
                exact.append(stored.residuals(drawn[:number], claimed))
            noise = (drawn - exact) / LATTICE
            found = f"standard deviation {noise.std():.4g}, claimed {claimed:.4g}"
            problems = [found] if any(is_too_small(one, claimed) for one in noise) else []
            yield verdict(title, problems, found, "noise of the right size that can be predicted")


# Private values in released files.


def _search_checks(run: _Run) -> Iterator[Check]:
    files = [path for path in run.paths("**/*") if path.is_file()]
    if not files:
        return
    data, text, kinds = PrivateBytes(), PrivateText(), "votes, sums, partition and teachers"
    if run.examples is not None:
        data.add_table(run.examples.inputs, "the private records")
        data.add_series(run.examples.labels, "the private labels")
        kinds = f"private records, their labels, {kinds}"
        if run.examples.owners is not None:
            text.add_table([[str(one) for one in run.examples.owners]], ())
    _add_private_file(run, data, text)
    for path in sorted(run.sensitive.rglob("*.np[zy]")):
        if not {"encoder", "audit"} & {*path.parts} and not path.is_symlink():
            is_one = path.suffix == ".npy"
            arrays = {"": artifacts.read_array(path)} if is_one else artifacts.read_arrays(path)
            for name, array in arrays.items():
                if not PUBLIC_ARRAYS.fullmatch(name):
                    data.add_series(array.ravel(), f"{path.name} {name}")
    numbers = _secret_numbers(run)
    problems: dict[str, list[str]] = {"array": [], "cell": [], "number": []}
    with run.reporting.progress_bar("searching released files", len(files), "file") as advance:
        for path in files:
            for content in contents(path):
                is_text = path.suffix in (".json", ".md", ".toml", ".html")
                digits = next((one for one in numbers if is_text and one.encode() in content), "")
                for kind, found in (
                    ("array", data.found_in(content)),
                    ("cell", text.found_in(content)),
                    ("number", numbers.get(digits)),
                ):
                    problems[kind] += [f"{path.relative_to(run.root)} holds {found}"] * bool(found)
            advance(1)
    yield verdict(
        "no private array is released",
        problems["array"],
        f"{data.number:,} windows of {kinds}, as far as they are here, are in no file as float32, "
        f"float64 or whole numbers",
        "values rounded, encoded or rearranged; rows of little information; records not read here",
    )
    name = "no private cell is released"
    found = f"{text.number:,} rows, columns and words of private cells are in no file of text"
    blind = "other spellings; words that the schema or the public file have, too"
    is_known = text.number > 0
    yield verdict(name, problems["cell"], found, blind) if is_known else _skipped(name, NO_TABLE)
    name, found = "no sensitive number is released", f"{len(numbers)} numbers are in no text"
    yield verdict(name, problems["number"], found, "a number of fewer than seven digits")


def _add_private_file(run: _Run, data: PrivateBytes, text: PrivateText) -> None:
    """Adds the cells of the private file, where it is a table that can be read here."""
    from pate_tf.data import tables
    from pate_tf.data.schema import read_schema

    files = None if run.source is None else run.source.files
    if files is None or files.private is None or not files.private.is_file():
        return
    form = tables.text_form(files.public, files.schema and read_schema(files.schema))
    columns = tables.read_table(files.private, form).fields
    public = {cell for one in tables.read_table(files.public, form).fields.values() for cell in one}
    schema = "" if files.schema is None else files.schema.read_text()
    public |= {cell for one in columns.values() for cell in set(one) if cell in schema}
    text.add_table(list(columns.values()), public)
    for name, cells in columns.items():
        with contextlib.suppress(ValueError):
            data.add_series(np.array(cells, np.float64), f"column {name} of the private file")


def _secret_numbers(run: _Run) -> dict[str, str]:
    """Returns sensitive numbers as text of seven digits or more, with the names of their keys.

    A number that is something else, too, is not looked for: a data-dependent epsilon may be the
    data-independent one.
    """
    numbers: list[tuple[str, str]] = []

    def add(value: Any, key: str) -> None:
        if isinstance(value, Mapping | list):
            for name, part in value.items() if isinstance(value, Mapping) else enumerate(value):
                add(part, f"{key}.{name}")
        elif isinstance(value, float) and len(repr(value).replace(".", "").lstrip("0")) >= 7:
            numbers.append((repr(value)[:9], key.strip(".")))

    for path in run.sensitive.rglob("*.json"):
        if "audit" not in path.parts:
            add(artifacts.read_json(path), "")
    public = {digits for digits, key in numbers if not SECRET_KEYS.search(key)}
    return {digits: key for digits, key in numbers if digits not in public}


CHECKS: Final[Mapping[str, Callable[[_Run], Iterator[Check]]]] = {
    "ledger": _ledger_checks,
    "released files": _file_checks,
    "released labels": _label_checks,
    "statement": _statement_checks,
    "versions": _version_checks,
    "report page": _page_check,
    "sensitive files": _mode_checks,
    "teachers": _teacher_checks,
    "feature sums": _sum_checks,
    "search": _search_checks,
}
