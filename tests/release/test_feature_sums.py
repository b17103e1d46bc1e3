"""Feature sums: stored once, equal for equal records, merged, released by a labeller, published."""

import dataclasses
import json
import math
import re
import shutil

import keras
import numpy as np
import pytest
from api_helpers import HUGE, IMAGES, Standardised, pictures

import pate_tf
from pate_tf.accounting.conversions import LATTICE
from pate_tf.core import artifacts
from pate_tf.core.dataset import Dataset
from pate_tf.core.public import Pool
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.ledger import Ledger, LedgerError
from pate_tf.models.encoder import record_vectors
from pate_tf.planning import comparison
from pate_tf.postprocessing.regression import weights_of_rounds
from pate_tf.queries.labels import Labels
from pate_tf.release.exact_sums import sums_by_class
from pate_tf.release.feature_sums import FeatureSums, digest_of, sums_folder
from pate_tf.representations import contrastive
from pate_tf.representations.catalogue import encoder_of
from pate_tf.run.labeller import Labeller
from pate_tf.statement import check_statement
from pate_tf.teachers.run_folder import described_run


def standardised(dataset: Dataset) -> keras.Model:
    image = keras.Input(dataset.input_shape)
    dense = keras.layers.Dense(30, kernel_initializer=keras.initializers.GlorotNormal(seed=1))
    return keras.Model(image, dense(Standardised()(image)))


