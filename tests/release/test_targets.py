"""Numbers and several labels: the bound on a record, the learned model, and its description."""

import dataclasses
import itertools
import json
import math
import re

import event_files
import keras
import numpy as np
import pytest
import scipy.special
import scipy.stats
import tensorflow as tf
from data_sets_for_tests import table_dataset
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import BayesianRidge, LinearRegression, LogisticRegression

import pate_tf
from benchmarks.targets import coverage
from pate_tf.accounting.conversions import LATTICE
from pate_tf.accounting.mechanisms import GaussianFeatureSums, GaussianMoments
from pate_tf.analysis.vote_sources import analyse, read_ledgers
from pate_tf.audit.run_audit import PASSED, audit_run
from pate_tf.core.dataset import Dataset, target_rows, unlabeled
from pate_tf.core.public import Pool, PublicExamples, PublicSplit, score_of
from pate_tf.core.sensitive import PrivateExamples, Votes
from pate_tf.data.loaded_data import Data
from pate_tf.ledger import Ledger
from pate_tf.models.encoder import record_vectors
from pate_tf.postprocessing.regression import AMPLITUDES, RATIOS, likeliest_weights
from pate_tf.postprocessing.targets import predicted, target_functions
from pate_tf.release.exact_sums import moments_by_class, sums_of_products, sums_of_votes
from pate_tf.representations.catalogue import encoder_of
from pate_tf.serving.served import ServedStudent
from pate_tf.statement.report import write_pages

PRICES = table_dataset(
    3, 0.0, 1.0, 2, name="prices", target="number", target_range=(-10.0, 30.0), pool_size=1_000
)
FINDINGS = dataclasses.replace(
    PRICES,
    name="findings",
    num_classes=3,
    class_names=("edema", "effusion", "nodule"),
    target="labels",
    target_range=None,
    max_labels=2,
)
SIDE = 1.0 / math.sqrt(2.0)
VECTORS = np.array([(1.0, 0.0), (0.0, 1.0), (SIDE, SIDE), (0.5, 0.0)])
TARGETS = [
    *((PRICES, number) for number in (-1e9, -10.0, 0.0, 12.5, 30.0, 1e9)),
    *((FINDINGS, row) for row in itertools.product((0, 1), repeat=3)),
]


@given(
    numbers=st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=5),
    rows=st.lists(st.lists(st.integers(0, 1), min_size=3, max_size=3), min_size=1, max_size=5),
    most=st.integers(1, 3),
)
def test_a_target_has_a_norm_of_at_most_one_and_no_negative_entry(numbers, rows, most):
    findings = dataclasses.replace(FINDINGS, max_labels=most)
    for labels, dataset in ((np.array(numbers), PRICES), (np.array(rows), findings)):
        targets = target_rows(labels, dataset)
        assert (targets >= 0.0).all() and np.linalg.norm(targets, axis=1).max() <= 1.0 + 1e-12
        # How one record is read never depends on another record.
        alone = np.concatenate([target_rows(labels[[row]], dataset) for row in range(len(labels))])
        assert (alone == targets).all()


@pytest.mark.parametrize("dataset", [PRICES, FINDINGS], ids=lambda dataset: dataset.target)
@pytest.mark.parametrize(
    ("add_up", "universe", "mechanism"),
    [
        (sums_of_products, np.vstack([VECTORS, -VECTORS]), GaussianFeatureSums),
        (moments_by_class, VECTORS, GaussianMoments),
    ],
)
def test_replacing_a_record_or_owner_moves_sums_by_no_more_than_is_charged(
    dataset, add_up, universe, mechanism
):
    """Tests all records of a small universe, and all owners of one or two records, next to other
    records.
    """
    labels = [label for each, label in TARGETS if each is dataset]
    cases = list(itertools.product(range(len(universe)), range(len(labels))))

    def table(cases, owners=None):
        places, numbers = zip(*cases, strict=True)
        known = np.array([labels[number] for number in numbers])
        return add_up(universe[list(places)], target_rows(known, dataset), owners)

    def norm(steps):
        return math.sqrt(sum(int(step) ** 2 for step in steps.ravel())) / LATTICE

    others = cases[1:4]
    bound = math.sqrt(mechanism.squared_sensitivity)
    records = [table([case, *others]) for case in cases]
    moved = [norm(one - other) for one, other in itertools.combinations(records, 2)]
    assert 0.9 * bound < max(moved) <= bound
    theirs = [1, 1, 2]
    without = table(others, np.array(theirs))
    owners = [[case] for case in cases] + [[case, case] for case in cases] + [cases * 20]
    tables = [table(own + others, np.array([0] * len(own) + theirs)) for own in owners]
    assert 0.9 < max(norm(each - without) for each in tables) <= 1.0
    assert max(norm(one - other) for one, other in itertools.combinations(tables, 2)) <= bound


