"""The `tf.distribute` strategy that suits the machine."""

import tensorflow as tf


def choose_strategy() -> tf.distribute.Strategy:
    """All GPUs of this host, one replica each; else the one GPU, else the CPU."""
    gpus = tf.config.list_logical_devices("GPU")
    if len(gpus) > 1:
        return tf.distribute.MirroredStrategy([device.name for device in gpus])
    return tf.distribute.OneDeviceStrategy(gpus[0].name if gpus else "/CPU:0")