POOL = Pool(IMAGES, pictures(60, seed=1)[0])
RECORDS, LABELS = pictures(90, seed=3)
OWNERS = np.random.default_rng(4).permutation(np.arange(90) // 3)


def fitted(folder, images=RECORDS, labels=LABELS, owners=None, representation="raw", pool=POOL):
    examples = PrivateExamples(IMAGES, images.astype(np.float32), labels, owners)
    return FeatureSums(directory=folder, representation=representation).fit(examples, pool)


def steps_between(before: FeatureSums, after: FeatureSums) -> float:
    moved = (before.sums.values - after.sums.values).ravel().tolist()
    return math.sqrt(sum(step * step for step in moved)) / LATTICE


def plan_of(sums: FeatureSums) -> str:
    with Labeller(sums, epsilon=8.0, delta=1e-5) as labeller:
        return f"{labeller.plan(POOL)} {labeller.plan(POOL).reason}"


def stored_in(folder):
    return sums_folder(artifacts.RunDirectory(folder))


def test_they_are_the_sums_of_the_records_vectors(tmp_path):
    encoder = encoder_of(POOL, "raw")
    vectors = record_vectors(encoder.features(RECORDS), encoder.scale)
    for name, owners in (("record", None), ("owner", OWNERS)):
        sums = fitted(tmp_path / name, owners=owners)
        expected = sums_by_class(vectors, LABELS, num_classes=3, owners=owners)
        # Features from batches of another size differ by rounding.
        np.testing.assert_allclose(sums.sums.values / LATTICE, expected / LATTICE, atol=1e-3)
        assert sums.unit == name and sums.has_vectors == (owners is None)


@pytest.mark.parametrize(
    ("representation", "image"), [("raw", HUGE), (standardised, 0.0), (standardised, -HUGE)]
)
def test_one_record_replaced_moves_them_by_two_and_nothing_else(tmp_path, image, representation):
    changed, other = RECORDS.copy(), LABELS.copy()
    changed[40], other[40] = image, (other[40] + 1) % 3
    before = fitted(tmp_path / "before", representation=representation)
    after = fitted(tmp_path / "after", changed, other, representation=representation)
    assert 0 < steps_between(before, after) <= 2.0
    assert before.digest != after.digest
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
    assert plan_of(before) == plan_of(after) and "records of a class" not in plan_of(before)
    files = [
        {
            re.sub(r"variables\.data.*", "", str(path.relative_to(folder)))
            for path in folder.rglob("*")
        }
        for folder in (tmp_path / "before", tmp_path / "after")
    ]
    assert files[0] == files[1]
    assert described_run(tmp_path / "before") == described_run(tmp_path / "after")


@pytest.mark.parametrize("owners", [None, OWNERS], ids=["records", "owners"])
def test_the_order_of_records_changes_no_bit(tmp_path, owners):
    """Multiplicities do not matter either: some records are equal, with equal or
    different labels.
    """
    equal = np.concatenate([np.arange(90), np.arange(40), np.full(300, 7)])
    order = np.random.default_rng(8).permutation(equal)
    first, second = (
        fitted(
            tmp_path / str(number),
            RECORDS[rows],
            LABELS[rows],
            owners=None if owners is None else owners[rows],
            representation=standardised,
        )
        for number, rows in enumerate((equal, order))
    )
    np.testing.assert_array_equal(first.table, second.table)
    assert first.num_records == 430
    # No digest on disk is without a key, so an attacker who knows all records can't confirm a
    # guess.
    assert first.digest != second.digest
    assert first.description["records"] != second.description["records"]


def test_a_folder_holds_the_sums_of_one_fit_and_its_settings(tmp_path):
    first = fitted(tmp_path, owners=OWNERS)
    order = np.random.default_rng(1).permutation(90)
    again = fitted(tmp_path, RECORDS[order], LABELS[order], OWNERS[order].astype(str))
    assert again.digest == first.digest == FeatureSums.load(tmp_path).digest
    assert str(first.sums.values[0, 0]) not in repr(first) + repr(first.sums)
    assert (stored_in(tmp_path).stat().st_mode & 0o777) == 0o700
    run = described_run(tmp_path)
    assert (run.method, run.unit, run.representation) == ("feature_sums", "owner", "raw")
    for changes, named in (
        ({"owners": None}, "unit"),
        ({"owners": OWNERS, "representation": standardised}, "representation"),
    ):
        with pytest.raises(ValueError, match=f"feature sums with other settings: {named}"):
            fitted(tmp_path, **changes)


def test_what_is_missing_or_does_not_fit_is_one_line(tmp_path):
    with pytest.raises(ValueError, match=r"contains no feature sums\. Call fit"):
        FeatureSums.load(tmp_path)
    with pytest.raises(ValueError, match="feature sums are not fitted"):
        Labeller(FeatureSums(directory=tmp_path), epsilon=1.0, delta=1e-5)
    with pytest.raises(ValueError, match=r"private must be data\.private, got ndarray"):
        FeatureSums(directory=tmp_path).fit(RECORDS, POOL)
    other = dataclasses.replace(IMAGES, num_classes=4)
    with pytest.raises(ValueError, match="pool must have the data set of the records"):
        fitted(tmp_path, pool=Pool(other, POOL.inputs))


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stored") / "run"
    fitted(folder, RECORDS[::3], LABELS[::3])
    return folder


def rewrite(folder, **fields):
    path = stored_in(folder) / "description.json"
    artifacts.write_json(path, {**artifacts.read_json(path), **fields})


def with_arrays(folder, **changes):
    """Writes other arrays into stored sums, with a matching digest."""
    stored = FeatureSums.load(folder)
    arrays = {**artifacts.read_arrays(stored_in(folder) / "sums.npz"), **changes}
    digest = digest_of(stored.description, arrays, stored.encoder_digest)
    artifacts.write_arrays(stored_in(folder) / "sums.npz", arrays)
    rewrite(folder, digest=digest)


def truncate(folder, name):
    path = stored_in(folder) / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


BROKEN = {
    "unit": lambda folder: rewrite(folder, unit="owner"),
    "encoder": lambda folder: rewrite(folder, encoder="0" * 64),
    "number": lambda folder: rewrite(folder, num_records=1),
    "records": lambda folder: rewrite(folder, records=["0" * 64]),
    "source": lambda folder: rewrite(folder, source={"name": "other", "key": "name other"}),
    "arrays": lambda folder: truncate(folder, "sums.npz"),
    "model": lambda folder: truncate(folder, "encoder/saved_model.pb"),
}


@pytest.mark.parametrize("change", BROKEN)
def test_broken_sums_are_refused(stored, tmp_path, change):
    shutil.copytree(stored, tmp_path / "run")
    BROKEN[change](tmp_path / "run")
    with pytest.raises(ValueError, match=r"the feature sums in .* are incomplete or damaged"):
        FeatureSums.load(tmp_path / "run")


def test_a_ledger_knows_the_sums_that_it_is_of(stored, tmp_path):
    """After a release, different sums in the same folder are refused even with a
    matching digest.
    """
    shutil.copytree(stored, tmp_path / "run")
    with Labeller(FeatureSums.load(tmp_path / "run"), epsilon=50.0, delta=1e-5) as labeller:
        labeller.label(POOL)
    sums = FeatureSums.load(tmp_path / "run").sums.values.copy()
    sums[0, 0] += 1
    with_arrays(tmp_path / "run", sums=sums)
    with pytest.raises(LedgerError, match="belongs to other teachers or sums") as refused:
        Labeller(FeatureSums.load(tmp_path / "run"), epsilon=16.0, delta=1e-5)
    assert "\n" not in str(refused.value)


# Labels.


@pytest.fixture(scope="module", autouse=True)
def hasty_network():
    """Networks that hardly learn."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("NETWORKS", 1), ("STEPS", 2), ("STUDENT_STEPS", 2)):
            patch.setattr(contrastive, name, value)
        yield


@pytest.fixture(scope="module")
def data():
    return pate_tf.Data.load("digits")


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    """Returns a run folder with sums of the digits."""
    folder = tmp_path_factory.mktemp("digits") / "run"
    FeatureSums(directory=folder, representation="raw").fit(data.private, data.pool)
    return folder


@pytest.fixture(scope="module")
def labels(run, data):
    """Returns labels charged to the ledger of `run`."""
    with Labeller(FeatureSums.load(run), epsilon=16.0, delta=1e-5) as labeller:
        return labeller.label(data.pool)


def test_a_labeller_labels_all_of_the_pool_within_epsilon(run, labels, data, tmp_path):
    sums = FeatureSums.load(run)
    with Labeller(sums, epsilon=16.0, delta=1e-5) as labeller:
        plan = labeller.plan(data.pool)
        assert plan.mechanism.releases_feature_sums and "chosen from public values" in plan.reason
        assert plan.queries.num_queries == len(data.pool) == len(labels)
        assert labels.cost.epsilon == labeller.spent().epsilon <= 16.0
        again = labeller.label(data.pool)
        assert (again.released.noisy_sums == labels.released.noisy_sums).all()
        for choices in ({"num_queries": 5}, {"strategy": "diverse"}):
            with pytest.raises(ValueError, match="must not be given with method feature_sums"):
                labeller.label(data.pool, **choices)
    labels.save(tmp_path / "kept")
    kept = Labels.load(tmp_path / "kept", data.pool)
    np.testing.assert_array_equal(kept.training_labels.weights, labels.training_labels.weights)
    with pytest.raises(ValueError, match="epsilon is required with method feature_sums"):
        Labeller(sums, delta=1e-5)
    with pytest.raises(ValueError, match="mechanism must not be given with method feature_sums"):
        Labeller(sums, pate_tf.LaplaceNoisyMax, epsilon=1.0, delta=1e-5).plan(data.pool)
    with pytest.raises(ValueError, match="feature sums must have the data set images"):
        Labeller(sums, epsilon=1.0, delta=1e-5).plan(POOL)


def test_a_student_is_published_with_what_the_sums_cost(run, labels, data, tmp_path):
    student = pate_tf.Student("supervised", model="mlp", steps=2).fit(data.pool, labels)
    published = student.publish(tmp_path / "out")
    stated = json.loads((published.folder / "privacy_statement.json").read_text())
    assert stated["mechanism"]["name"] == "gaussian_feature_sums"
    assert "chosen from public values" in (published.folder / "privacy_statement.md").read_text()
    with Ledger.read(run / "sensitive") as ledger:
        check_statement(stated, ledger)
        with pytest.raises(ValueError, match=r"statement: epsilon.* must be at least"):
            check_statement({**stated, "epsilon": stated["epsilon"] / 2}, ledger)
    forged = labels.released.noisy_sums.copy()
    forged[0, 0] += 1
    relabelled = (labels.training_labels.labels + 1) % 10
    for changed in (
        {"released": dataclasses.replace(labels.released, noisy_sums=forged)},
        {"training_labels": dataclasses.replace(labels.training_labels, labels=relabelled)},
    ):
        other = pate_tf.Student("supervised", model="mlp", steps=1)
        other.fit(data.pool, dataclasses.replace(labels, **changed))
        with pytest.raises(ValueError, match=r"(were charged to|after the ledger released)"):
            other.publish(tmp_path / "forged")


def test_sums_of_a_table_tell_its_classes_apart(tmp_path):
    random = np.random.default_rng(0)
    inputs = random.normal(size=(6_000, 4)).astype(np.float32)
    labels = (inputs[:, 0] + 0.5 * inputs[:, 1] > 1.0).astype(np.int64)  # a fifth is positive
    table = pate_tf.Data.from_arrays(
        inputs[:4_000],
        labels[:4_000],
        inputs[4_000:],
        num_classes=2,
        kind="tabular",
        value_range=(-6.0, 6.0),
    )
    sums = FeatureSums(directory=tmp_path).fit(table.private, table.pool)
    assert sums.representation == "bins"
    with Labeller(sums, epsilon=0.5, delta=1e-6, insecure_seed=1) as labeller:
        released = labeller.label(table.pool)
    truth = (table.pool.inputs[:, 0] + 0.5 * table.pool.inputs[:, 1] > 1.0).astype(np.int64)
    is_right = released.labels == truth[released.query_indices]
    # .931 +- .011 over seeds of the noise; the majority class has .81.
    assert is_right.mean() > 0.86 and is_right[truth[released.query_indices] == 1].mean() > 0.5


def test_heavy_noise_is_planned_for_counts_of_clusters_with_a_pure_epsilon(data, run):
    """Twelve hundred records of digits at epsilon 0.5, where sums of features would be mostly
    noise.
    """
    sums = FeatureSums.load(run)
    assert sorted(sums.summands.centres) == sorted(sums.cluster_counts) == [10, 20]
    for number, counts in sums.cluster_counts.items():
        assert counts.values.shape == (number, 10)
        by_class = np.bincount(data.private.labels, minlength=10)
        assert (counts.values.sum(axis=0) == by_class * LATTICE).all()
    with Labeller(sums, epsilon=0.5, delta=1e-5) as labeller:
        plan = labeller.plan(data.pool)
        labels = labeller.label(data.pool)
        again = labeller.label(data.pool)
    assert plan.mechanism.num_clusters == 20 and plan.mechanism.pure_epsilon <= 0.5
    assert "delta 0" in str(plan) and "each cluster of the pool" in str(plan)
    assert labels.cost.epsilon <= 0.5 and again.cost == labels.cost
    noise = labels.released.noisy_sums - sums.cluster_counts[20].values
    assert 0.3 < np.abs(noise).mean() / (4.0 * LATTICE) < 3.0


@pytest.fixture
def three_rounds(monkeypatch):
    monkeypatch.setattr(comparison, "ROUNDS_RATIO", 0.0)
    monkeypatch.setattr(comparison, "ROUNDS", 3)


@pytest.mark.usefixtures("three_rounds")
def test_rounds_are_released_once_and_label_the_pool(tmp_path):
    sums = fitted(tmp_path / "run")
    with Labeller(sums, epsilon=50.0, delta=1e-5, insecure_seed=1) as labeller:
        labels = labeller.label(POOL)
        again = labeller.label(POOL)
        assert labeller.spent().epsilon == labels.cost.epsilon <= 50.0
    charge, noisy = labels.cost.charge, labels.released.noisy_sums
    assert charge.num_rounds == 3 and "in 3 rounds" in labels.choice
    assert noisy.shape[0] == 3 * len(sums.sums.values)
    assert (noisy == again.released.noisy_sums).all()
    # The model depends only on the released sums and the pool. An exported student does the same.
    weights = weights_of_rounds(noisy.reshape(3, -1, 3), sums.moments, 90, charge.sigma, 3)
    logits = sums.vectors(RECORDS.astype(np.float32)) @ weights
    assert (labels.labels == (sums.vectors(POOL.inputs) @ weights).argmax(axis=1)).all()
    student = pate_tf.Student("linear_head").fit(POOL, labels)
    served = student.model(RECORDS.astype(np.float32)).numpy()
    np.testing.assert_allclose(served, logits, rtol=1e-3, atol=1e-3)


@pytest.mark.usefixtures("three_rounds")
@pytest.mark.parametrize("change", ["other labels", "other vectors", "moments", "fewer", "no file"])
def test_rounds_are_refused_before_a_charge_where_vectors_are_not_those_summed(tmp_path, change):
    sums = fitted(tmp_path / "run")
    path = stored_in(tmp_path / "run") / "vectors.npz"
    stored = artifacts.read_arrays(path)
    if change == "other labels":
        stored["labels"] = (stored["labels"] + 1) % 3
    elif change == "moments":
        stored["moments"] *= 1.01
    elif change == "other vectors":
        stored["steps"][:2] = stored["steps"][1::-1]
    else:
        stored["steps"] = stored["steps"][:-20]
    artifacts.write_arrays(path, stored, private=True)
    if change == "no file":
        path.unlink()
    with Labeller(sums, epsilon=50.0, delta=1e-5) as labeller:
        with pytest.raises(ValueError, match=r"vectors\.npz (is missing|belongs to other)"):
            labeller.label(POOL)
        assert labeller.spent().epsilon == 0.0
