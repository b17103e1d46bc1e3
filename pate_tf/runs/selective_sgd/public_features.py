"""Features of public inputs that a small private model learns on."""

import dataclasses
from math import sqrt
from typing import Any

import keras
import tensorflow as tf

from pate_tf.data.named_function import Named
from pate_tf.models.encoder import Encoder
from pate_tf.representations.catalogue import (
    check_representation,
    default_representation,
    encoder_of,
)
from pate_tf.representations.whitened import whitened
from pate_tf.runs.reporting import Reporting
from pate_tf.values.dataset import Dataset
from pate_tf.values.public import PublicExamples
from pate_tf.values.sensitive import PrivateExamples

WHITENED = "whitened"  # contrastive where inputs are images, else raw; then partly whitened


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
        """Returns a participant's records as features, known as the raw records that they are of.

        Each depends on its own record alone, and on its place.
        """
        if self.encoder is None:
            return private
        return PrivateExamples(
            self.dataset,
            self.encoder.features(private.inputs),
            private.labels,
            origin=private.record_set,
        )

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
      name: as of `representations.catalogue.encoder_of`; "whitened" for the data set's default,
        partly whitened; None for inputs as they are.
      public: public samples; the first of them are the pool.
      reporting: how progress is shown.
      seed: of the learning.

    Raises:
      ValueError: if there is no such representation, or it does not fit.
    """
    dataset = public.dataset
    if name is None:
        return Features(dataset=dataset)
    plain = default_representation(dataset) if name == WHITENED else name
    check_representation(plain, dataset)
    with reporting.clock("learning a representation of the pool"):
        pool = public.split(dataset.pool_size).pool
        encoder = encoder_of(pool, plain, seed, show_progress=reporting.verbose)
        if name == WHITENED:
            encoder = whitened(encoder, pool)
    length = sqrt(encoder.num_views)  # each view's is 1
    return Features(
        dataset=dataclasses.replace(
            dataset,
            kind="tabular",
            input_shape=(encoder.num_features,),
            value_range=(-length, length),
            augmentation="none",
            input_type="float32",
        ),
        encoder=encoder,
    )
