"""The student consistency: a Keras model that also learns from unlabeled, augmented images.

The method is FixMatch (Sohn et al. 2020, arXiv 2001.07685): a confident prediction for a weakly
augmented image becomes the label of a strongly augmented copy. The prediction is computed with
averaged weights (Tarvainen and Valpola 2017, arXiv 1703.01780), because a model with averaged
weights makes fewer errors and needs no gradient.

Some noisy labels are wrong. The generalized cross-entropy (Zhang and Sabuncu 2018, arXiv
1805.07836) ignores a label that the other data contradict. Training starts with cross-entropy,
because a class would be lost if its correct labels were ignored too early. If labels have weights,
training always uses cross-entropy, because a weight is already the confidence in a label.
"""

import math
from typing import Any

import keras
import tensorflow as tf

from pate_tf.core.dataset import Dataset
from pate_tf.core.public import Pool, PoolLabels
from pate_tf.data import preprocessing
from pate_tf.models import architectures
from pate_tf.students import student_training
from pate_tf.students.student_kinds import FitOptions, StudentConfig, StudentKind

UNLABELED_PER_LABEL = 2  # unlabeled inputs in a batch for each labeled input
CONFIDENT = 0.95  # predictions with at least this probability are treated as confident
ROBUSTNESS = 0.7  # q of the generalized cross-entropy: 0 is cross-entropy, 1 the absolute error
MIN_ROBUSTNESS = 1e-3  # replaces q = 0; with it, the formula equals cross-entropy to three digits
WARM_UP_FRACTION = 1 / 3  # first part of the steps, in which q increases to ROBUSTNESS


class ConsistencyStudent(student_training.AveragedStudent):
    """A classifier that learns the labels, and learns to predict the same for augmented images.

    A batch is a dictionary: `labelled`, raw inputs float32 `[batch, *input_shape]`; `labels`, int64
    `[batch]` or weights float32 `[batch, num_classes]`; `unlabelled`, float32 `[unlabeled_batch,
    *input_shape]`; and `changed`, strongly augmented copies of the unlabeled images.
    """

    averaged_steps = 200

    def __init__(
        self, classifier: keras.Model, dataset: Dataset, *, warm_up_steps: int, **kwargs: Any
    ) -> None:
        """Stores the classifier, which must not contain batch normalization.

        The loss on labels has a parameter q, the robustness (see `generalized_cross_entropy`). It
        grows from 0 to its final value during the first `warm_up_steps` steps.
        """
        super().__init__(classifier, dataset, **kwargs)
        self.warm_up_steps = warm_up_steps

    def train_step(self, data: student_training.Batch) -> dict[str, tf.Tensor]:
        """Trains one step on the sum of the label loss, the agreement loss and the regularizers."""
        weights = self.classifier.trainable_weights
        labels = data["labels"]
        inputs = [data["labelled"], data["changed"]]
        sizes = [tf.shape(part)[0] for part in inputs]
        # A weight is the confidence in a class. A robust loss would ignore all weights that are not
        # close to 1, and the student would be less accurate than its labels. The loss on weights is
        # therefore not robust.
        progress = tf.minimum(self.average_age / self.warm_up_steps, 1.0)
        robustness = 0.0 if labels.dtype.is_floating else ROBUSTNESS * progress
        averaged = self.averaged_logits(data["unlabelled"])
        with tf.GradientTape() as tape:
            logits = tf.cast(self.classifier(tf.concat(inputs, 0), training=True), tf.float32)
            labelled_logits, other_logits = tf.split(logits, sizes)
            labelled_loss = generalized_cross_entropy(
                labels, labelled_logits, robustness=robustness
            )
            agreement = agreement_loss(averaged, other_logits)
            regularizers = sum(tf.cast(each, logits.dtype) for each in self.classifier.losses)
            loss = labelled_loss + agreement + regularizers
            replica_loss = student_training.loss_of_replica(loss)
        gradients = tape.gradient(replica_loss, weights)
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return self.step_end(labels, labelled_logits, loss, labelled_loss, agreement)


