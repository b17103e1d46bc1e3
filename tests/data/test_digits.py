import collections

import numpy as np
import pytest
from sklearn.datasets import load_digits

from pate_tf.core.public import PublicExamples
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.data import catalogue
from pate_tf.data.catalogue import DIGITS


def pairs(examples) -> collections.Counter:
    return collections.Counter(
        (np.asarray(image).tobytes(), int(label))
        for image, label in zip(examples.inputs, examples.labels, strict=True)
    )


def test_sizes_types_and_ranges():
    private, public = catalogue.load_private("digits"), catalogue.load_public("digits")
    assert isinstance(private, PrivateExamples)
    assert isinstance(public, PublicExamples)
    assert (len(private), len(public)) == (1200, 597)
    assert private.dataset == public.dataset == DIGITS
    for examples in (private, public):
        assert examples.inputs.dtype == np.dtype(DIGITS.input_type)
        assert examples.inputs.shape[1:] == DIGITS.input_shape
        assert (examples.inputs.min(), examples.inputs.max()) == DIGITS.value_range
        # Both sides know all classes, none of them rare.
        shares = np.bincount(examples.labels, minlength=10) / len(examples)
        assert (shares > 0.07).all()


def test_the_two_sides_are_the_archive_shared_out():
    archive = load_digits()
    images = archive.images.astype(np.uint8)[..., np.newaxis]
    everything = collections.Counter(
        (image.tobytes(), int(label)) for image, label in zip(images, archive.target, strict=True)
    )
    private = pairs(catalogue.load_private("digits"))
    public = pairs(catalogue.load_public("digits"))
    assert private + public == everything
    assert max(everything.values()) == 1  # so the sides have no image in common


@pytest.mark.parametrize("name", ["", "Digits", "nosuch", "mnist\n", "../digits"])
def test_an_unknown_name_is_one_clear_line(name):
    for load in (catalogue.load_private, catalogue.load_public):
        with pytest.raises(ValueError, match="dataset: expected one of") as caught:
            load(name)
        assert "\n" not in str(caught.value)
        assert all(known in str(caught.value) for known in ("digits", "mnist"))
