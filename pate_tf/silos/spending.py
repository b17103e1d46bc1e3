"""What rounds cost each silo, by the replies that arrived."""

from collections import Counter
from collections.abc import Mapping, Sequence

from pate_tf.accounting.charge import Charge
from pate_tf.accounting.composition import delta_of_chosen_kinds, smallest_epsilon
from pate_tf.accounting.local import SecureHistogram, silo_charge_from_dict
from pate_tf.silos.journal import Round
from pate_tf.silos.messages import Refusal, Reply
from pate_tf.silos.roster import Roster
from pate_tf.statement.silos import SiloSpending


def is_secure(one: Round) -> bool:
    """Whether a round's votes are added up under secret sharing."""
    return any(fields["name"] == SecureHistogram.name for fields in one.mechanisms.values())


def charge_of(one: Round, silo: str) -> Charge:
    """Returns what a silo is charged for each query of a round."""
    fields = dict(one.mechanisms[silo])
    if not is_secure(one):
        fields["num_classes"] = one.num_classes
    return silo_charge_from_dict(fields)


def spending(
    rounds: Sequence[tuple[Round, Mapping[str, Reply]]], roster: Roster
) -> tuple[SiloSpending, ...]:
    """Returns what each silo's answers cost it, for its whole content.

    Args:
      rounds: with the replies to each, by silo. No query stands in two of them.
      roster: all silos.
    """
    paid: dict[str, Counter[Charge]] = {name: Counter() for name in roster.names}
    refused: Counter[str] = Counter()
    for one, replies in rounds:
        for name, row in zip(roster.names, one.asked, strict=True):
            reply = replies.get(name)
            if isinstance(reply, Refusal):
                refused[name] += int(row.sum())
            elif reply is not None:
                paid[name][charge_of(one, name)] += int(row.sum())
    # Many silos paid for the same.
    epsilons: dict[frozenset[tuple[Charge, int]], float] = {}
    for one_paid in paid.values():
        key = frozenset(one_paid.items())
        if key not in epsilons:
            epsilons[key] = smallest_epsilon(one_paid, roster.delta)[0]
    return tuple(
        SiloSpending(
            name=member.name,
            paid=dict(paid[member.name]),
            num_refused=refused[member.name],
            epsilon=epsilons[frozenset(paid[member.name].items())],
            delta=delta_of_chosen_kinds(paid[member.name], roster.delta),
            num_declared=member.queries,
        )
        for member in roster.members
    )
