"""Feature sums: stored once, equal for equal records, released by a labeller, published."""

import dataclasses
import json
import math
import re
import shutil
import warnings

import keras
import numpy as np
import pytest
from api_helpers import HUGE, IMAGES, Standardised, pictures

import pate_tf
from pate_tf.accounting.conversions import LATTICE
from pate_tf.accounting.planning import plan
from pate_tf.core import artifacts
from pate_tf.core.dataset import Dataset
from pate_tf.core.public import Pool
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.ledger import Ledger
from pate_tf.models.encoder import CONSTANT, record_vectors
from pate_tf.queries.labels import load_labels
from pate_tf.release.feature_sums import FeatureSums, StoredSums, sums_folder
from pate_tf.release.labeller import Labeller
from pate_tf.release.labelling import plan_release
from pate_tf.release.noisy_sums import sums_by_class
from pate_tf.release.settings import LabelSettings
from pate_tf.representations import contrastive
from pate_tf.representations.catalogue import encoder_of
from pate_tf.serving.served import ServedStudent
from pate_tf.statement.check import check_statement
from pate_tf.students import kinds
from pate_tf.students.config import StudentSettings, complete
from pate_tf.students.kinds import kind_of
from pate_tf.teachers.run_folder import described_run


def standardised(dataset: Dataset) -> keras.Model:
    image = keras.Input(dataset.input_shape)
    dense = keras.layers.Dense(30, kernel_initializer=keras.initializers.GlorotNormal(seed=1))
    return keras.Model(image, dense(Standardised()(image)))


