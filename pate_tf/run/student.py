"""Trains, evaluates and publishes a student."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Self, cast

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf.accounting.charge import rounded_up
from pate_tf.core import artifacts, tensorboard
from pate_tf.core.checks import GUIDE
from pate_tf.core.dataset import CLASS, NUMBER, SEVERAL_LABELS, Dataset
from pate_tf.core.public import MEASURES, Pool, PublicExamples, PublicSplit, score_of
from pate_tf.core.reporting import NOT_MEASURED, QUIET, Reporting, Row, RunReport, reporting
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.core.settings import PublicationSettings
from pate_tf.data.loaded_data import as_examples, as_inputs, numbered
from pate_tf.data.named_function import is_named_function, name_of
from pate_tf.models import architectures as models
from pate_tf.models.encoder import record_features, record_vectors
from pate_tf.planning.forecast import HELPS, Forecast
from pate_tf.postprocessing.targets import correctness
from pate_tf.queries.labels import COST_FILE, LABELS_FILE, Labels
from pate_tf.release.noisy_sums import EstimatedAccuracy, linear_head_of
from pate_tf.representations.catalogue import encoder_of, is_known
from pate_tf.representations.pretrained import answering
from pate_tf.serving.export import answer, check_formats, student_digest
from pate_tf.serving.served import SCHEMA, answers
from pate_tf.statement import JSON_FILE, PAGE_FILE
from pate_tf.statement.labels_statement import LabelsStatement
from pate_tf.statement.publishing import Published
from pate_tf.students import measures, student_training
from pate_tf.students.student_kinds import (
    AUTO,
    LINEAR_HEAD,
    TRAINING,
    StudentConfig,
    StudentSettings,
    complete,
    find_student,
    fitting,
)
from pate_tf.students.student_kinds.linear_head import LinearHead, weights_of_labels
from pate_tf.students.student_training import constant_model

REPORT: Final = "student_report.json"  # file in `sensitive/`, which `pate report` reads
CONSTANT: Final = "constant"  # kind of a student that always predicts one class
# Reports show the recall of each class if classes are unbalanced: the fraction of the most frequent
# class exceeds 1 / number of classes by this factor.
UNEVEN: Final = 1.25
MAX_NAMED: Final = 12  # maximum number of class names in a message
COMPARED: Final = ("majority_accuracy", "accuracy", "auc")


class Student:
    """Public: the published model, which learns only from noisy labels and public inputs.

    >>> import pate_tf
    >>> student = pate_tf.Student("supervised", model="mlp", steps=20).fit(data.pool, labels)
    >>> student.predict(data.held_out).shape
    (197,)
    >>> 0.0 <= student.evaluate(data.held_out) <= 1.0
    True

    Training costs no privacy in addition to the labels, because it is post-processing.
    """

    def __init__(
        self,
        student: str = AUTO,
        *,
        model: Callable[[Dataset], Any] | str | None = None,
        steps: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        seed: int = 0,
        callbacks: Sequence[keras.callbacks.Callback] = (),
        directory: str | os.PathLike[str] | None = None,
        verbose: bool | Reporting = False,
    ) -> None:
        """Stores the settings. If a setting is None, its default depends on the kind of student.

        Args:
            student: kind of student: "supervised" (learns only from the labels), "consistency"
                (also learns from the unlabeled pool), "gan", "random_forest", "linear_head" (not a
                Keras model), or another module of `pate_tf.students.student_kinds`. For feature
                sums, the default is linear_head for tables and texts, and for images if the sums
                were released in several rounds, unless a network is clearly better for the images.
                In all other cases, the default is consistency for images with an augmentation, and
                supervised for other inputs.
            model: name of a model, or a function that takes a `Dataset` and returns a Keras model
                that maps raw inputs to logits. The kind "random_forest" ignores it.
            steps: maximum number of training steps. Except for "gan", training ends earlier if the
                predictions on the pool become stable.
            batch_size: number of labeled inputs per step.
            learning_rate: learning rate of Adam in the first step; then it decreases by cosine
                decay, except for "gan".
            seed: seed of initial weights, shuffling and augmentation.
            callbacks: callbacks for Keras' `fit`.
            directory: public folder for logs, and for the state of an interrupted `fit`, from which
                the next `fit` resumes. Default: no logs and no state are stored.
            verbose: whether progress bars are shown.
        """
        self._settings = StudentSettings(
            student=student,
            model=model,
            max_steps=steps,
            batch_size=batch_size,
            learning_rate=learning_rate,
            seed=seed,
        )
        self._callbacks = callbacks
        self._directory = None if directory is None else pathlib.Path(directory)
        self._verbose = verbose
        self._is_locked = False  # whether the caller has locked `directory`
        self._fitted: tuple[Any, Labels] | None = None
        self._config: StudentConfig | None = None  # settings of the last `fit`
        self._estimate: EstimatedAccuracy | None = None
        self._is_apart = False  # whether the estimate and the labels use different records
        self.kind = student

    @classmethod
    def from_settings(
        cls,
        settings: StudentSettings,
        *,
        directory: pathlib.Path | None = None,
        reporting: Reporting = QUIET,
        is_locked: bool = False,
    ) -> Self:
        """Creates a student from the settings of a command.

        Args:
            settings: the user's settings, such as the kind of student.
            directory: public folder for logs and for the state of an interrupted `fit`.
            is_locked: whether the caller has locked this folder (`only_writer`).
            reporting: object that shows progress and warnings.
        """
        student = cls(settings.student, directory=directory, verbose=reporting)
        student._settings = settings
        student._is_locked = is_locked
        return student

    @classmethod
    def from_model(cls, model: keras.Model, labels: Labels) -> Self:
        """Creates a student from your own trained Keras model.

        Args:
            model: model that maps raw inputs to logits or to probabilities. It must have learned
                only from these labels and public data. The library can't check this, but the
                privacy statement is true only for such a model.
            labels: labels that the model learned from.

        Raises:
            ValueError: if the model does not match the data set of the labels, has random outputs,
                or could store its inputs.
        """
        student = cls()
        name = getattr(model, "name", type(model).__name__)
        labels.pool.dataset.require_classes("model")
        models.check_model(model, labels.pool.dataset, name)
        models.check_draws(model, training=False)
        answering(model, labels.pool.dataset)  # refuses models that store their inputs
        logits = models.with_logits(model) if models.ends_in_softmax(model) else model
        student._fitted = logits, labels
        return student

    def check(
        self,
        pool: Pool,
        folder: str | os.PathLike[str] | None = None,
        *,
        export_formats: Sequence[str] = (),
        labels_whole_pool: bool = False,
    ) -> None:
        """Raises the errors that `fit` and `publish` would raise, before anything is charged.

        The commands, `pate_tf.fit`, the estimators and the coordinator all call this method.

        Args:
            pool: public pool on which the student will be trained.
            folder: folder to which the student will be published; None to skip the checks of the
                folder.
            export_formats: see `publish`.
            labels_whole_pool: whether the labels will come from feature sums, which label the whole
                pool.

        Raises:
            ValueError: for the same reasons as `fit` and `publish`.
        """
        settings = self._settings
        choices = (settings.model, *(getattr(settings, name) for name in TRAINING))
        is_named = settings.student not in (AUTO, LINEAR_HEAD) or any(choices)
        if is_named and (not pool or pool.dataset.target != CLASS):
            why = f"for target {pool.dataset.target}" if pool else "without a public pool"
            raise ValueError(
                f"student must be {LINEAR_HEAD} without further settings {why}, got "
                f"{settings.student}"
            )
        config = complete(settings, pool.dataset, labels_whole_pool=labels_whole_pool)
        kind = find_student(config, pool.dataset)
        if is_named_function(config.model):
            built = models.build(config.model, pool.dataset)
            answering(built, pool.dataset)
            built(np.zeros((2, *pool.dataset.input_shape), np.float32), training=True)
        check_formats(export_formats)
        if export_formats and not kind.can_convert:
            raise ValueError(f"export_formats must not be given for student {kind.name}")
        if self._directory is not None:
            artifacts.check_can_hold_files(self._directory)
        if folder is None:
            return
        target = pathlib.Path(folder)
        if artifacts.is_within(target / "student", artifacts.SENSITIVE):
            raise ValueError(f"folder: {target} is inside sensitive/; choose a public folder")
        logs = student_training.logs_of(target)
        folders = [logs / name for name in ("train", "validation", "held_out")]
        for place in (target / "student", target / student_training.UNFINISHED, *folders):
            artifacts.check_can_hold_files(place)
        files = [
            f"{target.name}/{name}"
            for name in (LABELS_FILE, COST_FILE, JSON_FILE, PAGE_FILE, SCHEMA)
        ]
        files += [f"{artifacts.SENSITIVE}/{name}" for name in (REPORT, artifacts.SEALS)]
        artifacts.RunDirectory(target.parent).check(files=files)

    def fit(
        self,
        pool: Pool,
        labels: Labels,
        *,
        held_out: PublicExamples | None = None,
        fits: str | None = None,
    ) -> Self:
        """Trains the student on noisy labels, starting from initial weights; returns self.

        Args:
            pool: the public inputs that were labeled, `data.pool`.
            labels: labels from `Labeller.label` or `Labels.load`.
            held_out: public samples with labels, used only to show the accuracy in TensorBoard.
            fits: kind of student from a plan (`ReleasePlan.student`), used if the settings do not
                name a kind. Default: chosen based on the labels.

        Raises:
            ValueError: if student, labels and pool do not match, or there are no labels.
            TrainingDivergedError: if a loss or weight became NaN or infinite.
        """
        if not isinstance(labels, Labels):
            raise ValueError(f"labels must be pate_tf.Labels, got {type(labels).__name__}")
        if not isinstance(pool, Pool):
            raise ValueError(f"pool must be data.pool, got {type(pool).__name__}")
        labels.check_pool(pool)
        self._estimate = None
        taught = labels.training_labels
        dataset = pool.dataset
        if labels.linear_head is None:  # for example, if labels were loaded from a file
            dataset.require_classes("labels")
        # If all labels are the same class, a linear model can still rank inputs, so it is still
        # used.
        ranks = labels.linear_head is not None and self._settings.student in (AUTO, LINEAR_HEAD)
        if len(set(taught.labels.tolist())) == 1 and not ranks:
            name = dataset.class_name(taught.labels[0])
            reporting(self._verbose).warn(
                f"All {len(taught.labels):,} labels are class {name}. The student was not trained "
                f"and always predicts this class. {HELPS}"
            )
            self.kind = CONSTANT
            self._config = None
            self._fitted = constant_model(taught, dataset), labels
            return self
        config = self._config_for(pool, labels, fits)
        if config.student != self._settings.student:
            reporting(self._verbose).note(f"Student: {config.student}.")
        callbacks = list(self._callbacks)
        folder = self._directory
        shown = None if held_out is None or folder is None else held_out.labelled()
        kind = find_student(config, dataset)
        if folder is not None and shown is not None and kind.has_steps:
            logs = student_training.logs_of(folder)
            callbacks.insert(0, student_training.HeldOutAccuracy(shown, logs))
        with contextlib.ExitStack() as stack:
            if folder is not None and not self._is_locked:
                stack.enter_context(artifacts.only_writer(folder))
            model = kind.train(
                config,
                taught,
                pool,
                folder=folder,
                callbacks=callbacks,
                progress_bar=reporting(self._verbose).progress_bar,
            )
        self.kind = config.student
        self._config = config
        self._fitted = model, labels
        return self

    def _config_for(self, pool: Pool, labels: Labels, fits: str | None) -> StudentConfig:
        """Returns the complete settings of the student; replaces the kind "auto".

        Labels that were loaded from a file have no `linear_head`. If the features come from the
        user's encoder, a linear head is fitted to these labels.
        """
        settings = self._settings
        is_open = settings.student in (AUTO, LINEAR_HEAD) and not any(
            (settings.model, *(getattr(settings, name) for name in TRAINING))
        )
        linear_head = labels.linear_head
        if is_open:
            linear_head = linear_head or frozen_head(labels, reporting(self._verbose))
        are_sums = labels.released.noisy_sums is not None
        if is_open and settings.student == AUTO and linear_head is not None:
            if not fits:
                fits, _ = fitting(
                    pool.dataset,
                    of_sums=are_sums,
                    has_pool=len(pool) > 0,
                    is_frozen=linear_head.is_frozen,
                    num_rounds=getattr(labels.cost.charge, "num_rounds", 1),
                )
            if fits == LINEAR_HEAD:
                settings = dataclasses.replace(settings, student=LINEAR_HEAD)
        config = complete(settings, pool.dataset, labels_whole_pool=are_sums)
        if config.student == LINEAR_HEAD:
            config = dataclasses.replace(config, linear_head=linear_head)
        return config

    @property
    def model(self) -> Any:
        """The trained model, which maps raw inputs to logits and is called like a Keras model.

        Raises:
            ValueError: if the student is not trained.
        """
        return self._trained()[0]

    @property
    def labels(self) -> Labels:
        """The labels that the student learned from.

        Raises:
            ValueError: if the student is not trained.
        """
        return self._trained()[1]

    def _trained(self) -> tuple[Any, Labels]:
        if self._fitted is None:
            raise ValueError("student must be trained first: call fit(pool, labels)")
        return self._fitted

    def predict(self, inputs: npt.ArrayLike | Pool | PublicExamples) -> npt.NDArray[Any]:
        """Returns the predicted label of each raw input `[num_inputs, *input_shape]`.

        Returns:
            If the target is a class, int64 `[num_inputs]`. If the target is a number, float64
            `[num_inputs]` in the unit of the number. If the target is several labels, int64
            `[num_inputs, num_labels]`: 1 if the probability of a label is at least 0.5, otherwise
            0.

        Raises:
            ValueError: if the student is not trained, or the shape or type of the inputs is wrong.
        """
        predictions, _ = self._answers(inputs)
        return predictions.astype(np.float64 if predictions.dtype.kind == "f" else np.int64)

    def predict_proba(
        self, inputs: npt.ArrayLike | Pool | PublicExamples
    ) -> npt.NDArray[np.float64]:
        """Returns the probability of each class or label, float64 `[num_inputs, num_classes]`.

        The published student returns the same values as `probabilities`, in float32.

        Args:
            inputs: raw inputs `[num_inputs, *input_shape]`.

        Raises:
            ValueError: for the same reasons as `predict`, or if the target is a number.
        """
        if self.labels.pool.dataset.target == NUMBER:
            raise ValueError("predict_proba needs a target with classes. For a number, use predict")
        return self._answers(inputs)[1].astype(np.float64)

    def predict_interval(
        self, inputs: npt.ArrayLike | Pool | PublicExamples
    ) -> npt.NDArray[np.float64]:
        """Returns 95 % intervals for the predicted numbers, float64 `[num_inputs, 2]`.

        With 95 % confidence, an interval contains the number that the linear model would predict
        without privacy noise. The interval does not account for the error of the model itself.

        Args:
            inputs: raw inputs `[num_inputs, *input_shape]`.

        Raises:
            ValueError: for the same reasons as `predict`, or if the target is not a number.
        """
        if self.labels.pool.dataset.target != NUMBER:
            raise ValueError("predict_interval needs a number as target. Use predict_proba instead")
        return self._answers(inputs)[1].astype(np.float64)

    def _answers(
        self, inputs: npt.ArrayLike | Pool | PublicExamples
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32]]:
        """Returns predictions and their confidence, see `ServedStudent.answer`."""
        model = self.model
        dataset = self.labels.pool.dataset
        raw = as_inputs(inputs, dataset)
        # Some models fail for an empty batch.
        at_least_one = raw if len(raw) else np.zeros((1, *dataset.input_shape), raw.dtype)
        found, confidence = answers(
            lambda batch: answer(model, tf.constant(batch), dataset), at_least_one, dataset
        )
        return found[: len(raw)], confidence[: len(raw)]

    def evaluate(
        self, inputs: PublicExamples | npt.ArrayLike, labels: npt.ArrayLike | None = None
    ) -> float | None:
        """Returns the accuracy, the R^2 of predicted numbers, or the mean AUC of several labels.

        The result is None if no sample has a label.

        Args:
            inputs: `data.held_out`, a data frame that includes the label column, or raw inputs
                `[num_samples, *input_shape]`.
            labels: for raw inputs, the true labels or their names, `[num_samples]`; -1 if a label
                is unknown.

        Raises:
            ValueError: if the student is not trained, if inputs and labels do not match, or if raw
                inputs have no labels.
        """
        dataset = self.labels.pool.dataset
        if labels is None:
            inputs = as_examples(inputs, dataset)
            labels = inputs.labels
        if labels is None:
            return None
        known = numbered(labels, dataset, "labels", may_lack=True)
        samples = PublicExamples(dataset, as_inputs(inputs, dataset), known).labelled()
        if samples is None:
            return None
        if dataset.target == CLASS:
            return float(np.mean(self.predict(samples) == samples.labels))
        predictions = self._answers(samples)[dataset.target == SEVERAL_LABELS]
        return score_of(predictions, np.asarray(samples.labels), dataset)

    def estimate_accuracy(self, held_back: PrivateExamples, epsilon: float) -> EstimatedAccuracy:
        """Estimates the accuracy on private records; charges the cost of the estimate.

        The privacy statement will include the estimate.

        If the target is several labels, the accuracy is the mean fraction of a record's labels that
        are correct. If the target is a number, the accuracy is 1 minus the mean squared error
        divided by the squared width of the range.

        Args:
            held_back: private records from `Data.hold_back`. If the source of the labels was fitted
                to the other part of the same `hold_back` call, the statement reports the larger
                epsilon of the labels and the estimate. Otherwise, the statement reports the sum of
                the two, because the source may have used these records. It also reports the sum if
                the ledger already contains an estimate for this student: the stored estimate is
                returned again, and it may have been drawn for other records.
            epsilon: epsilon of the estimate, which is charged to the ledger of the labels, in
                addition to the cost of the labels.

        Raises:
            ValueError: if the student is not trained, or the labels do not come from a `Labeller`.
            BudgetExceeded: if the estimate costs more than the remaining budget.
        """
        model, labels = self._trained()
        if not hasattr(labels.labeller, "estimate_accuracy"):
            raise ValueError("labels must come from a Labeller, because its ledger is charged")
        digest = student_digest(model)
        encoding = answering(model, labels.pool.dataset)
        is_correct = np.zeros(len(held_back))
        # `record_features` ensures that a record's prediction does not depend on other records.
        for rows, outputs in record_features(encoding, held_back.inputs):
            is_correct[rows] = correctness(outputs, held_back.labels[rows], held_back.dataset)
        if student_digest(model) != digest:
            raise ValueError("student changed its weights during prediction, which is not allowed")
        estimate, is_new = labels.labeller.estimate_accuracy(
            is_correct, held_back, epsilon, student_digest=digest
        )
        was_apart = self._is_apart and estimate == self._estimate
        self._estimate = estimate
        learned_from = getattr(labels.labeller.source, "split", None)
        others = held_back.split and (held_back.split[0], not held_back.split[1])
        self._is_apart = (is_new or was_apart) and others is not None and learned_from == others
        return self._estimate

    def publish(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        evaluate_on: PublicSplit | None = None,
        export_formats: Sequence[str] = (),
        holder: str | None = None,
        purpose: str | None = None,
        run_name: str | None = None,
    ) -> Published[LabelsStatement]:
        """Exports the student as a SavedModel with its privacy statement.

        >>> import pate_tf
        >>> published = student.publish(folder / "released")
        >>> sorted(path.name for path in published.folder.iterdir())
        ['privacy_statement.json', 'privacy_statement.md', 'student']

        The statement describes the charges for the labels. These charges are read from the ledger
        of the `Labeller`, which may be closed, or from the silos' replies to an open `Coordinator`.

        Args:
            folder: folder for `student/1`, and for the statement in JSON and Markdown. Default:
                `released/` in the run folder with the charged ledger, where `pate report` and `pate
                audit` look for the student.
            evaluate_on: `data.public`. The exported student is evaluated on the held-out samples if
                they have true labels, and the labels are evaluated on the pool if it has true
                labels. Default: no evaluation.
            export_formats: additional formats, "onnx" and "litert".
            holder: name of the data holder in the statement. Default: left out.
            purpose: purpose of the release in the statement. Default: left out.
            run_name: name of this release in the statement. Default: the date and the version
                number.

        Returns:
            An object with the attributes `statement` (for silos, a `SilosStatement`), `folder`,
            `student_folder` and `measured`.

        Raises:
            ValueError: if the student is not trained or can't be exported, or if the ledger was not
                charged for the labels.
        """
        model, labels = self._trained()
        labeller = labels.labeller
        if labeller is None:
            raise ValueError(
                "labels must come from a Labeller, because the statement needs its ledger. For "
                "stored labels, use Labels.load(..., labeller=...)."
            )
        if folder is None:
            source = getattr(labeller, "source", None)
            if source is None:
                raise ValueError("folder is required for labels of silos")
            folder = cast("pathlib.Path", source.directory) / artifacts.RELEASED
        target = pathlib.Path(folder)
        if artifacts.is_within(target / "student", artifacts.SENSITIVE):
            raise ValueError(f"folder must not be inside sensitive/, got {target}")
        artifacts.remove_abandoned(target)
        # The state of an interrupted run with other settings.
        shutil.rmtree(target / student_training.UNFINISHED, ignore_errors=True)
        logs = student_training.logs_of(target)
        measured: dict[str, Any] = {}
        if evaluate_on is not None:
            measured = measure(model, labels, evaluate_on, reporting(self._verbose))
        published: Published[Any] = labeller.publish(
            model,
            labels,
            folder=target,
            export_formats=export_formats,
            publication=PublicationSettings(holder=holder, purpose=purpose, run_name=run_name),
            quality=quality_of(measured),
            estimated_accuracy=self._estimate,
            estimate_is_apart=self._is_apart,
        )
        published = dataclasses.replace(published, measured=measured)
        if logs.exists() or self._directory == target:
            config = self._config
            results = {"result/epsilon": published.statement.epsilon}
            if (accuracy := published.measured.get("student_accuracy")) is not None:
                results["result/accuracy"] = accuracy
            shown = {"student": self.kind, "labels": len(labels), "mechanism": labels.cost.charge}
            if config is not None:
                has_steps = find_student(config, labels.pool.dataset).has_steps
                names = (*TRAINING, "seed") if has_steps else ("seed",)
                shown |= {name: getattr(config, name) for name in names}
                shown["model"] = name_of(config.model)
            tensorboard.write_result(logs, shown, results)
            artifacts.hide_host(logs)
            artifacts.seal(logs)
        return published

    def __repr__(self) -> str:
        state = "not trained yet" if self._fitted is None else f"of {len(self.labels)} labels"
        return f"Student(<{self.kind}, {state}>)"


def frozen_head(labels: Labels, reporting: Reporting) -> LinearHead | None:
    """Fits a linear model to labels, on features of the user's encoder; None without an encoder."""
    taught = labels.training_labels
    pool = labels.pool
    name = labels.representation
    if name is None or is_known(name):
        return None
    try:
        encoder = encoder_of(pool, name)
    except ValueError:  # stored labels contain only the name of the encoder's file
        reporting.warn(f"The encoder {name_of(name)} was not found; the student uses raw inputs.")
        return None
    vectors = record_vectors(encoder.features(pool.inputs)[taught.query_indices], encoder.scale)
    one_hot = np.eye(taught.num_classes)[taught.labels]
    targets = one_hot if taught.weights is None else taught.weights
    head = linear_head_of(encoder, weights_of_labels(vectors, targets))
    head.is_frozen = True
    return head


