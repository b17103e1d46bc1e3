"""A user's own arrays are kept unchanged, or refused with one line."""

import numpy as np
import pytest
from data_sets_for_tests import image_dataset

import pate_tf
from pate_tf.core.dataset import to_input_type

RANDOM = np.random.default_rng(0)
FLOATS = RANDOM.uniform(0, 1, (40, 6, 5, 3))
LABELS = np.arange(40) % 4


def made(**changes):
    fields = {
        "x_private": FLOATS[:20],
        "y_private": LABELS[:20],
        "x_public": FLOATS[20:],
        "num_classes": 4,
        "value_range": (0, 1),
        **changes,
    }
    return pate_tf.Data.from_arrays(**fields)


def test_images_of_floats_are_kept_as_floats():
    data = made()
    assert data.dataset.input_type == "float32"
    np.testing.assert_array_equal(data.private.inputs, FLOATS[:20].astype(np.float32))
    assert data.pool.inputs.dtype == np.float32


def test_whole_numbers_within_a_byte_are_pixels():
    pixels = (FLOATS * 255).astype(np.int64)
    data = made(x_private=pixels[:20], x_public=pixels[20:], value_range=(0, 255))
    assert data.dataset.input_type == "uint8"
    np.testing.assert_array_equal(data.private.inputs, pixels[:20])


def test_gray_images_get_their_channel_and_two_dimensions_are_a_table():
    data = made(x_private=FLOATS[:20, ..., 0], x_public=FLOATS[20:, ..., 0])
    assert (data.dataset.kind, data.dataset.input_shape) == ("image", (6, 5, 1))
    rows = FLOATS.reshape(40, -1)
    table = made(x_private=rows[:20], x_public=rows[20:])
    assert (table.dataset.kind, table.dataset.augmentation) == ("tabular", "none")
    per_feature = made(
        x_private=rows[:20, :2], x_public=rows[20:, :2], value_range=([0, -1], [1, 2])
    )
    assert per_feature.dataset.value_range == ((0.0, -1.0), (1.0, 2.0))


def test_without_labels_nothing_is_held_out_unless_asked_for():
    assert (len(made().pool), len(made().held_out)) == (20, 0)
    data = made(held_out=0.3)
    assert (len(data.pool), len(data.held_out), data.held_out.labels) == (14, 6, None)
    labelled = made(y_public=LABELS[20:])
    assert (len(labelled.pool), len(labelled.held_out)) == (14, 6)


def test_a_seed_chooses_what_is_held_out():
    data, again = (made(y_public=LABELS[20:], held_out_seed=1) for _ in range(2))
    np.testing.assert_array_equal(data.pool.inputs, again.pool.inputs)
    assert not np.array_equal(data.pool.inputs, FLOATS[20:34].astype(np.float32))
    together = np.concatenate([data.pool.inputs, data.held_out.inputs])
    assert sorted(together.sum(axis=(1, 2, 3))) == pytest.approx(
        sorted(FLOATS[20:].sum(axis=(1, 2, 3))), rel=1e-5
    )


def test_owners_come_with_the_records():
    data = made(owners=[f"owner {i % 7}" for i in range(20)])
    assert data.private.owners[8] == "owner 1"
    assert "owner 1" not in repr(data)


def with_value(value, place="x_private"):
    changed = FLOATS[:20].copy() if place == "x_private" else FLOATS[20:].copy()
    changed[3, 2, 1, 0] = value
    return {place: changed}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (with_value(np.nan), "x_private: inputs of arrays must be finite"),
        (with_value(np.inf, "x_public"), "x_public: inputs of arrays must be finite"),
        ({"value_range": None}, "value_range"),
        ({"value_range": (1, 0)}, "value_range must have low < high"),
        ({"x_public": FLOATS[20:, :5]}, "x_private"),
        ({"x_private": "words"}, "x_private must be lists of numbers of equal length"),
        ({"y_private": LABELS[:19]}, "labels of arrays must"),
        ({"y_private": LABELS[:20] + 3}, "labels of arrays must be from 0 to 3"),
        ({"y_public": LABELS[:20] + 3}, "labels of arrays must be from -1 to 3"),
        ({"y_private": list("abcd") * 5}, "y_private"),
        (
            {"y_private": list("abcx") * 5, "class_names": list("abcd")},
            "y_private: all labels must be among the class_names a, b, c, d",
        ),
        ({"num_classes": 1}, "num_classes must be a whole number of at least 2"),
        ({"class_names": ["one"]}, "class_names must have the shape [4]"),
        ({"owners": np.zeros(19, int)}, "owners must have one entry for each record"),
        ({"held_out": 1.0}, "held_out must"),
        ({"kind": "sound"}, "kind must be one of"),
    ],
)
def test_what_does_not_fit_is_one_clear_line(changes, message):
    with pytest.raises(ValueError) as caught:
        made(**changes)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [0.5, 300.0, -1.0, np.nan])
def test_a_function_of_ones_own_does_not_lose_floats_either(value):
    dataset = image_dataset(1, value_range=(0, 255))
    with pytest.raises(ValueError, match="must be whole numbers from 0 to 255"):
        to_input_type(np.full((1, 1, 1, 1), value), dataset, "dataset")


def test_labels_may_be_names_of_classes():
    names = np.array(list("abcd"))
    data = made(y_private=names[LABELS[:20]], y_public=names[LABELS[20:]], class_names=list("abcd"))
    assert data.private.labels.tolist() == LABELS[:20].tolist()
    assert data.held_out.labels.tolist() == LABELS[-6:].tolist()
    for missing in ("", None):  # only of public samples
        named = [*names[LABELS[20:-1]], missing]
        data = made(y_public=named, class_names=list("abcd"))
        assert data.held_out.labels.tolist() == [*LABELS[-6:-1], -1]
        with pytest.raises(ValueError, match="y_private: all labels must be among the class_names"):
            made(y_private=[*names[LABELS[:19]], missing], class_names=list("abcd"))


def test_channels_that_come_first_are_named():
    with pytest.warns(UserWarning, match="3 high and 6 wide with 5 channels. If .* np.moveaxis"):
        made(
            x_private=FLOATS[:20].transpose(0, 3, 1, 2), x_public=FLOATS[20:].transpose(0, 3, 1, 2)
        )