def drawn(dataset, number, seed):
    """Returns inputs, and targets that are linear in them except for some noise."""
    generator = np.random.default_rng(seed)
    inputs = generator.random((number, 3)).astype(np.float32)
    scores = 40.0 * inputs @ [[0.7, 0.2, 0.1], [0.2, 0.7, 0.1], [0.1, 0.2, 0.7]]
    if dataset is PRICES:
        return inputs, scores[:, 0] - 10.0 + generator.normal(0.0, 3.0, number)
    return inputs, (scores + generator.normal(0.0, 3.0, scores.shape) > 22.0).astype(np.int64)


def data_of(dataset, num_records=8_000, *, has_pool=True, owners=None, num_labeled=0):
    inputs, labels = drawn(dataset, num_records, 0)
    private = PrivateExamples(dataset, inputs, labels, owners=owners)
    size = 1_000 if has_pool else 0
    inputs, labels = drawn(dataset, size + 1_000, 1)
    labels = labels.astype(np.float64) if dataset is PRICES else labels
    labels[num_labeled:size] = np.nan if dataset is PRICES else -1
    public = PublicExamples(dataset, inputs, labels)
    pool = Pool(dataset, public.inputs[:size], public.take(slice(size)).labels)
    split = PublicSplit(pool=pool, held_out=public.take(slice(size, None)))
    return Data(private=private, public=split)


@pytest.mark.parametrize("num_owners", [0, 4_000])
@pytest.mark.parametrize("has_pool", [True, False])
@pytest.mark.parametrize("dataset", [PRICES, FINDINGS], ids=lambda dataset: dataset.target)
def test_a_student_predicts_numbers_and_several_labels(tmp_path, dataset, has_pool, num_owners):
    owners = np.arange(8_000) % num_owners if num_owners else None
    data = data_of(dataset, has_pool=has_pool, owners=owners)
    fitted = pate_tf.fit(data, epsilon=3.0, delta=1e-5, directory=tmp_path, publish=True)
    # .89 and .97 without noise. An owner's two records together count as one.
    assert fitted.evaluate(data.held_out) > (0.85 if dataset is PRICES else 0.9)
    assert fitted.cost.epsilon <= 3.0 and fitted.student.kind == "linear_head"
    inputs = data.held_out.inputs[:50]
    answers, certain = ServedStudent(fitted.published.student_folder).answer(inputs)
    page = (tmp_path / "released/privacy_statement.md").read_text()
    outputs = tf.saved_model.load(str(fitted.published.student_folder)).signatures
    names = set(outputs["serving_default"].structured_outputs)
    if dataset is PRICES:
        np.testing.assert_allclose(fitted.predict(inputs), answers, rtol=1e-4, atol=1e-3)
        interval = fitted.student.predict_interval(inputs)
        np.testing.assert_allclose(interval, certain, rtol=1e-3, atol=1e-2)
        assert (interval[:, 0] <= answers).all() and (answers <= interval[:, 1]).all()
        assert "a number from -10 to 30. Other values were clipped." in page and names == {
            "value",
            "low",
            "high",
        }
        with pytest.raises(ValueError, match="predict_proba needs a target with classes"):
            fitted.predict_proba(inputs)
    else:
        assert (fitted.predict(inputs) == answers).all()
        np.testing.assert_allclose(fitted.predict_proba(inputs), certain, atol=1e-4)
        assert "several labels (edema, effusion, nodule)" in page and names == {
            "labels",
            "probabilities",
        }
    statement = json.loads((tmp_path / "released/privacy_statement.json").read_text())
    assert statement["predicts"] == dataset.model_facts["predicts"]
    audit = audit_run(tmp_path)
    assert audit.outcome == PASSED
    report = write_pages(tmp_path, audit=audit).read_text().partition("</style>")[2]
    pages = [page, report, fitted.plan.description, (tmp_path / "released/README.md").read_text()]
    assert not re.findall(r"\bclass(?:es|ifier)?\b(?!=)", " ".join(pages))


