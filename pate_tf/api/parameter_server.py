"""The parameter server of shared training across organisations, from plain values to a report."""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import keras

from pate_tf.api import shared_training as shared_model
from pate_tf.api.reporting import NOT_MEASURED, QUIET, Reporting, RunReport
from pate_tf.core import artifacts
from pate_tf.data import catalogue as data
from pate_tf.models import catalogue
from pate_tf.net.credentials import COORDINATOR, TlsFiles
from pate_tf.selective_sgd import models
from pate_tf.selective_sgd.evaluation import Evaluation, calibrated_model
from pate_tf.selective_sgd.models import Buffers, FlatView
from pate_tf.selective_sgd.network import ParameterService, message_limits, serve_parameters
from pate_tf.selective_sgd.privacy import Payment
from pate_tf.selective_sgd.roster import Declarations, Roster
from pate_tf.selective_sgd.turn_server import TurnServer

REPORT = "selective_sgd_report.json"
_LOOK_SECONDS = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParameterServerRun:
    """What a parameter server needs to work.

    Attributes:
      roster: file with the terms of the run.
      address: to listen on, `host:port`; port 0 for any free one.
      certificates: folder with `authority.pem`, and `NAME.pem` and `NAME.key` of the server.
      folder: of the run: journal, model, report.
      data_dir: where public samples lie; None for the default.
      name: of the server, in its certificate.
      linger_seconds: how long participants have at the end to fetch what came of all.
    """

    roster: pathlib.Path
    address: str
    certificates: pathlib.Path
    folder: pathlib.Path
    data_dir: pathlib.Path | None = None
    name: str = COORDINATOR
    linger_seconds: float = 60.0


@dataclasses.dataclass(frozen=True)
class _Outcome:
    server: TurnServer
    view: FlatView
    buffers: Buffers

    def global_model(self, buffers: Buffers | None = None) -> keras.Model:
        """Returns the model with the parameters of all."""
        return self.view.assign(self.server.released(), buffers or self.buffers)


def serve(
    run: ParameterServerRun,
    reporting: Reporting = QUIET,
    *,
    on_event: Callable[[str], None] = lambda event: None,
) -> RunReport:
    """Serves until everybody took all turns, exports the global model with its statement.

    Killed and started again with the same arguments it goes on from its journal.

    Raises:
      ValueError: if roster, data and journal do not fit each other.
      OSError: if a file can't be read or written.
    """
    roster = Roster.read(run.roster)
    public = data.load_public(roster.dataset, data_dir=run.data_dir)
    builder = models.network(roster.model, public.dataset)
    model = catalogue.build(builder, public.dataset, seed=roster.settings.seed)
    view = FlatView(model)
    buffers = view.buffers()
    charge = roster.privacy.training(roster.settings, view.num_parameters, roster.holders)
    directory = artifacts.RunDirectory(run.folder)
    folder = artifacts.make_sensitive_folder(directory.sensitive / "server")
    artifacts.remove_abandoned(directory.root)
    with artifacts.only_writer(folder):
        server = TurnServer(
            roster.settings,
            view.initial(),
            run=roster.run_id,
            privacy=roster.privacy,
            folder=folder / "journal",
        )
        declarations = None if charge is None else Declarations(folder / "paid")
        limits = message_limits(view.num_parameters)
        service = ParameterService(server, roster, declarations=declarations, limits=limits)
        try:
            with serve_parameters(
                run.address,
                service,
                files=TlsFiles.of(run.certificates, run.name),
                roster=roster,
                limits=limits,
            ) as listening:
                on_event(f"listening on port {listening.port}")
                _wait(service, server, roster, reporting)
                payments, records = _payments(declarations, roster, charge)
                outcome = _Outcome(server, view, buffers)
                values = _published(
                    outcome, roster, payments, records, public, directory, reporting
                )
                fetched = service.wait_until_fetched(run.linger_seconds)
                if missing := sorted(set(roster.names) - fetched):
                    on_event(f"ends without having told {', '.join(missing)} what came of all")
        finally:
            service.close()
    values["seconds"] = reporting.seconds
    artifacts.write_json(directory.sensitive / REPORT, values, private=True)
    return RunReport(values=values, rows=_rows(values))


def _wait(
    service: ParameterService, server: TurnServer, roster: Roster, reporting: Reporting
) -> None:
    total = roster.settings.rounds * len(roster.names)
    with reporting.progress_bar("training together", total, "upload") as advance:
        shown = 0
        while True:
            is_over = service.wait_until_over(_LOOK_SECONDS)
            advance(server.version - shown)
            shown = server.version
            if is_over:
                return


def _payments(
    declarations: Declarations | None, roster: Roster, charge: Any
) -> tuple[list[Payment], list[int]]:
    """Returns what participants say of their ledgers, and how many records each has."""
    if declarations is None:
        return [], []
    numbers = range(len(roster.names))
    found = [one for number in numbers if (one := declarations.of(number)) is not None]
    records = [one.num_records for one in found if one.num_records is not None]
    return [one.payment(charge) for one in found], records


def _published(
    outcome: _Outcome,
    roster: Roster,
    payments: list[Payment],
    records: list[int],
    public: Any,
    directory: artifacts.RunDirectory,
    reporting: Reporting,
) -> dict[str, Any]:
    samples = public.labelled()
    accuracy = None
    if samples is not None:
        with reporting.clock("evaluating"):
            evaluation = Evaluation(outcome.view, samples)
            accuracy = evaluation.accuracy(calibrated_model(outcome, samples))
    with reporting.clock("exporting the model"):
        published = shared_model.publish(
            calibrated_model(outcome, samples),
            public.dataset,
            roster.settings,
            payments,
            num_parameters=outcome.view.num_parameters,
            holders=roster.holders,
            fewest_records=min(records, default=1),
            directory=directory,
        )
    settings = roster.settings
    return {
        "run": roster.run,
        "dataset": public.dataset.name,
        "participants": settings.num_participants,
        "model": roster.model,
        "parameters": outcome.view.num_parameters,
        **{name: getattr(settings, name) for name in ("rounds", "upload", "download", "protocol")},
        "privacy": roster.privacy.kind,
        "accuracy_global": accuracy,
        **shared_model.charged_values(payments),
        "model_folder": str(published),
    }


def _rows(values: dict[str, Any]) -> list[tuple[str, str]]:
    accuracy = values["accuracy_global"]
    return [
        ("data set", values["dataset"]),
        (
            "participants",
            f"{values['participants']}, {values['rounds']} rounds, {values['protocol']}",
        ),
        ("model", f"{values['parameters']:,} parameters"),
        (
            "accuracy of the global model",
            NOT_MEASURED if accuracy is None else f"{accuracy:.2%}; sensitive",
        ),
        (
            "privacy",
            "none: there is no guarantee"
            if values["epsilon"] is None
            else f"epsilon {values['epsilon']:.4g} at delta {values['delta']:g}",
        ),
        *shared_model.row_of_all_ensembles(values),
        ("exported", values["model_folder"]),
        ("time", f"{values['seconds']:.1f} s"),
    ]
