"""A folder that holds a run of other records is refused without a digit that depends on them.

The attack: somebody knows all records but one. A run in a folder of the records of a month before
prints a refusal; if it depends on the unknown record, before or now, candidates can be tried.
"""

import json
import re

import numpy as np
import pytest
from api_helpers import IMAGES, pictures

import pate_tf
from pate_tf.core.artifacts import digest_array, digest_arrays
from pate_tf.core.public import Pool
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.selective_sgd.settings import TrainingSettings
from pate_tf.selective_sgd.shared_training import train

POOL = Pool(IMAGES, pictures(60, seed=1)[0])
RECORDS, LABELS = pictures(90, seed=3)
OWNERS = np.arange(90) // 2


def sums(folder, examples):
    pate_tf.FeatureSums(directory=folder, representation="raw").fit(examples, POOL)


def teachers(folder, examples):
    pate_tf.Teachers("ridge", num_teachers=5, representation="raw", directory=folder).fit(
        examples, POOL
    )


def shared(folder, examples):
    settings = TrainingSettings(num_participants=2, rounds=1, protocol="synchronous")
    train(examples, settings, model="linear", directory=folder)


def changed(record: int) -> PrivateExamples:
    """The records, of which one is another."""
    images, labels = RECORDS.copy(), LABELS.copy()
    images[record] += 7.0
    labels[record] = (labels[record] + 1) % 3
    return PrivateExamples(IMAGES, images, labels, None)


def refusal(run, folder, examples) -> str:
    with pytest.raises(ValueError) as caught:
        run(folder, examples)
    assert caught.value.__cause__ is None
    return str(caught.value)


@pytest.mark.parametrize("run", [sums, teachers, shared])
def test_a_refusal_is_one_text_for_all_records(tmp_path, run):
    texts = set()
    for before, now in ((1, 2), (3, 2), (3, 4)):
        folder = tmp_path / f"{before} {now}"
        run(folder, changed(before))
        texts.add(refusal(run, folder, changed(now)).replace(str(folder), "RUN"))
    (text,) = texts
    assert "of other settings: private records; choose another folder or remove it" in text
    assert not re.search(r"\d", text.replace("RUN/", ""))


@pytest.mark.parametrize("run", [teachers, shared])
def test_what_is_stored_to_recognise_records_needs_the_folders_key(tmp_path, run):
    examples = PrivateExamples(IMAGES, RECORDS, LABELS, None)
    stored = []
    for name in ("one", "other"):
        run(tmp_path / name, examples)
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
    run(tmp_path / "one", examples)  # taken up again
    (tmp_path / "one" / "sensitive" / "digest.key").unlink()
    assert "private records" in refusal(run, tmp_path / "one", examples)
