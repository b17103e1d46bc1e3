"""Asks where one-against-all experts contradict each other (Papernot et al. 2017, appendix B.2).

The experts of all classes are the outputs of one network with a sigmoid each, where the paper
trained a network for each class.
"""

import numpy as np

from pate_tf.accounting.charge import ReleasedLabels
from pate_tf.core.public import Pool
from pate_tf.queries.strategies import FloatArray, Strategy, register, simple

CONFIDENT = 0.9  # a candidate label with a lower score is uncertain
NOT_EXCLUDED = 0.1  # an expert with a higher score does not rule its class out
OTHER_EXPERTS = 4  # how many of them must not


def score(pool: Pool, released: ReleasedLabels, seed: int) -> FloatArray:
    """Returns the order of asking, `[num_inputs]`: the lowest first."""
    import keras
    import scipy.special

    from pate_tf.models import catalogue
    from pate_tf.students.batches import outputs
    from pate_tf.students.training import fit_to_targets

    released.check_pool(pool)
    config = simple.training_config(pool.dataset, seed)
    experts = catalogue.build(config.model, pool.dataset, seed=seed)
    fit_to_targets(
        experts,
        config,
        pool.dataset,
        inputs=pool.inputs[released.query_indices],
        targets=np.eye(released.num_classes, dtype=np.float32)[released.labels],
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
    )
    return order(scipy.special.expit(outputs(experts, pool.inputs)))


def order(scores: FloatArray) -> FloatArray:
    """Puts the inputs that the paper's rule selects before all others, by scores of the experts.

    Selected is an input whose candidate label, that of the highest score, scores below 0.9, while
    at least 4 other experts score above 0.1. The paper asks all of these and nothing else; a fixed
    number of queries may be more or fewer, so both groups are sorted by the candidate's score. With
    fewer than 5 classes nothing is selected, and the score alone decides.
    """
    candidate = scores.max(axis=1)
    num_others = (scores > NOT_EXCLUDED).sum(axis=1) - (candidate > NOT_EXCLUDED)
    selected = (candidate < CONFIDENT) & (num_others >= OTHER_EXPERTS)
    return np.where(selected, candidate, 1.0 + candidate)


register(
    Strategy(
        name="binary_experts",
        help="where one-against-all experts contradict each other",
        words="in rounds, where experts taught by the earlier noisy labels disagreed",
        choose=simple.choose_random,
        score=score,
        rounds=5,
    )
)
