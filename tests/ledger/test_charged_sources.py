"""No release, charge or warning reveals whether data sets share a record."""

import json
import warnings

import numpy as np
import pytest

import pate_tf
from pate_tf.ledger import LedgerWarning, SensitiveWarning
from pate_tf.ledger.rollback_guard import SAME_RECORDS

GENERATOR = np.random.default_rng(0)
RECORDS = GENERATOR.uniform(size=(2, 400, 4)).astype(np.float32)
LABELS = GENERATOR.integers(0, 2, (2, 400))
POOL = GENERATOR.uniform(size=(120, 4))
PUBLIC = (  # statement fields with fresh randomness in their digests
    *("epsilon", "epsilon_ledger", "epsilon_source", "delta_source", "num_ledgers"),
    *("num_other_units", "ledger_rows", "source_name", "ledger_was_reset"),
)


def release(folder, inputs, labels, *, name):
    """Publishes a student of feature sums. Returns the text of its statement and of all
    warnings.
    """
    data = pate_tf.Data.from_arrays(
        *(inputs, labels, POOL), num_classes=2, value_range=(0, 1), name=name
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sums = pate_tf.FeatureSums(directory=folder, representation="raw")
        fitted = pate_tf.fit(
            data,
            method="feature_sums",
            epsilon=1.0,
            delta=1e-6,
            source=sums,
            student=pate_tf.Student("supervised", steps=5),
        )
        fitted.student.publish()
    fields = json.loads((folder / "released" / "privacy_statement.json").read_text())
    # Other warnings follow from released noise, which differs between runs.
    public = [one for one in caught if issubclass(one.category, LedgerWarning)]
    told = [str(one.message).replace(str(folder.parent), "") for one in public]
    stated = {key: fields[key] for key in PUBLIC}
    return {**stated, "row": fields["ledger_head"][0], "told": told}


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Returns the folder of a separate machine with an empty registry."""

    def new(name):
        monkeypatch.setenv("PATE_TF_STATE", str(tmp_path / f"state {name}"))
        return tmp_path / name

    return new


@pytest.mark.parametrize("name", ["patients", None])
def test_a_second_release_is_stated_alike_whether_or_not_a_label_changed(machine, name):
    """Compares two monthly runs: on the same records, or on records with one flipped label."""
    inputs, labels = RECORDS[0], LABELS[0]
    flipped = labels.copy()
    flipped[77] = 1 - flipped[77]
    stated = []
    for world, second in (("same", labels), ("flipped", flipped)):
        place = machine(world)
        release(place / "january", inputs, labels, name=name)
        stated.append(release(place / "february", inputs, second, name=name))
    assert stated[0] == stated[1]
    # each run folder is a separate source, and its statement covers that source only
    if name is None:
        assert (stated[0]["source_name"], stated[0]["num_ledgers"]) == (None, 1)
    else:
        assert stated[0]["epsilon_ledger"] <= 1.0 < stated[0]["epsilon_source"]
        assert stated[0]["num_ledgers"] == 2


def test_a_statement_does_not_tell_of_a_record_that_another_source_has(machine):
    """The second source is B, or its neighbor with one record of A as its first. All statements are
    equal.
    """
    neighbour = RECORDS[1].copy(), LABELS[1].copy()
    stated = []
    for world, place_in_a in (("apart", None), ("one shared", 3), ("another", 200)):
        inputs, labels = neighbour[0].copy(), neighbour[1].copy()
        if place_in_a is not None:
            inputs[0], labels[0] = RECORDS[0][place_in_a], LABELS[0][place_in_a]
        place = machine(world)
        release(place / "a", RECORDS[0], LABELS[0], name="a")
        stated.append(release(place / "b", inputs, labels, name="b"))
    assert stated[0] == stated[1] == stated[2]
    assert stated[0]["num_ledgers"] == 1


@pytest.mark.parametrize("kind", ["sums", "teachers"])
def test_the_holder_alone_is_told_of_the_same_records_under_two_names(machine, kind):
    """The same records in another order count as the same. The tests above show that no release
    depends on it.
    """
    place = machine("one")
    for name, order in (("patients", 1), ("clients", -1)):
        data = pate_tf.Data.from_arrays(
            *(RECORDS[0][::order], LABELS[0][::order], POOL),
            num_classes=2,
            value_range=(0, 1),
            name=name,
        )
        source = pate_tf.FeatureSums(directory=place / name, representation="raw")
        if kind == "teachers":
            source = pate_tf.Teachers("ridge", num_teachers=5, directory=place / name)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            source.fit(data.private, data.pool)
        told = [str(each.message) for each in caught if each.category is SensitiveWarning]
        assert len(told) == (name == "clients")
    assert "another source name, name patients" in told[0]
    assert (place / "clients" / "sensitive" / SAME_RECORDS).stat().st_mode & 0o777 == 0o600
    assert not (place / "patients" / "sensitive" / SAME_RECORDS).exists()
