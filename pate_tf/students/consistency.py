"""The consistency student: its label for an input must withstand changes of that input.

For images that may be changed without changing their label, FixMatch (Sohn et al. 2020, arXiv
2001.07685): a confident answer on a weakly changed image is the label of a strongly changed one.
The answer is that of the averaged weights (Tarvainen and Valpola 2017, arXiv 1703.01780), which err
less and cost no gradient.
For other inputs, virtual adversarial training with entropy minimisation (Miyato et al. 2018, arXiv
1704.03976): the answer must withstand the small change that would move it most.

The released labels are partly wrong, hence the generalised cross-entropy (Zhang and Sabuncu 2018,
arXiv 1805.07836), which lets go of a label that the rest of the data contradicts. It begins as
cross-entropy: let go of too early, right labels of a class take the class with them. Labels with
weights keep cross-entropy: they say themselves how sure they are.
"""

import math
import pathlib
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pate_tf.core.dataset import Dataset
from pate_tf.core.public import Pool, PoolLabels
from pate_tf.data import augmentation
from pate_tf.models import catalogue, fingerprint
from pate_tf.students import training
from pate_tf.students.batches import Batch, ShuffledItems, derived_seeds, step_seeds
from pate_tf.students.config import StudentConfig
from pate_tf.students.strong_augmentation import augment_strongly
from pate_tf.students.training import AveragedStudent, replica_share

UNLABELLED_A_LABEL = 2  # unlabelled inputs in a batch for each labelled one
CONFIDENT = 0.95
ROBUSTNESS = 0.7  # q of the generalised cross-entropy: 0 is cross-entropy, 1 the absolute error
SMALLEST_ROBUSTNESS = 1e-3  # where the formula for q is cross-entropy to three digits
WARM_UP_SHARE = 1 / 3  # of the steps, in which q grows to its full size
ADVERSARIAL_REACH = 0.1  # root mean square of the change, as a share of a feature's range
PROBE = 1e-3  # of the same unit: where the most adversarial direction is measured


