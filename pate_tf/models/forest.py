"""Random forests: fitted by scikit-learn and stored as plain arrays, without pickle.

A scikit-learn forest consists of Python objects around compiled trees, and it is only safe to read
such objects from a trusted file. Arrays of numbers are sufficient for prediction and need a
twentieth of the space. Arrays can also be checked: `Forest` raises an error if arrays do not form
trees. An exported student uses the same arrays in a TensorFlow graph. Only the function `fit`
imports scikit-learn, because scikit-learn needs more memory than all other parts of a silo.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pate_tf.core import checks
from pate_tf.core.checks import IntArray
from pate_tf.core.dataset import CLASS, Dataset
from pate_tf.data.named_function import Named, call_function, is_named_function, name_of

RANDOM_FOREST = "random_forest"
NUM_TREES = 100  # as in the PATE paper; also scikit-learn's default
LEAF = -1  # value in `children` for a leaf


@dataclasses.dataclass(frozen=True)
class Forest:
    """A fitted forest of trees. It is sensitive if its training records are sensitive.

    At each node, an input goes to the left child if the node's feature is at most the threshold.
    The class probabilities of all trees are averaged. The label is the most probable class, or the
    first of several equally probable classes.

    Attributes:
        starts: index of each tree's first node, followed by the total number of nodes, int64
            `[num_trees + 1]`.
        children: indices of each node's left and right child, relative to the tree's first node; -1
            at leaves; int32 `[num_nodes, 2]`.
        features: index of the feature that each node compares, int32 `[num_nodes]`; 0 at leaves.
        thresholds: threshold of each node for its feature, float64 `[num_nodes]`; 0 at leaves.
        probabilities: class probabilities of each leaf, float64 `[num_nodes, num_classes]`; 0 at
            inner nodes.
        num_features: number of features of an input.

    Raises:
        ValueError: if the arrays do not form trees with `num_features` features.
    """

    starts: IntArray = dataclasses.field(repr=False)
    children: npt.NDArray[np.int32] = dataclasses.field(repr=False)
    features: npt.NDArray[np.int32] = dataclasses.field(repr=False)
    thresholds: npt.NDArray[np.float64] = dataclasses.field(repr=False)
    probabilities: npt.NDArray[np.float64] = dataclasses.field(repr=False)
    num_features: int

    def __post_init__(self) -> None:
        refused = ValueError("forest: the arrays do not form trees")
        num_nodes = len(self.features)
        sizes = np.diff(self.starts)
        for array, dtype, shape in (
            (self.starts, np.int64, (len(self.starts),)),
            (self.children, np.int32, (num_nodes, 2)),
            (self.features, np.int32, (num_nodes,)),
            (self.thresholds, np.float64, (num_nodes,)),
            (self.probabilities, np.float64, (num_nodes, *self.probabilities.shape[1:2])),
        ):
            if array.dtype != dtype or array.shape != shape:
                raise refused
        covers = len(sizes) and self.starts[0] == 0 and self.starts[-1] == num_nodes
        if not covers or (sizes < 1).any() or self.probabilities.ndim != 2 or not self.num_classes:
            raise refused
        places = np.arange(num_nodes) - np.repeat(self.starts[:-1], sizes)
        # Checks that each child comes after its parent, so that there are no cycles.
        inner = ~(self.children == LEAF).all(axis=1)
        children = self.children[inner]
        if not (
            (children.min(axis=1) > places[inner]).all()
            and (children.max(axis=1) < np.repeat(sizes, sizes)[inner]).all()
            and ((self.features >= 0) & (self.features < self.num_features)).all()
            and np.isfinite(self.thresholds).all()
            and ((self.probabilities >= 0.0) & (self.probabilities <= 1.0)).all()
        ):
            raise refused

    @property
    def num_trees(self) -> int:
        """Number of trees."""
        return len(self.starts) - 1

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return self.probabilities.shape[1]

    def arrays(self) -> list[npt.NDArray[Any]]:
        """Returns all arrays; `from_arrays` is the inverse."""
        return [np.asarray(getattr(self, field.name)) for field in dataclasses.fields(self)]

    @classmethod
    def from_arrays(cls, arrays: Sequence[npt.NDArray[Any]]) -> "Forest":
        """Rebuilds a forest from `arrays()`; raises ValueError if they do not form a forest."""
        if len(arrays) != len(dataclasses.fields(cls)) or arrays[-1].shape != ():
            raise ValueError("forest: the arrays do not form trees")
        starts, children, features, thresholds, probabilities, num_features = arrays
        return cls(starts, children, features, thresholds, probabilities, int(num_features))

    def predict(self, inputs: npt.NDArray[Any], dataset: Dataset | None = None) -> IntArray:
        """Predicts the same labels as scikit-learn's fitted forest, int64 `[num_inputs]`.

        Args:
            inputs: finite inputs `[num_inputs, ...]` with `num_features` numbers each.
            dataset: not used; exists for compatibility with `estimators.Estimator.predict`.

        Raises:
            ValueError: if the inputs have a wrong number of features, or are not finite.
        """
        rows = flat_rows(inputs)
        checks.shape(["num_inputs", self.num_features], inputs=rows)
        total = np.zeros((len(rows), self.num_classes))
        for start, end in itertools.pairwise(self.starts):
            children = self.children[start:end]
            features = self.features[start:end]
            thresholds = self.thresholds[start:end]
            nodes = np.zeros(len(rows), np.int32)
            walking = np.flatnonzero(children[nodes, 0] != LEAF)
            while len(walking):
                at = nodes[walking]
                is_right = rows[walking, features[at]] > thresholds[at]
                nodes[walking] = children[at, is_right.astype(np.int8)]
                walking = walking[children[nodes[walking], 0] != LEAF]
            total += self.probabilities[start:end][nodes]
        # Divides as scikit-learn does, because rounding can make the scores of two classes equal.
        return (total / self.num_trees).argmax(axis=1).astype(np.int64)


def flat_rows(inputs: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Reshapes inputs to float32 rows; raises ValueError unless all inputs are finite."""
    rows = np.ascontiguousarray(
        inputs.reshape(len(inputs), int(np.prod(inputs.shape[1:]))), np.float32
    )
    if not np.isfinite(rows).all():
        raise ValueError("inputs must be finite, got NaN or infinity")
    return rows


