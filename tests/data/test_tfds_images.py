import shutil

import numpy as np
import pytest

from pate_tf.data import catalogue


@pytest.fixture(scope="module")
def data_dir(shared_data):
    return shared_data / "tfds"


def test_mnist_sizes_types_and_ranges(data_dir):
    private = catalogue.load_private("mnist", data_dir=data_dir)
    public = catalogue.load_public("mnist", data_dir=data_dir)
    assert (len(private), len(public)) == (60_000, 10_000)
    for examples in (private, public):
        dataset = examples.dataset
        assert dataset.name == "mnist"
        assert examples.inputs.dtype == np.uint8
        assert examples.inputs.shape[1:] == dataset.input_shape == (28, 28, 1)
        assert (examples.inputs.min(), examples.inputs.max()) == dataset.value_range
        assert set(examples.labels.tolist()) == set(range(dataset.num_classes))
    split = public.split(public.dataset.pool_size)
    assert (len(split.pool), len(split.held_out)) == (9_000, 1_000)


def test_mnist_comes_in_one_order(data_dir):
    one, other = (catalogue.load_public("mnist", data_dir=data_dir) for _ in range(2))
    np.testing.assert_array_equal(one.inputs, other.inputs)
    np.testing.assert_array_equal(one.labels, other.labels)


def test_broken_data_are_one_clear_line(data_dir, tmp_path):
    copy = tmp_path / "tfds"
    shutil.copytree(data_dir, copy)
    (records,) = copy.rglob("mnist-test.tfrecord*")
    records.write_bytes(records.read_bytes()[:100_000])
    with pytest.raises(ValueError, match="dataset mnist: expected it prepared") as caught:
        catalogue.load_public("mnist", data_dir=copy)
    assert "\n" not in str(caught.value)


def test_each_side_reads_its_own_file_alone(data_dir, tmp_path):
    copy = tmp_path / "tfds"
    shutil.copytree(data_dir, copy)
    (records,) = copy.rglob("mnist-train.tfrecord*")
    records.write_bytes(b"")
    assert len(catalogue.load_public("mnist", data_dir=copy)) == 10_000
