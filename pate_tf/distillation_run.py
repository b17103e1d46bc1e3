"""Distillation against labels by plurality: a comparison that is NOT PRIVATE and exports nothing.

A roof room. It is figure 5 of Papernot et al. 2017 (appendix B.1) for one number of queries: both
students learn from the same points of the pool, one from the teachers' averaged probabilities, the
other from the class with most votes, without noise. No ledger is charged, as nothing may leave.
"""

import dataclasses

import numpy as np

from pate_tf.records import PublicExamples
from pate_tf.students import evaluation
from pate_tf.students.config import StudentConfig
from pate_tf.students.distillation import train_distilled
from pate_tf.students.outputs import outputs
from pate_tf.teachers import voters
from pate_tf.teachers.voters import Progress, Voter


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistillationReport:
    """SENSITIVE: what the comparison found out.

    Attributes:
      distilled: accuracy of the student of the averaged probabilities.
      plurality: accuracy of the student of the labels by plurality.
      plurality_labels: accuracy of those labels.
      constant_answer: what always answering the commonest class would get right.
    """

    distilled: evaluation.Accuracy
    plurality: evaluation.Accuracy
    plurality_labels: evaluation.Accuracy
    constant_answer: float


def compare_distillation(
    *,
    config: StudentConfig,
    public: PublicExamples,
    pool_size: int,
    num_queries: int,
    teachers: Voter,
    temperature: float,
    evaluate_on: str = evaluation.HELD_OUT,
    voting_progress: Progress | None = None,
    show_progress: bool = False,
) -> DistillationReport:
    """Trains and evaluates both students. NOT PRIVATE.

    Args:
      config: how both are trained.
      public: the public samples.
      pool_size: how many of them, from the first, form the pool.
      num_queries: how many of the pool, from the first, both learn from.
      teachers: an ensemble that states probabilities.
      temperature: that teachers and the student of their probabilities divide logits by.
      evaluate_on: which public samples evaluate them, of `evaluation.EVALUATED_ON`.
      voting_progress: called with the number of queries answered since its last call; each is
        answered twice, by probabilities and by votes.
      show_progress: whether training shows progress bars.

    Raises:
      ValueError: if sizes or model do not fit, or the teachers answer with labels alone.
    """
    student_side, _ = public.split(pool_size)
    pool = student_side.pool()
    if not 0 < num_queries <= len(pool):
        raise ValueError(f"queries: expected from 1 to the pool's {len(pool)}, got {num_queries}")
    if teachers.dataset != public.dataset:
        raise ValueError(
            f"teachers: expected an ensemble for {public.dataset.name}, got one for "
            f"{teachers.dataset.name}"
        )
    queries = np.arange(num_queries)
    evaluated = evaluation.evaluated_samples(
        evaluate_on, public, pool_size=pool_size, queries=queries
    )
    inputs = pool.inputs[:num_queries]
    stated = voters.probabilities(teachers, inputs, temperature, voting_progress)
    winners = teachers.votes(inputs, voting_progress).counts().values.argmax(axis=1)
    certain = np.eye(public.dataset.num_classes, dtype=np.float32)[winners]

    def trained_accuracy(probabilities: np.ndarray, at: float) -> evaluation.Accuracy:
        model = train_distilled(
            config,
            pool,
            query_indices=queries,
            probabilities=probabilities,
            temperature=at,
            show_progress=show_progress,
        )
        return evaluation.evaluate(lambda raw: outputs(model, raw).argmax(axis=1), evaluated)

    return DistillationReport(
        distilled=trained_accuracy(stated, temperature),
        plurality=trained_accuracy(certain, 1.0),
        plurality_labels=evaluation.accuracy(winners, student_side.labels[:num_queries]),
        constant_answer=evaluated.majority_share,
    )
