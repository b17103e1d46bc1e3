"""Progress of long work, and cards in notebooks."""

import io

import pytest

from pate_tf.core.reporting import card, clock, steps_on_clock
from pate_tf.data.schema import OWNERS


def test_a_clock_shows_steps_once_they_are_known():
    shown = io.StringIO()
    with clock("training", seconds=60.0, file=shown, mininterval=0.0):
        assert "step" not in shown.getvalue()
        advance = steps_on_clock(3)
        advance(2)
    assert "training: step 2 of 3, " in shown.getvalue() and " left" in shown.getvalue()
    before = shown.getvalue()
    steps_on_clock(5)(1)  # no clock runs
    assert shown.getvalue() == before


def test_a_card_escapes_what_users_wrote():
    page = card("Data <b>x</b>\n  classes 2: <script>, &")
    assert page == "<b>Data &lt;b&gt;x&lt;/b&gt;</b><pre>  classes 2: &lt;script&gt;, &amp;</pre>"


@pytest.mark.parametrize(
    ("name", "is_owner"),
    [
        *[(name, True) for name in ("e-mail", "MRN", "customer_no", "surname", "patientId")],
        *[(name, False) for name in ("ward_name", "number", "age", "room_no", "usage")],
    ],
)
def test_names_of_columns_that_may_identify_a_person(name, is_owner):
    assert bool(OWNERS.fullmatch(name)) == is_owner
