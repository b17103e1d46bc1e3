"""The function `fit`, which runs all steps in one call, and two scikit-learn estimators."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import pathlib
import tempfile
import warnings
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array, check_is_fitted, column_or_1d, validate_data

from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.core import checks
from pate_tf.core.dataset import Dataset
from pate_tf.core.reporting import reporting
from pate_tf.data.loaded_data import Data
from pate_tf.ledger.rollback_guard import LedgerWarning
from pate_tf.planning.release_settings import (
    AUTO,
    FEATURE_SUMS,
    METHODS,
    PATE,
    Budget,
    Output,
    ReleaseSettings,
    RunSettings,
)
from pate_tf.queries.strategies import QueryWishes
from pate_tf.release.feature_sums import FeatureSums
from pate_tf.representations.catalogue import source_of
from pate_tf.run.labeller import Labeller
from pate_tf.run.pipeline import Fitted, RunData, run
from pate_tf.run.student import Student
from pate_tf.teachers.teacher_set import Teachers


def fit(
    data: Data,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    method: str = AUTO,
    num_teachers: int | None = None,
    representation: Any = None,
    directory: str | os.PathLike[str] | None = None,
    source: Teachers | FeatureSums | None = None,
    student: Student | None = None,
    mechanism: Mechanism | type[Mechanism] | None = None,
    num_queries: int | None = None,
    strategy: str | None = None,
    evaluate_epsilon: float | None = None,
    seed: int = 0,
    save_labels: bool = True,
    publish: bool = False,
    export_formats: Sequence[str] = (),
    holder: str | None = None,
    purpose: str | None = None,
    run_name: str | None = None,
    verbose: bool = False,
    **options: Any,
) -> Fitted:
    """Trains a differentially private student in one call: teachers or sums, noisy labels, student.

    >>> import pate_tf
    >>> data = pate_tf.Data.load("digits")
    >>> sums = pate_tf.FeatureSums(directory=folder / "fit", representation="raw")
    >>> student = pate_tf.Student("supervised", steps=20)
    >>> fitted = pate_tf.fit(
    ...     data, method="feature_sums", epsilon=8.0, delta=1e-5, source=sums, student=student)
    >>> fitted.cost.epsilon <= 8.0, fitted.student.predict(data.held_out).shape
    (True, (197,))
    >>> published = fitted.student.publish()
    >>> published.folder == folder / "fit" / "released"
    True

    This function calls `Teachers.fit` or `FeatureSums.fit`, then `Labeller.label`, then
    `Student.fit`. The guarantee is the same as for these calls: worst-case differential privacy at
    (epsilon, delta) for every record, or owner, of the private data. The ledger in `directory`
    records the charge. If you repeat the same call, nothing more is charged.

    Args:
        data: private records, and the public pool.
        epsilon: privacy budget of the labels. The mechanism, its noise and the number of queries
            are chosen based on `epsilon` and on public values. Pass None only if you pass a
            mechanism with its noise.
        delta: delta of the guarantee, see `Labeller`.
        method: "pate" for noisy votes of teachers, "feature_sums" for noisy sums of the records'
            features, or "auto". "auto" uses the method of `source` or `mechanism`. If neither is
            given, it uses the method whose labels are expected to be more accurate, based on public
            values. If the data are a table and the pool has public labels, these labels decide
            which representation feature sums use (`FeatureSums.choose_representation`).
        num_teachers: number of teachers of method pate. Default: depends on the number of records.
        representation: features that teachers learn from or that are summed, such as
            "EfficientNetV2B0"; see `FeatureSums`. Default: depends on the data.
        directory: run folder. Default: the folder of `source`, or `runs/NAME-NUM_TEACHERS` or
            `runs/NAME-feature_sums` if there is no `source`.
        source: `Teachers` or `FeatureSums` with their settings, whether or not they are fitted.
            Teachers from `from_votes` or `from_models` are not trained; for them, `data.private`
            only determines which private data source is charged. Default: feature sums or
            closed-form teachers, with the settings above.
        student: student with its settings, not fitted yet. Default: `Student(seed=seed)`.
        mechanism: mechanism that draws the noise, see `Labeller`.
        num_queries: number of inputs that teachers label, see `Labeller.label`.
        strategy: name of the strategy that chooses queries, see `Labeller.label`.
        evaluate_epsilon: epsilon of an accuracy estimate on 10 % of the private records. These
            records are held out from training. The ledger is charged both for the labels and for
            the estimate. Each record is used either for the labels or for the estimate, so the
            privacy statement reports the larger of these two epsilons. Default: no estimate.
        seed: seed of the partition, initial weights, shuffling and the choice of queries. It does
            not affect the privacy noise.
        save_labels: whether the labels are saved in the subfolder `released` of the run folder.
        publish: whether the student is exported to `released` with its privacy statement. You can
            also call `Student.publish` later.
        export_formats: additional formats of the exported student, see `Student.publish`.
        holder: name of the data holder in the privacy statement, see `Student.publish`.
        purpose: purpose of the release in the privacy statement, see `Student.publish`.
        run_name: name of the release in the privacy statement, see `Student.publish`.
        verbose: whether progress bars are shown.
        **options: further arguments of `Labeller`, such as `epsilon_budget`, `public_labels` or
            `accept_forecast`.

    Raises:
        ForecastError: if the labels are not expected to be better than guessing, or if private data
            are not expected to improve on public labels, unless `accept_forecast` is set. In this
            case, nothing was charged.
        ValueError: if the arguments contradict each other or the data. In this case, nothing was
            charged.
        BudgetExceeded: if the labels cost more than the remaining budget.
        LedgerError: if the ledger can't be used.
    """
    if not isinstance(data, Data):
        raise ValueError(f"data must be pate_tf.Data, got {type(data).__name__}")
    inspect.signature(Labeller).bind_partial(**options)  # before anything is trained
    if method not in (AUTO, *METHODS):
        raise ValueError(f"method must be {AUTO}, {' or '.join(METHODS)}, got {method!r}")
    if source is not None:
        kinds: dict[str, Any] = {PATE: Teachers, FEATURE_SUMS: FeatureSums}
        expected = kinds.get(method, Teachers | FeatureSums)
        if not isinstance(source, expected):
            name = getattr(expected, "__name__", "Teachers or FeatureSums")
            raise ValueError(
                f"source must be pate_tf.{name} with method {method}, got {type(source).__name__}"
            )
        if isinstance(source, Teachers) and not data.pool:
            raise ValueError("source must be FeatureSums if there are no public inputs")
        if directory is not None and source.directory != pathlib.Path(directory):
            raise ValueError(
                f"directory must be {source.directory}, the folder of `source`, got {directory}"
            )
        if num_teachers is not None or representation is not None:
            raise ValueError("Pass source, or num_teachers and representation, but not both.")
        method = PATE if isinstance(source, Teachers) else FEATURE_SUMS
    names = ("margin", "public_labels")
    of_labels = {name: options.pop(name) for name in names if name in options}
    planned = options.pop("planned_release", None)
    release = ReleaseSettings(
        budget=Budget(
            epsilon=epsilon,
            delta=delta,
            evaluate_epsilon=evaluate_epsilon,
            planned=planned,
            **options,
        ),
        queries=QueryWishes(
            strategy=strategy,
            num_queries=num_queries,
            representation=source_of(representation),
            seed=seed,
        ),
        mechanism=mechanism,
        method=method,
        num_teachers=num_teachers,
        **of_labels,
    )
    run_data = RunData(public=data.public, private=data.private)
    if isinstance(source, Teachers) and source.is_fitted and source.identified.config is None:
        # Teachers from a user's votes or models are not trained here, so they must already protect
        # the unit.
        if data.private.owners is not None and source.unit == "record":
            raise ValueError(
                "source must protect owners, because the records of `data` have owners: pass "
                'unit="owner" to Teachers.from_votes or from_models'
            )
        given = source.identified.source or data.private.source
        run_data = RunData(public=data.public, named_source=given)
    fitted, _ = run(
        run_data,
        RunSettings(
            release=release,
            output=Output(
                folder=None if directory is None else pathlib.Path(directory),
                save_labels=save_labels,
                export_formats=tuple(export_formats),
                holder=holder,
                purpose=purpose,
                run_name=run_name,
            ),
            is_published=publish,
        ),
        source=source,
        student=student or Student(seed=seed, verbose=verbose),
        reporting=reporting(verbose),
    )
    return fitted


class _PateEstimator(BaseEstimator):
    """Base class of `PateClassifier` and `PateRegressor`: settings, `fit`, and checks of inputs.

    The method `_coded` of each subclass converts the labels. `_coded` returns the converted labels
    and further arguments for `Data.from_arrays`.
    """

    _num_fits: ClassVar[int] = 0  # number of fits in this process

    def __init__(
        self,
        *,
        epsilon: float | None = 1.0,
        delta: float | None = None,
        method: str | None = None,
        num_teachers: int = 100,
        teacher: Any = None,
        student: str = "auto",
        student_steps: int | None = None,
        num_queries: int | None = None,
        mechanism: Mechanism | type[Mechanism] | None = None,
        value_range: tuple[Any, Any] | None = None,
        directory: str | os.PathLike[str] | None = None,
        random_state: Any = None,
        insecure_seed: int | None = None,
        accept_forecast: bool = False,
    ) -> None:
        """Stores the settings, which `PateClassifier` describes for both estimators."""
        self.epsilon = epsilon
        self.delta = delta
        self.method = method
        self.num_teachers = num_teachers
        self.teacher = teacher
        self.student = student
        self.student_steps = student_steps
        self.num_queries = num_queries
        self.mechanism = mechanism
        self.value_range = value_range
        self.directory = directory
        self.random_state = random_state
        self.insecure_seed = insecure_seed
        self.accept_forecast = accept_forecast

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Adds the shared settings to the signature of `__init__`, which scikit-learn inspects."""
        super().__init_subclass__(**kwargs)
        function: Any = cls.__init__
        own = inspect.signature(function)
        if "settings" in own.parameters:
            settings = {**inspect.signature(_PateEstimator.__init__).parameters, **own.parameters}
            listed = [each for name, each in settings.items() if name != "settings"]
            function.__signature__ = own.replace(parameters=listed)

    def fit(
        self,
        X: npt.ArrayLike,  # noqa: N803  (scikit-learn's names)
        y: npt.ArrayLike,
        X_public: npt.ArrayLike | None = None,  # noqa: N803
        *,
        owners: npt.ArrayLike | None = None,
    ) -> Self:
        """Releases noisy labels of public inputs, and trains the student on them; returns self.

        Args:
            X: private inputs `[num_records, num_columns]`. SENSITIVE.
            y: classes or numbers of the records, `[num_records]`. SENSITIVE.
            X_public: public inputs `[num_inputs, num_columns]` with the same columns, without
                labels. Default: no public inputs; feature sums then use bins that divide
                `value_range`.
            owners: owner of each record, `[num_records]`. If they are given, the guarantee is for
                owners instead of records.

        Raises:
            ForecastError: if the labels are not expected to be better than guessing, or if private
                data are not expected to improve on public labels, unless `accept_forecast` is set.
                In this case, nothing was charged.
            ValueError: if the arguments contradict the settings (in this case, nothing was
                charged), or if no query got a label.
            LedgerError: if the ledger in `directory` can't be used.
        """
        # The labels are not validated by scikit-learn, whose warnings would reveal something about
        # private labels.
        targets = None if y is None else "no_validation"
        try:
            private = validate_data(self, X, targets, dtype=np.float64, ensure_min_samples=2)
        except ValueError as error:
            if "could not convert" not in str(error):
                raise
            # The message of this error quotes a private value, so it is replaced.
            raise ValueError("X must be numbers. For texts, use Data.from_dataframe.") from None
        if getattr(self, "classes", None) is not None and not hasattr(y, "dtype"):
            y = np.asarray(y, object)  # otherwise, the array's type would depend on private labels
        labels = column_or_1d(y, warn=True)
        checks.shape([len(private)], y=labels)
        targets, target = self._coded(labels)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        public, low, high = self._public(X_public, private.shape[1])
        data = Data.from_arrays(
            np.clip(private, low, high),
            targets,
            np.clip(public, low, high),
            **target,
            value_range=(low.tolist(), high.tolist()),
            owners=owners,
            held_out=0.0,
            kind="tabular",
            name="sklearn",
        )
        with contextlib.ExitStack() as stack:
            directory = self.directory
            if directory is None:
                # Otherwise, a hyperparameter search would warn about each temporary ledger.
                stack.enter_context(warnings.catch_warnings())
                warnings.simplefilter("ignore", LedgerWarning)
                temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="pate-"))
                directory = pathlib.Path(temporary) / "run"
            teacher = self.teacher
            source: Teachers | FeatureSums = FeatureSums(directory=directory, seed=seed)
            by_sums = X_public is None or "target_range" in target
            method = self.method or ("feature_sums" if by_sums else "pate")
            if method != "feature_sums":
                if isinstance(teacher, BaseEstimator):
                    teacher = functools.partial(_unfitted, teacher)
                source = Teachers(
                    teacher, num_teachers=self.num_teachers, directory=directory, seed=seed
                )
            self.fitted_ = fit(
                data,
                epsilon=self.epsilon,
                delta=self.delta,
                method=method,
                source=source,
                student=Student(self.student, steps=self.student_steps, seed=seed),
                mechanism=self.mechanism,
                num_queries=self.num_queries,
                seed=seed,
                insecure_seed=self.insecure_seed,
                accept_forecast=self.accept_forecast,
                acknowledge_reset=self.directory is None,
            )
        self.cost_ = self.fitted_.cost
        type(self)._num_fits += 1
        if self._num_fits == 2:
            warnings.warn(
                f"{type(self).__name__} was fitted twice. k fits on the same records, as in a "
                f"search or a cross-validation, have a total cost of up to k times epsilon "
                f"{self.cost_.epsilon:.4g} at delta {self.cost_.delta:g}.",
                stacklevel=2,
            )
        return self

    def _public(
        self, inputs: npt.ArrayLike | None, num_columns: int
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Returns the public inputs, and the minimum and maximum of each column."""
        public = None if inputs is None else check_array(inputs, dtype=np.float64)
        if public is not None:
            checks.shape(["num_public", num_columns], X_public=public)
        if self.value_range is not None:
            sides = [np.broadcast_to(side, num_columns) for side in self.value_range]
        elif public is not None:
            sides = [public.min(axis=0), public.max(axis=0)]
        else:
            raise ValueError("Pass X_public, or set `value_range` from public knowledge.")
        low, high = (np.asarray(side, np.float64) for side in sides)
        high = np.where(high > low, high, low + 1.0)
        return np.zeros((0, num_columns)) if public is None else public, low, high

    def _inputs(self, inputs: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Checks and clips inputs for a fitted estimator; returns `[num_inputs, num_columns]`."""
        check_is_fitted(self, "fitted_")
        checked = validate_data(self, inputs, reset=False, dtype=np.float64)
        low, high = self.fitted_.labels.pool.dataset.value_range
        return np.clip(checked, np.asarray(low), np.asarray(high))


class PateClassifier(ClassifierMixin, _PateEstimator):
    """A differentially private classifier with scikit-learn's API.

    >>> import numpy as np, pate_tf
    >>> X = np.random.default_rng(0).normal(size=(300, 2))
    >>> classifier = pate_tf.PateClassifier(
    ...     epsilon=50.0, num_teachers=5, teacher="random_forest", student="random_forest",
    ...     classes=[0, 1])
    >>> classifier.fit(X[:200], X[:200, 0] > 0, X_public=X[200:]).predict(X[:3]).shape
    (3,)

    `fit` trains teachers on disjoint parts of the private records (or sums the records' features),
    releases noisy labels of the public inputs within `epsilon`, and trains a student on these
    labels. `predict` uses only the student. Each fit is a separate release, and is differentially
    private at (epsilon, delta) for every record of `X` and `y`, or for every owner. If you fit k
    times on the same records, as in cross-validation or a search, the cost is up to k times as
    large. The guarantee does not cover scores on private records.

    The guarantee assumes that `classes` and `value_range` are public knowledge, and that earlier
    transformers in a pipeline did not learn from private records. To pass `X_public` through the
    transformers of a pipeline, use `Pipeline(..., transform_input=["X_public"])` and
    `set_fit_request(X_public=True)`.

    Attributes:
        classes_: the classes, `[num_classes]`.
        cost_: worst-case cost of the labels, with `epsilon`, `delta`, `unit` and `in_words()`.
        fitted_: result of `pate_tf.fit`, with the student, the labels and their source. With a
            `directory`, `fitted_.student.publish()` exports the student with its privacy statement.
        n_features_in_: number of columns of `X`.
    """

    def __init__(self, *, classes: Sequence[Any] | None = None, **settings: Any) -> None:
        """Stores the settings, which `fit` checks.

        Args:
            classes: all possible labels, from public knowledge. By default, the labels in `y` are
                used; the set of labels then becomes public, and a warning is shown.
            **settings: the settings below, which `PateRegressor` also has.
            epsilon: privacy budget of one fit.
            delta: delta of the guarantee, see `pate_tf.Labeller`.
            method: "pate" for votes of teachers; or "feature_sums" for sums over the records, whose
                features are bins of the columns. Default: "feature_sums" if the target is a number
                or there are no public inputs, otherwise "pate".
            num_teachers: number of teachers of method pate.
            teacher: model that each teacher trains in method pate: an unfitted scikit-learn
                estimator, or a model for `pate_tf.Teachers`. Default: a small network.
            student: kind of student, see `pate_tf.Student`.
            student_steps: training steps of the student. Default: depends on the kind of student.
            num_queries: number of inputs that teachers label in method pate. Default: chosen from
                public values.
            mechanism: mechanism that draws the noise in method pate, see `pate_tf.Labeller`. If you
                pass a mechanism with its noise, also pass `epsilon=None`. Default: chosen from
                public values.
            value_range: minimum and maximum of the columns, from public knowledge. Each is a number
                or an array `[num_columns]`. Other values of `X` are clipped. Default: the range of
                `X_public`.
            directory: permanent run folder with a privacy ledger. A second fit with the same folder
                uses the stored teachers or sums, even if the records differ, and shows a warning.
                Default: a temporary folder for each fit, so that only `cost_` records the cost.
            random_state: seed of the partition, training and the choice of queries. It does not
                affect the privacy noise, which comes from the operating system's entropy.
            insecure_seed: seed of the noise, for tests only: anyone with the seed can subtract the
                noise, so nothing is private.
            accept_forecast: whether to continue despite a bad accuracy forecast, see
                `pate_tf.Labeller`.
        """
        super().__init__(**settings)
        self.classes = classes

    def predict(self, X: npt.ArrayLike) -> npt.NDArray[Any]:  # noqa: N803
        """Returns the predicted class for each input, `[num_inputs]`."""
        winners = self.predict_proba(X).argmax(axis=1)
        return np.asarray(self.classes_[winners])

    def predict_proba(self, X: npt.ArrayLike) -> npt.NDArray[np.float64]:  # noqa: N803
        """Returns class probabilities in the order of `classes_`, `[num_inputs, num_classes]`."""
        inputs = self._inputs(X)
        return np.asarray(self.fitted_.student.predict_proba(inputs), np.float64)

    def _coded(self, labels: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], dict[str, Any]]:
        """Returns the index of each label in `classes_`, and the number of classes."""
        if self.classes is None:
            warnings.warn(
                "classes are taken from y, so their set becomes public. Pass `classes`.",
                stacklevel=3,
            )
            if labels.dtype.kind == "f":
                is_class = np.isfinite(labels) & (np.floor(labels) == labels)
                if not is_class.all():
                    raise ValueError("y must be labels, not continuous targets, NaN or infinity")
        classes = np.unique(labels if self.classes is None else np.asarray(self.classes))
        if len(classes) < 2:
            raise ValueError(f"classes must contain at least two labels, got {len(classes)}")
        places = {label: place for place, label in enumerate(classes.tolist())}
        codes = [places.get(label) for label in labels.tolist()]
        if None in codes:
            raise ValueError("y must only contain labels in `classes`")
        self.classes_ = classes
        return np.array(codes, np.int64), {"num_classes": len(classes)}


