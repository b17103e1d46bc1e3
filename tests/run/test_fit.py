"""One call from data to a student gives the same result as its parts, and refuses invalid
arguments.
"""

import numpy as np
import pytest
from script_processes import learn_little

import pate_tf
from pate_tf.ledger import Ledger
from pate_tf.planning import plan_of_sums
from pate_tf.planning.forecast import Forecast
from pate_tf.representations import contrastive

INSECURE = {"insecure_seed": 7}


@pytest.fixture(scope="module", autouse=True)
def quick():
    before = contrastive.NETWORKS, contrastive.STEPS, contrastive.STUDENT_STEPS
    learn_little()
    yield
    contrastive.NETWORKS, contrastive.STEPS, contrastive.STUDENT_STEPS = before


@pytest.fixture(scope="module")
def data() -> pate_tf.Data:
    random = np.random.default_rng(2)
    inputs = random.normal(size=(330, 4)).clip(-4.0, 4.0)
    labels = (inputs[:, 0] > 0.0).astype(int)
    return pate_tf.Data.from_arrays(
        *(inputs[:240], labels[:240], inputs[240:], labels[240:]),
        num_classes=2,
        value_range=(-4.0, 4.0),
    )


def source(method, folder):
    if method == "feature_sums":
        return pate_tf.FeatureSums(directory=folder)
    return pate_tf.Teachers("random_forest", num_teachers=8, directory=folder)


@pytest.mark.parametrize("method", ["pate", "feature_sums"])
def test_one_call_is_the_parts_one_after_another(data, tmp_path, method):
    cost = {"epsilon": 20.0, "delta": 1e-5, **INSECURE}
    mechanism = pate_tf.mechanisms.GaussianHistogram if method == "pate" else None
    fitted = pate_tf.fit(
        data,
        method=method,
        source=source(method, tmp_path / "one"),
        mechanism=mechanism,
        student=pate_tf.Student("random_forest"),
        **cost,
    )
    parts = source(method, tmp_path / "parts").fit(data.private, data.pool)
    with pate_tf.Labeller(parts, mechanism, **cost) as labeller:
        labels = labeller.label(data.pool)
    student = pate_tf.Student("random_forest").fit(data.pool, labels)
    assert np.array_equal(fitted.labels.labels, labels.labels)
    assert fitted.cost == labels.cost and fitted.cost.epsilon <= 20.0
    assert repr(fitted.cost) == f"Cost({labels.cost.in_words()})"
    assert np.array_equal(
        fitted.student.predict_proba(data.held_out), student.predict_proba(data.held_out)
    )
    assert fitted.student.evaluate(data.held_out) > 0.6
    statement = fitted.student.publish(tmp_path / "released").statement
    assert statement.epsilon == pytest.approx(fitted.cost.epsilon)
    with pytest.raises(ValueError, match=r"First publish a student, with .*`publish\(\)`"):
        pate_tf.audit.report_page(tmp_path / "one")
    (tmp_path / "one/released/unfinished_student").mkdir()  # left by another, interrupted student
    assert fitted.student.publish().folder == tmp_path / "one" / "released"
    assert not (tmp_path / "one/released/unfinished_student").exists()
    assert pate_tf.audit.report_page(tmp_path / "one")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "sums"}, "method must be auto, pate or feature_sums, got 'sums'"),
        ({"num_teachers": 9}, "Pass source, or num_teachers and representation"),
        ({"method": "feature_sums"}, "source must be pate_tf.FeatureSums with method feature"),
        (
            {"method": "feature_sums", "source": None, "epsilon": 0.001},
            "^The labels are not expected to be worth their cost",
        ),
        ({"directory": "elsewhere"}, "directory must be .*, the folder of `source`"),
        ({"epsilon": None}, "epsilon is required, or a mechanism"),
        ({"data": 3}, "data must be pate_tf.Data, got int"),
    ],
)
def test_what_does_not_fit_is_refused(data, tmp_path, monkeypatch, changes, message):
    monkeypatch.chdir(tmp_path)
    given = {"data": data, "epsilon": 1.0, "delta": 1e-5, "source": source("pate", tmp_path)}
    with pytest.raises(ValueError, match=message):
        pate_tf.fit(**{**given, **changes})
    assert not list(tmp_path.rglob("ledger*"))


@pytest.mark.parametrize(
    ("settings", "source"),
    [
        ({}, pate_tf.FeatureSums),
        ({"num_queries": 5}, pate_tf.Teachers),
        ({"method": "pate", "num_teachers": 6}, pate_tf.Teachers),
    ],
)
def test_method_and_source_follow_from_public_values(data, tmp_path, settings, source):
    settings = {"epsilon": 20.0, "representation": "raw", "directory": tmp_path, **settings}
    fitted = pate_tf.fit(data, **settings)
    assert type(fitted.source) is source and fitted.source.directory == tmp_path
    assert fitted.evaluate(data.held_out) == fitted.student.evaluate(data.held_out)
    assert fitted.predict_proba(data.held_out).argmax(axis=1).tolist() == (
        fitted.predict(data.held_out).tolist()
    )
    assert fitted.publish().folder == tmp_path / "released"
    if "num_teachers" in settings:
        assert fitted.source.num_teachers == 6


