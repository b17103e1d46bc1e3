"""Classifiers of scikit-learn as teachers: against twins, in processes, and no code in files."""

import dataclasses
import functools
import os
import pathlib
import pickle
import signal
import sys
import time
import warnings

import numpy as np
import pytest
import skops.io
from classifiers_for_tests import TABLE
from script_processes import modules_after, run_script, start_script
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import MultinomialNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

import pate_tf
from pate_tf.core import artifacts
from pate_tf.core.partition import random_partition
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.teachers import kinds, processes, store, teacher_training
from pate_tf.teachers.kinds import Engine, scikit_learn
from pate_tf.teachers.settings import TeacherConfig

NUM_TEACHERS = 6
TESTS = pathlib.Path(__file__).parents[1]
FOREST, LOGISTIC = "random_forest", "classifiers_for_tests:scaled_logistic"
QUERIES = np.random.default_rng(9).uniform(-1, 1, (200, 4)).astype(np.float32)
SHARES = random_partition(num_records=180, num_teachers=NUM_TEACHERS, seed=0)


def examples() -> PrivateExamples:
    inputs = np.random.default_rng(0).uniform(-1, 1, (180, 4)).astype(np.float32)
    return PrivateExamples(TABLE, inputs, (inputs[:, 0] > 0) + (inputs[:, 1] > 0).astype(int))


def train(folder, model=FOREST, *, private=None, dataset=TABLE, num_processes=1):
    directory = artifacts.RunDirectory(folder)
    assert teacher_training.train(
        config=TeacherConfig(dataset=dataset, num_teachers=NUM_TEACHERS, model=model, seed=5),
        examples=private or examples(),
        partition=SHARES,
        teachers=range(NUM_TEACHERS),
        run_directory=directory,
        engine=Engine(num_processes=num_processes),
        progress=lambda done: None,
    )
    return kinds.load_ensemble(teacher_training.ensemble_folder(directory))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("classifiers")
    train(folder)
    return teacher_training.ensemble_folder(artifacts.RunDirectory(folder))


def twin_of(model: str, seed: int):
    if model == LOGISTIC:
        return make_pipeline(StandardScaler(), LogisticRegression())
    return RandomForestClassifier(n_estimators=100, random_state=seed)


@pytest.mark.parametrize("model", [FOREST, LOGISTIC])
def test_votes_are_those_of_scikit_learn_in_any_number_of_processes(tmp_path, model):
    ensemble = train(tmp_path / "here", model)
    votes, private = ensemble.votes(QUERIES), examples()
    for teacher, records in enumerate(SHARES.all_records()):
        seed = int(np.random.SeedSequence([5, teacher]).generate_state(1)[0])
        twin = twin_of(model, seed).fit(private.inputs[records], private.labels[records])
        np.testing.assert_array_equal(votes.labels[teacher], twin.predict(QUERIES))
    assert train(tmp_path / "apart", model, num_processes=3).digest == ensemble.digest


def test_a_share_without_a_class_still_votes(tmp_path):
    private = examples()
    labels = private.labels.copy()
    labels[SHARES.records_of(0)] = 2
    second = SHARES.records_of(1)
    labels[second] = 2 * (private.inputs[second, 0] > 0)
    ensemble = train(tmp_path, LOGISTIC, private=PrivateExamples(TABLE, private.inputs, labels))
    votes = ensemble.votes(QUERIES)
    assert set(votes.labels[0].tolist()) == {2}
    assert set(votes.labels[1].tolist()) == {0, 2}


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("test_scikit_learn:nosuch", "model: can't import"),
        ("classifiers_for_tests:own_class", "expected types of scikit-learn alone"),
        (
            "classifiers_for_tests:refuses_negative_numbers",
            "model: expected a classifier that learns from",
        ),
    ],
)
def test_what_can_not_be_stored_or_learns_nothing_leaves_no_trace(tmp_path, model, message):
    with pytest.raises(ValueError, match=message):
        train(tmp_path / "none", model)
    assert not (tmp_path / "none").exists()


def test_records_and_queries_that_are_not_finite_are_refused(trained, tmp_path):
    broken = examples().inputs.copy()
    broken[7, 1] = np.nan
    with pytest.raises(ValueError, match="inputs of table: expected finite numbers"):
        train(tmp_path, private=PrivateExamples(TABLE, broken, examples().labels))
    with pytest.raises(ValueError, match="inputs: expected finite numbers"):
        kinds.load_ensemble(trained).votes(np.full((3, 4), np.nan, np.float32))


def test_no_record_stops_a_run_or_makes_it_warn(tmp_path):
    table = dataclasses.replace(TABLE, value_range=(0.0, 2.0))
    inputs = examples().inputs + 1.0
    inputs[SHARES.records_of(3)[0]] = -0.625
    private = PrivateExamples(table, inputs, examples().labels)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ensemble = train(
            tmp_path,
            "classifiers_for_tests:refuses_negative_numbers",
            private=private,
            dataset=table,
        )
        labels = ensemble.votes(QUERIES + 1.0).labels
    for teacher, records in enumerate(SHARES.all_records()):
        own = private.labels[records]
        if teacher == 3:
            expected = np.full(len(QUERIES), np.bincount(own).argmax())
        else:
            expected = MultinomialNB().fit(private.inputs[records], own).predict(QUERIES + 1.0)
        np.testing.assert_array_equal(labels[teacher], expected)


