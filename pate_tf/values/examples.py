"""Raw inputs of a data set, whichever side of the door they lie on."""

import dataclasses
from typing import Any

import numpy.typing as npt

from pate_tf.values.arrays import IntArray, frozen_view, labels_array
from pate_tf.values.dataset import Dataset, check_inputs


@dataclasses.dataclass(frozen=True)
class Examples:
    """Inputs of a data set; `PrivateExamples` or `PublicExamples`, never this itself."""

    dataset: Dataset
    inputs: npt.NDArray[Any] = dataclasses.field(repr=False)

    def __post_init__(self) -> None:
        check_inputs(self.inputs, self.dataset)
        object.__setattr__(self, "inputs", frozen_view(self.inputs))

    def __len__(self) -> int:
        return len(self.inputs)


def checked_labels(labels: npt.ArrayLike, examples: Examples, *, lowest: int = 0) -> IntArray:
    """Returns the labels of examples as int64 that can't be written.

    Args:
      labels: `[num_examples]`.
      examples: whose labels they are.
      lowest: the least number that a label may be.

    Raises:
      ValueError: if they are not one label for each example, from `lowest` to `num_classes - 1`.
        The message never carries a label.
    """
    dataset = examples.dataset
    found = labels_array(labels, dataset.num_classes, f"labels of {dataset.name}", lowest=lowest)
    if found.shape != (len(examples),):
        raise ValueError(
            f"labels of {dataset.name}: expected [{len(examples)}], got {list(found.shape)}"
        )
    return frozen_view(found)
