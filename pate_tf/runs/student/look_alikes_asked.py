"""Whether queries are asked together with their look-alikes, and with how many."""

from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.queries import look_alikes
from pate_tf.queries.catalogue import find_strategy
from pate_tf.queries.config import QueryConfig
from pate_tf.teachers.voters import Voter, covers
from pate_tf.values.public import Pool


def check(queries: QueryConfig, pool: Pool, teachers: Voter) -> None:
    """Checks that queries can be asked with as many look-alikes as somebody said.

    Raises:
      ValueError: if the strategy does not look at likeness, there are too few inputs, or nobody
        knows the teachers' labels of all of them.
    """
    number = queries.num_neighbours
    if not number:
        return
    if not find_strategy(queries.strategy).by_likeness:
        raise ValueError(
            f"num_neighbours: expected none for strategy {queries.strategy}, which does not look "
            f"at likeness, got {number}"
        )
    if number >= len(pool):
        raise ValueError(
            f"num_neighbours: expected fewer than the pool's {len(pool)} inputs, got {number}"
        )
    if not covers(teachers, pool.inputs):
        raise ValueError(
            f"num_neighbours: expected 0 with labels of a part of the pool, as nobody knows those "
            f"of all look-alikes, got {number}"
        )


def default_number(queries: QueryConfig, mechanism: Mechanism, pool: Pool, teachers: Voter) -> int:
    """Returns how many look-alikes each query is asked together with where nobody says.

    Where the query that teachers agree on least decides about all others, agreement is worth more
    than that each label is right for its own input.
    """
    by_likeness = find_strategy(queries.strategy).by_likeness
    if not mechanism.is_paid_once or not by_likeness or not covers(teachers, pool.inputs):
        return 0
    return look_alikes.default_number(pool, queries.num_queries)
