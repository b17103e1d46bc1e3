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
import importlib
import json
import os
import pathlib
import pkgutil
import shutil
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Self

import keras
import numpy as np
import numpy.typing as npt

import pate_tf.representations
from pate_tf.core import artifacts
from pate_tf.core.dataset import Dataset
from pate_tf.core.public import Pool
from pate_tf.data.named_function import Named, import_function, is_named_function, name_of
from pate_tf.models.definition import model_definition
from pate_tf.models.encoder import Encoder, Part
from pate_tf.representations import KINDS, Kind, Progress, hidden, pretrained

for _module in pkgutil.iter_modules(pate_tf.representations.__path__, "pate_tf.representations."):
    importlib.import_module(_module.name)

BINS, LSA, RAW = "bins", "lsa", "raw"
CONTRASTIVE, PATCHES, WAVELETS = "contrastive", "patches", "wavelets"
JOIN = "+"  # between names whose features lie side by side
VERSION = 3  # of the rules by which a pool becomes a representation
CACHE_VARIABLE = "PATE_TF_CACHE"


def default_representation(dataset: Dataset) -> str:
    """The name of the representation that inputs are compared by, where none is named."""
    if dataset.kind == "image" and not dataset.has_colours:
        return CONTRASTIVE
    return default_of_teachers(dataset)


def default_of_teachers(dataset: Dataset) -> str:
    """The name of the representation that teachers learn from, where none is named."""
    if dataset.kind != "image":
        return LSA if dataset.kind == "text" else RAW
    return JOIN.join((PATCHES, WAVELETS) if dataset.has_colours else (CONTRASTIVE, PATCHES))


def default_of_sums(dataset: Dataset) -> str:
    """The name of the representation that feature sums are of, where none is named.

    A teacher has too few records of a table for bins.
    """
    return BINS if dataset.kind == "tabular" else default_of_teachers(dataset)


def is_of_images(name: Named) -> bool:
    """Whether all that a representation is joined from needs images."""
    kinds = [KINDS.get(str(each)) for each in joined_names(name)]
    return all(kind is not None and kind.data_kinds == ("image",) for kind in kinds)


def joined_names(name: Named) -> tuple[Named, ...]:
    """Returns the names of `KINDS` that a representation is joined from; any other name alone."""
    joined = name.split(JOIN) if isinstance(name, str) else []
    is_known = set(joined) <= set(KINDS) and len(set(joined)) == len(joined) > 0
    return tuple(joined) if is_known else (name,)


def is_known(name: Named) -> bool:
    """Whether it is a name of `KINDS`, or several of them joined by `+`."""
    return set(joined_names(name)) <= set(KINDS)


def check_representation(name: Named, dataset: Dataset) -> None:
    """Raises ValueError if there is no such representation, or it does not fit the data set."""
    if pretrained.is_from_disk(name):
        pretrained.find(str(name))
        return
    if is_named_function(name):
        import_function(name, flag="representation")
        return
    if not is_known(name):
        raise ValueError(
            f"representation: expected one of {', '.join(sorted(KINDS))}, some of them joined as "
            f"in {PATCHES}{JOIN}{WAVELETS}, {pretrained.FORMS} or module:function, got {name!r}"
        )
    fitting = [kind.name for kind in KINDS.values() if dataset.kind in kind.data_kinds]
    if not set(joined_names(name)) <= set(fitting):
        raise ValueError(
            f"representation: expected {', '.join(fitting)}, {pretrained.FORMS} or module:function "
            f"for {dataset.kind} data, got {name}"
        )


def encoder_of(
    pool: Pool, name: Named | None = None, seed: int = 0, *, progress: Progress = hidden
) -> Encoder:
    """Returns a pool's representation: trains it, or takes it from the cache.

    Args:
        pool: public inputs `[num_inputs, *input_shape]`.
        name: a name of `KINDS`, several of them joined by `+`; `encoder:PATH` and
            `encoder:NAME:PATH`, as of `pretrained.find`; or a function of the user's own, itself or
            as `module:function`, which takes a `Dataset` and returns a Keras model from raw inputs
            to features `[batch, num_features]`, none of whose weights depends on private records.
            None for the data set's default.
        seed: of what is trained.
        progress: how training is shown, if it is trained.

    Raises:
        ValueError: if there is no such representation, or it does not fit the data set.
        TrainingDivergedError: if a loss or weight became NaN or infinite.
    """
    name = default_representation(pool.dataset) if name is None else name
    return _encoder_of(pool, name, seed, _Shown(progress))


@dataclasses.dataclass(frozen=True)
class _Shown:
    """How training is shown. All are equal, so that memory does not tell them apart."""

    progress: Progress = dataclasses.field(compare=False)


