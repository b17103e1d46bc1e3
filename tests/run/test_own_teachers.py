"""Custom teachers: votes, models, any object with `predict`, and scikit-learn's estimators."""

import dataclasses

import api_helpers
import keras
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier

import pate_tf
from pate_tf.core.sensitive import SensitiveWarning

MECHANISM = pate_tf.GaussianNoisyMax(sigma=0.01)  # hardly any noise: labels are pluralities
RANDOM = np.random.default_rng(0)


@pytest.fixture(scope="module")
def data() -> pate_tf.Data:
    return api_helpers.digits()


class Says:
    """A teacher that always gives one label."""

    def __init__(self, label: int, *, scores: bool = False, number: int = 0) -> None:
        self.label, self.scores, self.number = label, scores, number

    def predict(self, inputs):
        labels = np.full(len(inputs), self.label)
        return np.eye(10)[labels] if self.scores else labels


def alike(number: int) -> list[Says]:
    """Returns teachers that agree but are not copies of each other."""
    return [Says(3, number=place) for place in range(number)]


def released(teachers, data, number=10):
    with pate_tf.Labeller(teachers, MECHANISM, delta=1e-5) as labeller:
        labels = labeller.label(data.pool, number)
    return labels


def test_votes_are_taken_by_their_place_in_the_pool(tmp_path, data):
    # Pluralities are clear, so noise of a hundredth of a vote decides nothing.
    truth = RANDOM.integers(0, 10, 12)
    votes = np.tile(truth, (9, 1))
    votes[:3] = RANDOM.integers(0, 10, (3, 12))
    teachers = pate_tf.Teachers.from_votes(votes, directory=tmp_path)
    assert len(teachers) == 9
    np.testing.assert_array_equal(teachers.votes(data.pool.inputs[:12]), votes)
    labels = released(teachers, data, 12)
    np.testing.assert_array_equal(labels.labels, truth)
    student = pate_tf.Student("random_forest").fit(data.pool, labels)
    statement = student.publish(tmp_path / "out").statement
    assert statement.num_teachers == 9
    with pytest.raises(ValueError, match="not among the 12 stored queries"):
        released(teachers, data, 13)
    with pytest.raises(ValueError, match="not among the 12 stored queries"):
        teachers.votes(data.pool.inputs[:13])


def test_models_of_all_kinds_vote_together(tmp_path, data):
    inputs, labels = data.private.inputs, data.private.labels
    rows = inputs.reshape(len(inputs), -1)
    network = api_helpers.compiled(data.dataset)
    network.fit(inputs, labels, epochs=2, verbose=0)
    tree = DecisionTreeClassifier(random_state=0).fit(rows, labels)
    models = [network, tree, Says(3), Says(3, scores=True)]
    teachers = pate_tf.Teachers.from_models(models, directory=tmp_path)
    votes = teachers.votes(data.pool.inputs[:20])
    queries = data.pool.inputs[:20]
    np.testing.assert_array_equal(votes[0], network.predict(queries, verbose=0).argmax(axis=1))
    np.testing.assert_array_equal(votes[1], tree.predict(queries.reshape(20, -1)))
    assert (votes[2:] == 3).all()
    assert votes.dtype == np.int64
    labels = released(pate_tf.Teachers.from_models(alike(3), directory=tmp_path / "3"), data)
    assert (labels.labels == 3).all()


def test_a_ledger_belongs_to_its_models(tmp_path, data):
    released(pate_tf.Teachers.from_models([Says(3), Says(4)], directory=tmp_path), data)
    again = pate_tf.Teachers.from_models([Says(3), Says(4)], directory=tmp_path)
    with pate_tf.Labeller(again, MECHANISM, delta=1e-5) as labeller:
        assert labeller.spent().num_queries == 10
    others = pate_tf.Teachers.from_models([Says(3), Says(5)], directory=tmp_path)
    with pytest.raises(pate_tf.LedgerError, match="this ledger belongs to other teachers"):
        pate_tf.Labeller(others, MECHANISM, delta=1e-5)


