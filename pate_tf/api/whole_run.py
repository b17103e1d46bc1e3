"""From two files to a published student: what `pate run` does; its steps import TensorFlow."""

import dataclasses
import pathlib
import shlex
from typing import Any

import numpy as np

from pate_tf.api.planning import PlanSettings, compare_methods
from pate_tf.api.reporting import QUIET, Reporting, RunReport
from pate_tf.api.run_folder import DataSource, TeacherRun, TeacherSource
from pate_tf.api.settings import METHODS, Budget, LabelSettings
from pate_tf.core import artifacts
from pate_tf.core.settings import setting

AUTO = "auto"
UNKNOWN_WIDTH = 2_000  # about that of texts and of images' representations
TEACHER = "ridge"  # in closed form, on a representation: it needs few records
# Records of a class over the noise of a sum, from which on random Fourier features of a table label
# better than the columns themselves: chosen on the pools of `classification` and `incomes` of
# benchmarks/own_data.py, with 420, 2,100 and 10,000 records at epsilon 1 and 3.
FEWEST_OF_FOURIER = 200


@dataclasses.dataclass(frozen=True, kw_only=True)
class WholeRun(DataSource):
    """A run of `pate run`."""

    epsilon: float = setting(
        group="privacy",
        above=0.0,
        help="What all that is published may cost at --delta, whatever the data.",
    )
    delta: float = setting(
        1e-5,
        group="privacy",
        above=0.0,
        below=1.0,
        help="Delta of the guarantee. Well below one over the number of private records.",
    )
    method: str = setting(
        AUTO,
        group="method",
        choices=(AUTO, *METHODS),
        help="pate: teachers vote on some of the public inputs. feature_sums: noisy sums of "
        "feature vectors label all of them. auto: whichever is expected to label better, by public "
        "values alone.",
    )
    num_teachers: int | None = setting(
        None,
        group="method",
        flag="nb_teachers",
        least=1,
        help="Number of teachers of method pate. Default: by the number of private records; with "
        "owners, whose number is private, it must be given.",
    )
    folder: pathlib.Path | None = setting(
        None,
        group="output",
        flag="train_dir",
        help="Folder of the run. Default: runs/DATASET-NB_TEACHERS or runs/DATASET-feature_sums.",
    )
    report_file: str | None = setting(
        None, group="output", help="Where to write what is printed, as JSON (sensitive)."
    )


def run(asked: WholeRun, reporting: Reporting = QUIET) -> RunReport:
    """Chooses a method, trains what it needs, releases labels, trains and publishes a student.

    The method, the number of teachers and the noise follow from public values; the number of
    private records is one of these where records are protected. What was charged stands in the
    run's ledger; the same run again costs nothing more.

    Raises:
        ValueError: if something does not fit; nothing was charged then.
        LedgerError: if the ledger can't be used.
    """
    from pate_tf.api import feature_sums, student_run, teacher_training
    from pate_tf.students.config import OutputSettings, StudentSettings
    from pate_tf.teachers.settings import TeacherSettings

    data = DataSource(
        **{field.name: getattr(asked, field.name) for field in dataclasses.fields(DataSource)}
    )
    private, public = data.load_private(reporting), data.load_public(reporting)
    dataset, has_owners = public.dataset, private.owners is not None
    if has_owners and asked.method == AUTO:
        raise ValueError(
            "method: expected pate or feature_sums with owners, whose number, by which it would be "
            "chosen, is private; got auto. feature_sums needs no other flag, pate nb_teachers, too"
        )
    if has_owners and asked.method == "pate" and asked.num_teachers is None:
        raise ValueError(
            "num_teachers: expected it with owners, whose number is private, got none; choose it "
            "by what is publicly known of that number, several owners a teacher"
        )
    number = asked.num_teachers or (
        1 if has_owners else teacher_training.recommended_num_teachers(len(private), dataset)
    )
    plan = compare_methods(
        PlanSettings(
            epsilon=asked.epsilon,
            delta=asked.delta,
            unit="owner" if has_owners else "record",
            num_classes=dataset.num_classes,
            num_records=None if has_owners else len(private),
            pool_size=dataset.pool_size,
            num_teachers=number,
            has_augmentation=dataset.augmentation != "none",
        )
    )
    method = plan.method if asked.method == AUTO else asked.method
    is_of_sums = method == "feature_sums"
    representation = None
    if (
        is_of_sums
        and not has_owners
        and dataset.kind == "tabular"
        and plan.sums is not None
        and plan.sums.num_clusters is None
    ):
        enough = (
            len(private) >= FEWEST_OF_FOURIER * dataset.num_classes * plan.sums.standard_deviation
        )
        representation = "fourier" if enough else "raw"
    folder = asked.folder or (
        feature_sums.default_folder(dataset.name)
        if is_of_sums
        else pathlib.Path(f"runs/{dataset.name}-{number}")
    )
    typed = commands(asked, method, number, folder, representation)
    reporting.note("\n".join(["This stands for:", *(f"  {line}" for line in typed)]))
    widths = {"fourier": 600, "raw": int(np.prod(dataset.input_shape)) + 1}
    forecast = plan.forecast(method, widths.get(representation or "", UNKNOWN_WIDTH))
    if forecast is not None:
        reporting.note(f"Forecast, before anything is charged: {forecast.in_words()}")
    elif has_owners:
        reporting.note("No forecast: it needs the number of owners, which is private")
    labels_from: Any
    if is_of_sums:
        labels_from = feature_sums.SumsSource(
            settings=feature_sums.SumsSettings(representation=representation),
            data=data,
            folder=folder,
        )
    else:
        teacher_training.run(
            TeacherSettings(model=TEACHER),
            TeacherRun(**vars(data), num_teachers=number, folder=folder),
            reporting=reporting,
        )
        labels_from = TeacherSource(num_teachers=number, folder=folder)
    report = student_run.run(
        student_run.StudentRun(
            sources=student_run.Sources(data=data, labels_from=labels_from, folder=folder),
            settings=StudentSettings(),
            labels=LabelSettings(method=method, epsilon=asked.epsilon),
            budget=Budget(delta=asked.delta),
            output=OutputSettings(),
        ),
        reporting,
    )
    values = {
        **report.values,
        "commands": typed,
        "forecast": None if forecast is None else [forecast.low, forecast.high],
        "folder": str(artifacts.RunDirectory(folder).root),
    }
    rows = [("method", method), *report.rows]
    return dataclasses.replace(report, values=values, rows=rows)


def commands(
    asked: WholeRun,
    method: str,
    number: int,
    folder: pathlib.Path,
    representation: str | None = None,
) -> list[str]:
    """Returns the commands that a run stands for, a line each."""
    given = {
        name: value
        for name, value in asked.flags.items()
        if value is not None and (asked.files is not None or name != "svhn_extra")
    }
    of_private = [f"--{name}={value}" for name, value in given.items()]
    if asked.owners_file is not None:
        of_private.append(f"--owners_file={asked.owners_file}")
    of_public = [f"--{name}={given[name]}" for name in given if name not in ("private", "owner")]
    run = f"--train_dir={folder}"
    cost = [f"--epsilon={asked.epsilon:.12g}", f"--delta={asked.delta:.12g}"]
    if method == "feature_sums":
        chosen = [f"--method={method}"]
        chosen += [f"--representation={representation}"] if representation else []
        return [shlex.join(["pate", "student", *of_private, *chosen, run, *cost])]
    return [
        shlex.join(
            ["pate", "teachers", *of_private, f"--model={TEACHER}", f"--nb_teachers={number}", run]
        ),
        shlex.join(["pate", "student", *of_public, run, *cost]),
    ]
