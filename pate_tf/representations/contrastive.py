"""Contrastive features of images: networks are trained on a pool without labels.

The method is SimCLR (Chen et al. 2020, arXiv 2002.05709). A network gets two augmented copies of
each image, and learns to find the second copy of an image among the copies of all images.
"""

import dataclasses
import itertools
import warnings
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf.core.dataset import Dataset
from pate_tf.core.public import Pool, PoolLabels
from pate_tf.models import architectures, encoder
from pate_tf.representations.raw import with_norm_one
from pate_tf.students.student_kinds import StudentSettings, complete, kind_of
from pate_tf.students.student_training import (
    ShuffledItems,
    TrainingDivergedError,
    augment_strongly,
    derived_seeds,
    outputs,
    shown_on_clock,
    step_seeds,
)

# Two networks, each trained for half of the steps, make fewer errors than one network.
NETWORKS = 2
# These values were chosen with labels of public pools, never with held-out samples
# (docs/how-to/small_teachers.md).
STEPS = 450
MIN_STEPS = 100
PASSES = 64  # passes over the pool, within the limits above; more passes do not help for few images
BATCH_SIZE = 256
LEARNING_RATE = 0.002
TEMPERATURE = 0.2
PROJECTION = (256, 64)  # numbers of units of the layers between the features and the loss
# A step takes about a second on two processors with 48x48 pixels, so 450 steps take 8 minutes. The
# time is proportional to the number of pixels.
MAX_QUICK_PIXELS = 48 * 48
SLOW = "Large images take long to train. `image_size=32` or `representation=patches` is faster."
MAX_DIRECTIONS = 256  # maximum number of principal directions that are kept