@pytest.mark.parametrize("dataset", [PRICES, FINDINGS], ids=lambda dataset: dataset.target)
def test_an_estimate_on_held_back_records_is_charged_and_stated(tmp_path, dataset):
    data = data_of(dataset)
    fitted = pate_tf.fit(
        data, epsilon=3.0, evaluate_epsilon=1.0, delta=1e-5, directory=tmp_path, publish=True
    )
    statement = fitted.published.statement
    _, low, high, epsilon, _ = statement.estimated_accuracy
    answers = fitted.predict(data.held_out)
    truth = data.held_out.labels
    if dataset is PRICES:
        reached = 1.0 - np.square((answers - truth) / 40.0).mean()
        assert "a root mean squared error of " in statement.estimated_in_words
    else:
        reached = (answers == truth).mean()
        assert "of the labels are correct" in statement.estimated_in_words
    # A 95 % interval for the held-out records, and the error on 1,000 other samples.
    assert low - 0.03 <= reached <= high + 0.03 and epsilon == 1.0
    assert fitted.source.num_records == 7_200


@pytest.mark.parametrize("dataset", [PRICES, FINDINGS], ids=lambda dataset: dataset.target)
def test_a_forecast_is_kept_and_noise_is_refused(tmp_path, dataset):
    data = data_of(dataset, num_labeled=300)
    settings = {"epsilon": 1.0, "delta": 1e-5, "public_labels": "evaluate"}
    fitted = pate_tf.fit(data, **settings, directory=tmp_path / "a")
    forecast = fitted.plan.forecast
    # The trial's 300 samples differ from these 1,000.
    reached = fitted.evaluate(data.held_out)
    assert forecast.is_measured and forecast.low - 0.02 <= reached <= forecast.high + 0.02
    shuffled = np.random.default_rng(0).permutation(300)
    pool = data.pool
    labels = np.concatenate([pool.true_labels[:300][shuffled], pool.true_labels[300:]])
    public = dataclasses.replace(data.public, pool=Pool(dataset, pool.inputs, labels))
    unrelated = dataclasses.replace(data, public=public)
    with pytest.raises(pate_tf.ForecastError, match=r"A constant answer has (0|0.5)\."):
        pate_tf.fit(unrelated, **settings, directory=tmp_path / "b")
    assert not (tmp_path / "b/sensitive").exists()


@pytest.mark.parametrize("dataset", [PRICES, FINDINGS], ids=lambda dataset: dataset.target)
def test_a_run_joins_public_labels_and_forecasts_what_private_data_add(tmp_path, dataset):
    data = data_of(dataset, num_labeled=700)
    run = {"delta": 1e-5, "method": "feature_sums", "publish": True}
    with pytest.raises(pate_tf.ForecastError, match="private data are not expected to add"):
        pate_tf.fit(data, **run, epsilon=1e-4, directory=tmp_path / "refused")
    assert not (tmp_path / "refused/sensitive").exists()
    options = {"accept_forecast": True, "directory": tmp_path / "run", "epsilon": 0.01}
    fitted = pate_tf.fit(data, **run, **options)
    forecast = fitted.plan.forecast
    assert "With the public labels only, " in forecast.in_words(None) and forecast.gain_error > 0.0
    assert "and 700 public labels" in (tmp_path / "run/released/privacy_statement.md").read_text()
    # The sums say nothing: this is what the public labels reach.
    assert abs(fitted.evaluate(data.held_out) - forecast.public_accuracy) < 0.05
    with pytest.raises(ValueError, match="public_labels: method pate does not support target"):
        pate_tf.fit(data, epsilon=1.0, method="pate", public_labels="train", num_teachers=20)


