"""The behavior, output and files of a second run in a folder never reveal whether records changed.

The attack: somebody knows all records except one. A run stops, warns or answers in a folder of last
month's records. If this depends on the unknown record, the attacker can try candidates.
"""

import json
import re
import warnings

import numpy as np
import pytest
from api_helpers import IMAGES, pictures

import pate_tf
from pate_tf.core.artifacts import digest_array, digest_arrays
from pate_tf.core.public import Pool
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.core.source import PrivateSource
from pate_tf.ledger import SensitiveWarning
from pate_tf.selective_sgd.shared_training import train
from pate_tf.selective_sgd.training_settings import TrainingSettings

POOL = Pool(IMAGES, pictures(60, seed=1)[0])
RECORDS, LABELS = pictures(90, seed=3)
OWNERS = np.arange(90) // 2


def sums(folder, examples):
    made = pate_tf.FeatureSums(directory=folder, representation="raw").fit(examples, POOL)
    return made.table.tolist()


def teachers(folder, examples, some=None):
    made = pate_tf.Teachers("ridge", num_teachers=5, representation="raw", directory=folder)
    made.fit(examples, POOL, teachers=some)
    return None if some is not None else made.identified.digest


def shared(folder, examples):
    settings = TrainingSettings(
        num_participants=2, rounds=1, protocol="synchronous", privacy="record",
        target_epsilon=50.0, delta=1e-3,
    )  # fmt: skip
    model = train(examples, settings, model="linear", directory=folder).model
    return [weight.tolist() for weight in model.get_weights()]


def changed(record: int, *, source=None) -> PrivateExamples:
    """Returns the records, one of them replaced."""
    images, labels = RECORDS.copy(), LABELS.copy()
    images[record] += 7.0
    labels[record] = (labels[record] + 1) % 3
    return PrivateExamples(IMAGES, images, labels, None, source)


@pytest.mark.parametrize("run", [sums, teachers, shared])
def test_a_second_run_uses_what_is_stored_whatever_the_records(tmp_path, run):
    texts = set()
    for before, now in ((1, 2), (3, 2), (3, 3)):
        folder = tmp_path / f"{before} {now}"
        first = run(folder, changed(before))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert run(folder, changed(now)) == first
        # A file left open by another test may be closed meanwhile, which reveals nothing about
        # records.
        others = (SensitiveWarning, ResourceWarning)
        told = [each for each in caught if not issubclass(each.category, others)]
        told = [str(each.message).replace(str(folder), "RUN") for each in told]
        texts.add(re.sub(r"[-0-9]{10} [:0-9]{5}", "DATE", "\n".join(told)))
    assert len(texts) == 1, texts
    (text,) = texts
    assert "DATE" in text and "the private records are not read again" in text
    # The number of records is public.
    fewer = PrivateExamples(IMAGES, RECORDS[:80], LABELS[:80])
    with pytest.raises(ValueError, match=r"num_records|not from 80. Choose another folder"):
        run(folder, fewer)


@pytest.mark.parametrize("now", [2, 3])
def test_teachers_of_other_records_are_not_mixed_with_those_of_a_stopped_run(tmp_path, now):
    """The result depends on the last given records only: no record of both data sets trains two
    teachers.
    """
    teachers(tmp_path / "stopped", changed(3), range(3))
    (file,) = (tmp_path / "stopped/sensitive/teachers").glob("finished-*")
    stored = file.read_bytes()
    # Only the training of these two, from 0 or from 3, depends on records.
    result = teachers(tmp_path / "stopped", changed(now))
    assert result == teachers(tmp_path / "whole", changed(now))
    assert (file.exists() and file.read_bytes() == stored) == (now == 3)


@pytest.mark.parametrize("run", [sums, teachers])
def test_stored_results_are_not_charged_to_another_name(tmp_path, run):
    """Otherwise the total cost of the other name's releases would miss these."""
    run(tmp_path / "named", changed(1, source=PrivateSource.named("patients")))
    run(tmp_path / "named", changed(2, source=PrivateSource.named("Patients ")))
    run(tmp_path / "unnamed", changed(1))
    for folder in ("named", "unnamed"):
        with pytest.raises(ValueError, match="from a source other than clients"):
            run(tmp_path / folder, changed(1, source=PrivateSource.named("clients")))


def test_what_is_stored_to_recognise_records_needs_the_folders_key(tmp_path):
    examples = PrivateExamples(IMAGES, RECORDS, LABELS, None)
    stored = []
    for name in ("one", "other"):
        teachers(tmp_path / name, examples)
        (config,) = (tmp_path / name / "sensitive").glob("*/config.json")
        stored.append(json.loads(config.read_text()))
    assert {name for name in stored[0] if stored[0][name] != stored[1][name]} == {"records"}
    halves = [np.arange(90) % 2 == side for side in range(2)]
    guesses = {
        *(digest_array(each) for each in (RECORDS, LABELS, OWNERS)),
        *(digest_arrays([each]) for each in (RECORDS, LABELS)),
        *(digest_arrays([each[half] for half in halves]) for each in (RECORDS, LABELS)),
    }
    assert not guesses & set(map(str, stored[0].values()))
