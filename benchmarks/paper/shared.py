"""Distributed selective SGD (Shokri and Shmatikov 2015), with noise and without."""

import dataclasses
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.harness import Measurement, percent, separate_registry
from benchmarks.paper.laboratory import OURS, PAPER, Experiment, Laboratory, Row
from pate_tf.core.public import PublicExamples
from pate_tf.core.reporting import QUIET
from pate_tf.selective_sgd.private_training import train
from pate_tf.selective_sgd.settings import Privacy, Settings
from pate_tf.selective_sgd.shared_training import Evaluation, features_of
from pate_tf.selective_sgd.upload import dense_bytes

THEIRS = {"centralized": 0.9917, "theta_u 0.1": 0.9914, "theta_u 0.01": 0.9871}
ALONE_THEIRS = 0.9316  # of 600 records
# Of asynchronous uploads, by what keeps stale ones from diverging.
ORDERS: dict[str, dict[str, Any]] = {
    "asynchronous, as the paper adds": {"damping": 0.0},
    "asynchronous, damping 0.5": {"damping": 0.5},
    "asynchronous, damping 1": {"damping": 1.0},
    "round robin": {"protocol": "round_robin"},
}
# Rounds and rate by epsilon, chosen on Fashion-MNIST's public samples.
TOGETHER = {8.0: (60, 100.0), 3.0: (30, 200.0), 1.0: (30, 60.0)}
CENTRAL = {8.0: (120, 200.0), 3.0: (120, 100.0), 1.0: (60, 100.0)}


def _public(laboratory: Laboratory, dataset: str) -> PublicExamples:
    """Returns all public samples with their labels."""
    public = laboratory.data(dataset).public
    inputs = np.concatenate([public.pool.inputs, public.held_out.inputs])
    return PublicExamples(public.dataset, inputs, laboratory.truth(dataset))


def _trained(
    laboratory: Laboratory, dataset: str, model: str, records: int, **options: Any
) -> Measurement:
    """Trains together without noise; returns accuracy and bytes of an upload against dense ones."""
    settings = Settings(**{"rounds": 5, "seed": laboratory.measurements.seed, **options})
    if laboratory.is_quick:
        number = min(settings.num_participants, 4)
        settings = dataclasses.replace(settings, rounds=1, num_participants=number)
        records = min(records, 50)

    def measure() -> dict[str, float]:
        shared = train(
            laboratory.data(dataset).private, settings, model=model, records_each=records
        )
        evaluation = Evaluation(shared.view, _public(laboratory, dataset))
        size = shared.traffic["upload_bytes"] / dense_bytes(shared.view.num_parameters)
        return {"accuracy": evaluation.accuracy(shared.global_model()), "size": size}

    config = {"dataset": dataset, "model": model, "records": records}
    return laboratory.measurements.of(
        "selective_sgd", {**config, **dataclasses.asdict(settings)}, measure
    )


def _rows(laboratory: Laboratory) -> Iterator[Row]:
    for dataset in laboratory.available_images():
        for number, records, rounds in ((30, 2_000, 5), (30, 600, 15)):
            cells: dict[str, tuple[int, int, float]] = {
                "centralized": (1, number * records, 1.0),
                "alone": (1, records, 1.0),
                **{
                    f"theta_u {upload:g}": (number, records, upload)
                    for upload in (1, 0.1, 0.01, 0.001)
                },
            }
            for name, (participants, records_each, upload) in cells.items():
                measurement = _trained(
                    laboratory,
                    dataset,
                    "cnn",
                    records_each,
                    rounds=rounds,
                    num_participants=participants,
                    upload=upload,
                )
                theirs = THEIRS.get(name) if dataset == "mnist" else None
                if (name, records) == ("alone", 600):
                    theirs = ALONE_THEIRS
                yield Row(
                    cells={
                        "": f"{dataset}, {number} x {records} records, {rounds} rounds, {name}",
                        PAPER: "" if theirs is None else percent(theirs),
                        OURS: percent(measurement.result["accuracy"]),
                        "bytes of an upload": percent(measurement.result["size"])
                        if participants > 1
                        else "",
                    }
                )
        for model in ("mlp", "cnn"):
            for name, options in ORDERS.items():
                measurement = _trained(
                    laboratory,
                    dataset,
                    model,
                    600,
                    **{"protocol": "asynchronous", "rounds": 6, "num_participants": 30, **options},
                )
                accuracy = percent(measurement.result["accuracy"])
                yield Row(cells={"": f"{dataset}, {model}, {name}", OURS: accuracy})
        for number in (10, 30, 90, 150):
            measurement = _trained(
                laboratory, dataset, "cnn", 600, num_participants=number, upload=0.1
            )
            accuracy = percent(measurement.result["accuracy"])
            yield Row(cells={"": f"{dataset}, theta_u 0.1, {number} participants", OURS: accuracy})


