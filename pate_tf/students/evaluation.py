"""How good a student is on public samples that it got no label for."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from pate_tf.values.arrays import IntArray
from pate_tf.values.public import UNKNOWN, PoolLabels, PublicExamples, PublicSplit

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


def check_evaluate_on(evaluate_on: str | None, public: PublicSplit) -> None:
    """Checks the name of the samples that are to evaluate a student.

    Args:
      evaluate_on: of `EVALUATED_ON`; None for the held-out ones, if they have labels.
      public: the public samples.

    Raises:
      ValueError: if it is something else, or names samples none of which has a label.
    """
    if evaluate_on is None:
        return
    if evaluate_on not in EVALUATED_ON:
        raise ValueError(
            f"evaluate_on: expected one of {', '.join(EVALUATED_ON)}, got {evaluate_on!r}"
        )
    is_known = public.held_out.labels is not None
    if not is_known and (evaluate_on == HELD_OUT or public.pool_labels is None):
        raise ValueError(
            f"evaluate_on: expected public samples with labels for {evaluate_on}, got none: leave "
            f"it out, and no accuracy is measured"
        )


def evaluated_samples(
    evaluate_on: str | None, public: PublicSplit, *, queries: IntArray
) -> PublicExamples | None:
    """Returns the public samples that evaluate a student: those of them that have a label.

    Args:
      evaluate_on: "held_out", or None, for those outside of the pool, which the student never saw;
        "all_unqueried" for these and all of the pool that was not asked for. There are more of
        them, but a student that learns from the pool saw their inputs, without labels, or with
        labels that it inferred. It flatters queries that were chosen for being hard: they are not
        among these samples.
      public: all public samples.
      queries: positions in the pool that were asked for, `[num_queries]`.

    Returns:
      The samples, each with a label; None if there are none: then nothing can be measured.

    Raises:
      ValueError: as `check_evaluate_on`.
    """
    check_evaluate_on(evaluate_on, public)
    if evaluate_on == ALL_UNQUERIED:
        return public.without(queries).labelled()
    return public.held_out.labelled()


def accuracy_in_pool(labels: PoolLabels, public: PublicSplit) -> Accuracy | None:
    """Returns how many labels of the pool are right; None if no true label of them is known."""
    if public.pool_labels is None:
        return None
    truth = public.pool_labels[labels.query_indices]
    known = truth != UNKNOWN
    return accuracy(labels.labels[known], truth[known]) if known.any() else None


def evaluate(classify: Callable[[npt.NDArray], npt.NDArray], samples: PublicExamples) -> Accuracy:
    """Asks a student for the labels of public samples.

    Args:
      classify: from raw inputs `[num_samples, *input_shape]` to labels `[num_samples]`.
      samples: with the true labels, which serve evaluation alone.

    Raises:
      ValueError: if a sample has no label.
    """
    return accuracy(classify(samples.inputs), true_labels(samples))


def true_labels(samples: PublicExamples) -> IntArray:
    """Returns the labels of samples that all have one, as `PublicExamples.labelled` gives them.

    Raises:
      ValueError: if a sample has none.
    """
    if samples.labels is None or (samples.labels == UNKNOWN).any():
        raise ValueError("samples: expected a label of each, got samples without")
    return samples.labels
