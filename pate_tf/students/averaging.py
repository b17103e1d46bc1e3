"""What the semi-supervised students share: a classifier, and the average of its weights."""

from typing import Any

import keras
import tensorflow as tf

from pate_tf.values.dataset import Dataset

WARM_UP = 10


class AveragedStudent(keras.Model):
    """A classifier in training beside the exponential average of its trained weights.

    A subclass trains `classifier` in its `train_step` and calls `update_average` at the end of it.
    Evaluation and what is exported use the average.

    Attributes:
      averaged_steps: how many steps the average reaches back at the most; until then, about a
        tenth of those so far.
    """

    averaged_steps = 1_000

    def __init__(self, classifier: keras.Model, dataset: Dataset, **kwargs: Any) -> None:
        """Takes over a classifier.

        Args:
          classifier: from raw inputs `[batch, *input_shape]` to logits `[batch, num_classes]`.
          dataset: what the classifier is for.
          **kwargs: of `keras.Model`.
        """
        super().__init__(**kwargs)
        self.dataset = dataset
        self.classifier = classifier
        self.average_age = self.add_weight(
            name="average_age",
            initializer="zeros",
            trainable=False,
            aggregation="only_first_replica",
        )
        self.averages = [
            self.add_weight(
                shape=weight.shape,
                initializer="zeros",
                trainable=False,
                aggregation="mean",
                name=f"average_{index}",
            )
            for index, weight in enumerate(classifier.trainable_weights)
        ]
        self.built = True

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Returns the logits `[batch, num_classes]` of the weights in training, not averaged."""
        return self.classifier(inputs, training=training)

    def update_average(self) -> None:
        """Moves the average towards the weights; called once a step, after their update."""
        age = self.average_age + 0.0
        kept = tf.minimum(age / (age + WARM_UP), 1.0 - 1.0 / self.averaged_steps)
        for average, weight in zip(self.averages, self.classifier.trainable_weights, strict=True):
            average.assign(kept * average + (1.0 - kept) * weight)
        self.average_age.assign(age + 1.0)

    def averaged_logits(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Returns the logits `[batch, num_classes]` of the averaged weights."""
        logits, _ = self.classifier.stateless_call(
            self.averages, self.classifier.non_trainable_variables, inputs, training=training
        )
        return logits

    def averaged_classifier(self) -> keras.Model:
        """Returns a classifier of its own with the averaged weights."""
        averaged = keras.models.clone_model(self.classifier)
        averaged.set_weights(self.classifier.get_weights())
        for weight, average in zip(averaged.trainable_weights, self.averages, strict=True):
            weight.assign(average)
        return averaged

    def get_config(self) -> dict[str, Any]:
        """Returns what `from_config` rebuilds the student from, as JSON values."""
        return {
            **super().get_config(),
            "classifier": keras.saving.serialize_keras_object(self.classifier),
            "dataset": self.dataset.to_dict(),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "AveragedStudent":
        """Rebuilds a student, with fresh weights."""
        models = {
            name: keras.saving.deserialize_keras_object(value)
            for name, value in config.items()
            if isinstance(value, dict) and "class_name" in value
        }
        return cls(**{**config, **models, "dataset": Dataset.from_dict(config["dataset"])})


def replica_share(loss: tf.Tensor) -> tf.Tensor:
    """A replica's share of a loss: optimizers add up the gradients of all replicas."""
    return loss / tf.distribute.get_strategy().num_replicas_in_sync
