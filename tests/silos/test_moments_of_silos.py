"""Silos without a public pool: second moments are added next to sums, and give a linear model."""

import dataclasses

import five_silos
import numpy as np
import pyarrow
import pytest
from five_silos import NAMES, OTHERS, open_silo
from silo_helpers import Silent, answer_until

import pate_tf
from pate_tf.accounting.local import SecureFeatureSums
from pate_tf.core.public import Pool
from pate_tf.core.source import Records
from pate_tf.data.schema import schema_of
from pate_tf.postprocessing.regression import weights_of_moments
from pate_tf.release.feature_sums import FeatureSums, Summands, sums_of_records
from pate_tf.run.labeller import with_public_labels
from pate_tf.serving.served import ServedStudent
from pate_tf.silos import SiloSums
from pate_tf.silos.messages import Reason, Refusal, SealedShares, sums_query

COLUMNS = {"age": {"low": 0, "high": 100}, "ward": {"categories": ["a", "b"], "other": True}}
SCHEMA = schema_of({"label": "ill", "classes": ["no", "yes"], "columns": COLUMNS})


COSTS = schema_of({"label": "cost", "low": 0, "high": 200, "columns": COLUMNS})


def data_of(start=0, stop=2_000, schema=SCHEMA):
    random = np.random.default_rng(0)
    age, ward = random.uniform(0, 100, 2_000), random.choice(["a", "b", "c"], 2_000)
    cost = age + 40 * (ward == "a")
    ill = np.where(cost > 75, "yes", "no")
    table = pyarrow.table({"age": age, "ward": ward, "ill": ill, "cost": cost})
    part = table.slice(start, stop - start)
    return pate_tf.Data.from_dataframe(part, label=schema.label, schema=schema)


def sums_of(folder, *part, schema=SCHEMA):
    """Returns sums with second moments, as a silo computes them."""
    data = data_of(*part, schema=schema)
    sums = FeatureSums(directory=folder, representation="bins")
    encoder = sums.encoder_for(data.private.dataset, data.pool)
    summands = Summands.of(encoder, data.pool)
    return sums.store(
        sums.described(encoder, has_owners=False),
        encoder,
        summands,
        sums_of_records(data.private, encoder, summands),
        records=Records(num_records=len(data.private), source=data.private.source),
        pool_size=0,
        flags={},
    )


def silo_sums(sums):
    return SiloSums(
        values=sums.sums.values,
        encoder_digest=sums.representation_digest,
        source=sums.source,
        num_records=sums.num_records,
    )


@pytest.fixture
def setting(tmp_path, monkeypatch):
    """Returns sums of all records, sums of each silo, and the mechanism."""
    whole = sums_of(tmp_path / "whole")
    parts = {
        name: silo_sums(sums_of(tmp_path / f"of {name}", 400 * place, 400 * place + 400))
        for place, name in enumerate(NAMES)
    }
    fields = OTHERS | {"num_features": whole.encoder.num_features, "has_moments": True}
    release = SecureFeatureSums.for_epsilon(1.0, delta=1e-6, **fields)
    monkeypatch.setitem(five_silos.MECHANISMS, "moments", release)
    return whole, parts, release


def labels_of(folder, parts, schema=SCHEMA, **changes):
    """Returns labels and the student of five silos."""
    data = data_of(schema=schema)
    representation = pate_tf.Representation("bins").fit(data.pool)
    silos = [open_silo(folder, name, sums=parts[name], **changes) for name in NAMES]
    running, _ = five_silos.coordinator(folder, silos, kind="moments")
    with running:
        labels = running.label_from_sums(data.pool, representation)
        student = pate_tf.Student().fit(data.pool, labels)
        published = student.publish(folder / "released")
    for silo in silos:
        assert silo.account.charges == {five_silos.MECHANISMS["moments"]: 1}
        silo.close()
    return labels, student, published


def test_without_noise_the_total_and_the_student_are_those_of_one_holder(
    tmp_path, setting, monkeypatch
):
    whole, parts, release = setting
    monkeypatch.setattr("pate_tf.silos.sealing.SystemNoise", Silent)
    labels, student, published = labels_of(tmp_path, parts)
    assert np.array_equal(labels.released.noisy_sums, whole.table)
    data, noise = data_of(), release.total_sigma(5)
    vectors = whole.vectors(data.private.inputs)
    groups = whole.summands.groups
    weights = weights_of_moments(whole.table, 2, noise, groups=groups)
    assert np.array_equal(student.predict(data.private.inputs), (vectors @ weights).argmax(axis=1))
    served = ServedStudent(published.student_folder).answer(data.private.inputs)[0]
    assert (served == data.private.labels).mean() > 0.9
    assert labels.cost.epsilon <= 1.0 and release.sensitivity == 2**0.5
    page = (published.folder / "privacy_statement.md").read_text()
    assert "(sensitivity sqrt(2))" in page and "No public records were used" in page
    assert "public pool" not in page and "are public knowledge" in page


