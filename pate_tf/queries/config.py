"""How many queries are asked, and how they are chosen."""

import dataclasses

from pate_tf.data.named_function import Named


@dataclasses.dataclass(frozen=True, kw_only=True)
class QueryConfig:
    """How queries are chosen.

    Attributes:
      strategy: its name in `queries/catalogue.py`.
      num_queries: how many inputs of the pool are put to the teachers, over all rounds.
      rounds: in how many parts of about equal size; later ones may depend on the answers to
        earlier ones. None for the strategy's own number.
      seed: fixes random choices and what is trained between rounds. Another seed asks other
        queries, which are paid for.
      representation: what says which inputs are alike, by its name in
        `representations/catalogue.py` or as a function; None for the data set's default. For
        strategies that look at that.
      num_neighbours: how many inputs of the pool that look most like a query are asked about
        together with it, each teacher voting for the class that it names most often; 0 for the
        query alone. None for `look_alikes.default_number` where the mechanism is paid once for a
        batch and the strategy looks at likeness, else 0.
    """

    strategy: str = "first"
    num_queries: int
    rounds: int | None = None
    seed: int = 0
    representation: Named | None = None
    num_neighbours: int | None = None

    def __post_init__(self) -> None:
        if self.num_queries < 1:
            raise ValueError(f"num_queries: expected at least 1, got {self.num_queries}")
        if self.rounds is not None and not 1 <= self.rounds <= self.num_queries:
            raise ValueError(
                f"rounds: expected from 1 to the {self.num_queries} queries, got {self.rounds}"
            )
        if self.num_neighbours is not None and self.num_neighbours < 0:
            raise ValueError(f"num_neighbours: expected at least 0, got {self.num_neighbours}")
        if not 0 <= self.seed < 2**31:
            raise ValueError(f"seed: expected from 0 to 2**31 - 1, got {self.seed}")