def is_forest(model: Named, dataset: Dataset) -> bool:
    """Whether a model (a name or a function) is a forest that predicts classes."""
    return dataset.target == CLASS and (
        model == RANDOM_FOREST
        or (is_named_function(model) and _is_forest(unfitted(model, dataset)))
    )


def _is_forest(estimator: Any) -> bool:
    from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier

    return isinstance(estimator, RandomForestClassifier | ExtraTreesClassifier)


def unfitted(model: Named, dataset: Dataset) -> Any:
    """Returns the unfitted estimator for a model: a forest or any other estimator."""
    if model == RANDOM_FOREST:
        from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

        kind = RandomForestClassifier if dataset.target == CLASS else RandomForestRegressor
        return kind(n_estimators=NUM_TREES)
    return call_function(model, dataset, flag="model")


def fit(
    model: Named, dataset: Dataset, inputs: npt.NDArray[Any], labels: IntArray, seed: int
) -> Forest:
    """Fits a scikit-learn forest.

    Args:
        model: "random_forest" for scikit-learn's defaults with 100 trees; or a function that takes
            a `Dataset` and returns an unfitted forest, as an object or as `module:function`.
        dataset: data set of the inputs.
        inputs: raw inputs `[num_records, *input_shape]`.
        labels: classes of the records, `[num_records]`; some classes may have no records.
        seed: seed of the forest.

    Raises:
        ValueError: if the inputs are not finite, or the model is not a scikit-learn forest.
    """
    from sklearn.base import clone

    estimator = unfitted(model, dataset)
    if not _is_forest(estimator):
        raise ValueError(
            f"model {name_of(model)} must be a scikit-learn forest, got {type(estimator).__name__}"
        )
    rows = flat_rows(inputs)
    # Fits a copy, so that each teacher starts from the same state.
    estimator = clone(estimator).set_params(random_state=seed).fit(rows, labels)
    trees = [tree.tree_ for tree in estimator.estimators_]
    children = np.concatenate(
        [np.stack([tree.children_left, tree.children_right], axis=1) for tree in trees]
    ).astype(np.int32)
    is_leaf = children[:, 0] == LEAF
    probabilities = np.zeros((len(children), dataset.num_classes))
    values = np.concatenate([tree.value[:, 0, :] for tree in trees])
    probabilities[:, estimator.classes_] = np.where(is_leaf[:, np.newaxis], values, 0.0)
    features = np.concatenate([tree.feature for tree in trees])
    return Forest(
        starts=np.cumsum([0, *(tree.node_count for tree in trees)]).astype(np.int64),
        children=children,
        features=np.where(is_leaf, 0, features).astype(np.int32),
        thresholds=np.where(is_leaf, 0.0, np.concatenate([tree.threshold for tree in trees])),
        probabilities=probabilities,
        num_features=rows.shape[1],
    )
