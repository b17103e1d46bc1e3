"""An ensemble whose votes a test chooses, on the digits, and runs of a student with it."""

import dataclasses
import json
import pathlib
import tempfile

import numpy as np

from pate_tf.accounting import mechanisms
from pate_tf.core.sensitive import Votes
from pate_tf.data import catalogue as data
from pate_tf.queries.labels import Labels
from pate_tf.release.labeller import Labeller
from pate_tf.release.plan import Budget, LabelPlan, LabelSettings
from pate_tf.run.student import Student
from pate_tf.statement.publishing import Published
from pate_tf.students.kinds import StudentSettings
from pate_tf.teachers.voters import Voter

NUM_TEACHERS = 100
NUM_QUERIES = 40
POOL = 400
PUBLIC = data.load_public("digits")
PLACES = {row.tobytes(): place for place, row in enumerate(PUBLIC.inputs)}


@dataclasses.dataclass
class FakeEnsemble(Voter):
    """Votes that a test chooses; counts how often it was asked."""

    table: np.ndarray
    digest: str = "ab" * 32
    asked: int = 0

    dataset = PUBLIC.dataset
    unit = "record"

    @property
    def num_teachers(self) -> int:
        return len(self.table)

    def votes(self, inputs, progress=None) -> Votes:
        self.asked += len(inputs)
        if progress is not None:
            progress(len(inputs))
        return Votes(self.table[:, [PLACES[row.tobytes()] for row in inputs]], 10)


def table(agreement: int, seed: int = 0) -> np.ndarray:
    """Votes `[num_teachers, pool]` of which about `agreement` in a hundred are the true label."""
    random = np.random.default_rng(seed)
    labels = np.tile(PUBLIC.labels[:POOL], (NUM_TEACHERS, 1))
    agree = random.uniform(0, 100, labels.shape) < agreement
    return np.where(agree, labels, random.integers(0, 10, labels.shape))


def planned(teachers, pool, *, mechanism=None, num_queries=NUM_QUERIES, **choices) -> LabelPlan:
    """The plan of a mechanism with its noise."""
    settings = LabelSettings(
        mechanism=mechanism or mechanisms.LaplaceNoisyMax(gamma=0.1),
        num_queries=num_queries,
        **choices,
    )
    with tempfile.TemporaryDirectory() as folder:
        labeller = Labeller.from_settings(
            teachers, settings, Budget(delta=1e-5), directory=pathlib.Path(folder)
        )
        return labeller.plan(pool)


def opened(folder, teachers, *, seed=None, delta=1e-5, **budget) -> Labeller:
    """Their labeller, open."""
    settings = LabelSettings(mechanism=mechanisms.LaplaceNoisyMax(gamma=0.1), insecure_seed=seed)
    return Labeller.from_settings(
        teachers, settings, Budget(delta=delta, **budget), directory=folder
    ).open()


def released(labeller, pool, **choices) -> Labels:
    """Labels of such a plan."""
    return labeller.release(planned(labeller.source, pool, **choices), pool)


def student_settings(model="mlp", *, max_steps=20, seed=0) -> StudentSettings:
    """A student that learns little, of labels alone."""
    if model == "random_forest":
        return StudentSettings(student=model, seed=seed)
    return StudentSettings(
        student="supervised",
        model=model,
        max_steps=max_steps,
        batch_size=16,
        learning_rate=0.003,
        seed=seed,
    )


@dataclasses.dataclass(frozen=True)
class FinishedRun:
    """What a run made."""

    labels: Labels
    student: Student
    published: Published

    @property
    def statement(self):
        return self.published.statement


def run(
    folder: pathlib.Path,
    ensemble: FakeEnsemble,
    *,
    mechanism=None,
    noise_seed=None,
    delta=1e-5,
    num_queries=NUM_QUERIES,
    query_strategy="first",
    query_rounds=None,
    pool_size=POOL,
    seed=0,
    model="mlp",
    max_steps=20,
    public=PUBLIC,
    **budget,
) -> FinishedRun:
    """The calls of `pate student`."""
    split, out = public.split(pool_size), folder / "released"
    labeller = Labeller.from_settings(
        ensemble,
        LabelSettings(
            mechanism=mechanism or mechanisms.LaplaceNoisyMax(gamma=0.1),
            num_queries=num_queries,
            strategy=query_strategy,
            rounds=query_rounds,
            insecure_seed=noise_seed,
        ),
        Budget(delta=delta, **budget),
        directory=folder,
    )
    plan = labeller.plan(split.pool)
    settings = student_settings(model, max_steps=max_steps, seed=seed)
    student = Student.from_settings(settings, directory=out)
    student.check(split.pool, out)
    with labeller:
        labels = labeller.release(plan, split.pool)
    labels.save(out)
    student.fit(split.pool, labels, held_out=split.held_out)
    return FinishedRun(labels, student, student.publish(out, evaluate_on=split))


def statement(folder: pathlib.Path) -> dict:
    return json.loads((folder / "released" / "privacy_statement.json").read_text())