@pytest.mark.parametrize("kind", ["votes", "models"])
def test_fit_uses_given_teachers_as_they_are(kind, tmp_path, data):
    given = {
        "votes": lambda unit: owned(unit, tmp_path),
        "models": lambda unit: pate_tf.Teachers.from_models(
            alike(30), unit=unit, directory=tmp_path
        ),
    }[kind]
    settings = {"mechanism": MECHANISM, "delta": 1e-5, "num_queries": 10, "strategy": "first"}
    fitted = pate_tf.fit(
        data, source=given("record"), student=pate_tf.Student("random_forest"), **settings
    )
    assert (fitted.labels.labels == 3).all()
    assert not (tmp_path / "sensitive" / "teachers").exists()
    with pate_tf.Labeller(given("record"), MECHANISM, delta=1e-5) as labeller:
        assert labeller.spent().num_queries == 10
    with pytest.raises(ValueError, match="can't be trained"):
        given("record").fit(data.private)
    owners = np.arange(len(data.private)) // 2
    of_owners = dataclasses.replace(data, private=dataclasses.replace(data.private, owners=owners))
    with pytest.raises(ValueError, match="source must protect owners"):
        pate_tf.fit(of_owners, source=given("record"), **settings)


class Fails:
    def predict(self, inputs):
        raise RuntimeError("record 918273 is odd")


def two_outputs():
    inputs = keras.Input((8, 8, 1))
    flat = keras.layers.Flatten()(inputs)
    return keras.Model(inputs, [keras.layers.Dense(10)(flat), keras.layers.Dense(10)(flat)])


class Gives:
    def __init__(self, *shape, kind="f4"):
        self.shape, self.kind = shape, kind

    def predict(self, inputs):
        return np.zeros((len(inputs), *self.shape), self.kind)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (Fails(), r"Fails at 1 failed with RuntimeError; it must take an array \[\d+, 8, 8, 1\]"),
        (Says(10), "Says at 1 returned int64 numbers that are not class labels"),
        (Says(-1), "Says at 1 returned int64 numbers that are not class labels"),
        (Gives(1), r"Gives at 1 returned an array \[\d+, 1\] for \d+ inputs"),
        (Gives(7), r"returned an array \[\d+, 7\] for \d+ inputs"),
        (Gives(kind="U3"), "returned <U3 numbers that are not class labels"),
        (two_outputs(), "Functional at 1 returned 2 outputs"),
    ],
)
def test_what_a_model_says_wrong_is_one_line_and_no_record(tmp_path, data, model, said):
    teachers = pate_tf.Teachers.from_models([Says(1), model], directory=tmp_path)
    with pytest.raises(ValueError, match=rf"^models: .*{said}.* a label or 10 scores") as caught:
        released(teachers, data)
    assert "918273" not in str(caught.value)
    with pate_tf.Labeller(teachers, MECHANISM, delta=1e-5) as labeller:
        assert labeller.spent().num_queries == 0  # nothing was charged


def test_one_score_is_of_the_second_of_two_classes(tmp_path):
    inputs = np.array([[-3.0], [0.2], [3.0]])
    data = pate_tf.Data.from_arrays(
        *(inputs, [0, 0, 1], inputs), num_classes=2, value_range=(-9, 9), held_out=0.0
    )
    models = []
    for activation in ("sigmoid", None):
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, activation)])
        model.set_weights([np.array([[1.0]]), np.array([0.0 if activation else 0.1])])
        models.append(model)
    votes = pate_tf.Teachers.from_models(models, directory=tmp_path).votes(data.pool)
    assert votes.tolist() == [[0, 1, 1], [0, 1, 1]]


def test_a_model_that_is_there_twice_has_one_vote(tmp_path, data):
    """Tests the same object, a copy with the same weights, and a second file of the same model."""
    network, same = api_helpers.net(data.dataset), api_helpers.net(data.dataset)
    same.set_weights(network.get_weights())
    tree = DecisionTreeClassifier(random_state=0).fit([[0.0], [1.0]], [0, 1])
    fails = Fails()
    for first, second in (*((network, network), (network, same), (tree, tree)), (fails, fails)):
        with pytest.raises(ValueError, match="models: 1 and 2 are the same and would"):
            pate_tf.Teachers.from_models([Says(1), first, second], directory=tmp_path)
    other = DecisionTreeClassifier(random_state=0).fit([[0.0], [3.0]], [0, 1])
    several = [tree, other, network, fails, Fails()]
    assert len(pate_tf.Teachers.from_models(several, directory=tmp_path)) == 5
    for name in "ab":
        network.save(tmp_path / f"{name}.keras")
    with pytest.raises(ValueError, match=r"/a\.keras and .*/b\.keras are the same"):
        pate_tf.Teachers.from_models(tmp_path)


