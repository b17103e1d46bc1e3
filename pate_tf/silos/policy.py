"""What a silo allows: a small TOML file that a privacy officer reads, writes and signs off."""

import dataclasses
import json
import math
import pathlib
from typing import Any, Final

from pate_tf.accounting.charge import Charge
from pate_tf.accounting.local import SILO_CHARGES, RandomisedResponse, SecureHistogram
from pate_tf.core import artifacts
from pate_tf.core.settings import Settings, described, setting, value_type
from pate_tf.core.validation import Fields, check_name
from pate_tf.silos.messages import QueryBatch, Reason

TITLE: Final = (
    "# What this silo allows. pate silo refuses what goes beyond it, before anything is charged.\n"
)
MECHANISMS: Final = """\
# randomised_response: each vote is randomised here; no other organisation has to be trusted.
# secure_histogram: votes go as sealed shares to parties, which add them up and add noise.
# secure_feature_sums: no teacher votes; sums of the records' features with noise of this silo go
#   as sealed shares to parties, which open the total of many silos.
"""
# The fields of each table of the file, which have the same names but for one.
TABLES: Final = {
    "": ("silo", "coordinator"),
    "budget": ("epsilon_budget", "delta", "queries_per_day"),
    "mechanisms": (
        *("allowed", "most_epsilon_per_query"),
        *("least_sigma", "least_parties", "least_threshold"),
        *("least_silos", "least_colluding", "unit"),
    ),
    "queries": ("most_per_batch",),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Policy(Settings):
    """What a silo allows. Public."""

    silo: str = setting(
        flag="name", help="The silo's name, as on the roster and in its certificate."
    )
    coordinator: str = setting(
        "localhost:7000",
        help="Address of the coordinator, HOST:PORT, the only one that this silo dials.",
    )
    epsilon_budget: float = setting(above=0.0, help="For everything that the silo ever answers.")
    delta: float = setting(
        least=0.0,
        most=0.1,
        help="Delta that the budget holds at; 0 for randomized answers alone. For feature sums of "
        "records at most one over their number.",
    )
    queries_per_day: int = setting(
        10_000, least=1, help="How many queries may be charged in any 24 hours."
    )
    allowed: tuple[str, ...] = setting(
        ("randomised_response",),
        flag="mechanisms",
        help=f"What the silo answers by, of {', '.join(SILO_CHARGES)}.",
    )
    most_epsilon_per_query: float = setting(
        1.0, flag="most_epsilon", above=0.0, help="Most epsilon for one randomised answer."
    )
    least_sigma: float = setting(40.0, above=0.0, help="Least noise of secure_histogram, in votes.")
    least_parties: int = setting(
        3, least=3, advanced=True, help="Least number of parties of secure aggregation."
    )
    least_threshold: int = setting(
        1,
        least=1,
        advanced=True,
        help="How many parties of secure aggregation must be allowed to pool what they know.",
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
    most_per_batch: int = setting(
        10_000, least=1, advanced=True, help="How many queries a batch may have."
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
    def read(cls, path: pathlib.Path) -> "Policy":
        """Reads a policy.

        Raises:
            ValueError: if the file holds none; one line that says what was expected.
            OSError: if it can't be read.
        """
        page = Fields.read(path)
        values: dict[str, Any] = {}
        for table, names in TABLES.items():
            fields = page.table(table) if table else page
            for name in names:
                key = name.removesuffix("_budget")
                is_of, is_list = value_type(cls, name)
                if is_list:
                    values[name] = fields.texts(key, among=tuple(SILO_CHARGES))
                elif is_of is float:
                    values[name] = fields.number(key, above=-math.inf)
                else:
                    values[name] = fields.whole(key) if is_of is int else fields.text(key)
            if table:
                fields.end()
        page.end()
        try:
            return cls(**values)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def write(self, path: pathlib.Path) -> None:
        """Writes the policy with what each line means; `read` is its inverse."""
        lines = [TITLE]
        for table, names in TABLES.items():
            lines.append(f"\n[{table}]\n" if table else "\n")
            for name in names:
                # What JSON has of text, numbers and lists is TOML.
                value = json.dumps(getattr(self, name))
                meaning = described(type(self))[name].help
                lines.append(MECHANISMS if name == "allowed" else "")
                lines.append(f"{name.removesuffix('_budget')} = {value}  # {meaning}\n")
        artifacts.write_text(path, "".join(lines))

    def objection(self, batch: QueryBatch, charge: Charge) -> Reason | None:
        """Returns why a batch is refused, regardless of earlier charges; None if it is not.

        Follows from the policy and the batch alone.
        """
        if charge.name not in self.allowed:
            return Reason.MECHANISM_NOT_ALLOWED
        if len(batch) > self.most_per_batch:
            return Reason.MALFORMED
        # What a charge has of these, by the field that bounds it.
        least = ("num_parties", "threshold", "least_silos", "colluding")
        bounds = (self.least_parties, self.least_threshold, self.least_silos, self.least_colluding)
        for name, bound in zip(least, bounds, strict=True):
            if getattr(charge, name, bound) < bound:
                return Reason.MECHANISM_NOT_ALLOWED
        is_dear = (
            isinstance(charge, RandomisedResponse) and charge.epsilon > self.most_epsilon_per_query
        ) or (isinstance(charge, SecureHistogram) and charge.sigma < self.least_sigma)
        return Reason.QUERY_TOO_DEAR if is_dear else None
