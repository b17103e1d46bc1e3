"""Whether a representation says anything: asked of public inputs alone, before anything is paid.

Two networks that learn independently of each other should agree on which inputs belong together.
Where the groups of one are not those of the other, groups are not in the inputs, and labels that
are spread within them would be wrong.
"""

import numpy as np
import sklearn.cluster
import sklearn.metrics

from pate_tf.data.named_function import Named, name_of
from pate_tf.representations.catalogue import (
    CONTRASTIVE,
    default_representation,
    encoder_of,
    joined_names,
)
from pate_tf.representations.contrastive import NETWORKS
from pate_tf.values.public import Pool

SAMPLE = 1_000  # inputs that are compared
GROUPS_A_CLASS = 2
# Of groups, as their adjusted Rand index: 0 by chance, 1 for the same groups. On the embedded
# digits it is 0.7, on images of noise 0.1.
LEAST_CONSENSUS = 0.25


def doubts(pool: Pool, representation: Named | None = None, seed: int = 0) -> str | None:
    """Says in one line why a pool's representation should not be relied on; None if nothing does.

    Args:
      pool: public inputs.
      representation: as of `encoder_of`. Only what is learnt is doubted.
      seed: likewise.
    """
    name = default_representation(pool.dataset) if representation is None else representation
    groups = GROUPS_A_CLASS * pool.dataset.num_classes
    if CONTRASTIVE not in joined_names(name) or len(pool) < 2 * groups:
        return None
    found = consensus(pool, groups, seed)
    if found >= LEAST_CONSENSUS:
        return None
    return (
        f"representation {name_of(name)} of {pool.dataset.name}: two networks agree by "
        f"{found:.2f} on which inputs belong together, where 0 is chance and 1 is all: expected "
        f"{LEAST_CONSENSUS} at least; it may separate nothing, and what is spread by it may be "
        f"wrong; take networks as teachers, or a representation of your own"
    )


def consensus(pool: Pool, num_groups: int, seed: int = 0) -> float:
    """Returns how far the groups of two networks are the same, as their adjusted Rand index.

    Hubert and Arabie 1985. Worked out on the pool's first `SAMPLE` inputs.

    Args:
      pool: public images, at least `num_groups`.
      num_groups: of each network.
      seed: of the representation.
    """
    encoder = encoder_of(pool, CONTRASTIVE, seed)
    views = encoder.views(encoder.features(pool.inputs[:SAMPLE]))
    a_network = len(views) // NETWORKS
    groups = [
        sklearn.cluster.KMeans(num_groups, n_init=1, random_state=0).fit_predict(
            np.concatenate(views[first : first + a_network], axis=1)
        )
        for first in (0, a_network)
    ]
    return float(sklearn.metrics.adjusted_rand_score(*groups))
