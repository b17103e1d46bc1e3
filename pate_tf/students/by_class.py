"""How a model does class by class: what accuracy hides where one class is rare.

Of 2 % positives a model that never says so gets 98 % right, finds none of them, and has a balanced
accuracy of one over the number of classes.
"""

import dataclasses

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from pate_tf.values.arrays import IntArray


@dataclasses.dataclass(frozen=True)
class ByClass:
    """What public labels say of answers, class by class. As public as the answers are.

    Attributes:
      recall: of each class, the share of its samples that were given it; None for a class without
        samples.
      auc: area under the curve of true against false positives, of the second class of two, else
        the mean of each class against the rest; None where a class has no sample, or no
        probabilities are known.
      is_constant: whether all answers are the same.
    """

    recall: tuple[float | None, ...]
    auc: float | None
    is_constant: bool

    @property
    def balanced_accuracy(self) -> float:
        """Mean recall of the classes that have samples."""
        return float(np.mean([one for one in self.recall if one is not None]))


def by_class(
    labels: IntArray,
    truth: IntArray,
    num_classes: int,
    probabilities: npt.NDArray[np.floating] | None = None,
) -> ByClass:
    """Compares answers `[num_samples]` with the truth `[num_samples]`, class by class.

    Args:
      labels: the answers.
      truth: what they should be.
      num_classes: number of classes.
      probabilities: of each class, `[num_samples, num_classes]`; None if they are not known.
    """
    recall = tuple(
        float((labels[truth == one] == one).mean()) if (truth == one).any() else None
        for one in range(num_classes)
    )
    auc = None
    if probabilities is not None and None not in recall and num_classes > 1:
        scores = [
            _auc(truth == one, probabilities[:, one])
            for one in ([1] if num_classes == 2 else range(num_classes))
        ]
        auc = float(np.mean(scores))
    return ByClass(recall, auc, is_constant=bool((labels == labels[0]).all()))


def _auc(is_positive: npt.NDArray[np.bool_], scores: npt.NDArray[np.floating]) -> float:
    """Share of pairs of a positive and a negative whose scores are in that order; ties are half."""
    num_positive = int(is_positive.sum())
    smallest = num_positive * (num_positive + 1) / 2  # of the sum of their ranks
    above = float(rankdata(scores)[is_positive].sum()) - smallest
    return above / (num_positive * (len(scores) - num_positive))
