"""Keras networks that are not compiled: trained by Adam in one traced loop for all teachers.

A process a teacher loses most of its time to starting, tracing and saving; here the graph is traced
once a run (`pate_tf.teachers.training`).
"""

import copy
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from pate_tf.teachers import kinds
from pate_tf.teachers.kinds import Callbacks, TrainedTeacher, Work
from pate_tf.teachers.settings import TeacherConfig


class Networks(kinds.TeacherKind):
    """Networks of the catalogue, and Keras models of the user's that are not compiled."""

    name = "networks"
    models: ClassVar[Mapping[str, str]] = {
        "cnn": "three small convolutions",
        "wide_cnn": "the same with twice the channels",
        "mlp": "one hidden layer",
        "deeper": "six convolutions with dropout",
        "paper_mnist": "the paper's",
        "paper_svhn": "the paper's for SVHN",
    }
    settings: ClassVar[tuple[str, ...]] = kinds.OF_STEPS
    is_distributed = True

    def takes(self, built: Any) -> bool:
        """See `TeacherKind.takes`."""
        import keras

        return isinstance(built, keras.Model) and not built.compiled

    def check(self, work: Work) -> None:
        """See `TeacherKind.check`."""
        from pate_tf.models import catalogue

        model = catalogue.build(work.config.model, work.config.dataset)
        catalogue.check_draws(model, training=True)

    def definition(self, work: Work) -> dict[str, Any]:
        """See `TeacherKind.definition`."""
        from pate_tf.models.definition import model_definition

        return {"architecture": model_definition(work.config.model, work.learns_on)}

    def train(self, work: Work, teachers: Sequence[int]) -> Iterator[tuple[int, TrainedTeacher]]:
        """See `TeacherKind.train`."""
        import tensorflow as tf

        from pate_tf.teachers import training

        data = training.TeacherData(work.config, work.examples, work.partition)
        if hasattr(work.devices, "num_workers"):  # a cluster
            yield from work.devices.train(data, teachers)
        else:
            # All GPUs of this host, a replica each; else the GPU that there is, else the CPU.
            names = [device.name for device in tf.config.list_logical_devices("GPU")]
            strategy = work.devices
            if strategy is None and len(names) > 1:
                strategy = tf.distribute.MirroredStrategy(names)
            elif strategy is None:
                strategy = tf.distribute.OneDeviceStrategy(names[0] if names else "/CPU:0")
            yield from training.train_on_devices(data, teachers, strategy)

    def save(self, folder: pathlib.Path, work: Work, teachers: Sequence[TrainedTeacher]) -> None:
        """See `TeacherKind.save`."""
        import tensorflow as tf

        from pate_tf.teachers import ensemble

        arrays = zip(*(teacher.arrays for teacher in teachers), strict=True)
        stacked = [np.stack(of_teachers) for of_teachers in arrays]
        module = ensemble.networks_module(work.config, stacked)
        tf.saved_model.save(module, str(folder), signatures={"votes": module.votes})


class Compiled(Networks):
    """Compiled Keras models of the user's: trained by Keras' own `fit`, saved as networks are.

    One teacher after another, each from a new model, a new optimizer and new callbacks, in an order
    of records and with random numbers that its own seed fixes: what a teacher computes depends on
    its own shard, public settings and the seed alone. A user's code could still join teachers, and
    only the user can prevent it: by a variable outside of the function that makes the model or the
    callbacks, or by files that a callback reads.
    """

    name = "compiled"
    models: ClassVar[Mapping[str, str]] = {}
    settings: ClassVar[tuple[str, ...]] = ("max_steps", "batch_size")
    is_distributed = False
    has_callbacks = True

    def takes(self, built: Any) -> bool:
        """See `TeacherKind.takes`."""
        import keras

        return isinstance(built, keras.Model) and bool(built.compiled)

    def check(self, work: Work) -> None:
        """See `TeacherKind.check`."""
        from pate_tf.models import catalogue

        model = catalogue.build(work.config.model, work.config.dataset)
        catalogue.check_draws(model, training=False)
        check_separate(work.config, work.callbacks)

    def definition(self, work: Work) -> dict[str, Any]:
        """See `TeacherKind.definition`."""
        from pate_tf.models.definition import definition_of

        callbacks = definition_of(new_callbacks(work.callbacks))
        return {**super().definition(work), "callbacks": callbacks}

    def train(self, work: Work, teachers: Sequence[int]) -> Iterator[tuple[int, TrainedTeacher]]:
        """See `TeacherKind.train`.

        The learning rate is the compiled model's own, and steps are rounded up to whole passes over
        a teacher's records.
        """
        import keras

        from pate_tf.models import catalogue

        config = work.config
        for teacher, inputs, labels in work.shards(teachers):
            build_seed, fit_seed = np.random.SeedSequence([config.seed, teacher]).generate_state(2)
            model = catalogue.build(config.model, config.dataset, seed=int(build_seed))
            losses = np.zeros(0, np.float32)
            if len(labels):
                with catalogue.seeded(int(fit_seed >> 1)):
                    losses = _fit(model, work, inputs, labels)
            variables = (*model.trainable_variables, *model.non_trainable_variables)
            arrays = [keras.ops.convert_to_numpy(variable) for variable in variables]
            yield teacher, TrainedTeacher(arrays, losses)


