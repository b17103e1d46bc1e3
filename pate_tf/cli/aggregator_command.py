"""Runs an aggregator, which helps to add up silos' votes or sums with secret sharing.

Run the following command once to create the keys. It prints an entry for the roster. The roster is
a file that the organizer of the run gives to every silo, every aggregator and the coordinator:

    pate aggregator --name=aggregator-1 --aggregator_dir=aggregator-1 >> roster.toml

Then start the aggregator. It runs until the coordinator ends the run:

    pate aggregator --aggregator_dir=aggregator-1 --roster=roster.toml --coordinator=HOST:PORT
        --certificates=certificates

Aggregators must belong to different organizations, because a group of more aggregators than the
threshold could reconstruct every vote. You can stop an aggregator at any time and start it again
with the same folder. `pate aggregator status --aggregator_dir=aggregator-1` prints its progress.
"""

import tomllib

from absl import flags

from pate_tf.cli import command_line
from pate_tf.core import artifacts
from pate_tf.silos import silo_server

FLAGS = flags.FLAGS
FLAG_OF_ARGUMENT = command_line.flag_of_argument(silo_server.AggregatorRun)
STATUS = (silo_server.AggregatorRun, silo_server.aggregator_status)


def define() -> None:
    """Defines the flags of this command."""
    command_line.define(silo_server.AggregatorRun, group="aggregator")
    command_line.define_operation()


def main() -> None:
    """Reads the flags, then creates keys or runs the aggregator."""
    command_line.require("the folder of the aggregator", "aggregator_dir")
    settings = command_line.read(silo_server.AggregatorRun)
    path = settings.folder / silo_server.KEYS
    if settings.name is None:
        name = artifacts.read_json(path)["name"] if path.exists() else ""
        log, watch = command_line.start_operation("aggregator", name)
        with artifacts.only_writer(settings.folder):
            silo_server.serve_aggregator(
                settings, on_event=log, watch=watch, give_up_after=FLAGS.give_up_after
            )
        command_line.write_report(None, silo_server.aggregator_status(settings.folder))
        return
    from pate_tf.silos.protocol import Keys  # needs cryptography

    entry = Keys.load_or_create(path, settings.name).identity.entry("aggregator")
    command_line.write_report(None, tomllib.loads(entry))
    print(entry)
