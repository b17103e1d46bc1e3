"""What a model computes tells models apart, and nothing else does."""

import functools
import json
import os
import sys
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from sklearn.ensemble import RandomForestClassifier
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from pate_tf.core.dataset import Dataset
from pate_tf.models import fingerprint as descriptions

layers = keras.layers
TABLE = Dataset(
    name="table",
    kind="tabular",
    input_shape=(6,),
    value_range=(0.0, 4.0),
    num_classes=3,
    pool_size=5,
)


@pytest.fixture
def nets(monkeypatch):
    """A user's module; each call of the fixture's value puts another function into it."""
    module = types.ModuleType("nets")
    monkeypatch.setitem(sys.modules, "nets", module)

    def described(function, of=descriptions.architecture_of):
        module.net = lambda dataset: function()
        # As it is stored: in a file, without NaN.
        return json.loads(json.dumps(of("nets:net", TABLE), allow_nan=False))

    return described


def dense(*body, units=5, **settings):
    return keras.Sequential(
        [keras.Input((6,)), layers.Dense(units, **settings), *body, layers.Dense(3)]
    )


def functional(joined=layers.Add, *, crossed=False):
    inputs = keras.Input((6,))
    one, other = layers.Dense(5)(inputs), layers.Dense(5, activation="relu")(inputs)
    total = joined()([one, other])
    return keras.Model(inputs, layers.Dense(3)(layers.Add()([total, one if crossed else other])))


class Scaled(layers.Layer):
    """Says its factor nowhere but in its code."""

    factor = 2.0

    def call(self, inputs):
        return self.factor * inputs

    def get_config(self):
        raise NotImplementedError


class ScaledMore(Scaled):
    factor = 2.1


ScaledMore.__name__ = ScaledMore.__qualname__ = "Scaled"  # the same class, edited


class Loss(layers.Layer):
    def __init__(self, factor):
        super().__init__()
        self._factor = factor

    def call(self, inputs):
        self.add_loss(self._factor * keras.ops.mean(inputs**2))
        return inputs

    def get_config(self):
        return {}


class Subclassed(keras.Model):
    def __init__(self, units, initializer="glorot_uniform"):
        super().__init__()
        self._hidden = layers.Dense(units, kernel_initializer=initializer)
        self._last = layers.Dense(3)
        self.build((None, 6))
        self(keras.Input((6,)))

    input_shape, output_shape = (None, 6), (None, 3)

    def build(self, shape):
        self._hidden.build(shape)
        self._last.build((None, self._hidden.units))
        self.built = True

    def call(self, inputs):
        return self._last(self._hidden(inputs))

    def get_config(self):
        raise NotImplementedError


def one_more(model):
    model.add(layers.Activation("linear"))
    return model


def pretrained(seed):
    model = dense()
    model.layers[0].kernel.assign(np.random.default_rng(seed).normal(size=(6, 5)))
    return model


def compiled(rate):
    model = dense()
    model.compile(optimizer=keras.optimizers.SGD(rate), loss="mse")
    return model


