"""Features of public inputs that a small private model learns on."""

import dataclasses
from typing import Any

import keras
import tensorflow as tf

from pate_tf.data.named_function import Named
from pate_tf.models.encoder import Encoder
from pate_tf.representations.catalogue import check_representation, encoder_of
from pate_tf.runs.reporting import Reporting
from pate_tf.values.dataset import Dataset
from pate_tf.values.public import PublicExamples
from pate_tf.values.sensitive import PrivateExamples

LARGEST = 2.0  # features are about 1 at most; the range scales them


@dataclasses.dataclass(frozen=True, kw_only=True)
class Features:
    """A fixed map, learnt from public inputs alone, from raw inputs to what is trained on.

    Attributes:
      dataset: of what is trained on.
      encoder: from raw inputs to features; None where inputs stay as they are.
    """

    dataset: Dataset
    encoder: Encoder | None = None

    def records(self, private: PrivateExamples) -> PrivateExamples:
        """Returns a participant's records as features; each depends on its own record alone."""
        if self.encoder is None:
            return private
        return PrivateExamples(self.dataset, self.encoder.features(private.inputs), private.labels)

    def samples(self, public: PublicExamples) -> PublicExamples:
        """Returns public samples as features."""
        if self.encoder is None:
            return public
        return PublicExamples(self.dataset, self.encoder.features(public.inputs), public.labels)

    def served(self, model: keras.Model) -> keras.Model | tf.Module:
        """Returns a model from raw inputs to logits."""
        return model if self.encoder is None else _OnFeatures(self.encoder, model)


class _OnFeatures(tf.Module):
    """A model behind an encoder."""

    def __init__(self, encoder: Encoder, model: keras.Model) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = [weight.value for weight in model.weights]
        self._model = model

    def __call__(self, inputs: tf.Tensor, training: bool = False) -> Any:
        """Returns logits `[batch, num_classes]` of raw inputs."""
        return self._model(self.encoder(inputs), training=training)


def features_of(
    name: Named | None, public: PublicExamples, reporting: Reporting, *, seed: int
) -> Features:
    """Learns features of the data set's public pool, without labels.

    Args:
      name: as of `representations.catalogue.encoder_of`; None for inputs as they are.
      public: public samples; the first of them are the pool.
      reporting: how progress is shown.
      seed: of the learning.

    Raises:
      ValueError: if there is no such representation, or it does not fit.
    """
    dataset = public.dataset
    if name is None:
        return Features(dataset=dataset)
    check_representation(name, dataset)
    with reporting.clock("learning a representation of the pool"):
        encoder = encoder_of(
            public.split(dataset.pool_size).pool, name, seed, show_progress=reporting.verbose
        )
    return Features(
        dataset=dataclasses.replace(
            dataset,
            kind="tabular",
            input_shape=(encoder.num_features,),
            value_range=(-LARGEST, LARGEST),
            augmentation="none",
            input_type="float32",
        ),
        encoder=encoder,
    )
