import pytest

from pate_tf.queries import round_models
from pate_tf.representations import contrastive, student_features


@pytest.fixture
def few_steps(monkeypatch):
    """What is learnt of the pool, and between labels and a student, takes few steps."""
    monkeypatch.setattr(contrastive, "STEPS", 30)
    monkeypatch.setattr(round_models, "STEPS", 30)
    monkeypatch.setattr(student_features, "STEPS", 30)
