"""Drawn letters."""

import numpy as np
import pytest
import sklearn.neighbors

from benchmarks import letters


@pytest.mark.parametrize(("load", "channels"), [(letters.grey, 1), (letters.colour, 3)])
def test_both_sides_are_letters_of_the_same_kind_and_no_image_is_on_both(
    monkeypatch, load, channels
):
    monkeypatch.setattr(letters, "SIZES", {"private": 1_500, "public": 300})
    dataset, private, known = load("private", None)
    also, public, labels = load("public", None)
    assert dataset == also
    assert dataset.augmentation == "shift"
    assert private.shape == (1_500, *dataset.input_shape)
    assert dataset.input_shape[2] == channels
    assert not {image.tobytes() for image in private} & {image.tobytes() for image in public}
    assert np.array_equal(load("public", None)[1], public)
    assert set(known) == set(labels) == set(range(10))
    near = sklearn.neighbors.KNeighborsClassifier(1).fit(private.reshape(1_500, -1), known)
    right = (near.predict(public.reshape(300, -1)) == labels).mean()
    # By chance 10 %. In colour what lies near has the same colours, and seldom the same letter.
    assert right > 0.5 if channels == 1 else right < 0.3
