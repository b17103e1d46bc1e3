"""Who is asked, what each silo declared in public, and how silos are asked."""

import dataclasses
import pathlib
from collections.abc import Mapping
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from pate_tf.core import artifacts, validation
from pate_tf.core.settings import Settings, setting
from pate_tf.core.validation import Fields, IntArray, check_name
from pate_tf.silos.messages import RANDOMISED_RESPONSE, SHARED, checked_mechanism

SUBSETS = ("random", "balanced")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Member:
    """One silo as the coordinator knows it. Public.

    Attributes:
        name: as in its certificate.
        epsilon: what it agreed to be charged for one randomised answer.
        queries: how many queries it declared to answer in all. The silo's own account decides.

    Raises ValueError if a value is out of its range.
    """

    name: str
    epsilon: float
    queries: int

    def __post_init__(self) -> None:
        check_name(self.name, "silo")
        validation.positive(epsilon=self.epsilon)
        validation.whole(1, queries=self.queries)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Roster:
    """All silos of a run: a small TOML file. Public.

    Attributes:
        run_id: name of the run.
        delta: that the statement's epsilons hold at.
        members: the silos, with different names.

    Raises ValueError if a value is out of its range or a silo stands there twice.
    """

    run_id: str
    delta: float
    members: tuple[Member, ...]

    def __post_init__(self) -> None:
        check_name(self.run_id, "run_id")
        validation.between(0, 0.1, ends="[]", delta=self.delta)
        if not self.members or len(set(self.names)) != len(self.members):
            raise ValueError("members: expected one or more silos of different names, got others")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the silos, in the roster's order."""
        return tuple(each.name for each in self.members)

    @classmethod
    def read(cls, path: pathlib.Path) -> "Roster":
        """Reads a roster.

        Raises:
            ValueError: if the file holds none; one line that says what was expected.
            OSError: if it can't be read.
        """
        fields = Fields.read(path)
        run_id, delta = fields.text("run"), fields.number("delta", above=-inf)
        members = []
        try:
            for each in fields.tables("silo"):
                name, epsilon = each.text("name"), each.number("epsilon")
                members.append(Member(name=name, epsilon=epsilon, queries=each.whole("queries")))
                each.end()
            fields.end()
            return cls(run_id=run_id, delta=delta, members=tuple(members))
        except ValueError as error:
            reason = str(error).removeprefix(f"{path}: ")
            raise ValueError(f"{path}: {reason}") from None

    def write(self, path: pathlib.Path) -> None:
        """Writes the roster; `read` is its inverse."""
        lines = [f'run = "{self.run_id}"', f"delta = {self.delta!r}"]
        for each in self.members:
            lines += ["", "[[silo]]", f'name = "{each.name}"']
            lines += [f"epsilon = {each.epsilon!r}", f"queries = {each.queries}"]
        artifacts.write_text(path, "\n".join(lines) + "\n")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asking(Settings):
    """How silos are asked. Public.

    Attributes:
        mechanism: name and parameters, as of `QueryBatch.mechanism`. Without an epsilon each silo
            is asked at its own of the roster.
        unit: of feature sums, what is protected; silos that protect something else refuse.
        seed: fixes the subsets.
    """

    mechanism: Mapping[str, Any] = dataclasses.field(
        default_factory=lambda: {"name": RANDOMISED_RESPONSE}
    )
    subset: int | None = setting(
        None,
        least=1,
        help="How many silos are asked each query. Under secure aggregation the same ones are "
        "asked all queries of a round. Default: all.",
    )
    how: str = setting(
        "random",
        flag="subset_by",
        choices=SUBSETS,
        help="Which silos are asked: random, every subset equally likely; balanced, those with "
        "most queries left.",
    )
    seconds: float = setting(
        600.0, flag="round_seconds", above=0.0, help="How long a round waits for replies."
    )
    least_answers: int = setting(1, least=1, help="Answers that a label needs.")
    unit: str = setting(
        "record",
        choices=("record", "owner"),
        help="With feature_sums: what silos protect, each record or all of an owner's.",
    )
    seed: int = 0

    @property
    def is_secure(self) -> bool:
        """Whether votes or feature sums are added up under secret sharing."""
        return self.mechanism.get("name") in SHARED

    def mechanisms(self, roster: Roster) -> dict[str, dict[str, Any]]:
        """Returns what each silo is asked with; raises ValueError if it is no mechanism."""
        mechanisms = {}
        for each in roster.members:
            fields = dict(self.mechanism)
            if not self.is_secure:
                fields.setdefault("epsilon", each.epsilon)
            mechanisms[each.name] = dict(checked_mechanism(fields))
        return mechanisms


def choose_silos(
    num_queries: int,
    left: IntArray,
    *,
    subset: int | None,
    how: str,
    seed: tuple[int, ...],
) -> npt.NDArray[np.bool_]:
    """Returns who is asked what, `[num_silos, num_queries]`, from public values alone.

    Args:
        num_queries: number of queries.
        left: how many queries each silo declared and was not asked yet, int64 `[num_silos]`.
        subset: how many silos are asked each query, fewer where fewer have queries left; None for
            all of them.
        how: "random", every subset equally likely; or "balanced", those with most queries left,
            ties at random.
        seed: fixes the choice, so that a coordinator that was killed asks the same silos again.

    Raises ValueError if there is no such way, or no silo is left to ask a query.
    """
    validation.one_of(SUBSETS, subset_by=how)
    if subset is not None:
        validation.whole(1, len(left), subset=subset)
    size = len(left) if subset is None else subset
    generator = np.random.default_rng(seed)
    asked = np.zeros((len(left), num_queries), np.bool_)
    remaining = left.astype(np.int64)
    for query in range(num_queries):
        keys = generator.random(len(left))
        if how == "balanced":
            keys = keys - remaining
        keys[remaining <= 0] = np.inf
        chosen = np.argsort(keys, kind="stable")[:size]
        chosen = chosen[np.isfinite(keys[chosen])]
        if not len(chosen):
            raise ValueError(
                f"queries: expected silos that declared at least {num_queries} more queries, got "
                f"enough for {query}"
            )
        asked[chosen, query] = True
        remaining[chosen] -= 1
    return asked
