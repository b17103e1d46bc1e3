"""Distillation against labels by plurality: a comparison that is NOT PRIVATE and exports nothing.

It is figure 5 of Papernot et al. 2017 (appendix B.1) for one number of queries: both students learn
from the same points of the pool, one from the teachers' averaged probabilities, the other from the
class with most votes, without noise. No ledger is charged, as nothing may leave.
"""

import dataclasses

import numpy as np

from pate_tf.runs.reporting import QUIET, Reporting
from pate_tf.runs.student.labels import check_teachers
from pate_tf.students import evaluation
from pate_tf.students.config import StudentConfig
from pate_tf.students.distillation import train_distilled
from pate_tf.students.outputs import outputs
from pate_tf.teachers import counting, voters
from pate_tf.teachers.voters import Voter
from pate_tf.values.public import PoolLabels, PublicSplit


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistillationReport:
    """SENSITIVE: what the comparison found out; None wherever public labels are missing.

    Attributes:
      distilled: accuracy of the student of the averaged probabilities.
      plurality: accuracy of the student of the labels by plurality.
      plurality_labels: accuracy of those labels.
      constant_answer: public; what always answering the commonest class would get right.
      evaluated_on: public; which samples evaluated both, of `evaluation.EVALUATED_ON`.
    """

    distilled: evaluation.Accuracy | None = dataclasses.field(repr=False)
    plurality: evaluation.Accuracy | None = dataclasses.field(repr=False)
    plurality_labels: evaluation.Accuracy | None = dataclasses.field(repr=False)
    constant_answer: float | None
    evaluated_on: str | None


def compare_distillation(
    config: StudentConfig,
    public: PublicSplit,
    *,
    num_queries: int,
    teachers: Voter,
    temperature: float,
    evaluate_on: str | None = None,
    reporting: Reporting = QUIET,
) -> DistillationReport:
    """Trains and evaluates both students. NOT PRIVATE.

    Args:
      config: how both are trained.
      public: the pool, and the samples that evaluate.
      num_queries: how many of the pool, from the first, both learn from.
      teachers: an ensemble that states probabilities.
      temperature: that teachers and the student of their probabilities divide logits by.
      evaluate_on: which public samples evaluate them, of `evaluation.EVALUATED_ON`; None for the
        held-out ones, if they have labels.
      reporting: how progress is shown; each query is answered twice, by probabilities and by votes.

    Raises:
      ValueError: if sizes or model do not fit, or the teachers answer with labels alone.
    """
    pool = public.pool
    if not 0 < num_queries <= len(pool):
        raise ValueError(
            f"num_queries: expected from 1 to the pool's {len(pool)}, got {num_queries}"
        )
    check_teachers(teachers, pool)
    queries = np.arange(num_queries)
    evaluated = evaluation.evaluated_samples(evaluate_on, public, queries=queries)
    inputs = pool.inputs[:num_queries]
    with reporting.progress_bar("asking teachers", 2 * num_queries, "query") as advance:
        stated = voters.probabilities(teachers, inputs, temperature, advance)
        winners = counting.counts(teachers, inputs, advance).values.argmax(axis=1)
    certain = np.eye(pool.dataset.num_classes, dtype=np.float32)[winners]

    def trained_accuracy(probabilities: np.ndarray, at: float) -> evaluation.Accuracy | None:
        model = train_distilled(
            config,
            pool,
            query_indices=queries,
            probabilities=probabilities,
            temperature=at,
            show_progress=reporting.verbose,
        )
        if evaluated is None:
            return None
        return evaluation.evaluate(lambda raw: outputs(model, raw).argmax(axis=1), evaluated)

    return DistillationReport(
        distilled=trained_accuracy(stated, temperature),
        plurality=trained_accuracy(certain, 1.0),
        plurality_labels=evaluation.accuracy_in_pool(
            PoolLabels(query_indices=queries, labels=winners, num_classes=pool.dataset.num_classes),
            public,
        ),
        constant_answer=None if evaluated is None else evaluated.majority_share,
        evaluated_on=None if evaluated is None else evaluate_on or evaluation.HELD_OUT,
    )
