"""Measures the accounting against plain per-query Python loops of the same bound.

    python benchmarks/accounting.py [SECTION ...]

Every section is a function that yields rows; a new one is added to `SECTIONS`. Plain loops run on
a sample of the queries in the same process, and their time is scaled to all of them.
"""

import argparse
import json
import math
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

ROOT = pathlib.Path(__file__).absolute().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "accounting")]

import reference  # noqa: E402

from pate_tf.accounting.mechanisms import (  # noqa: E402
    ExponentialMechanism,
    GaussianNoisyMax,
    LaplaceNoisyMax,
    PermuteAndFlip,
)
from pate_tf.accounting.moments import (  # noqa: E402
    DEFAULT_MOMENTS,
    data_dependent_alphas,
)
from pate_tf.accounting.planning import least_noise  # noqa: E402
from pate_tf.analysis.smooth_sensitivity import smooth_sensitivity  # noqa: E402
from pate_tf.core.sensitive import Votes  # noqa: E402

GAMMA = 0.05
NUM_TEACHERS = 250
SIXTY_FOUR = np.geomspace(0.05, 512.0, 64)


@dataclass(frozen=True)
class Row:
    """One line of the table: seconds measured, those of the plain loop, target, peak memory."""

    name: str
    seconds: float
    plain_seconds: float = math.nan
    target: str = ""
    gibibytes: float = math.nan


