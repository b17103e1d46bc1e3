"""What uploads of shared training tell the server, with noise and without."""

import dataclasses
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.paper.bench import Bench, Measured
from benchmarks.paper.membership import Attacked, canaries_show, membership_auc
from benchmarks.paper.rows import Experiment, Row, not_run
from benchmarks.paper.selective_sgd import data_of
from pate_tf.aggregation.noise import NoiseSource
from pate_tf.selective_sgd.settings import Privacy, Settings

UPLOADS = (1.0, 0.1, 0.01)
NUM_PARTICIPANTS = 4
EPSILON = 8.0
# Every record in every round, and no momentum: nothing stands between an upload and a record but
# the noise that was charged.
PRIVACY = Privacy(kind="record", target_epsilon=EPSILON, sampling_rate=1.0, momentum=0.0)


def _attacked(bench: Bench, dataset: str, upload: float, *, with_noise: bool) -> Measured:
    setting = bench.setting
    settings = Settings(
        num_participants=NUM_PARTICIPANTS,
        rounds=setting.attacked_rounds,
        upload=upload,
        protocol="synchronous" if with_noise else "round_robin",
        learning_rate=1.0 if with_noise else 0.05,
        seed=bench.seed,
    )
    privacy = PRIVACY if with_noise else Privacy()

    def measure(noise: NoiseSource) -> Mapping[str, Any]:
        private, _ = data_of(bench, dataset)
        found = {}
        for name, attack in (("auc", membership_auc), ("epsilon", canaries_show)):
            with tempfile.TemporaryDirectory() as folder:
                run = Attacked(
                    settings=settings,
                    privacy=privacy,
                    records_each=setting.shared_records,
                    noise=noise,
                    folder=folder,
                )
                found[name] = attack(private, run)
        return found

    config = {"dataset": dataset, "with_noise": with_noise, **dataclasses.asdict(settings)}
    return bench.unit("selective_sgd_attack", config, measure)


def _rows(bench: Bench) -> Iterator[Row]:
    for dataset in bench.setting.shared_images:
        if reason := bench.missing(dataset):
            yield not_run(dataset, reason)
            continue
        for with_noise in (False, True):
            for upload in UPLOADS:
                measured = _attacked(bench, dataset, upload, with_noise=with_noise)
                yield Row(
                    what=f"{dataset}, theta_u {upload:g}, "
                    + (f"noise, epsilon {EPSILON:g}" if with_noise else "no noise"),
                    cells={
                        "AUC of the server's guess": f"{measured.result['auc']:.3f}",
                        "epsilon that canaries show": f"{measured.result['epsilon']:.2f}",
                        "epsilon stated": f"{EPSILON:g}" if with_noise else "none",
                    },
                    resources={"seconds": f"{measured.seconds:.0f}"},
                    seconds=measured.seconds,
                )


EXPERIMENT = Experiment(
    title="Shared training: what uploads tell the server",
    about=(
        "4 participants of 600 records, 5 rounds, the MLP. The server guesses from uploads who is "
        "in the data: by how much the loss of a record falls, or would fall in the direction of a "
        "noisy upload; AUC averaged over participants, .5 is chance, 600 members against 600 "
        "others each. Canaries: a third of one participant's records are random images with one of "
        "two labels, by a coin, and the server guesses coins; what is shown is a lower bound of "
        "epsilon with 95 % confidence, at delta 1e-5, from one run. Noise at record level, every "
        "record in every round, no momentum."
    ),
    rows=_rows,
)
