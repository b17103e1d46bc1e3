"""The roster of silos and aggregators, a silo's policy, and settings for querying silos."""

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
# The policy of this silo. `pate silo` refuses queries that violate it, and then charges nothing.
# randomised_response: this silo randomizes each vote itself and trusts no other organization.
# secure_histogram: aggregators get secret shares of votes, and compute the noisy sum of all votes.
# secure_feature_sums: there is no teacher. The silo adds noise to sums of its records' features
#   (without a public pool, also to second moments). Aggregators get secret shares of the result
#   and open only the total of many silos.

"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Policy(Settings, ProtectedUnit):
    """Public rules by which a silo accepts or refuses queries; stored in the file policy.toml."""

    restated: ClassVar = {"unit": {"help": "For secure_feature_sums: protect records or owners."}}
    silo: str = setting(flag="name", help="Name of the silo on the roster and in its certificate.")
    coordinator: str = setting(
        "localhost:7000",
        help="Address of the coordinator, HOST:PORT. The silo connects to no other address.",
    )
    epsilon_budget: float = setting(above=0.0, help="Epsilon for all answers of the silo.")
    delta: float = setting(
        1e-6,
        least=0.0,
        most=0.1,
        help="Delta of the budget; 0 if only randomized response is allowed. For feature sums "
        "that protect records, at most 1 / number of records.",
    )
    queries_per_day: int = setting(
        10_000, least=1, help="Maximum number of queries that are charged in any 24 hours."
    )
    most_per_batch: int = setting(10_000, least=1, help="Maximum number of queries in a batch.")
    allowed: tuple[str, ...] = setting(
        ("randomised_response",),
        flag="mechanisms",
        choices=tuple(SILO_CHARGES),
        help=f"Allowed mechanisms, from {', '.join(SILO_CHARGES)}.",
    )
    most_epsilon: float = setting(1.0, above=0.0, help="Maximum epsilon of a randomized answer.")
    least_sigma: float = setting(40.0, above=0.0, help="Minimum secure_histogram noise (sigma).")
    least_aggregators: int = setting(3, least=3, help="Minimum number of aggregators.")
    least_threshold: int = setting(
        1, least=1, help="A batch must tolerate at least this many colluding aggregators."
    )
    least_silos: int = setting(
        3, least=2, help="For secure_feature_sums: minimum number of silos in each aggregated sum."
    )
    least_colluding: int = setting(
        1,
        least=1,
        help="For secure_feature_sums: a total must tolerate at least this many silos that collude "
        "or add no noise: the noise of the other silos must be sufficient.",
    )

    def __post_init__(self) -> None:
        """Raises ValueError if a field of the policy is invalid, or if no mechanism is allowed."""
        super().__post_init__()
        check_name(self.silo, "silo")
        if not self.allowed:
            raise ValueError(f"allowed: list at least one of {', '.join(SILO_CHARGES)}")

    @classmethod
    def read(cls, path: pathlib.Path, **values: Any) -> "Policy":
        """Reads a policy from a file. Fields in `values` replace those in the file.

        Raises:
            ValueError: if the file is invalid; the message has one line.
            OSError: if the file can't be read.
        """
        fields = Fields.read(path)
        stored = fields.settings(cls)
        fields.end()
        try:
            return cls(**{**stored, **values})
        except TypeError:
            raise ValueError(f"{path}: silo and epsilon_budget are required") from None
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def write(self, path: pathlib.Path) -> None:
        """Writes the policy to a file, with an explanation of each line."""
        lines = [  # JSON strings, numbers and lists are valid TOML
            f"{name} = {json.dumps(getattr(self, name))}  # {each.help}\n"
            for name, each in described(type(self)).items()
        ]
        artifacts.write_text(path, TITLE + "".join(lines))

    def objection(self, batch: QueryBatch) -> tuple[Reason, str] | None:
        """Returns the reason why the policy forbids a batch; None if the batch is allowed.

        The result depends only on the policy and the batch, not on earlier charges.

        Returns:
            The reason, and a message with the violated line of the policy and the batch's value.
        """
        charge = batch.mechanism
        if charge.name not in self.allowed:
            return Reason.MECHANISM_NOT_ALLOWED, self.line("allowed", charge.name)
        if len(batch.queries) > self.most_per_batch:
            return Reason.MALFORMED, self.line("most_per_batch", len(batch.queries))
        # The policy sets a minimum value for each of these fields of a secure mechanism.
        fields = ("num_parties", "threshold", "least_silos", "colluding")
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
        """Returns a message for the operator with the policy's value and the batch's value."""
        return f"the policy has {name} = {json.dumps(getattr(self, name))}, the batch has {value}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Member:
    """A silo's entry on the public roster.

    Attributes:
        name: name of the silo, as in its certificate.
        epsilon: epsilon of one answer by randomized response, as agreed with the silo.
        identity: name and keys of the silo; required for feature sums, otherwise None.

    Raises ValueError if a value is out of its range.
    """

    name: str
    epsilon: float = 1.0
    identity: Identity | None = None

    def __post_init__(self) -> None:
        check_name(self.name, "silo")
        checks.positive(epsilon=self.epsilon)

    def entry(self) -> str:
        """Returns the lines of the roster file for this silo."""
        head = f'[[silo]]\nname = "{self.name}"\n'
        if self.identity is not None:
            head = self.identity.entry("silo")
        return f"{head}epsilon = {self.epsilon!r}\n"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SiloRoster(Roster, AtDelta):
    """The public list of all silos and aggregators of a run, with their keys.

    With secure aggregation, every silo and aggregator gets the roster from the person who sets up
    the run. Never take it from the coordinator, which could insert its own keys.

    Attributes:
        members: entries of the silos, in the order of `names`.
        aggregators: names and keys of the aggregators, in the order of their numbers.
        names: names of the silos.
        identities: names and keys of the silos that may share feature sums.

    Raises ValueError if a value is out of its range or a name occurs twice.
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
            raise ValueError("aggregator: a silo or another aggregator has the same name")

    @classmethod
    def of_fields(cls, fields: Fields) -> Self:
        """Returns the roster that a file's fields describe."""
        members = []
        aggregators = []
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
        """Writes the roster to a TOML file."""
        entries = [f'run = "{self.run}"\ndelta = {self.delta!r}\n']
        entries += [member.entry() for member in self.members]
        entries += [aggregator.entry("aggregator") for aggregator in self.aggregators]
        artifacts.write_text(path, "\n".join(entries))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asking(Settings):
    """Public settings for querying silos.

    Attributes:
        mechanism: mechanism of secure aggregation; None for randomized response with the epsilon
            that the roster lists for each silo. A silo refuses a request for feature sums if its
            unit (record or owner) differs from the unit in the silo's policy.
    """

    mechanism: Mechanism | None = None
    seconds: float = setting(
        600.0,
        flag="round_seconds",
        above=0.0,
        help="Seconds to wait for the silos' replies to a batch. A restart begins a new wait.",
    )
    least_answers: int = setting(1, least=1, help="Minimum number of silos that must answer.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class JointMethod(Settings, OnFeatures):
    """Settings of the learning method, which must be the same for the coordinator and all silos."""

    restated: ClassVar = {
        "representation": {
            "help": "With feature_sums: how to compute features. The default depends on the data."
        }
    }
    method: str = setting(
        "pate",
        group="method",
        choices=METHODS,
        help="pate: silos vote on public inputs. feature_sums: aggregators compute the total of "
        "all silos' noisy feature sums once. The total labels all public inputs.",
    )