@pytest.mark.parametrize(
    ("rule", "number"), [("same", 30), ("same", 2_000), ("same", 50_000), ("other", 50_000)]
)
@pytest.mark.parametrize("dataset", [PRICES, FINDINGS], ids=lambda dataset: dataset.target)
def test_public_labels_with_sums_are_as_good_as_either(dataset, rule, number):
    """Compares with scikit-learn's Bayesian regression on the public labels. Labels of another rule
    do no harm.
    """
    inputs, labels = drawn(dataset, 1_000, 1)
    encoder = encoder_of(Pool(dataset, inputs), "raw", 0)
    vectors = record_vectors(encoder.features(inputs), encoder.scale)
    if rule == "other":
        labels = 20.0 - labels if dataset is PRICES else 1 - labels
    public = unlabeled(1_000, dataset)
    public[:20] = labels[:20]
    inputs, truth = drawn(dataset, 4_000, 2)
    at = record_vectors(encoder.features(inputs), encoder.scale)
    columns = labels[:20].reshape(20, -1).T
    fits = [BayesianRidge().fit(vectors[:20], column) for column in columns]
    predictions = np.column_stack([fit.predict(at) for fit in fits])
    alone = score_of(predictions[:, 0] if dataset is PRICES else predictions, truth, dataset)
    inputs, labels = drawn(dataset, number, 0)
    records = record_vectors(encoder.features(inputs), encoder.scale)
    exact = sums_of_products(records, target_rows(labels, dataset))
    noise = 60.0
    generator = np.random.default_rng(3)
    found = []
    for _ in range(300 if number == 30 else 5):
        sums = exact + np.rint(generator.normal(0.0, noise * LATTICE, exact.shape)).astype(np.int64)
        models = [
            target_functions(dataset, vectors, sums, noise, num_records=number, labels=each)
            for each in (None, public)
        ]
        found.append([score_of(predicted(at @ each, dataset), truth, dataset) for each in models])
    private, joined = np.median(found, axis=0)
    assert joined > max(alone, private) - 0.015
    assert number > 30 or min(each[1] for each in found) > alone - 0.02  # with pure noise
    assert (private > alone - 0.015) == (number == 50_000)


@pytest.mark.parametrize(("has_pool", "num_labeled"), [(True, 0), (True, 300), (False, 0)])
@pytest.mark.parametrize("name", ["raw", "bins"])
def test_intervals_hold_what_is_predicted_without_noise(name, has_pool, num_labeled):
    """Tests 300 draws of the noise, at 200 inputs each."""
    data = data_of(PRICES, 5_000, has_pool=has_pool, num_labeled=num_labeled)
    encoder = encoder_of(data.pool, name)

    def features(inputs):
        given = (inputs, None) if name == "raw" else (encoder.features(inputs), encoder.scale)
        return record_vectors(*given)

    mechanism = (GaussianFeatureSums if has_pool else GaussianMoments)(sigma=8.0)
    covered = coverage(data, mechanism, encoder.groups, features, 300)
    # 3.9 standard errors: if the true coverage is .93 to .975, this fails with probability 1e-4.
    assert abs(np.mean(covered) - 0.9525) <= 0.0225 + 3.9 * np.std(covered) / math.sqrt(300)


