"""One of the aggregators that add up silos' votes or sums under secret sharing.

Once, for its keys; put what it prints on the roster, which every silo, every aggregator and the
coordinator get from the person who sets the run up:

    pate aggregator --name=aggregator-1 --aggregator_dir=aggregator-1 >> roster.toml

Then, until the coordinator says that the run is over:

    pate aggregator --aggregator_dir=aggregator-1 --roster=roster.toml --coordinator=HOST:PORT
        --certificates=certificates

Aggregators belong to different organizations: those that pool what they know, more than the
threshold of them, learn every vote. It may be killed and started again on its own folder at any
time.
"""

import functools

from absl import flags

from pate_tf.cli import command_line
from pate_tf.cli import flags as own_flags
from pate_tf.silos import serving

FLAGS = flags.FLAGS
FLAG_OF_ARGUMENT = own_flags.flag_of_argument(serving.AggregatorRun)
# Defines the flags.
define = functools.partial(own_flags.define, serving.AggregatorRun, group="aggregator")


def main() -> None:
    """Reads the flags; makes keys, or works."""
    if not FLAGS.aggregator_dir:
        raise ValueError("aggregator_dir: expected the folder of the aggregator, got none")
    settings = own_flags.read(serving.AggregatorRun)
    if settings.name is None:
        serving.serve_aggregator(settings, on_event=command_line.note)
        return
    from pate_tf.silos.protocol import Keys  # needs cryptography

    path = settings.folder / serving.KEYS
    print(Keys.load_or_create(path, settings.name).identity.entry("aggregator"))
