"""One of the aggregators that add up silos' votes or sums under secret sharing.

Once, for its keys; put what it prints on the roster, which every silo, every aggregator and the
coordinator get from the person who sets the run up:

    pate aggregator --name=aggregator-1 --aggregator_dir=aggregator-1 >> roster.toml

Then, until the coordinator says that the run is over:

    pate aggregator --aggregator_dir=aggregator-1 --roster=roster.toml --coordinator=HOST:PORT
        --certificates=certificates

Aggregators belong to different organizations: those that pool what they know, more than the
threshold of them, learn every vote. It may be killed and started again on its own folder at any
time. `pate aggregator status --aggregator_dir=aggregator-1` prints what it did.
"""

from absl import flags

from pate_tf.cli import command_line
from pate_tf.core import artifacts
from pate_tf.silos import silo_server

FLAGS = flags.FLAGS
FLAG_OF_ARGUMENT = command_line.flag_of_argument(silo_server.AggregatorRun)
STATUS = (silo_server.AggregatorRun, silo_server.aggregator_status)


def define() -> None:
    """Defines the flags."""
    command_line.define(silo_server.AggregatorRun, group="aggregator")
    command_line.define_operation()


def main() -> None:
    """Reads the flags; makes keys, or works."""
    if not FLAGS.aggregator_dir:
        raise ValueError("aggregator_dir: expected the folder of the aggregator, got none")
    settings = command_line.read(silo_server.AggregatorRun)
    path = settings.folder / silo_server.KEYS
    if settings.name is None:
        name = artifacts.read_json(path)["name"] if path.exists() else ""
        log, watch = command_line.start_operation("aggregator", name)
        with artifacts.only_writer(settings.folder):
            silo_server.serve_aggregator(
                settings, on_event=log, watch=watch, give_up_after=FLAGS.give_up_after
            )
        return
    from pate_tf.silos.protocol import Keys  # needs cryptography

    print(Keys.load_or_create(path, settings.name).identity.entry("aggregator"))
