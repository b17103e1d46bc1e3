"""Asks silos to label public queries, trains a student on the labels, and publishes it.

    pate-coordinator --roster=roster.toml --dataset=digits --queries=100 --address=0.0.0.0:7000
        --certificates=certificates --train_dir=runs/silos

Nobody has to trust it: silos randomise their votes, or share them among parties
(--aggregation=secure --parties=parties.toml). It may be killed and started again with the same
flags. Silos and parties dial in; see `pate-silo` and `pate-party`. Labels, student and statement
land below TRAIN_DIR/released.
"""

import contextlib
import pathlib
from collections.abc import Iterator
from typing import Any

from absl import flags

from pate_tf.accounting.charge import rounded_up
from pate_tf.cli import command_line
from pate_tf.queries import strategies
from pate_tf.silos.asking import Asking

FLAGS = flags.FLAGS
FLAG_OF_ARGUMENT = {
    "folder": "train_dir",
    "num_queries": "queries",
    "strategy": "query_strategy",
    "how": "subset_by",
    "seconds": "round_seconds",
}


def define_flags() -> None:
    """Defines the flags."""
    flags.DEFINE_string("roster", "roster.toml", "The silos: name, epsilon and declared queries.")
    flags.DEFINE_string("address", "localhost:7000", "To listen on, HOST:PORT.")
    flags.DEFINE_string(
        "certificates", "certificates", "Folder with authority.pem, coordinator.pem and its key."
    )
    flags.DEFINE_string("train_dir", "runs/silos", "Journal, released/ and report.json.")
    flags.DEFINE_string("dataset", "digits", "Data set of the public pool, or module:function.")
    flags.DEFINE_string("data_dir", None, "Where the data lie. Default: TensorFlow Datasets'.")
    flags.DEFINE_integer("pool_size", None, "Public samples that form the pool.", lower_bound=1)
    flags.DEFINE_integer("queries", 100, "How many of the pool are put to silos.", lower_bound=1)
    flags.DEFINE_enum(
        "query_strategy",
        "first",
        list(strategies.STRATEGIES),
        "How queries are chosen, from public values.",
    )
    flags.DEFINE_integer("query_seed", 0, "Fixes random choices of queries and silos.")
    flags.DEFINE_integer("subset", None, "How many silos are asked each query. Default: all.")
    flags.DEFINE_enum("subset_by", "random", ["random", "balanced"], "Which silos are asked.")
    flags.DEFINE_enum(
        "aggregation",
        "local",
        ["local", "secure"],
        "local: each silo randomises its own vote. secure: parties add votes up.",
    )
    flags.DEFINE_float("sigma", 40.0, "With secure: standard deviation of the noise, in votes.")
    flags.DEFINE_integer("threshold", 1, "With secure: parties that may pool what they know.")
    flags.DEFINE_string("parties", None, "With secure: the list of parties.")
    flags.DEFINE_float("round_seconds", 600.0, "How long a round waits for replies.")
    flags.DEFINE_float("gather_seconds", 60.0, "How long silos may take to call at first.")
    flags.DEFINE_integer("least_answers", 1, "Answers that a label needs.", lower_bound=1)
    flags.DEFINE_string("student", "supervised", "The student, as `pate-student` has it.")
    flags.DEFINE_string("model", None, "The student's model.")
    flags.DEFINE_integer("max_steps", None, "Training steps of the student.", lower_bound=1)


def _mechanism() -> dict[str, Any]:
    from pate_tf.api.silo_coordinator import number_of_parties

    if FLAGS.aggregation == "local":
        return {"name": "randomised_response"}
    if not FLAGS.parties:
        raise ValueError("parties: expected the list of parties for --aggregation=secure, got none")
    return {
        "name": "secure_histogram",
        "sigma": FLAGS.sigma,
        "num_parties": number_of_parties(pathlib.Path(FLAGS.parties)),
        "threshold": FLAGS.threshold,
    }


def main() -> None:
    """Reads the flags, runs, prints a table."""
    with command_line.quiet_start(FLAGS):
        from pate_tf.api.silo_coordinator import CoordinatorRun, coordinate
        from pate_tf.queries.config import QueryConfig
        from pate_tf.students.config import StudentSettings
    asking = Asking(
        mechanism=_mechanism(),
        subset=FLAGS.subset,
        how=FLAGS.subset_by,
        seconds=FLAGS.round_seconds,
        least_answers=FLAGS.least_answers,
        seed=FLAGS.query_seed,
    )
    run = CoordinatorRun(
        roster=pathlib.Path(FLAGS.roster),
        folder=pathlib.Path(FLAGS.train_dir),
        address=FLAGS.address,
        certificates=pathlib.Path(FLAGS.certificates),
        asking=asking,
        dataset=FLAGS.dataset,
        data_dir=command_line.path(FLAGS.data_dir),
        pool_size=FLAGS.pool_size,
        queries=QueryConfig(
            strategy=FLAGS.query_strategy, num_queries=FLAGS.queries, seed=FLAGS.query_seed
        ),
        student=StudentSettings(
            student=FLAGS.student, model=FLAGS.model, max_steps=FLAGS.max_steps
        ),
        parties=command_line.path(FLAGS.parties),
        gather_seconds=FLAGS.gather_seconds,
    )
    with _bar() as on_progress:
        report = coordinate(
            run, on_event=lambda event: print(event, flush=True), on_progress=on_progress
        )
    print_report(report.to_dict())


def print_report(report: dict[str, Any]) -> None:
    """Prints what came of a run."""
    shown = {True: "unknown"}
    accuracies = {name: report[name] for name in ("label_accuracy", "student_accuracy")}
    command_line.print_table(
        "student of many holders",
        [
            ("silos, parties", f"{report['silos']}, {report['parties']}"),
            ("queries", f"{report['queries_answered']} of {report['queries_asked']} answered"),
            *(
                (name.replace("_", " "), shown.get(value is None, f"{value or 0.0:.3f}"))
                for name, value in accuracies.items()
            ),
            ("seconds a round", f"{report['seconds_per_round']:.2f}"),
            *(
                (f"epsilon of {name}", f"{rounded_up(epsilon)} at delta {report['delta']:g}")
                for name, epsilon in report["epsilon_per_silo"].items()
            ),
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
    command_line.run(command_line.guarded(main, FLAGS, FLAG_OF_ARGUMENT), define_flags, __doc__)


if __name__ == "__main__":
    run()