@keras.saving.register_keras_serializable("pate_tf")
class ConsistencyStudent(AveragedStudent):
    """A classifier with a loss on labels and one on agreement with itself.

    A batch is a dictionary: `labelled` float32 `[batch, *input_shape]` raw, `labels` int64
    `[batch]` or weights float32 `[batch, num_classes]`, `unlabelled` float32
    `[unlabelled_batch, *input_shape]`, and of the same shape `changed`: the same images strongly
    changed, or directions to look for adversarial changes in.
    """

    averaged_steps = 200

    def __init__(
        self, classifier: keras.Model, dataset: Dataset, *, warm_up_steps: int, **kwargs: Any
    ) -> None:
        """Takes over a classifier.

        Args:
          classifier: raw inputs to logits, without batch statistics.
          dataset: what it is for; says which kind of agreement is asked for.
          warm_up_steps: steps until the loss on labels has its full robustness.
          **kwargs: of `keras.Model`.
        """
        super().__init__(classifier, dataset, **kwargs)
        self.warm_up_steps = warm_up_steps
        self.trackers = [
            keras.metrics.Mean(name) for name in ("loss", "labelled_loss", "unlabelled_loss")
        ]

    def train_step(self, data: Batch) -> dict[str, tf.Tensor]:
        """One step on both losses."""
        weights = self.classifier.trainable_weights
        with tf.GradientTape() as tape:
            labelled_loss, unlabelled_loss, own_loss = self._loss_parts(data)
            loss = labelled_loss + unlabelled_loss + own_loss
            share = replica_share(loss)
        self.optimizer.apply_gradients(zip(tape.gradient(share, weights), weights, strict=True))
        self.update_average()
        values = (loss, labelled_loss, unlabelled_loss)
        for tracker, value in zip(self.trackers, values, strict=True):
            tracker.update_state(value)
        return {tracker.name: tracker.result() for tracker in self.trackers}

    def _loss_parts(self, data: Batch) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """On labels, of agreement, and the classifier's own: regularizers, and what layers add."""
        labelled, unlabelled, changed = (data[key] for key in ("labelled", "unlabelled", "changed"))
        by_augmentation = learns_by_augmentation(self.dataset)
        inputs = [labelled, changed if by_augmentation else unlabelled]
        logits = self.classifier(tf.concat(inputs, 0), training=True)
        # Of this call: those that look for adversarial changes have losses of activities too.
        own_loss = sum(tf.cast(each, logits.dtype) for each in self.classifier.losses)
        labelled_logits, other_logits = tf.split(logits, [tf.shape(part)[0] for part in inputs])
        share = tf.minimum(self.average_age / self.warm_up_steps, 1.0)
        # Weights say themselves how sure a label is; robust to them, a student would let go of
        # whatever is not sure, and end below its labels.
        robustness = 0.0 if data["labels"].dtype.is_floating else ROBUSTNESS * share
        labelled_loss = generalized_cross_entropy(
            data["labels"], labelled_logits, robustness=robustness
        )
        if by_augmentation:
            agreement = agreement_loss(self.averaged_logits(unlabelled), other_logits)
            return labelled_loss, agreement, own_loss
        adversarial = self._adversarial_loss(unlabelled, changed, other_logits)
        # At full weight from the first step on, one class would win everything.
        return labelled_loss, share * (adversarial + mean_entropy(other_logits)), own_loss

    def get_config(self) -> dict[str, Any]:
        """Returns what `from_config` rebuilds the student from, as JSON values."""
        return {**super().get_config(), "warm_up_steps": self.warm_up_steps}

    def _adversarial_loss(
        self, inputs: tf.Tensor, directions: tf.Tensor, logits: tf.Tensor
    ) -> tf.Tensor:
        """Divergence of the answer under the change that moves it most, found in one power step."""
        low, high = (np.asarray(values, np.float32) for values in self.dataset.value_range)
        logits = tf.stop_gradient(logits)
        probe = PROBE * _unit(directions)
        with tf.GradientTape() as tape:
            tape.watch(probe)
            changed = self.classifier(inputs + probe * (high - low), training=True)
            divergence = mean_divergence(logits, changed)
        # Zero where inputs are whole numbers that an embedding looks up.
        gradient = tape.gradient(divergence, probe, unconnected_gradients="zero")
        change = ADVERSARIAL_REACH * _unit(tf.stop_gradient(gradient))
        changed = self.classifier(inputs + change * (high - low), training=True)
        return mean_divergence(logits, changed)


def learns_by_augmentation(dataset: Dataset) -> bool:
    """Whether inputs can be changed without changing their label."""
    return dataset.augmentation != "none"


def generalized_cross_entropy(
    labels: tf.Tensor, logits: tf.Tensor, *, robustness: tf.Tensor | float
) -> tf.Tensor:
    """Mean of (1 - p^q) / q, p being the probability of the label.

    Args:
      labels: int64 `[batch]`, or weights of the classes, float32 `[batch, num_classes]`; then the
        mean over classes of the loss of each.
      logits: `[batch, num_classes]`.
      robustness: q, from 0 (cross-entropy) to 1.
    """
    q = tf.maximum(robustness, SMALLEST_ROBUSTNESS)
    if labels.dtype.is_floating:
        losses = -tf.math.expm1(q * tf.nn.log_softmax(logits)) / q
        return tf.reduce_mean(tf.reduce_sum(labels * losses, axis=1))
    log_likelihood = -tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    return tf.reduce_mean(-tf.math.expm1(q * log_likelihood) / q)


def agreement_loss(logits: tf.Tensor, changed_logits: tf.Tensor) -> tf.Tensor:
    """Cross-entropy of answers on changed images with the confident ones on the images.

    Args:
      logits: `[batch, num_classes]` on the images; no gradient flows into them.
      changed_logits: `[batch, num_classes]` on the same images, changed.
    """
    probabilities = tf.stop_gradient(tf.nn.softmax(logits))
    is_confident = tf.cast(tf.reduce_max(probabilities, axis=1) >= CONFIDENT, tf.float32)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
        tf.argmax(probabilities, axis=1), changed_logits
    )
    return tf.reduce_mean(is_confident * losses)


