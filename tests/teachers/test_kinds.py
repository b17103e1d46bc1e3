"""The contract of every kind of teacher, including a toy in one file."""

import json
import os
import shutil

import architectures_for_tests
import keras
import numpy as np
import pytest
import teacher_helpers as helpers
import toy_kind
from script_processes import run_script

import pate_tf
from pate_tf.core import artifacts
from pate_tf.core.public import Pool
from pate_tf.core.sensitive import PrivateExamples, Sharding, owner_partition
from pate_tf.models import estimators, forest, ridge
from pate_tf.representations import catalogue as representations
from pate_tf.teachers import teacher_kinds, voters
from pate_tf.teachers.run_folder import recommended_num_teachers
from pate_tf.teachers.teacher_kinds import networks
from pate_tf.teachers.teacher_set import Teachers

IMAGES, LABELS = helpers.blob_images(80, seed=3)
QUERIES, _ = helpers.blob_images(50, seed=4)
POOL = Pool(helpers.BLOBS, IMAGES)
NUM_TEACHERS, SEED = 5, 5
EMPTY = 1  # the teacher without a record: its owners are gone
NAMES = [
    name
    for name in map("owner {}".format, range(40))
    if owner_partition([name], num_teachers=NUM_TEACHERS, seed=SEED).assignment[0] != EMPTY
]
OWNERS = np.array([NAMES[place % 17] for place in range(80)])
SHARDS = owner_partition(OWNERS, num_teachers=NUM_TEACHERS, seed=SEED)
LOGISTIC = "classifiers_for_tests:scaled_logistic"


def compiled(dataset):
    model = architectures_for_tests.small(dataset)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


CASES = {
    "network": {"net": "architectures_for_tests:with_buffers", "steps": 3},
    "compiled": {"net": compiled, "steps": 3},
    "forest": {"net": forest.RANDOM_FOREST},
    "logistic on features": {"net": LOGISTIC, "representation": "raw"},
    "ridge": {"net": "ridge", "representation": "raw"},
    "toy": {"net": "most_frequent"},
}


@pytest.fixture(scope="module", autouse=True)
def few_trees_and_small_chunks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forest, "NUM_TREES", 5)
        patch.setattr(networks, "CHUNK", 2)  # of five teachers, so that chunks are joined
        yield


