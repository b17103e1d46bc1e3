"""What every kind of teacher promises, a toy of one file included."""

import dataclasses
import json
import os
import shutil

import architectures_for_tests
import keras
import numpy as np
import pytest
import teacher_helpers as helpers
import tensorflow as tf
import toy_kind
from script_processes import run_script

import pate_tf
from pate_tf.core import artifacts
from pate_tf.core.partition import Partition
from pate_tf.core.public import Pool, PublicExamples
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.models import classifier, closed_form, forest
from pate_tf.models.encoder import Encoder
from pate_tf.representations.raw import RawPart
from pate_tf.teachers import ensemble, kinds, teacher_training, voters
from pate_tf.teachers.kinds import Engine

IMAGES, LABELS = helpers.blob_images(80, seed=3)
QUERIES, _ = helpers.blob_images(50, seed=4)
POOL = Pool(helpers.BLOBS, IMAGES)
PUBLIC = PublicExamples(helpers.BLOBS, *helpers.blob_images(40, seed=8))
NUM_TEACHERS = 5
EMPTY = 1  # the teacher without a record: its owners are gone
SHARES = Partition(np.repeat([0, 2, 2, 3, 4], [1, 3, 10, 20, 46]), NUM_TEACHERS, "owner")
LOGISTIC = "classifiers_for_tests:scaled_logistic"


def compiled(dataset):
    model = architectures_for_tests.small(dataset)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


CASES = {
    "network": {"model": "architectures_for_tests:with_buffers", "max_steps": 3},
    "compiled": {"model": compiled, "max_steps": 3},
    "forest": {"model": forest.RANDOM_FOREST},
    "logistic": {"model": LOGISTIC},
    "forest on features": {"model": forest.RANDOM_FOREST, "representation": "raw"},
    "logistic on features": {"model": LOGISTIC, "representation": "raw"},
    **{name: {"model": name, "representation": "raw"} for name in closed_form.NAMES},
    "toy": {"model": "commonest"},
}
STATES_PROBABILITIES = ("network", "compiled")


@pytest.fixture(scope="module", autouse=True)
def few_trees_and_small_chunks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forest, "NUM_TREES", 5)
        patch.setattr(ensemble, "CHUNK", 2)  # of five teachers, so that chunks are joined
        yield


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder(helpers.BLOBS, [RawPart(POOL)], {"representation": "raw"})


