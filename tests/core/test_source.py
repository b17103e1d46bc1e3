"""What tells private records from others does so with a folder's key alone, and shows nothing."""

import os
import pathlib
import stat

import numpy as np
import pytest

from pate_tf.core.artifacts import digest_array
from pate_tf.core.source import KEY_FILE, PRIVATE_RECORDS, check_same_settings, private_digest


def test_a_digest_tells_values_types_and_shapes_apart_by_a_key_that_others_do_not_have(tmp_path):
    values = np.arange(6, dtype=np.float32)
    others = [values + 1, values.astype("f8"), values.reshape(2, 3), values[::-1]]
    others += [np.array(["a", "b"]), np.array([], np.float32), np.array(6.0, np.float32)]
    digests = [private_digest(tmp_path / "a", each) for each in (values, *others)]
    digests += [private_digest(tmp_path / "a", values[:3], values[3:])]
    assert len(set(digests)) == len(digests)
    assert private_digest(tmp_path / "a", values.copy()) == digests[0]
    # Another folder has another key, and no plain digest is among them.
    assert private_digest(tmp_path / "b", values) != digests[0] != digest_array(values)
    key = tmp_path / "a" / KEY_FILE
    assert os.listdir(tmp_path / "a") == [KEY_FILE]
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    with pytest.raises(ValueError, match="expected numbers or strings, got objects"):
        private_digest(tmp_path, np.array([{}], object))
    key.write_bytes(b"short")
    with pytest.raises(ValueError, match="expected a key of 32 bytes, got 5"):
        private_digest(tmp_path / "a", values)


STORED = {"seed": 1, "class_weights": [1.0, 2.0], "encoder": "1f", PRIVATE_RECORDS: "c0ffee"}


@pytest.mark.parametrize(
    ("change", "differing"),
    [
        ({"seed": 2, "class_weights": (1.0, 2.0)}, "seed"),
        ({"seed": 1.0}, "seed"),
        ({"class_weights": (1.0, 3.0), "encoder": "2f"}, "class_weights, encoder"),
        ({"seed": 2, PRIVATE_RECORDS: "decaf"}, "seed, private records"),
        ({"other": None}, "other"),
    ],
)
def test_differences_of_settings_are_named_and_no_value_is_shown(change, differing):
    folder, holds = pathlib.Path("runs/x"), "teachers"
    check_same_settings(STORED, {**STORED, "class_weights": (1.0, 2.0)}, folder=folder, holds=holds)
    with pytest.raises(ValueError) as caught:
        check_same_settings(STORED, {**STORED, **change}, folder=folder, holds=holds)
    assert str(caught.value) == (
        f"runs/x holds teachers of other settings: {differing}; choose another folder or remove it"
    )