class ContrastivePart(encoder.Part):
    """Contrastive features: outputs of the last hidden layer and of the projection layers.

    Each network provides two views, one for each of these outputs. A view is projected onto at most
    `MAX_DIRECTIONS` principal directions of the pool. The networks have different initial weights,
    so that they make different errors.
    """

    def __init__(self, dataset: Dataset, seed: int) -> None:
        """Builds the data set's default networks, with initial weights from `seed`."""
        super().__init__()
        self._order_seed, *seeds = derived_seeds(seed, 1 + 2 * NETWORKS)
        self.networks = list[tuple[keras.Model, keras.Model]]()
        for network_seed, projection_seed in zip(seeds[::2], seeds[1::2], strict=True):
            network = architectures.build(
                architectures.default_model(dataset), dataset, seed=network_seed
            )
            body = keras.Model(network.inputs, network.layers[-2].output)
            projection = keras.Sequential([keras.Input(body.output_shape[1:])])
            for place, units in enumerate(PROJECTION, start=1):
                initializer = keras.initializers.GlorotUniform(seed=projection_seed + place)
                activation = "relu" if place < len(PROJECTION) else None
                projection.add(
                    keras.layers.Dense(units, activation=activation, kernel_initializer=initializer)
                )
            self.networks.append((body, projection))
        (num_hidden,) = self.networks[0][0].output_shape[1:]
        self.along = [
            encoder.Directions(number, MAX_DIRECTIONS)
            for number in (num_hidden, PROJECTION[-1]) * NETWORKS
        ]
        self.widths = tuple(along.width for along in self.along)
        self.variances = [along.variances for along in self.along]
        models = [model for network in self.networks for model in network]
        of_networks = [variable for model in models for variable in model.variables]
        of_pool = zip(*(along.learnt for along in self.along), strict=True)
        self.learnt = [*of_networks, *itertools.chain.from_iterable(of_pool)]

    def __call__(self, inputs: tf.Tensor) -> list[tf.Tensor]:
        """Maps raw inputs to the views, each float32 `[batch, width]`."""
        views = zip(self.along, self._with_norm_one(inputs), strict=True)
        return [along(view) for along, view in views]

    def _with_norm_one(self, inputs: tf.Tensor) -> list[tf.Tensor]:
        views = list[tf.Tensor]()
        for body, projection in self.networks:
            hidden = body(inputs, training=False)
            views += [hidden, projection(hidden, training=False)]
        return [tf.math.l2_normalize(view, axis=1) for view in views]

    def train(self, pool: Pool) -> None:
        """Trains the networks on a pool's images, then computes means and principal directions.

        Raises:
            TrainingDivergedError: if a loss or weight became NaN or infinite.
        """
        dataset = pool.dataset
        if np.prod(dataset.input_shape[:2]) > MAX_QUICK_PIXELS:
            warnings.warn(SLOW, stacklevel=2)
        seed = self._order_seed
        model = ContrastiveModel(self.networks)
        num_steps = min(STEPS, max(MIN_STEPS, PASSES * len(pool) // BATCH_SIZE))
        schedule = keras.optimizers.schedules.CosineDecay(LEARNING_RATE, num_steps)
        model.compile(optimizer=keras.optimizers.Adam(schedule))
        # Creates the variables of the optimizer now, because otherwise the first step would be
        # traced twice.
        model.optimizer.build(model.trainable_weights)
        images = ShuffledItems(pool.inputs, batch_size=min(BATCH_SIZE, len(pool)), seed=seed)
        # Small shifts do not change the label of any image, so the copies are shifted even if the
        # data set declares no augmentation.
        is_unknown = dataset.augmentation == "none"
        changes = dataclasses.replace(dataset, augmentation="shift") if is_unknown else dataset

        def batch_at(step: tf.Tensor) -> tf.Tensor:
            (drawn,) = images.at(step)
            drawn = tf.cast(drawn, tf.float32)
            seeds = step_seeds(seed, step, 2)
            return tf.concat([augment_strongly(drawn, changes, each) for each in seeds], axis=0)

        batches = tf.data.Dataset.range(num_steps).map(
            tf.autograph.experimental.do_not_convert(batch_at), num_parallel_calls=1
        )
        batches = batches.prefetch(tf.data.AUTOTUNE)
        model.fit(batches, shuffle=False, verbose=0, callbacks=[shown_on_clock(num_steps)])
        if not all(np.isfinite(weights).all() for weights in model.get_weights()):
            raise TrainingDivergedError("representation contrastive: training diverged")
        lengths = [int(along.mean.shape[0]) for along in self.along]
        sums = [np.zeros(length) for length in lengths]
        squares = [np.zeros((length, length)) for length in lengths]
        signature = [tf.TensorSpec([None, *dataset.input_shape], tf.float32)]
        views_of = tf.function(self._with_norm_one, signature, autograph=False)
        for start in range(0, len(pool), encoder.BATCH):
            inputs = tf.constant(pool.inputs[start : start + encoder.BATCH], tf.float32)
            for total, square, view in zip(sums, squares, views_of(inputs), strict=True):
                rows = view.numpy().astype(np.float64)
                total += rows.sum(axis=0)
                square += rows.T @ rows
        for along, total, square in zip(self.along, sums, squares, strict=True):
            mean = total / len(pool)
            along.find(mean, square / len(pool) - np.outer(mean, mean))


class ContrastiveModel(keras.Model):
    """Trains several networks to match two augmented copies of every input in a batch.

    A batch consists of unscaled inputs, float32 `[2 * batch, *input_shape]`: the first copies of
    all inputs, then the second copies.
    """

    def __init__(self, networks: Sequence[tuple[keras.Model, keras.Model]]) -> None:
        """Stores pairs of networks: the first returns features, the second projects them."""
        super().__init__()
        self.networks = list(networks)
        self.tracker = keras.metrics.Mean("loss")
        self.built = True

    def train_step(self, data: tf.Tensor) -> dict[str, Any]:
        """Trains all networks for one step."""
        weights = self.trainable_weights
        num_copies = tf.shape(data)[0]
        itself = tf.eye(num_copies, dtype=tf.bool)
        partners = tf.roll(tf.range(num_copies), num_copies // 2, axis=0)
        with tf.GradientTape() as tape:
            loss = 0.0
            for body, projection in self.networks:
                copies = projection(body(data, training=True), training=True)
                # The loss is the mean cross-entropy of finding the other copy of each input among
                # all copies.
                directions = tf.math.l2_normalize(copies, axis=1)
                logits = tf.matmul(directions, directions, transpose_b=True) / TEMPERATURE
                logits = tf.where(itself, logits.dtype.min, logits)
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(partners, logits)
                loss += tf.reduce_mean(losses)
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


# Supervised features of a pool: a network is trained on some labels of the pool.
#
# These features separate some inputs that unsupervised features can't separate, such as a barred
# seven and a two.


STUDENT = "consistency"
STUDENT_STEPS = 1_000
CHUNK = 5_000  # maximum number of inputs with features in double precision in memory


def student_features(pool: Pool, labels: PoolLabels, seed: int) -> npt.NDArray[np.float32]:
    """Trains a student on a pool; returns its last hidden layer, `[num_inputs, num_features]`.

    The student is of the kind `STUDENT`. It learns from labels of public images, some of which may
    be wrong.

    Raises:
        TrainingDivergedError: if a loss or weight became NaN or infinite.
    """
    # This seed differs from the seeds of the unsupervised features.
    own_seed = derived_seeds(seed, 2 + 2 * NETWORKS)[-1]
    settings = StudentSettings(student=STUDENT, max_steps=STUDENT_STEPS, seed=own_seed)
    config = complete(settings, pool.dataset)
    shown = shown_on_clock(STUDENT_STEPS)
    student = kind_of(STUDENT).train(config, labels, pool, callbacks=[shown])
    hidden = keras.Model(student.inputs, student.layers[-2].output)  # the layer before the logits
    parts = range(0, len(pool), CHUNK)
    features = (outputs(hidden, pool.inputs[at : at + CHUNK]).astype(np.float32) for at in parts)
    return np.concatenate([with_norm_one(rows.reshape(len(rows), -1)) for rows in features])
