"""Shared training with noise beside central DP-SGD, at the same epsilon on the same records."""

import dataclasses
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.paper.bench import Bench, Measured
from benchmarks.paper.rows import Experiment, Row, not_run, percent
from benchmarks.paper.selective_sgd import data_of
from pate_tf.aggregation.noise import NoiseSource
from pate_tf.api.reporting import QUIET
from pate_tf.api.shared_training import Evaluation, features_of
from pate_tf.ledger import LedgerWarning
from pate_tf.selective_sgd.private_training import train
from pate_tf.selective_sgd.settings import Privacy, Settings

# Chosen on Fashion-MNIST, by its public samples, for 30 participants and for one holder of all
# records; no sample of MNIST was looked at.
TOGETHER: Mapping[float, Mapping[str, Any]] = {
    8.0: {"rounds": 60, "learning_rate": 100.0},
    3.0: {"rounds": 30, "learning_rate": 200.0},
    1.0: {"rounds": 30, "learning_rate": 60.0},
}
CENTRAL: Mapping[float, Mapping[str, Any]] = {
    8.0: {"rounds": 120, "learning_rate": 200.0},
    3.0: {"rounds": 120, "learning_rate": 100.0},
    1.0: {"rounds": 60, "learning_rate": 100.0},
}
CLIP = 0.5
# A fifth of the records a round: a fifth of the time, and the same noise beside what they add.
SAMPLING_RATE = 0.2
REPRESENTATION = "whitened"


def _private(bench: Bench, dataset: str, epsilon: float, num_participants: int) -> Measured:
    settings = Settings(
        num_participants=num_participants,
        protocol="synchronous",
        upload=1.0,
        seed=bench.seed,
        **(CENTRAL if num_participants == 1 else TOGETHER)[epsilon],
    )
    privacy = Privacy(kind="record", target_epsilon=epsilon, clip=CLIP, sampling_rate=SAMPLING_RATE)

    def measure(noise: NoiseSource) -> Mapping[str, Any]:
        private, public = data_of(bench, dataset)
        features = features_of(REPRESENTATION, public, QUIET, seed=bench.seed)
        samples = features.samples(public)
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            # Of the other trials' ledgers of the same records.
            warnings.simplefilter("ignore", LedgerWarning)
            shared = train(
                features.records(private),
                settings,
                model="linear",
                privacy=privacy,
                directory=folder,
                noise=noise,
            )
        held_out = samples.split(public.dataset.pool_size).held_out
        model = shared.global_model()
        return {
            "accuracy": Evaluation(shared.view, samples).accuracy(model),
            "held_out": Evaluation(shared.view, held_out).accuracy(model),
            "parameters": shared.view.num_parameters,
        }

    config = {
        "dataset": dataset,
        "representation": REPRESENTATION,
        "epsilon": epsilon,
        "clip": CLIP,
        "sampling_rate": SAMPLING_RATE,
        **dataclasses.asdict(settings),
    }
    return bench.unit("selective_sgd_private", config, measure)


def _rows(bench: Bench) -> Iterator[Row]:
    for dataset in bench.setting.shared_images:
        if reason := bench.missing(dataset):
            yield not_run(dataset, reason)
            continue
        for epsilon in bench.setting.private_epsilons:
            yield from _designs(bench, dataset, epsilon)


def _designs(bench: Bench, dataset: str, epsilon: float) -> Iterator[Row]:
    for number in (bench.setting.private_participants, 1):
        measured = _private(bench, dataset, epsilon, number)
        holders = "one holder of all records" if number == 1 else f"{number} participants"
        yield Row(
            what=f"{dataset}, epsilon {epsilon:g}, {holders}",
            cells={
                "all public samples": percent(measured.result["accuracy"]),
                "held-out samples": percent(measured.result["held_out"]),
                "parameters": f"{measured.result['parameters']:,}",
            },
            resources={"seconds": f"{measured.seconds:.0f}"},
            seconds=measured.seconds,
        )


EXPERIMENT = Experiment(
    title="Shared training: single records protected",
    about=(
        "A linear model on features of the public pool, 30 participants who share all records, "
        "at delta 1e-5, against replacement; beside it central DP-SGD: one holder of all records, "
        "by the same accounting. Features are learnt from the pool's inputs, so that held-out "
        "samples are the fairer test; rates, clipping and rounds were chosen on Fashion-MNIST."
    ),
    rows=_rows,
)
