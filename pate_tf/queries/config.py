"""How many queries are asked, and how they are chosen."""

import dataclasses

from pate_tf.core.settings import Settings, setting
from pate_tf.data.named_function import Named
from pate_tf.queries.strategies import STRATEGIES, choices_help


@dataclasses.dataclass(frozen=True, kw_only=True)
class QueryConfig(Settings):
    """How queries are chosen. `num_neighbours` None: `neighbours.default_number` where fitting."""

    strategy: str = setting(
        "first",
        flag="query_strategy",
        choices=STRATEGIES.keys(),
        help="Which of the pool are put to the teachers; true labels play no part. "
        + choices_help(),
    )
    num_queries: int = setting(
        flag="queries",
        least=1,
        help="How many of the pool are put to the teachers, over all rounds.",
    )
    rounds: int | None = setting(
        None,
        flag="query_rounds",
        least=1,
        help="In how many rounds of about equal size a strategy that learns from earlier answers "
        "asks. Default: the strategy's own number.",
    )
    seed: int = setting(
        0,
        flag="query_seed",
        least=0,
        most=2**31 - 1,
        help="Seed of random choices of queries and of what is trained between rounds. Another "
        "seed asks other queries, which are charged.",
    )
    representation: Named | None = setting(
        None,
        help="Features that diverse and medoids compare inputs by: contrastive or patches, learnt "
        "from the pool alone and cached in ~/.cache/pate_tf (or $PATE_TF_CACHE); raw; several of "
        "them joined by +; or module:function for a Keras model from raw inputs to features. "
        "Default: that of the teachers, if they have one; else contrastive for images, raw "
        "otherwise.",
    )
    num_neighbours: int | None = setting(
        None,
        flag="query_neighbours",
        least=0,
        help="With diverse and medoids: how many nearest neighbours of a query in the pool go with "
        "it; a teacher votes once, for the class that it names most often among them, so that "
        "teachers agree more. 0: each query alone. Default: up to 20 for a stability_gate on "
        "images, else 0.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rounds is not None and self.rounds > self.num_queries:
            raise ValueError(
                f"rounds: expected from 1 to the {self.num_queries} queries, got {self.rounds}"
            )
