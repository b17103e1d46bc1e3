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

import keras
import numpy as np
import numpy.typing as npt
import sklearn.cluster
import sklearn.metrics
import tensorflow as tf

from pate_tf.core import artifacts
from pate_tf.core.dataset import Dataset
from pate_tf.core.public import Pool
from pate_tf.data.named_function import Named, import_function, is_named_function, name_of
from pate_tf.models import catalogue as models
from pate_tf.models import encoder, fingerprint
from pate_tf.models.encoder import Encoder, Part
from pate_tf.representations import contrastive, patches, raw
from pate_tf.representations.contrastive import NETWORKS

# A user's own public encoder: a Keras model that knows nothing of private records.


class OwnPart(encoder.Part):
    """One view: the outputs of a Keras model, flattened and divided by their length."""

    def __init__(self, name: Named, dataset: Dataset) -> None:
        """Builds the model.

        Args:
          name: a function, itself or as `module:function`, from a `Dataset` to a Keras model that
            takes raw inputs. Its weights are the user's to vouch for: none may depend on private
            records.
          dataset: the data the model is for.

        Raises:
          ValueError: if there is no such function, or the model does not take such inputs.
        """
        super().__init__()
        model = import_function(name, flag="representation")(dataset)
        if not isinstance(model, keras.Model) or not hasattr(model, "output_shape"):
            raise ValueError(
                f"representation {name_of(name)}: expected a Keras model that knows its input, got "
                f"{type(model).__name__}"
            )
        expected = (None, *dataset.input_shape)
        width = tf.TensorShape(model.output_shape[1:]).num_elements()
        if tuple(model.input_shape) != expected or not width:
            raise ValueError(
                f"representation {name_of(name)}: expected {list(expected)} to features of one "
                f"number, got {list(model.input_shape)} to {list(model.output_shape)}"
            )
        self.model = model
        self.widths = (int(width),)

    @property
    def learnt(self) -> list[Any]:
        """The model's weights."""
        return list(self.model.variables)

    def __call__(self, inputs: tf.Tensor) -> list[tf.Tensor]:
        """Returns the view float32 `[batch, width]`."""
        flat = tf.reshape(self.model(inputs, training=False), [-1, self.widths[0]])
        return [tf.math.l2_normalize(tf.cast(flat, tf.float32), axis=1)]


CONTRASTIVE, PATCHES, RAW = "contrastive", "patches", "raw"
NAMES = (CONTRASTIVE, PATCHES, RAW)
OF_IMAGES = (CONTRASTIVE, PATCHES)
JOIN = "+"  # between names whose features lie side by side
VERSION = 3  # of the rules by which a pool becomes a representation
CACHE_VARIABLE = "PATE_TF_CACHE"


def default_representation(dataset: Dataset) -> str:
    """The name of the representation that says which inputs are alike, where none is named."""
    return CONTRASTIVE if dataset.kind == "image" else RAW


def default_of_teachers(dataset: Dataset) -> str:
    """The name of the representation that teachers learn from, where none is named."""
    return JOIN.join(OF_IMAGES) if dataset.kind == "image" else RAW


def is_known(name: Named) -> bool:
    """Whether it is one of `NAMES`, or several of them joined by `+`."""
    if not isinstance(name, str):
        return False
    joined = name.split(JOIN)
    return set(joined) <= set(NAMES) and len(set(joined)) == len(joined)


def joined_names(name: Named) -> tuple[Named, ...]:
    """Returns the names that a representation is joined from: its own where it is a single one."""
    return tuple(name.split(JOIN)) if isinstance(name, str) and is_known(name) else (name,)


def check_representation(name: Named, dataset: Dataset) -> None:
    """Checks a name before anything is learnt.

    Raises:
      ValueError: if there is no such representation, or it does not fit the data set.
    """
    if is_named_function(name):
        import_function(name, flag="representation")
    elif not is_known(name):
        raise ValueError(
            f"representation: expected one of {', '.join(NAMES)}, some of them joined as in "
            f"{JOIN.join(OF_IMAGES)}, or module:function, got {name!r}"
        )
    elif dataset.kind != "image" and set(joined_names(name)) & set(OF_IMAGES):
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


