"""The least noise for a number of queries, or the most queries for a noise; reads no votes.

Data-independent throughout, so publishable. `pate_tf.api.planning` compares methods and mechanisms.
TensorFlow is not imported.
"""

from pate_tf.accounting import planning
from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.accounting.planning import DEFAULT_DELTA
from pate_tf.analysis.report import shown
from pate_tf.api.reporting import Table, TablesReport


def calibrate(
    mechanism: Mechanism | type[Mechanism],
    *,
    epsilon: float,
    num_queries: int | None = None,
    delta: float = DEFAULT_DELTA,
) -> TablesReport:
    """Finds the least noise for a number of queries, or the most queries for a noise.

    Args:
      mechanism: its kind, to find the least noise; with its noise, to find the most queries.
      epsilon: the target, data-independent.
      num_queries: how many labels; None to find the most.
      delta: of the target.

    Raises:
      ValueError: if the target can't be met, or both or neither of noise and number are given.
    """
    if isinstance(mechanism, type):
        if num_queries is None:
            raise ValueError("num_queries: expected it where the noise is to be found, got none")
        mechanism = planning.least_noise(
            mechanism, num_queries=num_queries, epsilon=epsilon, delta=delta
        )
    elif num_queries is not None:
        raise ValueError("num_queries: expected none with the noise given, got both")
    else:
        num_queries = planning.most_queries(mechanism, epsilon=epsilon, delta=delta)
    cost, _ = mechanism.data_independent_epsilon(num_queries=num_queries, delta=delta)
    rows = [("mechanism", mechanism.name)]
    typed: dict[str, float | None] = {"lap_scale": None}
    for parameter in mechanism.parameters:
        value = getattr(mechanism, parameter.field)
        for flag in parameter.flags:
            is_own = flag.is_inverse or flag.name == parameter.field
            name = flag.name if is_own else f"{flag.name} ({parameter.field})"
            rows.append((name, f"{flag.shown(value):f} {flag.unit}".rstrip()))
            typed[flag.name] = float(flag.shown(value))
    rows += [
        ("queries", f"{num_queries:,}"),
        (
            "epsilon, data-independent",
            f"{shown(cost)} at delta {delta:g}, both directions; target {epsilon:g}",
        ),
    ]
    values: dict[str, object] = {
        **typed,
        "queries": num_queries,
        "mechanism": mechanism.to_dict(),
        "delta": delta,
        "target_epsilon": epsilon,
        "epsilon_data_independent": cost,
        "sensitive": [],
    }
    return TablesReport(tables=[Table(title="Calibration, publishable", rows=rows)], values=values)
