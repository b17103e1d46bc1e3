"""A round of shared training against a plain loop: `python -m benchmarks.shared_rounds`.

Participants of 600 records each train the paper's CNN for one local epoch of batches of 10 and
upload a tenth. `engine` is `pate_tf.selective_sgd` in one process: all participants share one
traced graph, and a turn is one call of it. `plain loop` gives each participant's parameters to a
compiled Keras model and calls `fit`. Both take the same records, in turns of one round each, so
that other work on the machine slows both. Needs MNIST in `--data_dir`. What is found is kept in
`--output_file`, as JSON.
"""

import argparse
import json
import os
import pathlib
import statistics
import time
from collections.abc import Sequence

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

from pate_tf.core.sensitive import PrivateExamples
from pate_tf.data import catalogue as data
from pate_tf.models import catalogue
from pate_tf.selective_sgd import models, upload
from pate_tf.selective_sgd.models import FlatView, FloatArray, dealt_shares
from pate_tf.selective_sgd.settings import Settings
from pate_tf.selective_sgd.training import SharedTraining


class PlainLoop:
    """Selective SGD as one would write it first: round robin, everything downloaded."""

    def __init__(
        self, settings: Settings, model: keras.Model, shares: Sequence[PrivateExamples]
    ) -> None:
        self._settings, self._shares = settings, shares
        self._view = FlatView(model)
        self.values: FloatArray = self._view.initial()
        model.compile(
            optimizer=keras.optimizers.SGD(settings.learning_rate),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )

    def run_round(self) -> None:
        """Lets every participant take its turn."""
        number = self._settings.num_uploaded(len(self.values))
        for share in self._shares:
            model = self._view.assign(self.values, [])
            model.fit(share.inputs, share.labels, batch_size=self._settings.batch_size, verbose=0)
            change = self._view.initial() - self.values
            indices = upload.largest(change, number)
            self.values[indices] += change[indices]


def main() -> None:
    """Reads the flags, runs rounds of both in turns, prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data_dir", type=pathlib.Path, default="../shared/tfds")
    parser.add_argument("--participants", type=int, default=30)
    parser.add_argument("--records_each", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=5, help="of each; the first traces")
    parser.add_argument("--output_file", type=pathlib.Path)
    asked = parser.parse_args()
    private = data.load_private("mnist", data_dir=asked.data_dir)
    settings = Settings(num_participants=asked.participants, rounds=asked.rounds)
    rows = dealt_shares(len(private), asked.participants, asked.records_each, seed=0)
    shares = [
        PrivateExamples(private.dataset, private.inputs[one], private.labels[one]) for one in rows
    ]
    built = [
        catalogue.build(models.network("cnn", private.dataset), private.dataset, seed=0)
        for _ in range(2)
    ]
    loops = {
        "engine": SharedTraining(settings, built[0], shares),
        "plain loop": PlainLoop(settings, built[1], shares),
    }
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    for number in range(asked.rounds):
        for name, loop in loops.items():
            began = time.monotonic()
            loop.run_round()
            seconds[name].append(time.monotonic() - began)
            print(f"round {number}: {name} {seconds[name][-1]:.2f} s", flush=True)
    medians = {name: statistics.median(found[1:] or found) for name, found in seconds.items()}
    ratios = np.divide(seconds["plain loop"], seconds["engine"])[1:].tolist()
    found = {
        "participants": asked.participants,
        "records_each": asked.records_each,
        "seconds_a_round": medians,
        "plain_loop_to_engine": statistics.median(ratios or [float("nan")]),
        "rounds": seconds,
    }
    for name, median in medians.items():
        print(f"{name}: {median:.2f} s a round")
    print(f"plain loop / engine: {found['plain_loop_to_engine']:.2f}")
    if asked.output_file is not None:
        asked.output_file.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
