"""Verification of a run folder: released files against an allow-list, the ledger and the records.

Nothing is charged and nothing of the run is changed. SENSITIVE: what is found may depend on private
data, so a report lies below `sensitive/audit`.
"""

import contextlib
import dataclasses
import functools
import hmac
import math
import pathlib
import re
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pate_tf.accounting.charge import Charge, shares
from pate_tf.accounting.composition import smallest_epsilon
from pate_tf.accounting.conversions import LATTICE
from pate_tf.accounting.mechanisms.base import OutcomeLaw
from pate_tf.api.reporting import QUIET, Reporting
from pate_tf.api.run_folder import RunDescription, described_run, ensemble_folder
from pate_tf.audit.mechanism import NOT_CHECKED, PASSED, VIOLATION, Check, is_too_small
from pate_tf.audit.search import PrivateBytes, PrivateText, contents
from pate_tf.core import artifacts
from pate_tf.core.public import Pool
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.core.validation import IntArray
from pate_tf.ledger import Ledger, LedgerError
from pate_tf.ledger.chain import DEBITS, charge_of
from pate_tf.ledger.rollback_guard import RollbackGuard
from pate_tf.ledger.store import Store
from pate_tf.queries.labels import COST_FILE, LABELS_FILE
from pate_tf.statement.check import JSON_FILE, check_statement
from pate_tf.statement.privacy_statement import PrivacyStatement

