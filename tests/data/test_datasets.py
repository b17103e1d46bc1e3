import numpy as np
import pytest
import tensorflow_datasets as tfds
from data_sets_for_tests import WAVES

from pate_tf.core.public import PublicExamples
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.data import datasets
from pate_tf.data.datasets import DIGITS


class Measurements(tfds.core.GeneratorBasedBuilder):
    """A custom table, with integer features and a validation split."""

    VERSION = tfds.core.Version("2.0.1")
    FEATURES = tfds.features.Tensor(shape=(3,), dtype=np.int64)
    SPLITS = ("train", "validation")
    KEYS = ("values", "kind")

    def _info(self):
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(
                {"values": self.FEATURES, "kind": tfds.features.ClassLabel(names=["a", "b", "c"])}
            ),
            supervised_keys=self.KEYS,
            disable_shuffling=True,
        )

    def _split_generators(self, dl_manager):
        return {name: self._generate_examples(10 * len(name)) for name in self.SPLITS}

    def _generate_examples(self, num):
        shape = [side or 1 for side in self.FEATURES.shape]
        for index in range(num):
            values = np.full(shape, index, self.FEATURES.np_dtype)
            yield index, {"values": values, "kind": index % 3}


def test_a_function_gives_both_sides():
    private = datasets.load_private("data_sets_for_tests:waves")
    public = datasets.load_public("data_sets_for_tests:waves")
    assert (len(private), len(public)) == (200, 60)
    assert private.dataset is public.dataset is WAVES
    assert private.inputs.dtype == np.float32  # the input of a served student


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("data_sets_for_tests:nosuch", "dataset: can't import"),
        ("no_such_module:nosuch", "dataset: can't import"),
        ("data_sets_for_tests:NOT_A_FUNCTION", "is not a function, but int"),
        ("data_sets_for_tests:no_dataset", "must return a Dataset, inputs and labels"),
        (
            "data_sets_for_tests:wrong_shape",
            r"inputs of waves must have the shape \[num_examples, 2, 3\]",
        ),
        ("data_sets_for_tests:strings", "dataset: inputs of .* must be numbers"),
        ("nosuch", "dataset must be digits, mnist, svhn, .*got 'nosuch'"),
        ("../digits", "dataset must be digits, mnist"),
    ],
)
def test_what_does_not_fit_is_one_clear_line(name, words):
    with pytest.raises(ValueError, match=words) as caught:
        datasets.load_public(name)
    assert "\n" not in str(caught.value)


def test_public_samples_need_no_labels():
    assert datasets.load_public("data_sets_for_tests:unlabelled").labels is None
    assert len(datasets.load_private("data_sets_for_tests:unlabelled")) == 200
    partly = datasets.load_public("data_sets_for_tests:partly_labelled")
    split = partly.split(partly.dataset.pool_size)
    assert split.pool.true_labels is None
    assert len(split.held_out.labelled()) == 30


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("private_unlabelled", "must return labels of the private records"),
        ("not_finite", "inputs of waves must be finite"),
    ],
)
def test_private_records_are_whole(name, words):
    with pytest.raises(ValueError, match=words) as caught:
        datasets.load_private(f"data_sets_for_tests:{name}")
    assert "\n" not in str(caught.value)


def test_a_table_of_tfds_is_described_by_its_metadata(tmp_path):
    private = datasets.load_private("measurements", data_dir=tmp_path)
    public = datasets.load_public("measurements", data_dir=tmp_path)
    assert (len(private), len(public)) == (50, 100)
    dataset = private.dataset
    assert dataset == public.dataset
    assert (dataset.name, dataset.kind, dataset.input_shape) == ("measurements", "tabular", (3,))
    assert (dataset.num_classes, dataset.class_names) == (3, ("a", "b", "c"))
    assert dataset.pool_size == 90
    assert private.inputs.dtype == np.float32
    np.testing.assert_array_equal(private.inputs[:, 1], np.arange(50))
    np.testing.assert_array_equal(private.labels, np.arange(50) % 3)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("KEYS", ("kind", "values"), "supervised_keys must be an input and a ClassLabel"),
        ("SPLITS", ("train", "extra"), "needs the splits train and test or validation; it has"),
        (
            "FEATURES",
            tfds.features.Image(shape=(None, None, 3)),
            r"values is uint8 of shape \[None, None, 3\]",
        ),
    ],
)
def test_tfds_data_of_another_form_are_one_clear_line(tmp_path, monkeypatch, field, value, words):
    monkeypatch.setattr(Measurements, field, value)
    with pytest.raises(ValueError, match=f"dataset measurements.*{words}") as caught:
        datasets.load_private("measurements", data_dir=tmp_path)
    assert "\n" not in str(caught.value)


def test_sizes_types_and_ranges():
    private, public = datasets.load_private("digits"), datasets.load_public("digits")
    assert isinstance(private, PrivateExamples)
    assert isinstance(public, PublicExamples)
    assert (len(private), len(public)) == (1200, 597)
    assert private.dataset == public.dataset == DIGITS
    for examples in (private, public):
        assert examples.inputs.dtype == np.dtype(DIGITS.input_type)
        assert examples.inputs.shape[1:] == DIGITS.input_shape
        assert (examples.inputs.min(), examples.inputs.max()) == DIGITS.value_range
        # Both sides have all classes, and no class is rare.
        shares = np.bincount(examples.labels, minlength=10) / len(examples)
        assert (shares > 0.07).all()
