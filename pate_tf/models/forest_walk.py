"""Asks a forest without scikit-learn, whose import takes more memory than a whole silo."""

from typing import Any

import numpy as np
import numpy.typing as npt

from pate_tf.models.forest import LEAF, Forest, flat_rows
from pate_tf.values.arrays import IntArray


class WalkedForest:
    """Sensitive if its records were: a forest that NumPy walks, all inputs of a tree at a time.

    Several times slower than `Forest.predict`, which is compiled; the labels are the same.
    """

    def __init__(self, forest: Forest) -> None:
        """Takes a forest."""
        self._forest = forest

    def __repr__(self) -> str:
        return "WalkedForest(<trees>)"

    def predict(self, inputs: npt.NDArray[Any]) -> IntArray:
        """Returns labels int64 `[num_inputs]`; see `Forest.predict`.

        Raises:
          ValueError: if the inputs have another number of features, or are not finite.
        """
        forest = self._forest
        rows = flat_rows(inputs)
        if rows.shape[1] != forest.num_features:
            raise ValueError(
                f"inputs: expected {forest.num_features} features, got {rows.shape[1]}"
            )
        total = np.zeros((len(rows), forest.num_classes))
        for start, end in zip(forest.starts[:-1], forest.starts[1:], strict=True):
            children = forest.children[start:end]
            features, thresholds = forest.features[start:end], forest.thresholds[start:end]
            nodes = np.zeros(len(rows), np.int32)
            walking = np.flatnonzero(children[nodes, 0] != LEAF)
            while len(walking):
                at = nodes[walking]
                is_right = rows[walking, features[at]] > thresholds[at]
                nodes[walking] = children[at, is_right.astype(np.int8)]
                walking = walking[children[nodes[walking], 0] != LEAF]
            total += forest.probabilities[start:end][nodes]
        return (total / forest.num_trees).argmax(axis=1).astype(np.int64)
