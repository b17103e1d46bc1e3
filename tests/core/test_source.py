"""Records are distinguished with a folder's secret key only, and nothing about them is shown."""

import os
import pathlib
import stat

import numpy as np
import pytest

from pate_tf.core.artifacts import digest_array
from pate_tf.core.source import KEY_FILE, PrivateSource, check_same_settings, private_digest


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
    with pytest.raises(ValueError, match="must be numbers or strings, got objects"):
        private_digest(tmp_path, np.array([{}], object))
    key.write_bytes(b"short")
    with pytest.raises(ValueError, match="must contain a key of 32 bytes, got 5"):
        private_digest(tmp_path / "a", values)


STORED = {"seed": 1, "class_weights": [1.0, 2.0], "encoder": "1f"}


@pytest.mark.parametrize(
    ("change", "differing"),
    [
        ({"seed": 2, "class_weights": (1.0, 2.0)}, "seed"),
        ({"seed": 1.0}, "seed"),
        ({"class_weights": (1.0, 3.0), "encoder": "2f"}, "class_weights, encoder"),
        ({"other": None}, "other"),
    ],
)
def test_differences_of_settings_are_named_and_no_value_is_shown(change, differing):
    folder, holds = pathlib.Path("runs/x"), "teachers"
    check_same_settings(STORED, {**STORED, "class_weights": (1.0, 2.0)}, folder=folder, holds=holds)
    with pytest.raises(ValueError) as caught:
        check_same_settings(STORED, {**STORED, **change}, folder=folder, holds=holds)
    assert str(caught.value) == (
        f"runs/x has teachers with other settings: {differing}. Use another folder."
    )


def test_spellings_of_a_name_are_one_source_and_the_typed_one_is_shown():
    spellings = ["K\u00f6ln Nord", "Ko\u0308ln Nord", " k\u00f6ln  nord ", "K\u00d6LN NORD"]
    sources = [PrivateSource.named(name) for name in spellings]
    assert [source.name for source in sources] == spellings
    assert all(first.shares(second.key) for first in sources for second in sources)
    wide = [
        PrivateSource.named(name) for name in ("\uff33tra\u00dfe", "STRASSE", "\uff7d\uff84\uff97")
    ]
    assert wide[0].shares(wide[1].key) and wide[2].shares("name \u30b9\u30c8\u30e9")
    by_url = PrivateSource.of_file("file:///data/visits.csv")
    assert by_url.shares(PrivateSource.of_file("/data/visits.csv").key)
    # Reports show the name `visits`, and the help says that the default name is the path.
    for name in ("visits", "Visits", "/data/visits.csv", "/other/visits.csv"):
        named = PrivateSource.named(name)
        assert named.shares(by_url.key) and by_url.shares(named.key)
    assert not by_url.shares(PrivateSource.of_file("/data/patients.csv").key)
    for other in ("K\u00f6ln", "Koln Nord", "K\u00f6lnNord"):
        assert not sources[0].shares(PrivateSource.named(other).key)
    assert PrivateSource.named("/").name == "/"  # the root folder has no name of its own
    for unseen in ("visits\u3164", "vis\u034fits", "visits\ufe0f", "vi\u200bsits", "visits\u2800"):
        with pytest.raises(ValueError, match=r"1 to \d+ characters"):
            PrivateSource.named(unseen)


@pytest.mark.parametrize(
    ("path", "name"),
    [("leaves/private", "leaves private"), ("leaves/Private.csv", "leaves Private"),
     ("clinic/visits.csv", "visits")],
)  # fmt: skip
def test_a_file_that_every_project_has_is_called_after_its_folder(tmp_path, path, name):
    assert PrivateSource.of_file(tmp_path / path).name == name
