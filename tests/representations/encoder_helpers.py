"""Short training of representations, and comparison of the features of records."""

import numpy as np

from pate_tf.models.encoder import record_features
from pate_tf.representations import contrastive


def train_briefly(patch, steps, student_steps):
    """Makes the training of contrastive features short."""
    patch.setattr(contrastive, "NETWORKS", 1)
    patch.setattr(contrastive, "STEPS", steps)
    patch.setattr(contrastive, "STUDENT_STEPS", student_steps)


def moved(encoder, records, changed):
    """Returns the rows in which the features of two arrays of records differ."""
    tables = np.zeros((2, len(records), encoder.num_features), np.float32)
    for table, inputs in zip(tables, (records, changed), strict=True):
        for rows, features in record_features(encoder, inputs):
            table[rows] = features
    return np.flatnonzero((tables[0] != tables[1]).any(axis=1)).tolist()