def test_a_silo_is_charged_before_anything_leaves_and_gives_what_its_policy_allows(
    tmp_path, setting
):
    whole, parts, release = setting
    query = sums_query(whole.representation_digest, "record")
    batch = five_silos.batch(mechanism=release, query=query, num_classes=2)
    sums = dataclasses.replace(batch, mechanism=dataclasses.replace(release, has_moments=False))
    with open_silo(tmp_path, "a", sums=parts["a"]) as silo:
        refusal = silo.answer(sums)
        assert isinstance(refusal, Refusal) and refusal.reason is Reason.OTHER_SUMS
        assert answer_until(silo, batch, "silo_debited") is None
        assert silo.account.charges == {release: 1} and not silo.account.sealed
    with open_silo(tmp_path, "a", sums=parts["a"]) as silo:
        reply = silo.answer(batch)
        assert isinstance(reply, SealedShares) and silo.account.charges == {release: 1}
        assert silo.answer(dataclasses.replace(batch, batch_id="b")).reason is Reason.BUDGET_SPENT


@pytest.mark.parametrize("column", [0, -1])
def test_a_silo_that_lies_of_sums_or_moments_is_noticed(tmp_path, setting, column):
    _, parts, _ = setting
    table = parts["b"].values.copy()
    table[0, column] = 2**50
    parts["b"] = dataclasses.replace(parts["b"], values=table)
    with pytest.raises(ValueError, match="silos: no records can have this sum"):
        labels_of(tmp_path, parts)


def test_silos_learn_a_number_and_refuse_one_of_another_range(tmp_path, setting):
    parts = {
        name: silo_sums(
            sums_of(tmp_path / f"cost of {name}", 400 * place, 400 * place + 400, schema=COSTS)
        )
        for place, name in enumerate(NAMES)
    }
    _, student, published = labels_of(tmp_path, parts, schema=COSTS)
    data = data_of(schema=COSTS)
    truth = data.private.labels
    assert student.evaluate(data.private.inputs, truth) > 0.3  # a constant reaches 0
    answers, interval = ServedStudent(published.student_folder).answer(data.private.inputs)
    np.testing.assert_allclose(answers, student.predict(data.private.inputs), rtol=1e-3, atol=0.1)
    assert (interval[:, 0] <= answers).all() and (answers <= interval[:, 1]).all()
    other = dataclasses.replace(COSTS, number=dataclasses.replace(COSTS.number, high=300.0))
    digests = {sums_of(tmp_path / "other", 0, 9, schema=other).representation_digest}
    assert digests.isdisjoint(part.encoder_digest for part in parts.values())


def test_silos_sums_join_public_labels_of_a_number(tmp_path, monkeypatch):
    data = data_of(schema=COSTS)
    inputs, costs = data.private.inputs, data.private.labels
    pool = Pool(data.dataset, inputs[1_500:], costs[1_500:])
    parts = {}
    for place, name in enumerate(NAMES):
        of_silo = data_of(300 * place, 300 * place + 300, schema=COSTS).private
        whole = FeatureSums(directory=tmp_path / f"of {name}").fit(of_silo, pool)
        parts[name] = silo_sums(whole)
    fields = OTHERS | {"num_features": whole.encoder.num_features}
    # The noise is so large that the public labels decide.
    release = SecureFeatureSums.for_epsilon(0.001, delta=1e-6, **fields)
    monkeypatch.setitem(five_silos.MECHANISMS, "moments", release)
    representation = pate_tf.Representation(whole.representation).fit(pool)
    silos = [open_silo(tmp_path, name, sums=parts[name]) for name in NAMES]
    running, _ = five_silos.coordinator(tmp_path, silos, kind="moments")
    with running:
        found = {}
        for trains in (False, True):
            labels = running.label_from_sums(pool, representation, trains_on_labels=trains)
            labels = with_public_labels(labels) if trains else labels
            student = pate_tf.Student().fit(pool, labels)
            found[trains] = student.evaluate(inputs[:1_500], costs[:1_500])
        published = student.publish(tmp_path / "released")
    for silo in silos:
        silo.close()
    assert found[False] < 0.5 < 0.9 < found[True]
    page = (published.folder / "privacy_statement.md").read_text()
    assert "the noisy total, the public pool and 500 public labels" in page
    assert "class" not in page