KERAS_CHANGES = {
    "units": (dense, lambda: dense(units=7), "layers 1 units: 5 in this folder, 7 now"),
    "activation": (dense, lambda: dense(activation="relu"), "layers 1 activation: linear in"),
    "dropout": (
        lambda: dense(layers.Dropout(0.1)),
        lambda: dense(layers.Dropout(0.2)),
        "layers 2 rate: 0.1 in this folder, 0.2 now",
    ),
    "another layer": (dense, lambda: dense(layers.Dropout(0.1)), "layers 2 class: Dense in"),
    "one more layer": (
        dense,
        lambda: one_more(dense()),
        "layers: 3 in this folder, 4 now",
    ),
    "regularizer": (
        lambda: dense(kernel_regularizer=keras.regularizers.L2(0.1)),
        lambda: dense(kernel_regularizer=keras.regularizers.L2(0.2)),
        "layers 1 kernel_regularizer l2",
    ),
    "a regularizer at all": (
        dense,
        lambda: dense(kernel_regularizer="l2"),
        "layers 1 kernel_regularizer: none in this folder, L2 now",
    ),
    "initializer": (dense, lambda: dense(kernel_initializer="he_normal"), "kernel_initializer"),
    "type": (dense, lambda: dense(dtype="mixed_bfloat16"), "layers 1 dtype"),
    "frozen": (dense, lambda: dense(trainable=False), "layers 1 trainable: true in"),
    "join": (functional, lambda: functional(layers.Maximum), "class: Add in this folder, Maximum"),
    "wiring": (functional, lambda: functional(crossed=True), "keras_history"),
    "pretrained": (lambda: pretrained(1), lambda: pretrained(2), "first_weights 0"),
    "optimizer": (lambda: compiled(0.1), lambda: compiled(0.2), "learning_rate"),
    "lambda": (
        lambda: dense(layers.Lambda(lambda x: x * 2.0)),
        lambda: dense(layers.Lambda(lambda x: x * 3.0)),
        "answers: others",
    ),
    "code of a class": (lambda: dense(Scaled()), lambda: dense(ScaledMore()), "answers: others"),
    "loss of a class": (lambda: dense(Loss(0.1)), lambda: dense(Loss(0.2)), "answers: others"),
    "subclass": (lambda: Subclassed(4), lambda: Subclassed(5), "layers 0 units: 4 in"),
    "initializer in a subclass": (
        lambda: Subclassed(4),
        lambda: Subclassed(4, "he_normal"),
        "kernel_initializer class: GlorotUniform in this folder, HeNormal now",
    ),
}


@pytest.mark.parametrize("change", KERAS_CHANGES)
def test_a_changed_architecture_is_told_in_a_line(nets, change):
    before, after, told = KERAS_CHANGES[change]
    found = descriptions.difference(nets(before), nets(after))
    assert found
    assert told in found
    assert "\n" not in found
    assert len(found) < 300
    assert descriptions.difference(nets(after), nets(after)) is None
    assert descriptions.difference(nets(before), nets(before)) is None


def test_counters_in_names_and_the_callers_random_state_do_not_matter(nets):
    first = nets(functional)
    for _ in range(12):
        dense()
        functional()
    keras.utils.set_random_seed(4)
    assert descriptions.difference(first, nets(functional)) is None
    assert nets(functional) == first


def test_a_lambda_on_another_line_is_the_same(nets):
    source = "{}layer = lambda: layers.Lambda(lambda x: x * 2.0)"
    found = []
    for lines, name in ((0, "here.py"), (9, "there.py")):
        names = {"layers": layers}
        exec(compile(source.format("\n" * lines), name, "exec"), names)
        found.append(nets(functools.partial(lambda layer: dense(layer()), names["layer"])))
    assert descriptions.difference(*found) is None


def test_a_function_that_draws_at_random_still_works(nets):
    def random():
        rate = int.from_bytes(os.urandom(2)) / 2**17
        return pretrained_by(np.random.default_rng(), rate)

    def pretrained_by(generator, rate, units=5):
        model = dense(layers.Dropout(rate), units=units)
        model.layers[0].kernel.assign(generator.normal(size=(6, units)))
        return model

    first = nets(random)
    assert first["layers"][2]["rate"] == descriptions.UNKNOWN
    assert descriptions.difference(first, nets(random)) is None
    wider = nets(lambda: pretrained_by(np.random.default_rng(), 0.1, units=9))
    assert "units" in descriptions.difference(first, wider)


class Failing(Scaled):
    """Takes no numbers that are known."""

    def call(self, inputs):
        if tf.executing_eagerly():
            raise RuntimeError("out of range")
        return inputs


def test_a_layer_that_takes_no_fixed_inputs_is_known_by_the_rest(nets):
    first = nets(lambda: dense(Failing()))
    assert first["answers"] == descriptions.UNKNOWN
    assert "units" in descriptions.difference(first, nets(lambda: dense(Failing(), units=9)))


