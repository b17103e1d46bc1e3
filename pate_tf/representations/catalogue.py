"""Finds representations by name, trains them and caches them.

A representation maps raw inputs to features. Teachers, queries, feature sums and label propagation
use these features. A representation is trained once on the inputs of a public pool, without labels
or private records. The trained model, called an encoder, is kept in memory. It is also stored in
`cache_folder()` under a digest of the pool and all settings. A representation can also be a user's
model or a pre-trained model (`pretrained`).
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
from pate_tf.representations import pretrained, raw
from pate_tf.representations.contrastive import ContrastivePart
from pate_tf.representations.images import GradientPart, PatchPart, WaveletPart

JOIN = "+"  # joins names of representations, to concatenate their features
VERSION = 8  # version of the training code, a part of the digest in the cache
CACHE_VARIABLE = "PATE_TF_CACHE"


@dataclasses.dataclass(frozen=True)
class Kind:
    """Describes a type of representation that has a name.

    Attributes:
        parts: function that takes a public pool and a seed, and returns the parts of an encoder.
        data_kinds: kinds of data sets that the representation supports.
        is_trained: whether the parts must be trained. Trained parts are stored in the cache.
    """

    parts: Callable[[Pool, int], Sequence[Part]]
    data_kinds: tuple[str, ...] = ("image", "tabular", "text")
    is_trained: bool = False


IMAGES = ("image",)
# These need no pool, only declared value ranges.
WITHOUT_POOL = ("bins", "coarse_bins", "cosines", "coarse_cosines", "raw", "gradients")
KINDS = {
    "contrastive": Kind(
        lambda pool, seed: [ContrastivePart(pool.dataset, seed)], IMAGES, is_trained=True
    ),
    "patches": Kind(lambda pool, seed: [PatchPart(pool, seed)], IMAGES, is_trained=True),
    "wavelets": Kind(lambda pool, seed: [WaveletPart(pool)], IMAGES, is_trained=True),
    "gradients": Kind(lambda pool, seed: [GradientPart(pool)], IMAGES),
    "raw": Kind(lambda pool, seed: [raw.RawPart(pool)]),
    "cosines": Kind(lambda pool, seed: [raw.CosinesPart(pool.dataset)], ("tabular",)),
    "coarse_cosines": Kind(
        lambda pool, seed: [raw.CosinesPart(pool.dataset, are_coarse=True)], ("tabular",)
    ),
    "bins": Kind(lambda pool, seed: [raw.BinsPart(pool)], ("tabular",)),
    "coarse_bins": Kind(lambda pool, seed: [raw.BinsPart(pool, are_coarse=True)], ("tabular",)),
    "pairs": Kind(lambda pool, seed: [raw.PairsPart(pool)], ("tabular",)),
    "lsa": Kind(lambda pool, seed: [raw.LsaPart(pool)], ("text",)),
    "fine_lsa": Kind(lambda pool, seed: [raw.LsaPart(pool, is_fine=True)], ("text",)),
}


def default_representation(dataset: Dataset) -> str:
    """Returns the name of the default representation for comparing inputs."""
    if dataset.kind == "image" and not dataset.has_colors:
        return "contrastive"
    return default_of_teachers(dataset)


def default_of_teachers(dataset: Dataset) -> str:
    """Returns the name of the default representation for teachers."""
    if dataset.kind != "image":
        return "lsa" if dataset.kind == "text" else "raw"
    return "patches+wavelets" if dataset.has_colors else "contrastive+patches"


# Few bins are better if the number of records divided by the standard deviation of the noise is
# below this value. This was measured on 5 tables with 1,000 to 10,000 private records at epsilon
# 0.1 to 3. In 29 settings below the value, few bins raise the mean area under the ROC curve by
# 0.03. In 27 settings above it, they lower this area by 0.006. The tables are the training file of
# Adult; DoctorContacts, HI and Males from the R package Ecdat; and diamonds from ggplot2.
MIN_RECORDS_OVER_NOISE = 300.0


def default_of_sums(
    dataset: Dataset,
    *,
    has_pool: bool = True,
    num_labels: int = 0,
    in_rounds: bool = False,
    records_over_noise: float = math.inf,
) -> str:
    """Returns the name of the default representation for feature sums.

    For tables, the default differs from `default_of_teachers`: a teacher has too few records for
    bins.

    Args:
        dataset: data set of the records.
        has_pool: whether there are public inputs.
        num_labels: number of public labels that are used for training.
        in_rounds: whether the sums are released in several rounds. Without second moments, features
            need not be one-hot, so a few smooth functions of each number replace its bins. All
            feature vectors have norm 1, so the mean over features of the sum of squares is the
            number of records divided by the number of features. If the noise exceeds this mean, the
            features are coarse.
        records_over_noise: number of private records divided by the standard deviation of the
            noise of a single release at the same cost; inf if the number of records is private or
            the noise is not known yet.
    """
    if not has_pool:
        bins = "coarse_bins" if records_over_noise < MIN_RECORDS_OVER_NOISE else "bins"
        if in_rounds and dataset.kind == "tabular":
            (width,) = raw.CosinesPart(dataset).widths
            return "coarse_cosines" if records_over_noise < width else "cosines"
        return {"tabular": bins, "text": "raw", "image": "gradients"}[dataset.kind]
    texts = "fine_lsa" if num_labels >= raw.FINE_DIRECTIONS else "lsa"
    return {"tabular": "bins", "text": texts}.get(dataset.kind) or default_of_teachers(dataset)


def joined_names(name: Named) -> tuple[Any, ...]:
    """Splits a name such as "a+b" into its names in `KINDS`; returns any other name unchanged."""
    names = name.split(JOIN) if isinstance(name, str) else []
    is_joined = set(names) <= set(KINDS) and len(set(names)) == len(names) > 0
    return tuple(names) if is_joined else (name,)


def is_known(name: Named) -> bool:
    """Whether `name` is in `KINDS`, or consists of such names that are joined by `+`."""
    return set(joined_names(name)) <= set(KINDS)


def check_representation(name: Named, dataset: Dataset, *, has_pool: bool = True) -> None:
    """Raises ValueError if a representation is unknown or does not fit the data set."""
    if pretrained.is_pretrained(name):
        pretrained.resolved(str(name))
        return
    close = pretrained.suggestion(name)
    got = f"got {name_of(name)!r}{close}"
    if is_named_function(name):
        if close:
            raise ValueError(f"representation must be the name of an existing encoder, {got}")
        import_function(name, flag="representation")
        return
    if not (has_pool or set(joined_names(name)) <= set(WITHOUT_POOL)):
        raise ValueError(
            f"representation must be one of {', '.join(WITHOUT_POOL)}, or a pre-trained encoder "
            f"if there are no public inputs, {got}"
        )
    if dataset.has_characters:
        raise ValueError(
            f"representation must be {pretrained.HUB}:FOLDER or module:function for texts that are "
            f"stored as characters, got {name!r}"
        )
    fitting = [each for each, kind in KINDS.items() if dataset.kind in kind.data_kinds]
    if not set(joined_names(name)) <= set(fitting):
        raise ValueError(
            f"representation must be one of {', '.join(fitting)}, some of them joined by {JOIN}, "
            f"a network of Keras Applications, {pretrained.PREFIX}:FILE, {pretrained.HUB}:FOLDER "
            f"or module:function for {dataset.kind} data, {got}"
        )


@functools.lru_cache(maxsize=4)
def encoder_of(pool: Pool, name: Named | None = None, seed: int = 0) -> Encoder:
    """Returns an encoder for a pool: trains it, or reads its weights from the cache.

    Args:
        pool: public inputs `[num_inputs, *input_shape]`.
        name: a name in `KINDS`, or several such names joined by `+`; the name of a frozen encoder,
            see `pretrained.resolved`; or a user's function, given as an object or by its name
            `module:function`. The function takes a `Dataset` and returns a Keras model that maps
            raw inputs to features `[batch, num_features]`. The model's weights must not depend on
            private records. None for the default of the data set.
        seed: seed of the training.

    Raises:
        ValueError: if the representation is unknown or does not fit the data set.
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
    if kind.is_trained:
        digest = artifacts.digest_array(pool.inputs)
        description |= {"version": VERSION, "seed": seed, "pool": digest}
        text = json.dumps(description, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:32]
        folder = cache_folder() / "representations"
        _train(parts, pool, folder / f"{dataset.name.replace('/', '-')}-{digest}.npz")
    return Encoder(dataset, parts, description)


