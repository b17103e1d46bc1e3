"""Teachers that silos provide by `module:function`."""

import keras
import numpy as np
from sklearn.naive_bayes import GaussianNB

from pate_tf.data import datasets


def fitted_classifier(dataset):
    private = datasets.load_private(dataset.name)
    return GaussianNB().fit(private.inputs.reshape(len(private), -1), private.labels)


def keras_model(dataset):
    """Returns a model whose scores are its input's first pixels: pixel j of an image
    for class j.
    """
    inputs = keras.Input(dataset.input_shape)
    pixels = keras.layers.Flatten()(inputs)
    weights = np.eye(64, dataset.num_classes)
    outputs = keras.layers.Dense(dataset.num_classes, use_bias=False)(pixels)
    model = keras.Model(inputs, outputs)
    model.set_weights([weights])
    return model


def labels_of(inputs):
    return inputs.reshape(len(inputs), -1)[:, 5].astype(np.int64) % 10


def vote_function(dataset):
    return labels_of


def broken(dataset):
    raise RuntimeError("no such file")
