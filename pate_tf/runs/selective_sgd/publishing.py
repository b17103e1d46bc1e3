"""A model of shared training is exported, with a statement of what it cost."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from pate_tf import artifacts
from pate_tf.runs.student.publishing import library_versions
from pate_tf.selective_sgd.payment import Payment
from pate_tf.selective_sgd.settings import Settings
from pate_tf.serving import digest, export
from pate_tf.statement.shared_training import SharedTrainingStatement
from pate_tf.values.dataset import Dataset


def publish(
    model: keras.Model | tf.Module,
    dataset: Dataset,
    settings: Settings,
    payments: Sequence[Payment],
    *,
    num_parameters: int,
    holders: int,
    fewest_records: int,
    directory: artifacts.RunDirectory,
) -> pathlib.Path:
    """Exports the global model and its statement.

    With noise they go below `released/`. Without noise nothing may be published: they go below
    `sensitive/`, and the statement says why.

    Args:
      model: from raw inputs to logits.
      dataset: of the raw inputs.
      settings: of the run that it comes from.
      payments: what each ledger says; none without noise.
      num_parameters: how many were trained.
      holders: how many participants hold one record at most.
      fewest_records: of a participant.
      directory: of the run.

    Returns:
      The exported version's folder.
    """
    charge = payments[0].charge if payments else None
    values = charged_values(payments)
    unit = getattr(charge, "unit", "participant") if charge else None
    statement = SharedTrainingStatement(
        dataset=dataset.name,
        num_participants=settings.num_participants,
        num_parameters=num_parameters,
        upload=settings.upload,
        rounds=settings.rounds,
        protocol=settings.protocol,
        charge=charge,
        unit=unit,
        **values,
        holders=holders if unit == "record" else 1,
        fewest_records=fewest_records if unit == "record" else None,
        ledger_heads=tuple(one.ledger_head for one in payments),
        ledger_was_reset=any(one.was_reset for one in payments),
        student_digest=digest.student_digest(model),
        versions=library_versions(),
    )
    folder = directory.released if payments else directory.sensitive
    exported = export.export_student(model, dataset, folder / "shared_model", statement.to_dict())
    artifacts.write_json(folder / "shared_model_statement.json", statement.to_dict())
    artifacts.write_text(folder / "shared_model_statement.md", statement.to_markdown())
    return exported


def charged_values(payments: Sequence[Payment]) -> dict[str, Any]:
    """Returns what ledgers say together, the worst of each, for statement and report.

    What one of them does not know, nobody does.
    """
    found = {
        name: [getattr(one, name) for one in payments]
        for name in (
            *("epsilon", "delta", "epsilon_all_ensembles", "delta_all_ensembles"),
            "num_ledgers",
        )
    }
    return {
        **{name: None if not each or None in each else max(each) for name, each in found.items()},
        "secure_noise": all(one.secure_noise for one in payments),
    }


def row_of_all_ensembles(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the row of a report on all that was released of the records; none without privacy."""
    if values["epsilon"] is None:
        return []
    epsilon, number = values["epsilon_all_ensembles"], values["num_ledgers"]
    counted = "1 ledger" if number == 1 else f"{number} ledgers"
    return [
        (
            "all ensembles and runs on these records",
            "not known"
            if epsilon is None
            else f"epsilon {epsilon:.4g} at delta {values['delta_all_ensembles']:g}, {counted}",
        )
    ]
