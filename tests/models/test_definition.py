"""Models are identified by their computation, not by where and how often they are built."""

import functools
import json
import sys
import textwrap

import keras
import numpy as np
import pytest
from data_sets_for_tests import table_dataset
from sklearn.ensemble import RandomForestClassifier
from sklearn.gaussian_process.kernels import RBF
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from pate_tf.models.architectures import definition_of, model_definition, source_of

layers = keras.layers
TABLE = table_dataset(6, 0.0, 4.0)


def dense(*body, units=5, **settings):
    return keras.Sequential(
        [keras.Input((6,)), layers.Dense(units, **settings), *body, layers.Dense(3)]
    )


def joined(join=layers.Add, *, crossed=False):
    inputs = keras.Input((6,))
    one, other = layers.Dense(5)(inputs), layers.Dense(5)(inputs)
    total = join()([one, other])
    return keras.Model(inputs, layers.Dense(3)(layers.Add()([total, one if crossed else other])))


class Scaled(layers.Layer):
    """Has its factor only in its code."""

    def call(self, inputs):
        return 2.0 * inputs

    def get_config(self):
        raise NotImplementedError


def pretrained(value):
    model = dense()
    model.layers[0].set_weights([np.full((6, 5), value), np.zeros(5)])
    return model


def compiled(loss):
    model = dense()
    model.compile("adam", loss)
    return model


def loss_times(factor):
    def own_loss(labels, outputs):
        return factor * keras.losses.sparse_categorical_crossentropy(labels, outputs)

    return own_loss


def definition(build):
    return model_definition(lambda dataset: build(), TABLE)


MODELS = [
    dense,
    functools.partial(dense, units=7),
    functools.partial(dense, kernel_initializer="he_normal"),
    functools.partial(dense, kernel_regularizer="l2"),
    lambda: dense(layers.Dropout(0.1)),
    lambda: dense(layers.Dropout(0.2)),
    lambda: dense(Scaled()),
    lambda: dense(layers.Lambda(lambda inputs: inputs)),
    joined,
    functools.partial(joined, crossed=True),
    functools.partial(joined, layers.Maximum),
    functools.partial(pretrained, 1.0),
    functools.partial(pretrained, 1.001),
    lambda: compiled(loss_times(1.0)),
    lambda: compiled(loss_times(2.0)),
    lambda: compiled("sparse_categorical_crossentropy"),
]


def test_models_that_differ_have_other_definitions_and_equal_ones_the_same():
    definitions = [definition(build) for build in MODELS]
    assert len(set(definitions)) == len(MODELS)
    np.random.seed(3)  # the caller's random state and Keras' running numbers do not matter
    assert [definition(build) for build in reversed(MODELS)] == definitions[::-1]


def test_an_edited_function_or_layer_is_another(tmp_path, monkeypatch):
    source = """
        import keras

        class Own(keras.layers.Layer):
            def call(self, inputs):
                return 2.0 * inputs

        def net(dataset):
            scale = 1.0
            return keras.Sequential([keras.Input((6,)), Own(), keras.layers.Dense(3)])
        """
    definitions = []
    for place, (old, new) in enumerate([("", ""), ("", ""), ("2.0", "3.0"), ("1.0", "4.0")]):
        (tmp_path / str(place)).mkdir()
        text = textwrap.dedent(source.replace(old, new))
        (tmp_path / str(place) / "own_nets.py").write_text(text)
        with monkeypatch.context() as patch:
            patch.syspath_prepend(tmp_path / str(place))
            definitions.append(model_definition("own_nets:net", TABLE))
        del sys.modules["own_nets"]
    assert definitions[0] == definitions[1]
    assert len(set(definitions)) == 3


@pytest.mark.parametrize(
    ("one", "other", "differing"),
    [
        (LogisticRegression(), LogisticRegression(C=10.0), {"C"}),
        (RandomForestClassifier(5), RandomForestClassifier(6), {"n_estimators"}),
        (RandomForestClassifier(random_state=1), RandomForestClassifier(random_state=2), set()),
        (
            make_pipeline(FunctionTransformer(np.log1p), LogisticRegression()),
            make_pipeline(FunctionTransformer(np.sqrt), LogisticRegression()),
            {"steps"},
        ),
    ],
    ids=str,
)
def test_an_estimator_is_described_parameter_by_parameter(one, other, differing):
    definitions = [json.loads(json.dumps(definition_of(each))) for each in (one, other)]
    first, second = definitions
    assert {name for name in first | second if first[name] != second[name]} == differing
    assert " at 0x" not in json.dumps([definitions, definition_of(RBF())])


def test_arrays_and_objects_that_a_function_closes_over_do_not_count():
    """They may be private, and a plain digest of them would confirm a guess."""

    def closing_over(value):
        return lambda dataset: dense(units=len(value))

    assert source_of(closing_over(np.arange(5))) == source_of(closing_over(np.arange(1, 6)))
    assert definition_of(np.arange(5)) == definition_of(np.arange(1, 6))
