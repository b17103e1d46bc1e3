"""Requirements on every student, and on every student trained by `fit`; run by
`test_contract.py`.
"""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from labels_for_tests import released_labels

from pate_tf.accounting.charge import ReleasedLabels
from pate_tf.core import artifacts
from pate_tf.core.public import Pool, PoolLabels, PublicExamples
from pate_tf.serving import export
from pate_tf.serving.served import ServedStudent
from pate_tf.students import student_training
from pate_tf.students.student_kinds import StudentConfig, find_student

QUERIES = 60


class Killed(BaseException):
    """Simulates a kill from inside the process."""


class KillAfter(keras.callbacks.Callback):
    """Ends a run at the beginning of an epoch."""

    def __init__(self, epoch: int) -> None:
        super().__init__()
        self.epoch = epoch

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.epoch:
            raise Killed


class Poison(KillAfter):
    """Makes a weight NaN in an epoch."""

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.epoch:
            weight = self.model.trainable_weights[0]
            weight.assign(weight * np.nan)


class StudentContract:
    """A subclass names a student, its training data and a configuration that trains quickly."""

    config: StudentConfig
    public: PublicExamples
    pool_size = 400
    better_than = 0.5  # a constant guess is correct on about 12 % of the digits

    def train(self, labels=None, pool=None, **kwargs):
        changes = {key: kwargs.pop(key) for key in ("max_steps",) if key in kwargs}
        config = dataclasses.replace(self.config, **changes)
        pool = pool or self.pool()
        student = find_student(config, pool.dataset)
        return student.train(config, labels or self.labels(), pool, **kwargs)

    def pool(self) -> Pool:
        return self.public.split(self.pool_size).pool

    def labels(self) -> ReleasedLabels:
        indices = np.arange(QUERIES)
        return released_labels(
            indices, self.public.labels[indices], self.public.dataset.num_classes
        )

    def classify(self, model):
        held_out = self.public.split(self.pool_size).held_out
        return np.argmax(model(tf.constant(held_out.inputs, tf.float32)), axis=1), held_out.labels

    @pytest.fixture(scope="class")
    def finished(self, tmp_path_factory):
        folder = tmp_path_factory.mktemp("finished")
        return self.train(folder=folder), folder

    def test_it_learns(self, finished):
        given, truth = self.classify(finished[0])
        assert (given == truth).mean() > self.better_than

    def test_it_is_exported_and_answers_raw_inputs_as_before(self, finished, tmp_path):
        model, dataset = finished[0], self.public.dataset
        folder = export.export_student(model, dataset, tmp_path / "student", {})
        held_out = self.public.split(self.pool_size).held_out
        served = ServedStudent(folder).answer(held_out.inputs)[0]
        # Batches of another size round differently. The labels are equal except for exact ties.
        assert (served == self.classify(model)[0]).mean() > 0.99

    def test_one_label_is_enough_also_in_a_strategy_scope(self):
        one = released_labels([7], [1], self.public.dataset.num_classes)
        with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
            model = self.train(one, max_steps=2)
        assert all(np.isfinite(weight).all() for weight in model.variables)

    def test_no_labels_and_those_of_others_are_refused(self):
        num_classes = self.public.dataset.num_classes
        with pytest.raises(ValueError, match="student needs at least 1 released label"):
            self.train(released_labels([], [], num_classes))
        with pytest.raises(ValueError, match="labels don't belong to this pool of 400"):
            self.train(released_labels([400], [1], num_classes))
        with pytest.raises(ValueError, match="labels must have"):
            self.train(released_labels([0], [1], num_classes + 1))

    def test_it_learns_from_weighted_labels(self):
        """A third of the weight is on another class. A forest uses the class with the largest
        weight.
        """
        truth, num_classes = self.public.labels[:QUERIES], self.public.dataset.num_classes
        weights = (2 * np.eye(num_classes)[truth] + np.eye(num_classes)[truth - 1]) / 3
        labels = PoolLabels(
            query_indices=np.arange(QUERIES),
            labels=truth,
            num_classes=num_classes,
            weights=weights.astype(np.float32),
        )
        given, right = self.classify(self.train(labels))
        assert (given == right).mean() > self.better_than


class FittedStudentContract(StudentContract):
    """Additional requirements on every student that is trained by `fit`."""

    def test_it_is_the_weights_that_it_learns(self):
        """Uses labels of the wrong class with weights of the correct class."""
        truth, num_classes = self.public.labels[:QUERIES], self.public.dataset.num_classes
        labels = PoolLabels(
            query_indices=np.arange(QUERIES),
            labels=(truth + 1) % num_classes,
            num_classes=num_classes,
            weights=np.eye(num_classes, dtype=np.float32)[truth],
        )
        given, right = self.classify(self.train(labels))
        assert (given == right).mean() > self.better_than

    def test_it_leaves_logs_and_nothing_unfinished(self, finished):
        folder = finished[1]
        assert [path.name for path in folder.iterdir()] == ["logs"]
        assert list((folder / "logs" / "student").rglob("events.out.tfevents*"))

    def test_a_stopped_run_goes_on_to_the_same_end(self, tmp_path, monkeypatch):
        monkeypatch.setattr(student_training, "STEPS_PER_EPOCH", 1)
        epochs = []
        count = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, _: epochs.append(epoch))
        whole = self.train(max_steps=3).get_weights()
        with pytest.raises(Killed):
            self.train(max_steps=3, folder=tmp_path, callbacks=[KillAfter(2)])
        resumed = self.train(max_steps=3, folder=tmp_path, callbacks=[count]).get_weights()
        assert epochs == [2]
        # Training is exact, so the same seed also gives the same weights.
        for one, again in zip(whole, resumed, strict=True):
            np.testing.assert_array_equal(one, again)

    def test_nan_stops_the_run_and_the_last_good_weights_stay(self, tmp_path, monkeypatch):
        monkeypatch.setattr(student_training, "STEPS_PER_EPOCH", 1)
        with pytest.raises(student_training.TrainingDivergedError, match="diverged") as caught:
            self.train(max_steps=3, folder=tmp_path, callbacks=[Poison(1)])
        assert "\n" not in str(caught.value)
        (kept,) = tmp_path.glob("unfinished_student/*.npz")
        assert str(kept) in str(caught.value)
        arrays = artifacts.read_arrays(kept)
        assert arrays["epochs"] == 1
        assert all(np.isfinite(array).all() for array in arrays.values())
