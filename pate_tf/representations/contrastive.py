"""Contrastive features: a network trained on a pool without labels.

Chen et al. 2020, "SimCLR", arXiv 2002.05709: the network learns to find, for one of two augmented
copies of an image, the other one among copies of other images.
"""

import dataclasses
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf.core.dataset import Dataset
from pate_tf.core.public import Pool, PoolLabels
from pate_tf.models import catalogue, encoder
from pate_tf.representations.raw import with_norm_one
from pate_tf.students.batches import (
    Batch,
    ShuffledItems,
    augment_strongly,
    derived_seeds,
    outputs,
    step_seeds,
)
from pate_tf.students.kinds import StudentConfig, kind_of
from pate_tf.students.training import TrainingDivergedError

# Two networks of half the steps each err less than one.
NETWORKS = 2
# Chosen by labels of public pools, never by held-out samples (docs/how-to/small_teachers.md):
STEPS, FEWEST_STEPS = 450, 100
PASSES = 64  # over the pool, between these numbers of steps: few images teach no more in more
BATCH_SIZE = 256
LEARNING_RATE = 0.002
TEMPERATURE = 0.2
PROJECTION = (256, 64)  # units of the layers between the features and the loss
MOST_DIRECTIONS = 256  # of a view


def parts(pool: Pool, seed: int) -> list["ContrastivePart"]:
    """Returns a part for each of `NETWORKS`, with initial weights: they err on different inputs."""
    return [ContrastivePart(pool.dataset, each) for each in derived_seeds(seed, NETWORKS)]