@functools.lru_cache(maxsize=4)
def _encoder_of(pool: Pool, name: Named, seed: int, shown: _Shown) -> Encoder:
    dataset = pool.dataset
    check_representation(name, dataset)
    if is_named_function(name):
        return pretrained.encoder(name, dataset)
    names = joined_names(name)
    if len(names) > 1:
        encoders = [_encoder_of(pool, each, seed, shown) for each in names]
        return Encoder(
            dataset,
            [part for encoder in encoders for part in encoder.parts],
            {"joined": [encoder.description for encoder in encoders]},
        )
    kind = KINDS[str(name)]
    parts = kind.parts(pool, seed)
    public = ("kind", "input_shape", "value_range", "augmentation", "num_categories")
    public_fields = {field: dataclasses.asdict(dataset)[field] for field in public}
    if kind.train is None:
        return Encoder(dataset, parts, {"representation": kind.name, **public_fields})
    description = {
        "representation": kind.name,
        "version": VERSION,
        "seed": seed,
        "pool": artifacts.digest_array(pool.inputs),
        **public_fields,
        **kind.settings(dataset),
    }
    path = _cached(description, dataset)
    if path is None:
        warnings.warn(
            f"representation: expected a cache folder that can be written, got {cache_folder()}; "
            f"the representation is trained again next time",
            stacklevel=2,
        )
        kind.train(parts, pool, seed, folder=None, progress=shown.progress)
    elif not _read(path, parts):
        unfinished = path.with_suffix(".unfinished")
        with artifacts.only_writer(unfinished, waits=True):
            # Another process may have trained it meanwhile.
            if not _read(path, parts):
                kind.train(parts, pool, seed, folder=unfinished, progress=shown.progress)
                weights = enumerate(variable for part in parts for variable in part.learnt)
                arrays = {str(place): np.asarray(variable) for place, variable in weights}
                artifacts.write_arrays(path, arrays)
            shutil.rmtree(unfinished, ignore_errors=True)
    return Encoder(dataset, parts, description)


def save_encoder(encoder: Encoder, path: pathlib.Path) -> None:
    """Writes a trained encoder as data: its description and weights, `.npz`; no code.

    Raises:
        ValueError: if it was made by a function or from a file of the user's own, which silos have
            to get as such.
    """
    _described_parts(encoder.description)
    arrays = {str(place): variable.numpy() for place, variable in enumerate(encoder.learnt)}
    description = np.frombuffer(encoder.description.encode(), np.uint8)
    artifacts.write_arrays(path, {"description": description, **arrays})


def load_encoder(path: pathlib.Path, dataset: Dataset) -> Encoder:
    """Returns the encoder of `save_encoder`, for inputs of a data set; it has the same digest.

    Raises:
        ValueError: if the file holds no encoder of such inputs.
        OSError: if it can't be read.
    """
    arrays = artifacts.read_arrays(path)
    refused = f"{path}: expected the encoder of inputs of {dataset.name}, got something else"
    try:
        description = json.loads(arrays["description"].tobytes())
        inputs = np.zeros((1, *dataset.input_shape), dataset.input_type)
        pool = Pool(dataset=dataset, inputs=inputs)
        parts = [part for kind in _described_parts(description) for part in kind.parts(pool, 0)]
        values = [arrays[str(place)] for place in range(len(arrays) - 1)]
        for part in parts:
            number = len(part.learnt)
            part.take(values[:number])
            values = values[number:]
        encoder = Encoder(dataset, parts, description)
        if values:
            raise ValueError("expected the arrays of its parts alone, got more")
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(refused) from error
    return encoder


def _described_parts(description: Any) -> list[Kind]:
    """Returns the kinds that an encoder's description names; ValueError if one is unknown."""
    fields = json.loads(description) if isinstance(description, str) else description
    if "joined" in fields:
        return [kind for each in fields["joined"] for kind in _described_parts(each)]
    if fields.get("representation") not in KINDS:
        raise ValueError(
            f"representation: expected one of {', '.join(sorted(KINDS))}, got one that can't be "
            "written as weights alone"
        )
    return [KINDS[fields["representation"]]]


def cache_folder() -> pathlib.Path:
    """Where trained representations are stored: `$PATE_TF_CACHE`, else `pate_tf` in the cache.

    All that lies there is public, and can be trained again.
    """
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(os.environ.get(CACHE_VARIABLE) or pathlib.Path(base) / "pate_tf")


