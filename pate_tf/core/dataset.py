"""What is publicly known of a data set."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pate_tf.core.checks import frozen_view, one_of, whole, whole_numbers

# The first by default.
INPUT_TYPES = {"image": ("uint8", "float32"), "tabular": ("float32",), "text": ("float32",)}
LONGEST_NAME = 200
CLASS: Final = "class"
NUMBER: Final = "number"
SEVERAL_LABELS: Final = "labels"
TARGETS: Final = (CLASS, NUMBER, SEVERAL_LABELS)
LIKELY: Final = 0.5  # probability from which on one of several labels is predicted
UNKNOWN: Final = -1  # the sign of scikit-learn for "no label"
AUGMENTATIONS = ("none", "shift", "affine", "flip")
WHITE_LEVEL = 65535.0
LARGEST_CHARACTER = float(0x10FFFF)
BACKGROUND = "white"
BACKGROUNDS = {BACKGROUND: 255, "black": 0, "gray": 128}  # values of red, green and blue
IMAGE_AUGMENTATION = "shift"  # by default: a small shift leaves the label of any image unchanged


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dataset:
    """What is publicly known of a data set; nothing else knows a shape or a number of classes.

    >>> import pate_tf
    >>> pate_tf.Dataset(
    ...     name="visits", kind="tabular", input_shape=(2,), num_classes=2, pool_size=400,
    ...     value_range=((18.0, 80.0), (90.0, 200.0))).input_type
    'float32'

    Attributes:
        name: the name in the catalogue.
        kind: "image", "tabular" or "text": strings, as the features that
            `data.preprocessing` makes of them; a served student takes the strings.
        input_shape: shape of one input, e.g. `(28, 28, 1)`.
        value_range: lowest and highest value that an input can hold, from public metadata, never
            measured on private records; for tabular data also a tuple of lows and one of highs, one
            a feature. Keras models scale it to [0, 1]; forests take raw values.
        target: what a record is labeled with, and a student predicts: one "class" (default), a
            "number", or several "labels", any number of which hold.
        target_range: lowest and highest value of a number, from public knowledge: values outside
            are clipped. None of other targets.
        max_labels: how many labels of a record count in full; more of them weigh less together.
            0 of other targets.
        num_classes: number of classes, or of labels, at least 2; 2 of a number, whose lowest and
            highest value stand for two classes.
        class_names: a name for each class or label, or empty.
        augmentation: what leaves a label unchanged: "none", "shift" (small ones; the default of
            images), "affine" (shifts, rotations, scaling and shear, all small) or "flip" (shifts
            and horizontal mirroring).
        pool_size: how many public samples form the student's pool unless the user says otherwise;
            0 where there are none.
        input_type: the type of raw inputs, which a served model takes: "uint8" (default) or
            "float32" for images, "float32" for tabular features.
        schema: how a row of raw columns becomes these features, a `data.schema.Schema`; None where
            inputs are brought as they are. Not compared: it makes no other data set of them.
        white_level: the value in image files of more than 8 bits that is read as 255; 0 is read as
            0.
        background: color that transparent images of files are laid on.
        input_name: what a served model calls its input: "image" or "features".
    """

    name: str
    kind: str
    input_shape: tuple[int, ...]
    value_range: tuple[float, float] | tuple[tuple[float, ...], tuple[float, ...]]
    num_classes: int
    class_names: tuple[str, ...] = ()
    target: str = CLASS
    target_range: tuple[float, float] | None = None
    max_labels: int = 0
    augmentation: str = ""
    pool_size: int
    input_type: str = ""
    schema: Any = dataclasses.field(default=None, compare=False, repr=False)
    white_level: float = WHITE_LEVEL
    background: str = BACKGROUND
    input_name: str = dataclasses.field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        # It can be part of a path, below a folder of runs.
        is_way_out = not set(self.name.split("/")).isdisjoint(("", ".", "..")) or "\\" in self.name
        if is_way_out or not self.name.isprintable() or len(self.name) > LONGEST_NAME:
            raise ValueError(
                f"name: expected a data set's name of printable characters, up to {LONGEST_NAME}, "
                f"which leads out of no folder, got {self.name[:LONGEST_NAME]!r}"
            )
        whole(2, num_classes=self.num_classes)
        whole(0, pool_size=self.pool_size)
        one_of(tuple(INPUT_TYPES), kind=self.kind)
        is_image = self.kind == "image"
        types = INPUT_TYPES[self.kind]
        augmentations = AUGMENTATIONS if is_image else ("none",)
        usual = IMAGE_AUGMENTATION if is_image else "none"
        object.__setattr__(self, "input_name", "image" if is_image else "features")
        object.__setattr__(self, "input_type", self.input_type or types[0])
        object.__setattr__(self, "augmentation", self.augmentation or usual)
        one_of(tuple(BACKGROUNDS), background=self.background)
        one_of(types, input_type=self.input_type)
        one_of(augmentations, augmentation=self.augmentation)
        self._check_target()
        if self.class_names and len(self.class_names) != self.num_classes:
            raise ValueError(
                f"class_names: expected {self.num_classes} names, got {len(self.class_names)}"
            )
        low, high = (np.asarray(values, np.float64) for values in self.value_range)
        if low.shape != high.shape or low.shape not in ((), self.input_shape):
            raise ValueError(
                f"value_range: expected two numbers, or two of shape {list(self.input_shape)}, "
                f"got shapes {list(low.shape)} and {list(high.shape)}"
            )
        if not (low < high).all():
            raise ValueError(f"value_range: expected low < high, got {self.value_range}")

    def _check_target(self) -> None:
        """Raises ValueError if what is said of the target doesn't stand together."""
        one_of(TARGETS, target=self.target)
        if self.target == SEVERAL_LABELS and not self.max_labels:
            object.__setattr__(self, "max_labels", self.num_classes)
        most = self.num_classes if self.target == SEVERAL_LABELS else 0
        if not 0 <= self.max_labels <= most:
            raise ValueError(
                f"max_labels: expected at most {most} for target {self.target}, got "
                f"{self.max_labels}"
            )
        if (self.target_range is not None) != (self.target == NUMBER):
            raise ValueError(
                f"target_range: expected the lowest and highest value of a number, and none for "
                f"other targets, got {self.target_range} for target {self.target}"
            )
        if self.target_range is not None:
            lowest, highest = self.target_range
            if not -math.inf < lowest < highest < math.inf:
                raise ValueError(
                    f"target_range: expected finite low < high, got {lowest} and {highest}"
                )
            if self.num_classes != 2:
                raise ValueError(f"num_classes: expected 2 for a number, got {self.num_classes}")

    @property
    def has_characters(self) -> bool:
        """Whether inputs are the characters of texts: code points, and not hashed n-grams."""
        return self.kind == "text" and float(np.max(self.value_range[1])) == LARGEST_CHARACTER

    @property
    def has_colours(self) -> bool:
        """Whether inputs are images of three channels: red, green and blue."""
        return self.kind == "image" and self.input_shape[-1] == 3

    @property
    def label_shape(self) -> tuple[int, ...]:
        """Shape of one label: `(num_classes,)` of several labels, else `()`."""
        return (self.num_classes,) if self.target == SEVERAL_LABELS else ()

    def class_name(self, label: int) -> str:
        """Returns the name of a class; its number where the data set names none."""
        return self.class_names[label] if self.class_names else str(label)

    @property
    def target_in_words(self) -> str:
        """What is predicted of an input, where it is no class; empty of classes."""
        if self.target_range is not None:
            lowest, highest = self.target_range
            return f"a number from {lowest:,.12g} to {highest:,.12g}, to which others are clipped"
        if self.target == CLASS:
            return ""
        names = ", ".join(map(self.class_name, range(self.num_classes)))
        return f"which of {names} hold; of one record at most {self.max_labels} count in full"

    def require_classes(self, what: str) -> None:
        """Raises ValueError, which begins with `what`, unless classes are predicted."""
        if self.target != CLASS:
            raise ValueError(
                f"{what}: expected labels that are classes, got target {self.target} of "
                f"{self.name}; pate run predicts it with a linear head"
            )

    def difference(self, other: "Dataset") -> str:
        """Returns what differs from another first, in words; empty where nothing does."""
        for field in dataclasses.fields(self):
            if not field.compare:
                continue
            value = getattr(self, field.name)
            expected = getattr(other, field.name)
            if value != expected:
                return f"{field.name} is {value!r}, not {expected!r}"
        return ""

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields that are compared as JSON values; `from_dict` is its inverse.

        Default values of what became a choice later are left out.
        """
        usual = {
            "input_type": INPUT_TYPES[self.kind][0],
            "white_level": WHITE_LEVEL,
            "background": BACKGROUND,
            "target": CLASS,
            "target_range": None,
            "max_labels": 0,
        }
        names = (field.name for field in dataclasses.fields(self) if field.compare)
        fields = {name: getattr(self, name) for name in names}
        return {name: value for name, value in fields.items() if usual.get(name) != value}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "Dataset":
        """Rebuilds a `Dataset` from `to_dict()`, also after a trip through JSON."""
        tuples = {name: tuple(fields[name]) for name in ("input_shape", "class_names")}
        tuples["value_range"] = tuple(
            tuple(values) if isinstance(values, list | tuple) else values
            for values in fields["value_range"]
        )
        if fields.get("target_range") is not None:
            tuples["target_range"] = tuple(fields["target_range"])
        return cls(**{**fields, **tuples})


def check_inputs(inputs: npt.NDArray[Any], dataset: Dataset) -> None:
    """Checks raw inputs of a data set.

    Each input is judged by itself and public values: whether one is refused never depends on
    another.

    Raises:
        ValueError: unless they are `[num_examples, *input_shape]` of the data set, and finite in
            float32, in which models compute. The message carries no value.
    """
    if inputs.shape[1:] != dataset.input_shape:
        raise ValueError(
            f"inputs of {dataset.name}: expected [num_examples, "
            f"{', '.join(map(str, dataset.input_shape))}], got {list(inputs.shape)}"
        )
    largest = np.finfo(np.float32).max
    if (
        inputs.dtype.kind == "f"
        and inputs.size
        and not (inputs.min() >= -largest and inputs.max() <= largest)  # NaN compares as false
    ):
        raise ValueError(
            f"inputs of {dataset.name}: expected finite numbers, got NaN or infinite ones; fill in "
            f"what is missing record by record"
        )


def as_numbers(values: npt.ArrayLike, what: str) -> npt.NDArray[Any]:
    """Returns inputs as an array, of the type that they declare by a `dtype`.

    A list declares none. Its numbers become float64, each by itself: a type that fits all of them
    would depend on each.

    Raises:
        ValueError: if a list holds something else. The message, which begins with `what`, carries
            no value.
    """
    if hasattr(values, "dtype"):
        return np.asarray(values)
    try:
        return np.asarray(values, np.float64)
    except (OverflowError, TypeError, ValueError):  # whose texts may quote values
        got = "got something else; Data.from_dataframe takes texts and codes"
        raise ValueError(f"{what}: expected numbers, as many in each input, {got}") from None


def to_input_type(inputs: npt.ArrayLike, dataset: Dataset, what: str) -> npt.NDArray[Any]:
    """Returns inputs in the type that a served model takes, so that a query is the same everywhere.

    A number becomes the same one whether it comes as a whole number or as float64.

    Args:
        inputs: `[num_inputs, *input_shape]`.
        dataset: says which type.
        what: begins the message.

    Raises:
        ValueError: if they are no numbers, or would change: a fraction, a number beyond 255 or NaN
            can't be a pixel of type uint8. The message carries no value.
    """
    array = as_numbers(inputs, what)
    if array.dtype.kind not in "uif":
        raise ValueError(f"{what}: expected numbers as inputs of {dataset.name}, got {array.dtype}")
    if dataset.input_type != "uint8" or array.dtype == np.uint8:
        if array.dtype.itemsize == 8:
            array = array.astype(np.float64, copy=False)
        return array.astype(dataset.input_type, copy=False)
    # NaN compares as false.
    is_pixel = (array >= 0) & (array <= 255) & (array == np.floor(array))
    if not is_pixel.all():
        raise ValueError(
            f"{what}: expected whole numbers from 0 to 255 as pixels of {dataset.name}, got "
            f"others; "
            f"a Dataset with input_type='float32' keeps images of floats"
        )
    return array.astype(np.uint8)


# Raw inputs of a data set, private or public.


@dataclasses.dataclass(frozen=True, eq=False)
class Examples:
    """Inputs of a data set: `PrivateExamples`, `PublicExamples` or a `Pool`, never this itself."""

    dataset: Dataset
    inputs: npt.NDArray[Any] = dataclasses.field(repr=False)

    def __post_init__(self) -> None:
        check_inputs(self.inputs, self.dataset)
        object.__setattr__(self, "inputs", frozen_view(self.inputs))

    def __len__(self) -> int:
        return len(self.inputs)


def checked_labels(
    labels: npt.ArrayLike, examples: Examples, *, lowest: int = 0
) -> npt.NDArray[Any]:
    """Returns the labels of examples as an array that can't be written.

    Args:
        labels: `[num_examples]`, of several labels `[num_examples, num_labels]`.
        examples: whose labels they are.
        lowest: the least number that a label may be; `UNKNOWN` where some are not known: -1 of a
            class, a row of -1 of several labels, NaN of a number.

    Returns:
        int64 classes from `lowest` to `num_classes - 1`; float64 numbers, clipped to
        `target_range`; or int64 0 and 1, for each label whether it holds.

    Raises:
        ValueError: if they are something else. The message never carries a label.
    """
    dataset = examples.dataset
    what = f"labels of {dataset.name}"
    if dataset.target_range is not None:
        numbers = np.asarray(labels)
        if numbers.dtype.kind not in "uif":
            raise ValueError(f"{what}: expected numbers, got an array of type {numbers.dtype}")
        checked: npt.NDArray[Any] = np.clip(numbers.astype(np.float64), *dataset.target_range)
        if lowest != UNKNOWN and np.isnan(checked).any():
            raise ValueError(f"{what}: expected finite numbers, got NaN")
        checked.flags.writeable = False
    elif dataset.target == SEVERAL_LABELS:
        checked = whole_numbers(labels, what, num_classes=2, lowest=lowest)
    else:
        checked = whole_numbers(labels, what, num_classes=dataset.num_classes, lowest=lowest)
    if checked.shape != (len(examples), *dataset.label_shape):
        raise ValueError(f"{what}: expected one for each example, got another number")
    return checked


def is_labeled(labels: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Returns which of labels, as of `checked_labels`, are known, `[num_examples]`."""
    if labels.dtype.kind == "f":
        return np.asarray(~np.isnan(labels))
    return np.asarray((labels != UNKNOWN).all(axis=tuple(range(1, labels.ndim))))


