"""Features of a pool that are learnt without labels: inputs that look alike lie together.

Contrastive learning (Chen et al. 2020, "SimCLR", arXiv 2002.05709): a network learns to tell from
two changed copies of an image, among the copies of other images, that they belong together.
"""

import functools
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pate_tf.models import catalogue
from pate_tf.records import Pool
from pate_tf.students import training
from pate_tf.students.batches import Batch, ShuffledItems, derived_seeds, step_seeds
from pate_tf.students.config import StudentConfig
from pate_tf.students.consistency import learns_by_augmentation
from pate_tf.students.outputs import FloatArray, outputs
from pate_tf.students.strong_augmentation import augment_strongly

# Two networks of half the steps each err less than one.
NETWORKS = 2
STEPS = 450
BATCH_SIZE = 256
LEARNING_RATE = 0.002
TEMPERATURE = 0.2
PROJECTION = (256, 64)  # units of the layers between the features and the loss


@functools.lru_cache(maxsize=1)  # choosing queries and inferring labels ask for the same ones
def pool_features(pool: Pool, seed: int) -> tuple[FloatArray, ...]:
    """Returns views of the pool: feature vectors of length 1, each `[num_inputs, num_features]`.

    For images that may be changed without changing their label: the last hidden layer of the data
    set's default architecture, after contrastive learning, and what that learning compares, of
    `NETWORKS` networks: they err about different inputs. For other inputs: the inputs themselves,
    each feature scaled by its range.

    Args:
      pool: public inputs `[num_inputs, *input_shape]`.
      seed: fixes initial weights, shuffling and changes.
    """
    dataset = pool.dataset
    if learns_by_augmentation(dataset):
        views = []
        for network_seed in derived_seeds(seed, NETWORKS):
            model = _learn(pool, network_seed)
            hidden = outputs(model.body, pool.inputs)
            views += [of_length_one(hidden), of_length_one(outputs(model.projection, hidden))]
        return tuple(views)
    low, high = (np.asarray(values, np.float64) for values in dataset.value_range)
    return (of_length_one((pool.inputs - low) / (high - low)),)


def of_length_one(features: FloatArray) -> FloatArray:
    """Flattens features `[num_inputs, ...]` and divides each input's by their length."""
    features = features.reshape(len(features), -1)
    length = np.linalg.norm(features, axis=1, keepdims=True)
    return features / np.maximum(length, np.finfo(np.float64).tiny)


class ContrastiveModel(keras.Model):
    """Learns to match two changed copies of every input of a batch.

    A batch is a dictionary: `one` and `other`, float32 `[batch, *input_shape]`, raw.
    """

    def __init__(self, body: keras.Model, projection: keras.Model) -> None:
        """Takes over two networks.

        Args:
          body: from raw inputs to features.
          projection: from features to what is compared.
        """
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
            copies = self(tf.concat([data["one"], data["other"]], 0), training=True)
            loss = contrastive_loss(*tf.split(copies, 2))
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


def contrastive_loss(places: tf.Tensor, other_places: tf.Tensor) -> tf.Tensor:
    """Mean cross-entropy, in nats, of finding each input's other copy among all copies.

    Args:
      places: of one copy of each input, `[batch, num_dimensions]`.
      other_places: of the other, in the same order.
    """
    directions = tf.math.l2_normalize(tf.concat([places, other_places], 0), axis=1)
    logits = tf.matmul(directions, directions, transpose_b=True) / TEMPERATURE
    num_places = tf.shape(places)[0]
    itself = tf.eye(2 * num_places, dtype=tf.bool)
    logits = tf.where(itself, logits.dtype.min, logits)
    partners = tf.roll(tf.range(2 * num_places), num_places, axis=0)
    return tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=partners, logits=logits)
    )


def _learn(pool: Pool, seed: int) -> ContrastiveModel:
    dataset = pool.dataset
    network_seed, projection_seed, order_seed = derived_seeds(seed, 3)
    config = StudentConfig(
        model=catalogue.default_model(dataset),
        max_steps=STEPS,
        batch_size=min(BATCH_SIZE, len(pool)),
        learning_rate=LEARNING_RATE,
        seed=seed,
    )
    network = catalogue.build(config.model, dataset, seed=network_seed)
    body = keras.Model(network.inputs, network.layers[-2].output)
    projection = keras.Sequential([keras.Input(body.output_shape[1:])])
    for place, units in enumerate(PROJECTION, start=1):
        initializer = keras.initializers.GlorotUniform(seed=projection_seed + place)
        activation = "relu" if place < len(PROJECTION) else None
        projection.add(
            keras.layers.Dense(units, activation=activation, kernel_initializer=initializer)
        )
    model = ContrastiveModel(body, projection)
    schedule = keras.optimizers.schedules.CosineDecay(config.learning_rate, config.max_steps)
    model.compile(optimizer=keras.optimizers.Adam(schedule))
    model.optimizer.build(model.trainable_weights)
    images = ShuffledItems(pool.inputs, batch_size=config.batch_size, seed=order_seed)

    def batch_at(step: tf.Tensor) -> Batch:
        (drawn,) = images.at(step)
        drawn = tf.cast(drawn, tf.float32)
        one_seed, other_seed = step_seeds(order_seed, step, 2)
        return {
            "one": augment_strongly(drawn, dataset, one_seed),
            "other": augment_strongly(drawn, dataset, other_seed),
        }

    training.fit_student(
        model,
        batch_at,
        state=[*model.variables, *model.optimizer.variables],
        config=config,
        digest="",
        folder=None,
        callbacks=(),
        show_progress=False,
    )
    return model