def _cached(description: Mapping[str, Any], dataset: Dataset) -> pathlib.Path | None:
    """Returns the file of a representation, there or not; None where none can be written."""
    folder = cache_folder() / "representations"
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        return None
    described: list[Any] = [description]
    if "network" in description:
        described.append(model_definition(description["network"], dataset))
    text = json.dumps(described, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:32]
    return folder / f"{dataset.name.replace('/', '-')}-{digest}.npz"


def _read(path: pathlib.Path, parts: Sequence[Part]) -> bool:
    """Reads parts' weights; False where there are none, or not all are there and finite."""
    variables = [variable for part in parts for variable in part.learnt]
    names = [str(place) for place in range(len(variables))]
    try:
        arrays = artifacts.read_arrays(path, names)
    except (FileNotFoundError, ValueError):  # a broken file of a cache is no reason to stop
        return False
    pairs = list(zip(variables, (arrays[name] for name in names), strict=True))
    is_whole = all(
        array.shape == tuple(variable.shape) and np.isfinite(array).all()
        for variable, array in pairs
    )
    for variable, array in pairs if is_whole else ():
        variable.assign(array)
    return is_whole


def pool_features(
    pool: Pool, name: Named | None = None, seed: int = 0
) -> tuple[npt.NDArray[np.float32], ...]:
    """Returns views of the pool: features `[num_inputs, width]`, as `encoder_of` has them."""
    return tuple(view for views in pool_features_by_name(pool, name, seed) for view in views)


def pool_features_by_name(
    pool: Pool, name: Named | None = None, seed: int = 0
) -> tuple[tuple[npt.NDArray[np.float32], ...], ...]:
    """Returns views of the pool, those of each name apart that a representation is joined from."""
    name = default_representation(pool.dataset) if name is None else name
    return tuple(_pool_features(pool, each, seed) for each in joined_names(name))


@functools.lru_cache(maxsize=2)  # choosing queries and inferring labels ask for the same ones
def _pool_features(pool: Pool, name: Named, seed: int) -> tuple[npt.NDArray[np.float32], ...]:
    encoder = encoder_of(pool, name, seed)
    return encoder.views(encoder.features(pool.inputs))


def doubts(
    pool: Pool,
    representation: Named | None = None,
    seed: int = 0,
    *,
    progress: Progress = hidden,
) -> str | None:
    """Says in one line why a pool's representation should not be relied on; None if nothing does.

    Asked of public inputs alone, before anything is charged. A user's own is not doubted.
    """
    name = default_representation(pool.dataset) if representation is None else representation
    for each in joined_names(name):
        kind = KINDS.get(each) if isinstance(each, str) else None
        if kind is None:
            continue
        reason = kind.doubts(encoder_of(pool, each, seed, progress=progress), pool)
        if reason is not None:
            return f"representation {name_of(name)} of {pool.dataset.name}: {reason}"
    return None


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
                scaled by the pool; "raw", scaled numbers and one-hot categories; "bins" of tables,
                these and in which of its bins each number lies; several joined by "+"; a Keras
                model from raw inputs to features, or a function from a `Dataset` to one, itself or
                as `module:function`.
                None for "contrastive" of grey images, "patches+wavelets" of colour ones, "raw" of
                tables, "lsa" of texts.
            seed: of what is trained.
        """
        self.source = pretrained.function_of(source) if isinstance(source, keras.Model) else source
        self.seed = seed

    @classmethod
    def from_file(
        cls, path: "str | os.PathLike[str]", *, application: str | None = None
    ) -> "Representation":
        """Takes an encoder from disk; see `pretrained.find`.

        Args:
            path: a `.keras` file, the folder of a SavedModel, or a file of weights for
                `application`.
            application: a class of `keras.applications` whose weights these are, such as
                "MobileNetV2", without its last layer.

        Raises:
            ValueError: if there is none at `path`.
        """
        where = os.path.abspath(path)
        name = pretrained.PREFIX + (where if application is None else f"{application}:{where}")
        pretrained.find(name)
        return cls(name)

    def __repr__(self) -> str:
        return f"Representation({'' if self.source is None else name_of(self.source)!r})"

    def fit(self, pool: Pool, *, progress: Progress = hidden) -> Self:
        """Trains what is trained on the pool, or takes it from the cache, and returns itself.

        Args:
            pool: public inputs.
            progress: how training is shown: from a total and a unit to a context that gives a
                function to call with how many more are done. Default: not at all.

        Raises:
            ValueError: if it does not fit the pool's data set.
            TrainingDivergedError: if a loss or weight became NaN or infinite.
        """
        self.encoder_ = encoder_of(pool, self.source, self.seed, progress=progress)
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
        return pretrained.function_of(representation)
    return None if representation is None else pretrained.with_absolute_path(representation)
