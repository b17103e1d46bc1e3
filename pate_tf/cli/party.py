"""One of the parties that add up silos' votes under secret sharing.

Once, for its keys; put what it prints into the list of parties, which every silo, every party and
the coordinator get from whoever sets the run up:

    pate-party --name=party-1 --party_dir=party-1 >> parties.toml

Then, as long as the run takes:

    pate-party --index=1 --parties=parties.toml --party_dir=party-1 --coordinator=HOST:PORT
        --certificates=certificates

Parties belong to different organisations: those that pool what they know, more than the threshold
of them, learn every vote. It may be killed and started again on its own folder at any time.
"""

import pathlib

from absl import flags

from pate_tf.cli import command_line

FLAGS = flags.FLAGS
FLAG_OF_ARGUMENT = {"folder": "party_dir"}


def define_flags() -> None:
    """Defines the flags."""
    flags.DEFINE_string("name", None, "Makes keys for a party of this name, prints them and ends.")
    flags.DEFINE_integer("index", None, "Which party of the list this is, from 1.", lower_bound=1)
    flags.DEFINE_string("parties", "parties.toml", "The list of parties.")
    flags.DEFINE_string("party_dir", None, "Folder of the party: its keys and its journal.")
    flags.DEFINE_string("coordinator", None, "Address of the coordinator, HOST:PORT.")
    flags.DEFINE_string(
        "certificates",
        "certificates",
        "Folder with authority.pem, and NAME.pem and NAME.key of this party.",
    )
    flags.DEFINE_string("coordinator_name", "coordinator", "Name in the coordinator's certificate.")


def main() -> None:
    """Reads the flags; makes keys, or works."""
    from pate_tf.api import party

    if not FLAGS.party_dir:
        raise ValueError("party_dir: expected the folder of the party, got none")
    folder = pathlib.Path(FLAGS.party_dir)
    if FLAGS.name:
        print(party.party_keys(FLAGS.name, folder))
        return
    for name in ("index", "coordinator"):
        if not FLAGS[name].present:
            raise ValueError(f"{name}: expected with --party_dir, or else --name for new keys")
    party.serve(
        party.PartyRun(
            index=FLAGS.index,
            parties=pathlib.Path(FLAGS.parties),
            folder=folder,
            coordinator=FLAGS.coordinator,
            certificates=pathlib.Path(FLAGS.certificates),
            coordinator_name=FLAGS.coordinator_name,
        ),
        on_event=lambda event: print(event, flush=True),
    )


def run() -> None:
    """Runs the command with the flags of this process."""
    command_line.run(command_line.guarded(main, FLAGS, FLAG_OF_ARGUMENT), define_flags, __doc__)


if __name__ == "__main__":
    run()