@pytest.fixture(scope="module", params=CASES)
def case(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def train(case, encoder):
    """Trains teachers of a kind into a folder; returns whether they are all."""

    def run(folder, *, seed=5, labels=LABELS, encoder=encoder, **options) -> bool:
        config = helpers.config(
            **{"num_teachers": NUM_TEACHERS, "unit": "owner", "seed": seed, **CASES[case]}
        )
        asked = {
            "teachers": range(NUM_TEACHERS),
            "engine": Engine(num_processes=1),
            "progress": lambda done: None,
            **options,
        }
        return teacher_training.train(
            config=config,
            examples=PrivateExamples(helpers.BLOBS, IMAGES, labels),
            partition=SHARES,
            run_directory=artifacts.RunDirectory(folder),
            encoder=encoder if config.representation else None,
            **asked,
        )

    return run


@pytest.fixture(scope="module")
def whole(train, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    assert train(folder)
    return folder


def ensemble_in(folder):
    return teacher_training.ensemble_folder(artifacts.RunDirectory(folder))


def load(folder):
    return kinds.load_ensemble(ensemble_in(folder))


def test_all_teachers_vote_on_all_queries(whole, case):
    loaded = load(whole)
    assert (loaded.num_teachers, loaded.unit, loaded.dataset) == (5, "owner", helpers.BLOBS)
    assert loaded.num_records == len(IMAGES)
    told = []
    votes = loaded.votes(QUERIES, told.append)
    assert votes.labels.shape == (NUM_TEACHERS, 50) and votes.labels.dtype == np.int64
    assert sum(told) == 50
    np.testing.assert_array_equal(loaded.counts(QUERIES).values, votes.counts().values)
    np.testing.assert_array_equal(loaded.votes(QUERIES[7:9]).labels, votes.labels[:, 7:9])
    assert loaded.votes(QUERIES[:0]).labels.shape == (NUM_TEACHERS, 0)
    assert loaded.counts(QUERIES[:0]).values.shape == (0, 3)
    assert loaded.covers(QUERIES)
    assert "array(" not in repr(loaded)
    if case not in STATES_PROBABILITIES:
        assert set(votes.labels[EMPTY].tolist()) == {0}  # which says nothing


def slow_votes(case, settings, encoder):
    """Votes of teachers on features, one teacher and one query at a time."""
    features, queries = encoder.features(IMAGES), encoder.features(QUERIES)
    for teacher, own in enumerate(SHARES.all_records()):
        model, rows, labels = settings["model"], features[own], LABELS[own]
        if model not in closed_form.NAMES:
            seed = int(np.random.SeedSequence([5, teacher]).generate_state(1)[0])
            arrays = classifier.fit(model, encoder.feature_dataset, rows, labels, seed)
            yield classifier.from_arrays(arrays).predict(queries)
        elif not len(own):
            yield np.zeros(len(queries), int)
        elif model == closed_form.NEAREST_NEIGHBOUR:
            yield [labels[np.linalg.norm(rows - query, axis=1).argmin()] for query in queries]
        else:
            weights, offsets = closed_form.fit(model, rows, labels, num_classes=3, num_views=1)
            yield (queries @ weights.astype(np.float64) + offsets).argmax(axis=1)


def test_votes_on_features_are_those_of_a_slow_twin(whole, case, encoder):
    if "representation" in CASES[case]:
        slow = list(slow_votes(case, CASES[case], encoder))
        # Float16, or a batch of another size, may turn a vote between equals.
        assert (load(whole).votes(QUERIES).labels == slow).mean() > 0.99


def test_an_ensemble_is_known_by_its_encoders_weights(whole, case, encoder, tmp_path):
    if "on features" in case:
        brighter = Encoder(helpers.BLOBS, [RawPart(POOL)], {"representation": "raw"})
        brighter.learnt[0].assign_add(tf.ones_like(brighter.learnt[0]))
        shutil.copytree(ensemble_in(whole), tmp_path / "ensemble")
        with artifacts.atomic_folder(tmp_path / "ensemble" / "encoder") as other:
            ensemble.save_encoder(other, brighter)
        assert kinds.load_ensemble(tmp_path / "ensemble").digest != load(whole).digest
    elif case == closed_form.RIDGE:  # thousands of teachers are few arrays on disk
        (path,) = (whole / "sensitive" / "teachers").glob("finished-*.npz")
        assert set(artifacts.read_arrays(path)) == {"teachers", "stacked/0", "stacked/1"}


@pytest.mark.parametrize("shape", [(2, 8, 8), (2, 28, 28, 1), (2, 8, 8, 3)])
def test_queries_of_another_shape_are_refused(whole, shape):
    with pytest.raises(ValueError, match="queries: expected"):
        load(whole).votes(np.zeros(shape, np.uint8))


def test_networks_alone_state_probabilities(whole, case):
    loaded = load(whole)
    if case in STATES_PROBABILITIES:
        np.testing.assert_allclose(loaded.probabilities(QUERIES, 2.0).sum(axis=1), 1.0, rtol=1e-5)
    else:
        with pytest.raises(ValueError, match="teachers: expected Keras teachers"):
            loaded.probabilities(QUERIES, 2.0)
    with pytest.raises(ValueError, match=r"temperature: expected in \(0, inf\), got 0"):
        loaded.probabilities(QUERIES, 0.0)


def test_parts_merged_are_the_whole(train, whole, tmp_path):
    told = []
    assert not train(tmp_path / "one", teachers=[3, 1], progress=told.append)
    assert sum(told) == 2
    assert train(
        tmp_path / "other",
        teachers=[0, 2, 4],
        merge_from=[artifacts.RunDirectory(tmp_path / "one")],
    )
    assert load(tmp_path / "other").digest == load(whole).digest
    with pytest.raises(ValueError, match="merge_from: expected all 5 teachers, 3 are missing"):
        train(
            tmp_path / "gap",
            teachers=[],
            merge_from=[artifacts.RunDirectory(tmp_path / "one")],
        )


def trained(folder, case, encoder, *, is_complete):
    config = helpers.config(**{"num_teachers": NUM_TEACHERS, "unit": "owner", **CASES[case]})
    return teacher_training.Trained(
        directory=artifacts.RunDirectory(folder),
        kind=kinds.find_kind(config.model, config.dataset),
        config=config,
        encoder=encoder if config.representation else None,
        is_complete=is_complete,
    )


def test_an_incomplete_ensemble_is_measured_as_the_whole(train, whole, case, encoder, tmp_path):
    train(tmp_path, teachers=[3, 0])
    told = []
    some = teacher_training.evaluate(
        trained(tmp_path, case, encoder, is_complete=False), PUBLIC, told.append
    )
    all_of_them = teacher_training.measured(load(whole), PUBLIC)[0]
    np.testing.assert_array_equal(some.values, all_of_them.values[[0, 3]])
    assert sum(told) == len(PUBLIC)
    assert not (tmp_path / "sensitive" / "teachers" / "incomplete").exists()


def test_other_settings_labels_or_encoders_are_refused_and_change_nothing(train, whole, case):
    before = load(whole).digest
    with pytest.raises(ValueError, match=r"other settings: seed \(5 there, 6 now\); choose"):
        train(whole, seed=6)
    with pytest.raises(ValueError, match="other settings: private records; choose"):
        train(whole, labels=np.roll(LABELS, 1))
    if "representation" in CASES[case]:
        other = Encoder(helpers.BLOBS, [RawPart(POOL)], {"representation": "another"})
        with pytest.raises(ValueError, match="other settings: encoder; choose"):
            train(whole, encoder=other)
    assert load(whole).digest == before


def test_an_ensemble_is_known_by_what_it_learnt(train, whole, tmp_path):
    shutil.copytree(ensemble_in(whole), tmp_path / "moved")
    assert kinds.load_ensemble(tmp_path / "moved").digest == load(whole).digest
    labels = LABELS.copy()
    labels[[40, 50, 60, 70]] = 0
    labels[0] = 2
    assert train(tmp_path / "other", labels=labels)
    assert load(tmp_path / "other").digest != load(whole).digest
    path = tmp_path / "moved" / kinds.DESCRIPTION
    path.write_text(json.dumps({**artifacts.read_json(path), "seed": 77}))
    assert kinds.load_ensemble(tmp_path / "moved").digest != load(whole).digest


@pytest.mark.parametrize("left", [0.0, 0.5, 0.99, None])
def test_a_damaged_ensemble_is_one_clear_line(whole, tmp_path, left):
    shutil.copytree(ensemble_in(whole), tmp_path / "ensemble")
    files = [path for path in (tmp_path / "ensemble").rglob("*") if path.is_file()]
    for path in files:
        if path.name == "fingerprint.pb":  # TensorFlow's own note, which nothing reads
            continue
        content = path.read_bytes()
        path.unlink()
        if left is not None:
            path.write_bytes(content[: int(left * len(content))])
        with pytest.raises(ValueError, match="teachers: expected") as caught:
            kinds.load_ensemble(tmp_path / "ensemble")
        assert "\n" not in str(caught.value)
        path.write_bytes(content)
    assert kinds.load_ensemble(tmp_path / "ensemble").digest == load(whole).digest
    path = tmp_path / "ensemble" / kinds.DESCRIPTION
    path.write_text(json.dumps({**artifacts.read_json(path), "kind": "nosuch"}))
    with pytest.raises(ValueError, match="teachers: expected an ensemble of this version"):
        kinds.load_ensemble(tmp_path / "ensemble")


def test_an_interrupted_save_leaves_the_old_ensemble(train, whole, case, tmp_path, monkeypatch):
    shutil.copytree(whole, tmp_path / "run")
    target, config = ensemble_in(tmp_path / "run"), load(whole).config
    kind = kinds.find_kind(CASES[case]["model"], helpers.BLOBS)

    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(type(kind), "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        kinds.save_ensemble(kind, target, config, None, None)
    assert not [name for name in os.listdir(target.parent) if name.startswith(".writing")]
    assert load(tmp_path / "run").digest == load(whole).digest


def test_a_savedmodel_of_each_teacher_is_one_of_networks(whole, case, encoder):
    done = trained(whole, case, encoder, is_complete=True)
    arguments = (done.kind, done.directory, done.config)
    if case in STATES_PROBABILITIES:
        folder = teacher_training.export_each(*arguments)
        each = pate_tf.Teachers.from_models(folder)
        np.testing.assert_array_equal(each.votes(QUERIES), load(whole).votes(QUERIES).labels)
    else:
        with pytest.raises(ValueError, match="export_each: expected Keras teachers"):
            teacher_training.export_each(*arguments)


# Settings and kinds.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "nosuch"}, "model: expected one of ridge, .*, cnn, .* or module:function"),
        ({"model": "nosuch:nosuch"}, "model: can't import"),
        ({"model": lambda dataset: "nothing"}, "expected a Keras model or another teacher"),
        ({"model": "random_forest", "max_steps": 3}, "max_steps: expected none for random_forest"),
        ({"model": "ridge", "class_weights": (1, 2, 3)}, "class_weights: expected none for ridge"),
        ({"model": compiled, "learning_rate": 0.1}, "learning_rate: expected none"),
        ({"model": "cnn", "representation": "raw"}, "representation: expected none for cnn"),
        ({"model": "mlp", "class_weights": (1, 2)}, "class_weights: expected \\[3\\], got"),
    ],
)
def test_settings_that_a_kind_does_not_have_are_refused(settings, message):
    asked = teacher_training.TeacherSettings(**settings)
    with pytest.raises(ValueError, match=message) as caught:
        teacher_training.complete_settings(asked, helpers.BLOBS, SHARES)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "engine", "message"),
    [
        ({"model": "ridge"}, {}, "encoder: expected one with a representation"),
        ({"model": "mlp"}, {"parallelism": "nosuch"}, "parallelism: expected one of"),
        ({"model": "random_forest"}, {"parallelism": "data"}, "model: expected a Keras model that"),
        ({"model": compiled}, {"parallelism": "data"}, "model: expected a Keras model that is not"),
        ({"model": "mlp"}, {"callbacks": [1]}, "callbacks: expected with a compiled Keras model"),
        ({"model": "mlp", "unit": "record"}, {}, "partition: expected unit record, got owner"),
        ({"model": "mlp", "num_teachers": 4}, {}, "partition: expected teachers 4, got 5"),
    ],
)
def test_work_that_does_not_fit_is_refused_and_leaves_no_trace(tmp_path, settings, engine, message):
    fields = {"num_teachers": NUM_TEACHERS, "unit": "owner"}
    if settings["model"] == "ridge":
        fields["representation"] = "raw"
    with pytest.raises(ValueError, match=message):
        teacher_training.train(
            config=helpers.config(**{**fields, **settings}),
            examples=PrivateExamples(helpers.BLOBS, IMAGES, LABELS),
            partition=SHARES,
            teachers=[0],
            run_directory=artifacts.RunDirectory(tmp_path / "run"),
            engine=Engine(**engine),
            progress=lambda done: None,
        )
    assert not (tmp_path / "run").exists()


