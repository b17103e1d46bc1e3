"""Classifiers of scikit-learn as teachers: against reference versions, in processes, and no code in
files.
"""

import dataclasses
import pickle
import warnings

import numpy as np
import pytest
from classifiers_for_tests import TABLE
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import MultinomialNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import pate_tf
from pate_tf.core import artifacts
from pate_tf.core.sensitive import PrivateExamples, random_partition
from pate_tf.teachers import teacher_kinds
from pate_tf.teachers.teacher_kinds import scikit_learn

NUM_TEACHERS = 6
FOREST, LOGISTIC = "random_forest", "classifiers_for_tests:scaled_logistic"
QUERIES = np.random.default_rng(9).uniform(-1, 1, (200, 4)).astype(np.float32)
SHARDS = random_partition(num_records=180, num_teachers=NUM_TEACHERS, seed=5)


def examples() -> PrivateExamples:
    inputs = np.random.default_rng(0).uniform(-1, 1, (180, 4)).astype(np.float32)
    return PrivateExamples(TABLE, inputs, (inputs[:, 0] > 0) + (inputs[:, 1] > 0).astype(int))


def train(folder, model=FOREST, *, private=None, num_processes=1):
    teachers = pate_tf.Teachers(
        *(model,), num_teachers=NUM_TEACHERS, seed=5, directory=folder, num_processes=num_processes
    )
    return teachers.fit(private or examples()).identified


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("classifiers")
    train(folder)
    return folder / "sensitive" / "teachers" / "ensemble"


def twin_of(model: str, seed: int):
    if model == LOGISTIC:
        return make_pipeline(StandardScaler(), LogisticRegression())
    return RandomForestClassifier(n_estimators=100, random_state=seed)


@pytest.mark.parametrize("model", [FOREST, LOGISTIC])
def test_votes_are_those_of_scikit_learn_in_any_number_of_processes(tmp_path, model):
    ensemble = train(tmp_path / "here", model)
    votes, private = ensemble.votes(QUERIES), examples()
    for teacher, records in enumerate(SHARDS.all_records()):
        seed = int(np.random.SeedSequence([5, teacher]).generate_state(1)[0])
        twin = twin_of(model, seed).fit(private.inputs[records], private.labels[records])
        np.testing.assert_array_equal(votes.labels[teacher], twin.predict(QUERIES))
    if model == LOGISTIC:
        assert train(tmp_path / "apart", model, num_processes=2).digest == ensemble.digest


def test_no_record_stops_a_run_or_makes_it_warn(tmp_path):
    table = dataclasses.replace(TABLE, value_range=(0.0, 2.0))
    inputs = examples().inputs + 1.0
    inputs[SHARDS.all_records()[3][0]] = -0.625
    private = PrivateExamples(table, inputs, examples().labels)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ensemble = train(
            tmp_path, "classifiers_for_tests:refuses_negative_numbers", private=private
        )
        labels = ensemble.votes(QUERIES + 1.0).labels
    for teacher, records in enumerate(SHARDS.all_records()):
        own = private.labels[records]
        if teacher == 3:
            expected = np.full(len(QUERIES), np.bincount(own).argmax())
        else:
            expected = MultinomialNB().fit(private.inputs[records], own).predict(QUERIES + 1.0)
        np.testing.assert_array_equal(labels[teacher], expected)


def test_objects_and_wrong_arrays_are_refused(trained, tmp_path):
    arrays = artifacts.read_arrays(trained / scikit_learn.FILE)
    description = artifacts.read_json(trained / teacher_kinds.DESCRIPTION)
    artifacts.write_json(tmp_path / teacher_kinds.DESCRIPTION, description)

    def load_with(changes: dict[str, np.ndarray]) -> None:
        with open(tmp_path / scikit_learn.FILE, "wb") as file:
            np.savez(file, **{**arrays, **changes})
        teacher_kinds.load_ensemble(tmp_path)

    load_with({})
    ran = []

    class Payload:
        def __reduce__(self):
            return ran.append, (1,)

    wild = arrays["3/1"].copy()
    wild[0, 0] = 2**30
    for changes in (
        {"0/0": np.array([Payload()], object)},  # np.load would have to unpickle it
        {"3/1": wild},
        {"more": np.zeros(3)},
        {"6/0": arrays["3/0"]},
        {"3/0": np.frombuffer(pickle.dumps(Payload()), np.uint8)},
    ):
        with pytest.raises(ValueError, match="incomplete or damaged"):
            load_with(changes)
    assert ran == []


def test_errors_come_back_from_the_processes():
    results = scikit_learn.in_order(int, [("1",), ("2",), ("x",), ("4",)], num_processes=2)
    assert next(results) == 1
    assert next(results) == 2
    with pytest.raises(ValueError, match="invalid literal"):
        next(results)


def test_arguments_are_taken_as_results_are():
    taken = []

    def arguments():
        for number in range(100):
            taken.append(number)
            yield (number,)

    results = scikit_learn.in_order(abs, arguments(), num_processes=2)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    assert len(taken) <= 2 * scikit_learn.AHEAD + 3
    results.close()
