import contextlib
import dataclasses

import numpy as np
import pytest
from chosen_votes import PLACES, PUBLIC, FakeEnsemble

from pate_tf.api.reporting import Reporting
from pate_tf.api.student_run import DistillationReport, compare_distillation
from pate_tf.students.kinds import StudentConfig

NUM_TEACHERS = 3


def labelling(labels: np.ndarray) -> np.ndarray:
    """Votes of teachers who all give labels of a test's choice."""
    return np.tile(labels, (NUM_TEACHERS, 1))


@dataclasses.dataclass
class WithProbabilities(FakeEnsemble):
    """Teachers who vote for one label and think another more probable."""

    probable: np.ndarray = dataclasses.field(kw_only=True)

    def _probabilities(self, inputs, temperature, progress):
        places = [PLACES[row.tobytes()] for row in inputs]
        progress(len(inputs))
        return np.eye(10, dtype=np.float32)[self.probable[places]]


def telling(done: list[int]) -> Reporting:
    """Notes in `done` what a progress bar is told."""
    return Reporting(
        progress_bar=lambda description, total, unit: contextlib.nullcontext(done.append)
    )


def compare(teachers, **changes: object) -> DistillationReport:
    fields = {
        "config": StudentConfig(
            student="distillation",
            model="mlp",
            max_steps=150,
            batch_size=32,
            learning_rate=0.01,
            seed=0,
        ),
        "public": PUBLIC.split(400),
        "num_queries": 200,
        "teachers": teachers,
        "temperature": 1.0,
    }
    return compare_distillation(**{**fields, **changes})


def test_each_student_learns_from_its_own():
    right, wrong = PUBLIC.labels, (PUBLIC.labels + 1) % 10
    done = []
    found = compare(WithProbabilities(labelling(wrong), probable=right), reporting=telling(done))
    assert found.distilled.value > 0.7
    assert found.plurality.value < 0.2
    assert found.plurality_labels.value == 0.0
    assert found.plurality_labels.num_samples == 200
    assert found.distilled.num_samples == found.plurality.num_samples == len(PUBLIC) - 400
    assert found.constant_answer == PUBLIC.split(400).held_out.majority_share
    assert done == [200, 200]


def test_all_that_was_not_asked_for_can_evaluate():
    teachers = WithProbabilities(labelling(PUBLIC.labels), probable=PUBLIC.labels)
    found = compare(teachers, evaluate_on="all_unqueried", num_queries=1)
    assert found.distilled.num_samples == len(PUBLIC) - 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"teachers": FakeEnsemble(labelling(PUBLIC.labels))}, "that answer with labels alone"),
        ({"temperature": 0.0}, "temperature: expected above 0 and finite, got 0.0"),
        ({"temperature": float("nan")}, "temperature: expected above 0 and finite"),
        ({"num_queries": 401}, "num_queries: expected from 1 to the pool's 400, got 401"),
        ({"num_queries": 0}, "num_queries: expected from 1 to the pool's 400, got 0"),
        ({"evaluate_on": "nothing"}, "evaluate_on: expected one of"),
        (
            {
                "public": dataclasses.replace(
                    PUBLIC, dataset=dataclasses.replace(PUBLIC.dataset, name="others")
                ).split(400)
            },
            "teachers: expected those for others, got those for digits",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_does_not_fit_is_one_line(changes, message):
    teachers = WithProbabilities(labelling(PUBLIC.labels), probable=PUBLIC.labels)
    with pytest.raises(ValueError, match=message) as caught:
        compare(**{"teachers": teachers, **changes})
    assert "\n" not in str(caught.value)
