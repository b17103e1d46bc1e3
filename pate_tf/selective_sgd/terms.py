"""Who trains together across organisations, and how."""

import dataclasses
import math
from typing import Any, ClassVar, Self

from pate_tf.core.settings import described, value_type
from pate_tf.core.validation import Fields
from pate_tf.net.roster import Roster
from pate_tf.selective_sgd.settings import TrainingSettings


@dataclasses.dataclass(frozen=True, kw_only=True)
class Terms(Roster):
    """The terms of a run, from a small TOML file. Public; all read them before they join.

    The order of names is that of round robin.

    Attributes:
        dataset: name that `data.catalogue` knows, or `module:function`: shapes and classes.
        model: as `models.build` takes it; None for the default of the data set.
        settings: of the run.
    """

    role: ClassVar[str] = "participant"
    dataset: str
    settings: TrainingSettings
    model: str | None = None

    @classmethod
    def of_fields(cls, fields: Fields) -> Self:
        """Takes the terms from the fields of their file."""
        tables = fields.tables(cls.role)
        names = tuple(table.text("name") for table in tables)
        for table in tables:
            table.end()
        values: dict[str, Any] = {}
        if fields.has("settings"):
            table = fields.table("settings")
            for name in set(described(TrainingSettings)) - {"num_participants"}:
                if table.has(name):
                    kind, _ = value_type(TrainingSettings, name)
                    if kind is str:
                        values[name] = table.text(name)
                    elif kind is int:
                        values[name] = table.whole(name, least=0)
                    else:
                        values[name] = table.number(name, above=-math.inf)
            table.end()
        return cls(
            run=fields.text("run"),
            names=names,
            dataset=fields.text("dataset"),
            model=fields.text("model") if fields.has("model") else None,
            settings=TrainingSettings(num_participants=len(names), **values),
        )
