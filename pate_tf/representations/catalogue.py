"""Representations by name: features of a public pool's inputs, by which inputs are compared.

Teachers, queries, feature sums and label propagation take features from here. A representation is
trained on the inputs of a public pool, without a label and without a private record, once: a
process keeps it in memory, and it is stored below `cache_folder()` under a digest of the pool and
of all settings. Or it is a model that a person brings (`pretrained`).
"""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import math
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, Self

import keras
import numpy as np
import numpy.typing as npt

from pate_tf.core import artifacts
from pate_tf.core.dataset import Dataset
from pate_tf.core.public import Pool
from pate_tf.data.named_function import Named, import_function, is_named_function, name_of
from pate_tf.models.encoder import Encoder, Part
from pate_tf.representations import pretrained
from pate_tf.representations.contrastive import ContrastivePart
from pate_tf.representations.images import GradientPart, PatchPart, WaveletPart
from pate_tf.representations.raw import BinsPart, LsaPart, PairsPart, RawPart

JOIN = "+"  # between names whose features lie side by side
VERSION = 6  # of the rules by which a pool becomes a representation
NGRAMS_VERSION = 2  # of the rules by which a text becomes n-grams
CACHE_VARIABLE = "PATE_TF_CACHE"


@dataclasses.dataclass(frozen=True)
class Kind:
    """One way to get features of inputs from a public pool.

    Attributes:
        parts: from pool and seed to the encoder's parts.
        data_kinds: of data sets that it is for.
        is_trained: whether parts are yet to be trained, and stored in the cache then.
    """

    parts: Callable[[Pool, int], Sequence[Part]]
    data_kinds: tuple[str, ...] = ("image", "tabular", "text")
    is_trained: bool = False


IMAGES = ("image",)
WITHOUT_POOL = ("bins", "coarse_bins", "raw", "gradients")  # that declared ranges suffice for
KINDS = {
    "contrastive": Kind(
        lambda pool, seed: [ContrastivePart(pool.dataset, seed)], IMAGES, is_trained=True
    ),
    "patches": Kind(lambda pool, seed: [PatchPart(pool, seed)], IMAGES, is_trained=True),
    "wavelets": Kind(lambda pool, seed: [WaveletPart(pool)], IMAGES, is_trained=True),
    "gradients": Kind(lambda pool, seed: [GradientPart(pool)], IMAGES),
    "raw": Kind(lambda pool, seed: [RawPart(pool)]),
    "bins": Kind(lambda pool, seed: [BinsPart(pool)], ("tabular",)),
    "coarse_bins": Kind(lambda pool, seed: [BinsPart(pool, are_coarse=True)], ("tabular",)),
    "pairs": Kind(lambda pool, seed: [PairsPart(pool)], ("tabular",)),
    "lsa": Kind(lambda pool, seed: [LsaPart(pool)], ("text",)),
}


def default_representation(dataset: Dataset) -> str:
    """The name of the representation that inputs are compared by, where none is named."""
    if dataset.kind == "image" and not dataset.has_colors:
        return "contrastive"
    return default_of_teachers(dataset)


def default_of_teachers(dataset: Dataset) -> str:
    """The name of the representation that teachers learn from, where none is named."""
    if dataset.kind != "image":
        return "lsa" if dataset.kind == "text" else "raw"
    return "patches+wavelets" if dataset.has_colors else "contrastive+patches"


# Records over the standard deviation of the noise, below which few bins are better. In 29 cells of
# 5 tables (1,000 to 10,000 private records, epsilon .1 to 3) below it, the area under the curve
# rises by .03 in the mean; in 27 cells above it it falls by .006. The tables: Adult's training
# file; of R's packages DoctorContacts, HI and Males of Ecdat, and diamonds of ggplot2.
MIN_RECORDS_OVER_NOISE = 300.0