def test_weights_have_the_priors_of_largest_evidence():
    """A slow twin, which computes the density of the measurements under each pair of priors."""
    generator = np.random.default_rng(0)
    measured = generator.normal(size=(7, 5))
    groups = np.array([1, 0, 0, 1, 0])
    values = measured @ [9.0, 0.3, -0.2, -7.0, 0.1] + generator.normal(0.0, 0.1, 7)
    unit = 0.1 / math.sqrt(np.square(measured).sum(axis=1).mean())
    cases = []
    for ratio, amplitude in itertools.product(RATIOS, AMPLITUDES):
        prior = np.square(unit * amplitude * ratio**groups)
        law = (measured * prior) @ measured.T + 0.01 * np.eye(7)
        solved = np.linalg.solve(law, values)
        evidence = -np.linalg.slogdet(law)[1] - values @ solved
        cases.append((evidence, prior * (solved @ measured)))
    found = likeliest_weights(measured, values[:, None], 0.1, groups)
    np.testing.assert_allclose(found[:, 0], max(cases, key=lambda case: case[0])[1], rtol=1e-6)


def test_one_teacher_moves_the_sums_of_a_query_by_no_more_than_is_charged():
    """Tests all predictions of one teacher in a small universe, next to two other teachers."""
    universes = {
        PRICES: np.array([-np.inf, -10.0, -1.0, 0.3, 12.5, 30.0, 1e9, np.nan]),
        FINDINGS: np.array([*itertools.product((0.0, 0.3, 1.0), repeat=3), [np.nan, -3.0, 9.0]]),
    }
    for dataset, universe in universes.items():
        others = universe[1:3]
        tables = [
            sums_of_votes(Votes(np.array([[one], *others[:, None]]), 0, dataset)).values
            for one in universe
        ]
        assert min(table.min() for table in tables) >= 0
        squares = [
            sum(int(step) ** 2 for step in (one - other).ravel())
            for one, other in itertools.combinations(tables, 2)
        ]
        # Two of three labels, and the third label, are orthogonal, of length 1 and sqrt(1/2).
        least = 1.99 if dataset is PRICES else 1.49
        assert least * LATTICE**2 < max(squares) <= 2 * LATTICE**2


@pytest.mark.parametrize("unit", ["record", "owner"])
@pytest.mark.parametrize("dataset", [PRICES, FINDINGS], ids=lambda dataset: dataset.target)
def test_a_changed_record_or_owner_changes_what_one_teacher_predicts(tmp_path, dataset, unit):
    owners = None if unit == "record" else np.arange(300) % 100
    data = data_of(dataset, 300, owners=owners)
    if owners is None:
        inputs, labels = np.array(data.private.inputs), np.array(data.private.labels)
        inputs[7] = 1.0 - inputs[7]
        labels[7] = labels.min() if dataset is PRICES else 1 - labels[7]
        changed = dataclasses.replace(data.private, inputs=inputs, labels=labels)
    else:
        changed = data.private.take(owners != 7)
    kinds = [("ridge", {}), (lambda dataset: LinearRegression(), {})]
    if owners is None:
        kinds.append(("mlp", {"steps": 3}))
    for place, (net, settings) in enumerate(kinds):
        predictions = [
            pate_tf.Teachers(
                net, num_teachers=6, directory=tmp_path / f"{place}{number}", **settings
            )
            .fit(private, data.pool)
            .votes(data.pool.inputs[:20])
            for number, private in enumerate((data.private, changed))
        ]
        first, second = predictions
        assert first.shape == (6, 20) + ((3,) if dataset is FINDINGS else ())
        assert (first != second).reshape(6, -1).any(axis=1).sum() == 1


