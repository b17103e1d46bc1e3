"""Partial feature sums of disjoint records, added up. Apache Beam is not imported."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from pate_tf.api import feature_sums
from pate_tf.api.feature_sums import ENCODER, OWNERS, RECORDS, StoredSums, sums_folder
from pate_tf.api.run_folder import described_run
from pate_tf.core import artifacts
from pate_tf.core.record_set import DIGEST_BYTES, Digests, RecordSet, digest_order

# What partial sums must have in common, and must not be summed but copied.
COMMON: Final = ("dataset", "unit", "representation", "encoder")


def merge(
    parts: Sequence[str | os.PathLike[str]], *, directory: str | os.PathLike[str]
) -> StoredSums:
    """Adds feature sums of disjoint records; stores those of all records, to the last bit.

    Parts are told apart by digests. Where owners are protected, no owner may be in two parts: what
    an owner's records add is clipped together. Where records are, no input may: nothing tells equal
    inputs of two records from one record that was read twice. Who has such records names an owner
    for each.

    Args:
        parts: run folders of feature sums, at least two.
        directory: the run folder of all.

    Raises:
        ValueError: if a part is broken or edited, parts share records or owners, or are of other
            data sets, representations or settings; or the folder holds other sums.
    """
    if len(parts) < 2:
        raise ValueError(f"merge: expected at least two run folders, got {len(parts)}")
    roots = [artifacts.RunDirectory(pathlib.Path(one)) for one in parts]
    folders = [sums_folder(root) for root in roots]
    stored = [StoredSums(folder) for folder in folders]
    first = stored[0]
    for folder, one in zip(folders[1:], stored[1:], strict=True):
        for name in COMMON:
            if one.description[name] != first.description[name]:
                raise ValueError(
                    f"merge: expected feature sums of one {name}, got another in {folder}"
                )
        if one.encoder_digest != first.encoder_digest or not _has_same(one, first):
            raise ValueError(
                f"merge: expected feature sums of one representation, got another in {folder}"
            )
    has_owners = first.unit == "owner"
    kinds = [RECORDS, OWNERS] if has_owners else [RECORDS]
    for folder, one in zip(folders, stored, strict=True):
        for kind in kinds:
            known = one.records.digest if kind == RECORDS else one.description["owner_set"]
            if RecordSet.of_sorted([_digests(folder / kind)]).digest != known:
                raise ValueError(
                    f"merge: expected the digests that belong to the sums in {folder}, got others"
                )
    what = "owners" if has_owners else "records"
    names = [str(folder) for folder in folders]
    for _ in merged([_digests(folder / kinds[-1]) for folder in folders], names, distinct=what):
        pass  # before anything is written
    lanes = np.array(
        [[int(lane, 16) for lane in one.description["records"]] for one in stored], np.uint64
    ).sum(axis=0, dtype=np.uint64)
    described = {name: first.description[name] for name in COMMON}
    described["records"] = [f"{one:016x}" for one in lanes.tolist()]
    target = artifacts.RunDirectory(pathlib.Path(directory))
    target.check(files=[], folders=[artifacts.SENSITIVE])
    if (before := feature_sums.stored_before(target, described)) is not None:
        return before
    runs = [described_run(root.root) for root in roots]
    sources = [{} if run is None else {**run.source, "private": None} for run in runs]
    sizes = {None if run is None else run.pool_size for run in runs}
    summands = feature_sums.Summands(
        first.dataset.num_classes, first.scale, first.groups, first.centres
    )
    return feature_sums.store(
        described,
        folders[0] / ENCODER,
        summands,
        np.sum([one.table for one in stored], axis=0, dtype=np.int64),
        directory=target,
        records=merged([_digests(folder / RECORDS) for folder in folders]),
        owners=merged([_digests(folder / OWNERS) for folder in folders]) if has_owners else None,
        num_left_out=sum(one.description["left_out"] for one in stored),
        pool_size=sizes.pop() if len(sizes) == 1 else None,
        # Without the private files; those of parts differ.
        source=sources[0] if all(one == sources[0] for one in sources) else {},
    )


def _has_same(one: StoredSums, other: StoredSums) -> bool:
    """Whether scale, groups and clusters, which are public, are the same."""
    return (one.groups, *one.centres) == (other.groups, *other.centres) and all(
        np.array_equal(first, second)
        for first, second in zip(
            (one.scale, *one.centres.values()), (other.scale, *other.centres.values()), strict=True
        )
    )


def _digests(path: pathlib.Path) -> Digests:
    """Returns digests, ascending, which stay on disk."""
    try:
        found: Digests = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ValueError(f"merge: expected digests in {path}, got none") from error
    return found


def merged(
    files: Sequence[Digests], names: Sequence[str] = (), distinct: str = ""
) -> Iterator[Digests]:
    """Yields digests of several ascending files, ascending; those of one first byte are in memory.

    Args:
        files: digests, mapped.
        names: of the files, for errors.
        distinct: what may not be in two files; empty if anything may.

    Raises:
        ValueError: if something is in two files that may not.
    """
    ends = [np.searchsorted(one[:, 0], np.arange(257)) for one in files]
    for byte in range(256):
        parts = [
            np.asarray(one[end[byte] : end[byte + 1]]) for one, end in zip(files, ends, strict=True)
        ]
        together = np.concatenate([np.empty((0, DIGEST_BYTES), np.uint8), *parts])
        order = digest_order(together)
        found = together[order]
        if distinct:
            number = np.repeat(np.arange(len(parts)), [len(one) for one in parts])[order]
            is_twice = (found[1:] == found[:-1]).all(axis=1) & (number[1:] != number[:-1])
            for place in np.flatnonzero(is_twice)[:1]:
                raise ValueError(
                    f"merge: expected {distinct} in one part each, got some in both "
                    f"{names[number[place]]} and {names[number[place + 1]]}"
                )
        if len(found):
            yield found