def default_of_sums(
    dataset: Dataset, *, has_pool: bool = True, records_over_noise: float = math.inf
) -> str:
    """The name of the representation that feature sums are of, where none is named.

    A teacher has too few records of a table for bins.

    Args:
        dataset: says what inputs are.
        has_pool: whether there are public inputs.
        records_over_noise: private records over the standard deviation of the noise; where it is
            not public or not known yet, infinity.
    """
    if not has_pool:
        bins = "coarse_bins" if records_over_noise < MIN_RECORDS_OVER_NOISE else "bins"
        return {"tabular": bins, "text": "raw", "image": "gradients"}[dataset.kind]
    return "bins" if dataset.kind == "tabular" else default_of_teachers(dataset)


def joined_names(name: Named) -> tuple[Any, ...]:
    """Returns the names of `KINDS` that a representation is joined from; any other name alone."""
    names = name.split(JOIN) if isinstance(name, str) else []
    is_joined = set(names) <= set(KINDS) and len(set(names)) == len(names) > 0
    return tuple(names) if is_joined else (name,)


def is_known(name: Named) -> bool:
    """Whether it is a name of `KINDS`, or several of them joined by `+`."""
    return set(joined_names(name)) <= set(KINDS)


def check_representation(name: Named, dataset: Dataset, *, has_pool: bool = True) -> None:
    """Raises ValueError if there is no such representation, or it does not fit the data set."""
    if pretrained.is_pretrained(name):
        pretrained.resolved(str(name))
        return
    close = pretrained.suggestion(name)
    got = f"got {name_of(name)!r}{close}"
    if is_named_function(name):
        if close:
            raise ValueError(f"representation: expected an encoder, {got}")
        import_function(name, flag="representation")
        return
    if not (has_pool or name in WITHOUT_POOL):
        raise ValueError(
            f"representation: expected {', '.join(WITHOUT_POOL)} or a pre-trained encoder without "
            f"public inputs, {got}"
        )
    if dataset.has_characters:
        raise ValueError(
            f"representation: expected {pretrained.HUB}:FOLDER or module:function for texts that "
            f"are kept as characters, got {name!r}"
        )
    fitting = [each for each, kind in KINDS.items() if dataset.kind in kind.data_kinds]
    if not set(joined_names(name)) <= set(fitting):
        raise ValueError(
            f"representation: expected one of {', '.join(fitting)}, some of them joined by {JOIN}, "
            f"a network of Keras Applications, {pretrained.PREFIX}:FILE, {pretrained.HUB}:FOLDER "
            f"or module:function for {dataset.kind} data, {got}"
        )


@functools.lru_cache(maxsize=4)
def encoder_of(pool: Pool, name: Named | None = None, seed: int = 0) -> Encoder:
    """Returns a pool's representation: trains it, or takes it from the cache.

    Args:
        pool: public inputs `[num_inputs, *input_shape]`.
        name: a name of `KINDS`, several of them joined by `+`; a frozen encoder's, as of
            `pretrained.resolved`; or a function of the user's own, itself or as `module:function`,
            which takes a `Dataset` and returns a Keras model from raw inputs to features `[batch,
            num_features]`, none of whose weights depends on private records. None for the data
            set's default.
        seed: of what is trained.

    Raises:
        ValueError: if there is no such representation, or it does not fit the data set.
        TrainingDivergedError: if a loss or weight became NaN or infinite.
    """
    dataset = pool.dataset
    name = default_representation(dataset) if name is None else name
    check_representation(name, dataset)
    if is_named_function(name) or pretrained.is_pretrained(name):
        return pretrained.encoder(name, pool)
    names = joined_names(name)
    if len(names) > 1:
        encoders = [encoder_of(pool, each, seed) for each in names]
        parts = [part for encoder in encoders for part in encoder.parts]
        return Encoder(dataset, parts, {"joined": [each.description for each in encoders]})
    kind = KINDS[names[0]]
    parts = list(kind.parts(pool, seed))
    public = ("kind", "input_shape", "value_range", "augmentation")
    fields = {field: dataclasses.asdict(dataset)[field] for field in public}
    description = {"representation": names[0], **fields}
    if dataset.kind == "text":  # features of the same name that version 1 hashed in another way
        description["ngrams"] = NGRAMS_VERSION
    if kind.is_trained:
        digest = artifacts.digest_array(pool.inputs)
        description |= {"version": VERSION, "seed": seed, "pool": digest}
        text = json.dumps(description, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:32]
        folder = cache_folder() / "representations"
        _train(parts, pool, folder / f"{dataset.name.replace('/', '-')}-{digest}.npz")
    return Encoder(dataset, parts, description)


