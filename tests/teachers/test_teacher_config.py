import json

import pytest

from pate_tf.data.digits import DIGITS
from pate_tf.teachers.config import TeacherConfig, default_steps

FIELDS = {
    "dataset": DIGITS,
    "num_teachers": 4,
    "model": "cnn",
    "max_steps": 10,
    "batch_size": 8,
    "learning_rate": 0.005,
    "seed": 1,
}


@pytest.mark.parametrize("unit", ["record", "owner"])
def test_a_config_survives_json(unit):
    config = TeacherConfig(**FIELDS, unit=unit)
    assert TeacherConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("num_teachers", 0),
        ("max_steps", 0),
        ("batch_size", 0),
        ("batch_size", -1),
        ("learning_rate", 0.0),
        ("learning_rate", -1.0),
        ("learning_rate", float("nan")),
        ("learning_rate", float("inf")),
        ("seed", -1),
        ("seed", 2**31),
    ],
)
def test_nonsense_is_refused_by_name(name, bad):
    with pytest.raises(ValueError, match=f"{name}: expected"):
        TeacherConfig(**{**FIELDS, name: bad})


def test_steps_follow_from_public_sizes():
    assert default_steps(num_records=60_000, num_teachers=100, batch_size=40) == 375
    assert default_steps(num_records=10, num_teachers=10, batch_size=40) == 150
