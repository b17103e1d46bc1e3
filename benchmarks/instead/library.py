"""This library: teachers vote, labels are released for an epsilon, a student learns from them.

By the functions that the two scripts call, with their defaults, so that a better recipe is
measured by running this again (`--again=library`).
"""

import contextlib
import dataclasses
import pathlib
import shutil
import tempfile
import time
from collections.abc import Iterator

from benchmarks.instead.problem import DELTA, Problem
from benchmarks.paper.labels import registry_in
from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.aggregation.noise import NoiseSource
from pate_tf.api import student_run as train_student
from pate_tf.api import teacher_training as train_teachers
from pate_tf.api.feature_sums import SumsSource
from pate_tf.api.run_folder import TeacherRun, TeacherSource
from pate_tf.api.settings import Budget, LabelSettings
from pate_tf.students.config import AUTO
from pate_tf.teachers.settings import TeacherSettings

WEAK, STRONG = "ridge", None  # the model's name; None is the data set's default
NUM_STRONG = 250


def train(problem: Problem, folder: pathlib.Path, model: str | None) -> dict[str, object]:
    """Trains teachers into a folder: as many weak ones as are recommended, or `NUM_STRONG`."""
    num_strong = 5 if problem.quick else NUM_STRONG
    quick = problem.quick and model is None
    with registry_in(folder.parent / "state"):
        report = train_teachers.run(
            TeacherSettings(model=model, seed=problem.seed, max_steps=5 if quick else None),
            TeacherRun(
                dataset=problem.source.dataset,
                data_dir=problem.source.data_dir,
                num_teachers=None if model == WEAK else num_strong,
                folder=folder,
            ),
        )
    return {
        "teachers": report.values["nb_teachers"],
        "teacher_accuracy": report.values["teacher_accuracy_mean"],
    }


@contextlib.contextmanager
def copied(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """A copy of the teachers, with a separate ledger."""
    with tempfile.TemporaryDirectory() as place:
        copy = pathlib.Path(place) / "run"
        shutil.copytree(folder, copy)
        with registry_in(pathlib.Path(place) / "state"):
            yield copy


def run(
    problem: Problem,
    epsilon: float,
    noise: NoiseSource,
    repetition: int,
    *,
    folder: pathlib.Path,
    mechanism: type[Mechanism] | None,
) -> dict[str, object]:
    """Releases labels as `train_student.py --epsilon` does, and trains the student.

    Args:
        problem: the data.
        epsilon: what labels may cost, whatever the data.
        noise: where it comes from.
        repetition: which one.
        folder: of trained teachers.
        mechanism: the only one to find the noise of, by votes; None for feature sums.
    """
    by_sums = mechanism is None
    with copied(folder) as copy:
        teachers = TeacherSource(folder=copy)
        sums = SumsSource(data=problem.source, folder=copy.parent / "sums")
        began = time.monotonic()
        report = train_student.run(
            train_student.StudentRun(
                sources=train_student.Sources(
                    data=problem.source, labels_from=sums if by_sums else teachers
                ),
                settings=dataclasses.replace(problem.student_settings(repetition), student=AUTO),
                labels=LabelSettings(
                    method="feature_sums" if by_sums else "pate",
                    epsilon=epsilon,
                    mechanism=mechanism,
                    seed=problem.seed + repetition,
                ),
                budget=Budget(delta=DELTA),
            )
        )
        seconds = time.monotonic() - began
    values = report.values
    found = {
        "epsilon": values["epsilon_worst_case"],
        "labels": values["plan"]["queries"],
        "mechanism": values["plan"]["candidates"][0]["mechanism"]["name"],
        "seconds_without_copying": seconds,
    }
    if report.failure is not None:
        return {**found, "accuracy": None, "why": "all was charged, and no label was released"}
    return {
        **found,
        "accuracy": values["student_accuracy"],
        "labels_right": values["label_accuracy"],
    }
