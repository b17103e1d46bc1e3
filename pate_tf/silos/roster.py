"""Who is asked, and what each silo declared in public: a small TOML file."""

import dataclasses
import pathlib

from pate_tf.core import artifacts
from pate_tf.core.validation import Fields, check_name, read_toml


@dataclasses.dataclass(frozen=True, kw_only=True)
class Member:
    """One silo as the coordinator knows it. Public.

    Attributes:
      name: as in its certificate.
      epsilon: what it agreed to pay for one randomised answer.
      queries: how many queries it declared to answer in all. Nobody needs to believe it: the
        silo's own account decides.
    """

    name: str
    epsilon: float
    queries: int

    def __post_init__(self) -> None:
        """Raises ValueError if a value is out of its range."""
        check_name(self.name, "silo")
        if not 0.0 < self.epsilon < float("inf"):
            raise ValueError(f"epsilon of {self.name}: expected above 0, got {self.epsilon}")
        if self.queries < 1:
            raise ValueError(f"queries of {self.name}: expected at least 1, got {self.queries}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Roster:
    """All silos of a run. Public.

    Attributes:
      run_id: name of the run.
      delta: that the statement's epsilons hold at.
      members: the silos, with different names.
    """

    run_id: str
    delta: float
    members: tuple[Member, ...]

    def __post_init__(self) -> None:
        """Raises ValueError if a value is out of its range or a silo stands there twice."""
        check_name(self.run_id, "run_id")
        if not 0.0 < self.delta < 1.0:
            raise ValueError(f"delta: expected in (0, 1), got {self.delta}")
        names = [one.name for one in self.members]
        if not names or len(set(names)) != len(names):
            raise ValueError("members: expected one or more silos of different names, got others")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the silos, in the roster's order."""
        return tuple(one.name for one in self.members)

    @classmethod
    def read(cls, path: pathlib.Path) -> "Roster":
        """Reads a roster.

        Raises:
          ValueError: if the file holds none; one line that says what was expected.
          OSError: if it can't be read.
        """
        fields = Fields(str(path), read_toml(path))
        members = []
        for one in fields.tables("silo"):
            members.append(
                Member(
                    name=check_name(one.text("name"), f"{path}: name"),
                    epsilon=one.number("epsilon"),
                    queries=one.whole("queries"),
                )
            )
            one.end()
        run_id, delta = fields.text("run"), fields.number("delta", most=0.1)
        fields.end()
        try:
            return cls(run_id=run_id, delta=delta, members=tuple(members))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def write(self, path: pathlib.Path) -> None:
        """Writes the roster; `read` is its inverse."""
        lines = [f'run = "{self.run_id}"', f"delta = {self.delta!r}"]
        for one in self.members:
            lines += ["", "[[silo]]", f'name = "{one.name}"']
            lines += [f"epsilon = {one.epsilon!r}", f"queries = {one.queries}"]
        artifacts.write_text(path, "\n".join(lines) + "\n")
