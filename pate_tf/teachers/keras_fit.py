"""Teachers that bring their own optimizer: compiled Keras models, trained by Keras' own `fit`.

One teacher after another, each from a new model, a new optimizer and new callbacks, in an order of
records and with random numbers that its own seed fixes: what a teacher computes depends on its own
share, public settings and the seed alone. Ways remain by which a user's code could join teachers,
and only the user can close them: a variable outside of the function that makes the model or the
callbacks, and files that a callback reads.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf.core.partition import Partition
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.models import catalogue
from pate_tf.teachers.settings import TeacherConfig
from pate_tf.teachers.training import TeacherState

Callbacks = Sequence[keras.callbacks.Callback] | Callable[[], Sequence[keras.callbacks.Callback]]


def new_callbacks(callbacks: Callbacks | None) -> list[keras.callbacks.Callback]:
    """Returns callbacks for one teacher, that no other teacher has.

    Args:
      callbacks: a function that makes them, or callbacks to copy, none of which was used yet.

    Raises:
      ValueError: if they can't be copied, would restore another teacher's weights, or are
        something else.
    """
    if callbacks is None:
        return []
    try:
        made = list(callbacks()) if callable(callbacks) else copy.deepcopy(list(callbacks))
    except Exception as error:  # whatever a callback holds
        raise ValueError(
            f"callbacks: expected callbacks that can be copied for each teacher, or a function "
            f"that makes new ones, got {type(error).__name__}"
        ) from error
    if not all(isinstance(each, keras.callbacks.Callback) for each in made):
        raise ValueError("callbacks: expected callbacks of Keras, got others")
    if any(isinstance(each, keras.callbacks.BackupAndRestore) for each in made):
        raise ValueError(
            "callbacks: expected none that restores weights from files, got BackupAndRestore: a "
            "teacher would go on from another's weights"
        )
    return made


def check_separate(config: TeacherConfig, callbacks: Callbacks | None) -> None:
    """Checks that two teachers share neither weights, nor an optimizer, nor callbacks.

    Raises:
      ValueError: if two calls of a function give what belongs to one another.
    """
    one, other = (catalogue.build(config.model, config.dataset) for _ in range(2))
    pairs = {
        "model": (_parts(one), _parts(other)),
        "callbacks": tuple({id(each): each for each in new_callbacks(callbacks)} for _ in range(2)),
    }
    for what, (first, second) in pairs.items():
        if first.keys() & second.keys():
            raise ValueError(
                f"{what}: expected a function that makes everything anew at each call, got one "
                f"that gives the same object twice: teachers would learn from each other's records"
            )


def _parts(model: keras.Model) -> dict[int, Any]:
    """Returns whatever of a model can hold what it learnt, by its identity."""
    parts = [model, model.optimizer, *model.layers, *model.variables, *model.metrics]
    loss = model.loss
    if isinstance(loss, keras.losses.Loss):  # one with a state of its own
        parts.append(loss)
    return {id(part): part for part in parts}


def train(
    config: TeacherConfig,
    examples: PrivateExamples,
    partition: Partition,
    teachers: Sequence[int],
    *,
    callbacks: Callbacks | None = None,
    verbose: bool = False,
) -> Iterator[tuple[int, TeacherState]]:
    """Yields each teacher with its trained weights, in the order of `teachers`.

    Args:
      config: how they are trained; the learning rate is the compiled model's own, and steps are
        rounded up to whole passes over a teacher's records.
      examples: the private records of all teachers.
      partition: who gets which record.
      teachers: the teachers to train.
      callbacks: for `fit`; see `new_callbacks`.
      verbose: whether Keras draws its progress bars.

    Raises:
      ValueError: if teachers share something.
    """
    check_separate(config, callbacks)
    shares = partition.all_records()
    for teacher in teachers:
        records = shares[teacher]
        build_seed, fit_seed = np.random.SeedSequence([config.seed, teacher]).generate_state(2)
        model = catalogue.build(config.model, config.dataset, seed=int(build_seed))
        losses = np.zeros(0, np.float32)
        if len(records):
            inputs, labels = examples.inputs[records], examples.labels[records]
            with catalogue.seeded(int(fit_seed >> 1)):
                losses = _fit(model, config, inputs, labels, new_callbacks(callbacks), verbose)
        weights, buffers = (
            [keras.ops.convert_to_numpy(each) for each in variables]
            for variables in (model.trainable_variables, model.non_trainable_variables)
        )
        yield teacher, TeacherState(weights, buffers, [], [], losses)


def _fit(
    model: keras.Model,
    config: TeacherConfig,
    inputs: npt.NDArray[Any],
    labels: npt.NDArray[np.int64],
    callbacks: list[keras.callbacks.Callback],
    verbose: bool,
) -> npt.NDArray[np.float32]:
    """Trains one teacher; returns its loss after each pass."""
    targets = labels
    if _wants_one_hot(model):
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
        verbose=1 if verbose else 0,
    )
    return np.array(history.history.get("loss", []), np.float32)


def _wants_one_hot(model: keras.Model) -> bool:
    loss = model.loss
    return isinstance(loss, keras.losses.CategoricalCrossentropy) or loss in (
        "categorical_crossentropy",
        keras.losses.categorical_crossentropy,
    )
