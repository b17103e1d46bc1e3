"""One more owner: everything that depends on the number, size or content of records would differ.

The tests make whole runs as a user starts them, on data sets that differ by one owner of three
records. They compare all files and output of the runs: teachers bit for bit, votes, file names,
printed text and warnings, plans and statements.
"""

import dataclasses
import functools
import json
import math
import pathlib
import re
import warnings

import api_helpers
import classifiers_for_tests
import keras
import numpy as np
import pytest
from api_helpers import HUGE, IMAGES, Standardised, pictures
from chosen_votes import plan_of, release_settings
from encoder_helpers import train_briefly
from sklearn.naive_bayes import MultinomialNB

import pate_tf
from pate_tf.core.dataset import Dataset
from pate_tf.core.public import PublicExamples
from pate_tf.core.reporting import Reporting
from pate_tf.core.sensitive import PrivateExamples, owner_partition, random_partition
from pate_tf.models import architectures as models
from pate_tf.representations.catalogue import CACHE_VARIABLE, default_of_teachers, encoder_of
from pate_tf.teachers import run_folder

OWNED = 3  # records per owner


PUBLIC = PublicExamples(IMAGES, *pictures(90, seed=1))
POOL = PUBLIC.split(IMAGES.pool_size).pool
# The newcomer's records: typical ones, and ones that could make a run fail.
NEWCOMERS = {
    "ordinary": pictures(OWNED, seed=2),
    "hostile": (
        np.stack([np.zeros((8, 8, 1)), np.full((8, 8, 1), HUGE), np.full((8, 8, 1), -HUGE)]),
        np.array([2, 0, 1]),
    ),
}


