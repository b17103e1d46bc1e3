import dataclasses
import json
import os
import pathlib
import pickle
import shutil
import signal
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest
import skops.io
import tensorflow as tf
from script_processes import REPOSITORY, run_script, start_script
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import MultinomialNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from pate_tf.api import teacher_training
from pate_tf.core import artifacts
from pate_tf.core.dataset import Dataset
from pate_tf.core.partition import random_partition
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.teachers import classifiers, processes
from pate_tf.teachers.settings import TeacherConfig

NUM_TEACHERS = 6
TABLE = Dataset(
    name="table",
    kind="tabular",
    input_shape=(4,),
    value_range=(-1.0, 1.0),
    num_classes=3,
    pool_size=10,
)
TESTS = pathlib.Path(__file__).parents[1]
LOGISTIC = "classifiers_for_tests:scaled_logistic"


def examples(num: int = 180, seed: int = 0) -> PrivateExamples:
    random = np.random.default_rng(seed)
    inputs = random.uniform(-1, 1, (num, 4)).astype(np.float32)
    return PrivateExamples(TABLE, inputs, (inputs[:, 0] > 0) + (inputs[:, 1] > 0).astype(int))


def config(**changes: object) -> TeacherConfig:
    fields = {
        "dataset": TABLE,
        "num_teachers": NUM_TEACHERS,
        "model": "random_forest",
        "max_steps": 1,
        "batch_size": 1,
        "learning_rate": 0.1,
        "seed": 5,
    }
    return TeacherConfig(**{**fields, **changes})


def partition(num: int = 180):
    return random_partition(num_records=num, num_teachers=NUM_TEACHERS, seed=0)


def train(folder: pathlib.Path, teachers=range(NUM_TEACHERS), **options) -> bool:
    arguments = {
        "config": config(),
        "examples": examples(),
        "partition": partition(),
        "teachers": list(teachers),
        "run_directory": artifacts.RunDirectory(folder),
        "devices": tf.distribute.OneDeviceStrategy("/CPU:0"),
        "progress": lambda done: None,
    }
    return teacher_training.train(**{**arguments, **options})


def load(folder: pathlib.Path) -> classifiers.ClassifierEnsemble:
    return teacher_training.load_ensemble(
        teacher_training.ensemble_folder(artifacts.RunDirectory(folder))
    )


