"""A whole silo: its folder, its teacher, and its work for a coordinator."""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pate_tf import artifacts
from pate_tf.data import catalogue
from pate_tf.models import classifier
from pate_tf.silos.policy import Policy
from pate_tf.silos.secure.party_list import read_parties
from pate_tf.silos.secure.roles import PartySealer
from pate_tf.silos.silo import Silo
from pate_tf.silos.teachers import OwnTeacher, load_teacher
from pate_tf.silos.transport.certificates import COORDINATOR
from pate_tf.silos.transport.credentials import TlsFiles
from pate_tf.silos.transport.silo_connection import SiloConnection
from pate_tf.values.dataset import Dataset, to_input_type
from pate_tf.values.sensitive import PrivateExamples

POLICY = "policy.toml"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SiloRun:
    """What a silo needs to work.

    Attributes:
      folder: holds `policy.toml`, and the sensitive account and teacher.
      dataset: name that `data.catalogue` knows, or `module:function`: shapes and classes.
      certificates: folder with `authority.pem`, and `NAME.pem` and `NAME.key` of the silo.
      teacher: a SavedModel's folder, or a `.skops` file; None to train one on `records`.
      records: a `.npz` file of `inputs` and `labels`; None with a teacher.
      model: what is trained: "random_forest", or `module:function` of a classifier.
      parties: the list of parties; None if the silo takes no part in secure aggregation.
      coordinator: address; None for the policy's, which it must be.
      coordinator_name: in the coordinator's certificate.
      seed: fixes the teacher's training.
    """

    folder: pathlib.Path
    dataset: str
    certificates: pathlib.Path
    teacher: pathlib.Path | None = None
    records: pathlib.Path | None = None
    model: str = "random_forest"
    parties: pathlib.Path | None = None
    coordinator: str | None = None
    coordinator_name: str = COORDINATOR
    seed: int = 0


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
    """Shares private records of a data set out among silos of a simulation.

    Each gets about as many, in `FOLDER/NAME/sensitive/records.npz`.

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
    policy = Policy.read(run.folder / POLICY)
    if run.coordinator not in (None, policy.coordinator):
        raise ValueError(
            f"coordinator: expected {policy.coordinator}, which the policy allows, got "
            f"{run.coordinator}"
        )
    sealer = None if run.parties is None else PartySealer(read_parties(run.parties))
    teacher = make_teacher(run)
    on_event(f"{policy.silo}: the teacher is ready")
    connection = SiloConnection(
        policy.coordinator,
        files=TlsFiles.of(run.certificates, policy.silo),
        coordinator=run.coordinator_name,
    )
    with connection, Silo(policy, teacher, folder=_sensitive(run), sealer=sealer) as silo:
        on_event(f"{policy.silo} dials {policy.coordinator}")
        silo.serve(
            connection, until=until, on_event=lambda event: on_event(f"{silo.name}: {event}")
        )


def make_teacher(run: SiloRun) -> OwnTeacher:
    """Returns the silo's teacher; one that was trained before is taken up again.

    Raises:
      ValueError: if there is neither a teacher nor records, or they do not fit the data set.
      OSError: if a file can't be read.
    """
    dataset = catalogue.load_public(run.dataset).dataset
    facts: dict[str, Any] = {
        "num_classes": dataset.num_classes,
        "input_shape": dataset.input_shape,
        "input_type": dataset.input_type,
    }
    if (run.teacher is None) == (run.records is None):
        raise ValueError("teacher: expected a teacher or records to train one on, got both or none")
    if run.teacher is not None:
        return load_teacher(run.teacher, **facts)
    kept = _sensitive(run) / "teacher.npz"
    if kept.exists():
        arrays = artifacts.read_arrays(kept)
        found = [arrays[f"part_{place}"] for place in range(len(arrays))]
    else:
        found = _trained(run, dataset)
        parts = {f"part_{place}": array for place, array in enumerate(found)}
        artifacts.write_arrays(kept, parts, private=True)
    return OwnTeacher(classifier.from_arrays(found), **facts)


def _trained(run: SiloRun, dataset: Dataset) -> list[np.ndarray]:
    path = run.records or pathlib.Path()
    arrays = artifacts.read_arrays(path)
    if set(arrays) != {"inputs", "labels"}:
        raise ValueError(f"{path}: expected the arrays inputs and labels, got others")
    inputs = to_input_type(arrays["inputs"], dataset, str(path))
    records = PrivateExamples(dataset, inputs, arrays["labels"])
    if not classifier.is_classifier(run.model, dataset):
        raise ValueError(
            f"model: expected random_forest or module:function of a classifier of scikit-learn, "
            f"got {run.model}; a Keras model comes as a SavedModel"
        )
    return list(classifier.fit(run.model, dataset, records.inputs, records.labels, run.seed))


def _sensitive(run: SiloRun) -> pathlib.Path:
    return artifacts.make_sensitive_folder(run.folder / artifacts.SENSITIVE)
