"""Representations by name: what a public pool says of how its inputs are alike.

Teachers, queries, students and spreading take features from here. A representation is learnt from
the inputs of a public pool, without a label and without a private record, once: in a process it is
kept in memory, on disk below `cache_folder()` under a digest of the pool and of all settings.
"""

import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import shutil
import warnings
from contextlib import nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt

from pate_tf import artifacts
from pate_tf.data.named_function import Named, import_function, is_named_function, name_of
from pate_tf.models import catalogue as models
from pate_tf.models import fingerprint
from pate_tf.models.encoder import Encoder
from pate_tf.representations import contrastive, own_encoder, raw
from pate_tf.values.dataset import Dataset
from pate_tf.values.public import Pool

CONTRASTIVE, RAW = "contrastive", "raw"
NAMES = (CONTRASTIVE, RAW)
VERSION = 2  # of the rules by which a pool becomes a representation
CACHE_VARIABLE = "PATE_TF_CACHE"


def default_representation(dataset: Dataset) -> str:
    """The name of the representation used where the user names none."""
    return CONTRASTIVE if dataset.kind == "image" else RAW


def check_representation(name: Named, dataset: Dataset) -> None:
    """Checks a name before anything is learnt.

    Raises:
      ValueError: if there is no such representation, or it does not fit the data set.
    """
    if is_named_function(name):
        import_function(name, flag="representation")
    elif name not in NAMES:
        raise ValueError(
            f"representation: expected one of {', '.join(NAMES)} or module:function, got {name!r}"
        )
    elif name == CONTRASTIVE and dataset.kind != "image":
        raise ValueError(
            f"representation: expected raw or module:function for {dataset.kind} data, got {name}"
        )


def cache_folder() -> pathlib.Path:
    """Where learnt representations are kept: `$PATE_TF_CACHE`, else `pate_tf` in the user's cache.

    All that lies there is public, and can be learnt again.
    """
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return pathlib.Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (pathlib.Path(base) if base else pathlib.Path.home() / ".cache") / "pate_tf"


@functools.lru_cache(maxsize=2)
def encoder_of(
    pool: Pool, name: Named | None = None, seed: int = 0, *, show_progress: bool = False
) -> Encoder:
    """Returns a pool's representation: learns it, or takes up what was learnt before.

    Args:
      pool: public inputs `[num_inputs, *input_shape]`.
      name: of `NAMES`, or a function of the user's own, itself or as `module:function`, which takes
        a `Dataset` and returns a Keras model from raw inputs to features `[batch, num_features]`,
        none of whose weights depends on private records. None for the data set's default.
      seed: of what is learnt.
      show_progress: whether progress bars are drawn.

    Raises:
      ValueError: if there is no such representation, or it does not fit the data set.
      TrainingDivergedError: if a loss or weight became NaN or infinite.
    """
    dataset = pool.dataset
    name = default_representation(dataset) if name is None else name
    check_representation(name, dataset)
    if is_named_function(name):
        part = own_encoder.OwnPart(name, dataset)
        return Encoder(dataset, [part], {"representation": name_of(name)})
    if name == RAW:
        return Encoder(dataset, [raw.RawPart(pool)], {"representation": RAW, **_of(dataset)})
    description = {
        "representation": CONTRASTIVE,
        "version": VERSION,
        "seed": seed,
        "steps": contrastive.STEPS,
        "network": models.default_model(dataset),
        "pool": artifacts.digest_array(pool.inputs),
        **_of(dataset),
    }
    return _Kept(pool, description).encoder(show_progress=show_progress)


def _of(dataset: Dataset) -> dict[str, Any]:
    """What a representation depends on of what is known of inputs."""
    names = ("kind", "input_shape", "value_range", "augmentation", "num_categories")
    return {name: dataclasses.asdict(dataset)[name] for name in names}


@dataclasses.dataclass(frozen=True)
class _Kept:
    """A contrastive representation in the cache.

    Attributes:
      pool: what it is learnt from.
      description: of the encoder.
    """

    pool: Pool
    description: dict[str, Any]

    def encoder(self, *, show_progress: bool) -> Encoder:
        parts = self._read()
        if parts is None:
            unfinished = self._path("unfinished")
            waiting = artifacts.one_at_a_time(unfinished) if unfinished else nullcontext()
            with waiting:
                # Another process may have learnt it meanwhile.
                parts = self._read() or self._learn(unfinished, show_progress=show_progress)
                if unfinished is not None:
                    shutil.rmtree(unfinished, ignore_errors=True)
        return Encoder(self.pool.dataset, parts, self.description)

    def _learn(
        self, unfinished: pathlib.Path | None, *, show_progress: bool
    ) -> list[contrastive.ContrastivePart]:
        parts = contrastive.learn(
            self.pool, self.description["seed"], folder=unfinished, show_progress=show_progress
        )
        self._write(parts)
        return parts

    def _path(self, suffix: str) -> pathlib.Path | None:
        """Where it is kept; None where nothing can be written."""
        network = fingerprint.architecture_of(self.description["network"], self.pool.dataset)
        network.pop("first_weights", None)  # of which rounding may differ
        text = json.dumps([self.description, network], sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:32]
        folder = cache_folder() / "representations"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            return None
        if not os.access(folder, os.W_OK):
            return None
        return folder / f"{self.pool.dataset.name.replace('/', '-')}-{digest}.{suffix}"

    def _read(self) -> list[contrastive.ContrastivePart] | None:
        path = self._path("npz")
        if path is None or not path.exists():
            return None
        parts = contrastive.unlearnt(self.pool.dataset, self.description["seed"])
        variables = [variable for part in parts for variable in part.learnt]
        try:
            arrays = artifacts.read_arrays(path, map(str, range(len(variables))))
            for place, variable in enumerate(variables):
                variable.assign(_finite(arrays[str(place)]))
        except ValueError:  # a broken file of a cache is no reason to stop
            return None
        return parts

    def _write(self, parts: list[contrastive.ContrastivePart]) -> None:
        path = self._path("npz")
        if path is None:
            warnings.warn(
                f"representation: expected a cache folder that can be written, got "
                f"{cache_folder()}; the representation is learnt again next time",
                stacklevel=2,
            )
            return
        variables = [variable for part in parts for variable in part.learnt]
        arrays = {str(place): np.asarray(variable) for place, variable in enumerate(variables)}
        artifacts.write_arrays(path, arrays)


def _finite(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if not np.isfinite(array).all():
        raise ValueError("representation: expected finite weights, got others")
    return array


@functools.lru_cache(maxsize=1)  # choosing queries and inferring labels ask for the same ones
def pool_features(
    pool: Pool, name: Named | None = None, seed: int = 0
) -> tuple[npt.NDArray[np.float32], ...]:
    """Returns views of the pool: features `[num_inputs, width]`, as `encoder_of` has them."""
    encoder = encoder_of(pool, name, seed)
    return encoder.views(encoder.features(pool.inputs))