def measure(
    model: Any, labels: Labels, public: PublicSplit, reporting: Reporting
) -> dict[str, Any]:
    """Evaluates labels and a student on public samples; returns public JSON values.

    Accuracies and fractions of the most frequent class are None if the public samples have no
    labels. The function shows a warning about classes that the student never predicts on the
    held-out samples, or on the first samples of the pool if there are no held-out samples.

    Args:
        model: exported model of the student, which maps raw inputs to logits.
        labels: labels that the student learned from.
        public: the pool, and the held-out samples on which the student is evaluated.
        reporting: object that shows warnings.
    """
    samples = public.held_out.labelled()
    dataset = public.dataset
    values: dict[str, Any] = {
        "label_accuracy": student_training.accuracy_in_pool(labels.released, public),
        "label_majority_accuracy": public.pool.majority_share,
        "inferred_label_accuracy": student_training.accuracy_in_pool(labels.inferred, public),
        "student_accuracy": None,
        "is_no_better_than_constant": None,
        "is_outside_of_forecast": None,
    }
    if labels.has_public_labels:  # the student learned from these labels
        values |= {"label_accuracy": None, "inferred_label_accuracy": None}
    inputs = (
        public.pool.inputs[: student_training.NUM_SAMPLES] if samples is None else samples.inputs
    )
    predictions, probabilities = answers(
        lambda batch: answer(model, tf.constant(batch), dataset), inputs, dataset
    )
    measured = {}
    if samples is not None and samples.labels is not None:
        measured = measures.measure(predictions, samples.labels, probabilities, dataset)
        values |= {f"student_{name}": value for name, value in measured.items()}
    if dataset.target != CLASS:
        score = measured.get("r_squared" if dataset.target == NUMBER else "auc")
        measure_name, constant = MEASURES[dataset.target]
        values["is_no_better_than_constant"] = None if score is None else score <= constant
        if values["is_no_better_than_constant"]:
            reporting.warn(
                f"The student's {measure_name} on the held-out samples is {score:.2f}. A constant "
                f"prediction is as good, with {constant:g}. {HELPS}"
            )
        return values
    lacking = np.setdiff1d(np.arange(dataset.num_classes), predictions)
    never = [dataset.class_name(label) for label in lacking if len(inputs)]
    if never:
        reporting.warn(
            f"The student never predicts class {few_of(never)} on {len(inputs):,} samples. See "
            f"{GUIDE}/how-to/choose_student.html#rare-classes"
        )
    values["student_never_predicts"] = never
    if measured:
        majority, accuracy, auc = (measured[name] for name in COMPARED)
        student = Forecast(accuracy, accuracy, len(inputs), is_measured=True, auc=auc)
        values["is_no_better_than_constant"] = not student.is_worth(majority)
        if values["is_no_better_than_constant"]:
            reporting.warn(
                f"The student is correct on {accuracy:.1%} of the held-out samples. Always "
                f"predicting the most frequent class is correct on {majority:.1%}. {HELPS}"
            )
    judged = "The labels are correct on {:.1%} of the pool"
    reached = values["label_accuracy"]
    forecast = labels.forecast
    if labels.has_public_labels:
        judged = "The student is correct on {:.1%} of the held-out samples"
        # For images, the forecast does not include the public labels that the student learned.
        reached = values["student_accuracy"] if forecast and forecast.public_accuracy else None
    is_outside = forecast and forecast.excludes(reached)
    values["is_outside_of_forecast"] = is_outside
    if is_outside:
        reporting.warn(
            f"{judged.format(reached)}, but the forecast was {forecast.low:.1%} to "
            f"{forecast.high:.1%}. The private or held-out records seem to differ from the pool."
        )
    return values


