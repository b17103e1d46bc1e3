"""`pate_tf/core/run_settings.py`: a refusal names settings, and shows those of the allow-list."""

import pathlib

import pytest

from pate_tf.core.run_settings import PRIVATE_RECORDS, check_same_settings

STORED = {"seed": 1, "class_weights": [1.0, 2.0], "encoder": "1f", PRIVATE_RECORDS: "c0ffee"}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"seed": 2}, "seed (1 there, 2 now)"),
        ({"seed": 1.0}, "seed (1 there, 1.0 now)"),
        ({"seed": [3]}, "seed"),
        ({"class_weights": (1.0, 3.0), "encoder": "2f"}, "class_weights, encoder"),
        ({"seed": 2, PRIVATE_RECORDS: "decaf"}, "seed (1 there, 2 now), private records"),
        # By origin, not by look.
        ({PRIVATE_RECORDS: 17}, "private records"),
        ({"other": None}, "other"),
        ({"model": "x" * 200}, f"model (None there, {'x' * 80} now)"),
    ],
)
def test_differences_are_named(change, told):
    with pytest.raises(ValueError) as caught:
        check_same_settings(
            STORED, {**STORED, **change}, folder=pathlib.Path("runs/x"), holds="teachers"
        )
    assert str(caught.value) == (
        f"runs/x holds teachers of other settings: {told}; choose another folder or remove it"
    )


def test_equal_settings_pass_whether_lists_or_tuples():
    settings = {**STORED, "class_weights": (1.0, 2.0)}
    check_same_settings(STORED, settings, folder=pathlib.Path("runs/x"), holds="teachers")
