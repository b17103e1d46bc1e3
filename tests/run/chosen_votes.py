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
from pate_tf.release.labelling import ReleasePlan, open_ledger, plan_release, release_labels
from pate_tf.release.noise import SystemNoise
from pate_tf.release.settings import Budget, LabelSettings
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


def planned(teachers, pool, *, mechanism=None, num_queries=NUM_QUERIES, **choices) -> ReleasePlan:
    """The plan of a mechanism with its noise."""
    settings = LabelSettings(
        mechanism=mechanism or mechanisms.LaplaceNoisyMax(gamma=0.1),
        num_queries=num_queries,
        **choices,
    )
    return plan_release(settings, teachers, pool, delta=1e-5)


def released(ledger, teachers, pool, *, noise=None, **choices) -> Labels:
    """Labels of such a plan."""
    plan = planned(teachers, pool, **choices)
    return release_labels(
        plan, pool, teachers=teachers, ledger=ledger, noise=noise or SystemNoise()
    )


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
    noise=None,
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
    with open_ledger(
        directory.sensitive,
        teachers=ensemble,
        budget=Budget(delta=delta, epsilon_budget=epsilon_budget, replace_budget=replace_budget),
    ) as ledger:
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
            noise=noise or SystemNoise(),
            teachers=ensemble,
            ledger=ledger,
            directory=directory,
            output=output,
        )


def statement(folder: pathlib.Path) -> dict:
    return json.loads((folder / "released" / "privacy_statement.json").read_text())