POOL = Pool(IMAGES, pictures(60, seed=1)[0])
RECORDS, LABELS = pictures(90, seed=3)
OWNERS = np.random.default_rng(4).permutation(np.arange(90) // 3)


def fitted(folder, images=RECORDS, labels=LABELS, owners=None, representation="raw") -> FeatureSums:
    examples = PrivateExamples(IMAGES, images.astype(np.float32), labels, owners)
    return FeatureSums(directory=folder, representation=representation).fit(examples, POOL)


def steps_between(one: FeatureSums, other: FeatureSums) -> float:
    moved = (one.stored.sums.values - other.stored.sums.values).ravel().tolist()
    return math.sqrt(sum(step * step for step in moved)) / LATTICE


def plan_of(sums: FeatureSums) -> object:
    with Labeller(sums, epsilon=8.0, delta=1e-5) as labeller:
        return labeller.plan(POOL).values


@pytest.mark.parametrize("augmentation", ["none", "shift"])
def test_what_is_released_is_what_a_comparison_of_methods_names(tmp_path, augmentation):
    dataset = dataclasses.replace(IMAGES, augmentation=augmentation)
    pool = Pool(dataset, pictures(60, seed=1)[0])
    images, labels = pictures(900, seed=3)
    examples = PrivateExamples(dataset, images.astype(np.float32), labels)
    sums = FeatureSums(directory=tmp_path, representation="raw").fit(examples, pool)
    kinds = set()
    for epsilon in (0.01, 0.05, 0.2, 1.0, 3.0, 100.0):
        sums = plan(
            epsilon,
            num_records=900,
            num_classes=3,
            pool_size=60,
            has_augmentation=augmentation != "none",
            mechanism="exponential_mechanism",
        ).sums
        named = None if sums is None else sums.mechanism
        labelled_by = LabelSettings(method="feature_sums", epsilon=epsilon)
        try:
            released = plan_release(labelled_by, sums.stored, pool, delta=1e-5).mechanism
        except ValueError as error:
            assert "records outweigh the noise" in str(error)
            released = None
        assert named == released
        kinds.add(type(named))
    assert len(kinds) == (3 if augmentation == "none" else 4)
    assert named.num_rounds == 16


def files_of(folder) -> set[str]:
    found = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    return {re.sub(r"variables\.data.*", "variables", name) for name in found}


def test_they_are_the_sums_of_the_records_vectors(tmp_path):
    encoder = encoder_of(POOL, "raw")
    vectors = record_vectors(encoder.features(RECORDS), encoder.scale)
    for name, owners in (("records", None), ("owners", OWNERS)):
        found = fitted(tmp_path / name, owners=owners).stored
        expected = sums_by_class(vectors, LABELS, num_classes=3, owners=owners)
        # Features of other batches differ by rounding.
        np.testing.assert_allclose(found.sums.values / LATTICE, expected / LATTICE, atol=1e-3)
        assert found.unit == name.removesuffix("s")
    np.testing.assert_allclose(
        found.features(POOL.inputs), encoder.features(POOL.inputs), atol=1e-5
    )
    constant = found.sums.values[-1].sum() / LATTICE
    assert 0 < constant < 30 * CONSTANT * 2  # 30 owners of 3 records each, shortened


@pytest.mark.parametrize(
    ("representation", "image"), [("raw", HUGE), (standardised, 0.0), (standardised, -HUGE)]
)
def test_one_record_replaced_moves_them_by_two_and_nothing_else(tmp_path, image, representation):
    changed, other = RECORDS.copy(), LABELS.copy()
    changed[40], other[40] = image, (other[40] + 1) % 3
    before = fitted(tmp_path / "before", representation=representation)
    after = fitted(tmp_path / "after", changed, other, representation=representation)
    assert 0 < steps_between(before, after) <= 2.0
    assert before.stored.digest != after.stored.digest
    assert plan_of(before) == plan_of(after)


@pytest.mark.parametrize("newcomer", ["ordinary", "hostile"])
def test_one_owner_more_moves_them_by_one_and_nothing_else(tmp_path, newcomer):
    more, theirs = pictures(3, seed=2)
    if newcomer == "hostile":
        more = np.stack([np.zeros((8, 8, 1)), np.full((8, 8, 1), HUGE), np.full((8, 8, 1), -HUGE)])
    places = [1, 45, 45]
    before = fitted(tmp_path / "before", owners=OWNERS)
    after = fitted(
        tmp_path / "after",
        np.insert(RECORDS, places, more, axis=0),
        np.insert(LABELS, places, theirs),
        np.insert(OWNERS, places, 30),
    )
    assert 0 < steps_between(before, after) <= 1.0
    assert files_of(tmp_path / "before") == files_of(tmp_path / "after")
    assert (
        plan_of(before) == plan_of(after) and "records of a class" not in plan_of(before)["reason"]
    )
    assert plan_of(before)["records_of_a_class"] is None
    assert described_run(tmp_path / "before") == described_run(tmp_path / "after")


@pytest.mark.parametrize("representation", ["raw", standardised])
def test_the_order_of_records_changes_no_bit(tmp_path, representation):
    """Nor how many there are of each: some are equal, with equal labels or others."""
    equal = np.concatenate([np.arange(90), np.arange(40), np.full(300, 7)])
    order = np.random.default_rng(8).permutation(equal)
    for name, owners in (("records", None), ("owners", OWNERS)):
        found = [
            fitted(
                tmp_path / f"{name} {number}",
                RECORDS[rows],
                LABELS[rows],
                owners=None if owners is None else owners[rows],
                representation=representation,
            ).stored
            for number, rows in enumerate((equal, order))
        ]
        np.testing.assert_array_equal(found[0].table, found[1].table)
        assert found[0].num_records == 430


def test_a_folder_holds_the_sums_of_one_set_of_records_and_settings(tmp_path):
    first = fitted(tmp_path, owners=OWNERS)
    again = fitted(tmp_path, owners=OWNERS)
    assert again.stored.digest == first.stored.digest == FeatureSums.load(tmp_path).stored.digest
    assert str(first.stored.sums.values[0, 0]) not in repr(first) + repr(first.stored.sums)
    assert (sums_folder(artifacts.RunDirectory(tmp_path)).stat().st_mode & 0o777) == 0o700
    run = described_run(tmp_path)
    assert (run.method, run.unit, run.representation) == ("feature_sums", "owner", "raw")
    for changes, named in (
        ({"images": RECORDS[::-1], "owners": OWNERS}, "private records;"),
        ({"labels": 2 - LABELS, "owners": OWNERS}, "private records;"),
        ({"owners": OWNERS[::-1].copy()}, "private records;"),
        ({"owners": None}, "unit"),
        ({"owners": OWNERS, "representation": standardised}, "representation"),
    ):
        with pytest.raises(ValueError, match=rf"holds feature sums of other settings: {named}"):
            fitted(tmp_path, **changes)


def test_what_is_missing_or_broken_is_one_line(tmp_path):
    with pytest.raises(ValueError, match=r"feature sums: expected some in .*, got none"):
        FeatureSums.load(tmp_path)
    with pytest.raises(ValueError, match="feature sums: expected fitted ones, got none"):
        Labeller(FeatureSums(directory=tmp_path), epsilon=1.0, delta=1e-5)
    with pytest.raises(ValueError, match=r"private: expected data\.private, got ndarray"):
        FeatureSums(directory=tmp_path).fit(RECORDS, POOL)
    fitted(tmp_path)
    (tmp_path / "sensitive/feature_sums/sums.npz").write_bytes(b"broken")
    with pytest.raises(ValueError, match=r"expected complete ones in .*, got broken ones"):
        FeatureSums.load(tmp_path)
    other = dataclasses.replace(IMAGES, num_classes=4)
    with pytest.raises(ValueError, match="pool: expected inputs of the records' data set"):
        FeatureSums(directory=tmp_path / "x").fit(
            PrivateExamples(IMAGES, RECORDS, LABELS), Pool(other, POOL.inputs)
        )


@pytest.fixture(scope="module", autouse=True)
def hasty_network():
    """The network of the second pass hardly learns."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contrastive, "STUDENT_STEPS", 2)
        yield


@pytest.fixture(scope="module")
def data():
    return pate_tf.datasets.load("digits")


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    """A run folder with sums of the digits."""
    folder = tmp_path_factory.mktemp("digits") / "run"
    FeatureSums(directory=folder, representation="raw").fit(data.private, data.pool)
    return folder


@pytest.fixture(scope="module")
def labels(run, data):
    """Labels that were charged to the ledger of `run`."""
    with Labeller(FeatureSums.load(run), epsilon=8.0, delta=1e-5) as labeller:
        return labeller.label(data.pool)


def test_a_labeller_labels_all_of_the_pool_within_epsilon(run, labels, data, tmp_path):
    sums = FeatureSums.load(run)
    with Labeller(sums, epsilon=8.0, delta=1e-5) as labeller:
        plan = labeller.plan(data.pool)
        assert plan.mechanism.releases_feature_sums and "No teacher was asked" in plan.reason
        assert plan.values["records_of_a_class"] == len(data.private) / 10
        assert json.loads(json.dumps(plan.values))["queries"] == len(data.pool)
        assert len(labels) == len(data.pool)
        assert labels.cost.epsilon == labeller.spent().epsilon <= 8.0
        again = labeller.label(data.pool)
        assert (again.released.noisy_sums == labels.released.noisy_sums).all()
        assert labels.released.num_answered == len(data.pool)
        for choices in ({"num_queries": 5}, {"strategy": "diverse"}, {"num_neighbours": 2}):
            with pytest.raises(ValueError, match="expected none with method feature_sums"):
                labeller.label(data.pool, **choices)
    assert 0.0 < labels.certainty <= 1.0
    labels.save(tmp_path / "kept")
    kept = load_labels(tmp_path / "kept", data.pool)
    np.testing.assert_array_equal(kept.training_labels.weights, labels.training_labels.weights)
    with pytest.raises(ValueError, match="epsilon: expected a number with method feature_sums"):
        Labeller(sums, delta=1e-5)
    with pytest.raises(ValueError, match="mechanism: expected none with method feature_sums"):
        Labeller(sums, pate_tf.LaplaceNoisyMax, epsilon=1.0, delta=1e-5).plan(data.pool)
    with pytest.raises(ValueError, match="feature sums: expected those for images"):
        Labeller(sums, epsilon=1.0, delta=1e-5).plan(POOL)


def test_labels_of_one_noise_are_the_same(run, data, tmp_path, monkeypatch):
    found = []
    for name in ("one", "two"):
        monkeypatch.setenv("PATE_TF_STATE", str(tmp_path / f"state {name}"))
        stored = "sensitive/feature_sums"  # without a ledger
        shutil.copytree(run / stored, tmp_path / name / stored)
        with Labeller(
            FeatureSums.load(tmp_path / name), epsilon=8.0, delta=1e-5, insecure_seed=1
        ) as labeller:
            labels = labeller.label(data.pool)
        assert not labels.released.secure_noise
        found.append(labels.labels)
    assert (found[0] == found[1]).all()


def test_a_student_is_published_with_what_the_sums_cost(run, labels, data, tmp_path):
    student = pate_tf.Student("supervised", model="mlp", steps=50).fit(data.pool, labels)
    for wrong in ({"holder": ""}, {"purpose": "two\nlines"}, {"run_name": 3}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))}: expected a line"):
            pate_tf.publish(student, tmp_path / "out", **wrong)
    names = {"holder": "Example Telecom", "purpose": "a trial", "run_name": "spring"}
    published = pate_tf.publish(student, tmp_path / "out", **names)
    page = (published.folder / "privacy_statement.md").read_text()
    assert "run spring\n\nExample Telecom releases" in page and "Purpose: a trial." in page
    assert repr(published).startswith(f"Published(<version 1, in {published.student_folder}>")
    assert "at delta 1e-5, replace-one: this classifier and its labels" in repr(published)
    published = pate_tf.publish(student, tmp_path / "out")
    assert "version 2, beside 1 earlier" in repr(published)
    assert published.statement.run_name == f"{published.statement.date}-2"
    stated = json.loads((published.folder / "privacy_statement.json").read_text())
    assert stated["mechanism"]["name"] == "gaussian_feature_sums"
    page = (published.folder / "privacy_statement.md").read_text()
    assert "sums" in page and "No teacher was asked" in page
    with Ledger.read(run / "sensitive") as ledger:
        check_statement(stated, ledger)
        with pytest.raises(ValueError, match="statement: expected at least epsilon"):
            check_statement({**stated, "epsilon": stated["epsilon"] / 2}, ledger)


def test_labels_that_were_changed_are_not_published(labels, data, tmp_path):
    forged = labels.released.noisy_sums.copy()
    forged[0, 0] += 1
    relabelled = (labels.training_labels.labels + 1) % 10
    for changed in (
        {"released": dataclasses.replace(labels.released, noisy_sums=forged)},
        {"training_labels": dataclasses.replace(labels.training_labels, labels=relabelled)},
        {"certainty": 0.5},
    ):
        student = pate_tf.Student("supervised", model="mlp", steps=1)
        student.fit(data.pool, dataclasses.replace(labels, **changed))
        with pytest.raises(ValueError, match="labels: expected"):
            pate_tf.publish(student, tmp_path / "out")


def test_sums_of_a_table_tell_its_classes_apart(tmp_path):
    random = np.random.default_rng(0)
    inputs = random.normal(size=(6_000, 4)).astype(np.float32)
    labels = (inputs[:, 0] + 0.5 * inputs[:, 1] > 1.0).astype(np.int64)  # a fifth is positive
    table = pate_tf.Data.from_arrays(
        inputs[:4_000],
        labels[:4_000],
        inputs[4_000:],
        labels[4_000:],
        num_classes=2,
        kind="tabular",
        value_range=(-6.0, 6.0),
        held_out=0.25,
    )
    sums = FeatureSums(directory=tmp_path).fit(table.private, table.pool)
    assert isinstance(sums.stored, StoredSums) and sums.stored.representation == "bins"
    with Labeller(sums, epsilon=0.5, delta=1e-6) as labeller:
        found = labeller.label(table.pool)
    truth = (table.pool.inputs[:, 0] + 0.5 * table.pool.inputs[:, 1] > 1.0).astype(np.int64)
    right = found.labels == truth[found.query_indices]
    # .931 +- .011 over seeds of the noise; the majority class has .81.
    assert len(right) == 1_500 and right.mean() > 0.86
    assert right[truth[found.query_indices] == 1].mean() > 0.5


def test_heavy_noise_is_planned_for_counts_of_clusters_with_a_pure_epsilon(tmp_path, monkeypatch):
    """Twelve hundred records of digits at epsilon 0.5, where sums of features would be noise."""
    for name in ("STEPS", "STUDENT_STEPS"):
        monkeypatch.setattr(contrastive, name, 30)
    data = pate_tf.datasets.load("digits")
    sums = FeatureSums(directory=tmp_path / "run").fit(data.private, data.pool)
    stored = sums.stored
    assert sorted(stored.centres) == sorted(stored.cluster_counts) == [10, 20]
    for number, counts in stored.cluster_counts.items():
        assert counts.values.shape == (number, 10)
        by_class = np.bincount(data.private.labels, minlength=10)
        assert (counts.values.sum(axis=0) == by_class * LATTICE).all()
    with Labeller(sums, epsilon=0.5, delta=1e-5) as labeller:
        plan = labeller.plan(data.pool)
        labels = labeller.label(data.pool)
        again = labeller.label(data.pool)
    assert plan.mechanism.num_clusters == 20 and plan.mechanism.pure_epsilon <= 0.5
    assert plan.mechanism.scale == pytest.approx(4.0)
    assert "delta 0" in str(plan) and "each cluster of the pool" in str(plan)
    assert labels.cost.epsilon <= 0.5 and again.cost == labels.cost
    assert labels.released.noisy_sums.shape == (20, 10)
    noise = labels.released.noisy_sums - stored.cluster_counts[20].values
    assert 0.3 < np.abs(noise).mean() / (4.0 * LATTICE) < 3.0
    student = pate_tf.Student("supervised", steps=2).fit(data.pool, labels)
    published = pate_tf.publish(student, tmp_path / "released")
    page = (tmp_path / "released" / "privacy_statement.md").read_text()
    assert published.statement.epsilon <= 0.5 and "δ = 0)" in page, page
    assert "one of 20 clusters of the public pool" in page
    assert published.statement.num_queries == len(data.pool)


def test_a_student_goes_on_from_the_network_of_the_second_pass(labels, data, tmp_path):
    """One step at a rate of nearly nothing leaves the network that it began with."""
    inputs = data.pool.inputs[:50].astype(np.float32)
    expected = np.asarray(labels.network(inputs))
    weights = labels.network.get_weights()

    def goes_on(given=labels, **settings) -> bool:
        student = pate_tf.Student(**{"steps": 1, "learning_rate": 1e-9, **settings})
        answers = np.asarray(student.fit(data.pool, given).model(inputs))
        return np.allclose(answers, expected, atol=1e-4)

    assert goes_on() and goes_on(seed=5)
    # What was asked for begins as it was asked to.
    assert not goes_on(model="wide_cnn") and not goes_on(student="supervised")
    assert not goes_on(initial=keras.models.clone_model(labels.network))
    labels.save(tmp_path)
    stored = load_labels(tmp_path, data.pool)
    assert stored.network is None and not goes_on(stored)
    for before, after in zip(weights, labels.network.get_weights(), strict=True):
        assert (before == after).all()
    dataset, warm = data.pool.dataset, {"warm_start_from": labels.network}
    for settings in ({"student": "supervised"}, {"student": "gan"}, {"model": "wide_cnn"}):
        assert complete(StudentSettings(**settings), dataset, **warm).initial is None
    assert complete(StudentSettings(), dataset, **warm).max_steps == 500
    assert complete(StudentSettings(max_steps=7), dataset, **warm).max_steps == 7
    colours = dataclasses.replace(dataset, input_shape=(8, 8, 3))
    for settings, steps, few in (
        (StudentSettings(), 1_500, 500),
        (StudentSettings(max_steps=7), 7, 7),
    ):
        for certainty, expected in ((None, steps), (0.86, steps), (0.84, few)):
            config = complete(
                settings, colours, labels_whole_pool=True, certainty=certainty, **warm
            )
            assert config.max_steps == expected and config.initial is labels.network
        cold = complete(settings, colours, labels_whole_pool=True)
        assert complete(settings, colours).max_steps * (3 if steps > 7 else 1) == cold.max_steps


def test_rounds_are_released_once_and_label_the_pool(tmp_path):
    sums = fitted(tmp_path / "run")
    with Labeller(sums, epsilon=50.0, delta=1e-5, num_rounds=3, insecure_seed=1) as labeller:
        labels = labeller.label(POOL)
        again = labeller.label(POOL)
        assert labeller.spent().epsilon == labels.cost.epsilon <= 50.0
    charge = labels.cost.charge
    assert charge.num_rounds == 3 and "in 3 rounds" in labels.choice
    noisy = labels.released.noisy_sums
    assert noisy.shape[0] == 3 * len(sums.stored.sums.values)
    assert (noisy == again.released.noisy_sums).all()
    # The model is that of the released sums and the pool alone.
    weights = sums.stored.weights(noisy.reshape(3, -1, 3), charge.sigma)
    expected = (sums.stored.vectors(POOL.inputs) @ weights).argmax(axis=1)
    assert (labels.released.labels == expected).all()
    # And it is a student, once exported.
    student = pate_tf.Student("linear_head").fit(POOL, labels)
    np.testing.assert_allclose(
        student.model(RECORDS.astype(np.float32)).numpy(),
        sums.stored.vectors(RECORDS.astype(np.float32)) @ weights,
        rtol=1e-3,
        atol=1e-3,
    )
    published = pate_tf.publish(student, tmp_path / "published")
    served = ServedStudent(published.student_folder).classify(POOL.inputs)
    assert (served == expected).all() and "3 rounds" in published.statement.to_markdown()
    # By default where no clusters are classes, unless a model or training is named.
    assert dataclasses.replace(labels, certainty=0.9).prefers_linear_head
    assert not dataclasses.replace(labels, certainty=None).prefers_linear_head
    better = dataclasses.replace(labels, certainty=0.9, network_is_better=True)
    assert not better.prefers_linear_head


def test_a_linear_head_follows_from_one_round_too_and_not_from_stored_labels(run, labels, data):
    sums = FeatureSums.load(run).stored
    noisy = labels.released.noisy_sums
    weights = sums.weights(noisy[None], labels.cost.charge.sigma)
    student = pate_tf.Student("linear_head").fit(data.pool, labels)
    assert (
        student.predict(data.pool) == (sums.vectors(data.pool.inputs) @ weights).argmax(1)
    ).all()
    assert not labels.prefers_linear_head
    stored = dataclasses.replace(labels, linear_head=None)
    with pytest.raises(ValueError, match="student linear_head: expected labels that feature sums"):
        pate_tf.Student("linear_head").fit(data.pool, stored)
    with pytest.raises(ValueError, match="model: expected none for student linear_head"):
        pate_tf.Student("linear_head", model="cnn").fit(data.pool, labels)


def test_of_a_table_the_student_is_the_model_whose_answers_fit_the_sums_better(
    tmp_path, monkeypatch, capsys
):
    """Told from released sums and the pool, without a label."""
    random = np.random.default_rng(0)
    y = random.integers(0, 3, 900)
    x = np.float32(random.normal(size=(900, 4)) + 4.0 * np.eye(4)[y])
    table = pate_tf.Data.from_arrays(
        x[:600], y[:600], x[600:], y[600:], num_classes=3, value_range=(-9, 9)
    )
    sums = FeatureSums(directory=tmp_path / "run").fit(table.private, table.pool)
    with Labeller(sums, epsilon=8.0, delta=1e-5, num_rounds=1) as labeller:
        labels = labeller.label(table.pool)

    def learns(model):
        kind = dataclasses.replace(kind_of("supervised"), fit=lambda *_args: model)
        monkeypatch.setitem(kinds._REGISTERED, "supervised", kind)

    def constant(inputs, training=False):
        return np.tile([1.0, 0.0, 0.0], (len(inputs), 1))

    learns(constant)
    student = pate_tf.Student(verbose=True).fit(table.pool, labels)
    assert student.model is labels.linear_head and "Student(<linear_head, of" in repr(student)
    assert "linear_head, as the trained one does not fit the sums clearly better" in "".join(
        capsys.readouterr()
    )
    assert pate_tf.Student("supervised").fit(table.pool, labels).model is constant
    stored = dataclasses.replace(labels, linear_head=None, sums=None)
    assert pate_tf.Student().fit(table.pool, stored).model is constant
    right = dict(zip(map(bytes, x[600:]), y[600:], strict=True))

    def true(inputs, training=False):
        return np.eye(3)[[right[bytes(one)] for one in np.float32(inputs)]]

    learns(true)
    shuffled = dataclasses.replace(labels, linear_head=constant)
    assert pate_tf.Student().fit(table.pool, shuffled).model is true


@pytest.mark.parametrize("change", ["other labels", "other vectors", "fewer", "no file of arrays"])
def test_rounds_are_refused_before_a_charge_where_vectors_are_not_those_summed(tmp_path, change):
    sums = fitted(tmp_path / "run")
    path = sums_folder(artifacts.RunDirectory(tmp_path / "run")) / "vectors.npz"
    stored = artifacts.read_arrays(path)
    if change == "other labels":
        stored["labels"] = (stored["labels"] + 1) % 3
    elif change == "other vectors":
        stored["vectors"] = -stored["vectors"]
    else:
        stored["vectors"] = stored["vectors"][:-20]
    artifacts.write_arrays(path, stored, private=True)
    if change == "no file of arrays":
        path.write_bytes(b"none")
    with Labeller(sums, epsilon=50.0, delta=1e-5, num_rounds=3) as labeller:
        with pytest.raises(ValueError, match="expected the vectors of their records"):
            labeller.label(POOL)
        assert labeller.spent().epsilon == 0.0


def test_rounds_are_refused_where_no_vectors_of_records_are_stored(tmp_path):
    sums = fitted(tmp_path / "run", owners=np.arange(len(LABELS)) // 2)
    with (
        Labeller(sums, epsilon=50.0, delta=1e-5, num_rounds=3) as labeller,
        pytest.raises(ValueError, match="num_rounds: expected 1 for these sums, got 3"),
    ):
        labeller.label(POOL)
    with pytest.raises(ValueError, match="num_rounds: expected none with method pate"):
        LabelSettings(epsilon=1.0, num_rounds=2)


def test_records_and_owners_have_no_total(tmp_path):
    """An owner's nine records change more than one does: charges for records are too small."""
    random = np.random.default_rng(0)
    classes = random.integers(0, 2, 2100)
    inputs = (random.normal(size=(2100, 4)) + 3 * classes[:, None]).astype(np.float32)
    pages = []
    for owners in (None, np.repeat(np.arange(200), 9)):
        own = pate_tf.Data.from_arrays(
            inputs[:1800],
            classes[:1800],
            inputs[1800:],
            num_classes=2,
            owners=owners,
            value_range=(-9, 9),
            name="visits",
        )
        run = tmp_path / str(len(pages))
        sums = FeatureSums(directory=run, representation="raw").fit(own.private, own.pool)
        student = pate_tf.Student("supervised", model="mlp", steps=20)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            with Labeller(sums, epsilon=2.0, delta=1e-5) as labeller:
                student.fit(own.pool, labeller.label(own.pool))
        folder = pate_tf.publish(student, tmp_path / f"published {len(pages)}").folder
        assert any("protect owners where" in str(one.message) for one in told) == bool(pages)
        pages.append((folder / "privacy_statement.md").read_text())
    assert "NOT KNOWN" not in pages[0]
    assert "1 of 2 ledgers of the source protect single records" in pages[1]
