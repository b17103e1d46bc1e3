"""From files to a published student: what `pate run` does; its steps import TensorFlow."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from typing import TYPE_CHECKING, Any, cast

from pate_tf.accounting.conversions import DELTA, default_delta
from pate_tf.accounting.mechanisms import ExponentialMechanism
from pate_tf.accounting.planning import (
    ACCEPT_FORECAST,
    ALWAYS_CHOSEN,
    ENCODER_HELPS,
    FEATURE_SUMS,
    METHODS,
    PATE,
    Forecast,
    plan,
)
from pate_tf.core import artifacts
from pate_tf.core.reporting import QUIET, Reporting, RunReport
from pate_tf.core.validation import PublicationSettings, setting
from pate_tf.data.data import Data
from pate_tf.data.data_source import DataSource

if TYPE_CHECKING:
    from pate_tf.release.feature_sums import FeatureSums
    from pate_tf.teachers.teachers import Teachers

AUTO = "auto"
TEACHER = "ridge"  # in closed form, on a representation: it needs few records
SMALL_SIDE = 32  # pixels; of larger photographs the pool alone teaches little
NUM_FEATURES = 2_000  # about that of texts and of images' representations, for a forecast


@dataclasses.dataclass(frozen=True, kw_only=True)
class WholeRun(DataSource, PublicationSettings):
    """A run of `pate run`."""

    epsilon: float = setting(
        group="privacy",
        above=0.0,
        help="What all that is published may cost at --delta, in the worst case.",
    )
    delta: float | None = setting(None, group="privacy", **DELTA)
    evaluate_epsilon: float | None = setting(
        None,
        group="privacy",
        above=0.0,
        help="Hold back a tenth of the private records, and release the accuracy on them with "
        "noise, for so much in addition to --epsilon. Default: no such estimate.",
    )
    method: str = setting(
        AUTO,
        group="method",
        choices=(AUTO, *METHODS),
        help="pate: teachers vote on some of the public inputs. feature_sums: noisy sums of "
        "feature vectors label all of them. auto: by public numbers whichever is expected to label "
        "better; with owners, whose number is private, feature_sums.",
    )
    num_teachers: int | None = setting(
        None,
        group="method",
        flag="nb_teachers",
        least=1,
        help="Number of teachers of method pate. Default: by the number of private records; with "
        "owners, whose number is private, it must be given.",
    )
    representation: str | None = setting(
        None,
        group="method",
        help="Features that teachers or sums are of: a pre-trained encoder, such as "
        "EfficientNetV2B0, NAME:FILE, encoder:FILE or hub:FOLDER, or another name. Default: by the "
        "data.",
    )
    accept_forecast: bool = setting(False, group="privacy", **ACCEPT_FORECAST)
    folder: pathlib.Path | None = setting(
        None,
        group="output",
        flag="train_dir",
        help="Folder of the run. Default: runs/DATASET-NB_TEACHERS or runs/DATASET-feature_sums.",
    )
    report_file: str | None = setting(
        None, group="output", help="Where to write what is printed, as JSON."
    )


def run(settings: WholeRun, data: Data | None = None, reporting: Reporting = QUIET) -> RunReport:
    """Chooses a method, trains what it needs, releases labels, trains and publishes a student.

    The method, the number of teachers and the noise follow from public values; the number of
    private records is one of these where records are protected. What was charged stands in the
    run's ledger; the same run again costs nothing more.

    Args:
        settings: of the run.
        data: what they name, where it was loaded already.
        reporting: what it says while it works.

    Raises:
        ForecastError: if labels are not expected to be worth their cost, unless that is accepted;
            nothing was charged then.
        ValueError: if something does not fit; nothing was charged then.
        LedgerError: if the ledger can't be used.
    """
    from pate_tf.release.feature_sums import FeatureSums
    from pate_tf.release.labeller import Labeller
    from pate_tf.run.student import REPORT, Student, student_report
    from pate_tf.students.kinds import StudentSettings

    data = Data.of(settings, None, reporting) if data is None else data
    held_back = None
    if settings.evaluate_epsilon is not None:
        data, held_back = data.hold_back()
    source, forecast = chosen_source(
        data,
        method=settings.method,
        epsilon=settings.epsilon,
        delta=settings.delta,
        num_teachers=settings.num_teachers,
        representation=settings.representation,
        directory=settings.folder,
        accept_forecast=settings.accept_forecast,
        reporting=reporting,
    )
    folder = cast("pathlib.Path", source.directory)
    if isinstance(source, FeatureSums):
        source.fit(data.private, data.pool, flags=settings.flags)
    else:
        source.fit(data.private, data.pool, data_source=settings, reporting=reporting)
    released = artifacts.RunDirectory(folder).released
    student = Student.from_settings(
        StudentSettings(), directory=released, reporting=reporting, is_locked=True
    )
    with artifacts.only_writer(released):  # a second command is refused before it is charged
        with Labeller(
            source,
            epsilon=settings.epsilon,
            delta=settings.delta,
            accept_forecast=settings.accept_forecast,
            verbose=reporting,
        ) as labeller:
            labels = labeller.label(data.pool)
        labels.save(released)
        student.fit(data.pool, labels, held_out=data.held_out)
        if settings.evaluate_epsilon is not None and held_back is not None:
            student.estimate_accuracy(held_back, settings.evaluate_epsilon)
        published = student.publish(
            evaluate_on=data.public,
            holder=settings.holder,
            purpose=settings.purpose,
            run_name=settings.run_name,
        )
    report = student_report(published, student)
    values = {
        **report.values,
        "forecast": None if forecast is None else [forecast.low, forecast.high],
        "folder": str(folder),
    }
    artifacts.write_json(released.parent / artifacts.SENSITIVE / REPORT, values, private=True)
    return RunReport(values=values, rows=report.rows)


def chosen_source(
    data: Data,
    *,
    method: str,
    epsilon: float | None,
    delta: float | None,
    num_teachers: int | None,
    representation: Any,
    directory: pathlib.Path | None,
    accept_forecast: bool,
    num_rounds: int | None = None,
    seed: int = 0,
    reporting: Reporting = QUIET,
) -> tuple[Teachers | FeatureSums, Forecast | None]:
    """Chooses a method by public values, and what its labels come from; nothing is charged.

    Args:
        data: private records, of which the number alone is used where it is public; and the pool.
        method: one of `METHODS`, or `AUTO`.
        epsilon: what the labels may cost; None if the noise is given, without a forecast then.
        delta: what epsilon holds at. Default: by the number of records.
        num_teachers: of method pate. Default: by the number of records.
        representation: what teachers or sums are of. Default: by the data.
        directory: of the run. Default: that of teachers or sums.
        accept_forecast: whether labels are released that are not expected to be worth their cost.
        num_rounds: of feature sums. Default: planned.
        seed: of the source.
        reporting: what it says.

    Returns:
        The source, not fitted, with its directory; and the forecast.

    Raises:
        ForecastError: if labels are not expected to be worth their cost.
        ValueError: if method, number of teachers and data do not fit each other.
    """
    from pate_tf.release import feature_sums
    from pate_tf.release.pseudo_labels import accuracy_without_noise, may_agree
    from pate_tf.teachers import run_folder
    from pate_tf.teachers.teachers import Teachers

    dataset, has_owners = data.dataset, data.private.owners is not None
    if method == PATE and not data.pool:
        raise ValueError(
            "public: expected public records with method pate, whose teachers label them, got none"
        )
    if has_owners and method == PATE and num_teachers is None:
        raise ValueError(
            "num_teachers: expected it with owners, whose number is private, got none; choose it "
            "by what is publicly known of that number, several owners a teacher"
        )
    number_of_records = data.private.public_size
    number = num_teachers or (
        1 if has_owners else run_folder.recommended_num_teachers(len(data.private), dataset)
    )
    comparison, is_chosen = None, method == AUTO
    if is_chosen and (has_owners or not data.pool):
        method = FEATURE_SUMS
    if epsilon is not None:
        planned = functools.partial(
            plan,
            epsilon,
            delta=default_delta(number_of_records) if delta is None else delta,
            unit="owner" if has_owners else "record",
            num_classes=dataset.num_classes,
            num_records=number_of_records,
            pool_size=len(data.pool),
            num_teachers=number,
            has_augmentation=dataset.augmentation != "none",
        )
        # Of votes one mechanism, calibrated at once, where sums are chosen whatever votes say.
        comparison = planned(mechanism=ExponentialMechanism)
        outlooks = () if comparison.sums is None else comparison.sums.outlooks
        if method == AUTO and outlooks and outlooks[1].accuracy >= ALWAYS_CHOSEN:
            method = FEATURE_SUMS
        if method != FEATURE_SUMS:
            comparison = planned(may_agree=may_agree(data.pool))
    if method == AUTO:
        method = PATE if comparison is None else comparison.method
    sums = feature_sums.FeatureSums(
        directory=directory or feature_sums.default_folder(dataset.name),
        representation=representation,
        seed=seed,
        verbose=reporting,
    )
    forecast = votes = None
    if epsilon is not None and comparison is not None:
        forecast = comparison.forecast(FEATURE_SUMS, NUM_FEATURES)
        if method == PATE:
            votes = comparison.forecast(PATE, measured=accuracy_without_noise(data.pool))
        # Labels of the pool say more of sums than margins do.
        is_compared = is_chosen and votes is not None and votes.is_measured
        # Noise is refused before features of images are learned.
        is_refused = forecast is not None and forecast.is_noise and dataset.kind == "image"
        if (method == FEATURE_SUMS or is_compared) and (accept_forecast or not is_refused):
            sums.choose_representation(data.pool, number_of_records, epsilon, delta, num_rounds)
            forecast = sums.forecast or forecast
        if is_compared and votes is not None and forecast is not None:
            # Sums label all of the pool.
            method = PATE if votes.low > forecast.accuracy and not votes.is_noise else FEATURE_SUMS
    reporting.note(f"Method {method}, by public values.")
    is_large = dataset.has_colours and max(dataset.input_shape[:2]) > SMALL_SIDE
    if representation is None and (is_large or dataset.kind == "text"):
        reporting.note(ENCODER_HELPS)
    source: Teachers | FeatureSums = sums
    if method == PATE:
        forecast = votes
        source = Teachers(
            TEACHER,
            num_teachers=number,
            directory=directory or pathlib.Path(f"runs/{dataset.name}-{number}"),
            representation=representation,
            seed=seed,
            verbose=reporting.verbose,
        )
    if forecast is not None:
        majority = data.pool.majority_share
        reporting.note(f"Forecast, before anything is charged: {forecast.in_words(majority)}")
        # Of pictures the labeller may plan counts that are learned from together.
        if not (accept_forecast or (method == PATE and dataset.kind == "image")):
            forecast.check(majority)
    elif epsilon is not None:
        why = "how many owners there are is private" if data.pool else "there is no public pool"
        reporting.note(f"Forecast: none, as {why}. No comparison with the most frequent class.")
    return source, forecast
