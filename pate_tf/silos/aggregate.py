"""From the replies of silos to labels: post-processing of what they paid for."""

from collections.abc import Mapping

import numpy as np

from pate_tf.accounting.local import LocalRandomiser, RandomisedResponse, silo_charge_from_dict
from pate_tf.accounting.local.estimates import ABSENT, class_scores, likeliest_shares
from pate_tf.silos.journal import Round
from pate_tf.silos.messages import RandomisedVotes, Reply
from pate_tf.silos.roster import Roster
from pate_tf.values.arrays import IntArray

WITHHELD = -1


def randomiser_of(mechanism: Mapping[str, object], num_classes: int) -> LocalRandomiser:
    """Returns the local randomiser of a silo's batches.

    Raises:
      ValueError: if the mechanism is none.
    """
    found = silo_charge_from_dict({**mechanism, "num_classes": num_classes})
    if not isinstance(found, LocalRandomiser):
        raise ValueError(f"mechanism: expected a local randomiser, got {found.name}")
    return found


def answers_of(one: Round, replies: Mapping[str, Reply], roster: Roster) -> IntArray:
    """Returns the randomised votes, int64 `[num_silos, num_queries]`, `ABSENT` where none is."""
    answers = np.full(one.asked.shape, ABSENT, np.int64)
    for place, name in enumerate(roster.names):
        reply = replies.get(name)
        if isinstance(reply, RandomisedVotes):
            answers[place, one.asked[place]] = reply.labels
    return answers


def plurality(
    one: Round,
    replies: Mapping[str, Reply],
    roster: Roster,
    *,
    weighting: str,
    least_answers: int,
) -> IntArray:
    """Returns a label for each query, int64 `[num_queries]`, `WITHHELD` where too few answered.

    The class that most speaks for; of truncated geometric answers, the likeliest largest share.
    Ties go at random, from the round's number alone.

    Args:
      one: the round.
      replies: to it, by silo.
      roster: all silos.
      weighting: how silos with different epsilons count; see `class_scores`.
      least_answers: how many answers a label needs.
    """
    answers = answers_of(one, replies, roster)
    there = [place for place, row in enumerate(answers) if (row != ABSENT).any()]
    labels = np.full(len(one.queries), WITHHELD, np.int64)
    if not there:
        return labels
    given = answers[there]
    randomisers = [
        randomiser_of(one.mechanisms[roster.names[place]], one.num_classes) for place in there
    ]
    simple = [kind for kind in randomisers if isinstance(kind, RandomisedResponse)]
    if len(simple) == len(randomisers):
        scores = class_scores(given, simple, weighting=weighting)
    else:
        scores = likeliest_shares(given, randomisers)
    order = np.random.default_rng(one.number).permutation(one.num_classes)
    winners = order[np.argmax(np.round(scores[:, order], 9), axis=1)]
    is_enough = (given != ABSENT).sum(axis=0) >= least_answers
    return np.where(is_enough, winners, WITHHELD)
