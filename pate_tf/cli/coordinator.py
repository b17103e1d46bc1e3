"""Asks silos to label public queries, trains a student on the labels, and publishes it.

    pate coordinator --roster=roster.toml --dataset=digits --queries=100 --address=0.0.0.0:7000
        --certificates=certificates --train_dir=runs/silos

With --method=feature_sums --epsilon=1 silos add up their records' features instead, each with a
share of the noise, and their epsilon is that of one holder.

It need not be trusted: silos randomise their votes, or share them among the roster's aggregators
(--sigma=40). It may be killed and started again with the same flags. Silos and aggregators dial in;
see `pate silo` and `pate aggregator`. Labels, student and statement land below TRAIN_DIR/released.
"""

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

from absl import flags

from pate_tf.accounting.charge import rounded_up
from pate_tf.cli import command_line
from pate_tf.cli import flags as own_flags
from pate_tf.queries.rounds import QueryConfig
from pate_tf.run.silo_coordinator import CoordinatorRun, coordinate
from pate_tf.silos.roster import Asking
from pate_tf.students.config import StudentSettings

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines the flags."""
    own_flags.define(CoordinatorRun, group="coordinator")
    own_flags.define(QueryConfig, group="queries", without=("representation",), num_queries=100)
    own_flags.define(Asking, group="asking", without=("subset", "least_answers"))
    own_flags.define(StudentSettings, group="student", student="supervised")


def main() -> None:
    """Reads the flags, runs, prints a table."""
    with command_line.quiet_start(FLAGS):
        importlib.import_module("pate_tf.run.student")  # brings TensorFlow
    queries = own_flags.read(QueryConfig, seed=FLAGS.seed)
    run = own_flags.read(
        CoordinatorRun,
        asking=own_flags.read(Asking, seed=queries.seed),
        queries=queries,
        student=own_flags.read(StudentSettings),
    )
    with _bar() as on_progress:
        report = coordinate(
            run, on_event=lambda event: print(event, flush=True), on_progress=on_progress
        )
    accuracies = [
        (name.replace("_", " "), "unknown" if report[name] is None else f"{report[name]:.3f}")
        for name in ("label_accuracy", "student_accuracy")
    ]
    epsilons = [
        (f"epsilon of {name}", f"{rounded_up(epsilon)} at delta {report['delta']:g}")
        for name, epsilon in report["epsilon_per_silo"].items()
    ]
    asked = [("protected", f"each {report['unit']}")]
    if "queries_asked" in report:
        number = f"{report['queries_answered']} of {report['queries_asked']} answered"
        asked = [("queries", number)]
    command_line.print_table(
        "student of many holders",
        [
            ("silos, aggregators", f"{report['silos']}, {report['aggregators']}"),
            *asked,
            *accuracies,
            ("seconds a round", f"{report['seconds_per_round']:.2f}"),
            *epsilons,
        ],
    )


@contextlib.contextmanager
def _bar() -> Iterator[Any]:
    """Shows on a terminal who replied."""
    from tqdm import tqdm

    with tqdm(desc="silos that replied", unit="silo", disable=None) as bar:

        def show(replied: set[str], waited_for: set[str]) -> None:
            bar.total, bar.n = len(replied) + len(waited_for), len(replied)
            names = ", ".join(sorted(waited_for)[:3])
            bar.set_postfix_str(f"waiting for {names}" if names else "")

        yield show


def run() -> None:
    """Runs the command with the flags of this process."""
    renamed = own_flags.flag_of_argument(CoordinatorRun, QueryConfig, Asking)
    command_line.run(command_line.guarded(main, FLAGS, renamed), define_flags, __doc__)


if __name__ == "__main__":
    run()
