"""What every silo's teacher answers to the pool; kept, as teachers take minutes."""

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.silos.setting import BALANCED, FOREST, RIDGE, Setting
from benchmarks.silos.shares import shares
from pate_tf.core import artifacts
from pate_tf.core.public import PublicExamples
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.core.validation import IntArray
from pate_tf.data import catalogue
from pate_tf.models import classifier, closed_form

AT_ONCE = 25  # silos whose votes are kept together

Votes = Callable[[int, IntArray], IntArray]


def balanced_forest(dataset: object) -> object:
    """A forest that counts a rare class of its silo as much as a common one."""
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(class_weight="balanced")


def kept_votes(
    kind: str,
    teacher: str,
    number: int,
    setting: Setting,
    *,
    folder: pathlib.Path,
    data_dir: pathlib.Path | None,
    report: Callable[[str], None],
) -> IntArray:
    """Returns votes on the first of the pool, int64 `[num_silos, number]`; trains what is missing.

    Args:
        kind: of the shares.
        teacher: of the setting's kinds.
        number: of inputs of the pool.
        setting: sizes.
        folder: sensitive.
        data_dir: where the data lie.
        report: is told what takes long.
    """
    artifacts.make_sensitive_folder(folder)
    firsts = range(0, setting.num_silos, AT_ONCE)
    paths = [folder / f"{setting.name}-{kind}-{teacher}-{number}-{first}.npz" for first in firsts]
    if not all(path.exists() for path in paths):
        private = catalogue.load_private(setting.dataset, data_dir=data_dir)
        public = catalogue.load_public(setting.dataset, data_dir=data_dir)
        parts = shares(kind, private.labels, setting.num_silos, private.dataset.num_classes)
        report(f"teachers: {teacher}, {kind}")
        queries = public.inputs[:number]
        if teacher == RIDGE:
            vote = _on_features(private, public, queries)
        else:
            vote = _forests(teacher, private, queries)
        for first, path in zip(firsts, paths, strict=True):
            if not path.exists():
                rows = range(first, min(first + AT_ONCE, setting.num_silos))
                votes = np.stack([vote(silo, parts[silo]) for silo in rows])
                artifacts.write_arrays(path, {"votes": votes.astype(np.int16)}, private=True)
                report(f"teachers: {teacher}, {kind}, {rows.stop} of {setting.num_silos}")
    return np.concatenate([artifacts.read_arrays(path)["votes"] for path in paths]).astype(np.int64)


def _forests(teacher: str, private: PrivateExamples, queries: npt.NDArray[Any]) -> Votes:
    """Forests of each silo's own records, as `pate silo serve` trains them."""
    model = {FOREST: FOREST, BALANCED: balanced_forest}[teacher]

    def vote(silo: int, records: IntArray) -> IntArray:
        arrays = classifier.fit(
            model, private.dataset, private.inputs[records], private.labels[records], silo
        )
        return classifier.from_arrays(list(arrays)).predict(queries)

    return vote


def _on_features(
    private: PrivateExamples, public: PublicExamples, queries: npt.NDArray[Any]
) -> Votes:
    """Least squares on features that are learnt from the public pool alone."""
    from pate_tf.representations.catalogue import encoder_of

    dataset = public.dataset
    encoder = encoder_of(public.split(dataset.pool_size).pool)
    asked, held = encoder.features(queries), encoder.features(private.inputs)

    def vote(silo: int, records: IntArray) -> IntArray:
        weights, offsets = closed_form.fit(
            closed_form.RIDGE,
            held[records],
            private.labels[records],
            num_classes=dataset.num_classes,
            num_views=encoder.num_views,
        )
        scores = asked @ weights.astype(np.float32) + offsets.astype(np.float32)
        return scores.argmax(axis=1)

    return vote
