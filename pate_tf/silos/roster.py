"""Who takes part in a run, what each silo allows, and how silos are asked."""

import dataclasses
import json
import pathlib
from math import inf
from typing import Any, ClassVar, Final, Self

from pate_tf.accounting.local import SILO_CHARGES, RandomisedResponse, SecureHistogram
from pate_tf.core import artifacts, checks
from pate_tf.core.checks import check_name
from pate_tf.core.settings import AtDelta, ProtectedUnit, Settings, described, setting
from pate_tf.core.toml_files import Fields
from pate_tf.data.named_function import OnFeatures
from pate_tf.net.credentials import Roster
from pate_tf.silos.messages import Mechanism, QueryBatch, Reason
from pate_tf.silos.protocol import Identity

METHODS: Final = ("pate", "feature_sums")
TITLE: Final = """\
# What this silo allows. pate silo refuses what goes beyond it, before anything is charged.
# randomised_response: each vote is randomized here; no other organization has to be trusted.
# secure_histogram: votes go as secret shares to aggregators, which add them up and add noise.
# secure_feature_sums: no teacher votes; sums of the records' features (and, without a public pool,
#   second moments) with noise of this silo go as secret shares to aggregators, which open the
#   total of many silos.

"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Policy(Settings, ProtectedUnit):
    """What a silo allows. Public. Each field is a line of its file."""

    restated: ClassVar = {
        "unit": {
            "help": "Of secure_feature_sums: what is protected, each record, or all of an owner's."
        }
    }
    silo: str = setting(
        flag="name", help="The silo's name, as on the roster and in its certificate."
    )
    coordinator: str = setting(
        "localhost:7000",
        help="Address of the coordinator, HOST:PORT, the only one that this silo dials.",
    )
    epsilon_budget: float = setting(above=0.0, help="For everything that the silo ever answers.")
    delta: float = setting(
        1e-6,
        least=0.0,
        most=0.1,
        help="Delta that the budget holds at; 0 for randomized answers alone. For feature sums of "
        "records at most one over their number.",
    )
    queries_per_day: int = setting(
        10_000, least=1, help="How many queries may be charged in any 24 hours."
    )
    most_per_batch: int = setting(10_000, least=1, help="How many queries a batch may have.")
    allowed: tuple[str, ...] = setting(
        ("randomised_response",),
        flag="mechanisms",
        choices=tuple(SILO_CHARGES),
        help=f"What the silo answers by, of {', '.join(SILO_CHARGES)}.",
    )
    most_epsilon: float = setting(1.0, above=0.0, help="Most epsilon for one randomized answer.")
    least_sigma: float = setting(40.0, above=0.0, help="Least noise of secure_histogram, in votes.")
    least_aggregators: int = setting(3, least=3, help="Least number of aggregators.")
    least_threshold: int = setting(
        1, least=1, help="How many aggregators must be allowed to pool what they know."
    )
    least_silos: int = setting(
        3, least=2, help="Of secure_feature_sums: fewest silos whose total may open."
    )
    least_colluding: int = setting(
        1,
        least=1,
        help="Of secure_feature_sums: how many of these silos must be allowed to add no noise or "
        "pool what they know; the others' noise has to suffice.",
    )

    def __post_init__(self) -> None:
        """Raises ValueError if a name or value is none, or no mechanism is allowed."""
        super().__post_init__()
        check_name(self.silo, "silo")
        if not self.allowed:
            raise ValueError(f"allowed: expected some of {', '.join(SILO_CHARGES)}, got none")

    @classmethod
    def read(cls, path: pathlib.Path, **values: Any) -> "Policy":
        """Reads a policy; `values` are of fields that the file need not have, and come first.

        Raises:
            ValueError: if the file holds none; one line that says what was expected.
            OSError: if it can't be read.
        """
        fields = Fields.read(path)
        stored = fields.settings(cls)
        fields.end()
        try:
            return cls(**{**stored, **values})
        except TypeError:
            raise ValueError(f"{path}: expected silo and epsilon_budget, got less") from None
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def write(self, path: pathlib.Path) -> None:
        """Writes the policy with what each line means; `read` is its inverse."""
        lines = [  # what JSON has of text, numbers and lists is TOML
            f"{name} = {json.dumps(getattr(self, name))}  # {each.help}\n"
            for name, each in described(type(self)).items()
        ]
        artifacts.write_text(path, TITLE + "".join(lines))

    def objection(self, batch: QueryBatch) -> tuple[Reason, str] | None:
        """Returns why a batch is refused, regardless of earlier charges; None if it is not.

        Follows from the policy and the batch alone.

        Returns:
            The reason, and the line of the policy that says so with what the batch has.
        """
        charge = batch.mechanism
        if charge.name not in self.allowed:
            return Reason.MECHANISM_NOT_ALLOWED, self.line("allowed", charge.name)
        if len(batch.queries) > self.most_per_batch:
            return Reason.MALFORMED, self.line("most_per_batch", len(batch.queries))
        fields = ("num_parties", "threshold", "least_silos", "colluding")  # of secure aggregation
        names = ("least_aggregators", "least_threshold", "least_silos", "least_colluding")
        for field, name in zip(fields, names, strict=True):
            if getattr(charge, field, inf) < getattr(self, name):
                return Reason.MECHANISM_NOT_ALLOWED, self.line(name, getattr(charge, field))
        if isinstance(charge, RandomisedResponse) and charge.epsilon > self.most_epsilon:
            return Reason.QUERY_TOO_DEAR, self.line("most_epsilon", charge.epsilon)
        if isinstance(charge, SecureHistogram) and charge.sigma < self.least_sigma:
            return Reason.QUERY_TOO_DEAR, self.line("least_sigma", charge.sigma)
        return None

    def line(self, name: str, value: object) -> str:
        """Returns a line of the policy and the value that it forbids, for messages."""
        return f"the policy has {name} = {json.dumps(getattr(self, name))}, got {value}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Member:
    """One silo as all others know it. Public.

    Attributes:
        name: as in its certificate.
        epsilon: what it agreed to be charged for one randomized answer.
        identity: its keys, where it adds feature sums.

    Raises ValueError if a value is out of its range.
    """

    name: str
    epsilon: float = 1.0
    identity: Identity | None = None

    def __post_init__(self) -> None:
        check_name(self.name, "silo")
        checks.positive(epsilon=self.epsilon)

    def entry(self) -> str:
        """Returns what stands on a roster for the silo."""
        head = f'[[silo]]\nname = "{self.name}"\n'
        if self.identity is not None:
            head = self.identity.entry("silo")
        return f"{head}epsilon = {self.epsilon!r}\n"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SiloRoster(Roster, AtDelta):
    """All silos and aggregators of a run. Public.

    With secure aggregation every silo and aggregator gets it from the person who sets the run up,
    never from a coordinator, which could put keys of its own in it.

    Attributes:
        members: the silos, in the order of `names`.
        aggregators: of secure aggregation, in the order of their numbers.
        identities: keys of the silos that may add feature sums.

    Raises ValueError if a value is out of its range or a name stands there twice.
    """

    role: ClassVar[str] = "silo"
    members: tuple[Member, ...]
    aggregators: tuple[Identity, ...] = ()
    names: tuple[str, ...] = dataclasses.field(init=False)
    identities: tuple[Identity, ...] = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        identities = tuple(each.identity for each in self.members if each.identity is not None)
        object.__setattr__(self, "identities", identities)
        object.__setattr__(self, "names", tuple(member.name for member in self.members))
        super().__post_init__()
        checks.between(0, 0.1, ends="[]", delta=self.delta)
        everyone = (*self.names, *(aggregator.name for aggregator in self.aggregators))
        if len(set(everyone)) < len(everyone):
            raise ValueError("aggregator: expected other names than those of silos, got one twice")

    @classmethod
    def of_fields(cls, fields: Fields) -> Self:
        """Takes the roster from the fields of its file."""
        members, aggregators = [], []
        for silo in fields.tables("silo"):
            name = silo.text("name")
            epsilon = silo.number("epsilon") if silo.has("epsilon") else 1.0
            identity = Identity.of_hex(name, silo.text("keys")) if silo.has("keys") else None
            members.append(Member(name=name, epsilon=epsilon, identity=identity))
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
        entries += [aggregator.entry("aggregator") for aggregator in self.aggregators]
        artifacts.write_text(path, "\n".join(entries))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asking(Settings):
    """How silos are asked. Public.

    Attributes:
        mechanism: of secure aggregation; None for randomized response, each silo at its own epsilon
            of the roster. Silos that protect something else than its unit refuse feature sums.
    """

    mechanism: Mechanism | None = None
    seconds: float = setting(
        600.0,
        flag="round_seconds",
        above=0.0,
        help="How long a round waits for replies. A coordinator that was restarted waits as long "
        "again.",
    )
    least_answers: int = setting(1, least=1, help="Answers that a label needs.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class JointMethod(Settings, OnFeatures):
    """How labels of many silos come about. Public; said to the coordinator and to each silo."""

    restated: ClassVar = {
        "representation": {
            "help": "With feature_sums: what maps records to features. Default: that of the data "
            "set."
        }
    }
    method: str = setting(
        "pate",
        group="method",
        choices=METHODS,
        help="pate: silos vote on queries of the public pool. feature_sums: the total of all "
        "silos' feature sums opens once, with noise of each, and all of the pool gets labels.",
    )
