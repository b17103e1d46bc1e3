"""Arrays that a user brings, checked and brought into shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pate_tf.values.dataset import Dataset, check_inputs, to_input_type
from pate_tf.values.public import PublicExamples

ValueRange = tuple[float, float] | tuple[Sequence[float], Sequence[float]]
PIXELS = (0.0, 255.0)
HELD_OUT = 0.3  # of public samples that have labels


def array(values: npt.ArrayLike, what: str) -> npt.NDArray[Any]:
    """Returns inputs `[num_inputs, ...]` as an array; raises ValueError if they are no numbers."""
    array = np.asarray(values)
    if array.dtype.kind not in "uif" or array.ndim < 2:
        raise ValueError(
            f"{what}: expected numbers [num_inputs, ...], got {array.dtype} of shape "
            f"{list(array.shape)}"
        )
    return array


def value_range_of(given: ValueRange | None, public: npt.NDArray[Any], kind: str) -> Any:
    """Returns the range of inputs, as a `Dataset` has it; raises ValueError if it is not known."""
    if given is None:
        if kind == "image" and public.dtype == np.uint8:
            return PIXELS
        raise ValueError(
            f"value_range: expected the lowest and the highest value of an input, from public "
            f"knowledge, for {kind} inputs of {public.dtype}; got none"
        )
    if len(given) != 2:
        raise ValueError(f"value_range: expected a lowest and a highest value, got {len(given)}")
    # Numbers or tuples of numbers, as a `Dataset` has them.
    return tuple(
        tuple(side) if isinstance(side, list) else side
        for side in (np.asarray(each, np.float64).tolist() for each in given)
    )


def fit_uint8(range_: Any) -> bool:
    """Whether numbers of a range are bytes, if they are whole."""
    return bool(np.min(range_[0]) >= 0 and np.max(range_[1]) <= 255)


def pool_size(num_public: int, held_out: float | None, *, has_labels: bool) -> int:
    """Returns how many public samples form the pool; raises ValueError for no share."""
    share = (HELD_OUT if has_labels else 0.0) if held_out is None else held_out
    if not 0.0 <= share < 1.0:
        raise ValueError(f"held_out: expected a share from 0 to below 1, got {share}")
    # Whoever has labels and holds nothing out measures nothing.
    size = min(max(1, round(num_public * (1.0 - share))), num_public)
    return size if share == 0.0 else min(size, num_public - 1)


def checked(inputs: npt.NDArray[Any], dataset: Dataset, what: str) -> npt.NDArray[Any]:
    """Returns inputs in the data set's type, none of them out of its range."""
    try:
        check_inputs(inputs, dataset)
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None
    low, high = (np.asarray(side) for side in dataset.value_range)
    if not ((inputs >= low) & (inputs <= high)).all():
        raise ValueError(
            f"{what}: expected numbers in value_range {dataset.value_range}, got others: clip "
            f"each record by itself, or give the range that is meant"
        )
    return to_input_type(inputs, dataset, what)


def reordered(samples: PublicExamples, pool_size: int, seed: int) -> PublicExamples:
    """Returns samples with the held-out ones at the end; both parts keep their order."""
    drawn = np.random.default_rng(seed).permutation(len(samples))
    order = np.concatenate([np.sort(drawn[:pool_size]), np.sort(drawn[pool_size:])])
    labels = None if samples.labels is None else samples.labels[order]
    return PublicExamples(samples.dataset, samples.inputs[order], labels)