@pytest.mark.parametrize("method", ["pate", "feature_sums"])
@pytest.mark.parametrize(("epsilon", "has_labels"), [(2.0, True), (0.1, False)])
def test_a_forecast_of_noise_stops_before_the_charge(tmp_path, method, epsilon, has_labels):
    inputs = np.random.default_rng(1).uniform(size=(300, 2)).astype(np.float32)
    labels = np.random.default_rng(2).integers(0, 2, 300)
    public = {"y_public": labels[200:] if has_labels else None, "value_range": (0.0, 1.0)}
    records = (inputs[:200], labels[:200])
    data = pate_tf.Data.from_arrays(*records, inputs[200:], num_classes=2, **public)
    teachers = pate_tf.Teachers("ridge", num_teachers=10, directory=tmp_path)
    settings = {"epsilon": epsilon, "method": method, "directory": tmp_path}
    if method == "pate":
        settings |= {"source": teachers, "mechanism": pate_tf.mechanisms.GaussianHistogram}
    with pytest.raises(pate_tf.ForecastError, match=r"worth their cost(.|\n)*To improve"):
        pate_tf.fit(data, **settings)
    classifier = pate_tf.PateClassifier(epsilon=0.05, method=method, num_teachers=10)
    with pytest.raises(pate_tf.ForecastError, match=r"worth their cost|so much noise"):
        classifier.fit(*records, X_public=inputs[200:])
    for database in tmp_path.rglob("*.sqlite3"):
        with Ledger.read(database.parent) as ledger:
            assert ledger.spent().epsilon == 0.0
    assert not (tmp_path / "released").exists()
    assert 0.0 < pate_tf.fit(data, **settings, accept_forecast=True).cost.epsilon <= epsilon


@pytest.mark.parametrize(
    ("labels", "fields", "chosen"),
    [
        ("products", {}, "pairs"),
        ("staircase", {}, "bins"),
        ("products", {"y_public": None}, "bins"),
        ("products", {"owners": np.arange(1_500)}, "bins"),
    ],
)
def test_sums_of_a_table_are_for_good_of_what_labels_its_pool_best(
    tmp_path, monkeypatch, labels, fields, chosen
):
    inputs = np.random.default_rng(3).uniform(-1.0, 1.0, (2_000, 2)).astype(np.float32)
    classes = {"products": inputs.prod(axis=1) > 0.0, "staircase": np.floor(5 * inputs[:, 0]) % 2}
    truth = classes[labels].astype(int)
    public = {"y_public": truth[1_500:], "num_classes": 2, "value_range": (-1.0, 1.0), **fields}
    data = pate_tf.Data.from_arrays(inputs[:1_500], truth[:1_500], inputs[1_500:], **public)
    run = {"method": "feature_sums", "directory": tmp_path}
    assert pate_tf.fit(data, **run, epsilon=4.0).source.representation == chosen
    # Only stored results are tried again.
    always = Forecast(1.0, 1.0, 500.0)
    monkeypatch.setattr(plan_of_sums, "trial", lambda samples, encoder, *_: (always, 1.0))
    assert pate_tf.fit(data, **run, epsilon=2.0).source.representation == chosen


def test_a_gain_for_a_rare_class_is_measured_by_the_area_under_the_curve(tmp_path):
    inputs = np.random.default_rng(5).uniform(size=(12_000, 150))
    labels = (inputs[:, :75].mean(axis=1) > 0.555).astype(int)  # 5 % of all records
    public = {"num_classes": 2, "value_range": (0.0, 1.0), "y_public": labels[10_900:]}
    data = pate_tf.Data.from_arrays(inputs[:10_900], labels[:10_900], inputs[10_900:], **public)
    run = {"delta": 1e-6, "representation": "raw", "public_labels": "train"}
    with pytest.raises(pate_tf.ForecastError, match="With the public labels only, AUC is about"):
        pate_tf.fit(data, **run, epsilon=1e-4, directory=tmp_path / "refused")
    forecast = pate_tf.fit(data, **run, epsilon=3.0, directory=tmp_path).plan.forecast
    assert forecast.gain > forecast.gain_error and forecast.public_auc > 0.5


def test_a_run_learns_from_public_labels_and_says_whether_private_ones_add_to_them(tmp_path):
    random = np.random.default_rng(4)
    inputs = random.uniform(size=(4_000, 3))
    labels = (inputs[:, 0] + inputs[:, 1] + random.normal(0, 0.3, 4_000) > 1).astype(int)
    pool = inputs[2_900:].copy()
    settings = {"num_classes": 2, "value_range": (0.0, 1.0), "kind": "tabular"}
    records = (inputs[:2_900], labels[:2_900])
    data = pate_tf.Data.from_arrays(*records, pool, y_public=labels[2_900:], **settings)
    run = {"epsilon": 0.01, "delta": 1e-6, "method": "feature_sums"}
    with pytest.raises(pate_tf.ForecastError, match="private data are not expected to add"):
        pate_tf.fit(data, **{**run, "epsilon": 1e-4}, directory=tmp_path / "refused")
    options = {"accept_forecast": True, "publish": True}
    found = {}
    for choice in ("train", "evaluate"):
        folder = tmp_path / choice
        fitted = pate_tf.fit(data, **run, **options, directory=folder, public_labels=choice)
        found[choice] = fitted.evaluate(data.held_out)
        values = fitted.report(folder).values
        trains = choice == "train"
        page = fitted.published.statement.to_markdown()
        assert ("on 770 public labels" in page) == trains
        assert f"right for {values['student_accuracy']:.1%}".replace("%", " %") in page
        assert (values["label_accuracy"] is None) == trains
        if trains:  # the noise outweighs the private records, so the other student may be anything
            assert not values["is_no_better_than_constant"]
        assert fitted.cost.epsilon == pytest.approx(0.01, rel=0.01)
    assert found["train"] > 0.75
    unlabeled = pate_tf.Data.from_arrays(*records, pool, **settings)
    with pytest.raises(ValueError, match="public_labels: the public pool has no labels"):
        pate_tf.fit(unlabeled, **run, directory=tmp_path / "none", public_labels="train")
