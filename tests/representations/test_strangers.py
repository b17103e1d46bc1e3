"""Models that keep their inputs, or mix the rows of a batch."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from encoder_helpers import moved
from keras import layers, ops
from tqdm import tqdm

import pate_tf
from pate_tf.accounting.conversions import LATTICE
from pate_tf.core.public import Pool
from pate_tf.core.reporting import Reporting
from pate_tf.models.encoder import record_features
from pate_tf.representations import pretrained
from pate_tf.representations.catalogue import Representation

DIGITS = pate_tf.Data.load("digits")
SHAPE = DIGITS.dataset.input_shape


@keras.saving.register_keras_serializable("tests")
class Keeps(layers.Layer):
    """Returns its input, and keeps the first of a batch."""

    def build(self, shape):
        self.kept = self.add_weight(shape=shape[1:], initializer="zeros", trainable=False)

    def call(self, inputs):
        self.kept.assign(inputs[0])
        return inputs


@keras.saving.register_keras_serializable("tests")
class KeepsInABranch(Keeps):
    """Keeps only bright inputs."""

    def call(self, inputs):
        bright = tf.reduce_max(inputs) > 1e3
        return tf.cond(bright, lambda: Keeps.call(self, inputs), lambda: inputs)


@keras.saving.register_keras_serializable("tests")
class Calls(layers.Layer):
    """Hands its input to Python code."""

    def call(self, inputs):
        passed = tf.numpy_function(lambda array: array, [inputs], tf.float32)
        return tf.ensure_shape(passed, inputs.shape)


@keras.saving.register_keras_serializable("tests")
class CallsInSecret(layers.Layer):
    """Hands its input to Python code that claims to be stateless."""

    def call(self, inputs):
        passed = tf.numpy_function(lambda array: array, [inputs], tf.float32, stateful=False)
        return tf.ensure_shape(passed, inputs.shape)


@keras.saving.register_keras_serializable("tests")
class Dumps(layers.Layer):
    """Writes its input into a file, by a stateless operation."""

    def call(self, inputs):
        return tf.raw_ops.DebugIdentity(input=inputs, debug_urls=["file:///dev/null"])


@keras.saving.register_keras_serializable("tests")
class Draws(layers.Layer):
    """Draws at random."""

    def call(self, inputs):
        return inputs + tf.random.uniform(tf.shape(inputs))


@keras.saving.register_keras_serializable("tests")
class Mixes(layers.Layer):
    """Adds the largest number of a batch."""

    def call(self, inputs):
        return inputs + ops.max(inputs, axis=0)


def through(layer, *, training=None):
    inputs = keras.Input(SHAPE)
    flat = layers.Flatten()(layer(inputs, **({"training": True} if training else {})))
    return keras.Model(inputs, layers.Dense(12)(flat))


@pytest.mark.parametrize("in_file", [False, True])
@pytest.mark.parametrize("kind", [Keeps, KeepsInABranch, Calls, CallsInSecret, Dumps, Draws])
def test_a_model_with_state_is_refused_in_one_line(kind, in_file, tmp_path):
    model = through(kind())
    name = model
    if in_file:
        model.save(tmp_path / "model.keras")
        name = f"encoder:{tmp_path}/model.keras"
    with pytest.raises(ValueError, match="can store private inputs or draws at random") as refused:
        Representation(name).fit(DIGITS.pool)
    assert "\n" not in str(refused.value)


def test_batches_are_used_where_batch_normalization_is_not_in_training():
    for training in (True, None):
        model = through(layers.BatchNormalization(), training=training)
        before = [weight.copy() for weight in model.get_weights()]
        encoder = Representation(model).fit(DIGITS.pool).encoder_
        assert (encoder.places == 1) == bool(training)
        assert all(map(np.array_equal, before, model.get_weights()))


def test_a_student_that_keeps_records_is_refused_and_a_plain_one_is_not():
    with pytest.raises(ValueError, match=r"student: .* can store private inputs"):
        pretrained.answering(through(Keeps()), DIGITS.dataset)
    assert pretrained.answering(through(Mixes()), DIGITS.dataset).places == 1
    assert pretrained.answering(through(layers.ReLU()), DIGITS.dataset).places > 1


def test_weights_that_change_during_the_private_pass_stop_it():
    model = through(layers.ReLU())
    encoder = Representation(model).fit(DIGITS.pool).encoder_
    records = DIGITS.private.inputs[:24]
    list(record_features(encoder, records))
    passing = record_features(encoder, np.repeat(records, 200, axis=0))
    next(passing)
    model.layers[-1].kernel.assign_add(tf.ones_like(model.layers[-1].kernel))
    with pytest.raises(ValueError, match="must not change its weights"):
        list(passing)


def mixing():
    inputs = keras.Input(SHAPE)
    flat = layers.Flatten()(inputs)
    query = layers.Reshape((64, 1))(flat)
    yield keras.Model(inputs, flat + ops.max(flat, axis=0, keepdims=True))
    yield keras.Model(inputs, flat + ops.roll(flat, 1, axis=0))
    yield through(Mixes())
    softmax = layers.Softmax(axis=0)(flat)  # 1 for a single input
    yield keras.Model(inputs, layers.Concatenate()([flat, softmax]))
    yield keras.Model(inputs, layers.Softmax(axis=None)(flat))
    for_each = layers.Reshape(())(layers.Dense(1)(flat))  # its only axis is the batch
    softmax = layers.Reshape((1,))(layers.Activation("softmax")(for_each))
    yield keras.Model(inputs, layers.Concatenate()([flat, 16.0 * softmax]))
    yield keras.Model(inputs, layers.Dense(3, activation=lambda x: x - ops.mean(x))(flat))
    # Attention over the batch as its sequence.
    rows = ops.transpose(query, (2, 0, 1))
    yield keras.Model(inputs, ops.squeeze(layers.Attention()([rows, rows]), 0))
    inner = keras.Model(inputs, flat + ops.max(flat, axis=0, keepdims=True))
    yield keras.Sequential([keras.Input(SHAPE), inner])


def test_a_model_that_may_mix_rows_gets_one_record_at_a_time():
    records = DIGITS.private.inputs[:24].astype(np.float32)
    changed = records.copy()
    changed[7] = 16.0
    for model in mixing():
        encoder = Representation(model).fit(DIGITS.pool).encoder_
        assert encoder.places == 1, model.layers
        assert set(moved(encoder, records, changed)) <= {7}


def test_a_replaced_record_moves_the_sums_of_a_mixing_model_by_what_is_charged(tmp_path):
    records, labels = DIGITS.private.inputs[:100], DIGITS.private.labels[:100]
    bars: list[str] = []

    def progress_bar(desc, **given):
        bars.append(desc)
        return tqdm(desc=desc, disable=True, **given)

    nothing = Pool(DIGITS.dataset, DIGITS.pool.inputs[:0])
    for pool, mechanism in (
        (DIGITS.pool, pate_tf.mechanisms.GaussianFeatureSums),
        (nothing, pate_tf.mechanisms.GaussianMoments),
    ):
        for number, model in enumerate(mixing()):
            tables = []
            for bright in (False, True):
                inputs = records.copy()
                if bright:
                    inputs[7] = 16
                private = dataclasses.replace(DIGITS.private, inputs=inputs, labels=labels)
                directory = tmp_path / f"{len(pool)} {number} {bright}"
                sums = pate_tf.FeatureSums(representation=model, directory=directory)
                sums.reporting = Reporting(progress_bar=progress_bar)
                tables.append(sums.fit(private, pool).table)
            moved = (tables[0] - tables[1]) / LATTICE
            assert 0.0 < np.square(moved).sum() <= mechanism.squared_sensitivity
    assert bars and all(bar.endswith("the model may mix inputs of a batch") for bar in bars)


# One layer of each kind that is used on batches, by the rank of its input without the batch.
VALUES = {
    3: "Rescaling Normalization Activation ReLU LeakyReLU ELU PReLU Dropout SpatialDropout2D "
    "GaussianDropout GaussianNoise BatchNormalization LayerNormalization Softmax MaxPooling2D "
    "AveragePooling2D GlobalAveragePooling2D GlobalMaxPooling2D Flatten ZeroPadding2D Cropping2D "
    "UpSampling2D Dense Conv2D DepthwiseConv2D SeparableConv2D Reshape Permute",
    2: "SpatialDropout1D Conv1D DepthwiseConv1D SeparableConv1D MaxPooling1D AveragePooling1D "
    "GlobalAveragePooling1D GlobalMaxPooling1D ZeroPadding1D Cropping1D UpSampling1D",
    4: "SpatialDropout3D Conv3D MaxPooling3D AveragePooling3D GlobalAveragePooling3D "
    "GlobalMaxPooling3D ZeroPadding3D Cropping3D UpSampling3D",
    1: "RepeatVector Embedding",
    0: "Add Subtract Multiply Average Maximum Minimum Concatenate",  # on two tensors
}
SETTINGS = {
    "Rescaling": (0.1,),
    "Activation": ("softmax",),
    "Dense": (5,),
    "Reshape": ((-1,),),
    "Permute": ((3, 1, 2),),
    "RepeatVector": (2,),
    "Embedding": (20, 3),
    **{f"AveragePooling{number}D": (2,) for number in (1, 2, 3)},
    **{f"SpatialDropout{number}D": (0.5,) for number in (1, 2, 3)},
    **{f"{kind}Conv{number}D": (4, 2) for kind in ("", "Separable") for number in (1, 2, 3)},
    **{f"DepthwiseConv{number}D": (2,) for number in (1, 2)},
    **dict.fromkeys(["Dropout", "GaussianDropout", "GaussianNoise"], (0.5,)),
}
SHAPES = {0: (8, 8, 1), 1: (64,), 2: (16, 4), 3: (8, 8, 1), 4: (4, 4, 4, 1)}


def test_rows_of_every_listed_layer_are_independent_bit_by_bit():
    listed = {name for names in VALUES.values() for name in names.split()}
    assert listed == pretrained.ROW_WISE - {"InputLayer"}
    random = np.random.default_rng(0)
    for rank, names in VALUES.items():
        for name in names.split():
            inputs = keras.Input(SHAPE)
            shaped = layers.Reshape(SHAPES[rank])(inputs)
            layer = getattr(layers, name)(*SETTINGS.get(name, ()))
            output = layer(shaped if rank else [shaped, layers.Rescaling(2.0)(shaped)])
            model = keras.Model(inputs, layers.Flatten()(output))
            assert pretrained.is_row_wise(model), name
            encode = tf.function(lambda rows, model=model: model(rows, training=False))
            batch = random.integers(0, 17, (16, *SHAPE)).astype(np.float32)
            first = encode(tf.constant(batch)).numpy()
            for kept in range(16):
                other = random.integers(0, 17, batch.shape).astype(np.float32)
                other[kept] = batch[kept]
                outputs = encode(tf.constant(other)).numpy()
                assert outputs[kept].tobytes() == first[kept].tobytes(), (name, kept)


def test_networks_of_keras_stay_in_batches(tmp_path):
    network = keras.applications.MobileNetV2(
        alpha=0.35, weights=None, include_top=False, pooling="avg", input_shape=(96, 96, 3)
    )
    assert pretrained.is_row_wise(network)
    network.layers[3].call = lambda inputs: inputs
    assert not pretrained.is_row_wise(network)


def test_a_rank_other_than_the_declared_one_is_not_proven():
    inputs = keras.Input((64,))
    higher = layers.Rescaling(np.ones((1, 1, 64)))(inputs)  # its axis 1 is the batch
    assert not pretrained.is_row_wise(keras.Model(inputs, layers.Softmax(axis=1)(higher)))
    each = layers.Rescaling(np.ones(64), offset=[0.5] * 64)(inputs)
    assert pretrained.is_row_wise(keras.Model(inputs, layers.Softmax(axis=1)(each)))


def test_a_custom_student_that_keeps_its_inputs_is_refused_before_labels_are_charged(tmp_path):
    student = pate_tf.Student(
        "supervised",
        model=lambda dataset: keras.Sequential(
            [keras.Input(SHAPE), Keeps(), layers.Flatten(), layers.Dense(10)]
        ),
    )
    with pytest.raises(ValueError, match="AssignVariableOp"):
        student.check(DIGITS.pool, tmp_path / "released")
