"""From data to a student in one call: teachers or feature sums, labels, student."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from typing import Any

from pate_tf.accounting.charge import Cost
from pate_tf.accounting.conversions import check_delta
from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.data.data import Data
from pate_tf.queries.labels import Labels
from pate_tf.release.feature_sums import FeatureSums
from pate_tf.release.labeller import Labeller
from pate_tf.run.student import Student
from pate_tf.teachers.teachers import Teachers


@dataclasses.dataclass(frozen=True, repr=False)
class Fitted:
    """What `fit` returns.

    >>> import pate_tf
    >>> data = pate_tf.Data.load("digits")
    >>> sums = pate_tf.FeatureSums(directory=folder / "fitted", representation="raw")
    >>> fitted = pate_tf.fit(
    ...     data, method="feature_sums", epsilon=8.0, delta=1e-5, source=sums,
    ...     student=pate_tf.Student("supervised", steps=20))
    >>> fitted.student.predict(data.held_out).shape, fitted.cost.unit
    ((197,), 'record')

    Attributes:
        student: public: a classifier that learned from the labels and the public pool alone;
            `fitted.student.publish()` exports it with its privacy statement.
        labels: public: the noisy labels, with what they cost.
        source: SENSITIVE: the teachers, or the feature sums, that the labels come from; None in an
            object that was pickled, which holds public values alone.
    """

    student: Student
    labels: Labels
    source: Teachers | FeatureSums | None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "source": None}

    @property
    def cost(self) -> Cost:
        """What the labels cost, whatever the data: `epsilon`, `delta`, `unit`, `in_words()`."""
        return self.labels.cost

    def __repr__(self) -> str:
        return f"Fitted({self.student!r}, {self.labels!r})"


def fit(
    data: Data,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    method: str = "pate",
    directory: str | os.PathLike[str] | None = None,
    source: Teachers | FeatureSums | None = None,
    student: Student | None = None,
    mechanism: Mechanism | type[Mechanism] | None = None,
    num_queries: int | None = None,
    strategy: str | None = None,
    seed: int = 0,
    verbose: bool = False,
    **budget: Any,
) -> Fitted:
    """Trains teachers or sums features, releases labels, trains a student; returns all of it.

    >>> import pate_tf
    >>> data = pate_tf.Data.load("digits")
    >>> sums = pate_tf.FeatureSums(directory=folder / "fit", representation="raw")
    >>> student = pate_tf.Student("supervised", steps=20)
    >>> fitted = pate_tf.fit(
    ...     data, method="feature_sums", epsilon=8.0, delta=1e-5, source=sums, student=student)
    >>> fitted.cost.epsilon <= 8.0, fitted.student.predict(data.held_out).shape
    (True, (197,))
    >>> published = fitted.student.publish()
    >>> published.folder == folder / "fit" / "released"
    True

    The same as `Teachers.fit` or `FeatureSums.fit`, `Labeller.label` and `Student.fit`, one after
    another, with their guarantee: differential privacy at (epsilon, delta) for every record, or
    owner, of the private data, whatever the data. What was charged stands in the ledger below
    `directory`; the same call again costs nothing more.

    Args:
        data: private records, and the public pool.
        epsilon: what the labels may cost; mechanism, noise and number of queries follow from it
            and from public values. None only with a mechanism that has its noise.
        delta: as of `Labeller`.
        method: "pate" (default) for teachers' noisy votes, or "feature_sums".
        directory: of the run. Default: that of `source`, else `runs/NAME-NUM_TEACHERS` or
            `runs/NAME-feature_sums`.
        source: `Teachers` or `FeatureSums` with settings of their own, fitted or not. Default:
            those of the method.
        student: with settings of its own, not fitted yet. Default: `Student(seed=seed)`.
        mechanism: as of `Labeller`.
        num_queries: as of `Labeller.label`.
        strategy: as of `Labeller.label`.
        seed: of partition, initial weights, shuffling and the choice of queries; not of the
            privacy noise.
        verbose: whether progress bars are shown.
        **budget: further arguments of `Labeller`, such as `epsilon_budget`.

    Raises:
        ValueError: if the arguments do not fit each other or the data; nothing was charged then.
        BudgetExceeded: if the labels do not fit into what is left of the budget.
        LedgerError: if the ledger can't be used.
    """
    if not isinstance(data, Data):
        raise ValueError(f"data: expected pate_tf.Data, got {type(data).__name__}")
    if delta is not None and data.private.owners is None:
        check_delta(delta, len(data.private))  # before anything is trained
    if method not in (kinds := {"pate": Teachers, "feature_sums": FeatureSums}):
        raise ValueError(f"method: expected {' or '.join(kinds)}, got {method!r}")
    kind: type[Teachers] | type[FeatureSums] = kinds[method]
    if source is None:
        source = kind(directory=directory, seed=seed, verbose=verbose)
    elif not isinstance(source, kind):
        raise ValueError(
            f"source: expected pate_tf.{kind.__name__} with method {method}, got "
            f"{type(source).__name__}"
        )
    elif directory is not None and source.directory != pathlib.Path(directory):
        raise ValueError(
            f"directory: expected that of `source`, {source.directory}, or none, got {directory}"
        )
    student = student or Student(seed=seed, verbose=verbose)
    student.check(data.pool, labels_whole_pool=method == "feature_sums")
    source.fit(data.private, data.pool)
    with Labeller(
        source, mechanism, epsilon=epsilon, delta=delta, verbose=verbose, **budget
    ) as labeller:
        labels = labeller.label(data.pool, num_queries, strategy=strategy, seed=seed)
    return Fitted(student.fit(data.pool, labels), labels, source)
