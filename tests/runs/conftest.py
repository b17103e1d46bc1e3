import pytest

from pate_tf.queries import round_models
from pate_tf.representations import student_features


@pytest.fixture
def few_steps(monkeypatch):
    """What is learnt between labels and a student takes few steps."""
    monkeypatch.setattr(round_models, "STEPS", 30)
    monkeypatch.setattr(student_features, "STEPS", 30)