@pytest.fixture(scope="module", params=CASES)
def case(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def train(case):
    """Trains teachers of a kind into a folder."""

    def run(folder, *, labels=LABELS, pool=POOL, teachers=None, **settings) -> Teachers:
        private = PrivateExamples(helpers.BLOBS, IMAGES, labels, OWNERS)
        fields = {"num_teachers": NUM_TEACHERS, "seed": SEED, **CASES[case], **settings}
        return Teachers(directory=folder, **fields).fit(private, pool, teachers=teachers)

    return run


@pytest.fixture(scope="module")
def whole(train, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    train(folder)
    return folder


def ensemble_in(folder):
    return folder / "sensitive" / "teachers" / "ensemble"


def load(folder):
    return teacher_kinds.load_ensemble(ensemble_in(folder))


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
    assert loaded.covers_pool
    if case not in ("network", "compiled"):
        assert set(votes.labels[EMPTY].tolist()) == {0}  # without information
    with pytest.raises(ValueError, match="queries must"):
        loaded.votes(np.zeros((2, 28, 28, 1), np.uint8))


def slow_votes(model, encoder):
    """Returns votes of teachers on features, one teacher and one query at a time."""
    features, queries = encoder.features(IMAGES), encoder.features(QUERIES)
    for teacher, shard in enumerate(SHARDS.all_records()):
        rows, labels = features[shard], LABELS[shard]
        if model != "ridge":
            seed = int(np.random.SeedSequence([SEED, teacher]).generate_state(1)[0])
            arrays = estimators.fit(model, encoder.feature_dataset, rows, labels, seed)
            yield estimators.from_arrays(arrays).predict(queries)
        elif not len(shard):
            yield np.zeros(len(queries), int)
        else:
            weights, offsets = ridge.fit(
                rows, labels, num_classes=3, num_views=encoder.num_views, scale=encoder.scale
            )
            yield (queries @ weights.astype(np.float64) + offsets).argmax(axis=1)


def test_votes_on_features_are_those_of_a_slow_twin(whole, case):
    if "representation" in CASES[case]:
        slow = list(slow_votes(CASES[case]["net"], representations.encoder_of(POOL, "raw", SEED)))
        # Float16, or a batch of another size, may change a vote between equal classes.
        assert (load(whole).votes(QUERIES).labels == slow).mean() > 0.99
        assert load(whole).encoder_digest


def test_other_settings_are_refused_and_other_labels_change_nothing(train, whole):
    before = load(whole).digest
    with pytest.raises(ValueError, match=r"other settings: seed\. Use"):
        train(whole, seed=6)
    with pytest.warns(UserWarning, match="They are used, and the private records are not read"):
        train(whole, labels=np.roll(LABELS, 1))
    assert load(whole).digest == before


def test_an_ensemble_is_known_by_what_it_learnt(train, whole, tmp_path):
    labels = LABELS.copy()
    labels[::2] = 2
    assert train(tmp_path / "other", labels=labels).identified.digest != load(whole).digest
    shutil.copytree(ensemble_in(whole), tmp_path / "moved")
    assert teacher_kinds.load_ensemble(tmp_path / "moved").digest == load(whole).digest
    path = tmp_path / "moved" / teacher_kinds.DESCRIPTION
    path.write_text(json.dumps({**artifacts.read_json(path), "seed": 77}))
    assert teacher_kinds.load_ensemble(tmp_path / "moved").digest != load(whole).digest


@pytest.mark.parametrize("left", [0.5, None])
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
        with pytest.raises(ValueError, match="teachers: ") as caught:
            teacher_kinds.load_ensemble(tmp_path / "ensemble")
        assert "\n" not in str(caught.value)
        path.write_bytes(content)
    path = tmp_path / "ensemble" / teacher_kinds.DESCRIPTION
    path.write_text(json.dumps({**artifacts.read_json(path), "kind": "nosuch"}))
    with pytest.raises(ValueError, match="teachers: "):
        teacher_kinds.load_ensemble(tmp_path / "ensemble")


def test_an_interrupted_save_leaves_the_old_ensemble(whole, case, tmp_path, monkeypatch):
    shutil.copytree(whole, tmp_path / "run")
    target = ensemble_in(tmp_path / "run")
    kind = teacher_kinds.find_kind(CASES[case]["net"], helpers.BLOBS)

    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(type(kind), "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        teacher_kinds.save_ensemble(kind, target, None, [])
    assert not [name for name in os.listdir(target.parent) if name.startswith(".writing")]
    assert load(tmp_path / "run").digest == load(whole).digest


# Settings and kinds.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"net": "nosuch"}, "model must be ridge, cnn, .* or module:function"),
        ({"net": "nosuch:nosuch"}, "model: can't import"),
        ({"net": lambda dataset: "nothing"}, "must return a teacher"),
        ({"net": "random_forest", "steps": 3}, "max_steps does not apply to random_forest"),
        ({"net": "ridge", "class_weights": (1, 2, 3)}, "class_weights does not apply to ridge"),
        ({"net": compiled, "learning_rate": 0.1}, "learning_rate does not apply to"),
        ({"net": "cnn", "representation": "raw"}, "representation must not be given for cnn"),
        ({"net": "mlp", "class_weights": (1, 2)}, "class_weights must have the shape \\[3\\]"),
        ({"net": "ridge"}, "pool is required"),
        ({"net": "mlp", "num_teachers": None}, "num_teachers is required: with owners"),
    ],
)
def test_what_does_not_fit_is_one_line_and_leaves_no_trace(tmp_path, settings, message):
    private = PrivateExamples(helpers.BLOBS, IMAGES, LABELS, OWNERS)
    fields = {"num_teachers": NUM_TEACHERS, **settings}
    with pytest.raises(ValueError, match=message) as caught:
        Teachers(directory=tmp_path / "run", **fields).fit(private)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_defaults_are_what_is_recommended_for_the_kind_of_data(tmp_path):
    private = PrivateExamples(helpers.BLOBS, IMAGES, LABELS)
    for number, (settings, pool, model, teachers) in enumerate(
        [
            ({"representation": "raw"}, POOL, "ridge", 2),
            ({"steps": 1, "num_teachers": 3}, POOL, "cnn", 3),
            ({"num_teachers": 3, "steps": 1}, None, "cnn", 3),
        ]
    ):
        fitted = Teachers(directory=tmp_path / str(number), **settings).fit(private, pool)
        assert fitted.identified.config.model == model and len(fitted) == teachers
    assert recommended_num_teachers(60_000, helpers.BLOBS) == 2_000
    assert recommended_num_teachers(5, helpers.BLOBS) == 1


def test_a_toy_kind_of_one_file_works_from_python_and_from_the_flag(tmp_path):
    data = pate_tf.Data.load("digits")
    teachers = Teachers("most_frequent", num_teachers=4, directory=tmp_path / "python")
    votes = teachers.fit(data.private).votes(data.pool)
    assert votes.shape == (4, len(data.pool)) and (votes == votes[:, :1]).all()
    flags = ("train_teachers.py", "--nb_teachers=4", "--train_dir=script", "--model=most_frequent")
    ended = run_script(*flags, folder=tmp_path, setup=toy_kind.add)
    assert ended.code == 0, ended.err
    assert "4 of most_frequent" in ended.out
    loaded = Teachers.load(tmp_path / "script")
    assert loaded.identified.digest == teachers.identified.digest


# Votes of any voter.


class Table(voters.Voter):
    """Teachers whose votes on an input are the column given by its first pixel."""

    dataset = helpers.BLOBS
    digest = "ab" * 32

    def __init__(self, labels):
        self.labels = np.asarray(labels)
        self.sharding = Sharding(num_teachers=len(self.labels))

    def votes(self, inputs, progress=None):
        places = inputs[:, 0, 0, 0].astype(int)
        progress(len(places))
        return voters.Votes(self.labels[:, places], self.dataset.num_classes)


@pytest.mark.parametrize("seed", range(5))
def test_counts_do_not_depend_on_how_many_votes_are_in_memory(seed, monkeypatch):
    random = np.random.default_rng(seed)
    labels = random.integers(0, 3, (1 + seed, 12))
    places = random.integers(0, 12, 3 * seed)
    inputs = np.zeros((len(places), *helpers.BLOBS.input_shape), np.float32)
    inputs[:, 0, 0, 0] = places
    teachers = Table(labels)
    expected = [np.bincount(labels[:, place], minlength=3) for place in places]
    monkeypatch.setattr(voters, "MAX_VOTES", 2 * len(labels))
    told = []
    counts = teachers.counts(inputs, told.append).values
    np.testing.assert_array_equal(counts, np.reshape(expected, (-1, 3)))
    assert sum(told) == len(places)
