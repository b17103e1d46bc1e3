"""One of the parties that add up silos' votes under secret sharing.

Once, for its keys; put what it prints into the list of parties, which every silo, every party and
the coordinator get from the person who sets the run up:

    pate party --name=party-1 --party_dir=party-1 >> parties.toml

Then, as long as the run takes:

    pate party --index=1 --parties=parties.toml --party_dir=party-1 --coordinator=HOST:PORT
        --certificates=certificates

Parties belong to different organisations: those that pool what they know, more than the threshold
of them, learn every vote. It may be killed and started again on its own folder at any time.
"""

import pathlib

from absl import flags

from pate_tf.cli import command_line
from pate_tf.cli import flags as own_flags
from pate_tf.silos import aggregator as party

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines the flags."""
    command_line.shown_in_help("name", "keys")
    flags.DEFINE_string("name", None, "Makes keys for a party of this name, prints them and ends.")
    own_flags.define(party.PartyRun, group="party")


def main() -> None:
    """Reads the flags; makes keys, or works."""
    if not FLAGS.party_dir:
        raise ValueError("party_dir: expected the folder of the party, got none")
    if FLAGS.name:
        from pate_tf.silos.secure.keys import PartyKeys, party_entry  # needs cryptography

        path = pathlib.Path(FLAGS.party_dir) / party.KEYS
        print(party_entry(PartyKeys.load_or_create(path, FLAGS.name).identity))
        return
    for name in ("index", "coordinator"):
        if not FLAGS[name].present:
            raise ValueError(f"{name}: expected with --party_dir, or else --name for new keys")
    run = own_flags.read(party.PartyRun)
    party.serve(run, on_event=lambda event: print(event, flush=True))


def run() -> None:
    """Runs the command with the flags of this process."""
    renamed = own_flags.flag_of_argument(party.PartyRun)
    command_line.run(command_line.guarded(main, FLAGS, renamed), define_flags, __doc__)


if __name__ == "__main__":
    run()
