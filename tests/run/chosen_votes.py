"""An ensemble with votes chosen by a test, on the digits, and runs of a student with it."""

import dataclasses
import json
import pathlib

import numpy as np

from pate_tf.accounting import mechanisms
from pate_tf.core.sensitive import Votes
from pate_tf.data import datasets as data
from pate_tf.planning.choose import choose
from pate_tf.planning.release_settings import (
    Budget,
    Electorate,
    Known,
    ReleasePlan,
    ReleaseSettings,
)
from pate_tf.queries.labels import Labels
from pate_tf.queries.strategies import QueryWishes
from pate_tf.run.labeller import Labeller
from pate_tf.run.student import Student
from pate_tf.statement.publishing import Published
from pate_tf.students.student_kinds import StudentSettings
from pate_tf.teachers.voters import Voter

NUM_TEACHERS = 100
NUM_QUERIES = 40
POOL = 400
PUBLIC = data.load_public("digits")
PLACES = {row.tobytes(): place for place, row in enumerate(PUBLIC.inputs)}


@dataclasses.dataclass
class FakeEnsemble(Voter):
    """Votes chosen by a test; counts how often it was queried."""

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
    """Returns votes `[num_teachers, pool]`, about `agreement` percent of them for the
    true label.
    """
    random = np.random.default_rng(seed)
    labels = np.tile(PUBLIC.labels[:POOL], (NUM_TEACHERS, 1))
    agree = random.uniform(0, 100, labels.shape) < agreement
    return np.where(agree, labels, random.integers(0, 10, labels.shape))


def release_settings(**values) -> ReleaseSettings:
    """Returns settings of a release, each value in its class."""

    def of(kind):
        names = {field.name for field in dataclasses.fields(kind)} & set(values)
        return kind(**{name: values.pop(name) for name in names})

    return ReleaseSettings(budget=of(Budget), queries=of(QueryWishes), **values)


def plan_of(settings, voters, pool, delta=1e-5) -> ReleasePlan:
    """Returns the plan of an ensemble's votes, without querying it."""
    known = Known.of(pool, unit=voters.unit, num_records=None, voters=Electorate.of(voters))
    budget = dataclasses.replace(settings.budget, delta=delta)
    return choose(known, dataclasses.replace(settings, budget=budget))


def planned(teachers, pool, *, mechanism=None, num_queries=NUM_QUERIES, **choices) -> ReleasePlan:
    """Returns the plan of a mechanism with its noise."""
    settings = release_settings(
        mechanism=mechanism or mechanisms.LaplaceNoisyMax(gamma=0.1),
        num_queries=num_queries,
        **choices,
    )
    return plan_of(settings, teachers, pool)


def opened(folder, teachers, *, seed=None, delta=1e-5, **budget) -> Labeller:
    """Returns their labeller, open."""
    settings = release_settings(
        mechanism=mechanisms.LaplaceNoisyMax(gamma=0.1), insecure_seed=seed, delta=delta, **budget
    )
    return Labeller.from_settings(teachers, settings, directory=folder).open()


def released(labeller, pool, **choices) -> Labels:
    """Returns labels of such a plan."""
    return labeller.release(planned(labeller.source, pool, **choices), pool)


def student_settings(model="mlp", *, max_steps=20, seed=0) -> StudentSettings:
    """Returns a student that learns little, from labels only."""
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
    """The results of a run."""

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
    pool_size=POOL,
    seed=0,
    model="mlp",
    max_steps=20,
    public=PUBLIC,
    **budget,
) -> FinishedRun:
    """Makes the calls of `pate student`."""
    split, out = public.split(pool_size), folder / "released"
    labeller = Labeller.from_settings(
        ensemble,
        release_settings(
            mechanism=mechanism or mechanisms.LaplaceNoisyMax(gamma=0.1),
            num_queries=num_queries,
            strategy=query_strategy,
            insecure_seed=noise_seed,
            delta=delta,
            **budget,
        ),
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
