"""Features of the public pool's inputs, and labels propagated over their neighbours.

A file of this package that calls `register` defines a representation: `--representation` takes its
name then, alone or joined to others by `+`.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pate_tf.core.dataset import Dataset
    from pate_tf.core.public import Pool
    from pate_tf.models.encoder import Encoder, Part


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """One way to get features of inputs from a public pool.

    Attributes:
        name: of the representation.
        parts: from pool and seed to the encoder's parts, whose weights are yet to be trained.
        train: trains parts in place, from parts, pool and seed; takes the keywords `folder`, for
            the state of a run that was stopped or None, and `progress`. None where `parts` are
            complete: nothing is cached then.
        data_kinds: of data sets that it is for.
        settings: from a data set to JSON values that identify what is trained.
        doubts: from encoder and pool to one line that says why these features should not be relied
            on, or None. The encoder is of this kind alone.
    """

    name: str
    parts: Callable[["Pool", int], Sequence["Part"]]
    train: Callable[..., object] | None = None
    data_kinds: tuple[str, ...] = ("image", "tabular", "text")
    settings: Callable[["Dataset"], Mapping[str, Any]] = lambda dataset: {}
    doubts: Callable[["Encoder", "Pool"], str | None] = lambda encoder, pool: None


# From a total and a unit to a context that gives a function to call with how many more are done.
Progress = Callable[[int, str], contextlib.AbstractContextManager[Callable[[int], object]]]
KINDS: dict[str, Kind] = {}


def hidden(total: int, unit: str) -> contextlib.AbstractContextManager[Callable[[int], object]]:
    """Shows no progress."""
    del total, unit
    return contextlib.nullcontext(lambda done: None)


def register(kind: Kind) -> None:
    """Makes a kind known by its name."""
    KINDS[kind.name] = kind
