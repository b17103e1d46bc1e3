"""Labels of a public pool from noisy sums of private records: post-processing, free."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pate_tf.accounting.charge import ReleasedLabels
from pate_tf.accounting.conversions import LATTICE
from pate_tf.core.public import Pool
from pate_tf.core.validation import IntArray
from pate_tf.data.named_function import Named
from pate_tf.models.encoder import nearest_centres
from pate_tf.queries.labels import Labels
from pate_tf.queries.propagation import Inferred, infer_from_sums
from pate_tf.release.noisy_sums import ReleasedSums, sums_of_rounds, weights_of_rounds
from pate_tf.representations.regression import NoisySums


@dataclasses.dataclass(frozen=True, kw_only=True)
class PseudoLabels:
    """Public: labels of a whole pool that follow from noisy sums.

    Attributes:
        inferred: the labels.
        sums: of the first round, as they were read.
        weights: of a linear model from vectors to logits, `[width, num_classes]`; None of clusters,
            and of sums without moments.
    """

    inferred: Inferred
    sums: NoisySums
    weights: npt.NDArray[np.float64] | None

    def release(self, pool: Pool, released: ReleasedSums, **facts: Any) -> Labels:
        """Returns the labels with what the sums cost; `facts` are further fields of `Labels`."""
        first = self.inferred.first
        labels = ReleasedLabels(
            query_indices=first.query_indices,
            labels=first.labels,
            num_classes=first.num_classes,
            num_queries=len(pool),
            cost=released.cost,
            ledger_rows=released.ledger_rows,
            secure_noise=released.secure_noise,
            noisy_sums=released.values,
        )
        return Labels(
            pool=pool,
            queries=labels.query_indices,
            released=labels,
            training_labels=self.inferred.learnt,
            certainty=self.inferred.certainty,
            network=self.inferred.network,
            network_is_better=self.inferred.network_is_better,
            sums=self.sums,
            strategy="first",  # all of the pool, in its order
            **facts,
        )


def labels_from_sums(
    pool: Pool,
    vectors: npt.NDArray[np.floating],
    values: IntArray,
    noise: float,
    *,
    groups: tuple[int, ...] = (),
    centres: npt.NDArray[np.float64] | None = None,
    moments: npt.NDArray[np.float64] | None = None,
    num_records: int = 0,
    representation: Named | None = None,
    views: Sequence[Sequence[npt.NDArray[np.floating]]] | None = None,
    seed: int = 0,
    self_training: bool = True,
) -> PseudoLabels:
    """Infers labels of a pool from noisy sums of what records add.

    Args:
        pool: public inputs.
        vectors: what each input would add, `[num_inputs, num_features + 1]`.
        values: noisy sums in steps of 1 / LATTICE, `[num_rounds, num_rows, num_classes]`.
        noise: standard deviation of each round, in what a record adds at most.
        groups: of the features, as of `Encoder.groups`.
        centres: of the clusters that records were counted in; None for sums of vectors.
        moments: of the pool's vectors, `[width, width]`, for a linear model; several rounds need
            them.
        num_records: private records, with moments.
        representation: of images, by its name, whose features are compared; None for the default.
        views: these features, where they are known.
        seed: of the features, and of the network that learns from labels.
        self_training: whether a network learns from the labels of images and gives better ones.
    """
    weights, of_rounds, total = None, None, values[0] / LATTICE
    if centres is not None:
        sums = NoisySums.of_clusters(nearest_centres(vectors[:, :-1], centres), total, noise)
    else:
        sums = NoisySums.of_features(vectors, total, noise, groups)
    if moments is not None:
        weights = weights_of_rounds(values, moments, num_records, noise)
        if len(values) > 1:
            told = sums_of_rounds(values, vectors, moments, num_records, noise)
            of_rounds = NoisySums.of_features(vectors, *told)
    inferred = infer_from_sums(
        pool,
        sums,
        seed,
        representation=representation,
        views=views,
        weights=weights if len(values) > 1 else None,
        of_rounds=of_rounds,
        self_training=self_training,
    )
    if weights is not None and inferred.weights is not None:
        weights = inferred.weights
    return PseudoLabels(inferred=inferred, sums=sums, weights=weights)
