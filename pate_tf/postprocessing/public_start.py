"""A linear model of public labels, which noisy sums of private records improve.

Everything here is public or post-processing.
"""

import dataclasses
import itertools
from typing import Final

import numpy as np
import scipy.special

from pate_tf.core.checks import FloatArray, IntArray, RealArray
from pate_tf.core.dataset import is_labeled
from pate_tf.postprocessing.regression import NoisySums, standardisation

FOLDS: Final = 3
PENALTIES: Final = np.geomspace(10.0, 1e-3, 5)  # of squared standardized weights


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PublicStart:
    """A softmax regression of public labels, with the posterior distribution of its weights.

    Attributes:
        weights: weights from vectors to logits, `[width, num_classes]`.
        curvature: second derivatives of the mean loss of a record by the weights of one class,
            `[width, width]`. All classes have the same matrix, and directions that change the
            logits of all classes equally are left out.
        precision: inverse covariance of the weights of one class, given the public labels, `[width,
            width]`.
    """

    weights: FloatArray
    curvature: FloatArray
    precision: FloatArray

    def improved(self, sums: NoisySums, num_records: int | None) -> FloatArray:
        """Returns the most probable weights, given the public labels and noisy sums.

        Let w be the public weights plus a change d. The public labels give d a Gaussian prior with
        mean 0. The second derivatives A of the loss of the private records are the curvature times
        their number. The sums minus those that the public weights predict for the pool are a
        gradient: a measurement of A d. Its covariance L is A (of the labels), plus the covariance
        of the predicted sums, plus the variance of the noise. So (precision + A L^-1 A) d = A L^-1
        (measurement), which is one step of Newton's method. With infinite noise, the result is the
        public weights. The result is public.

        Args:
            sums: noisy sums of vectors by class, with the vectors of the pool.
            num_records: number of private records; None to estimate it from the sums.

        Returns:
            `[width, num_classes]`.
        """
        vectors = sums.vectors.astype(np.float64)
        number = sums.num_records if num_records is None else num_records
        expected = scipy.special.softmax(vectors @ self.weights, axis=1)
        means = vectors.T @ expected / len(vectors)
        measured = sums.values - number * means
        means -= means.mean(axis=1, keepdims=True)
        spread = np.square(expected).sum(axis=1) - 1.0 / expected.shape[1]
        covariance = (vectors.T * spread) @ vectors / len(vectors) - means @ means.T
        sampling = number * (1.0 + number / len(vectors)) / (expected.shape[1] - 1)
        losses = number * self.curvature
        law = losses + sampling * covariance + sums.noise**2 * np.eye(len(losses))
        gain = np.linalg.solve(law, losses).T
        # What is equal for all classes does not change probabilities.
        return self.weights + np.linalg.solve(self.precision + gain @ losses, gain @ measured)


def public_start(
    vectors: RealArray, labels: IntArray, num_classes: int
) -> tuple[PublicStart, FloatArray]:
    """Fits a softmax regression to public labels.

    The prior of the weights of standardized features is Gaussian. Its variance is chosen by the
    likelihood of left-out labels. The curvature is computed from probabilities of left-out inputs,
    because the model is too confident about inputs that it was fitted to.

    Args:
        vectors: vectors of the pool's inputs, `[num_inputs, width]`. The last entry is a constant.
        labels: public labels, with `UNKNOWN` for inputs without a label, `[num_inputs]`.
        num_classes: number of classes.

    Returns:
        The model; and the log probabilities of all inputs `[num_inputs, num_classes]`, by models
        that were not fitted to the label of the input.
    """
    is_known = is_labeled(labels)
    rows = vectors.astype(np.float64)
    mean, factors = standardisation(rows[:, :-1])
    # If all inputs are almost equal, larger factors would only magnify rounding errors.
    factors = np.minimum(factors, np.finfo(np.float32).eps ** -0.5)
    constant = float(rows[:, -1].max()) or 1.0
    unscaled = np.diag([*factors, 1.0 / constant])  # from standardized weights to weights
    unscaled[-1, :-1] = -mean * factors / constant
    known, classes = rows[is_known] @ unscaled, labels[is_known]
    places = np.arange(len(known)) % FOLDS
    outputs = np.empty((len(PENALTIES), len(known), num_classes))
    for fold, (which, penalty) in itertools.product(range(FOLDS), enumerate(PENALTIES)):
        is_out = places == fold
        fitted = _regression(known[~is_out], classes[~is_out], num_classes, penalty)
        outputs[which, is_out] = known[is_out] @ fitted
    outputs = scipy.special.log_softmax(outputs, axis=2)
    best = int(np.take_along_axis(outputs, classes[None, :, None], 2).sum(axis=(1, 2)).argmax())
    weights = unscaled @ _regression(known, classes, num_classes, PENALTIES[best])
    logs = scipy.special.log_softmax(rows @ weights, axis=1)
    logs[is_known] = outputs[best]
    spread = (1.0 - np.exp(2.0 * logs).sum(axis=1)) / (num_classes - 1)
    curvature = (rows.T * spread) @ rows / len(rows)
    scale = np.linalg.inv(unscaled)
    precision = len(known) * curvature + PENALTIES[best] * scale.T @ scale
    return PublicStart(weights=weights, curvature=curvature, precision=precision), logs


def _regression(rows: FloatArray, labels: IntArray, num_classes: int, penalty: float) -> FloatArray:
    """Returns the weights `[width, num_classes]` of a ridge logistic regression.

    Each class has a part of one more label, at the mean of all features, so that no class is
    impossible.
    """
    from sklearn.linear_model import LogisticRegression  # slow to import

    means = np.zeros((num_classes, rows.shape[1]))
    means[:, -1] = 1.0
    # For two classes, scikit-learn fits only the difference of their weights.
    scale = 2.0 if num_classes == 2 else 1.0
    model = LogisticRegression(C=scale / penalty, fit_intercept=False, max_iter=1_000)
    model.fit(
        np.vstack([rows, means]),
        np.concatenate([labels, np.arange(num_classes)]),
        np.repeat([1.0, 1.0 / num_classes], [len(rows), num_classes]),
    )
    weights = model.coef_.T
    return np.hstack([-weights, weights]) / 2.0 if num_classes == 2 else np.asarray(weights)
