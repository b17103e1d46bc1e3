"""What a silo shares: a teacher that gives each public query one label, or its feature sums.

TensorFlow and scikit-learn are imported only by teachers that need them.
"""

from __future__ import annotations

import dataclasses
import pathlib
import warnings
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import numpy.typing as npt

from pate_tf.core.source import PrivateSource
from pate_tf.core.validation import IntArray
from pate_tf.ledger.rollback_guard import SensitiveWarning
from pate_tf.silos.messages import QueryBatch

if TYPE_CHECKING:
    from pate_tf.release.feature_sums import FeatureSums

FALLBACK: Final = 0  # the vote of a teacher that gives none


@dataclasses.dataclass(frozen=True, kw_only=True)
class SiloSums:
    """SENSITIVE: what a silo has in the place of a teacher with method feature_sums.

    Attributes:
        values: sums of its records by class, exact, int64 `[num_features + 1, num_classes]`, in
            steps of 1 / LATTICE.
        representation: digest of the public encoder that they were mapped by, `Encoder.digest`.
        unit: what adds vectors of an L2 norm of at most 1 together, "record" or "owner".
        source: that the records are of; None where it is not known.
        num_records: how many were summed; private where owners are protected.
    """

    values: IntArray = dataclasses.field(repr=False)
    representation: str
    unit: str = "record"
    source: PrivateSource | None = dataclasses.field(default=None, repr=False)
    num_records: int | None = dataclasses.field(default=None, repr=False)

    @classmethod
    def of(cls, sums: FeatureSums) -> Self:
        """Returns the sums of fitted `pate_tf.FeatureSums`."""
        return cls(
            values=sums.sums.values,
            representation=sums.representation_digest,
            unit=sums.unit,
            source=sums.source,
            num_records=sums.num_records,
        )


class SiloTeacher:
    """SENSITIVE: a model as a teacher that gives every query a vote.

    Args:
        model: a function from queries `[num_queries, *input_shape]` to labels `[num_queries]`; or
            a model or file that `pate_tf.teachers.foreign` takes: with `predict`, of Keras, of
            scikit-learn, a `.keras` file or a SavedModel's folder.
        num_classes: number of classes.
        input_shape: shape of one query; None for any.
        input_type: "uint8" or "float32"; None for either.

    Raises ValueError if there is no such model.
    """

    def __init__(
        self,
        model: Any,
        *,
        num_classes: int,
        input_shape: tuple[int, ...] | None = None,
        input_type: str | None = None,
    ) -> None:
        self.num_classes, self.input_shape, self.input_type = num_classes, input_shape, input_type
        self._answers = model
        if isinstance(model, pathlib.Path) or not callable(model) or hasattr(model, "predict"):
            from pate_tf.teachers.foreign import ForeignModels

            models = ForeignModels([model], num_classes=num_classes)
            self._answers = lambda queries: models.votes(queries).labels[0]

    def takes(self, batch: QueryBatch) -> bool:
        """Whether a batch has the classes, shape and type that the teacher takes."""
        return (
            batch.num_classes == self.num_classes
            and self.input_shape in (None, batch.queries.shape[1:])
            and self.input_type in (None, str(batch.queries.dtype))
        )

    def votes(self, queries: npt.NDArray[Any]) -> IntArray:
        """Returns a vote int64 `[num_queries]` on each query, even where the model fails.

        Whether a model fails depends on its records, so a failure may not decide whether there is
        an answer: where the model gives no label of a class, its vote is `FALLBACK`. The silo's
        user is warned, without a word of what the model said, which may quote its records.
        """
        answers: npt.NDArray[Any]
        try:
            answers = np.asarray(self._answers(queries))
        except Exception:  # of a user's model
            answers = np.zeros(0)
        votes, is_label = np.full(len(queries), FALLBACK), np.zeros(len(queries), np.bool_)
        if answers.dtype.kind in "iuf" and answers.shape == (len(queries),):
            is_label = (answers >= 0) & (answers < self.num_classes)
            is_label &= answers == np.floor(answers)
            votes[is_label] = answers[is_label]
        if not is_label.all():
            warnings.warn(
                f"sensitive, for the data holder alone: teacher: expected a label 0 to "
                f"{self.num_classes - 1} of each query, got none of some; they count as votes for "
                f"class {FALLBACK}",
                SensitiveWarning,
                stacklevel=2,
            )
        return votes
