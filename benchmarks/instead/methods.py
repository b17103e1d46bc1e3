"""The methods that are compared, by name."""

import dataclasses
import pathlib
from collections.abc import Callable

from benchmarks.instead import dp_sgd, library, on_features, plain, private_knn
from benchmarks.instead.problem import Problem
from pate_tf.accounting.mechanisms import GaussianHistogram, GaussianNoisyMax, StabilityGate
from pate_tf.aggregation.noise import NoiseSource

Result = dict[str, object]
Run = Callable[[Problem, float, NoiseSource, int, pathlib.Path], Result]
WEAK, STRONG = "weak", "strong"
LEARNT, SCATTERED = "representation", "scattering"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method:
    """One way to learn from the private records.

    Attributes:
        title: in a table.
        run: takes the problem, an epsilon, noise, the number of the repetition and a folder of
            trained teachers, and returns `accuracy` and what else was found.
        features: which it needs, whose time is its own, too: the representation of the pool, or of
            images fixed wavelets; None for none.
        teachers: which it needs, "weak" or "strong"; None for none.
        is_private: whether it keeps to an epsilon.
        by_default: whether it is run where no methods are named.
    """

    title: str
    run: Run
    features: str | None = LEARNT
    teachers: str | None = None
    is_private: bool = True
    by_default: bool = True

    def fits(self, kind: str) -> bool:
        """Whether it can be run on data of a kind."""
        return kind == "image" or self.features != SCATTERED


def _of(run: Callable[..., Result]) -> Run:
    return lambda problem, epsilon, noise, repetition, folder: run(
        problem, epsilon, noise, repetition
    )


def _library(mechanism) -> Run:
    return lambda problem, epsilon, noise, repetition, folder: library.run(
        problem, epsilon, noise, repetition, folder=folder, mechanism=mechanism
    )


METHODS = {
    "no_privacy": Method(
        title="no privacy",
        run=lambda problem, epsilon, noise, repetition, folder: plain.run(problem, repetition),
        features=None,
        is_private=False,
    ),
    "noisy_means": Method(
        title="noisy class sums on public features", run=_of(on_features.run_means)
    ),
    "linear_head": Method(
        title="DP-SGD, linear head on public features", run=_of(on_features.run_head)
    ),
    "library": Method(
        title="pate_tf, as recommended for the epsilon", run=_library(None), teachers=WEAK
    ),
    "dp_sgd": Method(title="DP-SGD, a network from scratch", run=_of(dp_sgd.run), features=None),
    "scattering_head": Method(
        title="DP-SGD, linear head on fixed wavelets",
        run=_of(on_features.run_scattering),
        features=SCATTERED,
    ),
    "private_knn": Method(title="Private-kNN, and our student", run=_of(private_knn.run)),
    "noisy_means_student": Method(
        title="noisy class sums, and our student", run=_of(on_features.run_means_student)
    ),
    "linear_head_student": Method(
        title="DP-SGD, linear head on public features, and our student",
        run=_of(on_features.run_head_student),
    ),
    "library_histogram": Method(
        title="pate_tf, Gaussian histogram", run=_library(GaussianHistogram), teachers=WEAK
    ),
    "library_gate": Method(
        title="pate_tf, stability gate", run=_library(StabilityGate), teachers=WEAK
    ),
    "library_noisy_max": Method(
        title="pate_tf, Gaussian noisy max", run=_library(GaussianNoisyMax), teachers=WEAK
    ),
    "library_networks": Method(
        title=f"pate_tf, {library.NUM_STRONG} networks",
        run=_library(None),
        teachers=STRONG,
        features=None,
        by_default=False,
    ),
}
LABEL_PRIVATE = (
    "Methods that protect labels alone are not here: they don't protect the inputs of a record, "
    "which all others do."
)
