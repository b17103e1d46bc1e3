"""Trains a student from private data, and writes a statement of its privacy cost.

With teachers, after `pate teachers --dataset=mnist --nb_teachers=250`:
  pate student --dataset=mnist --nb_teachers=250 --epsilon=1
With feature sums, without teachers:
  pate student --dataset=mnist --method=feature_sums --epsilon=0.1

The ledger is charged before noisy labels are released. The student is trained only on these labels
and on public inputs. Labels, student and privacy statement are written to TRAIN_DIR/released.
"""

import dataclasses
import pathlib
import sys
from typing import Any

from absl import flags

from pate_tf.accounting.mechanisms.base import offered
from pate_tf.cli import command_line
from pate_tf.core import artifacts
from pate_tf.core.settings import setting
from pate_tf.data.data_source import DataSource, PoolSize
from pate_tf.planning.release_settings import (
    FEATURE_SUMS,
    PATE,
    Budget,
    Output,
    ReleaseSettings,
    RunSettings,
)
from pate_tf.queries.strategies import QueryWishes
from pate_tf.students.student_kinds import StudentSettings
from pate_tf.teachers.run_folder import RunDescription, described_run, load_teachers

FLAGS = flags.FLAGS
# Flags that only one of the two methods uses.
OF_PATE = ("nb_teachers", "teachers_dir", "teachers", "mechanism", "queries", "query_strategy")
OF_SUMS = ("private", "owner", "owners_file")
ADVANCED = ("teachers_dir", "save_labels", "export_formats", "batch_size")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Places(PoolSize, DataSource):
    """Settings that say where the data, the teachers and the feature sums are."""

    teachers_dir: pathlib.Path | None = setting(
        None,
        help="Run folder of the teachers. Default: runs/DATASET-NB_TEACHERS in the current folder.",
    )
    teachers: pathlib.Path | None = setting(
        None,
        advanced=True,
        help="Your own teachers: a folder of .keras files or SavedModels, or a .npy or .csv file "
        "of labels [num_teachers, num_queries] for the first queries of the pool. Requires "
        "--teachers_dir, the folder of their ledger. Use the same folder in every run.",
    )


FLAG_OF_ARGUMENT = command_line.flag_of_argument(
    Places, StudentSettings, QueryWishes, ReleaseSettings, Budget, Output
)


def define() -> None:
    """Defines the flags of this command, in the order of their help."""
    command_line.define(Places, group="data", advanced=ADVANCED)
    command_line.define_data_flags(with_private=True)
    command_line.define(ReleaseSettings, group="privacy", without=("margin",), method=PATE)
    command_line.define(Budget, group="privacy")
    flags.DEFINE_alias("target_epsilon", "epsilon")
    command_line.shown_in_help("target_epsilon", "privacy", advanced=True)
    flags.DEFINE_enum(
        "mechanism",
        "laplace_noisy_max",
        list(offered()),
        "Mechanism that draws labels from noisy votes. Flags of other mechanisms are rejected.",
    )
    command_line.shown_in_help("mechanism", "privacy")
    for kind in offered().values():
        command_line.define_parameters(kind)
    command_line.define(QueryWishes, group="queries", strategy="auto")
    command_line.define(StudentSettings, group="student", advanced=ADVANCED)
    command_line.define(Output, group="output", advanced=ADVANCED)


def chosen_method(run: RunDescription | None) -> str:
    """Returns the method of the run folder, or the value of `--method`.

    Raises:
        ValueError: if `--method` is not the method of the run folder, or if a flag belongs to the
            other method.
    """
    method: str = FLAGS.method if run is None or FLAGS["method"].present else run.method
    if run is not None and method != run.method:
        raise ValueError(f"method must be {run.method} in this run folder, got {method}")
    for name in (*OF_PATE, *command_line.given()) if method == "feature_sums" else OF_SUMS:
        if FLAGS[name].present:
            other = "pate" if method == "feature_sums" else "feature_sums (or use `pate teachers`)"
            raise ValueError(f"{name} needs --method={other}, got --method={method}")
    return method