def test_noise_on_sums_has_the_scale_that_is_charged(tmp_path):
    predictions = np.random.default_rng(0).uniform(-10.0, 30.0, (50, 1_000))
    pool = data_of(PRICES, 10).pool
    mechanism = pate_tf.mechanisms.GaussianHistogram(sigma=7.0)
    teachers = pate_tf.Teachers.from_votes(predictions, directory=tmp_path)
    with pate_tf.Labeller(teachers, mechanism, delta=1e-5) as labeller:
        labels = labeller.label(pool)
        again = labeller.label(pool)
        assert labeller.spent().num_queries == 1_000
        other = dataclasses.replace(PRICES, target_range=(-10.0, 31.0))
        labeller.label(Pool(other, pool.inputs))  # other values of the teachers
        assert labeller.spent().num_queries == 2_000
    exact = sums_of_votes(Votes(predictions, 2, PRICES)).values
    noise = (labels.released.noisy_counts - exact[labels.queries]) / LATTICE
    assert (again.released.noisy_counts == labels.released.noisy_counts).all()
    # Chi-squared with 2,000 degrees of freedom; both tails together 1e-6.
    low, high = scipy.stats.chi2.ppf([5e-7, 1.0 - 5e-7], noise.size)
    assert low < np.square(noise / 7.0).sum() < high
    row = math.sqrt(2.0) * 7.0 / (2.0 * 50) * 40.0  # noise on the number of one query
    sides = np.ptp(pate_tf.Student().fit(pool, labels).predict_interval(pool.inputs), axis=1)
    assert (sides > 0.0).all() and sides.max() < 2 * 1.96 * row


@pytest.mark.parametrize("num_owners", [0, 4_000])
@pytest.mark.parametrize("dataset", [PRICES, FINDINGS], ids=lambda dataset: dataset.target)
def test_a_student_learns_from_what_teachers_predict(tmp_path, dataset, num_owners):
    data = data_of(dataset, owners=np.arange(8_000) % num_owners if num_owners else None)
    budget = {"epsilon": 3.0, "evaluate_epsilon": 1.0, "delta": 1e-5}
    fitted = pate_tf.fit(
        data, method="pate", num_teachers=200, directory=tmp_path, publish=True, **budget
    )
    # .89 and .97 without noise. In 20 runs .87, standard deviation .005.
    assert fitted.evaluate(data.held_out) > (0.8 if dataset is PRICES else 0.9)
    assert fitted.cost.epsilon <= 3.0 and "No accuracy forecast" in str(fitted.plan)
    statement = fitted.published.statement
    assert statement.num_teachers == 200 and statement.estimated_accuracy[3] == 1.0
    page = (tmp_path / "released/privacy_statement.md").read_text()
    assert "Each teacher made a prediction for 1,000 queries" in page and "voted" not in page
    assert audit_run(tmp_path).outcome == PASSED
    with Ledger.read(tmp_path / "sensitive") as ledger:
        analysis = analyse(read_ledgers([ledger], votes_needed=True), delta=1e-5)
    assert not analysis.bounds and analysis.epsilon >= fitted.cost.epsilon


def test_sums_are_labeled_only_with_their_own_pool(tmp_path):
    data, empty = data_of(PRICES), data_of(PRICES, has_pool=False)
    sums = pate_tf.FeatureSums(directory=tmp_path).fit(data.private, data.pool)
    with pytest.raises(ValueError, match="pool must"), pate_tf.Labeller(sums, epsilon=1) as one:
        one.label(empty.pool)  # moments, which would be charged for less than sums can move


@pytest.mark.parametrize("dataset", [PRICES, FINDINGS], ids=lambda dataset: dataset.target)
def test_teachers_of_any_kind_and_from_elsewhere_predict(tmp_path, dataset):
    data = data_of(dataset, 2_000)
    several = dataset is FINDINGS
    pool = data.pool
    shards = [data.private.inputs[place::40] for place in range(40)]
    labels = [data.private.labels[place::40] for place in range(40)]
    models = [
        LinearRegression().fit(each, known) for each, known in zip(shards, labels, strict=True)
    ]
    predictions = np.array([model.predict(pool.inputs) for model in models])
    network = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3 if several else 1)])
    network.set_weights([models[0].coef_.T.reshape(3, -1), np.atleast_1d(models[0].intercept_)])
    sources = [
        pate_tf.Teachers.from_votes(predictions, directory=tmp_path / "votes"),
        pate_tf.Teachers.from_models([*models[1:], network], directory=tmp_path / "models"),
    ]
    for net, settings in (("mlp", {"steps": 100}), ("random_forest", {})):
        teachers = pate_tf.Teachers(net, num_teachers=10, directory=tmp_path / net, **settings)
        sources.append(teachers.fit(data.private, pool))
    for source in sources:
        with pate_tf.Labeller(source, epsilon=60.0, delta=1e-5) as labeller:
            student = pate_tf.Student().fit(pool, labeller.label(pool))
        assert student.evaluate(data.held_out) > (0.5 if dataset is PRICES else 0.8)
    shown = event_files.scalars(tmp_path / "mlp" / "sensitive" / "logs" / "teachers" / "median")
    assert len(shown["loss"]) == 100 and len(shown.get("accuracy", [])) == 100 * several
    # A network without a last activation returns log odds for several labels.
    said = sources[1].for_pool(pool).votes(pool.inputs).labels[-1]
    expected = scipy.special.expit(predictions[0]) if several else predictions[0]
    low, high = dataset.target_range or (0.0, 1.0)
    np.testing.assert_allclose(said, np.clip(expected, low, high), atol=1e-4)


