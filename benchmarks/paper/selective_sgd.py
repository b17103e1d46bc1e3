"""The table of distributed selective SGD (Shokri and Shmatikov 2015), numbers and orders."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.paper.bench import Bench, Measured
from benchmarks.paper.rows import OURS, PAPER, Experiment, Row, not_run, percent
from pate_tf.aggregation.noise import NoiseSource
from pate_tf.api.shared_training import Evaluation
from pate_tf.core.public import PublicExamples
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.data import catalogue
from pate_tf.selective_sgd.private_training import train
from pate_tf.selective_sgd.settings import Settings
from pate_tf.selective_sgd.upload import dense_bytes

THEIRS = {"centralised": 0.9917, "alone": 0.9316, "theta_u 0.1": 0.9914, "theta_u 0.01": 0.9871}
UPLOADS = (1.0, 0.1, 0.01, 0.001)
COMPARED_UPLOAD = 0.1  # of different numbers of participants
SHARE_OF_BYTES = "bytes of an upload"
PAPERS_RECORDS = 600  # of a participant
NEAR = 0.003  # what counts as the paper's accuracy

# Asynchronous training and what could keep it from diverging, with the order that has no such need.
REMEDIES: Mapping[str, Mapping[str, Any]] = {
    "asynchronous, as the paper adds": {"damping": 0.0},
    "asynchronous, server rate 0.2": {"damping": 0.0, "server_rate": 0.2},
    "asynchronous, steps of a fifth": {"damping": 0.0, "learning_rate": 0.01},
    "asynchronous, damping 0.5": {"damping": 0.5},
    "asynchronous, damping 1": {"damping": 1.0},
    "round robin": {"protocol": "round_robin"},
}
OF_CNN = (
    "asynchronous, as the paper adds",
    "asynchronous, damping 0.5",
    "asynchronous, damping 1",
    "round robin",
)


def data_of(bench: Bench, dataset: str) -> tuple[PrivateExamples, PublicExamples]:
    """Returns private records and labelled public samples."""
    public = bench.workshop.public(dataset).labelled()
    private = catalogue.load_private(dataset, data_dir=bench.workshop.data_dirs[dataset])
    if public is None:
        raise ValueError(f"{dataset}: expected labels of public samples, got none")
    return private, public


def _shared(
    bench: Bench, dataset: str, model: str, *, records: int | None = None, **options: Any
) -> Measured:
    """Trains together without noise; accuracy and bytes, or that it diverged.

    Args:
        bench: where.
        dataset: whose records are dealt out.
        model: that they train.
        records: of each participant; None for as many as the setting says.
        **options: of `Settings`.
    """
    settings = Settings(**{"rounds": bench.setting.shared_rounds, "seed": bench.seed, **options})
    records = records or bench.setting.shared_records

    def measure(noise: NoiseSource) -> Mapping[str, Any]:
        del noise
        private, public = data_of(bench, dataset)
        try:
            shared = train(private, settings, model=model, records_each=records)
        except ValueError as error:
            if "finite" not in str(error):  # of a loss, or of a parameter
                raise
            return {"accuracy": None}
        evaluation = Evaluation(shared.view, public)
        num_bytes = shared.traffic["upload_bytes"]
        return {
            "accuracy": evaluation.accuracy(shared.global_model()),
            "share_of_bytes": num_bytes / dense_bytes(shared.view.num_parameters),
        }

    config = {
        "dataset": dataset,
        "model": model,
        "records": records,
        **dataclasses.asdict(settings),
    }
    return bench.unit("selective_sgd", config, measure)


def _rows(bench: Bench) -> Iterator[Row]:
    for dataset in bench.setting.shared_images:
        if reason := bench.missing(dataset):
            yield not_run(dataset, reason)
            continue
        for number, records, rounds in bench.setting.shared_tables:
            yield from _table(bench, dataset, number, records, rounds)
        yield from _orders(bench, dataset)
        yield from _numbers(bench, dataset)


def _table(bench: Bench, dataset: str, number: int, records: int, rounds: int) -> Iterator[Row]:
    """The paper's table, for so many participants with so many records and turns each."""
    cells: dict[str, dict[str, Any]] = {
        "centralised": {"records": number * records, "num_participants": 1, "upload": 1.0},
        "alone": {"records": records, "num_participants": 1, "upload": 1.0},
    }
    for upload in UPLOADS:
        name = f"theta_u {upload:g}"
        cells[name] = {"records": records, "num_participants": number, "upload": upload}
    for name, options in cells.items():
        measured = _shared(bench, dataset, "cnn", rounds=rounds, **options)
        theirs = THEIRS.get(name) if dataset == "mnist" else None
        if name == "alone" and records != PAPERS_RECORDS:
            theirs = None
        share = measured.result.get("share_of_bytes")
        yield Row(
            what=f"{dataset}, {number} x {records}, {rounds} rounds: {name}",
            cells={
                PAPER: "" if theirs is None else percent(theirs),
                OURS: _accuracy(measured),
                SHARE_OF_BYTES: percent(share) if share and options["num_participants"] > 1 else "",
            },
            why=_why(measured, theirs, rounds),
            resources={"seconds": f"{measured.seconds:.0f}"},
            seconds=measured.seconds,
        )


def _why(measured: Measured, theirs: float | None, rounds: int) -> str:
    accuracy = measured.result["accuracy"]
    if theirs is None or accuracy is None or accuracy >= theirs - NEAR:
        return ""
    return f"{rounds} passes over the records; the paper has 60."


def _numbers(bench: Bench, dataset: str) -> Iterator[Row]:
    """Numbers of participants; where records do not suffice shares overlap, as in the paper."""
    for number in bench.setting.shared_numbers:
        measured = _shared(bench, dataset, "cnn", num_participants=number, upload=COMPARED_UPLOAD)
        yield Row(
            what=f"{dataset}, theta_u {COMPARED_UPLOAD:g}, {number} participants",
            cells={OURS: _accuracy(measured)},
            resources={"seconds": f"{measured.seconds:.0f}"},
            seconds=measured.seconds,
        )


def _orders(bench: Bench, dataset: str) -> Iterator[Row]:
    """What stale uploads do, and what helps."""
    setting = bench.setting
    given = {
        "protocol": "asynchronous",
        "rounds": setting.asynchronous_rounds,
        "num_participants": setting.asynchronous_participants,
    }
    for model, names in (("mlp", tuple(REMEDIES)), ("cnn", OF_CNN)):
        for name in names:
            options = REMEDIES[name]
            measured = _shared(bench, dataset, model, **{**given, **options})
            yield Row(
                what=f"{dataset}, {model}, {name}",
                cells={OURS: _accuracy(measured)},
                seconds=measured.seconds,
            )


def _accuracy(measured: Measured) -> str:
    accuracy = measured.result["accuracy"]
    return "diverged" if accuracy is None else percent(accuracy)


EXPERIMENT = Experiment(
    title="Shared training: distributed selective SGD",
    about=(
        "Participants times records of each; the networks of public code of the same lineage; "
        "accuracy on all public samples. `centralised` trains on the records of all participants, "
        "`alone` on those of one. Rates are `pate dssgd`'s defaults, and none was chosen here. The "
        "paper's tables are not in our text of it. Numbers of participants: 600 records, 5 rounds. "
        "Orders: 30 participants of 600 records, 6 rounds, theta_u 0.1."
    ),
    rows=_rows,
)