def quality_of(measured: Mapping[str, Any]) -> dict[str, float]:
    """Selects the numbers about a student's quality that its privacy statement contains.

    Args:
        measured: result of `measure`.
    """
    low, high = measured.get("student_accuracy_interval", (None, None))
    values = {**measured, "student_accuracy_low": low, "student_accuracy_high": high}
    return {
        name.removeprefix("student_"): float(value)
        for name, value in values.items()
        if name.startswith("student_") and isinstance(value, int | float)
    }


def few_of(names: Sequence[str]) -> str:
    """Joins names with commas; shortens a list of more than `MAX_NAMED` names."""
    return ", ".join(names[:MAX_NAMED]) + ", ..." * (len(names) > MAX_NAMED)


def measured_rows(measured: Mapping[str, Any], dataset: Dataset) -> list[Row]:
    """Returns results of `measure` as rows of a table; adds recalls if classes are unbalanced."""
    if dataset.target != CLASS:
        found = {name.removeprefix("student_"): value for name, value in measured.items()}
        names = [dataset.class_name(label) for label in range(dataset.num_classes)]
        return measures.rows_of_measure(found, names) if "num_evaluated" in found else []
    rows = list[Row]()
    for name, value in measured.items():
        if isinstance(value, float) or name == "student_accuracy":
            text = NOT_MEASURED if value is None else f"{value:.2%}"
            if name == "student_accuracy" and value is not None:
                low, high = measured["student_accuracy_interval"]
                number = measured["student_num_evaluated"]
                text += f" on {number:,} samples (95 % interval {low:.2%} to {high:.2%})"
            rows.append((name.replace("_", " "), text))
    if never := measured["student_never_predicts"]:
        rows.append(("student never predicts", few_of(never)))
    if measured.get("student_majority_accuracy", 0.0) * dataset.num_classes > UNEVEN:
        recall = [
            f"{dataset.class_name(label)} {measures.recall_in_words(share)}"
            for label, share in enumerate(measured["student_recall"])
        ]
        rows.append(("student recall by class", ", ".join(recall)))
    return rows


