"""Public facts about a data set, and checks of its inputs and labels."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pate_tf.core.checks import frozen_view, one_of, shape, whole, whole_numbers

# The first type is the default.
INPUT_TYPES = {"image": ("uint8", "float32"), "tabular": ("float32",), "text": ("float32",)}
MAX_NAME = 200
CLASS: Final = "class"
NUMBER: Final = "number"
SEVERAL_LABELS: Final = "labels"
TARGETS: Final = (CLASS, NUMBER, SEVERAL_LABELS)
LIKELY: Final = 0.5  # for target "labels": a label is predicted if its probability is at least this
UNKNOWN: Final = -1  # means "no label", as in scikit-learn
AUGMENTATIONS = ("none", "shift", "affine", "flip")
WHITE_LEVEL = 65535.0
MAX_CHARACTER = float(0x10FFFF)
BACKGROUND = "white"
BACKGROUNDS = {BACKGROUND: 255, "black": 0, "gray": 128}  # values of red, green and blue
IMAGE_AUGMENTATION = "shift"  # default: a small shift never changes the label of an image


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dataset:
    """Public facts about a data set, such as the shape of an input and the number of classes.

    >>> import pate_tf
    >>> pate_tf.Dataset(
    ...     name="visits", kind="tabular", input_shape=(2,), num_classes=2, pool_size=400,
    ...     value_range=((18.0, 80.0), (90.0, 200.0))).input_type
    'float32'

    Attributes:
        name: public name of the data set.
        kind: "image", "tabular" or "text". With "text", an input consists of features that
            `data.preprocessing` computes from a string. A served student takes the string itself.
        input_shape: shape of one input, such as `(28, 28, 1)`.
        value_range: lowest and highest possible value of an input. The range comes from public
            metadata and is never measured on private records. For tabular data, both can be tuples
            with one value per feature. Keras models scale this range to [0, 1]; forests use the raw
            values.
        target: what a model predicts: "class" (one class, the default), "number" (regression) or
            "labels" (several labels, any number of which can be true at once).
        target_range: for target "number", the lowest and highest value of the target, from public
            knowledge. Target values outside of this range are clipped. None for other targets.
        max_labels: for target "labels", the maximum number of true labels of a record that get full
            weight. If a record has more true labels, the weight of each label is reduced. 0 for
            other targets.
        num_classes: number of classes or labels, at least 2. For target "number" it is 2: the ends
            of `target_range` act as two classes.
        class_names: name of each class or label; empty if they have no names.
        augmentation: transformations that keep the label unchanged: "none", "shift" (small shifts;
            the default for images), "affine" (small shifts, rotations, scaling and shear) or "flip"
            (shifts and horizontal mirroring).
        pool_size: default number of public samples in the student's pool; 0 if there are no public
            samples.
        input_type: data type of raw inputs, also for a served model. Images are "uint8" (default)
            or "float32"; all other inputs are "float32".
        schema: `data.schema.Schema` that turns a row of raw columns into features; None if inputs
            are already features. Comparisons of data sets ignore it.
        white_level: pixel value of white in image files with more than 8 bits per channel. Values
            from 0 to this value are scaled to 0 to 255.
        background: color that is put behind transparent parts of image files.
        input_name: name of the input of a served model: "image" or "features".
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
        # The name can become part of a path, which must stay inside the folder of all runs.
        is_way_out = not set(self.name.split("/")).isdisjoint(("", ".", "..")) or "\\" in self.name
        if is_way_out or not self.name.isprintable() or len(self.name) > MAX_NAME:
            raise ValueError(
                f"name must have at most {MAX_NAME} printable characters, without \\ and path "
                f"parts such as .., got {self.name[:MAX_NAME]!r}"
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
        if self.class_names:
            shape([self.num_classes], class_names=np.array(self.class_names))
        low, high = (np.asarray(values, np.float64) for values in self.value_range)
        if low.shape != high.shape or low.shape not in ((), self.input_shape):
            raise ValueError(
                f"value_range must be two numbers or two arrays of shape {list(self.input_shape)}, "
                f"got shapes {list(low.shape)} and {list(high.shape)}"
            )
        if not (low < high).all():
            raise ValueError(f"value_range must have low < high, got {self.value_range}")

    def _check_target(self) -> None:
        """Raises ValueError if the settings of the target contradict each other."""
        one_of(TARGETS, target=self.target)
        if self.target == SEVERAL_LABELS and not self.max_labels:
            object.__setattr__(self, "max_labels", self.num_classes)
        most = self.num_classes if self.target == SEVERAL_LABELS else 0
        whole(0, most, max_labels=self.max_labels)
        if (self.target_range is not None) != (self.target == NUMBER):
            raise ValueError(
                f"target_range is {self.target_range} for target {self.target}. Pass the lowest "
                f"and highest value for target number, and None for other targets."
            )
        if self.target_range is not None:
            lowest, highest = self.target_range
            if not -math.inf < lowest < highest < math.inf:
                raise ValueError(f"target_range needs finite low < high, got {lowest}, {highest}")
            if self.num_classes != 2:
                raise ValueError(f"num_classes must be 2 for a number, got {self.num_classes}")

    @property
    def has_characters(self) -> bool:
        """Whether an input is a text as Unicode code points, and not a vector of hashed n-grams."""
        return self.kind == "text" and float(np.max(self.value_range[1])) == MAX_CHARACTER

    @property
    def has_colors(self) -> bool:
        """Whether inputs are images with three channels: red, green and blue."""
        return self.kind == "image" and self.input_shape[-1] == 3

    @property
    def label_shape(self) -> tuple[int, ...]:
        """Shape of one record's label: `(num_classes,)` with target "labels", else `()`."""
        return (self.num_classes,) if self.target == SEVERAL_LABELS else ()

    def class_name(self, label: int) -> str:
        """Returns the name of a class, or its number if the data set has no class names."""
        return self.class_names[label] if self.class_names else str(label)

    @property
    def target_in_words(self) -> str:
        """Description of the target; empty for target "class". Digests of queries depend on it."""
        if self.target_range is not None:
            lowest, highest = self.target_range
            return f"a number from {lowest:,.12g} to {highest:,.12g}, to which others are clipped"
        if self.target == CLASS:
            return ""
        names = ", ".join(map(self.class_name, range(self.num_classes)))
        return f"which of {names} hold; of one record at most {self.max_labels} count in full"

    @property
    def model_facts(self) -> dict[str, Any]:
        """Facts about a model for its privacy statement, such as the format of its inputs."""
        schema = self.schema
        number = len(schema.columns) if schema else self.input_shape[0]
        sides = " x ".join(map(str, self.input_shape[:2]))
        inputs = {"image": f"images of {sides} pixels", "text": "texts"}
        names = map(self.class_name, range(self.num_classes))
        predicts = ""
        if self.target_range is not None:
            low, high = (f"{value:,.12g}" for value in self.target_range)
            predicts = f"A prediction is a number from {low} to {high}. Other values were clipped."
        elif self.target == SEVERAL_LABELS:
            predicts = "A record can have several labels."
            if self.max_labels < self.num_classes:
                predicts += f" Labels of records with more than {self.max_labels} had less weight."
        return {
            "inputs": inputs.get(self.kind, f"{number:,} columns"),
            "label": getattr(schema, "label", None),
            "classes": () if self.target == NUMBER else tuple(names),
            "predicts": predicts,
        }

    def require_classes(self, what: str) -> None:
        """Raises ValueError unless the target is "class". The message begins with `what`."""
        if self.target != CLASS:
            raise ValueError(
                f"{what} needs labels that are classes, but the target of {self.name} is "
                f"{self.target}. Use `pate run`, which trains a linear model for this target."
            )

    def difference(self, other: "Dataset") -> str:
        """Returns a description of the first field that differs.

        The result is empty if no field differs.
        """
        for field in dataclasses.fields(self):
            if not field.compare:
                continue
            value = getattr(self, field.name)
            expected = getattr(other, field.name)
            if value != expected:
                return f"{field.name} is {value!r}, not {expected!r}"
        return ""

    def to_dict(self) -> dict[str, Any]:
        """Returns all fields except `schema` as JSON values. `from_dict` rebuilds the object.

        Fields that later versions added are omitted if they have their default value.
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
        """Rebuilds a `Dataset` from the result of `to_dict`, also after a JSON round trip."""
        tuples = {name: tuple(fields[name]) for name in ("input_shape", "class_names")}
        tuples["value_range"] = tuple(
            tuple(values) if isinstance(values, list | tuple) else values
            for values in fields["value_range"]
        )
        if fields.get("target_range") is not None:
            tuples["target_range"] = tuple(fields["target_range"])
        return cls(**{**fields, **tuples})


def check_inputs(inputs: npt.NDArray[Any], dataset: Dataset) -> None:
    """Checks the shape of raw inputs and that all of them are finite.

    Each input is compared only with public values. The result for one input never depends on other
    inputs.

    Raises:
        ValueError: unless inputs have the shape `[num_examples, *input_shape]` and are finite in
            float32, the type that models compute in. The message contains no value.
    """
    shape(["num_examples", *dataset.input_shape], **{f"inputs of {dataset.name}": inputs})
    largest = np.finfo(np.float32).max
    if (
        inputs.dtype.kind == "f"
        and inputs.size
        and not (inputs.min() >= -largest and inputs.max() <= largest)  # NaN fails both tests
    ):
        raise ValueError(
            f"inputs of {dataset.name} must be finite. Fill in missing values record by record."
        )


def as_numbers(values: npt.ArrayLike, what: str) -> npt.NDArray[Any]:
    """Returns inputs as an array. Inputs that have a `dtype` keep it.

    A list has no `dtype`. Each number of a list is converted to float64. NumPy would instead choose
    one type that fits all numbers, which would depend on every private number.

    Raises:
        ValueError: if a list does not contain only numbers. The message begins with `what` and
            contains no value.
    """
    if hasattr(values, "dtype"):
        return np.asarray(values)
    try:
        return np.asarray(values, np.float64)
    except (OverflowError, TypeError, ValueError):  # their messages may quote values
        raise ValueError(
            f"{what} must be lists of numbers of equal length. For texts, use Data.from_dataframe."
        ) from None


def to_input_type(inputs: npt.ArrayLike, dataset: Dataset, what: str) -> npt.NDArray[Any]:
    """Converts inputs to the type that a served model takes.

    Equal numbers give equal results, for integers and for float64. Therefore the same query always
    has the same digest.

    Args:
        inputs: `[num_inputs, *input_shape]`.
        dataset: data set of the inputs, which determines the type.
        what: beginning of the message.

    Raises:
        ValueError: if inputs are not numbers, or if the conversion would change them. For example,
            a fraction, a number above 255 or NaN can't become a uint8 pixel. The message contains
            no value.
    """
    array = as_numbers(inputs, what)
    if array.dtype.kind not in "uif":
        raise ValueError(f"{what}: inputs of {dataset.name} must be numbers, got {array.dtype}")
    if dataset.input_type != "uint8" or array.dtype == np.uint8:
        if array.dtype.itemsize == 8:
            array = array.astype(np.float64, copy=False)
        return array.astype(dataset.input_type, copy=False)
    # NaN fails these comparisons, so it is not a valid pixel.
    is_pixel = (array >= 0) & (array <= 255) & (array == np.floor(array))
    if not is_pixel.all():
        raise ValueError(
            f"{what}: pixels of {dataset.name} must be whole numbers from 0 to 255. For other "
            "pixel values, use a Dataset with input_type='float32'."
        )
    return array.astype(np.uint8)


# Raw inputs of a data set. Subclasses are private or public.


@dataclasses.dataclass(frozen=True, eq=False)
class Examples:
    """Base class of `PrivateExamples`, `PublicExamples` and `Pool`: inputs of one data set."""

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
    """Returns the labels of examples as a read-only array.

    Args:
        labels: labels `[num_examples]`; with target "labels", `[num_examples, num_labels]`.
        examples: the labeled examples.
        lowest: lowest valid label. Pass `UNKNOWN` if some labels may be unknown. An unknown class
            is -1, an unknown number is NaN, and the unknown labels of an example are a row of -1.

    Returns:
        For target "class", int64 from `lowest` to `num_classes - 1`. For target "number", float64
        clipped to `target_range`. For target "labels", int64: 1 for a true label and 0 for a false
        label.

    Raises:
        ValueError: if labels have the wrong type, shape or range. The message never contains a
            label.
    """
    dataset = examples.dataset
    what = f"labels of {dataset.name}"
    if dataset.target_range is not None:
        numbers = np.asarray(labels)
        if numbers.dtype.kind not in "uif":
            raise ValueError(f"{what} must be numbers, got an array of type {numbers.dtype}")
        checked: npt.NDArray[Any] = np.clip(numbers.astype(np.float64), *dataset.target_range)
        if lowest != UNKNOWN and np.isnan(checked).any():
            raise ValueError(f"{what} must be finite, got NaN")
        checked.flags.writeable = False
    elif dataset.target == SEVERAL_LABELS:
        checked = whole_numbers(labels, what, below=2, lowest=lowest)
    else:
        checked = whole_numbers(labels, what, below=dataset.num_classes, lowest=lowest)
    if checked.shape != (len(examples), *dataset.label_shape):
        raise ValueError(f"{what} must have one entry for each input")
    return checked


def is_labeled(labels: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Returns whether each label from `checked_labels` is known, `[num_examples]`."""
    if labels.dtype.kind == "f":
        return np.asarray(~np.isnan(labels))
    return np.asarray((labels != UNKNOWN).all(axis=tuple(range(1, labels.ndim))))


def unlabeled(number: int, dataset: Dataset) -> npt.NDArray[Any]:
    """Returns `number` unknown labels in the format of `checked_labels`."""
    value = np.nan if dataset.target == NUMBER else UNKNOWN
    return np.full((number, *dataset.label_shape), value)


def target_rows(labels: npt.NDArray[np.generic], dataset: Dataset) -> npt.NDArray[np.float64]:
    """Returns each record's label as a row of `num_classes` numbers, `[num_records, num_classes]`.

    For feature sums, each record contributes the outer product of its feature vector and its target
    row. For sums of votes, a teacher contributes the target row of its prediction for each query. A
    target row has an L2 norm of at most 1 and no negative entries (docs/proofs/theory.md,
    Propositions D12 and D13).

    The row of a class is its one-hot vector. The row of a number is (1 - s, s), where s is its
    relative position in `target_range`, from 0 to 1. The row of several labels has the entry 1 /
    sqrt(max_labels) for each true label. If more than `max_labels` labels are true, this row is
    scaled to norm 1.

    Args:
        labels: SENSITIVE; known labels in the format of `checked_labels`, or the predictions of one
            teacher in the format of `Votes.labels`.
        dataset: data set that defines the target and its range.
    """
    if dataset.target_range is not None:
        lowest, highest = dataset.target_range
        fraction = np.clip((labels.astype(np.float64) - lowest) / (highest - lowest), 0.0, 1.0)
        return np.column_stack([1.0 - fraction, fraction])
    if dataset.target == SEVERAL_LABELS:
        rows = labels.astype(np.float64) / math.sqrt(dataset.max_labels)
        return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0))
    return np.asarray(np.eye(dataset.num_classes)[labels.astype(np.int64)])