def seconds(call: Callable[[], object]) -> float:
    """Returns the wall time of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def histograms(
    num_queries: int,
    num_classes: int = 10,
    *,
    num_teachers: int = NUM_TEACHERS,
    distinct: bool = False,
) -> np.ndarray:
    """Returns counts from weak to strong consensus, int64 [num_queries, num_classes]."""
    rng = np.random.default_rng(0)
    drawn = num_queries * 3 if distinct else num_queries
    winner = rng.uniform(0.3, 0.95, drawn)
    others = rng.dirichlet(np.ones(num_classes - 1), size=drawn) * (1.0 - winner)[:, None]
    counts = rng.multinomial(num_teachers, np.column_stack([winner, others]))
    if distinct:
        _, first = np.unique(-np.sort(-counts, axis=1), axis=0, return_index=True)
        counts = counts[np.sort(first)[:num_queries]]
    return counts


def plain_loop(bound: str, counts: np.ndarray, moments: np.ndarray, sample: int) -> float:
    """Returns the time of the plain loop over all counts, from the first `sample` of them."""
    orders = [float(moment) for moment in moments]
    some = [tuple(int(count) for count in row) for row in counts[:sample]]
    spent = seconds(lambda: [reference.plain_costs(bound, row, GAMMA, orders) for row in some])
    return spent * len(counts) / len(some)


def plain_exact(counts: np.ndarray, moments: np.ndarray, sample: int) -> float:
    """Returns the time of exact costs with one summation for every class and neighbour."""

    def one(row: tuple[int, ...]) -> None:
        here = reference.lowest_index_law(row, GAMMA)
        for moved in reference.neighbours(row):
            there = reference.lowest_index_law(moved, GAMMA)
            pairs = list(zip(here, there, strict=True))
            for moment in moments:
                math.log(sum(p * (p / r) ** moment for p, r in pairs))
                math.log(sum(r * (r / p) ** moment for p, r in pairs))

    some = [tuple(int(count) for count in row) for row in counts[:sample]]
    return seconds(lambda: [one(row) for row in some]) * len(counts) / len(some)


def plain_smooth(counts: np.ndarray, num_teachers: int, beta: float, sample: int) -> float:
    """Returns the time of Theorem A for `paper` at moment 8 with a loop over queries and d."""
    moment, grow = 8.0, math.exp(2 * GAMMA)
    cap = min(2 * GAMMA**2 * moment * (moment + 1), 2 * GAMMA * moment)

    def tail(gap: float) -> float:
        return (2 + GAMMA * gap) / (4 * math.exp(GAMMA * gap))

    def cost(q: float) -> float:
        if q >= 1 / (grow + 1):
            return cap
        ratio = ((1 - q) / (1 - grow * q)) ** moment
        return min(cap, math.log((1 - q) * ratio + q * grow**moment))

    low, high = 0.0, 1 / (grow + 1)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if cost(middle) >= cap else (middle, high)

    def one(row: list[int]) -> list[float]:
        least, sensitivities = list(row), []
        for distance in range(1, num_teachers + 1):
            largest = max(range(1, len(row)), key=least.__getitem__)
            if least[largest]:
                least[largest] -= 1
                least[0] += 1
            q_min = sum(tail(least[0] - other) for other in least[1:])
            q_max = 1.0
            if row[0] - row[1] >= 2 * distance:
                q_max = tail(row[0] - row[1] - 2 * distance)
                q_max += sum(tail(row[0] - other - distance) for other in row[2:])
            start = max(min(low, q_max) / grow, q_min)
            sensitivities.append(max(cost(q_max) - cost(start), 0.0))
        return [math.exp(-beta * d) * value for d, value in enumerate(sensitivities)]

    some = [sorted(row, reverse=True) for row in counts[:sample].tolist()]
    return seconds(lambda: [one(row) for row in some]) * len(counts) / len(some)


def smooth() -> Iterator[Row]:
    """Theorem A for 1,000 queries."""
    for num_teachers, target, sample in ((250, "0.3", 20), (5_000, "10", 2)):
        counts = histograms(1_000, num_teachers=num_teachers)
        spent = seconds(
            lambda counts=counts: smooth_sensitivity(
                counts, LaplaceNoisyMax(gamma=GAMMA), moment=8.0, beta=0.02, bound="paper"
            )
        )
        plain = plain_smooth(counts, num_teachers, 0.02, sample)
        yield Row(f"smooth sensitivity, {num_teachers:,} teachers", spent, plain, target)


def script() -> Iterator[Row]:
    """`python analysis.py` on 1,000 queries of 250 teachers, from a cold start."""
    labels = np.random.default_rng(0).integers(0, 10, (NUM_TEACHERS, 1_000))
    labels[: NUM_TEACHERS * 4 // 5] = np.arange(1_000) % 10
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/labels.npy", labels)
        counts = Votes(labels, 10).counts().values
        command = [sys.executable, "analysis.py", f"--counts_file={folder}/labels.npy"]
        command.append("--release=sanitised")
        plain = plain_loop("class_aware", counts, DEFAULT_MOMENTS, 10)
        plain += plain_loop("two_sided", counts, DEFAULT_MOMENTS, 50)
        plain += plain_loop("paper", counts, DEFAULT_MOMENTS, 50)
        for name in ("first run, which draws the release", "again"):
            spent = seconds(
                lambda: subprocess.run(
                    [*command, f"--output_dir={folder}/out"],
                    check=True,
                    cwd=ROOT,
                    stdout=subprocess.DEVNULL,
                )
            )
            yield Row(f"analysis.py, sanitised: {name}", spent, plain, "1.5")


def bounds() -> Iterator[Row]:
    """10,000 distinct histograms x 64 orders."""
    counts = histograms(10_000, distinct=True)
    mechanism = LaplaceNoisyMax(gamma=GAMMA)
    for bound, target in (("paper", "0.5"), ("two_sided", "0.5"), ("class_aware", "4")):
        spent = seconds(
            lambda bound=bound: data_dependent_alphas(counts, mechanism, SIXTY_FOUR, bound=bound)
        )
        plain = plain_loop(bound, counts, SIXTY_FOUR, 20 if bound == "class_aware" else 200)
        yield Row(f"{bound}, 10,000 distinct x 64 orders", spent, plain, target)
    gaussian = GaussianNoisyMax(sigma=40.0)
    for bound in ("paper", "two_sided"):
        spent = seconds(
            lambda bound=bound: data_dependent_alphas(counts, gaussian, SIXTY_FOUR, bound=bound)
        )
        yield Row(f"Gaussian {bound}, 10,000 distinct x 64 orders", spent)


def million() -> Iterator[Row]:
    """1,000,000 queries x 10 classes, all default orders."""
    counts = histograms(1_000_000)
    for bound in ("paper", "two_sided"):
        spent = seconds(
            lambda bound=bound: data_dependent_alphas(
                counts, LaplaceNoisyMax(gamma=GAMMA), DEFAULT_MOMENTS, bound=bound
            )
        )
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        plain = plain_loop(bound, counts, DEFAULT_MOMENTS, 200)
        yield Row(f"{bound}, 1,000,000 queries x 128 orders", spent, plain, "15", peak)


def exact() -> Iterator[Row]:
    """Exact moments of 10,000 distinct histograms; other mechanisms on 1,000, scaled."""
    for mechanism, sample in (
        (LaplaceNoisyMax(gamma=GAMMA), 10_000),
        (PermuteAndFlip(gamma=GAMMA), 1_000),
        (ExponentialMechanism(gamma=GAMMA), 1_000),
        (GaussianNoisyMax(sigma=40.0), 1_000),
    ):
        counts = histograms(sample, distinct=True)
        scale = 10_000 // sample
        spent = scale * seconds(
            lambda mechanism=mechanism, counts=counts: data_dependent_alphas(
                counts, mechanism, DEFAULT_MOMENTS, bound="exact"
            )
        )
        plain = math.nan
        if mechanism.name == LaplaceNoisyMax.name:
            plain = plain_exact(counts, DEFAULT_MOMENTS, 2)
        yield Row(f"exact {mechanism.name}, 10,000 distinct x 128 orders", spent, plain, "90")


def small() -> Iterator[Row]:
    """What one run of a script needs."""
    code = "import pate_tf.accounting.moments, pate_tf.accounting.planning"
    yield Row(
        "cold start: Python, NumPy and the accounting",
        seconds(lambda: subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)),
    )
    counts = histograms(1_000)
    for bound in ("paper", "two_sided", "class_aware"):
        spent = seconds(
            lambda bound=bound: data_dependent_alphas(
                counts, LaplaceNoisyMax(gamma=GAMMA), DEFAULT_MOMENTS, bound=bound
            )
        )
        plain = plain_loop(bound, counts, DEFAULT_MOMENTS, 20)
        yield Row(f"{bound}, 1,000 queries x 128 orders", spent, plain)
    for kind in (LaplaceNoisyMax, GaussianNoisyMax):
        spent = seconds(
            lambda kind=kind: least_noise(kind, num_queries=1_000, epsilon=1.0, delta=1e-6)
        )
        yield Row(f"least noise, {kind.__name__}, 1,000 queries", spent)


SECTIONS = {
    "script": script,
    "smooth": smooth,
    "small": small,
    "bounds": bounds,
    "million": million,
    "exact": exact,
}


def main() -> None:
    """Prints the sections named on the command line, or all, and writes them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sections", nargs="*", help=f"of {', '.join(SECTIONS)}; default: all")
    parser.add_argument("--output_dir", type=pathlib.Path, default="runs/benchmarks")
    flags = parser.parse_args()
    names = flags.sections or list(SECTIONS)
    if unknown := set(names) - set(SECTIONS):
        parser.error(f"expected sections of {list(SECTIONS)}, got {sorted(unknown)}")
    print(f"{'':58}{'seconds':>9}{'target':>8}{'plain loop':>12}{'ratio':>8}")
    flags.output_dir.mkdir(parents=True, exist_ok=True)
    for name in names:
        found: dict[str, dict[str, float]] = {}
        for row in SECTIONS[name]():
            ratio = row.plain_seconds / row.seconds
            found[row.name] = {"seconds": row.seconds}
            if not math.isnan(ratio):
                found[row.name] |= {"plain loop, seconds": row.plain_seconds, "ratio": ratio}
            plain = "" if math.isnan(ratio) else f"{row.plain_seconds:12.2f}{ratio:8.0f}"
            peak = ""
            if not math.isnan(row.gibibytes):
                found[row.name] |= {"peak memory, GiB": row.gibibytes}
                peak = f"  {row.gibibytes:.2f} GiB"
            print(f"{row.name:58}{row.seconds:9.3f}{row.target:>8}{plain}{peak}", flush=True)
        (flags.output_dir / f"accounting_{name}.json").write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