def _train(parts: Sequence[Part], pool: Pool, path: pathlib.Path) -> None:
    """Reads the weights of parts from a cached file, or trains the parts and writes the file."""
    variables = [variable for part in parts for variable in part.learnt]
    names = [str(place) for place in range(len(variables))]
    with contextlib.suppress(OSError, ValueError):  # a broken file is ignored
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
    """Writes an encoder's description and weights to a `.npz` file, which contains no code.

    Raises:
        ValueError: if the encoder is a user's function or file. In this case, copy the user's file
            to the silos.
    """
    _described_kinds(encoder.description)
    arrays = {str(place): variable.numpy() for place, variable in enumerate(encoder.learnt)}
    description = np.frombuffer(encoder.description.encode(), np.uint8)
    artifacts.write_arrays(path, {"description": description, **arrays})


def load_encoder(path: pathlib.Path, dataset: Dataset) -> Encoder:
    """Loads an encoder that `save_encoder` wrote. Its digest is unchanged.

    Raises:
        ValueError: if the file contains no encoder for inputs of the data set.
        OSError: if the file can't be read.
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
            raise ValueError("the file contains too many arrays")
        return Encoder(dataset, parts, description)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"{path} has no encoder for inputs of {dataset.name}") from error


def _described_kinds(description: Any) -> list[Kind]:
    """Returns the `Kind` objects in an encoder's description. Unknown names are errors."""
    fields = json.loads(description) if isinstance(description, str) else description
    if "joined" in fields:
        return [kind for each in fields["joined"] for kind in _described_kinds(each)]
    if fields.get("representation") not in KINDS:
        raise ValueError(
            f"representation must be one of {', '.join(KINDS)}: any other is stored with code"
        )
    return [KINDS[fields["representation"]]]


