"""A whole silo: its folder, its teacher, and its work for a coordinator.

The teacher is brought along, or trained on the silo's own records. What answers stays small: a
random forest is trained in a process of its own and walked by NumPy, so that a silo needs neither
TensorFlow nor scikit-learn while it serves. Every other model brings what it needs.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pate_tf.api.data import read_records
from pate_tf.core import artifacts
from pate_tf.core.dataset import Dataset
from pate_tf.core.record_set import RecordSet
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.core.settings import Settings, setting
from pate_tf.data import catalogue
from pate_tf.data.named_function import call_function, is_named_function
from pate_tf.models.forest import RANDOM_FOREST, Forest, WalkedForest
from pate_tf.net.credentials import COORDINATOR, TlsFiles
from pate_tf.silos.clients import SiloConnection
from pate_tf.silos.policy import Policy
from pate_tf.silos.silo import Silo
from pate_tf.silos.teachers import OwnTeacher, load_teacher
from pate_tf.teachers.voters import records_in, store_records

if TYPE_CHECKING:
    from pate_tf.silos.secure.opening import PartySealer

POLICY = "policy.toml"
CLASSIFIER, TRAINED = "teacher.npz", "teacher"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TeacherRun(Settings):
    """Which teacher a silo has."""

    dataset: str = setting("digits", help="Data set, as the coordinator has it: shapes, classes.")
    data_dir: pathlib.Path | None = setting(
        None,
        help="Where the data set lies. Of it a silo needs public samples, and only for a model on "
        "features of them. Default: TensorFlow Datasets' own folder.",
    )
    teacher: str | None = setting(
        None,
        help="A trained teacher: a SavedModel, a .keras or .skops file, or module:function, whose "
        "function takes the Dataset and returns one: a classifier of scikit-learn, a Keras model, "
        "or a function from inputs to labels. Default: one is trained on --data.",
    )
    records: pathlib.Path | None = setting(
        None, flag="data", help="A .npz file of inputs and labels to train a teacher on."
    )
    model: str = setting(
        RANDOM_FOREST,
        help="What is trained, as by train_teachers.py: random_forest, a Keras architecture, ridge "
        "on features of public samples, or module:function.",
    )
    seed: int = setting(0, least=0, most=2**31 - 1, help="Fixes the teacher's training.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SiloRun(Settings):
    """What a silo needs to work."""

    folder: pathlib.Path = setting(
        flag="silo_dir", help="Folder of the silo: policy.toml, sensitive account and teacher."
    )
    certificates: pathlib.Path = setting(
        pathlib.Path("certificates"),
        help="Folder with authority.pem, and NAME.pem and NAME.key of the silo.",
    )
    parties: pathlib.Path | None = setting(
        None, help="The list of parties, for secure aggregation."
    )
    coordinator: str | None = setting(
        None, help="Address of the coordinator, which must be the policy's. Default: that."
    )
    coordinator_name: str = setting(
        COORDINATOR, advanced=True, help="Name in the coordinator's certificate."
    )
    epsilon_budget: float | None = setting(
        None,
        above=0.0,
        help="For everything that the silo ever answers, at most the policy's. Default: that.",
    )
    acknowledge_reset: bool = setting(
        False,
        flag="reset_account_i_understand",
        help="Go on although an earlier account of this silo, or later rows of it, are gone; the "
        "account says so for ever, and what is known of what was spent is charged again.",
    )
    teacher: TeacherRun


def initialise(folder: pathlib.Path, policy: Policy) -> pathlib.Path:
    """Makes a silo's folder with its policy, and returns the policy's file.

    Raises:
      ValueError: if there is a policy already.
      OSError: if it can't be written.
    """
    path = folder / POLICY
    if path.exists():
        raise ValueError(f"folder: expected one without {POLICY}, got {path}: edit it instead")
    artifacts.make_sensitive_folder(folder / artifacts.SENSITIVE)
    policy.write(path)
    return path


def share_out(folder: pathlib.Path, names: Sequence[str], *, dataset: str = "digits") -> None:
    """Deals private records of a data set out in equal parts among silos of a simulation.

    They go to `FOLDER/NAME/sensitive/records.npz`.

    Args:
      folder: of all silos.
      names: of the silos.
      dataset: name that `data.catalogue` knows.

    Raises:
      ValueError: if there is no such data set.
      OSError: if they can't be written.
    """
    private = catalogue.load_private(dataset)
    parts = np.array_split(np.arange(len(private)), len(names))
    for name, rows in zip(names, parts, strict=True):
        own = artifacts.make_sensitive_folder(folder / name / artifacts.SENSITIVE)
        records = {"inputs": private.inputs[rows], "labels": private.labels[rows]}
        artifacts.write_arrays(own / "records.npz", records, private=True)


def serve(
    run: SiloRun,
    *,
    until: Callable[[], bool] = lambda: False,
    on_event: Callable[[str], None] = lambda event: None,
) -> None:
    """Works until the process is stopped.

    Raises:
      ValueError: if policy, teacher and coordinator do not fit each other.
      PermissionError: if the coordinator doesn't know the silo.
      LedgerError: if the account can't be used.
      OSError: if a file can't be read.
    """
    policy = policy_in_force(run)
    sealer = None if run.parties is None else _sealer(run.parties)
    teacher = make_teacher(run.teacher, _sensitive(run))
    on_event(f"{policy.silo}: the teacher is ready")
    connection = SiloConnection(
        policy.coordinator,
        files=TlsFiles.of(run.certificates, policy.silo),
        coordinator=run.coordinator_name,
    )
    with (
        connection,
        Silo(
            policy,
            teacher,
            folder=_sensitive(run),
            sealer=sealer,
            records=known_records(run.teacher, _sensitive(run)),
            acknowledge_reset=run.acknowledge_reset,
        ) as silo,
    ):
        on_event(f"{policy.silo} dials {policy.coordinator}")
        silo.serve(
            connection, until=until, on_event=lambda event: on_event(f"{silo.name}: {event}")
        )


def policy_in_force(run: SiloRun) -> Policy:
    """Returns the policy's file, with the budget that was asked for if that is tighter.

    The account records every budget in force, so that a run without the tighter one counts as a
    raise of the budget.

    Raises:
      ValueError: if the file holds no policy, or the run goes beyond it.
      OSError: if it can't be read.
    """
    policy = Policy.read(run.folder / POLICY)
    if run.coordinator not in (None, policy.coordinator):
        raise ValueError(
            f"coordinator: expected {policy.coordinator}, which the policy allows, got "
            f"{run.coordinator}"
        )
    if run.epsilon_budget is None:
        return policy
    if run.epsilon_budget > policy.epsilon_budget:
        raise ValueError(
            f"epsilon_budget: expected at most {policy.epsilon_budget:g}, which the policy allows, "
            f"got {run.epsilon_budget:g}"
        )
    return dataclasses.replace(policy, epsilon_budget=run.epsilon_budget)


def _sealer(path: pathlib.Path) -> "PartySealer":
    # `cryptography` comes with it, which a silo that randomises its own votes does not need.
    from pate_tf.silos.secure.keys import read_parties
    from pate_tf.silos.secure.opening import PartySealer

    return PartySealer(read_parties(path))


def _sensitive(run: SiloRun) -> pathlib.Path:
    return artifacts.make_sensitive_folder(run.folder / artifacts.SENSITIVE)


# The silo's teacher.


def make_teacher(run: TeacherRun, folder: pathlib.Path) -> OwnTeacher:
    """Returns the silo's teacher; one that was trained before is taken up again.

    Args:
      run: which one.
      folder: sensitive; what is trained is stored there.

    Raises:
      ValueError: if there is neither a teacher nor records, or they do not fit the data set.
      OSError: if a file can't be read.
    """
    dataset = catalogue.load_dataset(run.dataset, data_dir=run.data_dir)
    facts: dict[str, Any] = {
        "num_classes": dataset.num_classes,
        "input_shape": dataset.input_shape,
        "input_type": dataset.input_type,
    }
    if (run.teacher is None) == (run.records is None):
        raise ValueError("teacher: expected a teacher or records to train one on, got both or none")
    if run.teacher is None:
        return OwnTeacher(_trained(run, folder, dataset), **facts)
    if is_named_function(run.teacher) and not pathlib.Path(run.teacher).exists():
        return OwnTeacher(call_function(run.teacher, dataset, flag="teacher"), **facts)
    return load_teacher(pathlib.Path(run.teacher), **facts)


def known_records(run: TeacherRun, folder: pathlib.Path) -> RecordSet | None:
    """SENSITIVE: returns what the teacher of `make_teacher` learnt from; None if it was given.

    Raises ValueError if what was stored is broken.
    """
    return None if run.records is None else records_in(folder / TRAINED)


def _trained(run: TeacherRun, folder: pathlib.Path, dataset: Dataset) -> Any:
    stored = folder / CLASSIFIER
    if stored.exists():
        arrays = artifacts.read_arrays(stored)
        return _from_arrays([arrays[f"part_{place}"] for place in range(len(arrays))])
    records = read_records(run.records or pathlib.Path(), dataset)
    store_records(folder, records.inputs)
    if run.model != RANDOM_FOREST and not _is_classifier(run.model, dataset):
        return _trained_single_teacher(run, folder / TRAINED, records)
    found = _fitted_elsewhere(run.model, records, run.seed)
    parts = {f"part_{place}": array for place, array in enumerate(found)}
    artifacts.write_arrays(stored, parts, private=True)
    return _from_arrays(found)


def _is_classifier(model: str, dataset: Dataset) -> bool:
    from pate_tf.models import classifier

    return classifier.is_classifier(model, dataset)


def _from_arrays(arrays: list[np.ndarray]) -> Any:
    if len(arrays) > 1:
        return WalkedForest(Forest.from_arrays(arrays))
    from pate_tf.models import classifier

    return classifier.from_arrays(arrays)


def _fit(
    model: str, dataset: Dataset, inputs: np.ndarray, labels: np.ndarray, seed: int
) -> list[np.ndarray]:
    from pate_tf.models import classifier

    return list(classifier.fit(model, dataset, inputs, labels, seed))


def _fitted_elsewhere(model: str, records: PrivateExamples, seed: int) -> list[np.ndarray]:
    """Fits a classifier in a process that ends with it: training takes more memory than serving."""
    from pate_tf.teachers.processes import in_order

    arguments = (model, records.dataset, records.inputs, records.labels, seed)
    (found,) = in_order(_fit, [arguments], num_processes=2)  # 1 would be this process
    return found


def _trained_single_teacher(
    run: TeacherRun, folder: pathlib.Path, records: PrivateExamples
) -> Callable[[np.ndarray], np.ndarray]:
    """Trains an ensemble of one teacher, in all as train_teachers.py does."""
    from pate_tf.api.teacher_training import shares_of, train_teachers
    from pate_tf.teachers.kinds import Engine, find_kind
    from pate_tf.teachers.settings import TeacherSettings

    pool = None
    if find_kind(run.model, records.dataset).representation == "required":
        public = catalogue.load_public(run.dataset, data_dir=run.data_dir)
        pool = public.split(public.dataset.pool_size).pool
    trained = train_teachers(
        TeacherSettings(model=run.model, seed=run.seed),
        records,
        shares_of(records, num_teachers=1, seed=run.seed),
        pool=pool,
        folder=folder,
        engine=Engine(),
    )
    ensemble = trained.load()
    return lambda queries: ensemble.votes(queries).labels[0]
