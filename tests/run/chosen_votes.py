"""An ensemble whose votes a test chooses, on the digits, and runs of a student with it."""

import dataclasses
import json
import pathlib

import numpy as np

from pate_tf.accounting import mechanisms
from pate_tf.core import artifacts
from pate_tf.core.sensitive import Votes
from pate_tf.data import catalogue as data
from pate_tf.queries.labels import Labels
from pate_tf.release.labeller import Labeller
from pate_tf.release.plan import Budget, LabelPlan, LabelSettings, plan_release
from pate_tf.run.student_run import check_student, make_student
from pate_tf.students.config import OutputSettings, StudentSettings, complete
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
    return plan_release(settings, teachers, pool, delta=1e-5)


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


def run(
    folder: pathlib.Path,
    ensemble: FakeEnsemble,
    *,
    mechanism=None,
    noise_seed=None,
    epsilon_budget=None,
    delta=1e-5,
    num_queries=NUM_QUERIES,
    query_strategy="first",
    query_rounds=None,
    pool_size=POOL,
    seed=0,
    model="mlp",
    save_labels=True,
    evaluate_on=None,
    replace_budget=False,
    public=PUBLIC,
):
    directory = artifacts.RunDirectory(folder)
    budget = {"epsilon_budget": epsilon_budget, "replace_budget": replace_budget}
    with opened(folder, ensemble, seed=noise_seed, delta=delta, **budget) as labeller:
        split = public.split(pool_size)
        settings = student_settings(model, seed=seed)
        output = OutputSettings(save_labels=save_labels, evaluate_on=evaluate_on)
        check_student(complete(settings, split.dataset), split, output, directory)
        return make_student(
            settings,
            split,
            plan=planned(
                ensemble,
                split.pool,
                mechanism=mechanism,
                num_queries=num_queries,
                strategy=query_strategy,
                rounds=query_rounds,
            ),
            teachers=ensemble,
            labeller=labeller,
            directory=directory,
            output=output,
        )


def statement(folder: pathlib.Path) -> dict:
    return json.loads((folder / "released" / "privacy_statement.json").read_text())
