"""Who takes part in a run, what each silo declared in public, and how silos are asked."""

import dataclasses
import pathlib
from math import inf
from typing import ClassVar, Self

from pate_tf.accounting.local import RandomisedResponse
from pate_tf.core import artifacts, validation
from pate_tf.core.settings import Settings, setting
from pate_tf.core.validation import Fields, check_name
from pate_tf.net.roster import Roster
from pate_tf.silos.messages import Mechanism
from pate_tf.silos.secure.keys import Identity

DECLARED = 10_000  # queries of a silo that declares none


@dataclasses.dataclass(frozen=True, kw_only=True)
class Member:
    """One silo as all others know it. Public.

    Attributes:
        name: as in its certificate.
        epsilon: what it agreed to be charged for one randomised answer.
        queries: how many queries it declared to answer in all. The silo's own ledger decides.
        identity: its keys, where it adds feature sums.

    Raises ValueError if a value is out of its range.
    """

    name: str
    epsilon: float = 1.0
    queries: int = DECLARED
    identity: Identity | None = None

    def __post_init__(self) -> None:
        check_name(self.name, "silo")
        validation.positive(epsilon=self.epsilon)
        validation.whole(1, queries=self.queries)

    def entry(self) -> str:
        """Returns what stands on a roster for the silo."""
        lines = ["[[silo]]", f'name = "{self.name}"']
        lines += [f"epsilon = {self.epsilon!r}", f"queries = {self.queries}"]
        if self.identity is not None:
            lines.append(f'keys = "{self.identity.to_hex()}"')
        return "\n".join(lines) + "\n"


def aggregator_entry(identity: Identity) -> str:
    """Returns what stands on a roster for an aggregator."""
    return f'[[aggregator]]\nname = "{identity.name}"\nkeys = "{identity.to_hex()}"\n'


@dataclasses.dataclass(frozen=True, kw_only=True)
class SiloRoster(Roster):
    """All silos and aggregators of a run. Public.

    With secure aggregation every silo and aggregator gets it from the person who sets the run up,
    never from a coordinator, which could put keys of its own in it.

    Attributes:
        delta: that the statement's epsilons hold at.
        members: the silos, in the order of `names`.
        aggregators: of secure aggregation, in the order of their numbers.

    Raises ValueError if a value is out of its range or a name stands there twice.
    """

    role: ClassVar[str] = "silo"
    delta: float
    members: tuple[Member, ...]
    aggregators: tuple[Identity, ...] = ()
    names: tuple[str, ...] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(member.name for member in self.members))
        super().__post_init__()
        validation.between(0, 0.1, ends="[]", delta=self.delta)
        everyone = (*self.names, *(aggregator.name for aggregator in self.aggregators))
        if len(set(everyone)) < len(everyone):
            raise ValueError("aggregator: expected other names than those of silos, got one twice")

    @property
    def identities(self) -> tuple[Identity, ...]:
        """Keys of the silos that may add feature sums."""
        return tuple(member.identity for member in self.members if member.identity is not None)

    @classmethod
    def of_fields(cls, fields: Fields) -> Self:
        """Takes the roster from the fields of its file."""
        members, aggregators = [], []
        for silo in fields.tables("silo"):
            name = silo.text("name")
            members.append(
                Member(
                    name=name,
                    epsilon=silo.number("epsilon") if silo.has("epsilon") else 1.0,
                    queries=silo.whole("queries", default=DECLARED),
                    identity=Identity.of_hex(name, silo.text("keys")) if silo.has("keys") else None,
                )
            )
            silo.end()
        for each in fields.tables("aggregator") if fields.has("aggregator") else ():
            aggregators.append(Identity.of_hex(each.text("name"), each.text("keys")))
            each.end()
        return cls(
            run=fields.text("run"),
            delta=fields.number("delta", above=-inf),
            members=tuple(members),
            aggregators=tuple(aggregators),
        )

    def write(self, path: pathlib.Path) -> None:
        """Writes the roster; `read` is its inverse."""
        entries = [f'run = "{self.run}"\ndelta = {self.delta!r}\n']
        entries += [member.entry() for member in self.members]
        entries += map(aggregator_entry, self.aggregators)
        artifacts.write_text(path, "\n".join(entries))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asking(Settings):
    """How silos are asked. Public.

    Attributes:
        mechanism: of secure aggregation; None for randomised response, each silo at its own epsilon
            of the roster.
        unit: of feature sums, what is protected; silos that protect something else refuse.
    """

    mechanism: Mechanism | None = None
    seconds: float = setting(
        600.0, flag="round_seconds", above=0.0, help="How long a round waits for replies."
    )
    least_answers: int = setting(1, least=1, help="Answers that a label needs.")
    unit: str = setting(
        "record",
        choices=("record", "owner"),
        help="With feature_sums: what silos protect, each record or all of an owner's.",
    )

    def mechanism_of(self, member: Member, num_classes: int) -> Mechanism:
        """Returns what a silo is asked with."""
        if self.mechanism is not None:
            return self.mechanism
        return RandomisedResponse(num_classes=num_classes, epsilon=member.epsilon)
