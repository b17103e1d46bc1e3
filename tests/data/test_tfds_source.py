"""Small TFDS image data sets in TFDS format, from loading to an exported student."""

import os
import pathlib
import shutil
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds

from pate_tf.data import datasets

# The bright part, by class: learnable from color and position.
SPLITS = {
    "svhn_cropped": {"train": 60, "test": 40, "extra": 90},
    "cifar10": {"train": 120, "test": 40},
}


def coloured_images(num: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns uint8 `[num, 32, 32, 3]` and labels from 0 to 9."""
    random = np.random.default_rng(seed)
    labels = np.arange(num) % 10
    images = random.integers(0, 100, (num, 32, 32, 3))
    for image, label in zip(images, labels, strict=True):
        row, colour = label // 3, label % 3
        image[8 * row : 8 * row + 8, :, colour] += 150
    return images.astype(np.uint8), labels


def prepare(name: str, data_dir: pathlib.Path, monkeypatch: Any) -> dict[str, Any]:
    """Writes a small data set; returns images and labels by the "id" of each example."""
    kind = tfds.builder_cls(name)
    written: dict[str, Any] = {}

    def generate(split: str, num: int):
        images, labels = coloured_images(num, seed=len(split))
        for index in range(num):
            identity = f"{split}_{index:06d}"
            written[identity] = images[index], labels[index]
            yield index, {"image": images[index], "label": labels[index], "id": identity}

    def split_generators(self: Any, dl_manager: Any) -> dict[str, Any]:
        return {split: generate(split, num) for split, num in SPLITS[name].items()}

    with monkeypatch.context() as patched:
        patched.setattr(kind, "_split_generators", split_generators)
        # The real builder reads class names from its sources.
        tfds.builder(name, data_dir=data_dir).download_and_prepare()
    return written


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Returns a data folder with both sets, and the written examples."""
    data_dir = tmp_path_factory.mktemp("tfds")
    with pytest.MonkeyPatch.context() as patch:
        return data_dir, {name: prepare(name, data_dir, patch) for name in SPLITS}


def unmapped_copy(prepared, folder):
    """Returns a copy of SVHN as TFDS prepares it, without files mapped since."""
    leave_out = shutil.ignore_patterns("pate_tf-*")
    shutil.copytree(prepared[0] / "svhn_cropped", folder / "svhn_cropped", ignore=leave_out)


def as_set(inputs: np.ndarray, labels: np.ndarray) -> set[tuple[bytes, int]]:
    return {(image.tobytes(), int(label)) for image, label in zip(inputs, labels, strict=True)}


def of_splits(written, *splits: str) -> set[tuple[bytes, int]]:
    return {
        (image.tobytes(), int(label))
        for name, (image, label) in written.items()
        if name.rpartition("_")[0] in splits
    }


@pytest.mark.parametrize(
    ("name", "splits"), [("svhn", ("train", "extra")), ("cifar10", ("train",))]
)
@pytest.mark.parametrize("limit", [0, 2**28], ids=["mapped", "in memory"])
def test_each_side_holds_its_splits(prepared, monkeypatch, name, splits, limit):
    data_dir, written = prepared
    monkeypatch.setattr(datasets, "MAX_IN_MEMORY", limit)
    private = datasets.load_private(name, data_dir=data_dir)
    builder = {"svhn": "svhn_cropped"}.get(name, name)
    assert private.inputs.dtype == np.uint8
    assert private.inputs.shape[1:] == private.dataset.input_shape == (32, 32, 3)
    assert as_set(private.inputs, private.labels) == of_splits(written[builder], *splits)
    public = datasets.load_public(name, data_dir=data_dir)
    assert as_set(public.inputs, public.labels) == of_splits(written[builder], "test")


def test_mapped_and_in_memory_are_the_same_in_the_same_order(prepared, monkeypatch):
    in_memory = datasets.load_private("svhn", data_dir=prepared[0])
    monkeypatch.setattr(datasets, "MAX_IN_MEMORY", 0)
    mapped = datasets.load_private("svhn", data_dir=prepared[0])
    again = datasets.load_private("svhn", data_dir=prepared[0])
    for examples in (mapped, again):
        np.testing.assert_array_equal(examples.inputs, in_memory.inputs)
        np.testing.assert_array_equal(examples.labels, in_memory.labels)
    base = mapped.inputs
    while isinstance(base.base, np.ndarray):
        base = base.base
    assert isinstance(base, np.memmap)
    assert not mapped.inputs.flags.writeable


@pytest.mark.parametrize("limit", [0, 2**28], ids=["mapped", "in memory"])
def test_a_truncated_record_file_is_one_clear_line(prepared, monkeypatch, tmp_path, limit):
    unmapped_copy(prepared, tmp_path)
    (records,) = tmp_path.rglob("svhn_cropped-extra.tfrecord*")
    os.truncate(records, records.stat().st_size - 100)
    monkeypatch.setattr(datasets, "MAX_IN_MEMORY", limit)
    with pytest.raises(ValueError, match="dataset svhn: TensorFlow Datasets can neither") as caught:
        datasets.load_private("svhn", data_dir=tmp_path)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.rglob("pate_tf-*"))


def test_without_a_network_it_is_one_line(monkeypatch, tmp_path):
    def unresolved(*_: Any, **__: Any) -> None:
        raise OSError("no network")

    monkeypatch.setattr("socket.getaddrinfo", unresolved)
    with pytest.raises(ValueError, match="nor download it"):
        datasets.load_public("mnist", data_dir=tmp_path / "data")


def test_any_tfds_name_is_described_by_its_public_metadata(prepared):
    private = datasets.load_private("svhn_cropped", data_dir=prepared[0])
    train = of_splits(prepared[1]["svhn_cropped"], "train")
    assert as_set(private.inputs, private.labels) == train
    dataset = private.dataset
    assert (dataset.name, dataset.kind) == ("svhn_cropped", "image")
    assert (dataset.input_shape, dataset.num_classes) == ((32, 32, 3), 10)
    assert dataset.value_range == (0.0, 255.0)
    assert dataset.pool_size == 36


def test_each_side_reads_its_own_file_alone(shared_data, tmp_path):
    copy = tmp_path / "tfds"
    shutil.copytree(shared_data / "tfds", copy)
    (records,) = copy.rglob("mnist-train.tfrecord*")
    records.write_bytes(b"")
    assert len(datasets.load_public("mnist", data_dir=copy)) == 10_000
