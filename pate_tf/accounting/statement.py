"""The privacy statement: what a student's labels cost, what that promises, and what it assumes."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from pate_tf.records import ReleasedLabels

ASSUMPTIONS = (
    "Each {unit} reached one teacher only, and which one did not depend on the others.",
    "The pool that the queries came from is public.",
    "Which queries were asked, and how many, was fixed without looking at private data or at "
    "earlier noisy answers.",
    "Settings of the training were not tuned on the private data, beyond what is stated here.",
    "The noise came from the operating system's entropy source.",
)

NOT_COVERED = (
    "What the data set as a whole teaches: an adversary may learn facts about a population that "
    "hold with or without any one {unit}.",
    "Anything else that was ever published about the same {unit}s, by this or another system.",
    "Teachers, partition, votes and logs below `sensitive/`, which must not be published.",
    "A sanitised epsilon of these labels that is published besides: it states what both cost.",
    "Several {unit}s of the same person: their costs add up.",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivacyStatement:
    """What may be published beside a student; nothing in it depends on votes.

    Attributes:
      dataset: name of the data set.
      unit: what is protected, "record" or "owner".
      num_teachers: number of teachers that voted.
      mechanism: the aggregation mechanism's `to_dict()`.
      num_queries: queries asked for this student.
      num_answered: queries that got a label.
      epsilon: data-independent epsilon of this student's labels.
      delta: the delta that both epsilons hold at.
      epsilon_ensemble: data-independent epsilon of every label that this ensemble ever released,
        this student's among them.
      epsilon_budget: the ensemble's budget, or None if it has none.
      budget_was_raised: whether budget or delta were ever raised after their first use.
      ledger_rows: rows of the ledger that paid for the labels.
      ledger_head: sequence and digest of the ledger's last row when the statement was made; they
        fix the history before it, so that nobody can sign a cheaper one later.
      secure_noise: False if the noise came from a seed.
      student_digest: SHA-256 of the student's weights.
      versions: version of each library that took part.
    """

    dataset: str
    unit: str
    num_teachers: int
    mechanism: Mapping[str, object]
    num_queries: int
    num_answered: int
    epsilon: float
    delta: float
    epsilon_ensemble: float
    epsilon_budget: float | None
    budget_was_raised: bool
    ledger_rows: tuple[int, ...]
    ledger_head: tuple[int, str]
    secure_noise: bool
    student_digest: str
    versions: Mapping[str, str]

    @classmethod
    def of(cls, released: ReleasedLabels, **facts: Any) -> "PrivacyStatement":
        """Takes from the labels what they carry, and the remaining attributes from `facts`."""
        return cls(
            mechanism=released.mechanism,
            num_queries=released.num_queries,
            num_answered=released.num_answered,
            epsilon=released.epsilon,
            delta=released.delta,
            ledger_rows=released.ledger_rows,
            secure_noise=released.secure_noise,
            **facts,
        )

    @property
    def kind(self) -> str:
        """What kind of epsilon it is, in words."""
        if not self.secure_noise:
            return "none: the noise was seeded, so nothing is private"
        return "data-independent, worst case over all data sets, publishable"

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values: the attributes, the kind, the assumptions and what is left out."""
        return {
            **dataclasses.asdict(self),
            "mechanism": dict(self.mechanism),
            "ledger_rows": list(self.ledger_rows),
            "ledger_head": list(self.ledger_head),
            "kind": self.kind,
            "assumptions": self._in_words(ASSUMPTIONS),
            "not_covered": self._in_words(NOT_COVERED),
        }

    def to_markdown(self) -> str:
        """Returns one page for people who sign such things."""
        parameters = ", ".join(
            f"{name} = {value}" for name, value in self.mechanism.items() if name != "name"
        )
        lines = ["# Privacy statement", ""]
        if not self.secure_noise:
            lines += [
                "**This student is NOT private.** Its noise came from a seed "
                "(`--insecure_seed`), so whoever knows the seed can take it away. The numbers "
                "below would hold for real noise; they promise nothing here.",
                "",
            ]
        lines += [
            f"The student learnt from {self.num_answered} noisy labels, voted for by "
            f"{self.num_teachers} teachers that were trained on disjoint parts of the private "
            f"data set `{self.dataset}`.",
            "",
            "| | |",
            "|---|---|",
            f"| protected | one {self.unit} of the private data, against replacement by another |",
            f"| mechanism | `{self.mechanism['name']}` ({parameters or 'no parameters'}) |",
            f"| queries asked / answered | {self.num_queries} / {self.num_answered} |",
            f"| epsilon of this student | {self.epsilon:.4g} at delta = {self.delta:g} |",
            f"| epsilon of all that this ensemble released | {self.epsilon_ensemble:.4g} "
            f"at delta = {self.delta:g} |",
            f"| kind of epsilon | {self.kind} |",
            f"| budget of the ensemble | {self._budget_in_words()} |",
            f"| paid by ledger rows | {', '.join(map(str, self.ledger_rows)) or 'none'} |",
            f"| ledger at row {self.ledger_head[0]} | `{self.ledger_head[1]}` |",
            f"| digest of the student's weights | `{self.student_digest}` |",
            "",
            f"**What it promises.** Whatever anybody does with the student, with its labels and "
            f"with any other knowledge: each conclusion about one {self.unit} is at most "
            f"exp(epsilon) times as likely as if another {self.unit} had stood in its place, but "
            f"for a probability of delta. It holds for every possible data set, and everything on "
            f"this page may be published.",
            "",
            "**What was assumed**",
            "",
            *(f"- {line}" for line in self._in_words(ASSUMPTIONS)),
            "",
            "**What is not covered**",
            "",
            *(f"- {line}" for line in self._in_words(NOT_COVERED)),
            "",
            "**Made with** " + ", ".join(f"{k} {v}" for k, v in self.versions.items()) + ".",
            "",
        ]
        return "\n".join(lines)

    def _in_words(self, sentences: tuple[str, ...]) -> list[str]:
        return [sentence.format(unit=self.unit) for sentence in sentences]

    def _budget_in_words(self) -> str:
        if self.epsilon_budget is None:
            return "none was set"
        raised = ", raised after its first use" if self.budget_was_raised else ""
        return f"epsilon {self.epsilon_budget:g} at delta = {self.delta:g}{raised}"
