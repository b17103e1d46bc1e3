"""From two files to a published student: what `pate run` does; its steps import TensorFlow.

Before anything is charged both methods are tried on labelled samples of the pool, if there are
some: in the place of private records, with the noise that the private records would get.
"""

import dataclasses
import pathlib
import shlex
from typing import Any

import numpy as np

from pate_tf.accounting.delta import DELTA, default_delta
from pate_tf.accounting.mechanisms.base import ReleasesFeatureSums
from pate_tf.accounting.planning import Recommendation, expected_labels
from pate_tf.core import artifacts
from pate_tf.core.public import UNKNOWN, Pool, PublicSplit
from pate_tf.core.reporting import QUIET, Reporting, RunReport
from pate_tf.core.settings import PublicationSettings, setting
from pate_tf.core.validation import IntArray
from pate_tf.release.plan import METHODS, Budget, LabelSettings
from pate_tf.run.planning import (
    FEATURE_SUMS,
    PATE,
    Forecast,
    MethodComparison,
    PlanSettings,
    compare_methods,
)
from pate_tf.teachers.run_folder import DataSource, TeacherRun, TeacherSource

AUTO = "auto"
UNKNOWN_WIDTH = 2_000  # about that of texts and of images' representations
TEACHER = "ridge"  # in closed form, on a representation: it needs few records
# Records of a class over the noise of a sum, from which on random Fourier features of a table are
# taken instead of its columns, where no labels of the pool tell.
FEWEST_OF_FOURIER = 200
FEWEST_LABELLED = 100  # samples of the pool, for a trial
MOST_LABELLED = 3_000  # of those; a share of so many is known to a point
FOLDS = 3  # of them; each is labelled by the others
MOST_ASKED = 300  # that teachers of a trial vote on, besides the queries
# By how much of the pool votes must label more right than sums do, to be taken: they label a few
# inputs, from which a student learns less.
LEAD_OF_VOTES = 0.02
UNCERTAIN = {PATE: 0.03, FEATURE_SUMS: 0.02}  # of a forecast, besides chance


