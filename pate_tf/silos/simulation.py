"""Thousands of silos in one process, to plan with: what would open, without any cryptography."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from pate_tf.accounting.local import SecureFeatureSums
from pate_tf.aggregation.feature_sums import sums_by_class
from pate_tf.aggregation.noise import NoiseSource
from pate_tf.core import validation
from pate_tf.core.validation import IntArray


def simulated_total(
    vectors: npt.NDArray[np.float64],
    labels: IntArray,
    silos: npt.NDArray[np.generic],
    release: SecureFeatureSums,
    *,
    num_classes: int,
    noise: NoiseSource,
    unit: str = "record",
    without: Collection[object] = (),
) -> IntArray | None:
    """Returns the total that silos would open, int64 `[num_features + 1, num_classes]`.

    The same whole numbers as over the network: each silo's sums, each with its own share of the
    noise. The caller sees all records, so that nothing is private: it is for planning, on
    public or made-up records.

    >>> import numpy as np
    >>> from pate_tf.accounting.local import SecureFeatureSums
    >>> from pate_tf.aggregation.noise import SeededNoise
    >>> release = SecureFeatureSums.for_epsilon(1.0, delta=1e-6, num_features=1,
    ...     least_silos=800, colluding=100, num_parties=4, threshold=1)
    >>> total = simulated_total(np.full((1_000, 2), 0.5), np.arange(1_000) % 2, np.arange(1_000),
    ...     release, num_classes=2, noise=SeededNoise(0))
    >>> bool((abs(total / 2**20 - 250) < 60).all())
    True

    Args:
        vectors: of all records, `[num_records, num_features + 1]`, each of an L2 norm of at most 1.
        labels: `[num_records]`.
        silos: whose each record is, `[num_records]`.
        release: what each silo is charged.
        num_classes: number of classes.
        noise: `SeededNoise` is faster than the operating system's.
        unit: "record"; or "owner" where every silo is one person, whose vectors have an L2 norm of
            at most 1 together.
        without: silos that drop out.

    Returns:
        In steps of 1 / LATTICE; None where fewer silos than `release.least_silos` are left.

    Raises:
        ValueError: if lengths or the unit don't fit.
    """
    validation.one_of(("record", "owner"), unit=unit)
    if not len(vectors) == len(labels) == len(silos):
        raise ValueError("silos: expected a vector, a label and a silo of each record")
    if vectors.shape[1] != release.num_features + 1:
        raise ValueError(
            f"vectors: expected {release.num_features + 1} numbers, got {vectors.shape[1]}"
        )
    is_there = (
        ~np.isin(silos, np.array(list(without))) if without else np.ones(len(silos), np.bool_)
    )
    num_silos = len(np.unique(silos[is_there]))
    if num_silos < release.least_silos:
        return None
    # Truncated record by record or owner by owner, so that silos' sums add up to that of all.
    total = sums_by_class(
        vectors[is_there],
        labels[is_there],
        num_classes=num_classes,
        owners=silos[is_there] if unit == "owner" else None,
    )
    for _ in range(num_silos):
        total += noise.gaussian_integers(release.share_scale, total.size).reshape(total.shape)
    return total
