"""What may be published beside a student of many holders, each of whom paid for itself."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from pate_tf.accounting.charge import Charge, rounded_up
from pate_tf.accounting.local import SecureHistogram

PROTECTED: Final = (
    "everything that a silo holds, and so each of its records: replacing all of it by anything "
    "else changes the chance of whatever leaves by no more than epsilon and delta say"
)
SEES_LOCAL: Final = (
    ("a silo", "the public queries, its own data, its votes, its own account"),
    (
        "the coordinator",
        "each silo's randomised votes, refusals by policy, and witnesses of the silos' accounts, "
        "which it can't read",
    ),
    ("several silos together", "what each of them sees"),
    ("the network", "sizes and timing"),
)
SEES_SECURE: Final = (
    ("a silo", "the public queries, its own data, its votes, its own account"),
    (
        "the coordinator",
        "the noisy histogram, sealed shares and witnesses of the silos' accounts, none of which it "
        "can read, who took part",
    ),
    (
        "up to {threshold} of {num_parties} parties together",
        "shares that say nothing, their own noise, the noisy histogram",
    ),
    ("more parties than that together", "every vote"),
    ("the network", "sizes and timing"),
)
COALITIONS_LOCAL: Final = (
    "Each silo's vote was randomised inside of the silo. Its epsilon holds against the coordinator "
    "and all other silos together."
)
COALITIONS_SECURE: Final = (
    "Epsilon holds against the coordinator, any number of other silos and up to {threshold} of the "
    "{num_parties} parties together, as long as the other {num_honest} parties add their noise as "
    "agreed. A party that omits its noise, or more parties than that together, can break it. A "
    "silo that joins the coalition knows its own vote, which takes nothing from the noise."
)
NOT_COVERED: Final = (
    "who takes part, the sizes of messages and how long an answer takes",
    "a silo that lies: it can spoil labels, and harms nobody's privacy",
    "a coordinator that chooses its queries badly: labels may be useless, epsilon still holds",
    "records that stand in several silos: their epsilons add up",
    "what a silo answered in other runs: its own account has it, and its own budget ends it",
    "the public queries themselves, which are not protected",
)
ASSUMPTIONS: Final = (
    "each silo ran the published code on a machine of its own and drew from the operating system's "
    "entropy",
    "no silo answered with an account that had lost rows: a silo refuses where its own machine or "
    "the coordinator of the run has seen later ones",
    "the randomness of the noise is unpredictable to everybody else",
    "the counts below are those of answers that arrived; an answer that came too late was paid for "
    "too and stands in the silo's own account",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SiloSpending:
    """What one silo's answers in a run cost it. Public.

    Attributes:
      name: of the silo.
      paid: what its answers are charged as, and how many of each.
      num_refused: queries that it refused by policy.
      epsilon: of all its answers in this run together, at `delta`.
      delta: that epsilon holds at; 129 times the run's where a silo answered by several mechanisms,
        which the coordinator may have chosen by earlier answers.
      num_declared: how many queries it declared in public to answer in all.
    """

    name: str
    paid: Mapping[Charge, int]
    num_refused: int
    epsilon: float
    delta: float
    num_declared: int

    @property
    def num_answered(self) -> int:
        """How many queries it answered."""
        return sum(self.paid.values())

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON-able fields."""
        return {
            "name": self.name,
            "paid": [
                {"charge": charge.to_dict(), "number": number}
                for charge, number in self.paid.items()
            ],
            "num_answered": self.num_answered,
            "num_refused": self.num_refused,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "num_declared": self.num_declared,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class SilosStatement:
    """What may be published beside a student of many holders.

    Attributes:
      dataset: name of the data set.
      run_id: name of the run.
      query_strategy: how queries were chosen from the public pool.
      num_queries: queries that were asked.
      num_answered: queries that got a label.
      silos: what each silo paid.
      student_digest: SHA-256 of the student's weights; empty for labels alone.
      versions: version of each library that took part.

    Raises:
      ValueError: if there is no silo.
    """

    dataset: str
    run_id: str
    query_strategy: str
    num_queries: int
    num_answered: int
    silos: tuple[SiloSpending, ...]
    student_digest: str = ""
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.silos:
            raise ValueError("silos: expected at least 1, got none")

    @property
    def charges(self) -> tuple[Charge, ...]:
        """Every mechanism that was used."""
        return tuple(dict.fromkeys(charge for one in self.silos for charge in one.paid))

    @property
    def secure(self) -> SecureHistogram | None:
        """The mechanism of secure aggregation; None where votes were randomised locally."""
        found = [one for one in self.charges if isinstance(one, SecureHistogram)]
        return found[0] if found else None

    @property
    def epsilon(self) -> float:
        """The largest epsilon of a silo."""
        return max(one.epsilon for one in self.silos)

    @property
    def sees(self) -> tuple[tuple[str, str], ...]:
        """Who sees what, in words."""
        rows = SEES_LOCAL if self.secure is None else SEES_SECURE
        return tuple((who.format(**self._numbers), what) for who, what in rows)

    @property
    def coalitions(self) -> str:
        """Against whom together epsilon holds, in words."""
        words = COALITIONS_LOCAL if self.secure is None else COALITIONS_SECURE
        return words.format(**self._numbers)

    @property
    def _numbers(self) -> dict[str, int]:
        secure = self.secure
        if secure is None:
            return {}
        return {
            "threshold": secure.threshold,
            "num_parties": secure.num_parties,
            "num_honest": secure.num_honest,
        }

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values: the attributes, and in words whatever the page says."""
        return {
            "kind": "many holders, data-independent, worst case over all data sets",
            "dataset": self.dataset,
            "run_id": self.run_id,
            "query_strategy": self.query_strategy,
            "num_queries": self.num_queries,
            "num_answered": self.num_answered,
            "unit": "silo",
            "protected": PROTECTED,
            "epsilon": self.epsilon,
            "silos": [one.to_dict() for one in self.silos],
            "mechanisms_in_words": [one.in_words() for one in self.charges],
            "sees": [{"who": who, "what": what} for who, what in self.sees],
            "coalitions": self.coalitions,
            "not_covered": list(NOT_COVERED),
            "assumptions": list(ASSUMPTIONS),
            "student_digest": self.student_digest,
            "versions": dict(self.versions),
        }

    def to_markdown(self) -> str:
        """Returns the page that goes beside the student; epsilons are rounded up."""
        lines = [
            f"# Privacy statement: {self.dataset}, {len(self.silos):,} silos",
            "",
            f"Run `{self.run_id}`. {self.num_answered:,} of {self.num_queries:,} public queries "
            f"(chosen by `{self.query_strategy}`) got a label.",
            "",
            f"**Protected:** {PROTECTED}.",
            "",
            "| silo | mechanism | answered | refused | declared | epsilon | delta |",
            "|---|---|---:|---:|---:|---:|---:|",
        ]
        for one in self.silos:
            used = "; ".join(charge.summary() for charge in one.paid) or "none"
            lines.append(
                f"| {one.name} | {used} | {one.num_answered:,} | {one.num_refused:,} | "
                f"{one.num_declared:,} | {rounded_up(one.epsilon)} | {one.delta:g} |"
            )
        lines += ["", *(one.in_words() for one in self.charges), "", "## Who sees what", ""]
        lines += ["| | sees |", "|---|---|", *(f"| {who} | {what} |" for who, what in self.sees)]
        lines += ["", self.coalitions, "", "## Not covered", ""]
        lines += [f"- {one}" for one in NOT_COVERED]
        lines += ["", "## Assumed", "", *(f"- {one}" for one in ASSUMPTIONS), ""]
        return "\n".join(lines)
