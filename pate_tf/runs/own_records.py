"""Records of one holder, from a file of its own."""

import pathlib

from pate_tf import artifacts
from pate_tf.values.dataset import Dataset, to_input_type
from pate_tf.values.sensitive import PrivateExamples


def read_records(path: pathlib.Path, dataset: Dataset) -> PrivateExamples:
    """SENSITIVE: returns the records of a `.npz` file of `inputs` and `labels`.

    Raises:
      ValueError: if it holds none of such a data set.
      OSError: if it can't be read.
    """
    arrays = artifacts.read_arrays(path)
    if set(arrays) != {"inputs", "labels"}:
        raise ValueError(f"{path}: expected the arrays inputs and labels, got others")
    inputs = to_input_type(arrays["inputs"], dataset, str(path))
    return PrivateExamples(dataset, inputs, arrays["labels"])
