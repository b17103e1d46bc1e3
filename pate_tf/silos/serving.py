"""A whole silo: its folder, its teacher or feature sums, and its work for a coordinator.

The teacher is brought along, or trained on the silo's own records. What answers stays small: a
random forest is trained in a process of its own and walked by NumPy, so that a silo needs neither
TensorFlow nor scikit-learn while it serves. Every other model brings what it needs.
"""

import dataclasses
import json
import pathlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pate_tf.core import artifacts
from pate_tf.core.dataset import Dataset
from pate_tf.core.sensitive import PrivateExamples, SumsByClass
from pate_tf.core.settings import Settings, setting
from pate_tf.core.source import PrivateSource, private_digest
from pate_tf.data import catalogue
from pate_tf.data.data import read_records
from pate_tf.data.named_function import call_function, is_named_function
from pate_tf.models.forest import RANDOM_FOREST, Forest
from pate_tf.net.credentials import COORDINATOR, TlsFiles
from pate_tf.silos.policy import Policy
from pate_tf.silos.silo import Silo
from pate_tf.silos.teachers import SiloSums, SiloTeacher

if TYPE_CHECKING:
    from pate_tf.silos.secure.opening import PartySealer

POLICY, KEYS = "policy.toml", "keys.json"
CLASSIFIER, TRAINED, SUMS = "teacher.npz", "teacher", "sums.npz"
METHODS = ("pate", "feature_sums")
DIGITS = 16  # of a digest, for people


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
    source_name: str | None = setting(
        None,
        help="Public name of the private data, to which the silo's releases are charged. Default: "
        "the file of --data.",
    )
    model: str = setting(
        RANDOM_FOREST,
        help="What is trained, as by train_teachers.py: random_forest, a Keras architecture, ridge "
        "on features of public samples, or module:function.",
    )
    seed: int = setting(0, least=0, most=2**31 - 1, help="Fixes the teacher's training.")
    method: str = setting(
        "pate",
        choices=METHODS,
        help="pate: a teacher votes on public queries. feature_sums: no teacher is trained; "
        "features of --data are summed by class, and shared with noise.",
    )
    representation: str | None = setting(
        None,
        help="With feature_sums: what maps a record to features, as the coordinator has it; from "
        "public samples in --data_dir. Default: that of the data set.",
    )
    encoder: pathlib.Path | None = setting(
        None,
        help="With feature_sums, instead: the coordinator's encoder, released/encoder.npz of its "
        "TRAIN_DIR; weights alone, no code.",
    )
    encoder_digest: str | None = setting(
        None,
        help="With feature_sums: digest that the encoder must have, as the coordinator prints it, "
        "or the first digits of it.",
    )
    owners: pathlib.Path | None = setting(
        None,
        help="With feature_sums: a .npy file with the owner of each record, if the policy protects "
        "owners.",
    )


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
        sensitive = artifacts.make_sensitive_folder(folder / name / artifacts.SENSITIVE)
        records = {"inputs": private.inputs[rows], "labels": private.labels[rows]}
        artifacts.write_arrays(sensitive / "records.npz", records, private=True)


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
    folder = artifacts.make_sensitive_folder(run.folder / artifacts.SENSITIVE)
    sealer = None if run.parties is None else _sealer(run.parties, folder, policy.silo)
    teacher: SiloTeacher | SiloSums
    if run.teacher.method == "feature_sums":
        teacher = make_sums(run.teacher, folder)
        digest = teacher.representation[:DIGITS]
        on_event(f"{policy.silo}: the feature sums are ready, of encoder {digest}")
    else:
        teacher = make_teacher(run.teacher, folder)
        on_event(f"{policy.silo}: the teacher is ready")
    from pate_tf.silos.clients import SiloConnection  # needs grpcio

    files = TlsFiles.of(run.certificates, policy.silo)
    with (
        SiloConnection(
            policy.coordinator, files=files, coordinator=run.coordinator_name
        ) as connection,
        Silo(
            policy,
            teacher,
            folder=folder,
            sealer=sealer,
            source=_private_source(run.teacher),
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


def _sealer(path: pathlib.Path, folder: pathlib.Path, name: str) -> "PartySealer":
    # `cryptography` comes with it, which a silo that randomises its own votes does not need.
    from pate_tf.silos.secure.keys import PartyKeys, read_list
    from pate_tf.silos.secure.opening import PartySealer

    parties, silos = read_list(path)
    sealer = PartySealer(parties, silos=silos)
    if not silos:
        return sealer
    keys = PartyKeys.load_or_create(folder / KEYS, name)
    if keys.identity not in silos:
        raise ValueError(
            f"parties: expected {name} in {path} with the keys of its folder, got none"
        )
    return sealer.with_keys(keys)


def _private_source(run: TeacherRun) -> PrivateSource | None:
    """Returns what the silo's releases are charged to; None for its own folder."""
    if run.source_name is not None:
        return PrivateSource.named(run.source_name)
    return None if run.records is None else PrivateSource.of_file(run.records)


def make_sums(run: TeacherRun, folder: pathlib.Path) -> SiloSums:
    """SENSITIVE: returns the silo's feature sums; those that were stored before are taken up again.

    They are worked out in a process that ends, so that a silo that serves holds no TensorFlow.

    Args:
        run: of which records, by which representation.
        folder: sensitive; the sums are stored there.

    Raises:
        ValueError: if there are no records, they do not fit the data set, the encoder is another
            than the one named, or the stored sums are of something else.
        OSError: if a file can't be read.
    """
    from pate_tf.teachers.processes import in_order

    if run.records is None or run.teacher is not None:
        raise ValueError("data: expected records for feature_sums and no teacher, got others")
    path, unit = folder / SUMS, "record" if run.owners is None else "owner"
    files = {"data": run.records, "owners": run.owners, "encoder": run.encoder}
    source = {  # SENSITIVE: what sums follow from, files by digests with the key of the folder
        "dataset": run.dataset,
        "representation": run.representation,
        **{
            name: None if file is None else private_digest(folder, np.fromfile(file, np.uint8))
            for name, file in files.items()
        },
    }
    if not path.exists():
        # 1 process would be this one.
        ((values, representation, number),) = in_order(_summed, [(run,)], num_processes=2)
        facts: dict[str, Any] = {"representation": representation, "unit": unit}
        facts |= {"source": source, "num_records": number}
        text = np.frombuffer(json.dumps(facts).encode(), np.uint8)
        artifacts.write_arrays(path, {"sums": values, "facts": text}, private=True)
    stored = artifacts.read_arrays(path)
    facts = json.loads(stored["facts"].tobytes())
    if facts["unit"] != unit:
        raise ValueError(f"owners: expected sums of each {unit}, got other ones in {path}")
    stored_source = facts.get("source", {})
    if other := [name for name in source if stored_source.get(name, "") != source[name]]:
        raise ValueError(
            f"{other[0]}: expected what {path} was summed from, got something else; delete that "
            "file to sum anew"
        )
    digest = str(facts["representation"])
    if not digest.startswith(run.encoder_digest or ""):
        raise ValueError(f"encoder_digest: expected {run.encoder_digest}, got {digest[:DIGITS]}")
    return SiloSums(
        sums=SumsByClass(stored["sums"]),
        representation=digest,
        unit=facts["unit"],
        source=_private_source(run),
        num_records=facts["num_records"],
    )


def _summed(run: TeacherRun) -> tuple[np.ndarray, str, int]:
    """Returns sums of the records, the encoder's digest, and the number of records."""
    from pate_tf.release.feature_sums import Summands, sums_of_records
    from pate_tf.representations import catalogue as representations

    dataset = catalogue.load_dataset(run.dataset, data_dir=run.data_dir)
    examples = read_records(run.records or pathlib.Path(), dataset)
    if run.owners is not None:
        examples = dataclasses.replace(examples, owners=artifacts.read_array(run.owners))
    if run.encoder is not None:
        encoder = representations.load_encoder(run.encoder, dataset)
    else:
        public = catalogue.load_public(run.dataset, data_dir=run.data_dir)
        name = run.representation or representations.default_of_sums(dataset)
        pool = public.split(public.dataset.pool_size).pool
        encoder = representations.encoder_of(pool, name, 0)
    sums = sums_of_records(examples, encoder, Summands.of(encoder, None))
    return sums, encoder.digest, len(examples)


def make_teacher(run: TeacherRun, folder: pathlib.Path) -> SiloTeacher:
    """Returns the silo's teacher; one that was trained before is taken up again.

    Args:
        run: which one.
        folder: sensitive; what is trained is stored there.

    Raises:
        ValueError: if there is neither a teacher nor records, or they do not fit the data set.
        OSError: if a file can't be read.
    """
    dataset = catalogue.load_dataset(run.dataset, data_dir=run.data_dir)
    if (run.teacher is None) == (run.records is None):
        raise ValueError("teacher: expected a teacher or records to train one on, got both or none")
    model: Any = run.teacher
    if run.teacher is None:
        model = _trained(run, folder, dataset)
    elif is_named_function(run.teacher) and not pathlib.Path(run.teacher).exists():
        model = call_function(run.teacher, dataset, flag="teacher", is_private=True)
    return SiloTeacher(
        model,
        num_classes=dataset.num_classes,
        input_shape=dataset.input_shape,
        input_type=dataset.input_type,
    )


def _trained(run: TeacherRun, folder: pathlib.Path, dataset: Dataset) -> Any:
    stored = folder / CLASSIFIER
    if not stored.exists():
        from pate_tf.models import classifier  # imports scikit-learn
        from pate_tf.teachers.processes import in_order

        records = read_records(run.records or pathlib.Path(), dataset)
        if run.model != RANDOM_FOREST and not classifier.is_classifier(run.model, dataset):
            return _trained_single_teacher(run, folder / TRAINED, records)
        # In a process that ends with it: training takes more memory than serving. 1 would be this.
        arguments = (run.model, dataset, records.inputs, records.labels, run.seed)
        (fitted,) = in_order(classifier.fit, [arguments], num_processes=2)
        parts = {f"part_{place}": array for place, array in enumerate(fitted)}
        artifacts.write_arrays(stored, parts, private=True)
    by_name = artifacts.read_arrays(stored)
    arrays = [by_name[f"part_{place}"] for place in range(len(by_name))]
    if len(arrays) > 1:
        return Forest.from_arrays(arrays)
    from pate_tf.models import classifier

    return classifier.from_arrays(arrays)


def _trained_single_teacher(
    run: TeacherRun, folder: pathlib.Path, records: PrivateExamples
) -> Callable[[np.ndarray], np.ndarray]:
    """Trains an ensemble of one teacher, in all as train_teachers.py does."""
    from pate_tf.teachers.kinds import find_kind
    from pate_tf.teachers.teachers import Teachers

    pool = None
    if find_kind(run.model, records.dataset).representation == "required":
        public = catalogue.load_public(run.dataset, data_dir=run.data_dir)
        pool = public.split(public.dataset.pool_size).pool
    teachers = Teachers(
        run.model, num_teachers=1, seed=run.seed, directory=folder, num_processes=None
    ).fit(records, pool)
    return lambda queries: teachers.identified.votes(queries).labels[0]