def test_the_default_is_what_is_recommended_for_the_kind_of_data():
    def chosen(dataset=helpers.BLOBS, *, has_pool=True, on_cluster=False, **settings):
        return teacher_training.chosen_model(
            teacher_training.TeacherSettings(**settings),
            dataset,
            has_pool=has_pool,
            on_cluster=on_cluster,
        )

    table = dataclasses.replace(
        helpers.BLOBS,
        kind="tabular",
        input_shape=(4,),
        augmentation="none",
        input_type="float32",
    )
    assert chosen() == chosen(representation="raw", has_pool=False) == "ridge"
    assert chosen(max_steps=9) == chosen(has_pool=False) == chosen(on_cluster=True) == "cnn"
    assert chosen(table) == "mlp"
    assert chosen(table, representation="raw") == "ridge"
    assert chosen(model="deeper", representation="raw") == "deeper"


def test_every_value_of_the_flag_is_a_kind_and_helped():
    from pate_tf.models import catalogue

    names = {*catalogue.BUILDERS, *closed_form.NAMES, forest.RANDOM_FOREST, "commonest"}
    assert names == {name for kind in kinds.KINDS.values() for name in kind.models}
    for name in names:
        assert f"{name}: " in kinds.help_of_models()
        assert name in kinds.find_kind(name, helpers.BLOBS).models


