"""What a run of the teachers found out, as JSON and as rows of a table. SENSITIVE."""

import pathlib
from collections.abc import Mapping
from typing import Any

from pate_tf.data.named_function import name_of
from pate_tf.models import classifier
from pate_tf.runs.reporting import NOT_MEASURED, UNEVEN, Row
from pate_tf.runs.teachers.accuracy import Accuracies
from pate_tf.runs.teachers.training import is_compiled
from pate_tf.teachers.config import TeacherConfig

AUGMENTATION_WORDS = {
    "none": "images as they are",
    "shift": "small shifts",
    "affine": "small shifts, rotations, scaling and shear",
    "flip": "small shifts, left for right",
}


def teachers_values(
    config: TeacherConfig,
    *,
    num_trained: int,
    accuracies: Accuracies | None,
    constant_answer: float | None,
    ensemble: pathlib.Path | None,
) -> dict[str, Any]:
    """Returns the JSON values.

    Args:
      config: of the teachers.
      num_trained: how many were asked for.
      accuracies: of those that could be asked; None without public labels.
      constant_answer: accuracy of always answering the commonest class; None likewise.
      ensemble: where the complete one lies; None while teachers are missing.
    """
    found = None if accuracies is None else accuracies.values
    return {
        "dataset": config.dataset.name,
        "nb_teachers": config.num_teachers,
        "representation": None if config.representation is None else name_of(config.representation),
        "teachers_trained": num_trained,
        "teachers_evaluated": None if found is None else len(found),
        "teacher_accuracy_mean": None if found is None else float(found.mean()),
        "teacher_accuracy_lowest": None if found is None else float(found.min()),
        "teacher_accuracy_highest": None if found is None else float(found.max()),
        "teacher_balanced_accuracy_mean": (
            None if accuracies is None else float(accuracies.balanced.mean())
        ),
        "teachers_constant": None if accuracies is None else accuracies.num_constant,
        "constant_answer_accuracy": constant_answer,
        "augmentation": config.dataset.augmentation,
        "ensemble": None if ensemble is None else str(ensemble),
    }


def teachers_rows(
    config: TeacherConfig,
    values: Mapping[str, Any],
    *,
    num_records: int,
    num_samples: int,
    teachers_folder: pathlib.Path,
) -> list[Row]:
    """Returns the rows of the table.

    Args:
      config: of the teachers.
      values: as `teachers_values` returns them, with `seconds`; with `each` where every teacher was
        exported apart.
      num_records: how many private records there are.
      num_samples: how many public samples with labels.
      teachers_folder: where teachers are kept.
    """
    constant, ensemble = values["constant_answer_accuracy"], values["ensemble"]
    each = [("each teacher apart", f"{values['each']} (sensitive)")] if "each" in values else []
    return [
        ("data set", _data_in_words(config, num_records)),
        *each,
        ("teachers", _teachers_in_words(config, values)),
        ("mean teacher accuracy", _accuracy_in_words(values, num_samples)),
        *_augmentation_rows(config),
        *_by_class_rows(values, config.dataset.num_classes),
        ("a constant answer", NOT_MEASURED if constant is None else f"{constant:.2%}"),
        ("kept in", f"{teachers_folder} (sensitive)")
        if ensemble is None
        else ("ensemble", f"{ensemble} (sensitive)"),
        ("time", f"{values['seconds']:.1f} s"),
    ]


def _data_in_words(config: TeacherConfig, num_records: int) -> str:
    sensitive = "; sensitive" if config.unit == "owner" else ""
    return f"{config.dataset.name}, {num_records:,} private records{sensitive}"


def _augmentation_rows(config: TeacherConfig) -> list[Row]:
    """What teachers in the traced loop do to images; others take them as they are."""
    dataset = config.dataset
    if (
        dataset.kind != "image"
        or config.representation is not None
        or classifier.is_classifier(config.model, dataset)
        or is_compiled(config)
    ):
        return []
    return [("augmentation", f"{dataset.augmentation}: {AUGMENTATION_WORDS[dataset.augmentation]}")]


def _by_class_rows(values: Mapping[str, Any], num_classes: int) -> list[Row]:
    """Rows where accuracy says little, or a teacher says nothing."""
    rows = []
    if (values["constant_answer_accuracy"] or 0.0) * num_classes > UNEVEN:
        balanced = values["teacher_balanced_accuracy_mean"]
        rows.append(("mean balanced accuracy", f"{balanced:.2%}; sensitive"))
    if values["teachers_constant"]:
        rows.append(
            (
                "WARNING",
                f"{values['teachers_constant']} of {values['teachers_evaluated']} teachers always "
                f"give the same answer, which says nothing (a network's training may have "
                f"diverged: try a lower learning rate); sensitive",
            )
        )
    return rows


def _teachers_in_words(config: TeacherConfig, values: Mapping[str, Any]) -> str:
    if values["ensemble"] is not None:
        if config.representation is not None:
            features = f", on {name_of(config.representation)} features of the pool"
            return f"{config.num_teachers} of {name_of(config.model)}{features}"
        are_classifiers = classifier.is_classifier(config.model, config.dataset)
        steps_each = "" if are_classifiers else f", {config.steps_in_words}"
        return f"{config.num_teachers} of {name_of(config.model)}{steps_each}"
    trained, evaluated = values["teachers_trained"], values["teachers_evaluated"]
    if evaluated is None:
        return f"{trained} of {config.num_teachers} trained; the rest is missing still"
    return (
        f"{evaluated} of {config.num_teachers} trained so far, {trained} of them asked for; the "
        f"rest is missing still"
    )


def _accuracy_in_words(values: Mapping[str, Any], num_samples: int) -> str:
    if values["teachers_evaluated"] is None:
        return NOT_MEASURED
    mean, lowest, highest = (
        values[f"teacher_accuracy_{name}"] for name in ("mean", "lowest", "highest")
    )
    return (
        f"{mean:.2%} (lowest {lowest:.2%}, highest {highest:.2%}) on {num_samples:,} public "
        f"samples; sensitive"
    )
