"""A whole silo: its folder, its teacher, and its work for a coordinator."""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pate_tf.api.silo_teacher import TeacherRun, known_records, make_teacher
from pate_tf.core import artifacts
from pate_tf.data import catalogue
from pate_tf.net.credentials import COORDINATOR, TlsFiles
from pate_tf.silos.policy import Policy
from pate_tf.silos.silo import Silo
from pate_tf.silos.silo_connection import SiloConnection

if TYPE_CHECKING:
    from pate_tf.silos.secure.opening import PartySealer

POLICY = "policy.toml"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SiloRun:
    """What a silo needs to work.

    Attributes:
      folder: holds `policy.toml`, and the sensitive account and teacher.
      certificates: folder with `authority.pem`, and `NAME.pem` and `NAME.key` of the silo.
      teacher: which one it is, or how it is trained.
      parties: the list of parties; None if the silo takes no part in secure aggregation.
      coordinator: address; None for the policy's, which it must be.
      coordinator_name: in the coordinator's certificate.
      epsilon_budget: for everything that the silo ever answers, at most the policy's; None for
        that.
      acknowledge_reset: whether to go on although an earlier account of the silo, or later rows of
        this one, are gone; see `Silo`.
    """

    folder: pathlib.Path
    certificates: pathlib.Path
    teacher: TeacherRun
    parties: pathlib.Path | None = None
    coordinator: str | None = None
    coordinator_name: str = COORDINATOR
    epsilon_budget: float | None = None
    acknowledge_reset: bool = False


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
