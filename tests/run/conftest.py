import pytest

from pate_tf.representations import contrastive


@pytest.fixture
def few_steps(monkeypatch):
    """Training on the pool, and between labels and a student, takes few steps."""
    monkeypatch.setattr(contrastive, "NETWORKS", 1)
    monkeypatch.setattr(contrastive, "STEPS", 5)
    monkeypatch.setattr(contrastive, "STUDENT_STEPS", 5)
