"""Linear functions that predict a number, or several labels, from noisy sums. Post-processing."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import scipy.special

from pate_tf.accounting.conversions import LATTICE
from pate_tf.core.checks import IntArray
from pate_tf.core.dataset import Dataset
from pate_tf.core.public import PoolLabels
from pate_tf.models.encoder import CONSTANT
from pate_tf.postprocessing.regression import (
    LEAST_VARIANCE,
    functions_of_moments,
    labels_of,
    regress,
    standardisation,
)

EPS = float(np.finfo(np.float32).eps)


def target_functions(
    dataset: Dataset,
    vectors: npt.NDArray[np.floating],
    values: IntArray,
    noise: float,
    *,
    num_records: int | None = None,
    groups: IntArray | None = None,
) -> npt.NDArray[np.float64]:
    """Returns weights from a vector to what a student predicts, `[width, num_outputs]`. Public.

    Args:
        dataset: of a number or several labels.
        vectors: of the public pool, `[num_inputs, width]`; without rows where there is none.
        values: noisy sums of records, in steps of 1 / LATTICE: `[width, num_classes]`, without a
            pool `[width, num_classes + width]`.
        noise: standard deviation on each number, in what a record adds at most.
        num_records: private records; None where that is not public.
        groups: as of `functions_of_moments`.

    Returns:
        Of a number one function, 0 at the lowest value of its range and 1 at the highest; of
        several labels the log odds of each.
    """
    if len(vectors):
        functions, shares = _functions_of_sums(
            dataset, vectors, values / LATTICE, noise, num_records
        )
    else:
        functions, shares, _ = functions_of_moments(
            values,
            dataset.num_classes,
            noise,
            num_records=num_records,
            groups=groups,
            max_labels=dataset.max_labels,
        )
    if dataset.target_range is not None:
        return functions[:, 1:]
    # The first terms of the Taylor series of the log odds, at the label's share.
    shares = np.clip(shares, EPS, 1.0 - EPS)
    slopes = 1.0 / (shares * (1.0 - shares))
    functions = functions * slopes
    functions[-1] += (scipy.special.logit(shares) - shares * slopes) / CONSTANT
    return functions


def _functions_of_sums(
    dataset: Dataset,
    vectors: npt.NDArray[np.floating],
    sums: npt.NDArray[np.float64],
    noise: float,
    num_records: int | None,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Returns functions of vectors as of `functions_of_moments`, and shares, with a pool.

    What a target has in common with a feature is the covariance of both. The pool says how
    features vary together. Each function is the likeliest one under Gaussian priors (`regress`).
    """
    mean, factors = standardisation(vectors[:, :-1], LEAST_VARIANCE)
    rows = ((vectors[:, :-1] - mean) * factors).astype(np.float32)
    measured = (vectors[:, :-1] - mean).T @ rows / len(rows)
    unit = math.sqrt(max(float(np.square(measured).sum(axis=1).mean()), np.finfo(float).tiny))
    if dataset.target_range is None:
        sums = sums * math.sqrt(dataset.max_labels)
        noise *= math.sqrt(dataset.max_labels)
        number = float(num_records or max(sums[-1].max() / CONSTANT, 1.0))
        shares = np.clip(sums[-1] / CONSTANT / number, 0.0, 1.0)
        beyond = sums[:-1] - np.outer(number * mean, shares)
        noises = np.full(len(shares), noise)
    else:
        number = float(num_records or max(sums[-1].sum() / CONSTANT, 1.0))
        high = float(np.clip(sums[-1, 1] / max(sums[-1].sum(), CONSTANT), 0.0, 1.0))
        shares = np.array([1.0 - high, high])
        # Sums of v s less those of v, times the mean of s: what all records share drops out.
        covariance = (1.0 - high) * sums[:-1, 1] - high * sums[:-1, 0]
        beyond = np.column_stack([-covariance, covariance])
        noises = np.full(2, noise * math.hypot(*shares))
    spread = float(np.square(vectors[:, :-1]).mean())
    # Which records happened to be there, and where sums of all are not known, which inputs.
    drawn = number * spread * shares * (1.0 - shares)
    if dataset.target_range is None:
        drawn += number * (1.0 + number / len(vectors)) * spread * shares**2
    deviations = np.sqrt(noises**2 + drawn) / number / unit
    fits = regress(
        rows[:1],
        measured / unit,
        [
            (beyond[:, place : place + 1] / number / unit, float(deviation))
            for place, deviation in enumerate(deviations)
        ],
    )
    weights = factors[:, None] * np.hstack([np.asarray(fit.weights) for fit in fits])
    return np.vstack([weights, (shares - mean @ weights) / CONSTANT]), shares


def predictions_of_pool(outputs: npt.NDArray[np.float64], dataset: Dataset) -> PoolLabels:
    """Returns what functions of `target_functions` say of a pool, as labels of its inputs.

    Of a number, each input's weights of its lowest and highest value; of several labels the most
    probable one.

    Args:
        outputs: of the functions, `[num_inputs, num_outputs]`.
        dataset: of the pool.
    """
    if dataset.target_range is not None:
        share = np.clip(outputs[:, 0], 0.0, 1.0)
        return labels_of(np.column_stack([1.0 - share, share]))
    return PoolLabels(
        query_indices=np.arange(len(outputs)),
        labels=outputs.argmax(axis=1),
        num_classes=dataset.num_classes,
    )


def predicted(outputs: npt.NDArray[np.floating], dataset: Dataset) -> npt.NDArray[np.float64]:
    """Returns what outputs of functions say: numbers in their unit, or probabilities of labels.

    Args:
        outputs: `[num_inputs, num_outputs]`.
        dataset: of a number or several labels.

    Returns:
        `[num_inputs]`, within the number's range; or `[num_inputs, num_labels]`.
    """
    if dataset.target_range is None:
        return np.asarray(scipy.special.expit(outputs), np.float64)
    lowest, highest = dataset.target_range
    share = np.clip(outputs[:, 0].astype(np.float64), 0.0, 1.0)
    return np.asarray(lowest + (highest - lowest) * share)
