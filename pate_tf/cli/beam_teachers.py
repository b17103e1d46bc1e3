"""Trains teachers in closed form by Apache Beam: `pate beam-teachers --dataset=mnist`.

The ensemble below TRAIN_DIR/sensitive is that of train_teachers.py with --model=ridge,
nearest_mean or nearest_neighbour. Flags that are none of these go to Beam: --runner,
--direct_num_workers, --direct_running_mode, ...
"""

import sys

from absl import flags

from pate_tf.api.run_folder import TeacherRun
from pate_tf.cli import command_line, sums
from pate_tf.cli import flags as own_flags
from pate_tf.teachers.settings import TeacherSettings

FLAGS = flags.FLAGS


def define() -> None:
    """Defines the flags of this command, and takes Beam's out of the arguments."""
    sums.define_common(also=("num_teachers",))
    own_flags.define(
        TeacherSettings,
        group="training",
        without=("max_steps", "batch_size", "learning_rate", "class_weights"),
    )
    sys.argv[1:] = sums.take_apart(sys.argv[1:])


def main() -> None:
    """Reads the flags, trains, prints."""
    engine = own_flags.read(sums.EngineSettings)
    asked = {
        name: value
        for name, value in own_flags.values_of(TeacherSettings).items()
        if value is not None
    }
    data, private = sums.data_of()
    if FLAGS.nb_teachers is None:
        raise ValueError("num_teachers: expected how many teachers share the records, got none")
    with command_line.quiet_start(FLAGS):
        from pate_tf.api import run_folder
        from pate_tf.beam import pipelines
    name = data.dataset if data.files is None else data.files.public.stem
    folder = command_line.path(FLAGS.train_dir)
    ensemble = pipelines.teachers(
        data,
        directory=folder or run_folder.default_folder(name, FLAGS.nb_teachers),
        num_teachers=FLAGS.nb_teachers,
        settings=TeacherSettings(**asked),
        private=private,
        pool_size=FLAGS.stdnt_share,
        bad_rows=engine.bad_rows,
        engine=sums.engine_of(engine),
        reporting=command_line.reporting(),
    )
    command_line.print_table(
        "Teachers", [("teachers", str(FLAGS.nb_teachers)), ("ensemble", f"{ensemble} (sensitive)")]
    )


def run() -> None:
    """Runs the command with the flags of this process."""
    command_line.run(sums.run_and_leave(main, TeacherRun, TeacherSettings), define, __doc__)


if __name__ == "__main__":
    run()
