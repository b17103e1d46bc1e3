"""UCI handwritten digits, embedded in scikit-learn: 1,797 gray images of 8 x 8 pixels."""

import numpy as np

from pate_tf.core.dataset import Dataset
from pate_tf.core.public import PublicExamples
from pate_tf.core.sensitive import PrivateExamples

NUM_PRIVATE = 1_200

DIGITS = Dataset(
    name="digits",
    kind="image",
    input_shape=(8, 8, 1),
    value_range=(0.0, 16.0),
    num_classes=10,
    class_names=tuple(str(digit) for digit in range(10)),
    augmentation="affine",
    pool_size=400,
)


def load_private() -> PrivateExamples:
    """Returns the 1,200 private images."""
    inputs, labels = _shuffled()
    return PrivateExamples(DIGITS, inputs[:NUM_PRIVATE], labels[:NUM_PRIVATE])


def load_public() -> PublicExamples:
    """Returns the 597 public images."""
    inputs, labels = _shuffled()
    return PublicExamples(DIGITS, inputs[NUM_PRIVATE:], labels[NUM_PRIVATE:])


def _shuffled() -> tuple[np.ndarray, np.ndarray]:
    """All images in one fixed shuffled order: the archive is ordered by writer."""
    from sklearn.datasets import load_digits

    archive = load_digits()
    order = np.random.default_rng(0).permutation(len(archive.target))
    inputs = archive.images[order].astype(np.uint8)[..., np.newaxis]
    return inputs, archive.target[order].astype(np.int64)
