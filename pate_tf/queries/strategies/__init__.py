"""Query strategies by name; a file of this package defines one or several and registers them.

A strategy's entry says all that others need: `--query_strategy` takes its choices and help from
here, and the privacy statement its words. No strategy sees a true label: a `Pool` has none, and
`ReleasedLabels` were charged to the ledger.

A file of this package imports TensorFlow, Keras and scikit-learn inside of its functions: flags and
statements read the entries without them.
"""

import dataclasses
import importlib
import pkgutil
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from pate_tf.accounting.charge import ReleasedLabels
from pate_tf.core import validation
from pate_tf.core.dataset import Dataset
from pate_tf.core.public import Pool, PoolLabels
from pate_tf.core.validation import IntArray

FloatArray = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Strategy:
    """One way to choose queries.

    Attributes:
        name: value of `--query_strategy`.
        help: what it chooses, for `--help`: words that follow "name: ".
        words: what it chose, for the statement: words that follow "queries, ".
        choose: from pool, number of queries and seed to the queries of the first round: positions
            int64 `[num_queries]`, distinct.
        score: from pool, labels so far and seed to float64 `[num_inputs]`: later rounds ask the
            lowest first. None where queries do not depend on answers: there is one round then.
        infer: from pool, all released labels and seed to what a student learns from: labels that
            follow from those without a query. None where nothing else follows from them.
        rounds: default number.
        uses_representation: whether `choose` and `infer` also take `representation=`, the name of
            the features that they compare inputs by; None for the data set's default.
    """

    name: str
    help: str
    words: str
    choose: Callable[..., IntArray]
    score: Callable[[Pool, ReleasedLabels, int], FloatArray] | None = None
    infer: Callable[..., PoolLabels] | None = None
    rounds: int = 1
    uses_representation: bool = False

    @property
    def is_adaptive(self) -> bool:
        """Whether queries depend on earlier noisy answers."""
        return self.score is not None


AUTO = "auto"
QUERIES_A_CLASS = 5  # from which on each class is likely to be among diverse queries
STRATEGIES: dict[str, Strategy] = {}
# Values of `--query_strategy` with their help.
CHOICES = {
    AUTO: f"the mechanism's own, such as medoids for a stability_gate or a plan; else diverse for "
    f"images whose data set names an augmentation and at least {QUERIES_A_CLASS} queries a class; "
    f"else first"
}


def register(*strategies: Strategy) -> None:
    """Makes strategies known by their names."""
    for strategy in strategies:
        STRATEGIES[strategy.name] = strategy
        CHOICES[strategy.name] = strategy.help


def recommended(
    of_mechanism: str, dataset: Dataset, num_queries: int, *, is_whole_pool: bool
) -> str:
    """Returns the strategy that `auto` stands for; a public rule.

    Args:
        of_mechanism: the mechanism's own: "first" if it has none.
        dataset: of the pool. Without an augmentation nothing is known to propagate labels by.
        num_queries: that are asked; a class that no query hits is never predicted.
        is_whole_pool: whether all of the pool can be asked about, not its first inputs alone.
    """
    has_features = dataset.augmentation != "none" and is_whole_pool
    if of_mechanism != "first" or not has_features:
        return of_mechanism
    return "diverse" if num_queries >= QUERIES_A_CLASS * dataset.num_classes else of_mechanism


def find_strategy(name: str) -> Strategy:
    """Returns the strategy of a name; ValueError if there is none."""
    validation.one_of(STRATEGIES, strategy=name)
    return STRATEGIES[name]


def choices_help() -> str:
    """Returns what every strategy chooses, in one sentence each kind: for `--help`."""
    fixed, adaptive = [f"{AUTO}: {CHOICES[AUTO]}"], list[str]()
    for strategy in STRATEGIES.values():
        kind = adaptive if strategy.is_adaptive else fixed
        kind.append(f"{strategy.name}: {strategy.help}")
    return f"{'; '.join(fixed)}. In rounds, from the noisy labels so far: {'; '.join(adaptive)}."


for _module in pkgutil.iter_modules(__path__, f"{__name__}."):
    importlib.import_module(_module.name)
