"""Which silo holds which records."""

import numpy as np

from benchmarks.silos.setting import EVEN
from pate_tf.core.partition import random_partition
from pate_tf.core.validation import IntArray

MAIN_CLASSES = 2
MAIN_SHARE = 0.9  # of a skewed silo's records
POWER = 1.0  # of a skewed silo's rank by size


def shares(kind: str, labels: IntArray, num_silos: int, num_classes: int) -> list[IntArray]:
    """Returns each silo's positions among the records.

    Args:
        kind: "even": the default partition. "skewed": sizes fall as 1 / rank, and nine of
            ten records are of two classes that are drawn for the silo.
        labels: of all records.
        num_silos: how many silos share them.
        num_classes: number of classes.
    """
    if kind == EVEN:
        return list(
            random_partition(num_records=len(labels), num_teachers=num_silos, seed=0).all_records()
        )
    generator = np.random.default_rng(0)
    left = [
        list(generator.permutation(np.flatnonzero(labels == one))) for one in range(num_classes)
    ]
    ranks = np.arange(1, num_silos + 1) ** -POWER
    sizes = np.maximum(np.floor(len(labels) * ranks / ranks.sum()), num_classes).astype(int)
    found = []
    for size in sizes:
        there = np.array([len(one) for one in left], float)
        main = generator.choice(num_classes, MAIN_CLASSES, replace=False, p=there / there.sum())
        wanted = np.full(num_classes, size * (1.0 - MAIN_SHARE) / (num_classes - MAIN_CLASSES))
        wanted[main] = size * MAIN_SHARE / MAIN_CLASSES
        taken: list[int] = []
        for one, number in enumerate(generator.poisson(wanted)):
            taken += [left[one].pop() for _ in range(min(number, max(0, len(left[one]) - 1)))]
        found.append(np.array(taken or [left[int(main[0])][0]], np.int64))
    return found