def mean_divergence(logits: tf.Tensor, other_logits: tf.Tensor) -> tf.Tensor:
    """Mean Kullback-Leibler divergence in nats of two laws given by logits `[batch, k]`."""
    difference = tf.nn.log_softmax(logits) - tf.nn.log_softmax(other_logits)
    return tf.reduce_mean(tf.reduce_sum(tf.nn.softmax(logits) * difference, axis=1))


def mean_entropy(logits: tf.Tensor) -> tf.Tensor:
    """Mean entropy in nats of the laws given by logits `[batch, k]`."""
    summands = tf.nn.softmax(logits) * tf.nn.log_softmax(logits)
    return -tf.reduce_mean(tf.reduce_sum(summands, axis=1))


def _unit(directions: tf.Tensor) -> tf.Tensor:
    """Scales each row of `[batch, ...]` to a root mean square of 1; zero stays zero."""
    axes = list(range(1, len(directions.shape)))
    largest = tf.reduce_max(tf.abs(directions), axis=axes, keepdims=True)
    # Gradients near zero would vanish when squared.
    scaled = tf.math.divide_no_nan(directions, largest)
    square = tf.reduce_mean(tf.square(scaled), axis=axes, keepdims=True)
    return tf.math.divide_no_nan(scaled, tf.sqrt(square))


def check_model(model: keras.Model) -> None:
    """Checks that a model has no batch statistics: changed inputs would bend them.

    Raises:
      ValueError: if it has a batch normalisation.
    """
    for layer in getattr(model, "layers", []):
        if isinstance(layer, keras.layers.BatchNormalization):
            raise ValueError(
                f"student consistency: expected a model without batch statistics, got "
                f"{layer.name} in it; take GroupNormalization"
            )
        check_model(layer)


def train_consistency(
    config: StudentConfig,
    released: PoolLabels,
    pool: Pool,
    *,
    folder: pathlib.Path | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    show_progress: bool = False,
) -> keras.Model:
    """Trains a Keras model on labels and the whole pool, as a `Trainer` does.

    Returns:
      The model with averaged weights, from raw inputs to logits `[batch, num_classes]`.

    Raises:
      ValueError: if there is no label, the labels do not belong to this pool, or the model has
        batch statistics.
      TrainingDivergedError: if a loss or weight became NaN or infinite.
    """
    dataset = pool.dataset
    released.check_pool(pool)
    classifier = catalogue.build(config.model, dataset, seed=config.seed)
    check_model(classifier)
    student = ConsistencyStudent(
        classifier, dataset, warm_up_steps=math.ceil(WARM_UP_SHARE * config.max_steps)
    )
    schedule = keras.optimizers.schedules.CosineDecay(config.learning_rate, config.max_steps)
    student.compile(optimizer=keras.optimizers.Adam(schedule))
    student.optimizer.build(classifier.trainable_weights)
    order_seed, labels_seed = derived_seeds(config.seed, 2)
    unlabelled = ShuffledItems(
        pool.inputs, batch_size=UNLABELLED_A_LABEL * config.batch_size, seed=order_seed
    )
    labelled = ShuffledItems(
        pool.inputs[released.query_indices],
        released.targets,
        batch_size=config.batch_size,
        seed=labels_seed,
    )

    def batch_at(step: tf.Tensor) -> Batch:
        inputs, labels = labelled.at(step)
        (others,) = unlabelled.at(step)
        inputs, others = tf.cast(inputs, tf.float32), tf.cast(others, tf.float32)
        labelled_seed, weak_seed, strong_seed = step_seeds(config.seed, step, 3)
        if learns_by_augmentation(dataset):
            changed = augment_strongly(others, dataset, strong_seed)
        else:
            changed = tf.random.stateless_normal(tf.shape(others), strong_seed)
        return {
            "labelled": augmentation.augment(inputs, dataset, labelled_seed),
            "labels": labels,
            "unlabelled": augmentation.augment(others, dataset, weak_seed),
            "changed": changed,
        }

    training.fit_student(
        student,
        batch_at,
        state=[*student.variables, *student.optimizer.variables],
        config=config,
        digest=training.run_digest(
            config,
            released,
            pool,
            model=fingerprint.architecture_of(config.model, pool.dataset),
        ),
        folder=folder,
        callbacks=callbacks,
        show_progress=show_progress,
    )
    return student.averaged_classifier()