@pytest.mark.parametrize("dataset", [PRICES, FINDINGS], ids=lambda dataset: dataset.target)
def test_what_fits_classes_alone_is_refused_before_anything_is_charged(tmp_path, dataset):
    data = data_of(dataset, 500)
    laplace = {"method": "pate", "num_teachers": 5, "mechanism": pate_tf.LaplaceNoisyMax}
    calls = {
        "laplace_noisy_max counts votes for classes; .* gaussian_histogram$": laplace,
        "student must be linear_head without": {"student": pate_tf.Student("supervised")},
    }
    for message, choices in calls.items():
        with pytest.raises(ValueError, match=message):
            pate_tf.fit(data, epsilon=1.0, delta=1e-5, directory=tmp_path, **choices)

    def compiled(dataset):
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(dataset.num_classes)])
        model.compile(loss="mse")
        return model

    wrong = [
        ("a compiled model needs labels that are classes", compiled, {}),
        ("class_weights needs", "mlp", {"class_weights": [1.0] * dataset.num_classes}),
        ("model: the estimator can't learn", lambda dataset: LogisticRegression(), {}),
    ]
    for message, net, settings in wrong:
        with pytest.raises(ValueError, match=message):
            pate_tf.Teachers(net, num_teachers=5, directory=tmp_path, **settings).fit(data.private)
    for shape in ((5, 9, 4), (5, 9) if dataset is FINDINGS else (5, 9, 3)):
        teachers = pate_tf.Teachers.from_votes(np.full(shape, 0.5), directory=tmp_path / "votes")
        with pytest.raises(ValueError, match="votes must be numbers"):
            teachers.for_pool(data.pool)
    assert not (tmp_path / "sensitive/ledger.db").exists()
    labels = pate_tf.fit(data, epsilon=9.0, delta=1e-5, directory=tmp_path).labels
    labels.save(tmp_path / "labels")
    stored = pate_tf.Labels.load(tmp_path / "labels", data.pool)
    with pytest.raises(ValueError, match=f"classes, but the target of .* is {dataset.target}"):
        pate_tf.Student().fit(data.pool, stored)  # for which no linear head is stored


def test_a_data_set_says_what_it_predicts():
    for dataset in (PRICES, FINDINGS):
        assert Dataset.from_dict(json.loads(json.dumps(dataset.to_dict()))) == dataset
    wrong = [
        (PRICES, {"target_range": (3.0, 3.0)}, "finite low < high"),
        (PRICES, {"target_range": None}, "lowest and highest value for target number"),
        (FINDINGS, {"max_labels": 4}, "max_labels must be a whole number from 0 to 3"),
        (FINDINGS, {"target": "class"}, "max_labels must be a whole number from 0 to 0"),
    ]
    for dataset, changes, message in wrong:
        with pytest.raises(ValueError, match=message):
            dataclasses.replace(dataset, **changes)
    with pytest.raises(ValueError, match="must be finite, got NaN"):
        PrivateExamples(PRICES, np.zeros((1, 3)), np.array([np.nan]))
    clipped = PrivateExamples(PRICES, np.zeros((2, 3)), np.array([-1e9, 1e9]))
    assert clipped.labels.tolist() == [-10.0, 30.0]
