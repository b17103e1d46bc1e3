"""Whose turn it is: a function of public values, so that everybody knows it without being told."""

import numpy as np

from pate_tf.selective_sgd.settings import Settings
from pate_tf.values.arrays import IntArray

_ORDER = 2  # of the numbers that say what a seed is for; see training.py


def order_of_turns(settings: Settings, round_number: int) -> IntArray:
    """Returns the participants in the order of their turns in a round, `[num_participants]`."""
    turns = np.arange(settings.num_participants)
    if settings.protocol in ("random", "asynchronous"):
        turns = np.random.default_rng([settings.seed, round_number, _ORDER]).permutation(turns)
    return turns
