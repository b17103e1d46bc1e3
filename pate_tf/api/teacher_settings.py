"""Who gets which record, and the settings of teachers with all gaps filled from the data."""

import dataclasses
import pathlib
from typing import Any

import numpy.typing as npt

from pate_tf.core import artifacts, partition
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.data.named_function import name_of
from pate_tf.models import catalogue as models
from pate_tf.models import classifier
from pate_tf.representations.catalogue import default_of_teachers
from pate_tf.teachers.on_features import is_on_features
from pate_tf.teachers.settings import TeacherConfig, TeacherSettings


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartitionSource:
    """Who gets which record; at random, by the seed, where neither file is given.

    Attributes:
      owners_file: the owner of each record, `.npy` `[num_records]`; see `owner_partition`.
      partition_file: the teacher of each record; see `assigned_partition`.
    """

    owners_file: pathlib.Path | None = None
    partition_file: pathlib.Path | None = None

    def owned(self, examples: PrivateExamples) -> PrivateExamples:
        """Returns records with the owners that shares go by: the file's, whatever the data bring.

        Raises:
          ValueError: if the file is broken or does not fit.
        """
        if self.owners_file is None or self.partition_file is not None:
            return examples
        owners = artifacts.read_array(self.owners_file)
        _check_length(owners, len(examples), "owners_file", "the owner of each record")
        return dataclasses.replace(examples, owners=owners)

    def unit(self, examples: PrivateExamples) -> str:
        """Returns what shares of records, as `owned` gives them, protect: "record" or "owner"."""
        return "record" if self.partition_file or examples.owners is None else "owner"

    def load(
        self,
        *,
        num_records: int,
        num_teachers: int,
        seed: int,
        owners: npt.NDArray[Any] | None = None,
    ) -> partition.Partition:
        """Shares records out; by `owners`, as `owned` gives them, where there is no other file.

        Raises:
          ValueError: if both files are given, or one is broken or does not fit.
        """
        if self.owners_file and self.partition_file:
            raise ValueError("partition: expected owners_file or partition_file, got both")
        if self.partition_file:
            given = artifacts.read_array(self.partition_file)
            if given.ndim == 1:
                _check_length(given, num_records, "partition", "the teacher of each record")
            shares = partition.assigned_partition(given, num_teachers=num_teachers)
        elif owners is not None:
            shares = partition.owner_partition(owners, num_teachers=num_teachers, seed=seed)
        else:
            return partition.random_partition(
                num_records=num_records, num_teachers=num_teachers, seed=seed
            )
        if shares.num_records != num_records:
            raise ValueError("partition: expected the teacher of each record, got others")
        return shares


def _check_length(given: npt.NDArray[Any], num_records: int, what: str, meaning: str) -> None:
    if given.ndim and len(given) != num_records:
        raise ValueError(f"{what}: expected {meaning}, got another number of them")


def complete_settings(
    settings: TeacherSettings, examples: PrivateExamples, shares: partition.Partition
) -> TeacherConfig:
    """Fills in what follows from the data.

    Raises:
        ValueError: if a setting is out of range, or the model does not have it.
    """
    model = settings.model or models.default_model(examples.dataset)
    if classifier.is_classifier(model, examples.dataset):
        for name in ("max_steps", "batch_size", "learning_rate", "class_weights"):
            if getattr(settings, name) is not None:
                raise ValueError(
                    f"{name}: expected none for {name_of(model)}, a classifier of "
                    f"scikit-learn, which brings its own settings"
                )
    if settings.class_weights is not None and is_on_features(model):
        raise ValueError(
            f"class_weights: expected none for {name_of(model)}, which is solved for, not "
            f"trained step by step"
        )
    representation = settings.representation
    if representation is None and is_on_features(model):
        representation = default_of_teachers(examples.dataset)
    given = {
        field.name: value
        for field in dataclasses.fields(TeacherSettings)
        if (value := getattr(settings, field.name)) is not None
    }
    return TeacherConfig(
        **{
            **given,
            "dataset": examples.dataset,
            "num_teachers": shares.num_teachers,
            "model": model,
            "representation": representation,
            "unit": shares.unit,
        }
    )
