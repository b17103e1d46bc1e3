"""The range of an image's values."""

from pate_tf.values.dataset import Dataset


def pixel_range(dataset: Dataset) -> tuple[float, float]:
    """Returns the lowest and the highest value of a pixel.

    Raises:
      ValueError: if the data set has no one range for all its values.
    """
    low, high = dataset.value_range
    if isinstance(low, tuple) or isinstance(high, tuple):
        raise ValueError(f"value_range of {dataset.name}: expected one for all pixels, got several")
    return low, high
