"""The record set of an ensemble's private data, kept beside the ensemble. Sensitive."""

import pathlib
from typing import Any, Final, Protocol, runtime_checkable

import numpy.typing as npt

from pate_tf.core import artifacts
from pate_tf.core.record_set import RecordSet

FILE: Final = "records.json"


@runtime_checkable
class KnowsRecords(Protocol):
    """Sensitive: an ensemble that may know which records it learnt from."""

    @property
    def records(self) -> RecordSet | None:
        """What it learnt from; None if that was not kept."""


def keep(folder: pathlib.Path, inputs: npt.NDArray[Any]) -> None:
    """Writes the record set of private inputs `[num_records, ...]` into a folder, once.

    Args:
      folder: the sensitive folder of the teachers, which holds one data set for ever.
      inputs: all private inputs.
    """
    if not (folder / FILE).exists():
        artifacts.write_json(folder / FILE, RecordSet.of(inputs).to_dict(), private=True)


def beside(ensemble: pathlib.Path) -> RecordSet | None:
    """Returns the record set beside an ensemble's folder; None if none was kept there.

    Raises:
      ValueError: if the file is broken.
    """
    path = ensemble.parent / FILE
    return RecordSet.from_dict(artifacts.read_json(path)) if path.exists() else None
