"""Names that data functions of the first guide import; `pate_tf.values` has them now."""

from pate_tf.values.dataset import Dataset
from pate_tf.values.public import PublicExamples
from pate_tf.values.sensitive import PrivateExamples

__all__ = ["Dataset", "PrivateExamples", "PublicExamples"]