def _private_rows(laboratory: Laboratory) -> Iterator[Row]:
    for dataset in laboratory.available_images():
        for epsilon in (8.0,) if laboratory.is_quick else TOGETHER:
            for number in (3, 1) if laboratory.is_quick else (30, 1):
                rounds, rate = (CENTRAL if number == 1 else TOGETHER)[epsilon]
                settings = Settings(
                    num_participants=number,
                    protocol="synchronous",
                    upload=1.0,
                    seed=laboratory.measurements.seed,
                    rounds=2 if laboratory.is_quick else rounds,
                    learning_rate=rate,
                )
                privacy = Privacy(
                    kind="record", target_epsilon=epsilon, clip=0.5, sampling_rate=0.2
                )

                def measure(
                    dataset: str = dataset,
                    settings: Settings = settings,
                    privacy: Privacy = privacy,
                ) -> dict[str, float]:
                    data, public = laboratory.data(dataset), _public(laboratory, dataset)
                    features = features_of("whitened", public, QUIET, seed=settings.seed)
                    samples = features.samples(public)
                    with separate_registry() as folder, warnings.catch_warnings():
                        warnings.simplefilter("ignore", UserWarning)
                        shared = train(
                            features.records(data.private),
                            settings,
                            model="linear",
                            privacy=privacy,
                            directory=folder / "run",
                        )
                    held_out = samples.split(data.dataset.pool_size).held_out
                    model = shared.global_model()
                    return {
                        "public": Evaluation(shared.view, samples).accuracy(model),
                        "held_out": Evaluation(shared.view, held_out).accuracy(model),
                    }

                config = {"dataset": dataset, **dataclasses.asdict(settings)}
                config["privacy"] = dataclasses.asdict(privacy)
                measurement = laboratory.measurements.of("shared_privately", config, measure).result
                holders = "one holder of all records" if number == 1 else f"{number} participants"
                yield Row(
                    cells={
                        "": f"{dataset}, epsilon {epsilon:g}, {holders}",
                        "all public samples": percent(measurement["public"]),
                        "held out": percent(measurement["held_out"]),
                    }
                )


SELECTIVE_SGD = Experiment(
    title="Shared training: distributed selective SGD",
    about="Accuracy on all public samples, one seed, default rates of `pate dssgd`. `centralized` "
    "has the records of all participants, `alone` those of one. The paper has 600 records and 60 "
    "rounds. Orders: 30 participants of 600 records, 6 rounds; numbers of participants: 5 rounds.",
    rows=_rows,
)
SELECTIVE_SGD_PRIVATE = Experiment(
    title="Shared training: single records protected",
    about="A linear model of 1,290 parameters on `whitened` features of the pool, at delta 1e-5, "
    "against replacement; beside it central DP-SGD by the same accounting. Rates, rounds and "
    "clipping were chosen on Fashion-MNIST. Features are of the pool's inputs, so held-out samples "
    "are the fairer test.",
    rows=_private_rows,
)