class Scores:
    def __init__(self, *scores):
        self.scores = scores

    def predict(self, inputs):
        return np.tile(self.scores, (len(inputs), 1))


def test_scores_that_are_not_finite_stop_nothing(tmp_path, data):
    """Whether scores are finite depends on the records that a model was trained on."""
    nan, inf = np.nan, np.inf
    models = [
        Scores(*scores, *[0.0] * 7) for scores in ((nan, nan, 1), (0, -inf, inf), (2, inf, nan))
    ]
    models.append(Scores(*[nan] * 10))
    teachers = pate_tf.Teachers.from_models(models, directory=tmp_path)
    with pytest.warns(SensitiveWarning, match="some teachers return NaN scores"):
        assert teachers.votes(data.pool)[:, 0].tolist() == [2, 2, 1, 0]


@pytest.mark.parametrize("models", [[], [3], [Says], "nowhere"])
def test_what_are_no_models_is_refused(models):
    with pytest.raises(ValueError, match=r"^models(:| must)"):
        pate_tf.Teachers.from_models(models)


def test_one_estimator_for_all_teachers_learns_nothing_of_others(tmp_path, data):
    # warm_start resumes from earlier training, which used another teacher's records.
    shared = LogisticRegression(max_iter=3, warm_start=True)
    votes = [
        pate_tf.Teachers(net, num_teachers=3, directory=tmp_path / name)
        .fit(data.private)
        .votes(data.pool)
        for name, net in (
            ("shared", lambda dataset: shared),
            ("anew", lambda dataset: LogisticRegression(max_iter=3, warm_start=True)),
        )
    ]
    np.testing.assert_array_equal(*votes)
    assert not hasattr(shared, "coef_")


def owned(unit: str, directory: object) -> pate_tf.Teachers:
    return pate_tf.Teachers.from_votes(np.full((30, 10), 3), unit=unit, directory=directory)


def a_folder(directory: object, unit: str, data: pate_tf.Data) -> pate_tf.Teachers:
    directory.mkdir(parents=True)
    api_helpers.net(data.dataset).save(directory / "only.keras")
    return pate_tf.Teachers.from_models(directory, unit=unit, directory=directory / "run")


@pytest.mark.parametrize("kind", ["votes", "models", "folder"])
def test_teachers_of_owners_protect_owners(kind, tmp_path, data):
    by_unit = {
        unit: {
            "votes": lambda unit=unit: owned(unit, tmp_path / unit),
            "models": lambda unit=unit: pate_tf.Teachers.from_models(
                alike(30), unit=unit, directory=tmp_path / unit
            ),
            "folder": lambda unit=unit: a_folder(tmp_path / unit, unit, data),
        }[kind]()
        for unit in ("record", "owner")
    }
    for unit, teachers in by_unit.items():
        assert teachers.unit == teachers.for_pool(data.pool).unit == unit
        assert released(teachers, data).cost.unit == unit


def test_a_ledger_of_records_never_becomes_one_of_owners(tmp_path, data):
    released(owned("record", tmp_path), data)
    with pytest.raises(pate_tf.LedgerError, match="this ledger belongs to other teachers"):
        released(owned("owner", tmp_path), data)


class SharedNoise(keras.layers.Layer):
    """Draws from Keras' own generator, which all models of a process share."""

    def call(self, inputs):
        return inputs + keras.random.normal(keras.ops.shape(inputs))


def noisy_net(dataset):
    net = api_helpers.net(dataset)
    return keras.Sequential([keras.Input(dataset.input_shape), SharedNoise(), *net.layers])


def noisy_compiled(dataset):
    net = noisy_net(dataset)
    net.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return net


REFUSED = r"^model: it shares .*keras.random.SeedGenerator"


@pytest.mark.parametrize("net", [noisy_net, noisy_compiled])
def test_teachers_that_draw_from_what_all_share_are_refused_before_training(net, tmp_path, data):
    with pytest.raises(ValueError, match=REFUSED):
        pate_tf.Teachers(net, num_teachers=2, steps=2, directory=tmp_path).fit(data.private)
    assert not list(tmp_path.rglob("*.npz"))
