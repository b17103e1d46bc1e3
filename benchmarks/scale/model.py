"""The cost model: a constant and a power of the size, fitted on small sizes."""

import numpy as np
import numpy.typing as npt

# Sizes that the model is fitted on, and those that it must predict.
SIZES = {
    "teachers": ((1_000, 4_000, 10_000), (30_000, 100_000)),
    "ledger": ((20_000, 50_000, 100_000), (300_000, 1_000_000)),
    "pool": ((2_000, 6_000, 12_000), (30_000, 60_000)),
    "neighbours": ((2_000, 4_000, 8_000), (16_000,)),
    "hosts": ((10, 20, 40), (100, 200)),
    "approximate": ((30_000, 60_000, 120_000), (250_000, 1_000_000)),
}
UNITS = {"teachers": "teachers", "ledger": "answers", "hosts": "networks"}  # "inputs" for others
POWERS = {"neighbours": 2.0, "approximate": 1.5}  # of seconds; 1 for others


def fitted(sizes: npt.ArrayLike, values: npt.ArrayLike, power: float) -> tuple[float, float]:
    """Returns a constant and the factor of `size ** power`, by least squares of relative errors."""
    x, y = np.asarray(sizes, np.float64) ** power, np.asarray(values, np.float64)
    rows = np.stack([1.0 / y, x / y], axis=1)
    fixed, each = np.linalg.lstsq(rows, np.ones(len(y)), rcond=None)[0]
    return float(fixed), float(each)


def report(what: str, found: dict[int, dict[str, float]]) -> str:
    """Returns the part's table and its model, as Markdown."""
    small, large = SIZES[what]
    powers = {"seconds": POWERS.get(what, 1.0), "MiB": 1.0}
    models = {
        name: fitted(small, [found[size][name] for size in small], power)
        for name, power in powers.items()
    }
    details = [name for name in found[small[0]] if name not in ("seconds", "MiB", "wall")]
    heads = ["seconds", "predicted", "MiB", "predicted", *details]
    lines = [
        f"| {UNITS.get(what, 'inputs')} | {' | '.join(heads)} |",
        "|---" * (len(heads) + 1) + "|",
    ]
    for number in (*small, *large):
        if number not in found:
            continue
        cells = []
        for name in ("seconds", "MiB"):
            value, (fixed, each) = found[number][name], models[name]
            predicted = fixed + each * number ** powers[name]
            off = "" if number in small else f" ({predicted / value - 1.0:+.0%})"
            cells += [f"{value:,.1f}", f"{predicted:,.1f}{off}"]
        cells += [f"{found[number][name]:.4g}" for name in details]
        lines.append(f"| {number:,} | {' | '.join(cells)} |")
    model = "; ".join(
        f"{name} = {fixed:.4g} + {each * 1e6 ** powers[name]:.4g} (size / 1,000,000)"
        + ("" if powers[name] == 1.0 else f" ** {powers[name]:g}")
        for name, (fixed, each) in models.items()
    )
    return "\n".join([*lines, "", model])