@pytest.mark.parametrize(
    "build",
    [
        lambda: HistGradientBoostingClassifier(categorical_features=[0, 1], max_iter=5),
        lambda: make_pipeline(OneHotEncoder(categories=[range(5)] * 3), LogisticRegression()),
    ],
)
def test_classifiers_of_categories_are_stored_and_vote(tmp_path, build):
    random = np.random.default_rng(0)
    rows = random.integers(0, 5, (400, 3)).astype(np.float32)
    labels = (rows[:, 0] == 3).astype(int)
    data = pate_tf.Data.from_arrays(
        *(rows[:300], labels[:300], rows[300:], labels[300:]),
        num_classes=2,
        value_range=(0, 4),
        categories={},
    )
    teachers = pate_tf.Teachers(lambda dataset: build(), num_teachers=3, directory=tmp_path)
    teachers.fit(data.private)
    stored = pate_tf.Teachers.load(tmp_path)
    votes = stored.votes(data.pool)
    assert (votes == labels[300 : 300 + len(data.pool)]).mean() > 0.9


def test_objects_and_wrong_arrays_are_refused(trained, tmp_path):
    arrays = artifacts.read_arrays(trained / scikit_learn.FILE)
    description = artifacts.read_json(trained / kinds.DESCRIPTION)
    untrusted = skops.io.dumps(FunctionTransformer(print))
    partly = skops.io.dumps(FunctionTransformer(functools.partial(print, 1)))
    artifacts.write_json(tmp_path / kinds.DESCRIPTION, description)

    def load_with(changes: dict[str, np.ndarray]) -> None:
        with open(tmp_path / scikit_learn.FILE, "wb") as file:
            np.savez(file, **{**arrays, **changes})
        kinds.load_ensemble(tmp_path)

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
        {"3/5": np.array(5)},
        {"more": np.zeros(3)},
        {"6/0": arrays["3/0"]},
        {"3/0": np.frombuffer(pickle.dumps(Payload()), np.uint8)},
    ):
        with pytest.raises(ValueError, match="teachers: expected a complete ensemble"):
            load_with(changes)
    for content in (pickle.dumps(Payload()), untrusted, partly):
        broken = {f"{teacher}/0": np.frombuffer(content, np.uint8) for teacher in range(6)}
        artifacts.write_arrays(tmp_path / scikit_learn.FILE, broken)
        with pytest.raises(ValueError, match="teachers: expected a complete ensemble") as caught:
            kinds.load_ensemble(tmp_path)
        assert "\n" not in str(caught.value)
    assert ran == []


def test_forests_of_another_data_set_are_refused_and_other_trees_are_others(trained, tmp_path):
    arrays = artifacts.read_arrays(trained / scikit_learn.FILE)
    description = artifacts.read_json(trained / kinds.DESCRIPTION)
    artifacts.write_json(tmp_path / kinds.DESCRIPTION, description)
    changed = {**arrays, "2/3": arrays["2/3"] + 1e-9 * (arrays["2/3"] != 0)}
    artifacts.write_arrays(tmp_path / scikit_learn.FILE, changed)
    assert kinds.load_ensemble(tmp_path).digest != kinds.load_ensemble(trained).digest
    description["dataset"]["input_shape"] = [5]
    artifacts.write_json(tmp_path / kinds.DESCRIPTION, description)
    with pytest.raises(ValueError, match="expected forests of 5 features and 3 classes, got 4"):
        kinds.load_ensemble(tmp_path)


def test_the_workers_start_without_what_takes_long():
    found = modules_after("import pate_tf.models.classifier, pate_tf.teachers.processes")
    assert found.isdisjoint({"tensorflow", "keras", "skops"})


def test_errors_come_back_from_the_processes():
    results = processes.in_order(int, [("1",), ("2",), ("x",), ("4",)], num_processes=2)
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

    results = processes.in_order(abs, arguments(), num_processes=2)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    assert len(taken) <= 2 * processes.AHEAD + 3
    results.close()


WAVES = (
    "--dataset=data_sets_for_tests:waves",
    "--nb_teachers=10",
    "--train_dir=run",
)


def own_data() -> None:
    sys.path.extend([str(TESTS / "data"), str(TESTS / "models")])


def killed_after_the_first_save() -> None:
    """Finished teachers are saved at once; the process dies when the first are."""
    own_data()
    store.SECONDS_BETWEEN_SAVES = 0.0
    rename = os.replace

    def replace(source, target, **options):
        rename(source, target, **options)
        if "finished-" in str(target):
            os.kill(os.getpid(), signal.SIGKILL)

    os.replace = replace


def children_of(pid: int) -> list[int]:
    path = pathlib.Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in path.read_text().split()] if path.exists() else []


def is_running(pid: int) -> bool:
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_killed_run_goes_on_and_ends_as_an_undisturbed_one(tmp_path):
    for name in ("killed", "undisturbed"):
        (tmp_path / name).mkdir()
    flags = ("train_teachers.py", *WAVES, f"--model={LOGISTIC}")
    killed = start_script(*flags, folder=tmp_path / "killed", setup=killed_after_the_first_save)
    workers: set[int] = set()
    while killed.process.is_alive():
        workers.update(children_of(killed.process.pid))
        time.sleep(0.02)
    assert killed.wait().code == -signal.SIGKILL
    teachers = tmp_path / "killed" / "run" / "sensitive" / "teachers"
    assert list(teachers.glob("finished-*.npz"))
    assert not (teachers / "ensemble").exists()
    for folder in ("killed", "undisturbed"):
        ended = run_script(*flags, folder=tmp_path / folder, setup=own_data)
        assert (ended.code, ended.err) == (0, "")
        assert f"10 of {LOGISTIC}\n" in ended.out
        assert "majority-class baseline" in ended.out
    one, other = (
        kinds.load_ensemble(tmp_path / folder / "run" / "sensitive" / "teachers" / "ensemble")
        for folder in ("killed", "undisturbed")
    )
    assert one.digest == other.digest
    deadline = time.monotonic() + 20
    while any(map(is_running, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(is_running, workers))
