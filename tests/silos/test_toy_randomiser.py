"""A local randomiser is one class: policy, silo, coordinator and statement know it by its name."""

import dataclasses

import numpy as np
import pytest
from silo_helpers import NUM_CLASSES, batch, silo, teacher
from test_coordinator import POOL, group, ten_lines

from pate_tf.accounting.local import LOCAL_RANDOMISERS, SILO_CHARGES, RandomisedResponse
from pate_tf.accounting.local.base import register
from pate_tf.silos import Asking
from pate_tf.silos.messages import Reason


@pytest.fixture
def toy():
    @register
    @dataclasses.dataclass(frozen=True)
    class Toy(RandomisedResponse):
        """Randomised response under another name."""

        name = "toy"

    yield Toy
    del LOCAL_RANDOMISERS["toy"], SILO_CHARGES["toy"]


def test_a_randomiser_that_is_registered_is_allowed_asked_drawn_charged_and_stated(toy):
    silos, roster = group(30, allowed=("toy",))
    with ten_lines(silos, roster, asking=Asking(mechanism={"name": "toy"})) as coordinator:
        labels = coordinator.ask(POOL, np.arange(40))
        page = coordinator.statement(pool_name="lines").to_markdown()
    assert (labels.labels == teacher(POOL.inputs)[:40]).mean() > 0.9
    assert silos[0].account.charges == {toy(num_classes=NUM_CLASSES, epsilon=3.0): 40}
    assert "toy, epsilon 3" in page
    with silo(None) as other:
        refused = other.answer(batch(0, 3, mechanism={"name": "toy", "epsilon": 1.0}))
    assert refused.reason is Reason.MECHANISM_NOT_ALLOWED
