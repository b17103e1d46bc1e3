"""How good a student is on the held-out part of the public split."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from pate_tf.records import PublicExamples

CONFIDENCE_95 = 1.959963984540054  # standard normal quantile of 0.975


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """A share of right answers with what the number of samples leaves open.

    Attributes:
      value: right answers over samples.
      num_samples: how many samples it was measured on.
    """

    value: float
    num_samples: int

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % Wilson score interval."""
        square = CONFIDENCE_95**2 / self.num_samples
        centre = (self.value + square / 2) / (1 + square)
        spread = self.value * (1 - self.value) / self.num_samples
        reach = CONFIDENCE_95 * math.sqrt(spread + square / (4 * self.num_samples))
        reach /= 1 + square
        return centre - reach, centre + reach


def accuracy(labels: npt.ArrayLike, truth: npt.ArrayLike) -> Accuracy:
    """Compares labels `[num_samples]` with the truth `[num_samples]`.

    Raises:
      ValueError: if there are none, or their numbers differ.
    """
    given, expected = np.asarray(labels), np.asarray(truth)
    if given.shape != expected.shape or given.ndim != 1 or not given.size:
        raise ValueError(
            f"accuracy: expected two lists of labels of one length, got {list(given.shape)} and "
            f"{list(expected.shape)}"
        )
    return Accuracy(float((given == expected).mean()), given.size)


def evaluate(classify: Callable[[npt.NDArray], npt.NDArray], held_out: PublicExamples) -> Accuracy:
    """Asks a student for the labels of the held-out samples.

    Args:
      classify: from raw inputs `[num_samples, *input_shape]` to labels `[num_samples]`.
      held_out: public samples that the student was not trained on.
    """
    return accuracy(classify(held_out.inputs), held_out.labels)
