"""Distributed selective SGD (Shokri and Shmatikov 2015), with and without noise."""

import dataclasses
import warnings
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from keras import layers

from benchmarks.harness import Measurement, percent, separate_registry
from benchmarks.paper.laboratory import OURS, PAPER, Experiment, Laboratory, Row
from pate_tf.core.dataset import Dataset
from pate_tf.core.public import PublicExamples
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.selective_sgd.server import upload_bytes
from pate_tf.selective_sgd.shared_training import learn_encoder, train
from pate_tf.selective_sgd.training_settings import TrainingSettings

THEIRS = {"centralized": 0.9917, "theta_u 0.1": 0.9914, "theta_u 0.01": 0.9871}
ALONE_THEIRS = 0.9316  # of 600 records
# Rounds and rate by epsilon, chosen on Fashion-MNIST's public samples.
TOGETHER = {8.0: (60, 1000.0), 1.0: (30, 600.0)}
SIDE = 32  # of the paper's images


def cnn(dataset: Dataset) -> keras.Model:
    """Returns the paper's network: two convolutions, 105,506 parameters for gray images.

    Pixels are scaled to [-1, 1]. Smaller images get a border of -1 up to the paper's size.
    """
    borders = [max(0, SIDE - side) for side in dataset.input_shape[:2]]
    return keras.Sequential(
        [
            keras.Input(dataset.input_shape),
            layers.Rescaling(1.0 / 127.5),
            layers.ZeroPadding2D(tuple((border // 2, border - border // 2) for border in borders)),
            layers.Rescaling(1.0, offset=-1.0),
            layers.Conv2D(32, 5, activation="tanh"),
            layers.MaxPooling2D(3),
            layers.Conv2D(64, 5, activation="tanh"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(200, activation="tanh"),
            layers.Dense(dataset.num_classes),
        ]
    )


def _trained(laboratory: Laboratory, dataset: str, records: int, **options: Any) -> Measurement:
    """Trains together without noise; returns accuracy and bytes of an upload against dense ones."""
    settings = TrainingSettings(**{"rounds": 5, "seed": laboratory.measurements.seed, **options})
    if laboratory.is_quick:
        number = min(settings.num_participants, 4)
        settings = dataclasses.replace(settings, rounds=1, num_participants=number)
        records = min(records, 50)

    def measure() -> dict[str, float]:
        private, most = laboratory.data(dataset).private, settings.num_participants * records
        used = PrivateExamples(private.dataset, private.inputs[:most], private.labels[:most])
        shared = train(used, settings, model=cnn)
        public = laboratory.data(dataset).public
        inputs = np.concatenate([public.pool.inputs, public.held_out.inputs])
        samples = PublicExamples(public.dataset, inputs, laboratory.truth(dataset))
        size, changes = shared.num_parameters, settings.num_uploaded(shared.num_parameters)
        return {
            "accuracy": shared.accuracy(samples) or 0.0,
            "size": upload_bytes(changes, size) / upload_bytes(size, size),
        }

    config = {"dataset": dataset, "model": "cnn", "records": records}
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
        for protocol in ("asynchronous", "round_robin"):
            options = {"protocol": protocol, "rounds": 6, "num_participants": 30}
            measurement = _trained(laboratory, dataset, 600, **options)
            accuracy = percent(measurement.result["accuracy"])
            yield Row(cells={"": f"{dataset}, {protocol}", OURS: accuracy})
        for number in (10, 30, 90):
            measurement = _trained(laboratory, dataset, 600, num_participants=number, upload=0.1)
            accuracy = percent(measurement.result["accuracy"])
            yield Row(cells={"": f"{dataset}, theta_u 0.1, {number} participants", OURS: accuracy})


def _private_rows(laboratory: Laboratory) -> Iterator[Row]:
    for dataset in laboratory.available_images():
        for epsilon in (8.0,) if laboratory.is_quick else TOGETHER:
            rounds, rate = TOGETHER[epsilon]
            settings = TrainingSettings(
                num_participants=3 if laboratory.is_quick else 30,
                seed=laboratory.measurements.seed,
                rounds=2 if laboratory.is_quick else rounds,
                learning_rate=rate,
                privacy="record",
                target_epsilon=epsilon,
                clip=0.5,
            )

            def measure(
                dataset: str = dataset, settings: TrainingSettings = settings
            ) -> dict[str, float]:
                data = laboratory.data(dataset)
                with separate_registry() as folder, warnings.catch_warnings():
                    warnings.simplefilter("ignore", UserWarning)
                    shared = train(
                        data.private,
                        settings,
                        model="linear",
                        encoder=learn_encoder("whitened", data.public.pool, seed=settings.seed),
                        directory=folder / "run",
                    )
                return {"held_out": shared.accuracy(data.public.held_out) or 0.0}

            config = {"dataset": dataset, **dataclasses.asdict(settings)}
            measurement = laboratory.measurements.of("shared_privately", config, measure).result
            yield Row(
                cells={
                    "": f"{dataset}, epsilon {epsilon:g}, {settings.num_participants} participants",
                    "held out": percent(measurement["held_out"]),
                }
            )


SELECTIVE_SGD = Experiment(
    title="Shared training: distributed selective SGD",
    about="Accuracy on all public samples, with one seed and the default rates of `pate dssgd`. "
    "`centralized` trains on the records of all participants, and `alone` on the records of one. "
    "The paper uses 600 records and 60 rounds. The rows on orders use 30 participants with 600 "
    "records and 6 rounds, and the rows on numbers of participants use 5 rounds.",
    rows=_rows,
)
SELECTIVE_SGD_PRIVATE = Experiment(
    title="Shared training: single records protected",
    about="A linear model of 1,290 parameters on `whitened` features of the pool, at delta 1e-5 "
    "under replace-one. Rates, rounds and clipping were chosen on Fashion-MNIST. Accuracy is "
    "measured on held-out samples.",
    rows=_private_rows,
)