def student_report(published: Published[LabelsStatement], student: Student) -> RunReport:
    """Returns the public report about a published student, as JSON values and rows of a table."""
    statement = published.statement
    labels = student.labels
    measured = published.measured
    released = labels.released
    dataset = labels.pool.dataset
    values = {
        "dataset": statement.pool_name,
        "input_kind": dataset.kind,
        "classes": [dataset.class_name(label) for label in range(dataset.num_classes)],
        "method": "feature_sums" if released.noisy_sums is not None else "pate",
        "nb_teachers": statement.num_teachers,
        "queries": released.num_queries,
        "queries_answered": released.num_answered,
        "queries_saved": len(labels.inferred.labels),
        "query_strategy": labels.strategy,
        "representation": getattr(getattr(labels.labeller, "source", None), "representation", None),
        "mechanism": released.cost.charge.to_dict(),
        "sums_exceed_noise": labels.exceeds_noise,
        "delta": statement.delta,
        "epsilon_data_independent": statement.epsilon,
        "epsilon_ledger": statement.epsilon_ledger,
        "secure_noise": statement.secure_noise,
        "estimated_accuracy": statement.estimated_accuracy,
        **measured,
        "choice": labels.choice,
        "student": str(published.student_folder),
        "student_kind": student.kind,
    }

    rows = list[Row]()
    for name, value in values.items():
        text = f"{value:g}" if name == "delta" else str(value)
        if name.startswith("epsilon_"):
            text = f"{rounded_up(value)} at delta {statement.delta:g}; {statement.kind}"
            name = name.removesuffix("_data_independent").replace("_ledger", " of the ledger")
        if name == "estimated_accuracy" and value is not None:
            text = statement.estimated_in_words
        if name == "secure_noise":
            name = "noise source"
            text = "operating system" if value else "seed: NOT PRIVATE"
        if name == "choice" and measured:
            rows += measured_rows(measured, dataset)
        # With sums, the whole pool gets labels. If noise exceeds the sums, a warning has appeared.
        is_shown = released.noisy_sums is None or not name.startswith(("quer", "sums_"))
        is_row = value is not None and not isinstance(value, dict | list)
        if is_shown and is_row and name not in measured:
            rows.append((name.replace("_", " "), text))
    if (published.folder / "logs").exists():
        rows.append(artifacts.tensorboard_row(published.folder.parent))
    return RunReport(values=values, rows=rows)