class ContrastivePart(encoder.Part):
    """Two views of an image: a network's last hidden layer, and what contrastive learning compares.

    Each along at most `MOST_DIRECTIONS` directions in which the pool's images differ most.
    """

    def __init__(self, dataset: Dataset, seed: int) -> None:
        """Builds a data set's default architecture with weights of a seed."""
        super().__init__()
        network_seed, projection_seed, self._order_seed = derived_seeds(seed, 3)
        network = catalogue.build(catalogue.default_model(dataset), dataset, seed=network_seed)
        self.body = keras.Model(network.inputs, network.layers[-2].output)
        (num_hidden,) = self.body.output_shape[1:]
        self.projection = keras.Sequential([keras.Input((num_hidden,))])
        for place, units in enumerate(PROJECTION, start=1):
            initializer = keras.initializers.GlorotUniform(seed=projection_seed + place)
            activation = "relu" if place < len(PROJECTION) else None
            self.projection.add(
                keras.layers.Dense(units, activation=activation, kernel_initializer=initializer)
            )
        self.along = [
            encoder.Directions(number, MOST_DIRECTIONS) for number in (num_hidden, PROJECTION[-1])
        ]
        self.widths = tuple(directions.width for directions in self.along)

    @property
    def variances(self) -> list[Any]:
        """As of `Directions`."""
        return [directions.variances for directions in self.along]

    @property
    def learnt(self) -> list[Any]:
        """Weights of the network, of the projection, means, directions and variances."""
        names = ("mean", "directions", "variances")
        directions = [getattr(along, name) for name in names for along in self.along]
        return [*self.body.variables, *self.projection.variables, *directions]

    def __call__(self, inputs: tf.Tensor) -> list[tf.Tensor]:
        """Returns both views float32 `[batch, width]`."""
        views = zip(self.along, self._with_norm_one(inputs), strict=True)
        return [along(view) for along, view in views]

    def _with_norm_one(self, inputs: tf.Tensor) -> list[tf.Tensor]:
        hidden = self.body(inputs, training=False)
        projected = self.projection(hidden, training=False)
        return [tf.math.l2_normalize(view, axis=1) for view in (hidden, projected)]

    def train(self, pool: Pool) -> None:
        """Learns from a pool's images, and takes mean and directions from them.

        Raises:
            TrainingDivergedError: if a loss or weight became NaN or infinite.
        """
        dataset, seed = pool.dataset, self._order_seed
        model = ContrastiveModel(self.body, self.projection)
        num_steps = min(STEPS, max(FEWEST_STEPS, PASSES * len(pool) // BATCH_SIZE))
        schedule = keras.optimizers.schedules.CosineDecay(LEARNING_RATE, num_steps)
        model.compile(optimizer=keras.optimizers.Adam(schedule))
        images = ShuffledItems(pool.inputs, batch_size=min(BATCH_SIZE, len(pool)), seed=seed)
        # The changes that two copies may differ by: small shifts keep the label of any image.
        is_unknown = dataset.augmentation == "none"
        changes = dataclasses.replace(dataset, augmentation="shift") if is_unknown else dataset

        def batch_at(step: tf.Tensor) -> Batch:
            (drawn,) = images.at(step)
            drawn = tf.cast(drawn, tf.float32)
            seeds = step_seeds(seed, step, 2)
            return {
                name: augment_strongly(drawn, changes, each)
                for name, each in zip(("first", "second"), seeds, strict=True)
            }

        batches = tf.data.Dataset.range(num_steps).map(
            tf.autograph.experimental.do_not_convert(batch_at), num_parallel_calls=1
        )
        model.fit(batches.prefetch(tf.data.AUTOTUNE), shuffle=False, verbose=0)
        if not all(np.isfinite(weights).all() for weights in model.get_weights()):
            raise TrainingDivergedError(
                "representation contrastive: expected finite weights after training, got others"
            )
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
    """Learns to match two changed copies of every input of a batch.

    A batch is a dictionary: `first` and `second`, float32 `[batch, *input_shape]`, raw.
    """

    def __init__(self, body: keras.Model, projection: keras.Model) -> None:
        """Takes a network from raw inputs to features, and one from these to what is compared."""
        super().__init__()
        self.body = body
        self.projection = projection
        self.tracker = keras.metrics.Mean("loss")
        self.built = True

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Returns what is compared, `[batch, num_dimensions]`."""
        return self.projection(self.body(inputs, training=training), training=training)

    def train_step(self, data: Batch) -> dict[str, Any]:
        """One step."""
        weights = self.trainable_weights
        with tf.GradientTape() as tape:
            copies = self(tf.concat([data["first"], data["second"]], 0), training=True)
            # Mean cross-entropy of finding each input's other copy among all copies.
            directions = tf.math.l2_normalize(copies, axis=1)
            logits = tf.matmul(directions, directions, transpose_b=True) / TEMPERATURE
            num_copies = tf.shape(copies)[0]
            itself = tf.eye(num_copies, dtype=tf.bool)
            logits = tf.where(itself, logits.dtype.min, logits)
            partners = tf.roll(tf.range(num_copies), num_copies // 2, axis=0)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=partners, logits=logits)
            loss = tf.reduce_mean(losses)
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


# Features of a pool from a network that is trained on labels of some of it.
#
# They separate classes that features without labels do not: a seven with a bar from a two.


STUDENT = "consistency"
STUDENT_STEPS = 1_000
PART = 5_000  # inputs whose features are in memory in double precision


def student_features(
    pool: Pool, labels: PoolLabels, seed: int
) -> tuple[keras.Model, npt.NDArray[np.float32]]:
    """Returns a consistency student and its last hidden layer, `[num_inputs, num_features]`.

    It learns from labels of public images that may be partly wrong.

    Raises:
        TrainingDivergedError: if a loss or weight became NaN or infinite.
    """
    defaults = kind_of(STUDENT)
    config = StudentConfig(
        student=STUDENT,
        model=defaults.default_model(pool.dataset),
        max_steps=STUDENT_STEPS,
        batch_size=defaults.batch_size,
        learning_rate=defaults.learning_rate,
        # Another one than those that the features without labels come from.
        seed=derived_seeds(seed, NETWORKS + 1)[-1],
    )
    student = defaults.train(config, labels, pool)
    hidden = keras.Model(student.inputs, student.layers[-2].output)  # before the logits
    parts = range(0, len(pool), PART)
    features = (outputs(hidden, pool.inputs[at : at + PART]).astype(np.float32) for at in parts)
    return student, np.concatenate(
        [with_norm_one(rows.reshape(len(rows), -1)) for rows in features]
    )