def test_a_toy_kind_of_one_file_works_from_python_and_from_the_flag(tmp_path):
    data = pate_tf.datasets.load("digits")
    teachers = pate_tf.Teachers("commonest", num_teachers=4, directory=tmp_path / "python")
    votes = teachers.fit(data.private).votes(data.pool)
    assert votes.shape == (4, len(data.pool)) and (votes == votes[:, :1]).all()
    flags = ("train_teachers.py", "--nb_teachers=4", "--train_dir=script")
    ended = run_script(*flags, "--model=commonest", folder=tmp_path, setup=toy_kind.add)
    assert ended.code == 0, ended.err
    assert "4 of commonest" in ended.out
    loaded = pate_tf.Teachers.load(tmp_path / "script")
    np.testing.assert_array_equal(loaded.votes(data.pool), votes)
    assert loaded.known.digest == teachers.known.digest
    ended = run_script(*flags, "--model=commonest", "--max_steps=3", folder=tmp_path)
    assert ended.err.startswith("error: model: expected one of")  # the toy is not there


# How good teachers are.


def test_accuracies_are_those_of_the_votes_however_they_are_cut_up(monkeypatch):
    labels = np.random.default_rng(0).integers(0, 3, (NUM_TEACHERS, 40))
    labels[3] = 1
    teachers = voters.StoredVotes(voters.Votes(labels, 3), Pool(helpers.BLOBS, PUBLIC.inputs))
    monkeypatch.setattr(teacher_training, "VOTES_A_PART", 7 * NUM_TEACHERS)
    accuracies, gaps = teacher_training.measured(teachers, PUBLIC)
    right = labels == PUBLIC.labels
    np.testing.assert_allclose(accuracies.values, right.mean(axis=1))
    recall = [right[:, PUBLIC.labels == one].mean(axis=1) for one in range(3)]
    np.testing.assert_allclose(accuracies.balanced, np.mean(recall, axis=0))
    assert accuracies.num_constant == 1
    ordered = np.sort([np.bincount(column, minlength=3) for column in labels.T], axis=1)
    np.testing.assert_allclose(gaps, (ordered[:, 2] - ordered[:, 1]) / NUM_TEACHERS)