def cache_folder() -> pathlib.Path:
    """Returns the cache folder of trained representations.

    The folder is `$PATE_TF_CACHE` if this variable is set, else `pate_tf` in `$XDG_CACHE_HOME` or
    in ~/.cache. The files are public. If they are deleted, training creates them again.
    """
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(os.environ.get(CACHE_VARIABLE) or pathlib.Path(base) / "pate_tf")


@functools.lru_cache(maxsize=2)  # the choice of queries and label inference use the same features
def pool_features_by_name(
    pool: Pool, name: Named | None = None, seed: int = 0
) -> tuple[tuple[npt.NDArray[np.float32], ...], ...]:
    """Returns features of a pool: for each name that is joined by `+`, a tuple of views."""
    name = default_representation(pool.dataset) if name is None else name
    encoder = encoder_of(pool, name, seed)
    views = iter(encoder.views(encoder.features(pool.inputs)))
    numbers = [encoder_of(pool, each, seed).num_views for each in joined_names(name)]
    return tuple(tuple(itertools.islice(views, number)) for number in numbers)


class Representation:
    """Public: maps inputs to features. It is trained on a public pool, or is a user's model.

    Pass a representation as `representation=` to teachers, feature sums and labellers. The features
    of an input depend only on this input and on public values, never on private records. If you
    pass your own model, you must guarantee this yourself. The privacy statement then contains a
    remark about it.

    >>> import pate_tf
    >>> data = pate_tf.Data.load("digits")
    >>> features = pate_tf.Representation("raw").fit(data.pool).transform(data.pool.inputs[:5])
    >>> len(features)
    5

    Attributes:
        source: name of the representation, as in settings, flags and run folders; or a function.
        encoder_: the encoder from raw inputs to features, after `fit`.
    """

    def __init__(self, source: "Named | keras.Model | None" = None, *, seed: int = 0) -> None:
        """Initializes the representation from a name, a function or a model.

        Args:
            source: a name from the list below, a Keras model that maps raw inputs to features, or a
                function (or its name `module:function`) that takes a `Dataset` and returns such a
                model. Default: "contrastive" for gray images, "patches+wavelets" for color images,
                "raw" for tables and "lsa" for texts.
            seed: seed of the training.

        These are the names. Several names of the first two groups can be joined by "+":

        - for images, "contrastive" or "patches", which are trained on the pool; "wavelets", whose
          scale is computed from the pool; or "gradients", which are oriented gradients from fixed
          filters;
        - "raw" for scaled numbers and one-hot categories; for tables also "bins" for the features
          of "raw" and the bin of each number, "coarse_bins" for fewer bins, or "pairs" for products
          of any two numbers or categories; for texts also "lsa" (latent semantic analysis)
          or "fine_lsa" (with more directions);
        - a network of Keras Applications, such as "EfficientNetV2B0". "@128" after the name sets
          the side of its images, and ":FILE" at the end names the file of its weights;
        - "encoder:FILE" for a `.keras` file, or "hub:PRESET" or "hub:FOLDER" for a model of
          keras-hub.

        Raises:
            ValueError: if a file does not exist.
        """
        self.source = source_of(source)
        self.seed = seed

    def __repr__(self) -> str:
        return f"Representation({'' if self.source is None else name_of(self.source)!r})"

    def fit(self, pool: Pool) -> Self:
        """Trains the representation on the pool, or reads it from the cache.

        Returns:
            This object.

        Raises:
            ValueError: if the representation does not fit the data set of the pool.
            TrainingDivergedError: if a loss or weight became NaN or infinite.
        """
        self.encoder_ = encoder_of(pool, self.source, self.seed)
        return self

    def transform(self, inputs: "npt.NDArray[Any] | Pool") -> npt.NDArray[np.float32]:
        """Maps raw inputs `[num_inputs, *input_shape]` to features `[num_inputs, num_features]`.

        Raises:
            ValueError: if `fit` was not called, or if inputs have a wrong shape or are not finite.
        """
        if not hasattr(self, "encoder_"):
            raise ValueError("representation is not fitted: call fit(pool) before transform")
        return self.encoder_.features(np.asarray(getattr(inputs, "inputs", inputs)))


def source_of(representation: "Named | keras.Model | Representation | None") -> Named | None:
    """Returns a representation as its name, with an absolute path, or as a function."""
    if isinstance(representation, Representation):
        return representation.source
    if isinstance(representation, keras.Model):

        def build(_: Dataset) -> keras.Model:
            return representation

        build.__name__ = representation.name
        return build
    if representation is not None and pretrained.is_pretrained(representation):
        return pretrained.resolved(str(representation))
    return representation