def unlabeled(number: int, dataset: Dataset) -> npt.NDArray[Any]:
    """Returns labels of examples of which none is known, in the form of `checked_labels`."""
    value = np.nan if dataset.target == NUMBER else UNKNOWN
    return np.full((number, *dataset.label_shape), value)


def target_rows(labels: npt.NDArray[np.generic], dataset: Dataset) -> npt.NDArray[np.float64]:
    """Returns what a record's vector is multiplied by, `[num_records, num_classes]`.

    Also what a teacher adds for each query, from its predictions in place of labels. It has an L2
    norm of at most 1 and no negative entry (docs/proofs/theory.md, Propositions D12 and D13).
    Of a class it is its one-hot vector. Of a number, s in [0, 1] along its range, it is (1 - s, s).
    Of several labels it is 1 for each that holds, divided by the root of `max_labels`, and
    shortened to norm 1 where more hold.

    Args:
        labels: as of `checked_labels`, all known; or predictions of one teacher, as `Votes.labels`
            has them. SENSITIVE.
        dataset: says what they are.
    """
    if dataset.target_range is not None:
        lowest, highest = dataset.target_range
        share = np.clip((labels.astype(np.float64) - lowest) / (highest - lowest), 0.0, 1.0)
        return np.column_stack([1.0 - share, share])
    if dataset.target == SEVERAL_LABELS:
        rows = labels.astype(np.float64) / math.sqrt(dataset.max_labels)
        return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0))
    return np.asarray(np.eye(dataset.num_classes)[labels.astype(np.int64)])