@functools.lru_cache(maxsize=4)
def encoder_of(
    pool: Pool, name: Named | None = None, seed: int = 0, *, show_progress: bool = False
) -> Encoder:
    """Returns a pool's representation: learns it, or takes up what was learnt before.

    Args:
      pool: public inputs `[num_inputs, *input_shape]`.
      name: of `NAMES`, several of them joined by `+`, or a function of the user's own, itself or as
        `module:function`, which takes a `Dataset` and returns a Keras model from raw inputs to
        features `[batch, num_features]`, none of whose weights depends on private records. None for
        the data set's default.
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
        part = OwnPart(name, dataset)
        return Encoder(dataset, [part], {"representation": name_of(name)})
    names = joined_names(name)
    if len(names) > 1:
        encoders = [encoder_of(pool, one, seed, show_progress=show_progress) for one in names]
        return Encoder(
            dataset,
            [part for one in encoders for part in one.parts],
            {"joined": [one.description for one in encoders]},
        )
    if name == RAW:
        return Encoder(dataset, [raw.RawPart(pool)], {"representation": RAW, **_of(dataset)})
    description = {
        "representation": name,
        "version": VERSION,
        "seed": seed,
        "pool": artifacts.digest_array(pool.inputs),
        **_of(dataset),
    }
    if name == CONTRASTIVE:
        description["steps"] = contrastive.STEPS
        description["network"] = models.default_model(dataset)
        if dataset.has_colours:
            description["colours"] = "changed"  # which they once were not
    return _Kept(pool, description).encoder(show_progress=show_progress)


def _of(dataset: Dataset) -> dict[str, Any]:
    """What a representation depends on of what is known of inputs."""
    names = ("kind", "input_shape", "value_range", "augmentation", "num_categories")
    return {name: dataclasses.asdict(dataset)[name] for name in names}


@dataclasses.dataclass(frozen=True)
class _Kept:
    """A representation in the cache, of those that are learnt.

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

    def _learn(self, unfinished: pathlib.Path | None, *, show_progress: bool) -> list[Part]:
        seed, parts = self.description["seed"], list[Part]()
        if self.description["representation"] == PATCHES:
            part = patches.PatchPart(self.pool, seed)
            part.learn(self.pool)
            parts.append(part)
        else:
            parts += contrastive.learn(
                self.pool, seed, folder=unfinished, show_progress=show_progress
            )
        self._write(parts)
        return parts

    def _unlearnt(self) -> list[Part]:
        """Returns parts as `_learn` does, with weights that are to be replaced."""
        seed = self.description["seed"]
        if self.description["representation"] == PATCHES:
            return [patches.PatchPart(self.pool, seed)]
        return list(contrastive.unlearnt(self.pool.dataset, seed))

    def _path(self, suffix: str) -> pathlib.Path | None:
        """Where it is kept; None where nothing can be written."""
        described: list[Any] = [self.description]
        if "network" in self.description:
            network = fingerprint.architecture_of(self.description["network"], self.pool.dataset)
            network.pop("first_weights", None)  # of which rounding may differ
            described.append(network)
        text = json.dumps(described, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:32]
        folder = cache_folder() / "representations"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            return None
        if not os.access(folder, os.W_OK):
            return None
        return folder / f"{self.pool.dataset.name.replace('/', '-')}-{digest}.{suffix}"

    def _read(self) -> list[Part] | None:
        path = self._path("npz")
        if path is None or not path.exists():
            return None
        parts = self._unlearnt()
        variables = [variable for part in parts for variable in part.learnt]
        try:
            arrays = artifacts.read_arrays(path, map(str, range(len(variables))))
            for place, variable in enumerate(variables):
                variable.assign(_finite(arrays[str(place)]))
        except ValueError:  # a broken file of a cache is no reason to stop
            return None
        return parts

    def _write(self, parts: list[Part]) -> None:
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
    return tuple(_pool_features(pool, one, seed) for one in joined_names(name))


@functools.lru_cache(maxsize=2)  # choosing queries and inferring labels ask for the same ones
def _pool_features(pool: Pool, name: Named, seed: int) -> tuple[npt.NDArray[np.float32], ...]:
    encoder = encoder_of(pool, name, seed)
    return encoder.views(encoder.features(pool.inputs))


# Whether a representation says anything: asked of public inputs alone, before anything is paid.
#
# Two networks that learn independently of each other should agree on which inputs belong together.
# Where the groups of one are not those of the other, groups are not in the inputs, and labels that
# are spread within them would be wrong.


SAMPLE = 1_000  # inputs that are compared
GROUPS_A_CLASS = 2
# Of groups, as their adjusted Rand index: 0 by chance, 1 for the same groups. On the embedded
# digits it is 0.7, on images of noise 0.1.
LEAST_CONSENSUS = 0.25


def doubts(pool: Pool, representation: Named | None = None, seed: int = 0) -> str | None:
    """Says in one line why a pool's representation should not be relied on; None if nothing does.

    Args:
      pool: public inputs.
      representation: as of `encoder_of`. Only what is learnt is doubted.
      seed: likewise.
    """
    name = default_representation(pool.dataset) if representation is None else representation
    groups = GROUPS_A_CLASS * pool.dataset.num_classes
    if CONTRASTIVE not in joined_names(name) or len(pool) < 2 * groups:
        return None
    found = consensus(pool, groups, seed)
    if found >= LEAST_CONSENSUS:
        return None
    return (
        f"representation {name_of(name)} of {pool.dataset.name}: two networks agree by "
        f"{found:.2f} on which inputs belong together, where 0 is chance and 1 is all: expected "
        f"{LEAST_CONSENSUS} at least; it may separate nothing, and what is spread by it may be "
        f"wrong; take networks as teachers, or a representation of your own"
    )


def consensus(pool: Pool, num_groups: int, seed: int = 0) -> float:
    """Returns how far the groups of two networks are the same, as their adjusted Rand index.

    Hubert and Arabie 1985. Worked out on the pool's first `SAMPLE` inputs.

    Args:
      pool: public images, at least `num_groups`.
      num_groups: of each network.
      seed: of the representation.
    """
    encoder = encoder_of(pool, CONTRASTIVE, seed)
    views = encoder.views(encoder.features(pool.inputs[:SAMPLE]))
    a_network = len(views) // NETWORKS
    groups = [
        sklearn.cluster.KMeans(num_groups, n_init=1, random_state=0).fit_predict(
            np.concatenate(views[first : first + a_network], axis=1)
        )
        for first in (0, a_network)
    ]
    return float(sklearn.metrics.adjusted_rand_score(*groups))
