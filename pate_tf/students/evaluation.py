"""How good a student is on public samples that it got no label for."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from pate_tf.records import IntArray, PublicExamples

HELD_OUT, ALL_UNQUERIED = "held_out", "all_unqueried"
EVALUATED_ON = (HELD_OUT, ALL_UNQUERIED)
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


def check_evaluate_on(evaluate_on: str) -> None:
    """Checks the name of the samples that evaluate a student.

    Raises:
      ValueError: if it is not in `EVALUATED_ON`.
    """
    if evaluate_on not in EVALUATED_ON:
        raise ValueError(
            f"evaluate_on: expected one of {', '.join(EVALUATED_ON)}, got {evaluate_on!r}"
        )


def evaluated_samples(
    evaluate_on: str, public: PublicExamples, *, pool_size: int, queries: IntArray
) -> PublicExamples:
    """Returns the public samples that evaluate a student.

    Args:
      evaluate_on: "held_out" for those outside of the pool, which the student never saw;
        "all_unqueried" for these and all of the pool that was not asked for. There are more of
        them, but a student that learns from the pool saw their inputs, without labels, or with
        labels that it inferred. It flatters queries that were chosen for being hard: they are not
        among these samples.
      public: all public samples.
      pool_size: how many of them, from the first, form the pool.
      queries: positions in the pool that were asked for, `[num_queries]`.

    Raises:
      ValueError: if `evaluate_on` is neither, or the pool leaves nothing held out.
    """
    check_evaluate_on(evaluate_on)
    held_out = public.split(pool_size)[1]
    if evaluate_on == HELD_OUT:
        return held_out
    unqueried = np.delete(np.arange(len(public)), queries)
    return PublicExamples(public.dataset, public.inputs[unqueried], public.labels[unqueried])


def evaluate(classify: Callable[[npt.NDArray], npt.NDArray], samples: PublicExamples) -> Accuracy:
    """Asks a student for the labels of public samples.

    Args:
      classify: from raw inputs `[num_samples, *input_shape]` to labels `[num_samples]`.
      samples: with the true labels, which serve evaluation alone.
    """
    return accuracy(classify(samples.inputs), samples.labels)
