import subprocess
import sys

import pytest

from pate_tf.core.settings import described, value_type
from pate_tf.students import config
from pate_tf.students.catalogue import STUDENTS

SETTINGS = (config.StudentSettings, config.OutputSettings, config.ComparisonSettings)


def test_the_settings_offer_every_student():
    assert list(config.NAMES) == list(STUDENTS)


def test_every_setting_can_be_a_flag():
    for kind in SETTINGS:
        assert all(value_type(kind, name) for name in described(kind))


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (config.StudentSettings, {"student": "nosuch"}),
        (config.StudentSettings, {"max_steps": 0}),
        (config.StudentSettings, {"learning_rate": float("nan")}),
        (config.StudentSettings, {"seed": 2**31}),
        (config.OutputSettings, {"evaluate_on": "everything"}),
        (config.ComparisonSettings, {"temperature": 0.0}),
    ],
    ids=str,
)
def test_nonsense_is_refused_by_name_before_anything_is_loaded(kind, changes):
    with pytest.raises(ValueError, match=f"{next(iter(changes))}: expected") as caught:
        kind(**changes)
    assert "\n" not in str(caught.value)


def test_settings_need_no_tensorflow():
    code = "import sys, pate_tf.students.config; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