def private(num_owners: int, newcomer: str | None) -> PrivateExamples:
    """Returns records whose owners are in no order, with a newcomer's records among them."""
    images, labels = pictures(OWNED * num_owners, seed=3)
    owners = np.random.default_rng(4).permutation(np.arange(len(labels)) // OWNED)
    if newcomer is not None:
        more, theirs = NEWCOMERS[newcomer]
        places = [1, len(owners) // 2, len(owners) // 2]
        images = np.insert(images, places, more.astype(np.float32), axis=0)
        labels = np.insert(labels, places, theirs)
        owners = np.insert(owners, places, num_owners)
    return PrivateExamples(IMAGES, images, labels, owners)


def standardised(dataset: Dataset) -> keras.Model:
    image = keras.Input(dataset.input_shape)
    dense = keras.layers.Dense(300, kernel_initializer=keras.initializers.GlorotNormal(seed=1))
    return keras.Model(image, dense(Standardised()(image)))


def bayes(dataset: Dataset):
    """Returns a model that refuses negative numbers. The range of pixels has none."""
    return MultinomialNB()


@dataclasses.dataclass(frozen=True)
class Traces:
    """All files and output of a run."""

    teachers: list[list[np.ndarray]]
    votes: np.ndarray
    files: set[str]
    said: list[str]
    rows: list[tuple[str, str]]
    values: dict[str, object]
    described: dict[str, object]
    plans: list[object]


class Told(list):
    """Collects everything that a run reports."""

    def reporting(self) -> Reporting:
        def takes(*description, **named):
            self.append(repr((description, named)))
            return Reporting().progress_bar()

        return Reporting(clock=takes, progress_bar=takes, note=self.append, warn=self.append)


SENSITIVE = ("accuracy", "constant", "seconds", "each", "ensemble")  # or another path, or time


def traces(folder: pathlib.Path, examples: PrivateExamples, num_teachers: int, **asked) -> Traces:
    told, place = Told(), folder / "run"
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        # names of files contain the time
        patch.setattr(run_folder, "SECONDS_BETWEEN_SAVES", math.inf)
        teachers = pate_tf.Teachers(num_teachers=num_teachers, directory=place, **asked)
        teachers.fit(examples, POOL, reporting=told.reporting())
        data = pate_tf.Data(private=examples, public=PUBLIC.split(IMAGES.pool_size))
        report = teachers.report(data, told.reporting())
    ensemble = teachers.identified
    return Traces(
        teachers=api_helpers.weights(place),
        votes=ensemble.votes(POOL.inputs).labels,
        files={
            re.sub(r"events\.out.*", "events", str(path.relative_to(place)))
            for path in place.rglob("*")
        },
        said=[*told, *(f"{one.category.__name__}: {one.message}" for one in warned)],
        # Each run has its own folder for TensorBoard.
        rows=[
            row
            for row in report.rows
            if "sensitive" not in row[1] and row[0] not in ("time", "TensorBoard")
        ],
        values={
            name: value
            for name, value in report.values.items()
            if not any(word in name for word in SENSITIVE)
        },
        described=json.loads((place / "sensitive/teachers/ensemble/ensemble.json").read_text()),
        plans=plans(ensemble),
    )


def plans(ensemble) -> list[object]:
    """Returns plans, as far as they need the ensemble."""
    return [plan_of(release_settings(epsilon=50.0), ensemble, POOL)]


def changed(before: Traces, after: Traces) -> set[int]:
    """Returns the teachers that differ in any bit."""

    def bits(arrays: list[np.ndarray]) -> list[tuple[object, ...]]:
        return [(array.dtype, array.shape, array.tobytes()) for array in arrays]

    pairs = enumerate(zip(before.teachers, after.teachers, strict=True))
    return {teacher for teacher, (one, other) in pairs if bits(one) != bits(other)}


def teacher_of(owner: int, num_teachers: int) -> int:
    return int(owner_partition([owner], num_teachers=num_teachers, seed=0).assignment[0])


def check(before: Traces, after: Traces, theirs: int) -> None:
    """Checks that only one teacher differs."""
    assert changed(before, after) <= {theirs}
    differ = (before.votes != after.votes).any(axis=1)
    assert set(np.flatnonzero(differ).tolist()) <= {theirs}
    # Except for the folders' paths.
    rows = [[row for row in each.rows if row[0] != "TensorBoard"] for each in (before, after)]
    assert rows[0] == rows[1]
    for name in ("files", "said", "values", "described", "plans"):
        assert getattr(before, name) == getattr(after, name), name


MODELS = {
    "network": {"net": "architectures_for_tests:with_buffers", "batch_size": 2},
    "forest": {"net": "random_forest"},
    "bayes": {"net": bayes},
    "logistic on features": {
        "net": "classifiers_for_tests:scaled_logistic",
        "representation": "raw",
    },
    "ridge": {"net": "ridge"},
    "ridge on a model": {"net": "ridge", "representation": standardised},
}
OTHERS = {
    "ridge on raw": {"net": "ridge", "representation": "raw"},
    **{name: {"net": name} for name in models.BUILDERS},
    "default": {},
    "compiled": {"net": api_helpers.compiled, "steps": 20},
    **{
        build.__name__: {"net": f"classifiers_for_tests:{build.__name__}"}
        for build in classifiers_for_tests.STORABLE
        if build is not classifiers_for_tests.searched  # it stores its duration
    },
}


@pytest.fixture(scope="module", autouse=True)
def representation_of_pool(tmp_path_factory):
    """Trains everything that needs only the pool beforehand, with its messages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(tmp_path_factory.mktemp("cache")))
        train_briefly(patch, 20, 5)
        encoder_of(POOL, default_of_teachers(IMAGES), 0)
        yield


@pytest.fixture(scope="module")
def without(tmp_path_factory):
    """Runs without the newcomer, each once."""

    @functools.cache
    def found(name: str, num_owners: int, num_teachers: int) -> Traces:
        settings = {**OTHERS, **MODELS}[name]
        folder = tmp_path_factory.mktemp("without")
        return traces(folder, private(num_owners, None), num_teachers, **settings)

    return found


@pytest.mark.parametrize("newcomer", NEWCOMERS)
@pytest.mark.parametrize("name", MODELS)
def test_an_owner_more_changes_one_teacher_and_nothing_else(tmp_path, without, name, newcomer):
    after = traces(tmp_path, private(30, newcomer), 4, **MODELS[name])
    check(without(name, 30, 4), after, teacher_of(30, 4))


@pytest.mark.parametrize("name", ["bayes", "ridge on a model"])
def test_a_record_replaced_changes_one_teacher_and_nothing_else(tmp_path, name):
    images, labels = pictures(90, seed=3)
    actual = []
    for place, (image, label) in enumerate(zip(*NEWCOMERS["hostile"], strict=True)):
        folder = tmp_path / str(place)
        folder.mkdir()
        images[40], labels[40] = image, label
        examples = PrivateExamples(IMAGES, images.copy(), labels.copy())
        actual.append(traces(folder, examples, 4, **MODELS[name]))
    theirs = random_partition(num_records=90, num_teachers=4, seed=0).assignment[40]
    for after in actual[1:]:
        check(actual[0], after, theirs)


@pytest.mark.long
@pytest.mark.parametrize("newcomer", NEWCOMERS)
@pytest.mark.parametrize("name", [*MODELS, *OTHERS])
def test_so_it_does_for_every_kind_of_teacher_and_more_owners(tmp_path, without, name, newcomer):
    settings = {**OTHERS, **MODELS}[name]
    after = traces(tmp_path, private(333, newcomer), 20, **settings)
    check(without(name, 333, 20), after, teacher_of(333, 20))  # 999 records, and 1,002


@pytest.mark.parametrize("name", ["network", "ridge", "default"])
def test_without_a_number_of_teachers_owners_are_refused_whatever_their_number(tmp_path, name):
    told = set()
    for newcomer in (None, "ordinary"):
        with pytest.raises(ValueError, match="num_teachers is required: with owners") as caught:
            traces(tmp_path, private(30, newcomer), None, **{**OTHERS, **MODELS}[name])
        told.add(str(caught.value))
        assert list(tmp_path.iterdir()) == []
    assert len(told) == 1


def test_a_class_that_one_owner_alone_has_stops_no_run(tmp_path):
    examples = private(30, "ordinary")
    is_new = examples.owners == 30
    labels = np.where(is_new, 2, 1)
    for name, chosen in (("with", np.full(len(labels), True)), ("without", ~is_new)):
        (tmp_path / name).mkdir()
        some = PrivateExamples(
            IMAGES, examples.inputs[chosen], labels[chosen], examples.owners[chosen]
        )
        left = traces(tmp_path / name, some, 4, net="ridge", representation="raw")
        assert (left.votes == 1).any()


def stated(folder: pathlib.Path, newcomer: str | None) -> dict[str, object]:
    """Returns the statement of a student whose labels come from such teachers."""
    examples = private(30, newcomer)
    teachers = pate_tf.Teachers(
        "ridge", num_teachers=4, representation="raw", directory=folder / "teachers"
    ).fit(examples, POOL)
    mechanism = pate_tf.LaplaceNoisyMax(scale=5.0)
    with pate_tf.Labeller(teachers, mechanism, delta=1e-5) as labeller:
        labels = labeller.label(POOL, num_queries=20)
    student = pate_tf.Student.from_model(api_helpers.net(IMAGES), labels)
    published = student.publish(folder / "published")
    return published.statement.to_dict()


def test_a_statement_says_the_same(tmp_path, monkeypatch):
    actual = []
    for newcomer in (None, "hostile"):
        # As on two machines: the statement also includes charges of the same source elsewhere.
        monkeypatch.setenv("PATE_TF_STATE", str(tmp_path / f"state {newcomer}"))
        actual.append(stated(tmp_path / f"run {newcomer}", newcomer))
    one, other = actual
    digests = {"student_digest", "ledger_head"}  # of random numbers
    assert one.keys() == other.keys() and digests <= one.keys()
    assert one["sections"].pop("Verify") != other["sections"].pop("Verify")  # quotes both
    for name in one.keys() - digests:
        assert one[name] == other[name], name