def test_rounding_is_no_difference_and_more_is(nets):
    first = nets(lambda: dense(Scaled()))
    for place, share, is_same in ((0, 1e-4, True), (0, 0.1, False)):
        second = json.loads(json.dumps(first))
        second["answers"]["near"][place] *= 1.0 + share
        assert (descriptions.difference(first, second) is None) is is_same


def forest_of(**settings):
    return lambda: RandomForestClassifier(**settings)


def searched(folds):
    return GridSearchCV(LogisticRegression(), {"C": [0.1, 1.0]}, cv=StratifiedKFold(folds))


ESTIMATOR_CHANGES = {
    "parameter": (
        lambda: LogisticRegression(C=1.0),
        lambda: LogisticRegression(C=10.0),
        "C: 1.0 in this folder, 10.0 now",
    ),
    "class": (LogisticRegression, RandomForestClassifier, "class: sklearn."),
    "forest": (
        forest_of(n_estimators=5),
        forest_of(n_estimators=6),
        "n_estimators: 5 in this folder, 6 now",
    ),
    "share or number": (forest_of(max_features=1), forest_of(max_features=1.0), "max_features"),
    "step": (
        lambda: make_pipeline(SimpleImputer(strategy="mean"), LogisticRegression()),
        lambda: make_pipeline(SimpleImputer(strategy="median"), LogisticRegression()),
        "strategy: mean in this folder, median now",
    ),
    "function": (
        lambda: make_pipeline(FunctionTransformer(np.log1p), LogisticRegression()),
        lambda: make_pipeline(FunctionTransformer(np.sqrt), LogisticRegression()),
        "numpy.log1p in this folder, numpy.sqrt now",
    ),
    "folds": (lambda: searched(2), lambda: searched(3), "n_splits: 2 in this folder, 3 now"),
    "kernel": (
        lambda: GaussianProcessClassifier(RBF(1.0)),
        lambda: GaussianProcessClassifier(RBF(2.0)),
        "length_scale: 1.0 in this folder, 2.0 now",
    ),
    "array": (
        lambda: LogisticRegression(class_weight={0: np.arange(3)}),
        lambda: LogisticRegression(class_weight={0: np.arange(4)}),
        "class_weight 0: others in this folder than now",
    ),
}


@pytest.mark.parametrize("change", ESTIMATOR_CHANGES)
def test_a_changed_estimator_is_told_in_a_line(nets, change, monkeypatch):
    before, after, told = ESTIMATOR_CHANGES[change]
    of = descriptions.estimator_of
    found = descriptions.difference(nets(before, of), nets(after, of))
    assert found
    assert told in found
    assert "\n" not in found
    assert descriptions.difference(nets(after, of), nets(after, of)) is None


def test_an_estimator_is_described_without_addresses_and_random_states(nets):
    def estimator(state):
        steps = make_pipeline(
            SimpleImputer(missing_values=np.nan),
            FunctionTransformer(functools.partial(np.clip, a_min=0.0, a_max=1.0)),
            forest_of(random_state=state)(),
        )
        return GridSearchCV(steps, {"simpleimputer__strategy": ["mean"]})

    of = descriptions.estimator_of
    first, second = (nets(lambda state=state: estimator(state), of) for state in (1, 2))
    assert first == second
    text = json.dumps(first)
    assert "0x" not in text
    assert "random_state" not in text


def test_the_named_forest_is_scikit_learns_with_its_number_of_trees():
    assert descriptions.estimator_of("random_forest", TABLE)["n_estimators"] == 100


def test_a_digest_is_compared_and_never_shown():
    found = descriptions.difference({"records": "a" * 64}, {"records": "b" * 64})
    assert found == "records: others in this folder than now"
    assert descriptions.difference({"records": "a" * 64}, {"records": "a" * 64}) is None
