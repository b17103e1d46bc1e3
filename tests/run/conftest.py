import pytest
from encoder_helpers import train_briefly


@pytest.fixture
def few_steps(monkeypatch):
    """Training on the pool, and between labels and a student, takes few steps."""
    train_briefly(monkeypatch, 5, 5)