def generalized_cross_entropy(
    labels: tf.Tensor, logits: tf.Tensor, *, robustness: tf.Tensor | float
) -> tf.Tensor:
    """Returns the mean of (1 - p^q) / q, where p is the label's probability and q the robustness.

    Args:
        labels: int64 `[batch]`, or weights of the classes, float32 `[batch, num_classes]`. With
            weights, the loss is averaged over the classes.
        logits: float32 `[batch, num_classes]`.
        robustness: robustness q, from 0 to 1.
    """
    q = tf.maximum(robustness, MIN_ROBUSTNESS)
    if labels.dtype.is_floating:
        losses = -tf.math.expm1(q * tf.nn.log_softmax(logits)) / q
        return tf.reduce_mean(tf.reduce_sum(labels * losses, axis=1))
    log_likelihood = -tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    return tf.reduce_mean(-tf.math.expm1(q * log_likelihood) / q)


def agreement_loss(logits: tf.Tensor, changed_logits: tf.Tensor) -> tf.Tensor:
    """Returns the cross-entropy between predictions for images and for their augmented copies.

    Only confident predictions contribute. Both arguments have the shape `[batch, num_classes]`. The
    gradient is taken only with respect to `changed_logits`.
    """
    probabilities = tf.stop_gradient(tf.nn.softmax(logits))
    is_confident = tf.cast(tf.reduce_max(probabilities, axis=1) >= CONFIDENT, tf.float32)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
        tf.argmax(probabilities, axis=1), changed_logits
    )
    return tf.reduce_mean(is_confident * losses)


def check_model(model: keras.Model) -> None:
    """Raises ValueError if a model has batch normalization, which augmented images distort."""
    for layer in getattr(model, "layers", []):
        if isinstance(layer, keras.layers.BatchNormalization):
            raise ValueError(
                f"student consistency: the model has batch normalization ({layer.name}); use "
                f"GroupNormalization instead"
            )
        check_model(layer)


def fit(
    config: StudentConfig, released: PoolLabels, pool: Pool, options: FitOptions
) -> keras.Model:
    """Trains a Keras model on labels and the whole pool; see `StudentKind.train`."""
    dataset = pool.dataset
    classifier = student_training.network_of(config, dataset)
    check_model(classifier)
    student = ConsistencyStudent(
        classifier, dataset, warm_up_steps=math.ceil(WARM_UP_FRACTION * config.max_steps)
    )
    schedule = keras.optimizers.schedules.CosineDecay(config.learning_rate, config.max_steps)
    student.compile(optimizer=keras.optimizers.Adam(schedule))
    student.optimizer.build(classifier.trainable_weights)

    def change(
        step: tf.Tensor, inputs: tf.Tensor, labels: tf.Tensor, others: tf.Tensor
    ) -> student_training.Batch:
        labelled_seed, weak_seed, strong_seed = student_training.step_seeds(config.seed, step, 3)
        return {
            "labelled": preprocessing.augment(inputs, dataset, labelled_seed),
            "labels": labels,
            "unlabelled": preprocessing.augment(others, dataset, weak_seed),
            "changed": student_training.augment_strongly(others, dataset, strong_seed),
        }

    return student.train_on_pool(
        change,
        config,
        released,
        pool,
        options,
        num_unlabelled=UNLABELED_PER_LABEL * config.batch_size,
    )


def check(config: StudentConfig, dataset: Dataset) -> None:
    """Raises ValueError unless inputs can be augmented and the model has no batch normalization."""
    if dataset.augmentation == "none":
        raise ValueError(f"student consistency: {dataset.name} has no augmentation; use supervised")
    model = student_training.network_of(config, dataset)
    check_model(model)
    architectures.check_draws(model, training=False)


KIND = StudentKind(
    name="consistency",
    fit=fit,
    check=check,
    # The settings of this student were tuned with wide_cnn, so it is the default for images.
    default_model=lambda dataset: "wide_cnn" if dataset.kind == "image" else "mlp",
    max_steps=2_000,
)