def _train(parts: Sequence[Part], pool: Pool, path: pathlib.Path) -> None:
    """Trains parts, or reads their weights from a file of the cache."""
    variables = [variable for part in parts for variable in part.learnt]
    names = [str(place) for place in range(len(variables))]
    with contextlib.suppress(OSError, ValueError):  # a broken cache is no reason to stop
        arrays = artifacts.read_arrays(path, names)
        values = [arrays[name] for name in names]
        shapes = [tuple(variable.shape) for variable in variables]
        is_whole = all(np.isfinite(value).all() for value in values)
        if is_whole and [value.shape for value in values] == shapes:
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)
            return
    for part in parts:
        part.train(pool)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        values = [np.asarray(variable) for variable in variables]
        artifacts.write_arrays(path, dict(zip(names, values, strict=True)))


def save_encoder(encoder: Encoder, path: pathlib.Path) -> None:
    """Writes a trained encoder as data: its description and weights, `.npz`; no code.

    Raises:
        ValueError: if it was made by a function or from a file of the user's own, which silos have
            to get as such.
    """
    _described_kinds(encoder.description)
    arrays = {str(place): variable.numpy() for place, variable in enumerate(encoder.learnt)}
    description = np.frombuffer(encoder.description.encode(), np.uint8)
    artifacts.write_arrays(path, {"description": description, **arrays})


def load_encoder(path: pathlib.Path, dataset: Dataset) -> Encoder:
    """Returns the encoder of `save_encoder`, for inputs of a data set; it has the same digest.

    Raises:
        ValueError: if the file holds no encoder of such inputs.
        OSError: if it can't be read.
    """
    arrays = artifacts.read_arrays(path, is_exact=True)
    try:
        description = json.loads(arrays["description"].tobytes())
        inputs = np.zeros((1, *dataset.input_shape), dataset.input_type)
        pool = Pool(dataset=dataset, inputs=inputs)
        parts = [part for kind in _described_kinds(description) for part in kind.parts(pool, 0)]
        values = [arrays[str(place)] for place in range(len(arrays) - 1)]
        for part in parts:
            number = len(part.learnt)
            part.take(values[:number])
            values = values[number:]
        if values:
            raise ValueError("expected the arrays of its parts alone, got more")
        return Encoder(dataset, parts, description)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path}: expected the encoder of inputs of {dataset.name}, got something else"
        ) from error


def _described_kinds(description: Any) -> list[Kind]:
    """Returns the kinds that an encoder's description names; ValueError if one is unknown."""
    fields = json.loads(description) if isinstance(description, str) else description
    if "joined" in fields:
        return [kind for each in fields["joined"] for kind in _described_kinds(each)]
    if fields.get("representation") not in KINDS:
        raise ValueError(
            f"representation: expected one of {', '.join(KINDS)}, got one that can't be written as "
            f"weights alone"
        )
    return [KINDS[fields["representation"]]]


def cache_folder() -> pathlib.Path:
    """Where trained representations are stored: `$PATE_TF_CACHE`, else `pate_tf` in the cache.

    All that lies there is public, and can be trained again.
    """
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(os.environ.get(CACHE_VARIABLE) or pathlib.Path(base) / "pate_tf")


