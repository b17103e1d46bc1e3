"""Feature sums without a public pool: from one private file to a served student."""

import dataclasses
import json
import re
from functools import partial

import numpy as np
import pyarrow
import pytest
from PIL import Image

import pate_tf
from pate_tf.accounting.conversions import LATTICE
from pate_tf.audit.run_audit import PASSED, audit_run
from pate_tf.core.sensitive import owner_partition
from pate_tf.core.source import Records
from pate_tf.data.data_source import DataSource, FileSource
from pate_tf.data.schema import schema_of
from pate_tf.release.feature_sums import FeatureSums, Summands, sums_of_records
from pate_tf.release.noisy_sums import estimate_accuracy, mechanism_of_estimate
from pate_tf.representations.catalogue import default_of_sums, encoder_of
from pate_tf.run import labeller
from pate_tf.run.labeller import Labeller
from pate_tf.serving.served import ServedStudent
from pate_tf.statement import check_statement, opened_stores, verify

SCHEMA = schema_of(
    {
        "label": "ill",
        "classes": ["no", "yes"],
        "columns": {
            "age": {"low": 0, "high": 100},
            "ward": {"categories": ["a", "b"], "other": True},
        },
    }
)


def table(number=4_000, seed=0):
    """Returns visits of patients, some to a ward that the schema does not list."""
    random = np.random.default_rng(seed)
    age, ward = random.uniform(0, 100, number), random.choice(["a", "b", "secret"], number)
    ill = np.where(age + 40 * (ward == "a") > 75, "yes", "no")
    return {"age": age.round(1), "ward": ward, "ill": ill, "patient": np.arange(number) // 2}


def data_of(fields, owner=None):
    return pate_tf.Data.from_dataframe(
        pyarrow.table(fields), label="ill", owner=owner, schema=SCHEMA
    )


def test_numbers_are_cosines_and_whether_they_are_low(tmp_path):
    data = data_of(table(2_000) | {"age": np.linspace(-5.0, 105.0, 2_000)})
    fitted = pate_tf.fit(data, epsilon=4.0, delta=1e-5, directory=tmp_path)
    assert fitted.plan.representation == fitted.source.representation == "cosines"
    ages, wards = np.split(data.private.inputs, [1], axis=1)
    parts = [np.cos(np.pi * k * ages / 100.0) / k for k in (1, 2)]
    parts += [ages < low for low in (1 / 8, 1, 4)] + [wards, np.ones_like(ages)]
    expected = np.hstack(parts) / np.linalg.norm(np.hstack(parts), axis=1, keepdims=True)
    features = fitted.source.encoder.features(data.private.inputs)
    np.testing.assert_allclose(features, expected, atol=1e-5)
    width = features.shape[1]
    default = partial(default_of_sums, data.dataset, has_pool=False, in_rounds=True)
    assert default(records_over_noise=width) == "cosines"
    assert default(records_over_noise=width - 1) == "coarse_cosines"
    coarse = encoder_of(data.pool, "coarse_cosines").features(data.private.inputs)
    kept = expected[:, [0, 1, *range(5, width)]]
    kept /= np.linalg.norm(kept, axis=1, keepdims=True)
    np.testing.assert_allclose(coarse, kept, atol=1e-5)


def test_stored_sums_without_vectors_are_released_in_one_round(tmp_path):
    """Beam stores such sums, with second moments."""
    data = data_of(table())
    sums = FeatureSums(directory=tmp_path)
    encoder = sums.encoder_for(data.private.dataset, data.pool)
    summands = Summands.of(encoder, data.pool)
    described = sums.described(encoder, has_owners=False)
    total = sums_of_records(data.private, encoder, summands)
    records = Records(num_records=4_000, source=data.private.source)
    sums.store(described, encoder, summands, total, records=records, pool_size=0, flags={})
    with pytest.raises(pate_tf.ForecastError, match="the noise leaves too few correct labels"):
        pate_tf.fit(data, epsilon=0.01, delta=1e-6, directory=tmp_path)
    fitted = [pate_tf.fit(data, epsilon=4.0, delta=1e-6, directory=tmp_path) for _ in range(2)]
    assert fitted[0].cost.charge.name == "gaussian_moments" and fitted[0].cost == fitted[1].cost
    assert fitted[0].cost.epsilon <= 4.0


def test_noise_longer_than_any_sum_of_a_class_is_refused_before_it_is_charged(tmp_path):
    with pytest.raises(pate_tf.ForecastError, match="the noise leaves too few correct labels"):
        pate_tf.fit(data_of(table(300)), epsilon=0.05, delta=1e-5, directory=tmp_path)


def stored_table(folder, fields, owner=None):
    sums = FeatureSums(directory=folder).fit(data_of(fields, owner).private, data_of(fields).pool)
    return sums.table / 2.0**20


def text_of(folder, epsilon=4.0, pool=None):
    """Returns the text of a plan and a description, and the names of all files."""
    sums = FeatureSums.load(folder)
    with Labeller(sums, epsilon=epsilon, delta=1e-6) as labeller:
        plan = labeller.plan(data_of(table(2)).pool if pool is None else pool)
    names = sorted(re.sub(r"\d+$", "", path.name) for path in folder.rglob("*"))
    return f"{plan} {plan.reason} {names}"


@pytest.mark.parametrize("owner", [None, "patient"])
def test_a_private_table_alone_gives_a_student_that_is_served_and_verified(tmp_path, owner, capsys):
    data = data_of(table(), owner)
    assert len(data.pool) == len(data.held_out) == 0
    fitted = pate_tf.fit(data, epsilon=4.0, delta=1e-6, directory=tmp_path)
    held_out = data_of(table(1_000, seed=1)).private
    inputs = held_out.inputs
    assert fitted.student.evaluate(inputs, held_out.labels) > 0.9
    published = fitted.student.publish(evaluate_on=data.public)
    assert published.measured["student_accuracy"] is None
    served = ServedStudent(published.student_folder)
    np.testing.assert_array_equal(served.answer(inputs)[0], fitted.student.predict(inputs))
    assert verify(published.folder / "privacy_statement.json") == "agrees with the ledger"
    page = (published.folder / "privacy_statement.md").read_text()
    assert "No public records were used" in page and "public pool" not in page
    fitted.labels.save(published.folder)
    assert audit_run(tmp_path).outcome == PASSED
    again = pate_tf.fit(data, epsilon=4.0, delta=1e-6, directory=tmp_path)
    assert again.cost == fitted.cost  # released once, charged once
    released = b"".join(path.read_bytes() for path in published.folder.rglob("*") if path.is_file())
    assert b"secret" not in released and not capsys.readouterr().err.count("secret")


def test_a_record_replaced_changes_nothing_but_the_noisy_numbers(tmp_path):
    fields, changed = table(300), table(300)
    changed["age"][7], changed["ward"][7], changed["ill"][7] = 1e9, "never seen", "yes"
    before, after = (
        stored_table(tmp_path / name, each)
        for name, each in (("before", fields), ("after", changed))
    )
    assert 0.0 < np.linalg.norm(before - after) <= 2.0**0.5
    assert text_of(tmp_path / "before") == text_of(tmp_path / "after")


@pytest.mark.parametrize("kind", ["text", "image"])
def test_a_text_or_image_replaced_changes_nothing_but_the_noisy_numbers(tmp_path, capsys, kind):
    labels = np.arange(300) % 2
    inputs = np.random.default_rng(0).integers(0, 255, (300, 16, 16, 1)).astype(np.uint8)
    changed = inputs.copy()
    changed[7] = 0
    if kind == "text":
        inputs = [f"visit {image[0, 0, 0]} of {image[0, 1, 0]}" for image in inputs]
        changed = [*inputs[:7], "never \x00 seen", *inputs[8:]]
    tables, texts = [], []
    for name, each in (("before", inputs), ("after", changed)):
        data = pate_tf.Data.from_arrays(each, labels, num_classes=2, kind=kind, name="visits")
        sums = FeatureSums(directory=tmp_path / name, verbose=True).fit(data.private, data.pool)
        tables.append(sums.table / LATTICE)
        shown = re.sub(r"[\d.:]+", "", capsys.readouterr().err.replace(name, ""))
        texts.append((text_of(tmp_path / name, pool=data.pool), sorted(set(shown.split()))))
    assert 0.0 < np.linalg.norm(tables[0] - tables[1]) <= 2.0**0.5
    assert texts[0] == texts[1]


def test_an_owner_more_moves_the_table_by_one_and_nothing_else(tmp_path):
    more = table(340)
    more["patient"][300:] = 1_000
    fields = {name: column[:300] for name, column in more.items()}
    before, after = (
        stored_table(tmp_path / name, each, "patient")
        for name, each in (("before", fields), ("after", more))
    )
    assert 0.9 < np.linalg.norm(before - after) <= 1.0
    assert text_of(tmp_path / "before", 40.0) == text_of(tmp_path / "after", 40.0)


def test_what_needs_public_records_is_refused_before_a_charge(tmp_path):
    data = data_of(table(300))
    for changes, message in (
        ({"method": "pate"}, "public is required with method pate"),
        ({"source": pate_tf.Teachers()}, "source must be FeatureSums if there are no public"),
        ({"student": pate_tf.Student("supervised")}, "student must be linear_head"),
        ({"epsilon": 1e-4}, "epsilon=0.0001 needs so much noise"),
    ):
        with pytest.raises(ValueError, match=message):
            folder = None if "source" in changes else tmp_path
            pate_tf.fit(data, **{"epsilon": 4.0, "directory": folder, **changes})
    assert not (tmp_path / "released").exists()
    with pytest.raises(ValueError, match="is required without public records"):
        pate_tf.Data.from_dataframe(pyarrow.table(table(9)), label="ill")
    assert not list(tmp_path.rglob("*.sqlite3"))
    pairs = FeatureSums(directory=tmp_path / "other", representation="pairs")
    with pytest.raises(ValueError, match="must be one of bins, coarse_bins, cosines, coarse_cos"):
        pairs.fit(data.private, data.pool)


@pytest.mark.parametrize(("owner", "cost"), [(None, 0.5), ("patient", 0.5), (None, 20.0)])
def test_an_estimate_of_accuracy_is_charged_once_and_stated(tmp_path, owner, cost):
    data, arguments = data_of(table(), owner), {"epsilon": 4.0, "delta": 1e-6}
    arguments |= {"evaluate_epsilon": cost, "directory": tmp_path}
    published = [pate_tf.fit(data, **arguments).student.publish() for _ in range(2)]
    statement = published[0].statement
    assert statement.estimate_is_apart and not published[1].statement.estimate_is_apart
    # The second call used stored sums. It can't know that they come from other records.
    assert statement.headline[0] < published[1].statement.headline[0] <= 4.0 + cost + 1e-9
    accuracy, low, high, epsilon, constant = statement.estimated_accuracy
    assert 0.8 < low < accuracy <= high <= 1.0 and high - low < 0.25 and epsilon == cost
    assert abs(constant - np.mean(table()["ill"] == "no")) < 0.15
    assert statement.estimated_accuracy == published[1].statement.estimated_accuracy
    assert statement.epsilon <= max(4.0, cost) < statement.epsilon_ledger < 4.0 + 1.6 * cost
    first = statement.guarantees[0]
    assert first.epsilon >= max(statement.epsilon, statement.estimate_charge.pure_epsilon * 0.999)
    path = published[0].folder / "privacy_statement.json"
    cheaper = {**json.loads(path.read_text()), "epsilon": 0.4}
    free = {**json.loads(path.read_text()), "estimate_charge": mechanism_of_estimate(9.0).to_dict()}
    for fields, told in ((cheaper, "epsilon.* must be at least"), (free, "was not charged")):
        with (
            opened_stores([tmp_path / "sensitive"]) as opened,
            pytest.raises(ValueError, match=told),
        ):
            check_statement(fields, *opened)
    assert f"{100 * accuracy:.1f} % (95 % interval {100 * low:.1f} to" in statement.to_markdown()
    assert verify(published[0].folder / "privacy_statement.json") == "agrees with the ledger"
    assert audit_run(tmp_path).outcome == PASSED
    # Held out by position, or by owner: never used for training, independent of the other records.
    learned, held_back = data.hold_back()
    assert len(learned.private) + len(held_back) == 4_000 and 300 < len(held_back) < 500
    if owner is not None:
        shards = owner_partition(learned.private.owners, num_teachers=20, seed=0).all_records()
        assert all(map(len, shards)) and not np.isin(held_back.owners, learned.private.owners).any()


@pytest.mark.parametrize("part", ["all", "rest", "another call", "a copy", "of another process"])
def test_an_estimate_on_records_that_labels_may_be_of_adds_up(tmp_path, monkeypatch, part):
    data = data_of(table())
    learned, held_back = data.hold_back()
    fitted = pate_tf.fit(learned, epsilon=4.0, delta=1e-6, directory=tmp_path)
    parts = {"all": data.private, "rest": learned.private, "another call": data.hold_back()[1]}
    # A copy might contain other records.
    parts |= {"a copy": dataclasses.replace(held_back), "of another process": held_back}
    release = labeller.release_sums

    def release_later(*args, **facts):
        monkeypatch.undo()
        if part == "of another process":
            fitted.student.estimate_accuracy(learned.private, 2.0)
        return release(*args, **facts)

    monkeypatch.setattr(labeller, "release_sums", release_later)
    with pytest.raises(ValueError, match="already held back"):
        learned.hold_back()
    fitted.student.estimate_accuracy(parts[part], 2.0)
    statement = fitted.student.publish().statement
    assert 5.0 < statement.epsilon == statement.epsilon_ledger <= 6.0
    assert statement.guarantees[0].epsilon >= statement.epsilon
    assert "the ε of the noisy sums and of the estimate add up" in statement.to_markdown()
    # The ledger returns the stored estimate, which is not of these records.
    fitted.student.estimate_accuracy(held_back, 2.0)
    again = fitted.student.publish().statement
    assert (again.epsilon, again.headline) == (statement.epsilon, statement.headline)


def test_an_estimate_adds_up_if_another_process_stored_its_sums_first(tmp_path, monkeypatch):
    data = data_of(table(), "patient")
    ours, theirs = (FeatureSums(directory=tmp_path) for _ in range(2))
    store = ours.store

    def store_later(*args, **facts):
        theirs.fit(data.private, data.pool)
        return store(*args, **facts)

    monkeypatch.setattr(ours, "store", store_later)
    cost = {"epsilon": 4.0, "delta": 1e-6, "evaluate_epsilon": 2.0}
    statement = pate_tf.fit(data, source=ours, **cost).student.publish().statement
    assert ours.digest == theirs.digest and not statement.estimate_is_apart


def test_the_estimate_needs_owners_exactly_if_the_labels_protect_owners(tmp_path):
    of_owners, of_records = data_of(table(), "patient"), data_of(table())
    for data, other in ((of_owners, of_records), (of_records, of_owners)):
        directory = tmp_path / str(data is of_owners)
        fitted = pate_tf.fit(data, epsilon=4.0, delta=1e-6, directory=directory)
        spent = fitted.student.labels.labeller.spent()
        with pytest.raises(ValueError, match="held_back must protect the same unit"):
            fitted.student.estimate_accuracy(other.private, 2.0)
        assert fitted.student.labels.labeller.spent() == spent


@pytest.mark.parametrize(("owner", "has_two"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_one_record_or_owner_moves_the_counts_of_right_answers_by_two_at_most(owner, has_two):
    tables = []

    def release(exact, mechanism):
        tables.append(exact)
        assert mechanism.pure_epsilon <= 0.1 and (exact >= 0).all()
        return exact

    owners = np.array([0, 0, 0, 1, 2, 2, 3]) if owner else None
    answers = ([1.0] * 3, [0.0] * 3, [1.0, 0.0, np.nan]) if owner else ([1.0], [0.0], [np.nan])
    for mine, label in ((each, label) for each in answers for label in (0, 1)):
        is_correct = np.array([*mine, *[1.0] * (7 - len(mine))])
        labels = np.array([label] * len(mine) + [1] * (7 - len(mine))) if has_two else None
        accuracy, low, high, *_ = estimate_accuracy(is_correct, owners, 0.1, release, labels)
        assert 0.0 <= low <= accuracy <= high <= 1.0
    moved = max(np.abs(one - other).sum() for one in tables for other in tables)
    assert 1.9 * LATTICE < moved <= 2 * LATTICE
    # The interval contains the noise of all counts, and little else if all answers are right.
    labels = np.arange(400) % 2 if has_two else None
    _, low, *_ = estimate_accuracy(np.ones(400), None, 1.0, lambda exact, _: exact, labels)
    noise = 1.96 * mechanism_of_estimate(1.0).scale * np.sqrt(4 if has_two else 2) / 400
    assert noise < 1.0 - low < 1.2 * noise


def test_arrays_and_the_estimator_need_a_declared_range_alone():
    random = np.random.default_rng(0)
    inputs = random.uniform(0, 1, (4_000, 2))
    labels = np.where(np.abs(inputs[:, 0] - 0.5) > 0.25, "out", "in")
    estimator = pate_tf.PateClassifier(
        epsilon=8.0, classes=["in", "out"], value_range=(0.0, 1.0), insecure_seed=3
    )
    estimator.fit(inputs[:3_000], labels[:3_000])
    assert np.mean(estimator.predict(inputs[3_000:]) == labels[3_000:]) > 0.9


def test_texts_need_no_pool(tmp_path):
    words = {0: "good fine great", 1: "bad poor awful"}
    random = np.random.default_rng(1)
    labels = random.integers(0, 2, 3_000)
    texts = [f"{random.choice(words[label].split())} thing" for label in labels]
    data = pate_tf.Data.from_arrays(texts, labels, num_classes=2, kind="text")
    fitted = pate_tf.fit(data, epsilon=200.0, directory=tmp_path)
    assert np.mean(fitted.student.predict(["a great thing", "an awful thing"]) == [0, 1]) == 1.0


def in_folders(folder, images, labels):
    """Returns image folders for which only folder names and an image size are declared."""
    for number, (image, label) in enumerate(zip(images[..., 0], labels, strict=True)):
        path = folder / ("lying", "standing")[label] / f"{number:05}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    for files, message in (
        (FileSource(private=folder), "image_size is required without public images"),
        (FileSource(private=folder, image_size="16", label="ill"), "label is only for tables"),
    ):
        with pytest.raises(ValueError, match=message):
            pate_tf.Data.of(DataSource(files=files))
    data = pate_tf.Data.from_folders(folder, image_size=(16, 18))
    by_flags = pate_tf.Data.of(DataSource(files=FileSource(private=folder, image_size="16x18")))
    assert by_flags.dataset == data.dataset and data.dataset.class_names == ("lying", "standing")
    return data


@pytest.mark.parametrize(("channels", "are_files"), [(1, False), (3, False), (1, True)])
def test_images_need_no_pool(tmp_path, channels, are_files):
    """Images contain horizontal or vertical bars, in cells of an image whose side 7 does not
    divide.
    """
    random = np.random.default_rng(1)
    labels = random.integers(0, 2, 2_000)
    images = random.uniform(0, 20, (2_000, 16, 18, channels))
    for image, label, place in zip(images, labels, random.integers(1, 13, 2_000), strict=True):
        bar = image[:, place : place + 2] if label else image[place : place + 2]
        bar += 200.0
    images = images.astype(np.uint8)
    data = pate_tf.Data.from_arrays(images, labels, num_classes=2)
    if are_files:
        data = in_folders(tmp_path / "images", images, labels)
    fitted = pate_tf.fit(data, epsilon=20.0, directory=tmp_path)
    features = FeatureSums.load(tmp_path).encoder.features(data.private.inputs[:50])
    assert (features >= 0.0).all()
    np.testing.assert_allclose(np.linalg.norm(features, axis=1), 1.0, rtol=1e-5)
    assert fitted.student.evaluate(data.private.inputs, data.private.labels) > 0.9


def test_posed_images_have_the_features_of_shifted_and_stretched_ones():
    """Images contain an L in two places and sizes. Without the declaration, their
    features differ.
    """
    images = np.zeros((2, 24, 24, 1), np.uint8)
    for image, (top, size) in zip(images, ((2, 12), (6, 14)), strict=True):
        image[top : top + size, 4:7] = image[top + size - 3 : top + size, 4 : 4 + size // 2] = 200
    alike = {}
    for augmentation in ("affine", "shift"):
        data = pate_tf.Data.from_arrays(
            images, [0, 1], num_classes=2, augmentation=augmentation, name=augmentation
        )
        features = pate_tf.Representation("gradients").fit(data.pool).transform(images)
        alike[augmentation] = features[0] @ features[1]
    assert alike["affine"] > alike["shift"] + 0.2


def test_a_plan_without_a_pool(capsys):
    plan = pate_tf.plan(1.0, num_records=30_000, num_classes=2, pool_size=0)
    assert plan.method == "feature_sums" and plan.mechanism.name == "gaussian_residual_sums"
    assert "pate run --private=FILE --schema=FILE" in str(plan) and plan.to_dict()["queries"] == 0
    with pytest.raises(ValueError, match=r"epsilon=0\.001 needs so much noise"):
        pate_tf.plan(0.001, num_records=1_000, num_classes=2, pool_size=0)
