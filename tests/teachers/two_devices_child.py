"""Trains the problem of `teacher_helpers` on two logical CPU devices; writes all arrays."""

import pathlib
import sys

import numpy as np
import tensorflow as tf

HERE = pathlib.Path(__file__).absolute().parent
sys.path += [str(HERE.parents[1]), str(HERE), str(HERE.parent / "models")]


def main(target: str) -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    import teacher_helpers as helpers

    strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    if strategy.num_replicas_in_sync != 2:
        raise SystemExit("expected 2 replicas")
    groups = {
        "odd": helpers.train_all(helpers.training_job(), [3, 0, 2], strategy),
        "steps": helpers.train_all(helpers.job_of_owners(), [0, 4, 3, 1], strategy),
    }
    named = {
        f"{name}/{place}/{index}": array
        for name, group in groups.items()
        for place, teacher in enumerate(group)
        for index, array in enumerate((*teacher.arrays, teacher.curves))
    }
    np.savez(target, **named)


if __name__ == "__main__":
    main(sys.argv[1])
