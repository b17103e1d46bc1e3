"""`pate_tf/core/private_digest.py`: equal values are recognised, with the key alone."""

import os
import stat

import numpy as np
import pytest

from pate_tf.core.artifacts import digest_array
from pate_tf.core.private_digest import KEY_FILE, private_digest


def test_it_tells_values_types_and_shapes_apart_by_a_key_that_others_do_not_have(tmp_path):
    values = np.arange(6, dtype=np.float32)
    others = [
        values + 1,
        values.astype("f8"),
        values.reshape(2, 3),
        values[::-1],
        np.array(["a", "b"]),
        np.array([], np.float32),
        np.array(6.0, np.float32),
    ]
    digests = [private_digest(tmp_path / "a", each) for each in (values, *others)]
    digests += [private_digest(tmp_path / "a", values[:3], values[3:])]
    assert len(set(digests)) == len(digests)
    assert private_digest(tmp_path / "a", values.copy()) == digests[0]
    # Another folder has another key, and no plain digest is among them.
    assert private_digest(tmp_path / "b", values) != digests[0] != digest_array(values)
    key = tmp_path / "a" / KEY_FILE
    assert os.listdir(tmp_path / "a") == [KEY_FILE]
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700


def test_a_broken_key_and_objects_are_refused(tmp_path):
    with pytest.raises(ValueError, match="expected numbers or strings, got objects"):
        private_digest(tmp_path, np.array([{}], object))
    (tmp_path / KEY_FILE).write_bytes(b"short")
    with pytest.raises(ValueError, match="expected a key of 32 bytes, got 5"):
        private_digest(tmp_path, np.zeros(1))
