import pytest

from pate_tf.queries import round_models


@pytest.fixture
def few_steps(monkeypatch):
    monkeypatch.setattr(round_models, "STEPS", 30)
