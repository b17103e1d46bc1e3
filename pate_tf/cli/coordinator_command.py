"""Queries silos for labels of public inputs, trains a student on them, and publishes it.

    pate coordinator --roster=roster.toml --dataset=digits --queries=100 --address=0.0.0.0:7000
        --certificates=certificates --train_dir=runs/silos

With --method=feature_sums --epsilon=1, silos answer no queries. Instead, the features of all silos'
records are added up. Each silo adds a part of the noise, so the total contains no more noise than a
single data holder would add. If you pass --schema=FILE but not --public, the run needs no public
samples: the silos also add up second moments, and the student is a linear model.

The silos do not have to trust the coordinator: they randomize their votes, or secret-share them
among the aggregators on the roster (--sigma=40). You can stop the coordinator and start it again
with the same flags. Silos and aggregators connect to it; see `pate silo` and `pate aggregator`.
Labels, student and statement are written to TRAIN_DIR/released. `pate coordinator status
--train_dir=runs/silos` prints the progress.
"""

from collections.abc import Callable
from typing import Any

from absl import flags

from pate_tf.accounting.charge import rounded_up
from pate_tf.cli import command_line
from pate_tf.core import artifacts
from pate_tf.queries.strategies import QueryConfig, QueryWishes
from pate_tf.run.silo_coordinator import JOURNAL, CoordinatorRun, coordinate
from pate_tf.silos.roster import Asking, SiloRoster
from pate_tf.silos.round_journal import CoordinatorJournal
from pate_tf.students.student_kinds import AUTO, StudentSettings

FLAGS = flags.FLAGS
OF_RECORDS = ("source_name", "owners_file")
FLAG_OF_ARGUMENT = command_line.flag_of_argument(CoordinatorRun, QueryWishes, Asking)
STATUS = (CoordinatorRun, lambda folder: CoordinatorJournal(None, (), folder / JOURNAL).numbers())


def define() -> None:
    """Defines the flags of this command."""
    command_line.define(CoordinatorRun, group="coordinator", without=OF_RECORDS)
    command_line.define_data_flags(with_private=False)
    command_line.define(
        QueryWishes, group="queries", without=("representation",), strategy="first", num_queries=100
    )
    command_line.define(Asking, group="asking", without=("least_answers",))
    command_line.define(StudentSettings, group="student", student="supervised")
    command_line.define_operation()


def main(transport: Callable[[SiloRoster, Any], Any] | None = None) -> None:
    """Reads the flags, runs the coordinator, and prints the results.

    Args:
        transport: function that connects the coordinator to the silos, see `coordinate`. Default:
            gRPC.
    """
    queries = QueryConfig(**{**command_line.values_of(QueryWishes), "seed": FLAGS.seed})
    are_sums = FLAGS.method == "feature_sums"
    files = command_line.own_files(with_private=False, needs_public=not are_sums)
    choice = {}
    if files is not None and files.public is None and not FLAGS["student"].present:
        choice = {"student": AUTO}
    run = command_line.read(
        CoordinatorRun,
        asking=command_line.read(Asking),
        queries=queries,
        student=command_line.read(StudentSettings, **choice),
        files=files,
    )
    with artifacts.only_writer(run.folder):  # a second command on this folder fails at once
        artifacts.remove_abandoned(run.folder)
        log, watch = command_line.start_operation("coordinator", SiloRoster.read(run.roster).run)
        report = coordinate(
            run, transport=transport, on_event=log, watch=watch, give_up_after=FLAGS.give_up_after
        )
    command_line.write_report(run.report_file, report)
    epsilons = [
        (f"epsilon of {name}", f"{rounded_up(epsilon)} at delta {report['delta']:g}")
        for name, epsilon in report["epsilon_per_silo"].items()
    ]
    counts = [("protected", f"each {report['unit']}")]
    if "queries_asked" in report:
        number = f"{report['queries_answered']} of {report['queries_asked']} answered"
        counts = [("queries", number)]
    command_line.print_table(
        "Student of several silos",
        [
            ("silos, aggregators", f"{report['silos']}, {report['aggregators']}"),
            *counts,
            *report["rows"],
            ("seconds per round", f"{report['seconds_per_round']:.2f}"),
            *epsilons,
            artifacts.tensorboard_row(run.folder),
        ],
    )
