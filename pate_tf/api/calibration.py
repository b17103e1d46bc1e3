"""Whole calibrations, from plain values to a table.

What `pate_tf.cli.analysis` calls, and any program may. Reads no votes. TensorFlow is not imported.
"""

import dataclasses
import textwrap
from math import ceil

from pate_tf.accounting.charge import rounded_up
from pate_tf.accounting.mechanisms import ClassSums, Mechanism
from pate_tf.accounting.planning import DEFAULT_DELTA, DEFAULT_MARGIN, WIDTH, recommend
from pate_tf.accounting.target import Target
from pate_tf.analysis import calibration as calibrations
from pate_tf.analysis.report import calibration_report, calibration_rows
from pate_tf.api.reporting import Table, TablesReport

DEFAULT_NUM_CLASSES = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class CalibrationRun:
    """A calibration, in plain values: the least noise, or the most queries.

    Attributes:
      mechanism: its kind, to find the least noise; with its noise, to find the most queries.
      num_queries: how many labels; None to find the most.
      target_epsilon: data-independent.
      delta: of it.
    """

    mechanism: Mechanism | type[Mechanism]
    num_queries: int | None = None
    target_epsilon: float
    delta: float = DEFAULT_DELTA


def calibrate(asked: CalibrationRun) -> TablesReport:
    """Finds the least noise for a number of queries, or the most queries for a noise.

    Raises:
      ValueError: if the target can't be met, or both or neither of noise and number are given.
    """
    target = {"target_epsilon": asked.target_epsilon, "delta": asked.delta}
    mechanism, number = asked.mechanism, asked.num_queries
    if not isinstance(mechanism, type):
        if number is not None:
            raise ValueError("num_queries: expected none with the noise given, got both")
        found = calibrations.most_queries(mechanism, **target)
    else:
        if number is None:
            raise ValueError("num_queries: expected it where the noise is to be found, got none")
        found = calibrations.least_noise(mechanism, num_queries=number, **target)
    table = Table(title="Calibration, publishable", rows=calibration_rows(found))
    return TablesReport(tables=[table], values=calibration_report(found))


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecommendationRun:
    """A comparison of all mechanisms within one budget, in plain values.

    Attributes:
      target_epsilon: data-independent.
      num_teachers: who vote.
      num_classes: that they choose from.
      num_queries: how many labels; None for the planned number.
      delta: of the target.
      mechanism: the only one to calibrate; None for all.
      margin: see `pate_tf.accounting.planning.AssumedVotes`.
      num_exceptions: likewise.
    """

    target_epsilon: float
    num_teachers: int
    num_classes: int = DEFAULT_NUM_CLASSES
    num_queries: int | None = None
    delta: float = DEFAULT_DELTA
    mechanism: type[Mechanism] | None = None
    margin: float = DEFAULT_MARGIN
    num_exceptions: int = 0


def compare(asked: RecommendationRun) -> TablesReport:
    """Compares all mechanisms by their expected right labels, and recommends one.

    Without one named it also says what noise a budget alone would buy on sums of records, which
    teachers on features keep, and for how many records that is worth it.

    Raises:
      ValueError: if a number is out of range, or no mechanism can be planned for.
    """
    plan = recommend(**vars(asked))
    found = calibrations.of_mechanism(
        plan.mechanism,
        num_queries=plan.num_queries,
        target_epsilon=asked.target_epsilon,
        delta=asked.delta,
    )
    title, *lines = plan.in_words().splitlines()
    tables = [Table(title=title, lines=lines)]
    values = {
        **calibration_report(found),
        "expected_right_labels": plan.candidates[0].expected_right,
        "plan": plan.to_dict(),
    }
    if asked.mechanism is None:
        target = dataclasses.replace(plan.target, num_queries=1)
        sums = target.least_noise(ClassSums.of_scale)
        tables.append(_of_sums(sums, target))
        values["class_sums"] = {
            "mechanism": sums.to_dict(),
            "epsilon": target.epsilon_of(sums),
            "fewest_records_of_a_class": sums.fewest_of_class,
        }
    return TablesReport(tables=tables, values=values)


def _of_sums(sums: ClassSums, target: Target) -> Table:
    said = (
        f"With a budget and neither mechanism nor number of queries, train_student.py adds noise "
        f"of {rounded_up(sums.sigma)} to each number of these sums, and works out a label of every "
        f"input of the pool, where a class has {ceil(sums.fewest_of_class):,} private records or "
        f"more in the mean. Whether sums or votes say more depends on the data; docs/instead.md "
        f"has both side by side."
    )
    return Table(
        title="Or no votes: teachers on features, such as ridge, keep sums of records by class",
        lines=[
            f"  --target_epsilon={target.epsilon!r} --delta={target.delta!r}",
            "",
            *textwrap.wrap(said, WIDTH),
        ],
    )