@functools.lru_cache(maxsize=2)  # choosing queries and inferring labels ask for the same ones
def pool_features_by_name(
    pool: Pool, name: Named | None = None, seed: int = 0
) -> tuple[tuple[npt.NDArray[np.float32], ...], ...]:
    """Returns views of the pool, those of each name apart that a representation is joined from."""
    name = default_representation(pool.dataset) if name is None else name
    encoder = encoder_of(pool, name, seed)
    views = iter(encoder.views(encoder.features(pool.inputs)))
    numbers = [encoder_of(pool, each, seed).num_views for each in joined_names(name)]
    return tuple(tuple(itertools.islice(views, number)) for number in numbers)


class Representation:
    """Public: features of inputs, from a public pool or from a model that you bring.

    Teachers, feature sums and labellers take one as `representation=`. Features depend on one input
    and on public values alone, never on private records: of a model of your own you vouch for that,
    and the privacy statement says so.

    >>> import pate_tf
    >>> data = pate_tf.Data.load("digits")
    >>> features = pate_tf.Representation("raw").fit(data.pool).transform(data.pool.inputs[:5])
    >>> len(features)
    5

    Attributes:
        source: what settings, flags and run folders call it: a name, or a function.
        encoder_: after `fit`, what maps raw inputs to features.
    """

    def __init__(self, source: "Named | keras.Model | None" = None, *, seed: int = 0) -> None:
        """Takes a name, a function or a model.

        Args:
            source: "contrastive" or "patches", trained on images of the pool; "wavelets" of images,
                scaled by the pool; "gradients" of images, oriented, by fixed filters; "raw",
                scaled numbers and one-hot categories; "bins" of tables, these and in which of its
                bins each number lies; "coarse_bins", the same with few bins; "pairs" of tables,
                products of any two of these; several joined by "+"; a network of Keras
                Applications, such as "EfficientNetV2B0", with ":FILE" for its weights and "@128"
                before that for a side of its images; "encoder:FILE" for a `.keras` file;
                "hub:PRESET" or "hub:FOLDER" for what keras-hub reads; a Keras
                model from raw inputs to features, or a function from a `Dataset` to one, itself or
                as `module:function`.
                None for "contrastive" of gray images, "patches+wavelets" of color ones, "raw" of
                tables, "lsa" of texts.
            seed: of what is trained.

        Raises:
            ValueError: if there is no file at PATH.
        """
        self.source = source_of(source)
        self.seed = seed

    def __repr__(self) -> str:
        return f"Representation({'' if self.source is None else name_of(self.source)!r})"

    def fit(self, pool: Pool) -> Self:
        """Trains what is trained on the pool, or takes it from the cache, and returns itself.

        Raises:
            ValueError: if it does not fit the pool's data set.
            TrainingDivergedError: if a loss or weight became NaN or infinite.
        """
        self.encoder_ = encoder_of(pool, self.source, self.seed)
        return self

    def transform(self, inputs: "npt.NDArray[Any] | Pool") -> npt.NDArray[np.float32]:
        """Returns features `[num_inputs, num_features]` of raw inputs `[num_inputs, *input_shape]`.

        Raises:
            ValueError: before `fit`, or if inputs have another shape or are not finite.
        """
        if not hasattr(self, "encoder_"):
            raise ValueError("representation: expected fit(pool) before transform, got none")
        return self.encoder_.features(np.asarray(getattr(inputs, "inputs", inputs)))


def source_of(representation: "Named | keras.Model | Representation | None") -> Named | None:
    """Returns what settings call a representation that a person gave, with an absolute path."""
    if isinstance(representation, Representation):
        return representation.source
    if isinstance(representation, keras.Model):

        def build(dataset: Dataset) -> keras.Model:
            del dataset
            return representation

        build.__name__ = representation.name
        return build
    if representation is not None and pretrained.is_pretrained(representation):
        return pretrained.resolved(str(representation))
    return representation