@pytest.fixture
def one_process(monkeypatch):
    monkeypatch.setattr(classifiers, "num_cores", lambda: 1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("classifiers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(classifiers, "num_cores", lambda: 1)
        assert train(folder)
    return folder


@pytest.fixture(scope="module")
def trained_logistic(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logistic")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(classifiers, "num_cores", lambda: 1)
        assert train(folder, config=config(model=LOGISTIC))
    return folder


QUERIES = np.random.default_rng(9).uniform(-1, 1, (200, 4)).astype(np.float32)


def test_votes_are_those_of_scikit_learns_forests_on_each_share(trained):
    ensemble = load(trained)
    done = []
    votes = ensemble.votes(QUERIES, done.append)
    assert sum(done) == len(QUERIES)
    private = examples()
    for teacher in range(NUM_TEACHERS):
        records = partition().records_of(teacher)
        seed = int(np.random.SeedSequence([5, teacher]).generate_state(1)[0])
        twin = RandomForestClassifier(n_estimators=100, random_state=seed)
        twin.fit(private.inputs[records], private.labels[records])
        np.testing.assert_array_equal(votes.labels[teacher], twin.predict(QUERIES))
    assert (ensemble.dataset, ensemble.num_teachers, ensemble.unit) == (TABLE, 6, "record")


def test_votes_are_those_of_scikit_learns_classifiers_on_each_share(trained_logistic):
    votes = load(trained_logistic).votes(QUERIES)
    private = examples()
    for teacher in range(NUM_TEACHERS):
        records = partition().records_of(teacher)
        twin = make_pipeline(StandardScaler(), LogisticRegression())
        twin.fit(private.inputs[records], private.labels[records])
        np.testing.assert_array_equal(votes.labels[teacher], twin.predict(QUERIES))


def test_processes_side_by_side_give_the_same_teachers(
    trained, trained_logistic, tmp_path, monkeypatch
):
    monkeypatch.setattr(classifiers, "num_cores", lambda: 3)
    assert train(tmp_path / "forests")
    assert load(tmp_path / "forests").digest == load(trained).digest
    assert train(tmp_path / "logistic", config=config(model=LOGISTIC))
    assert load(tmp_path / "logistic").digest == load(trained_logistic).digest


def test_a_share_without_a_class_still_votes(tmp_path, one_process):
    private = examples()
    labels = private.labels.copy()
    labels[partition().records_of(0)] = 2
    second = partition().records_of(1)
    labels[second] = 2 * (private.inputs[second, 0] > 0)
    assert train(
        tmp_path,
        config=config(model=LOGISTIC),
        examples=PrivateExamples(TABLE, private.inputs, labels),
    )
    votes = load(tmp_path).votes(QUERIES)
    assert set(votes.labels[0].tolist()) == {2}
    assert set(votes.labels[1].tolist()) == {0, 2}


def test_a_teacher_depends_on_its_own_records_alone(trained, tmp_path, one_process):
    private = examples()
    records = partition().records_of(2)
    inputs = private.inputs.copy()
    inputs[records] = -inputs[records]
    changed = PrivateExamples(TABLE, inputs, private.labels)
    assert train(tmp_path, examples=changed)
    one, other = load(trained).votes(QUERIES), load(tmp_path).votes(QUERIES)
    same = (one.labels == other.labels).all(axis=1)
    assert same.tolist() == [teacher != 2 for teacher in range(NUM_TEACHERS)]
    assert load(trained).digest != load(tmp_path).digest


@pytest.fixture(params=["random_forest", LOGISTIC])
def model(request):
    return request.param


@pytest.fixture
def whole(model, trained, trained_logistic):
    return load(trained_logistic if model == LOGISTIC else trained)


def test_ranges_add_up_to_the_same_ensemble(model, whole, tmp_path, one_process):
    progress = []
    options = {"config": config(model=model), "progress": progress.append}
    assert not train(tmp_path, [0, 1, 2], **options)
    assert sum(progress) == 3
    assert train(tmp_path, **options)
    assert load(tmp_path).digest == whole.digest


def test_runs_of_several_jobs_are_merged(model, whole, tmp_path, one_process):
    one, other = tmp_path / "one", tmp_path / "other"
    train(one, [0, 1, 2], config=config(model=model))
    merge_from = [artifacts.RunDirectory(one)]
    assert train(other, [3, 4, 5], config=config(model=model), merge_from=merge_from)
    assert load(other).digest == whole.digest


def test_another_configuration_or_other_data_are_refused(trained, one_process):
    with pytest.raises(ValueError, match=r"other teachers \(seed: 5 in this folder, 6 now\)"):
        train(trained, config=config(seed=6))
    with pytest.raises(ValueError, match=r"\(records: others in this folder than now\)"):
        train(trained, examples=examples(seed=1))


def test_models_that_fit_no_data_or_no_cluster_leave_no_trace(tmp_path, one_process):
    broken = examples().inputs.copy()
    broken[7, 1] = np.nan
    with pytest.raises(ValueError, match="inputs of table: expected finite numbers"):
        train(tmp_path, examples=PrivateExamples(TABLE, broken, examples().labels))
    assert not teacher_training.ensemble_folder(artifacts.RunDirectory(tmp_path)).exists()
    with pytest.raises(ValueError, match="model: can't import"):
        train(tmp_path / "none", config=config(model="test_classifiers:nosuch"))
    with pytest.raises(ValueError, match="expected types of scikit-learn alone"):
        train(tmp_path / "none", config=config(model="classifiers_for_tests:own_class"))
    assert not (tmp_path / "none").exists()


def test_no_record_stops_a_run_or_makes_it_warn(tmp_path, one_process):
    table = dataclasses.replace(TABLE, value_range=(0.0, 2.0))
    inputs = examples().inputs + 1.0
    inputs[partition().records_of(3)[0]] = -0.625
    private = PrivateExamples(table, inputs, examples().labels)
    model = config(dataset=table, model="classifiers_for_tests:refuses_negative_numbers")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert train(tmp_path, config=model, examples=private)
        labels = load(tmp_path).votes(QUERIES + 1.0).labels
    for teacher, records in enumerate(partition().all_records()):
        own = private.labels[records]
        if teacher == 3:
            expected = np.full(len(QUERIES), np.bincount(own).argmax())
        else:
            expected = MultinomialNB().fit(private.inputs[records], own).predict(QUERIES + 1.0)
        np.testing.assert_array_equal(labels[teacher], expected)


def test_a_classifier_that_learns_nothing_is_told_before_anything_is_done(tmp_path, one_process):
    model = config(model="classifiers_for_tests:refuses_negative_numbers")
    with pytest.raises(ValueError, match="model: expected a classifier that learns from"):
        train(tmp_path / "none", config=model)
    assert not (tmp_path / "none").exists()


def test_a_single_savedmodel_of_each_forest_is_refused(trained):
    with pytest.raises(ValueError, match="export_each: expected Keras teachers"):
        teacher_training.export_each(artifacts.RunDirectory(trained), config())


@pytest.mark.parametrize("file", ["classifiers.npz", "ensemble.json"])
def test_a_truncated_ensemble_is_one_clear_line(trained, tmp_path, file):
    source = teacher_training.ensemble_folder(artifacts.RunDirectory(trained))
    shutil.copytree(source, tmp_path / "ensemble")
    os.truncate(tmp_path / "ensemble" / file, 100)
    with pytest.raises(ValueError, match="teachers: expected a complete ensemble") as caught:
        teacher_training.load_ensemble(tmp_path / "ensemble")
    assert "\n" not in str(caught.value)


def test_objects_and_wrong_arrays_are_refused(trained, tmp_path):
    source = teacher_training.ensemble_folder(artifacts.RunDirectory(trained))
    arrays = artifacts.read_arrays(source / classifiers.FILE)
    description = artifacts.read_json(source / "ensemble.json")
    untrusted = skops.io.dumps(FunctionTransformer(print))

    def load_with(**changes: np.ndarray) -> None:
        artifacts.write_json(tmp_path / "ensemble.json", description)
        with open(tmp_path / classifiers.FILE, "wb") as file:
            np.savez(file, **{**arrays, **changes})
        classifiers.ClassifierEnsemble(tmp_path)

    load_with()
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
            load_with(**changes)
    for content in (pickle.dumps(Payload()), untrusted):
        broken = {f"{teacher}/0": np.frombuffer(content, np.uint8) for teacher in range(6)}
        artifacts.write_arrays(tmp_path / classifiers.FILE, broken)
        with pytest.raises(ValueError, match="got a broken one: teacher 0: classifier") as caught:
            classifiers.ClassifierEnsemble(tmp_path)
        assert "\n" not in str(caught.value)
    assert ran == []


def test_forests_are_read_under_the_name_that_they_had(trained, tmp_path):
    source = teacher_training.ensemble_folder(artifacts.RunDirectory(trained))
    shutil.copytree(source, tmp_path / "ensemble")
    (tmp_path / "ensemble" / "classifiers.npz").rename(tmp_path / "ensemble" / "forests.npz")
    assert teacher_training.load_ensemble(tmp_path / "ensemble").digest == load(trained).digest


def test_forests_of_another_data_set_are_refused(trained, tmp_path):
    source = teacher_training.ensemble_folder(artifacts.RunDirectory(trained))
    description = artifacts.read_json(source / "ensemble.json")
    description["dataset"]["input_shape"] = [5]
    artifacts.write_json(tmp_path / "ensemble.json", description)
    (tmp_path / classifiers.FILE).write_bytes((source / classifiers.FILE).read_bytes())
    with pytest.raises(ValueError, match="expected forests of 5 features and 3 classes, got 4"):
        classifiers.ClassifierEnsemble(tmp_path)


def test_the_digest_depends_on_forests_and_configuration(trained, tmp_path):
    source = teacher_training.ensemble_folder(artifacts.RunDirectory(trained))
    arrays = artifacts.read_arrays(source / classifiers.FILE)
    description = artifacts.read_json(source / "ensemble.json")
    digests = {load(trained).digest}
    changed = {**arrays, "2/3": arrays["2/3"] + 1e-9 * (arrays["2/3"] != 0)}
    for number, (content, about) in enumerate(
        [(changed, description), (arrays, {**description, "seed": 77})]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        artifacts.write_json(folder / "ensemble.json", about)
        artifacts.write_arrays(folder / classifiers.FILE, content)
        digests.add(classifiers.ClassifierEnsemble(folder).digest)
    assert len(digests) == 3


@pytest.mark.parametrize(
    ("queries", "words"),
    [
        (np.zeros((3, 5), np.float32), r"queries: expected \[num_queries, 4\], got \[3, 5\]"),
        (np.full((3, 4), np.nan, np.float32), "inputs: expected finite numbers"),
    ],
)
def test_queries_that_do_not_fit_are_refused(trained, queries, words):
    with pytest.raises(ValueError, match=words):
        load(trained).votes(queries)


def test_no_queries_no_votes(trained):
    assert load(trained).votes(QUERIES[:0]).labels.shape == (NUM_TEACHERS, 0)


def test_there_are_no_teachers_before_training(tmp_path):
    with pytest.raises(ValueError, match="teachers: expected a trained ensemble in"):
        classifiers.ClassifierEnsemble(tmp_path)


def test_the_workers_start_without_what_takes_long():
    program = (
        "import sys, pate_tf.models.classifier, pate_tf.teachers.processes\n"
        "print(*sorted({'tensorflow', 'keras', 'skops'} & set(sys.modules)))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert ended.stdout.split() == []


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
    teacher_training.SECONDS_BETWEEN_SAVES = 0.0
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
    store = tmp_path / "killed" / "run" / "sensitive" / "teachers"
    assert list(store.glob("finished-*.npz"))
    assert not (store / "ensemble").exists()
    for folder in ("killed", "undisturbed"):
        ended = run_script(*flags, folder=tmp_path / folder, setup=own_data)
        assert (ended.code, ended.err) == (0, "")
        assert f"10 of {LOGISTIC}\n" in ended.out
        assert "a constant answer" in ended.out
    one, other = (load(tmp_path / folder / "run") for folder in ("killed", "undisturbed"))
    assert one.digest == other.digest
    deadline = time.monotonic() + 20
    while any(map(is_running, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(is_running, workers))


def test_a_forest_student_is_served_from_the_scripts(tmp_path):
    trained = run_script(
        "train_teachers.py", *WAVES, "--model=random_forest", folder=tmp_path, setup=own_data
    )
    assert (trained.code, trained.err) == (0, "")
    ended = run_script(
        "train_student.py",
        *WAVES[:2],
        "--teachers_dir=run",
        "--queries=20",
        "--lap_scale=2",
        "--student=random_forest",
        "--report_file=report.json",
        folder=tmp_path,
        setup=own_data,
    )
    assert (ended.code, ended.err) == (0, "")
    report = json.loads((tmp_path / "report.json").read_text())
    assert 0.25 <= report["constant_answer_accuracy"] < 0.6
    assert report["student_accuracy"] > 0.3
    assert (tmp_path / "run" / "released" / "student" / "1" / "saved_model.pb").exists()
    refused = run_script(
        "train_student.py",
        *WAVES[:2],
        "--student=random_forest",
        "--model=mlp",
        folder=tmp_path,
        setup=own_data,
    )
    assert refused.code == 1
    assert refused.err.startswith("error: model: expected one model")


def test_a_config_of_forests_survives_json():
    fields = json.loads(json.dumps(config().to_dict()))
    assert TeacherConfig.from_dict(fields) == config()