# Statements, and the folder of the models that each is of.
STATEMENTS: Final = {JSON_FILE: "student", "shared_model_statement.json": "shared_model"}
PAGE: Final = "privacy_report.html"
LOGS: Final = r"logs(/(student|versions|train|validation|held_out|[1-9]\d*))*"
VERSION: Final = r"(student|shared_model)/[1-9]\d*/"
ALLOWED_FILES: Final = re.compile(
    r"labels\.(npz|json)|(privacy|shared_model)_statement\.(json|md)|schema\.toml|analysis\.json|"
    rf"encoder\.npz|{re.escape(PAGE)}|(epsilon_data_independent|cost_by_gap_\d+)\.png|"
    rf"({LOGS}/)?events\.out\.tfevents\.[\w.]+|"
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
OF_LEDGER: Final = re.compile(
    r"(epsilon|delta)_|.*ledger|sanitised|secure_noise|num_other|records_"
)
PUBLIC_ARRAYS: Final = re.compile(r"scale|groups|resolutions|centres_\d+|moments")
SECRET_KEYS: Final = re.compile(r"data_dependent|teacher_(balanced_)?accuracy|votes|gap")
FEWEST_LABELS: Final = 8
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
    >>> data = pate_tf.datasets.load("digits")
    >>> sums = pate_tf.FeatureSums(directory=folder / "audited", representation="raw")
    >>> student = pate_tf.Student("supervised", steps=20)
    >>> fitted = pate_tf.fit(
    ...     data, method="feature_sums", epsilon=4.0, delta=1e-5, source=sums, student=student)
    >>> published = fitted.publish(folder / "audited" / "released")
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
                checks.append(_verdict(name, "its files are read", [f"broken: {words}"]))
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
        self.directory = artifacts.RunDirectory(root)
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
        examples = getattr(self._data, "private", self._data)
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
        if (pool := getattr(self._data, "pool", None)) is not None:
            return pool
        with contextlib.suppress(ValueError, OSError):
            if self.source is not None and self.description is not None:
                public = self.source.load_public(self.reporting)
                return public.split(self.description.pool_size or public.dataset.pool_size).pool
        return None

    @functools.cached_property
    def sums(self) -> Any:
        """The stored feature sums; ValueError if they are broken."""
        from pate_tf.api.feature_sums import StoredSums

        return StoredSums(self.sensitive / "feature_sums")

    @functools.cached_property
    def ledger_folders(self) -> list[pathlib.Path]:
        """Where ledgers and accounts lie, below any folder of the run but `released/`."""
        paths = sorted(self.root.rglob(f"{Store.name}.sqlite3"))
        return [path.parent for path in paths if self.released not in path.parents]

    def ledger(self) -> contextlib.AbstractContextManager[Ledger | None]:
        """Returns the one ledger of labels; None where there is none."""
        is_there = (self.sensitive / f"{Store.name}.sqlite3").exists()
        return Ledger.read(self.sensitive) if is_there else contextlib.nullcontext()

    def versions(self, models: str) -> list[pathlib.Path]:
        """Returns the exported versions of a model, the newest last."""
        found = (self.released / models).glob("[0-9]*")
        return sorted((one for one in found if one.name.isdecimal()), key=lambda one: int(one.name))


@contextlib.contextmanager
def _read_store(folder: pathlib.Path) -> Iterator[Store]:
    with contextlib.closing(Store(folder, read_only=True)) as store:
        store.catch_up()
        yield store


def _verdict(
    name: str, how: str, problems: Sequence[str], passed: str = "", *, blind_spot: str = ""
) -> Check:
    """Returns a violation with the first of the problems, or that all is as it should be."""
    more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
    return Check(
        name=name,
        how=how,
        outcome=VIOLATION if problems else PASSED,
        found=f"{problems[0]}{more}" if problems else passed,
        blind_spot=blind_spot,
    )


def _skipped(name: str, why: str) -> Check:
    return Check(name=name, how="", outcome=NOT_CHECKED, found=why)


# The ledger.


def _ledger_checks(run: _Run) -> Iterator[Check]:
    models = [one for models in STATEMENTS.values() for one in run.versions(models)]
    is_of_labels = (run.released / LABELS_FILE).exists() or models
    made_here = [
        one for one in ("teachers", "feature_sums", "votes") if (run.sensitive / one).exists()
    ]
    if not run.ledger_folders:
        if is_of_labels and made_here:
            yield _verdict("ledger", "a run with releases has a ledger", ["the ledger is gone"])
        else:
            yield _skipped("ledger", "there is no ledger here")
    for folder in run.ledger_folders:
        place = f" of {folder.relative_to(run.root)}" if len(run.ledger_folders) > 1 else ""
        with _read_store(folder) as store:
            rows = store.history()
            yield _verdict(
                f"ledger{place}: chain",
                "every row is linked to those before it by its digest; answers are digested, too",
                [],
                f"{len(rows)} rows, all as they were written",
                blind_spot="rows rewritten together by somebody who may write to the ledger",
            )
            yield _verdict(
                f"ledger{place}: noise",
                "every charge notes where its noise came from",
                [
                    f"row {row.sequence} drew noise from a seed"
                    for row in rows
                    if row.kind in DEBITS and not row.details.get("secure_noise", True)
                ],
                "no seed was noted",
                blind_spot="a noise source that was replaced; see pate audit mechanism",
            )
            yield _registry_check(folder, store, f"ledger{place}: registry")


def _registry_check(folder: pathlib.Path, store: Store, name: str) -> Check:
    opened, rows = store.opened, store.history()
    subjects = {"ensemble_digest": "ensemble", "silo": "silo"}
    details: Mapping[str, Any] = {} if opened is None else opened.details
    key = next((key for key in subjects if key in details), None)
    if opened is None or key is None:
        return _skipped(name, "the registry notes no store of this kind")
    subject = (subjects[key], str(details[key]))
    guard = RollbackGuard(folder, subject, is_single=key == "silo")
    with contextlib.closing(guard):
        if not guard.is_kept:
            return _skipped(name, "this user has no registry of ledgers")
        gone = {one for row in rows if row.kind == "acknowledged" for one in row.details["missing"]}
        missing = guard.missing_from(opened, {row.digest: row.sequence for row in rows}, gone)
    return _verdict(
        name,
        "rows that the registry of this user has seen are looked for in the ledger",
        [] if missing is None else [missing.reason],
        "none is missing",
        blind_spot="what was written by another user or on another machine",
    )


def spending(root: pathlib.Path) -> list[dict[str, Any]]:
    """Returns for each charge its row, time, words and the epsilon spent by then, at its delta."""
    found: list[dict[str, Any]] = []
    for folder in _Run(root, None, None, QUIET).ledger_folders[:1]:
        with _read_store(folder) as store:
            charges: Counter[Charge] = Counter()
            for row in store.history():
                if row.kind in DEBITS:
                    charge, number = charge_of(row)
                    charges[charge] += number
                    epsilon = smallest_epsilon(charges, store.delta)[0]
                    words = {
                        "row": row.sequence,
                        "time": row.time,
                        "charge": charge.several(number),
                    }
                    found.append({**words, "epsilon": epsilon})
    return found


# Released files.


def _file_checks(run: _Run) -> Iterator[Check]:
    problems, number = [], 0
    if run.released.is_symlink():
        problems.append("released/ is a link")
    for path in sorted(run.released.rglob("*")):
        name = path.relative_to(run.released).as_posix()
        if path.is_symlink():
            problems.append(f"{name} is a link")
        elif path.is_dir():
            if not ALLOWED_FOLDERS.fullmatch(name):
                problems.append(f"{name}/ is a folder of no known name")
        elif not path.is_file() or not ALLOWED_FILES.fullmatch(name):
            problems.append(f"{name} is of no known name")
        elif not _is_of_its_kind(path):
            problems.append(f"{name} does not hold what its name says")
        number += 1
    if not number and not problems:
        yield _skipped("released files", "nothing was released yet")
        return
    yield _verdict(
        "released files",
        "every file and folder has a name of the allow-list and the format of its name; none is a "
        "link",
        problems,
        f"{number} files and folders of known names",
        blind_spot="values within a picture, a log of TensorBoard or analysis.json",
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
    path = run.released / LABELS_FILE
    if not path.exists() and not path.with_name(COST_FILE).exists():
        yield _skipped("released labels", "no labels were saved")
        return
    arrays, fields = artifacts.read_arrays(path), artifacts.read_json(path.with_name(COST_FILE))
    sizes, problems = {"q": fields["num_queries"], "c": fields["num_classes"]}, []
    for name, array in arrays.items():
        kind, axes = ALLOWED_ARRAYS.get(name, ("", ""))
        if not kind:
            problems.append(f"{name} is an array of no known name")
        elif (
            array.dtype.kind != kind
            or array.ndim != len(axes)
            or any(
                sizes.setdefault(axis, size) != size
                for axis, size in zip(axes, array.shape, strict=True)
            )
        ):
            problems.append(f"{name} is of another type or shape")
    yield _verdict(
        "released labels: arrays",
        "every array of labels.npz has a known name, its type and its shape",
        problems,
        f"{len(arrays)} arrays",
    )
    with run.ledger() as ledger:
        if ledger is None:
            yield _skipped("released labels: seal", "no ledger here charged them")
            return
        yield from _sealed_labels(ledger, arrays, fields)


def _sealed_labels(
    ledger: Ledger, arrays: Mapping[str, Any], fields: Mapping[str, Any]
) -> Iterator[Check]:
    record = {name: value for name, value in fields.items() if name != "seal"}
    digest = artifacts.digest_arrays(arrays[name] for name in sorted(arrays))
    is_sealed = hmac.compare_digest(str(fields.get("seal")), ledger.recognise(record))
    yield _verdict(
        "released labels: seal",
        "all arrays and facts of the labels are digested; the ledger's seal is made again",
        [] if is_sealed and record.get("labels_digest") == digest else ["they were changed"],
        "as the ledger sealed them",
        blind_spot="labels sealed by somebody who may write to the ledger",
    )
    problems = []
    if "noisy_sums" in arrays:
        if not any(np.array_equal(arrays["noisy_sums"].ravel(), sums) for _, sums in _sums(ledger)):
            problems.append("noisy sums that the ledger does not hold")
    else:
        answers = _answers(ledger)
        known = [label for row in fields["ledger_rows"] for label in answers.get(row, ())]
        charged, labels = [one for one in known if one is not None], arrays["labels"].tolist()
        # Equal queries have one answer, and earlier answers are given again.
        if labels != charged and not (set(labels) <= set(charged) and len(labels) != len(charged)):
            problems.append("labels that the ledger does not hold")
    counts, weights = arrays.get("noisy_counts"), arrays.get("weights")
    if counts is not None and (weights is None or not np.array_equal(weights, shares(counts))):
        problems.append("weights that do not follow from noisy counts")
    yield _verdict(
        "released labels: answers",
        "labels or noisy sums are compared with the ledger's answers, weights computed from counts",
        problems,
        "the ledger's",
        blind_spot="labels inferred from these, which the seal alone covers",
    )


def _sums(ledger: Ledger) -> Iterator[tuple[Any, tuple[int, ...]]]:
    """Yields each row that charged sums, with the numbers of all rounds that were released."""
    from pate_tf.aggregation.feature_sums import sums_in_ledger

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
                yield _verdict(title, "a model has a statement", [f"{name} is gone"])
            elif name == JSON_FILE and not (run.released / "shared_model_statement.json").exists():
                yield _skipped(title, "no student was published here yet")
            continue
        fields, problems = artifacts.read_json(path), []
        with contextlib.ExitStack() as stack:
            stores = [stack.enter_context(_read_store(one)) for one in run.ledger_folders]
            try:
                statement = check_statement(fields, *stores)
            except ValueError as error:
                yield _verdict(
                    title, "numbers and words are compared with the ledger", [str(error)]
                )
                continue
            page = path.with_suffix(".md")
            if not page.exists() or page.read_text() != statement.to_markdown():
                problems.append(f"{page.name} is not its page")
            for version in versions:
                copy = artifacts.read_json(version / "assets.extra" / JSON_FILE)
                PrivacyStatement.from_dict(copy).check(stores)
                if version is versions[-1]:
                    problems += _differences(fields, copy)
        if not versions and statement.student_digest:
            problems.append("it is of a model that is not here")
        yield _verdict(
            title,
            "numbers and words are compared with the ledger, the page and the copy of the newest "
            "version with the statement, copies of earlier versions with the ledger",
            problems,
            "they agree" if stores else "they agree; no ledger or account of theirs lies here",
            blind_spot="other releases of the same records",
        )
        yield _facts_check(run, statement, title)
        yield from _version_checks(run, models, statement)


def _differences(fields: Mapping[str, Any], copy: Mapping[str, Any]) -> list[str]:
    """Returns what of a statement differs from the travelling copy and may not.

    A release of the data-dependent epsilon brings the statement up to date, and not the copy.
    """
    heads = [one.get("ledger_head") for one in (fields, copy)]
    is_later = None not in heads and heads[0][0] > heads[1][0]
    kind = PrivacyStatement.from_dict(fields)
    names = {field.name for field in dataclasses.fields(kind)} if is_later else {*fields, *copy}
    return [
        f"its {name} differs from the newest version's copy"
        for name in sorted(names)
        if fields.get(name) != copy.get(name) and not (is_later and OF_LEDGER.match(name))
    ]


def _facts_check(run: _Run, statement: PrivacyStatement, title: str) -> Check:
    """Compares what a statement says of the records with what the folder knows of them."""
    due: dict[str, Any] = {}
    if run.description is not None:
        due |= {"dataset": run.description.data_name, "unit": run.description.unit}
        due["num_teachers"] = run.description.num_teachers
    if (run.sensitive / "feature_sums").exists():
        due |= {"unit": run.sums.unit, "num_records": run.sums.records.num_records}
    elif (run.directory.teachers / "partition.npz").exists():
        config = artifacts.read_json(run.directory.teachers / "config.json")
        due |= {"unit": config["unit"], "num_teachers": config["num_teachers"]}
        due["num_records"] = len(_assignment(run))
    if due.get("unit") == "owner":
        due["num_records"] = None  # private
    problems = [
        f"it says {name} {getattr(statement, name)}, the folder {value}"
        for name, value in due.items()
        if hasattr(statement, name) and getattr(statement, name) != value
    ]
    name, how = f"{title}: facts", "data set, unit and numbers are compared with sensitive/"
    return _verdict(name, how, problems, "the same") if due else _skipped(name, "nothing is known")


def _version_checks(run: _Run, models: str, statement: PrivacyStatement) -> Iterator[Check]:
    from pate_tf.serving.served import DIGESTS, EXTRA, SCHEMA, file_digests, served_digest

    versions, problems, unsealed = run.versions(models), [], False
    with run.ledger() as ledger:
        for version in versions:
            manifest = artifacts.read_json(version / EXTRA / DIGESTS)
            seal, name = manifest.pop("seal"), f"{models}/{version.name}"
            files, due = file_digests(version), manifest["files"]
            changed = sorted(one for one in {*files, *due} if files.get(one) != due.get(one))
            problems += [f"{name}/{one} is not what was exported" for one in changed]
            if (manifest["model"], manifest["version"]) != (models, int(version.name)):
                problems.append(f"{name} was exported as {manifest['model']}/{manifest['version']}")
            if ledger is None:
                unsealed = True
            elif not hmac.compare_digest(str(seal), ledger.recognise(manifest)):
                problems.append(f"{name}: the ledger did not seal its manifest")
    if versions and not problems and served_digest(versions[-1]) != statement.student_digest:
        problems.append("the weights of the newest version are not the statement's")
    if versions:
        copies = [one / SCHEMA for one in (run.released, versions[-1] / EXTRA)]
        texts = [one.read_bytes() if one.exists() else None for one in copies]
        if models == "student" and texts[0] != texts[1]:
            problems.append("schema.toml is not the newest version's")
        problems += _dataset_problems(run, versions[-1])
    yield _verdict(
        f"versions of {models}",
        "SHA-256 of every file of every version is compared with its manifest, "
        + ("which no ledger here sealed" if unsealed else "the manifest with the ledger's seal")
        + "; weights of the newest with the statement",
        problems,
        f"{len(versions)} versions as they were exported",
        blind_spot="whether a student learned from anything but the released labels",
    )


def _dataset_problems(run: _Run, version: pathlib.Path) -> list[str]:
    """Compares classes, shapes and ranges of a version with those of the records."""
    told = artifacts.read_json(version / "assets.extra" / "dataset.json")
    for path in ("feature_sums/description.json", "teachers/ensemble/description.json"):
        if (run.sensitive / path).exists():
            known = artifacts.read_json(run.sensitive / path).get("dataset", told)
            return [] if known == told else ["dataset.json is of other data than the records"]
    return []


def _page_check(run: _Run) -> Iterator[Check]:
    """Makes the page for the signer again, with the date and audits that it says."""
    from pate_tf.audit.report import as_made, report_page

    if (run.released / PAGE).exists():
        text = (run.released / PAGE).read_text()
        is_same = report_page(run.root, **as_made(text)) == text
        problems = [] if is_same else [f"{PAGE} is not this run's page; make it again"]
        yield _verdict("report page", "it is made again", problems, "the same")


# The sensitive half.


def _mode_checks(run: _Run) -> Iterator[Check]:
    problems = []
    for path in (run.sensitive, *sorted(run.sensitive.rglob("*"))):
        if path.is_symlink():
            problems.append(f"{path.relative_to(run.root)} is a link")
        elif path.exists() and path.stat().st_mode & 0o077:
            problems.append(f"{path.relative_to(run.root)} is open to other users")
    if run.sensitive.exists():
        how = "mode of sensitive/ and of every file and folder below it"
        yield _verdict("sensitive files", how, problems, "for their owner alone")


# Teachers and their votes.


def _assignment(run: _Run) -> IntArray:
    arrays = artifacts.read_arrays(run.directory.teachers / "partition.npz")
    assignment: IntArray = arrays["assignment"]
    return assignment


def _teacher_checks(run: _Run) -> Iterator[Check]:
    from pate_tf.teachers.kinds import load_ensemble

    if not (run.directory.teachers / "partition.npz").exists():
        return
    assignment, config = (
        _assignment(run),
        artifacts.read_json(run.directory.teachers / "config.json"),
    )
    number, problems = int(config["num_teachers"]), []
    if assignment.ndim != 1 or assignment.dtype.kind not in "iu":
        problems.append("another type or shape")
    elif assignment.size and not 0 <= assignment.min() <= assignment.max() < number:
        problems.append("a record without a teacher")
    yield _verdict(
        "partition: one teacher for each record",
        "the teacher of every record is read from the stored partition",
        problems,
        f"{number} teachers",
        blind_spot="records that occur twice; training on other records than the partition's",
    )
    if run.examples is None:
        yield _skipped("partition follows from the records", run.why_no_data)
    else:
        yield _partition_check(run.examples, assignment, config)
    if not ensemble_folder(run.directory).exists():
        return
    ensemble = load_ensemble(ensemble_folder(run.directory))
    with run.ledger() as ledger:
        if ledger is None:
            return
        is_charged = ledger.ensemble_digest == ensemble.digest
        yield _verdict(
            "ensemble is the ledger's",
            "the stored ensemble is digested and compared with what the ledger was opened for",
            [] if is_charged else ["another ensemble than was charged"],
            "the same",
            blind_spot="how the teachers were trained",
        )
        yield from _vote_checks(run, ledger, ensemble)


def _partition_check(
    examples: PrivateExamples, assignment: IntArray, config: Mapping[str, Any]
) -> Check:
    from pate_tf.api.teacher_training import shares_of

    name, how = "partition follows from the records", "records are dealt out again by owner or seed"
    if len(examples) != len(assignment):
        return _verdict(name, how, ["a partition of another number of records"])
    if examples.owners is not None:
        _, first, place = np.unique(examples.owners, return_index=True, return_inverse=True)
        if (assignment[first][place] != assignment).any():
            return _verdict(name, how, ["records of one owner have two teachers"])
    again = shares_of(examples, num_teachers=int(config["num_teachers"]), seed=int(config["seed"]))
    if np.array_equal(again.assignment, assignment):
        return _verdict(name, how, [], "the same partition")
    found = "another partition than this rule gives, as from --partition_file"
    return Check(name=name, how=how, outcome="warning", found=found)


def _vote_checks(run: _Run, ledger: Ledger, ensemble: Any) -> Iterator[Check]:
    """Asks the teachers again, and compares released labels with the law of their mechanism."""
    from scipy import stats

    from pate_tf.aggregation.labeller import stored_counts
    from pate_tf.queries.labels import asked_inputs

    batches, answers = list(stored_counts(ledger)), _answers(ledger)
    path, name = run.released / LABELS_FILE, "stored votes are the teachers'"
    if batches and path.exists() and run.pool is not None:
        arrays = artifacts.read_arrays(path)
        rows = artifacts.read_json(path.with_name(COST_FILE))["ledger_rows"]
        stored = np.concatenate([one.counts.values for one in batches if one.debit in rows])
        queries = asked_inputs(run.pool, arrays["queries"], arrays.get("neighbours"))
        again = ensemble.group_counts if "neighbours" in arrays else ensemble.counts
        votes = {tuple(row) for row in again(queries).values.tolist()}
        others = {tuple(row) for row in stored.tolist()} - votes
        how = "the ensemble votes again on the queries of the released labels"
        problems = ["votes that the teachers do not give"] if others else []
        blind = "votes of other releases, and which query each is of"
        yield _verdict(name, how, problems, "the same", blind_spot=blind)
    elif batches:
        yield _skipped(name, "the pool or the labels can't be read here")
    for batch in batches:
        mechanism, counts = batch.mechanism, batch.counts.values
        labels, title = answers.get(batch.debit, []), f"noise of the labels of row {batch.debit}"
        if len(labels) != len(counts):
            yield _verdict(title, "votes are compared with answers", ["another number of votes"])
            continue
        if len(labels) >= FEWEST_LABELS and len(set(labels)) > 1:
            yield _seed_check(title, lambda noise: mechanism.draw(counts, noise).labels, labels)
        if not isinstance(mechanism, OutcomeLaw) or not batch.answered.any():
            continue
        leaders = counts[batch.answered].argmax(axis=1)
        law = mechanism.outcome_probabilities(counts[batch.answered])
        mean = float(law[np.arange(len(leaders)), leaders].mean())
        released = np.array([label for label in labels if label is not None])
        equal = int((released == leaders).sum())
        # Hoeffding 1956: the tail of a sum of coins is at most that of as many equal coins.
        tail = stats.binom.sf(equal - 1, len(leaders), mean)
        is_small = tail < FALSE_ALARM and equal > mean * len(leaders)
        words = (
            f"{equal} of {len(leaders)} are the class with most votes, {mean * len(leaders):.1f} "
        )
        yield _verdict(
            title,
            "labels are compared with stored votes; one-sided binomial test at 1e-6",
            [f"{words}are expected"] if is_small else [],
            f"{words}are expected",
            blind_spot="noise a little too small, which pate audit mechanism finds",
        )


def _seed_check(title: str, draw: Callable[[Any], Any], released: Sequence[Any]) -> Check:
    """Draws again from small seeds what was released for some counts or sums."""
    from pate_tf.aggregation.noise import SeededNoise

    title = f"{title} is from no small seed"
    draws, half = [tuple(draw(SeededNoise(seed))) for seed in range(SEEDS)], len(released) // 2
    # Each half tells all seeds apart, so that a fresh draw equals one with negligible probability.
    if min(len({one[:half] for one in draws}), len({one[half:] for one in draws})) < SEEDS:
        return _skipped(title, "different seeds give equal releases here")
    return _verdict(
        title,
        f"the release is drawn again from the seeds 0 to {SEEDS - 1}",
        [f"seed {seed} gives it" for seed, one in enumerate(draws) if one == tuple(released)],
        "none gives it",
        blind_spot="larger seeds, other generators",
    )


# Feature sums.


def _sum_checks(run: _Run) -> Iterator[Check]:
    if not (run.sensitive / "feature_sums").exists():
        return
    from pate_tf.api.feature_sums import VECTORS, Summands, sums_of_records
    from pate_tf.models.encoder import record_vectors

    stored, arrays = run.sums, dict[str, Any]()
    if stored.has_vectors:
        name, how = "sums are those of the stored vectors", "stored vectors are added up again"
        try:
            stored.check_vectors()
        except ValueError as error:
            yield _verdict(name, how, [str(error)])
            return
        yield _verdict(name, how, [], "the same, up to rounding")
        arrays = artifacts.read_arrays(run.sensitive / "feature_sums" / VECTORS)
        name = "moments are those of the pool"
        if run.pool is None:
            yield _skipped(name, "the public pool can't be read here")
        else:
            features = record_vectors(stored.features(run.pool.inputs), stored.scale)
            moments = features.T @ features / len(features)
            is_same = np.allclose(moments, arrays["moments"], rtol=1e-6, atol=1e-9)
            problems = [] if is_same else ["moments that the pool does not give"]
            yield _verdict(name, "they are computed again", problems, "the same, up to rounding")
    name = "sums are those of the records"
    if run.examples is None:
        yield _skipped(name, run.why_no_data)
    else:
        dataset, examples = stored.dataset, run.examples
        summands = Summands(dataset.num_classes, stored.scale, stored.groups, stored.centres)
        width = len(stored.sums.values)
        vectors = np.zeros((len(examples), width), np.int16) if stored.has_vectors else None
        table = sums_of_records(examples, stored.encoder, summands, run.reporting, vectors=vectors)
        problems = [] if np.array_equal(table, stored.table) else ["sums of other records"]
        if vectors is not None and not (
            np.array_equal(vectors, arrays["vectors"])
            and np.array_equal(examples.labels, arrays["labels"])
        ):
            problems.append("vectors of other records")
        how = "vectors, sums and cluster counts of the records are computed again, bit for bit"
        yield _verdict(
            name, how, problems, "the same", blind_spot="errors of the code that adds up"
        )
    with run.ledger() as ledger:
        if ledger is not None:
            is_charged = ledger.ensemble_digest == stored.digest
            how = "the stored sums are digested and compared with what the ledger was opened for"
            problems = [] if is_charged else ["other sums than were charged"]
            yield _verdict("sums are the ledger's", how, problems, "the same")
            yield from _noise_of_sums(ledger, stored)


def _noise_of_sums(ledger: Ledger, stored: Any) -> Iterator[Check]:
    for row, numbers in _sums(ledger):
        mechanism: Any = charge_of(row)[0]
        clusters = mechanism.num_clusters
        sums = stored.sums if clusters is None else stored.cluster_counts[clusters]
        exact, title = [sums.values], f"noise of the sums of row {row.sequence}"
        drawn = np.array(numbers).reshape(-1, *sums.values.shape)
        first = drawn[0].ravel().tolist()
        yield _seed_check(
            title, lambda noise: mechanism.draw_sums(sums.values, noise).ravel(), first
        )
        claimed = mechanism.standard_deviation
        for number in range(1, len(drawn)):  # each round follows from the noisy ones before
            exact.append(stored.residuals(drawn[:number], claimed))
        noise = (drawn - exact) / LATTICE
        words = f"standard deviation {noise.std():.4g}, claimed {claimed:.4g}"
        yield _verdict(
            title,
            "released sums less the stored ones, of every round; their variance is tested at 1e-6",
            [words] if any(is_too_small(one, claimed) for one in noise) else [],
            words,
            blind_spot="noise of the right size that somebody can predict",
        )


# Private values in released files.


def _search_checks(run: _Run) -> Iterator[Check]:
    files = [one for one in sorted(run.released.rglob("*")) if one.is_file()]
    if not files:
        return
    data, text, kinds = PrivateBytes(), PrivateText(), "votes, sums, partition and teachers"
    if run.examples is None:
        yield _skipped("no private record is released", run.why_no_data)
    else:
        kinds = f"private records, their labels, {kinds}"
        data.add_table(run.examples.inputs, "the private records")
        data.add_series(run.examples.labels, "the private labels")
        if run.examples.owners is not None:
            text.add_table([[str(one) for one in run.examples.owners]], ())
    _add_private_file(run, data, text)
    for path in sorted(run.sensitive.rglob("*.np[zy]")):
        if {"encoder", "audit"} & {*path.parts} or path.is_symlink():
            continue
        with contextlib.suppress(ValueError):
            is_one = path.suffix == ".npy"
            arrays = {"": artifacts.read_array(path)} if is_one else artifacts.read_arrays(path)
            for name, array in arrays.items():
                if not PUBLIC_ARRAYS.fullmatch(name):
                    data.add_series(array.ravel(), f"{path.name} {name}")
    numbers = _secret_numbers(run)
    problems: dict[str, list[str]] = {"bytes": [], "text": [], "number": []}
    with run.reporting.progress_bar("searching released files", len(files), "file") as advance:
        for path in files:
            name = path.relative_to(run.root)
            for content in contents(path):
                for kind, found in (
                    ("bytes", data.found_in(content)),
                    ("text", text.found_in(content)),
                    ("number", _number_in(numbers, path, content)),
                ):
                    problems[kind] += [f"{name} holds {found}"] if found else []
            advance(1)
    for title, kind, how, blind in (
        (
            "no private array is released",
            "bytes",
            f"{data.number:,} windows of {kinds}, as far as they are there, are looked for as "
            f"float32, float64 and whole numbers",
            "values that were rounded, encoded or rearranged; rows with little information",
        ),
        (
            "no private cell is released",
            "text",
            f"{text.number:,} rows, columns and words of the private file are looked for as text",
            "images; other spellings; words that the schema or the public file has, too",
        ),
        (
            "no sensitive number is released",
            "number",
            f"{len(numbers)} numbers (data-dependent costs, accuracies of teachers) are looked for",
            "a number that was rounded to fewer than seven digits",
        ),
    ):
        number = {"bytes": data.number, "text": text.number, "number": 1}[kind]
        if number:
            yield _verdict(title, how, problems[kind], "none is", blind_spot=blind)
        else:
            yield _skipped(title, "no private table of text can be read here")


def _add_private_file(run: _Run, data: PrivateBytes, text: PrivateText) -> None:
    """Adds the cells of the private file, where it is a table that can be read here."""
    from pate_tf.audit.search import TOKEN
    from pate_tf.data import tables
    from pate_tf.data.schema import read_schema

    files = None if run.source is None else run.source.files
    if files is None or files.private is None or not files.private.is_file():
        return
    schema = None if files.schema is None else read_schema(files.schema)
    form = tables.text_form(files.public, schema)
    columns = tables.read_table(files.private, form).fields
    public = {cell for one in tables.read_table(files.public, form).fields.values() for cell in one}
    known = "" if files.schema is None else files.schema.read_text()
    words = {cell for one in columns.values() for cell in set(one) if cell in known}
    text.add_table(list(columns.values()), public | words | {*TOKEN.findall(known)})
    numbers = []
    for cells in columns.values():
        with contextlib.suppress(ValueError):
            numbers.append(np.array(cells, np.float64))
    if numbers:
        data.add_table(np.stack(numbers, axis=1), "the private file")


def _secret_numbers(run: _Run) -> dict[str, str]:
    """Returns sensitive numbers as text of seven digits, with the names of their keys.

    A number that is something else, too, is not looked for: a data-dependent epsilon may be the
    data-independent one.
    """
    numbers: list[tuple[str, str]] = []

    def add(value: Any, key: str) -> None:
        if isinstance(value, Mapping):
            for name, part in value.items():
                add(part, f"{key}.{name}" if key else str(name))
        elif isinstance(value, list):
            for part in value:
                add(part, key)
        elif isinstance(value, float) and math.isfinite(value):
            digits = repr(value)
            if len(digits.replace(".", "").lstrip("0")) >= 7:
                numbers.append((digits[:9], key))

    for path in run.sensitive.rglob("*.json"):
        if "audit" not in path.parts:
            with contextlib.suppress(ValueError):
                add(artifacts.read_json(path), "")
    public = {digits for digits, key in numbers if not SECRET_KEYS.search(key)}
    return {digits: key for digits, key in numbers if digits not in public}


def _number_in(numbers: Mapping[str, str], path: pathlib.Path, content: bytes) -> str | None:
    if path.suffix not in (".json", ".md", ".toml", ".html"):
        return None
    return next((key for digits, key in numbers.items() if digits.encode() in content), None)


CHECKS: Final[Mapping[str, Callable[[_Run], Iterator[Check]]]] = {
    "ledger": _ledger_checks,
    "released files": _file_checks,
    "released labels": _label_checks,
    "statement": _statement_checks,
    "report page": _page_check,
    "sensitive files": _mode_checks,
    "teachers": _teacher_checks,
    "feature sums": _sum_checks,
    "search": _search_checks,
}