def test_thousands_of_teachers_are_measured_on_fewer_samples(monkeypatch):
    assert teacher_training.enough(PUBLIC, 250) is PUBLIC
    monkeypatch.setattr(teacher_training, "FEWEST_SAMPLES", 8)
    monkeypatch.setattr(teacher_training, "MOST_VOTES", 1_000)
    assert len(teacher_training.enough(PUBLIC, 50)) == 20
    some = teacher_training.enough(PUBLIC, 10_000)
    assert len(some) == 8
    np.testing.assert_array_equal(some.inputs[[0, -1]], PUBLIC.inputs[[0, -1]])
    np.testing.assert_array_equal(some.labels[[0, -1]], PUBLIC.labels[[0, -1]])


# Votes of groups, of any voter.


class Table(voters.Voter):
    """Teachers whose votes on an input are a column that its first pixel names."""

    dataset = helpers.BLOBS
    digest = "ab" * 32

    def __init__(self, labels):
        self.labels = np.asarray(labels)
        self.num_teachers = len(self.labels)

    def votes(self, inputs, progress=None):
        places = inputs[:, 0, 0, 0].astype(int)
        for _ in places:
            if progress is not None:
                progress(1)
        return voters.Votes(self.labels[:, places], self.dataset.num_classes)


def groups_of(places):
    inputs = np.zeros((*np.shape(places), *helpers.BLOBS.input_shape), np.float32)
    inputs[..., 0, 0, 0] = places
    return inputs


def counted_by_hand(labels, places):
    """Counts of groups, one teacher and one group after another."""
    counts = np.zeros((len(places), 3), np.int64)
    for row, group in enumerate(places):
        for teacher in labels:
            named = np.bincount([teacher[place] for place in group], minlength=3)
            tied = np.flatnonzero(named == named.max())
            first = teacher[group[0]]
            counts[row, first if first in tied else tied[0]] += 1
    return counts


@pytest.mark.parametrize("seed", range(20))
def test_a_teacher_has_one_vote_for_a_group(seed, monkeypatch):
    random = np.random.default_rng(seed)
    labels = random.integers(0, 1 + seed % 3, (1 + seed % 6, 12))
    places = random.integers(0, 12, (seed % 5, 1 + seed % 7))
    teachers, told = Table(labels), []
    counts = teachers.group_counts(groups_of(places), told.append).values
    np.testing.assert_array_equal(counts, counted_by_hand(labels, places))
    assert sum(told) == len(places)
    monkeypatch.setattr(voters, "MOST_VOTES", labels.size)
    np.testing.assert_array_equal(teachers.group_counts(groups_of(places)).values, counts)
    if places.shape[1] == 1:
        alone = teachers.counts(groups_of(places)[:, 0]).values
        np.testing.assert_array_equal(counts, alone)
