"""Kinds of student by name: a file of this package with its `KIND`, and a line of `CHOICES`.

A kind is imported when it is used: flags know name and help without TensorFlow. It trains on
released labels and a pool of public inputs, and sees neither votes nor true labels.
"""

import dataclasses
import importlib
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pate_tf.core import validation
from pate_tf.core.dataset import Dataset
from pate_tf.core.public import Pool, PoolLabels
from pate_tf.data.named_function import Named

AUTO: Final = "auto"
LINEAR_HEAD: Final = "linear_head"
# Values of `--student` with their help.
CHOICES: Final = {
    AUTO: "linear_head of tables and texts with feature sums, and of images after several rounds "
    "of them unless a network is clearly better; consistency for images whose data set names an "
    "augmentation and a model without batch normalization; supervised otherwise.",
    "consistency": "a Keras model that must agree with itself on changed images of the pool.",
    "gan": "PATE-G, an improved GAN on the labels and on all images of the pool.",
    LINEAR_HEAD: "the encoder of feature sums with the linear model that the released sums give.",
    "random_forest": "a random forest on the noisy labels, the same as --model=random_forest.",
    "supervised": "a Keras model by cross-entropy on the noisy labels alone.",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudentConfig:
    """What a student's result depends on besides its labels and its pool; see `StudentSettings`.

    Attributes:
        initial: a Keras model whose network and weights training begins with, in place of `model`;
            itself unchanged. It must have learned from the same labels and public data alone.
    """

    student: str = "supervised"
    model: Named
    max_steps: int
    batch_size: int
    learning_rate: float
    seed: int
    initial: Any = dataclasses.field(default=None, repr=False)


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
        batch_size: labeled examples a step where no number is given.
        learning_rate: of Adam where no number is given.
        of_whole_table: other numbers of the three above for labels of every input of a table's
            pool, which follow from feature sums: single ones are not noisy.
        has_steps: whether it is trained in steps; a forest and a linear head are not.
        takes_initial: whether it can begin with a given network.
        warm_start_steps: how many steps it takes from a network that learned from the same labels
            on the way; None for a kind that does not begin with it.
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
    has_steps: bool = True
    takes_initial: bool = False
    warm_start_steps: int | None = None
    can_convert: bool = True

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


def names() -> list[str]:
    """Returns the names of all kinds."""
    return [name for name in CHOICES if name != AUTO]


def kind_of(name: str) -> StudentKind:
    """Returns the kind of a name; ValueError if there is none."""
    validation.one_of(names(), student=name)
    kind: StudentKind = importlib.import_module(f"{__name__}.{name}").KIND
    return kind