def release_settings(method: str) -> ReleaseSettings:
    """Returns the settings of the release; raises ValueError if flags contradict each other."""
    queries = command_line.read(QueryWishes, seed=FLAGS.seed)
    budget = command_line.read(Budget)
    common = {"method": method, "queries": queries}
    if method == FEATURE_SUMS:
        return command_line.read(ReleaseSettings, budget=budget, **common)
    kind = command_line.chosen_kind() if FLAGS["mechanism"].present else None
    parameters = command_line.given()
    has_epsilon = kind is not None and "epsilon" in command_line.parameters(kind)
    if FLAGS.epsilon is None or (has_epsilon and parameters):
        budget = dataclasses.replace(budget, epsilon=None)
        mechanism = command_line.chosen()
        return command_line.read(ReleaseSettings, budget=budget, mechanism=mechanism, **common)
    if parameters:
        raise ValueError(
            f"{parameters[0]}: use either this flag or --epsilon, which determines its value. You "
            "can combine --epsilon with --mechanism."
        )
    return command_line.read(ReleaseSettings, budget=budget, mechanism=kind, **common)


def data_source(places: Places, run: RunDescription | None, *, reads_private: bool) -> DataSource:
    """Returns the settings of the data. Missing flags are read from the run folder."""
    files = command_line.own_files(with_private=reads_private)
    if run is None:
        return dataclasses.replace(places, files=files)
    run.check(num_teachers=FLAGS.nb_teachers)
    dataset = places.dataset if FLAGS["dataset"].present else None
    data = run.data(dataset=dataset, data_dir=places.data_dir, files=files)
    return dataclasses.replace(data, owners_file=places.owners_file, source_name=places.source_name)


def stored_sums(folder: pathlib.Path, wanted: Any) -> Any:
    """Returns the feature sums of a run.

    Raises ValueError if `wanted` is not None and differs from their representation.
    """
    from pate_tf.release.feature_sums import FeatureSums

    sums = FeatureSums.load(folder)
    if wanted not in (None, sums.representation):
        raise ValueError(f"representation must be {sums.representation} for {folder}, got {wanted}")
    return sums


def main() -> None:
    """Reads the flags, trains a student, and prints the results."""
    reporting = command_line.reporting(verbose=sys.stdout.isatty())
    command_line.check_report_file(FLAGS.report_file)
    places = command_line.read(Places)
    output = command_line.read(Output)
    student = command_line.read(StudentSettings)
    artifacts.check_no_writer(output.folder, artifacts.RELEASED)
    if FLAGS.new_budget_i_understand and not FLAGS["delta"].present:
        raise ValueError("new_budget_i_understand needs --delta")
    teachers_folder = places.teachers_dir or output.folder
    described = described_run(teachers_folder)
    method = chosen_method(described)
    # Stored sums are used again unless the flags name a data set or private files.
    is_renewed = described is None or any(FLAGS[name].present for name in ("dataset", *OF_SUMS))
    reads_private = method == FEATURE_SUMS and (described is None or FLAGS["private"].present)
    origin = data_source(places, described, reads_private=reads_private)
    release = release_settings(method)
    # Files are read first, so their errors are reported before TensorFlow starts.
    examples = None
    private = None
    if origin.files is not None:
        examples = origin.load_public(reporting)
        private = origin.load_private(reporting, examples) if reads_private else None
    from pate_tf.release.feature_sums import default_folder
    from pate_tf.run.pipeline import RunData, run

    examples = origin.load_public(reporting) if examples is None else examples
    pool_size = places.pool_size or (None if described is None else described.pool_size)
    public = examples.split(pool_size or examples.dataset.pool_size)
    source: Any = None
    source_folder = output.folder or default_folder(public.dataset.name)
    if method == FEATURE_SUMS and is_renewed:
        private = origin.load_private(reporting) if private is None else private
    elif method == FEATURE_SUMS:
        source = stored_sums(source_folder, release.queries.representation)
    else:
        source, source_folder = load_teachers(
            public,
            num_teachers=FLAGS.nb_teachers,
            folder=teachers_folder if described else places.teachers_dir,
            elsewhere=places.teachers,
        )
    data = RunData(public=public, private=private, origin=origin, named_source=origin.named_source)
    fitted, folder = run(
        data,
        RunSettings(release=release, student=student, output=output),
        source=source,
        source_folder=source_folder,
        reporting=reporting,
    )
    report = fitted.report(folder, data.origin)
    command_line.print_table("Student", report.rows)
    command_line.write_report(output.report_file, report.values)
