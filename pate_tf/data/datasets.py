"""Data sets by name: `pate_tf.datasets.load("digits")`."""

from __future__ import annotations

import os
import pathlib

from pate_tf.data import catalogue
from pate_tf.data.data import Data

NAMES = catalogue.NAMES

__all__ = ["NAMES", "load"]


def load(
    name: str,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    pool_size: int | None = None,
    svhn_extra: bool = True,
) -> Data:
    """Returns a data set by name, its private and its public side.

    >>> import pate_tf
    >>> data = pate_tf.datasets.load("digits")
    >>> data.private, len(data.pool), len(data.held_out)
    (PrivateExamples(<1200 records>), 400, 197)

    Args:
        name: one of `NAMES`, another name of TensorFlow Datasets, or `module:function`.
        data_dir: where the data lie; None for the default of TensorFlow Datasets.
        pool_size: how many of the public samples, from the first, form the pool; None for the data
            set's own number.
        svhn_extra: whether SVHN's extra split is private data too.

    Raises:
        ValueError: if there is no such data set, or it can't be had.
    """
    folder = None if data_dir is None else pathlib.Path(data_dir)
    private = catalogue.load_private(name, data_dir=folder, svhn_extra=svhn_extra)
    public = catalogue.load_public(name, data_dir=folder)
    return Data(private=private, public=public.split(pool_size or public.dataset.pool_size))
