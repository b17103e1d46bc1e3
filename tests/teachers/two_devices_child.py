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

    from pate_tf.teachers.training import DataParallelTrainer, EnsembleParallelTrainer

    strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    trainer = helpers.trainer(strategy)
    if trainer.group_size != 2:
        raise SystemExit(f"expected 2 replicas, got {trainer.group_size}")
    one_over_both = DataParallelTrainer(helpers.teacher_data(model=helpers.SMALL), strategy)
    own_losses = DataParallelTrainer(helpers.teacher_data(model=helpers.OWN_LOSSES), strategy)
    own_steps = EnsembleParallelTrainer(helpers.data_of_owners(), strategy)
    states = {
        "even": helpers.train_all(trainer, [0, 1, 2, 3]),
        "odd": helpers.train_all(trainer, [3, 0, 2]),
        "own_losses": helpers.train_all(own_losses, [1]),
        "own_steps": helpers.train_all(own_steps, [0, 4, 3, 1], (100, 400)),
        "data_parallel": helpers.train_all(one_over_both, [1], (4, 1, 400)),
    }
    named = {
        f"{name}/{place}/{index}": array
        for name, group in states.items()
        for place, state in enumerate(group)
        for index, array in enumerate(helpers.arrays(state))
    }
    np.savez(target, **named)


if __name__ == "__main__":
    main(sys.argv[1])