def new_callbacks(callbacks: Callbacks | None) -> list[Any]:
    """Returns callbacks for one teacher, that no other teacher has.

    `callbacks` is a function that makes them, or callbacks to copy, none of which was used yet.

    Raises:
        ValueError: if they can't be copied, would restore another teacher's weights, or are
            something else.
    """
    import keras

    if callbacks is None:
        return []
    try:
        made = list(callbacks()) if callable(callbacks) else copy.deepcopy(list(callbacks))
    except Exception as error:  # any that a callback raises
        raise ValueError(
            f"callbacks: expected callbacks that can be copied for each teacher, or a function "
            f"that makes new ones, got {type(error).__name__}"
        ) from error
    if not all(isinstance(callback, keras.callbacks.Callback) for callback in made):
        raise ValueError("callbacks: expected callbacks of Keras, got others")
    if any(isinstance(callback, keras.callbacks.BackupAndRestore) for callback in made):
        raise ValueError(
            "callbacks: expected none that restores weights from files, got BackupAndRestore: a "
            "teacher would go on from another's weights"
        )
    return made


def check_separate(config: TeacherConfig, callbacks: Callbacks | None) -> None:
    """Raises ValueError if two teachers would share weights, an optimizer, or callbacks."""
    import keras

    from pate_tf.models import catalogue

    models = [catalogue.build(config.model, config.dataset) for _ in range(2)]
    parts = [
        [model, model.optimizer, *model.layers, *model.variables, *model.metrics]
        # A loss may have a state of its own.
        + [model.loss] * isinstance(model.loss, keras.losses.Loss)
        for model in models
    ]
    made = [new_callbacks(callbacks) for _ in range(2)]
    for what, (first, second) in (("model", parts), ("callbacks", made)):
        if {id(part) for part in first} & {id(part) for part in second}:
            raise ValueError(
                f"{what}: expected a function that makes everything anew at each call, got one "
                f"that gives the same object twice: teachers would learn from each other's records"
            )


def _fit(
    model: Any, work: Work, inputs: npt.NDArray[Any], labels: npt.NDArray[np.int64]
) -> npt.NDArray[np.float32]:
    """Trains one teacher; returns its loss after each pass."""
    import keras
    import tensorflow as tf

    config, callbacks = work.config, new_callbacks(work.callbacks)
    targets, loss = labels, model.loss
    names = ("categorical_crossentropy", keras.losses.categorical_crossentropy)
    if isinstance(loss, keras.losses.CategoricalCrossentropy) or loss in names:
        targets = keras.utils.to_categorical(labels, config.dataset.num_classes)
    batches = (
        tf.data.Dataset.from_tensor_slices((inputs.astype(np.float32), targets))
        .shuffle(len(labels), reshuffle_each_iteration=True)
        .batch(config.batch_size)
    )
    steps_a_pass = -(-len(labels) // config.batch_size)
    history = model.fit(
        batches,
        epochs=-(-config.num_steps(len(labels)) // steps_a_pass),
        callbacks=callbacks,
        shuffle=False,  # the records are shuffled already
        verbose=1 if work.verbose else 0,
    )
    return np.array(history.history.get("loss", []), np.float32)


kinds.register(Networks())
kinds.register(Compiled())
