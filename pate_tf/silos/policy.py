"""What a silo allows: a small TOML file that a privacy officer reads, writes and signs off."""

import dataclasses
import json
import math
import pathlib
from typing import Any, Final

from pate_tf.accounting.local import SILO_CHARGES, RandomisedResponse, SecureHistogram
from pate_tf.core import artifacts
from pate_tf.core.settings import Settings, described, setting, value_type
from pate_tf.core.validation import Fields, check_name
from pate_tf.silos.messages import QueryBatch, Reason

TITLE: Final = """\
# What this silo allows. pate silo refuses what goes beyond it, before anything is charged.
# randomised_response: each vote is randomised here; no other organisation has to be trusted.
# secure_histogram: votes go as secret shares to aggregators, which add them up and add noise.
# secure_feature_sums: no teacher votes; sums of the records' features with noise of this silo go
#   as secret shares to aggregators, which open the total of many silos.

"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Policy(Settings):
    """What a silo allows. Public. Each field is a line of its file."""

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
        help=f"What the silo answers by, of {', '.join(SILO_CHARGES)}.",
    )
    most_epsilon: float = setting(1.0, above=0.0, help="Most epsilon for one randomised answer.")
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
    unit: str = setting(
        "record",
        choices=("record", "owner"),
        help="Of secure_feature_sums: what is protected, each record, or all of an owner's.",
    )

    def __post_init__(self) -> None:
        """Raises ValueError if a name is none, or a mechanism is unknown or there is none."""
        super().__post_init__()
        check_name(self.silo, "silo")
        if not self.allowed or not set(self.allowed) <= set(SILO_CHARGES):
            raise ValueError(
                f"allowed: expected some of {', '.join(SILO_CHARGES)}, got "
                f"{', '.join(self.allowed) or 'none'}"
            )

    @classmethod
    def read(cls, path: pathlib.Path, **values: Any) -> "Policy":
        """Reads a policy; `values` are of fields that the file need not have, and come first.

        Raises:
            ValueError: if the file holds none; one line that says what was expected.
            OSError: if it can't be read.
        """
        fields, stored = Fields.read(path), dict[str, Any]()
        for name in filter(fields.has, described(cls)):
            kind, is_list = value_type(cls, name)
            if is_list:
                stored[name] = fields.texts(name, among=tuple(SILO_CHARGES))
            elif kind is float:
                stored[name] = fields.number(name, above=-math.inf)
            else:
                stored[name] = fields.whole(name) if kind is int else fields.text(name)
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

    def objection(self, batch: QueryBatch) -> Reason | None:
        """Returns why a batch is refused, regardless of earlier charges; None if it is not.

        Follows from the policy and the batch alone.
        """
        charge = batch.mechanism
        if charge.name not in self.allowed:
            return Reason.MECHANISM_NOT_ALLOWED
        if len(batch) > self.most_per_batch:
            return Reason.MALFORMED
        least = {  # of a charge, where it has such a field
            "num_parties": self.least_aggregators,
            "threshold": self.least_threshold,
            "least_silos": self.least_silos,
            "colluding": self.least_colluding,
        }
        if isinstance(charge, RandomisedResponse):
            return Reason.QUERY_TOO_DEAR if charge.epsilon > self.most_epsilon else None
        if any(getattr(charge, name, bound) < bound for name, bound in least.items()):
            return Reason.MECHANISM_NOT_ALLOWED
        is_dear = isinstance(charge, SecureHistogram) and charge.sigma < self.least_sigma
        return Reason.QUERY_TOO_DEAR if is_dear else None