@dataclasses.dataclass(frozen=True, kw_only=True)
class WholeRun(DataSource, PublicationSettings):
    """A run of `pate run`."""

    epsilon: float = setting(
        group="privacy",
        above=0.0,
        help="What all that is published may cost at --delta, whatever the data.",
    )
    delta: float | None = setting(None, group="privacy", **DELTA)
    method: str = setting(
        AUTO,
        group="method",
        choices=(AUTO, *METHODS),
        help="pate: teachers vote on some of the public inputs. feature_sums: noisy sums of "
        "feature vectors label all of them. auto: whichever is expected to label better, by a "
        "trial on labelled inputs of the pool, or without labels by public numbers; with owners, "
        "whose number is private, feature_sums.",
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


def run(settings: WholeRun, reporting: Reporting = QUIET) -> RunReport:
    """Chooses a method, trains what it needs, releases labels, trains and publishes a student.

    The method, the number of teachers and the noise follow from public values; the number of
    private records is one of these where records are protected. What was charged stands in the
    run's ledger; the same run again costs nothing more.

    Raises:
        ValueError: if something does not fit; nothing was charged then.
        LedgerError: if the ledger can't be used.
    """
    from pate_tf.release import feature_sums
    from pate_tf.run import student_run
    from pate_tf.students.config import OutputSettings, StudentSettings
    from pate_tf.teachers import teacher_training
    from pate_tf.teachers.settings import TeacherSettings

    data = DataSource(
        **{field.name: getattr(settings, field.name) for field in dataclasses.fields(DataSource)}
    )
    private, public = data.load_private(reporting), data.load_public(reporting)
    dataset, has_owners = public.dataset, private.owners is not None
    if settings.delta is None:
        delta = default_delta(None if has_owners else len(private))
        settings = dataclasses.replace(settings, delta=delta)
    if has_owners and settings.method == "pate" and settings.num_teachers is None:
        raise ValueError(
            "num_teachers: expected it with owners, whose number is private, got none; choose it "
            "by what is publicly known of that number, several owners a teacher"
        )
    number = settings.num_teachers or (
        1 if has_owners else teacher_training.recommended_num_teachers(len(private), dataset)
    )
    plan = compare_methods(
        PlanSettings(
            epsilon=settings.epsilon,
            delta=settings.delta,
            unit="owner" if has_owners else "record",
            num_classes=dataset.num_classes,
            num_records=None if has_owners else len(private),
            pool_size=dataset.pool_size,
            num_teachers=number,
            has_augmentation=dataset.augmentation != "none",
        )
    )
    tried = None
    if not has_owners:
        split = public.split(dataset.pool_size)
        tried = Trial.of(plan, split, settings.method, number, len(private), reporting)
    method = settings.method
    if method == AUTO and has_owners:
        method = FEATURE_SUMS
    elif method == AUTO:
        method = plan.method if tried is None else tried.method
    is_of_sums = method == FEATURE_SUMS
    representation = tried.representation if tried is not None and is_of_sums else None
    if (
        is_of_sums
        and not has_owners
        and dataset.kind == "tabular"
        and plan.sums is not None
        and plan.sums.num_clusters is None
        and tried is None
    ):
        enough = (
            len(private) >= FEWEST_OF_FOURIER * dataset.num_classes * plan.sums.standard_deviation
        )
        representation = "fourier" if enough else "bins"
    folder = settings.folder or (
        feature_sums.default_folder(dataset.name)
        if is_of_sums
        else pathlib.Path(f"runs/{dataset.name}-{number}")
    )
    typed = commands(settings, method, number, folder, representation)
    reporting.note("\n".join(["This stands for:", *(f"  {line}" for line in typed)]))
    width = UNKNOWN_WIDTH
    if representation is not None:
        from pate_tf.representations.catalogue import encoder_of  # TensorFlow

        width = encoder_of(public.split(dataset.pool_size).pool, representation).num_features
    forecast = plan.forecast(method, width)
    if tried is not None and forecast is not None:
        forecast = tried.forecasts.get(method, forecast)
    if forecast is not None:
        reporting.note(f"Forecast, before anything is charged: {forecast.in_words()}")
    elif has_owners:
        reporting.note("No forecast: it needs the number of owners, which is private")
    labels_from: Any
    if is_of_sums:
        labels_from = feature_sums.SumsSource(
            representation=representation,
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
            labels=LabelSettings(method=method, epsilon=settings.epsilon),
            budget=Budget(delta=settings.delta),
            output=OutputSettings(
                holder=settings.holder, purpose=settings.purpose, run_name=settings.run_name
            ),
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
    """What both methods label right of the pool, learning from others of its samples. Public.

    Labels of the pool stand for those of private records; noise is as large beside the trial's
    sums, and teachers have as many records, as in the release. It holds as far as private records
    are like public ones.

    Attributes:
        forecasts: of each method that can be tried.
        right: share of the pool that each would label right.
        representation: of feature sums of a table, the best one; None for the default.
    """

    forecasts: dict[str, Forecast]
    right: dict[str, float]
    representation: str | None

    @property
    def method(self) -> str:
        """The method to take, of both."""
        lead = self.right[PATE] - self.right.get(FEATURE_SUMS, 0.0)
        return PATE if lead > LEAD_OF_VOTES else FEATURE_SUMS

    @classmethod
    def of(
        cls,
        plan: MethodComparison,
        public: PublicSplit,
        method: str,
        num_teachers: int,
        num_records: int,
        reporting: Reporting,
    ) -> "Trial | None":
        """Tries methods; None if fewer than `FEWEST_LABELLED` of the pool are labelled.

        Args:
            plan: of both methods, with their noise.
            public: the pool, and labels of it.
            method: the one to try; "auto" for both.
            num_teachers: of method pate.
            num_records: private ones; public, as records are protected.
            reporting: how progress is shown.
        """
        from pate_tf.representations import catalogue
        from pate_tf.representations.raw import MOST_OF_PAIRS

        labels, dataset = public.pool_labels, public.dataset
        if labels is None or (labels != UNKNOWN).sum() < FEWEST_LABELLED:
            return None
        default = catalogue.default_of_teachers(dataset)
        with reporting.clock("training the representation"):
            encoder = catalogue.encoder_of(public.pool, default)
        labelled = np.random.default_rng(0).permutation(np.flatnonzero(labels != UNKNOWN))
        labelled = labelled[:MOST_LABELLED]
        names = [default]
        if dataset.kind == "tabular":
            names += ["bins", "fourier"]
            names += ["pairs"] if encoder.num_features - 1 <= MOST_OF_PAIRS else []
        forecasts, right, best = dict[str, Forecast](), dict[str, float](), None
        with reporting.clock("trying methods on labelled samples of the pool"):
            size = num_records // num_teachers
            if method != FEATURE_SUMS:
                forecasts[PATE], right[PATE] = _tried_votes(
                    plan.plan, public.pool, labels, labelled, default, num_teachers, size
                )
            for name in names:
                if plan.sums is None or method == PATE:
                    break
                forecast, of_pool = _tried_sums(
                    plan.sums, public.pool, labels, labelled, name, num_records
                )
                if of_pool > right.get(FEATURE_SUMS, -1.0):
                    forecasts[FEATURE_SUMS], right[FEATURE_SUMS] = forecast, of_pool
                    best = name if len(names) > 1 else None
        return cls(forecasts=forecasts, right=right, representation=best)


def _tried_sums(
    mechanism: ReleasesFeatureSums,
    pool: Pool,
    labels: IntArray,
    labelled: IntArray,
    name: str,
    num_records: int,
) -> tuple[Forecast, float]:
    """Labels each fold of labelled places by noisy sums of the others; returns their accuracy."""
    from pate_tf.accounting.conversions import LATTICE
    from pate_tf.models.encoder import record_vectors
    from pate_tf.release.feature_sums import Summands
    from pate_tf.release.noisy_sums import residual_sums, vector_steps, weights_of_rounds
    from pate_tf.release.pseudo_labels import labels_from_sums
    from pate_tf.representations.catalogue import encoder_of, joined_names

    sample = dataclasses.replace(pool, inputs=pool.inputs[labelled])
    labels = labels[labelled]
    encoder, random = encoder_of(pool, name), np.random.default_rng(0)
    features = encoder.features(sample.inputs)
    vectors = record_vectors(features, encoder.scale)
    steps, views, centres, moments = vector_steps(vectors), None, None, None
    summands = Summands.of(encoder, pool if mechanism.num_clusters is not None else None)
    if mechanism.num_clusters is not None:
        centres = summands.centres[mechanism.num_clusters]
        summands = dataclasses.replace(summands, centres={mechanism.num_clusters: centres})
    # Of images, rounds say no less than a single release at their cost.
    num_rounds = mechanism.num_rounds
    if pool.dataset.augmentation != "none":
        num_rounds = 1
        parts = [encoder_of(pool, part) for part in joined_names(name)]
        views = [part.views(part.features(sample.inputs)) for part in parts]
    elif num_rounds > 1:
        moments = vectors.T @ vectors / len(vectors)
    deviation = mechanism.standard_deviation * float(np.sqrt(num_rounds / mechanism.num_rounds))
    accuracies = []
    for fold in range(FOLDS):
        is_asked = np.arange(len(labels)) % FOLDS == fold
        weight = num_records / (~is_asked).sum()  # a sample stands for so many records
        exact = summands.of_records(features[~is_asked], labels[~is_asked])
        exact = exact[-len(centres) :] if centres is not None else exact
        released: list[IntArray] = []
        while len(released) < num_rounds:
            if moments is not None and released:
                model = weights_of_rounds(np.stack(released), moments, num_records, deviation)
                exact = residual_sums(steps[~is_asked], labels[~is_asked], model)
            scale = deviation * LATTICE
            noise = random.normal(0.0, scale, exact.shape)
            if centres is not None:
                noise = random.laplace(0.0, scale / np.sqrt(2.0), exact.shape)
            released.append(np.rint(exact * weight + noise).astype(np.int64))
        inferred = labels_from_sums(
            sample,
            vectors,
            np.stack(released),
            deviation,
            groups=encoder.groups,
            centres=centres,
            moments=moments,
            num_records=num_records,
            views=views,
            self_training=False,
        ).inferred
        accuracies.append(float((inferred.first.labels == labels)[is_asked].mean()))
    share = float(np.mean(accuracies))
    half = UNCERTAIN[FEATURE_SUMS] + float(np.std(accuracies))
    return _forecast(share, half, len(pool)), share


def _tried_votes(
    plan: Recommendation,
    pool: Pool,
    labels: IntArray,
    labelled: IntArray,
    name: str,
    num_teachers: int,
    size: int,
) -> tuple[Forecast, float]:
    """Asks teachers of some of the pool about the queries, and about the rest of it."""
    from pate_tf.models import closed_form
    from pate_tf.queries.strategies import find_strategy
    from pate_tf.representations.catalogue import encoder_of

    encoder, random = encoder_of(pool, name), np.random.default_rng(0)
    mechanism, number = plan.mechanism, plan.num_queries
    queries = find_strategy(plan.strategy).choose(pool, number, 0, representation=name)
    queries = queries[np.isin(queries, labelled)][: len(labelled) // FOLDS]
    ends = min(len(labelled) // FOLDS, MOST_ASKED)
    queried = np.concatenate([labelled[:ends], queries])
    learnt = np.setdiff1d(labelled[ends:], queries)
    num_classes, truth = pool.dataset.num_classes, labels[queried]
    features, to_ask = (encoder.features(pool.inputs[some]) for some in (learnt, queried))
    labels = labels[learnt]
    counts = np.zeros((len(queried), num_classes), np.int64)
    for _ in range(num_teachers):
        some = random.choice(len(learnt), size, replace=size > len(learnt))
        weights, offsets = closed_form.fit(
            closed_form.RIDGE,
            features[some],
            labels[some],
            num_classes=num_classes,
            num_views=encoder.num_views,
            scale=encoder.scale,
        )
        votes = (to_ask @ weights.astype(np.float32) + offsets).argmax(axis=1)
        counts[np.arange(len(queried)), votes] += 1
    # The true class first.
    places = (truth[:, None] + np.arange(num_classes)) % num_classes
    counts = np.take_along_axis(counts, places, axis=1)

    def share(some: IntArray) -> float:
        right, any_label = expected_labels(mechanism, some)
        return right / max(any_label, 1e-9)

    of_pool = share(counts[:ends])
    of_queries = share(counts[ends:]) if len(queries) else of_pool
    half = UNCERTAIN[PATE] + 1.5 * float(np.sqrt(of_queries * (1.0 - of_queries) / number))
    arrive = plan.candidates[0].outlooks[0].expected_labels
    return _forecast(of_queries, half, arrive), of_pool


def _forecast(share: float, half: float, num_labels: float) -> Forecast:
    return Forecast(
        low=max(share - half, 0.0),
        high=min(share + half, 1.0),
        num_labels=num_labels,
        by="by a trial on labelled samples of the pool",
    )


def commands(
    settings: WholeRun,
    method: str,
    number: int,
    folder: pathlib.Path,
    representation: str | None = None,
) -> list[str]:
    """Returns the commands that a run stands for, a line each."""
    flags = {
        name: value
        for name, value in settings.flags.items()
        if value is not None and (settings.files is not None or name != "svhn_extra")
    }
    of_private = [f"--{name}={value}" for name, value in flags.items()]
    if settings.owners_file is not None:
        of_private.append(f"--owners_file={settings.owners_file}")
    of_public = [
        f"--{name}={value}" for name, value in flags.items() if name not in ("private", "owner")
    ]
    run = f"--train_dir={folder}"
    cost = [f"--epsilon={settings.epsilon:.12g}", f"--delta={settings.delta:.12g}"]
    if method == FEATURE_SUMS:
        chosen = [f"--method={method}"]
        chosen += [f"--representation={representation}"] if representation else []
        return [shlex.join(["pate", "student", *of_private, *chosen, run, *cost])]
    return [
        shlex.join(
            ["pate", "teachers", *of_private, f"--model={TEACHER}", f"--nb_teachers={number}", run]
        ),
        shlex.join(["pate", "student", *of_public, run, *cost]),
    ]
