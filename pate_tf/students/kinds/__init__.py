"""Kinds of student by name: a file of this package is a kind.

The file's name is the value of `--student`, the first line of its docstring the help, and its
`KIND` says all that others need. It is imported when the kind is used: flags know name and help
without TensorFlow. A kind trains on released labels and a pool of public inputs, and sees neither
votes nor true labels.
"""

import ast
import dataclasses
import importlib
import importlib.util
import pathlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pate_tf.core import validation
from pate_tf.core.dataset import Dataset
from pate_tf.core.public import Pool, PoolLabels
from pate_tf.data.named_function import Named, name_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudentConfig:
    """What a student's result depends on besides its labels and its pool; see `StudentSettings`.

    Attributes:
        initial: a Keras model whose network and weights training begins with, in place of `model`;
            itself unchanged. It must have learnt from the same labels and public data alone.
    """

    student: str = "supervised"
    model: Named
    max_steps: int
    batch_size: int
    learning_rate: float
    seed: int
    initial: Any = dataclasses.field(default=None, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as JSON values; a function by its name."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del values["initial"]
        return {**values, "model": name_of(self.model)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class FitOptions:
    """What of a training is stored and shown; nothing here changes the result.

    Attributes:
        folder: logs and the state of an unfinished run lie below it; None for neither.
        callbacks: called as Keras calls them.
        show_progress: whether a progress bar is drawn.
    """

    folder: pathlib.Path | None = None
    callbacks: Sequence[Any] = ()
    show_progress: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudentKind:
    """One way to learn from released labels.

    Attributes:
        name: value of `--student`.
        fit: from configuration, labels of a pool, pool and options to a model that is called as a
            Keras model is, from raw inputs to logits.
        check: raises ValueError if a configuration does not fit a data set; called before labels
            are charged.
        default_model: name of the model where none is named.
        max_steps: training steps where no number is given.
        batch_size: labelled examples a step where no number is given.
        learning_rate: of Adam where no number is given.
        of_whole_table: other numbers of the three above for labels of every input of a table's
            pool, which follow from feature sums: single ones are not noisy.
        times_for_colours: how many times as many steps it takes for labels of every input of a pool
            of colour images, which follow from feature sums.
        has_steps: whether it is trained in steps; a forest and a linear head are not.
        takes_initial: whether it can begin with a given network.
        warm_start_steps: how many steps it takes from a network that learnt from the same labels on
            the way; None for a kind that does not begin with it.
        can_convert: whether it can be written in formats other than SavedModel.
    """

    name: str
    fit: Callable[[StudentConfig, PoolLabels, Pool, FitOptions], Any]
    check: Callable[[StudentConfig, Dataset], None]
    default_model: Callable[[Dataset], str]
    max_steps: int = 1_000
    batch_size: int = 64
    learning_rate: float = 0.002
    of_whole_table: Mapping[str, float] = dataclasses.field(default_factory=dict)
    times_for_colours: int = 1
    has_steps: bool = True
    takes_initial: bool = False
    warm_start_steps: int | None = None
    can_convert: bool = True

    def steps_for(self, steps: int, dataset: Dataset) -> int:
        """Returns how many steps labels of a whole pool take, where grey images take `steps`."""
        return steps * self.times_for_colours if dataset.has_colours else steps

    def train(self, config: StudentConfig, released: PoolLabels, pool: Pool, **options: Any) -> Any:
        """Returns a model that is called as a Keras model is, from raw inputs to logits.

        Args:
            config: how it is trained.
            released: noisy labels of some of the pool; a model is taught their weights, where they
                have some.
            pool: public inputs `[num_inputs, *input_shape]`.
            **options: as of `FitOptions`; a forest calls no callbacks.

        Raises:
            ValueError: if there is no label, the labels do not belong to this pool, or the model
                does not fit.
            TrainingDivergedError: if a loss or weight became NaN or infinite.
        """
        released.check_pool(pool)
        return self.fit(config, released, pool, FitOptions(**options))


AUTO = "auto"
LINEAR_HEAD = "linear_head"
# Values of `--student` with their help.
CHOICES = {
    AUTO: "linear_head where several rounds of feature sums are released, unless clusters of the "
    "pool are clearly classes or features of a network clearly better, and on tables and texts "
    "unless a trained one fits clearly better; "
    "consistency for images whose data set names an augmentation and a "
    "model without batch normalisation; supervised otherwise.",
}
_REGISTERED: dict[str, StudentKind] = {}


def names() -> list[str]:
    """Returns the names of all kinds."""
    return [name for name in CHOICES if name != AUTO]


def kind_of(name: str) -> StudentKind:
    """Returns the kind of a name; ValueError if there is none."""
    validation.one_of(names(), student=name)
    if name not in _REGISTERED:
        _REGISTERED[name] = importlib.import_module(f"{__name__}.{name}").KIND
    return _REGISTERED[name]


def register(kind: StudentKind, help_text: str) -> None:
    """Makes a kind known that is defined elsewhere, or puts it in the place of one of its name."""
    _REGISTERED[kind.name] = kind
    CHOICES[kind.name] = help_text


def recommended(dataset: Dataset) -> str:
    """Returns the kind that `auto` stands for: consistency where inputs may be changed, else plain.

    Augmentation says which changes leave a label as it is; without any (tables, texts, other
    images) there is nothing for a consistency student to agree on.
    """
    return "supervised" if dataset.augmentation == "none" else "consistency"


def _first_line(module: str) -> str:
    spec = importlib.util.find_spec(module)
    source = spec.loader.get_source(module) if spec and spec.loader else None  # type: ignore[attr-defined]
    return (ast.get_docstring(ast.parse(source or "")) or "").split("\n", maxsplit=1)[0]


CHOICES |= {
    module.name: _first_line(f"{__name__}.{module.name}")
    for module in pkgutil.iter_modules(__path__)
}
