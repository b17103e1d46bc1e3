"""One participant of shared training across organisations, from plain values to its last turn."""

import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from pate_tf.accounting.noisy_training import Training
from pate_tf.aggregation.noise import NoiseSource, SystemNoise
from pate_tf.api.data import read_records
from pate_tf.core import artifacts
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.data import catalogue as data
from pate_tf.models import catalogue, fingerprint
from pate_tf.net.credentials import COORDINATOR, TlsFiles
from pate_tf.selective_sgd import models
from pate_tf.selective_sgd.evaluation import Logs
from pate_tf.selective_sgd.joined import JoinedParticipant, patiently
from pate_tf.selective_sgd.models import FlatView, dealt_shares
from pate_tf.selective_sgd.network import ParameterConnection
from pate_tf.selective_sgd.privacy import LEDGER, NONCE, TOKEN, ChargedRun, Payment, new_nonce
from pate_tf.selective_sgd.roster import Declared, Roster
from pate_tf.selective_sgd.store import Store

DEALT = "dealt"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParticipantRun:
    """What a participant needs to work.

    Attributes:
      roster: file with the terms of the run.
      participant: its name, on the roster and in its certificate.
      server: address, `host:port`.
      records: a `.npz` file of `inputs` and `labels`; "dealt" for the share of the data set that
        training in one process would deal to it, to try things out.
      certificates: folder with `authority.pem`, and `NAME.pem` and `NAME.key` of the participant.
      folder: of the participant: its state and its ledger.
      data_dir: where the data set lies; None for the default.
      server_name: in the server's certificate.
      noise: draws noise and records; predictable noise is for tests.
    """

    roster: pathlib.Path
    participant: str
    server: str
    records: str
    certificates: pathlib.Path
    folder: pathlib.Path
    data_dir: pathlib.Path | None = None
    server_name: str = COORDINATOR
    noise: NoiseSource = dataclasses.field(default_factory=SystemNoise)


def take_part(
    run: ParticipantRun, *, on_event: Callable[[str], None] = lambda event: None
) -> pathlib.Path:
    """Takes all turns of a participant, and returns the file with the parameters of all.

    Killed and started again with the same arguments it goes on where it was.

    Raises:
      ValueError: if roster, records and server do not fit each other; nothing was charged then,
        unless the server refuses an upload.
      PermissionError: if the server does not know the participant.
      LedgerError: if the ledger does not suffice, can't be used, or a copy of the run went on.
      OSError: if a file can't be read or written.
    """
    roster = Roster.read(run.roster)
    number = roster.number(run.participant)
    share = _share(run, roster, number)
    settings, privacy = roster.settings, roster.privacy
    builder = models.network(roster.model, share.dataset)
    model = catalogue.build(builder, share.dataset, seed=settings.seed)
    view = FlatView(model)
    directory = artifacts.RunDirectory(run.folder)
    sensitive = directory.sensitive
    folder = artifacts.make_sensitive_folder(sensitive / "participant")
    artifacts.remove_abandoned(run.folder)
    with artifacts.only_writer(folder):
        identity = {
            "run": roster.run_id.hex(),
            "participant": run.participant,
            "architecture": fingerprint.architecture_of(builder, share.dataset),
            "records": artifacts.digest_arrays([share.inputs]),
            "labels": artifacts.digest_arrays([share.labels]),
        }
        store = Store(folder, identity)
        connection = ParameterConnection(
            run.server,
            files=TlsFiles.of(run.certificates, run.participant),
            run=roster.run_id,
            num_parameters=view.num_parameters,
            server=run.server_name,
        )
        saved: dict[str, Any] = store.load() or {}
        charged = None
        if privacy.kind != "none":
            if NONCE not in saved:
                saved = {NONCE: new_nonce()}
                store.save(saved, at_once=True)
            nonce = saved[NONCE].tobytes()
            charged = ChargedRun(sensitive / LEDGER, share.record_set, privacy, nonce=nonce)
        with connection as line, charged or contextlib.nullcontext():
            on_event(f"{run.participant} dials {run.server}")
            initial = patiently(line.join, on_event=on_event)

            def pay(run_charged: ChargedRun, charge: Training) -> Payment:
                payment = run_charged.begin(
                    charge,
                    secure_noise=run.noise.is_secure,
                    round_number=int(saved.get("round", 0)),
                    token=bytes(saved.get(TOKEN, b"")),
                )
                declared = Declared.of(payment, len(share) if privacy.kind == "record" else None)
                patiently(functools.partial(line.join, declared), on_event=on_event)
                return payment

            participant = JoinedParticipant(
                roster,
                run.participant,
                model,
                share,
                initial=initial,
                pay=None if charged is None else functools.partial(pay, charged),
                noise=run.noise,
            )
            if "round" in saved:
                participant.restore(saved)
            on_event(f"joined {roster.run}, round {participant.round} of {settings.rounds}")

            def save(state: Mapping[str, Any]) -> None:
                if charged is None:
                    store.save(state, at_once=True)
                    return
                names = {NONCE: saved[NONCE], TOKEN: new_nonce()}
                store.save({**state, **names}, at_once=True)
                charged.note(participant.round, names[TOKEN].tobytes())

            logs = Logs(directory)
            epsilon = None if charged is None else charged.payment().epsilon
            found = participant.take_part(
                line,
                save=save,
                on_event=on_event,
                on_round=lambda statistics: logs.write_round(statistics, None, epsilon),
            )
            logs.close()
        path = folder / "global_parameters.npz"
        artifacts.write_arrays(path, {"values": found.values}, private=True)
    return path


def _share(run: ParticipantRun, roster: Roster, number: int) -> PrivateExamples:
    if run.records != DEALT:
        dataset = data.load_public(roster.dataset, data_dir=run.data_dir).dataset
        return read_records(pathlib.Path(run.records), dataset)
    private = data.load_private(roster.dataset, data_dir=run.data_dir)
    rows = dealt_shares(len(private), len(roster.names), None, seed=roster.settings.seed)[number]
    return PrivateExamples(private.dataset, private.inputs[rows], private.labels[rows])
