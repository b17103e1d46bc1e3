"""Parties in this process, for simulations: whoever runs them all could learn every vote."""

import pathlib

from pate_tf.silos.secure.keys import PartyKeys
from pate_tf.silos.secure.party import Party
from pate_tf.silos.secure.roles import PartySealer, PartySums


def simulated_parties(
    folder: pathlib.Path, *, num_parties: int = 4
) -> tuple[PartySealer, PartySums]:
    """Returns what silos and a coordinator need of parties that work in this process.

    Args:
      folder: sensitive; keys and journals of the parties. A run that goes on needs the same one.
      num_parties: how many there are.

    Raises:
      ValueError: if another process has the folder open.
    """
    parties = []
    for number in range(1, num_parties + 1):
        name = f"party-{number}"
        keys = PartyKeys.load_or_create(folder / name / "keys.json", name)
        parties.append(Party(keys, folder / name / "journal"))
    identities = [one.identity for one in parties]
    return PartySealer(identities), PartySums(identities, [one.answer for one in parties])
