"""Random forests as plain arrays: fitted by scikit-learn, stored without pickle, checked.

A forest of scikit-learn is Python objects around compiled trees, and reading such objects from a
file means to trust it. Arrays of numbers hold all that is needed to answer, are a twentieth of the
size, and `Forest` refuses any that do not form trees. The same arrays make the graph that a student
is served as. Only fitting imports scikit-learn, which takes more memory than a whole silo.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pate_tf.core.checks import IntArray
from pate_tf.core.dataset import CLASS, Dataset
from pate_tf.data.named_function import Named, call_function, is_named_function, name_of

RANDOM_FOREST = "random_forest"
NUM_TREES = 100  # the paper's, and scikit-learn's default
LEAF = -1  # in place of a child


@dataclasses.dataclass(frozen=True)
class Forest:
    """Sensitive if its records were: trees whose leaves hold class probabilities.

    A node's input goes to the left child if its feature is at most the threshold. The trees'
    probabilities are averaged; the label is the likeliest class, the lowest of equals.

    Attributes:
        starts: int64 `[num_trees + 1]`, the first node of each tree, and the number of nodes.
        children: int32 `[num_nodes, 2]`, left and right child, counted from the tree's first node;
            -1 at leaves.
        features: int32 `[num_nodes]`, the feature asked for; 0 at leaves.
        thresholds: float64 `[num_nodes]`; 0 at leaves.
        probabilities: float64 `[num_nodes, num_classes]`; 0 where there is no leaf.
        num_features: how many features an input has.

    Raises:
        ValueError: if the arrays do not form trees over that many features.
    """

    starts: IntArray = dataclasses.field(repr=False)
    children: npt.NDArray[np.int32] = dataclasses.field(repr=False)
    features: npt.NDArray[np.int32] = dataclasses.field(repr=False)
    thresholds: npt.NDArray[np.float64] = dataclasses.field(repr=False)
    probabilities: npt.NDArray[np.float64] = dataclasses.field(repr=False)
    num_features: int

    def __post_init__(self) -> None:
        refused = ValueError("forest: expected arrays that form trees, got others")
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
        # A child comes after its parent, so that a way down can't go round in a circle.
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
        """Rebuilds a forest from `arrays()`; ValueError if the arrays do not form a forest."""
        if len(arrays) != len(dataclasses.fields(cls)) or arrays[-1].shape != ():
            raise ValueError("forest: expected arrays that form trees, got others")
        starts, children, features, thresholds, probabilities, num_features = arrays
        return cls(starts, children, features, thresholds, probabilities, int(num_features))

    def predict(self, inputs: npt.NDArray[Any], dataset: Dataset | None = None) -> IntArray:
        """Returns labels int64 `[num_inputs]`: exactly those of the forest that was fitted.

        Args:
            inputs: `[num_inputs, ...]`, finite numbers, `num_features` each.
            dataset: taken as `estimators.Estimator.predict` does; a forest here is of classes.

        Raises:
            ValueError: if the inputs have another number of features, or are not finite.
        """
        del dataset
        rows = flat_rows(inputs)
        if rows.shape[1] != self.num_features:
            raise ValueError(f"inputs: expected {self.num_features} features, got {rows.shape[1]}")
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
        # The division too: it can round two classes to equals, as it does in scikit-learn.
        return (total / self.num_trees).argmax(axis=1).astype(np.int64)


def flat_rows(inputs: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Returns inputs `[num_inputs, ...]` as float32 rows; ValueError if a number is not finite."""
    rows = np.ascontiguousarray(
        inputs.reshape(len(inputs), int(np.prod(inputs.shape[1:]))), np.float32
    )
    if not np.isfinite(rows).all():
        raise ValueError("inputs: expected finite numbers, got NaN or infinity")
    return rows


def is_forest(model: Named, dataset: Dataset) -> bool:
    """Whether `--model` names a forest of classes: by name, or a function that returns one."""
    return dataset.target == CLASS and (
        model == RANDOM_FOREST
        or (is_named_function(model) and _is_forest(unfitted(model, dataset)))
    )


def _is_forest(estimator: Any) -> bool:
    from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier

    return isinstance(estimator, RandomForestClassifier | ExtraTreesClassifier)


def unfitted(model: Named, dataset: Dataset) -> Any:
    """Returns the unfitted estimator that `--model` names, also one that is no forest."""
    if model == RANDOM_FOREST:
        from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

        kind = RandomForestClassifier if dataset.target == CLASS else RandomForestRegressor
        return kind(n_estimators=NUM_TREES)
    return call_function(model, dataset, flag="model")


def fit(
    model: Named, dataset: Dataset, inputs: npt.NDArray[Any], labels: IntArray, seed: int
) -> Forest:
    """Fits a forest of scikit-learn.

    Args:
        model: "random_forest" for scikit-learn's defaults with 100 trees, or a function from a
            `Dataset` to an unfitted forest, itself or as `module:function`.
        dataset: the data the forest is for.
        inputs: `[num_records, *input_shape]`, raw.
        labels: `[num_records]`; classes may be missing among them.
        seed: fixes the forest.

    Raises:
        ValueError: if the inputs are not finite, or the model is no forest of scikit-learn.
    """
    from sklearn.base import clone

    estimator = unfitted(model, dataset)
    if not _is_forest(estimator):
        raise ValueError(
            f"model {name_of(model)}: expected a forest of scikit-learn, got "
            f"{type(estimator).__name__}"
        )
    rows = flat_rows(inputs)
    # A copy: what is fitted may not go on from what another teacher left.
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
