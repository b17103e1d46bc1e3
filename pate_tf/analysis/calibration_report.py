"""A calibration as rows of a table and as JSON, all publishable.

A roof room, without TensorFlow.
"""

from collections.abc import Iterator
from typing import Any

from pate_tf.accounting.mechanisms import Flag, Mechanism
from pate_tf.analysis.calibration import Calibration
from pate_tf.analysis.rows import Row, shown


def calibration_rows(calibration: Calibration) -> list[Row]:
    """Returns the rows of a calibration, all publishable."""
    noise = [
        (
            flag.name if flag.is_inverse or flag.name == field else f"{flag.name} ({field})",
            f"{flag.shown(value):f} {flag.unit}".rstrip(),
        )
        for flag, field, value in _flags(calibration.mechanism)
    ]
    return [
        ("mechanism", calibration.mechanism.name),
        *noise,
        ("queries", f"{calibration.num_queries:,}"),
        (
            "epsilon, data-independent",
            f"{shown(calibration.guarantee.epsilon)} at delta {calibration.delta:g}, both "
            f"directions; target {calibration.target_epsilon:g}",
        ),
    ]


def _flags(mechanism: Mechanism) -> Iterator[tuple[Flag, str, float]]:
    """Yields every flag of a mechanism, with the field that it gives and the field's value."""
    for parameter in mechanism.parameters:
        for flag in parameter.flags:
            yield flag, parameter.field, getattr(mechanism, parameter.field)


def calibration_report(calibration: Calibration) -> dict[str, Any]:
    """Returns the JSON of a calibration."""
    typed = {
        flag.name: float(flag.shown(value)) for flag, _, value in _flags(calibration.mechanism)
    }
    return {
        "lap_scale": None,
        **typed,
        "queries": calibration.num_queries,
        "mechanism": calibration.mechanism.to_dict(),
        "delta": calibration.delta,
        "target_epsilon": calibration.target_epsilon,
        "epsilon_data_independent": calibration.guarantee.epsilon,
        "sensitive": [],
    }
