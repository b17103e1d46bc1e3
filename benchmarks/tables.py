"""How many teachers a table is worth: `python -m benchmarks.tables --data_dir=../shared/data`.

Nothing is chosen on Adult's own labels: labels are made up for its public inputs, by effects of all
columns and of some pairs, with as many records and about as uneven classes. Ridge teachers learn
from the raw representation. Printed are the teachers' mean accuracy on the pool, that of their
plurality, and the share of right labels that a worst-case epsilon of 1 at delta 1e-5 gives by
Gaussian noise.

With `--sums` it compares representations of feature sums instead, and numbers of bins: by the
accuracy of the student on a fifth of Adult's training file, which it was held out of, in the mean
of three repetitions with another fifth each.
"""

import argparse
import os
import pathlib
import tempfile
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import numpy.typing as npt

import pate_tf
from pate_tf.accounting.mechanisms import GaussianHistogram
from pate_tf.accounting.planning import least_noise
from pate_tf.core.partition import random_partition
from pate_tf.core.public import Pool
from pate_tf.data import catalogue, uci
from pate_tf.models import closed_form
from pate_tf.representations import raw
from pate_tf.representations.catalogue import encoder_of

NUM_RECORDS, RARE, SEED = 32_561, 0.24, 5
NUMBERS, QUERIES = (125, 250, 500, 1_000, 2_000), (500, 2_000)
EPSILONS, REPETITIONS = (0.05, 0.1, 0.25, 1.0, 3.0), 3
# Representations, and how many bins a column has; 0 where it has none.
COMPARED = (("raw", 0), ("bins", 5), ("bins", 10), ("bins", 20), ("fourier", 0))


def made_up(features: npt.NDArray[np.float32], random: np.random.Generator) -> npt.NDArray:
    """Returns the probability of the rarer class for features `[num_inputs, num_features]`."""
    centred = features - features.mean(axis=0)
    effects = centred @ random.normal(size=features.shape[1])
    one, other = random.integers(0, features.shape[1], (2, 60))
    pairs = (centred[:, one] * centred[:, other]) @ random.normal(size=60)
    score = effects / effects.std() + 0.5 * pairs / pairs.std()
    score *= 2.5 / score.std()
    return 1.0 / (1.0 + np.exp(np.quantile(score, 1.0 - RARE) - score))


def compare_sums(data_dir: pathlib.Path | None) -> None:
    """Prints a row for each representation."""
    records = catalogue.load_private("adult", data_dir=data_dir)
    pool = catalogue.load_public("adult", data_dir=data_dir).inputs[: uci.ADULT.pool_size]
    print("| representation |", *(f"epsilon {one:g} |" for one in EPSILONS))
    print("|" + "---|" * (1 + len(EPSILONS)))
    for name, number in COMPARED:
        raw.BINS = number or raw.BINS
        found = np.zeros((REPETITIONS, len(EPSILONS)))
        for seed in range(REPETITIONS):
            order = np.random.default_rng(seed).permutation(len(records.labels))
            tried, learnt = np.split(order, [len(order) // 5])
            data = pate_tf.Data.from_arrays(
                records.inputs[learnt],
                records.labels[learnt],
                np.concatenate([pool, records.inputs[tried]]),
                np.concatenate([np.full(len(pool), -1), records.labels[tried]]),
                held_out=len(tried) / (len(pool) + len(tried)),
                num_classes=2,
                categories={
                    place: one for place, one in enumerate(uci.ADULT.num_categories) if one
                },
                value_range=uci.ADULT.value_range,
            )
            for place, epsilon in enumerate(EPSILONS):
                with tempfile.TemporaryDirectory() as folder:
                    sums = pate_tf.FeatureSums(
                        directory=folder, representation=name, verbose=False
                    ).fit(data.private, data.pool)
                    with pate_tf.Labeller(sums, epsilon=epsilon, delta=1e-5) as labeller:
                        labels = labeller.label(data.pool)
                student = pate_tf.Student("linear_head").fit(data.pool, labels)
                found[seed, place] = student.evaluate(data.held_out)
        title = f"{name}, {number}" if number else name
        print(f"| {title} |", *(f"{one:.1%} |" for one in found.mean(axis=0)), flush=True)


def main() -> None:
    """Reads the flags, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data_dir", type=pathlib.Path)
    parser.add_argument("--sums", action="store_true", help="compare representations instead")
    asked = parser.parse_args()
    if asked.sums:
        warnings.simplefilter("ignore")  # ledgers of the same records: nothing is published
        compare_sums(asked.data_dir)
        return
    inputs = catalogue.load_public("adult", data_dir=asked.data_dir).inputs
    pool = Pool(uci.ADULT, inputs[: uci.ADULT.pool_size])
    random = np.random.default_rng(SEED)
    features = encoder_of(pool, "raw").features(inputs)
    rare = made_up(features, random)
    records = random.integers(0, len(inputs), NUM_RECORDS)
    labels = (random.random(NUM_RECORDS) < rare[records]).astype(np.int64)
    truth = (random.random(len(pool)) < rare[: len(pool)]).astype(np.int64)
    best = np.maximum(rare, 1.0 - rare).mean()
    print(f"the commoner class {1 - truth.mean():.1%}; the best that can be done {best:.1%}\n")
    print("| teachers | mean teacher | plurality |", end="")
    print(
        "".join(f" {number} labels |" for number in QUERIES) + "\n|" + "---|" * (3 + len(QUERIES))
    )
    for number in NUMBERS:
        shares = random_partition(num_records=NUM_RECORDS, num_teachers=number, seed=0)
        found = [
            closed_form.fit(
                closed_form.RIDGE, features[records[own]], labels[own], num_classes=2, num_views=1
            )
            for own in shares.all_records()
        ]
        weights, offsets = (
            array.astype(np.float32) for array in closed_form.stack(closed_form.RIDGE, found)
        )
        scores = np.einsum("bf,tfc->tbc", features[: len(pool)], weights, optimize=True)
        votes = (scores + offsets[:, np.newaxis]).argmax(axis=2)
        counts = np.stack([(votes == one).sum(axis=0) for one in (0, 1)], axis=1)
        cells = [(votes == truth).mean(), (counts.argmax(axis=1) == truth).mean()]
        for asked_about in QUERIES:
            mechanism = least_noise(
                GaussianHistogram, num_queries=asked_about, epsilon=1.0, delta=1e-5
            )
            noise = random.normal(0.0, mechanism.sigma, (asked_about, 2))
            answers = (counts[:asked_about] + noise).argmax(axis=1)
            cells.append((answers == truth[:asked_about]).mean())
        print(f"| {number:,} | " + " | ".join(f"{one:.1%}" for one in cells) + " |")


if __name__ == "__main__":
    main()
