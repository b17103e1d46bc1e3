"""What a stored run depends on: public settings by name, and keyed digests of private values."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any, Final

PRIVATE_RECORDS: Final = "records"  # of a private digest, among settings
MOST_CHARACTERS: Final = 80  # of a value in a message
# Settings that a person types; of others, private values among them, messages show names alone.
SHOWN: Final = frozenset(
    (
        *("num_teachers", "model", "representation", "kind", "unit", "seed", "training_version"),
        *("max_steps", "batch_size", "learning_rate"),
        *("participant", "num_participants", "rounds", "upload", "gamma", "protocol"),
        *("privacy", "target_epsilon", "delta", "clip", "sampling_rate", "steps"),
    )
)


def check_same_settings(
    stored: Mapping[str, Any], settings: Mapping[str, Any], *, folder: pathlib.Path, holds: str
) -> None:
    """Checks that a folder holds a run of the same settings and private records.

    Args:
        stored: settings by name, JSON values, as they were read from the folder.
        settings: as they are now, JSON values or tuples of them.
        folder: for the message.
        holds: what the folder holds, for the message.

    Raises:
        ValueError: if they differ. It names the settings that do, and shows
            values of `SHOWN` alone.
    """
    wanted = json.loads(json.dumps(settings))  # as they are read back: tuples are lists
    differences = []
    for name in {**wanted, **stored}:
        before, now = stored.get(name), wanted.get(name)
        if type(before) is type(now) and before == now and (name in stored) == (name in wanted):
            continue
        values = [str(each)[:MOST_CHARACTERS] for each in (before, now)]
        is_shown = name in SHOWN and not any(
            isinstance(each, (list, dict)) for each in (before, now)
        )
        label = "private records" if name == PRIVATE_RECORDS else name
        differences.append(f"{label} ({values[0]} there, {values[1]} now)" if is_shown else label)
    if differences:
        raise ValueError(
            f"{folder} holds {holds} of other settings: {', '.join(differences)}; choose another "
            f"folder or remove it"
        )