class PateRegressor(RegressorMixin, _PateEstimator):
    """A differentially private regressor with scikit-learn's API.

    >>> import pate_tf
    >>> pate_tf.PateRegressor(epsilon=1.0, target_range=(0, 60000)).get_params()["target_range"]
    (0, 60000)

    This estimator is like `PateClassifier`, and has the same guarantee. The difference is that `y`
    contains a number for each record, and `predict` returns numbers in the same unit.

    Attributes:
        cost_: worst-case cost of the release, see `PateClassifier`.
        fitted_: result of `pate_tf.fit`, with the student, the labels and their source.
        n_features_in_: number of columns of `X`.
    """

    def __init__(self, *, target_range: tuple[float, float], **settings: Any) -> None:
        """Stores the settings, which `fit` checks.

        Args:
            target_range: minimum and maximum of `y`, from public knowledge. Other values are
                clipped, with a warning for the data holder.
            **settings: see `PateClassifier`, without `classes`.
        """
        super().__init__(**settings)
        self.target_range = target_range

    def predict(self, X: npt.ArrayLike) -> npt.NDArray[np.float64]:  # noqa: N803
        """Returns the predicted number for each input, `[num_inputs]`."""
        inputs = self._inputs(X)
        return np.asarray(self.fitted_.student.predict(inputs), np.float64)

    def _coded(self, labels: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], dict[str, Any]]:
        """Returns the target numbers unchanged, and their range as an argument of `from_arrays`."""
        return labels, {"target_range": self.target_range}


def _unfitted(teacher: BaseEstimator, _: Dataset) -> BaseEstimator:
    """Returns an unfitted copy of a scikit-learn estimator; called once for each teacher."""
    return clone(teacher)
