"""What a silo allows: a small TOML file that a privacy officer reads, writes and signs off."""

import dataclasses
import pathlib
from typing import Final

from pate_tf.accounting.charge import Charge
from pate_tf.accounting.local import SILO_CHARGES, LocalRandomiser, SecureHistogram
from pate_tf.core import artifacts
from pate_tf.core.validation import Fields, check_name, read_toml
from pate_tf.silos.messages import QueryBatch, Reason

PAGE: Final = """\
# What this silo allows. pate-silo refuses whatever goes beyond it, before anything is paid.

silo = "{silo}"                 # this silo's name, as on the coordinator's roster
coordinator = "{coordinator}"   # the only address that this silo dials

[budget]
epsilon = {epsilon_budget!r}                 # for everything that this silo ever answers, together
delta = {delta!r}                  # chance that the promise of epsilon fails; far below 1 / records
queries_per_day = {queries_per_day}         # paid for in any 24 hours

[mechanisms]
# randomised_response: each vote is randomised here, and nobody need be trusted.
# secure_histogram: votes go as sealed shares to parties, which add them up and add noise.
allowed = [{allowed}]
most_epsilon_per_query = {most_epsilon_per_query!r}  # of randomised_response
least_sigma = {least_sigma!r}            # of secure_histogram, in votes
least_parties = {least_parties}             # of secure_histogram
least_threshold = {least_threshold}           # of secure_histogram: parties that may pool shares

[queries]
most_per_batch = {most_per_batch}
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Policy:
    """What a silo allows. Public.

    Attributes:
      silo: the silo's name.
      coordinator: address of the coordinator, `host:port`.
      epsilon_budget: for everything that the silo ever answers.
      delta: that it holds at.
      queries_per_day: how many queries may be paid for in any 24 hours.
      allowed: names of mechanisms.
      most_epsilon_per_query: of a local randomiser.
      least_sigma: of `secure_histogram`, in votes.
      least_parties: of `secure_histogram`.
      least_threshold: of `secure_histogram`.
      most_per_batch: queries of one batch.
    """

    silo: str
    coordinator: str = "localhost:7000"
    epsilon_budget: float
    delta: float
    queries_per_day: int = 10_000
    allowed: tuple[str, ...] = ("randomised_response",)
    most_epsilon_per_query: float = 1.0
    least_sigma: float = 40.0
    least_parties: int = 3
    least_threshold: int = 1
    most_per_batch: int = 10_000

    def __post_init__(self) -> None:
        """Raises ValueError if a name is none, or a mechanism is unknown or there is none."""
        check_name(self.silo, "silo")
        if not self.allowed or not set(self.allowed) <= set(SILO_CHARGES):
            raise ValueError(
                f"allowed: expected some of {', '.join(SILO_CHARGES)}, got "
                f"{', '.join(self.allowed) or 'none'}"
            )
        if not 0.0 < self.epsilon_budget < float("inf"):
            raise ValueError(f"epsilon_budget: expected above 0, got {self.epsilon_budget}")
        if not 0.0 < self.delta < 1.0:
            raise ValueError(f"delta: expected in (0, 1), got {self.delta}")

    @classmethod
    def read(cls, path: pathlib.Path) -> "Policy":
        """Reads a policy.

        Raises:
          ValueError: if the file holds none; one line that says what was expected.
          OSError: if it can't be read.
        """
        fields = Fields(str(path), read_toml(path))
        budget, mechanisms = fields.table("budget"), fields.table("mechanisms")
        queries = fields.table("queries")
        policy = cls(
            silo=check_name(fields.text("silo"), f"{path}: silo"),
            coordinator=fields.text("coordinator"),
            epsilon_budget=budget.number("epsilon"),
            delta=budget.number("delta", most=0.1),
            queries_per_day=budget.whole("queries_per_day"),
            allowed=mechanisms.texts("allowed", among=tuple(SILO_CHARGES)),
            most_epsilon_per_query=mechanisms.number("most_epsilon_per_query"),
            least_sigma=mechanisms.number("least_sigma"),
            least_parties=mechanisms.whole("least_parties", least=3),
            least_threshold=mechanisms.whole("least_threshold"),
            most_per_batch=queries.whole("most_per_batch"),
        )
        for table in (fields, budget, mechanisms, queries):
            table.end()
        return policy

    def write(self, path: pathlib.Path) -> None:
        """Writes the policy with what each line means; `read` is its inverse."""
        values = dataclasses.asdict(self)
        values["allowed"] = ", ".join(f'"{name}"' for name in self.allowed)
        artifacts.write_text(path, PAGE.format(**values))

    def objection(self, batch: QueryBatch, charge: Charge) -> Reason | None:
        """Returns why a batch is refused whatever was paid so far; None if it is not.

        Follows from the policy and the batch alone.
        """
        if charge.name not in self.allowed:
            return Reason.MECHANISM_NOT_ALLOWED
        if len(batch) > self.most_per_batch:
            return Reason.MALFORMED
        is_dear = isinstance(charge, LocalRandomiser) and (
            charge.epsilon > self.most_epsilon_per_query
        )
        if isinstance(charge, SecureHistogram):
            is_dear = charge.sigma < self.least_sigma
            if charge.num_parties < self.least_parties or charge.threshold < self.least_threshold:
                return Reason.MECHANISM_NOT_ALLOWED
        return Reason.QUERY_TOO_DEAR if is_dear else None
