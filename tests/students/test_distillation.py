import numpy as np
import pytest
import scipy.special

from pate_tf.data import catalogue as data
from pate_tf.students.batches import outputs
from pate_tf.students.kinds import StudentConfig
from pate_tf.students.training import soft_cross_entropy, train_distilled

PUBLIC = data.load_public("digits")
POOL = PUBLIC.split(400).pool


def config(**changes: object) -> StudentConfig:
    fields = {"model": "mlp", "max_steps": 200, "batch_size": 32, "learning_rate": 0.01, "seed": 1}
    return StudentConfig(**{**fields, **changes})


@pytest.mark.parametrize("temperature", [1.0, 5.0])
def test_the_loss_is_the_cross_entropy_at_a_temperature(temperature):
    random = np.random.default_rng(0)
    logits = random.normal(0, 3, (20, 4)).astype(np.float32)
    targets = random.dirichlet([1.0] * 4, 20).astype(np.float32)
    expected = -(targets * scipy.special.log_softmax(logits / temperature, axis=1)).sum(axis=1)
    found = soft_cross_entropy(temperature)(targets, logits)
    np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.parametrize("temperature", [1.0, 5.0])
def test_it_learns_the_probabilities_and_not_only_their_winners(temperature):
    indices = np.arange(0, 400, 2)
    shares = np.full((200, 10), 0.2 / 9, np.float32)
    # Sure of the even classes, in doubt about the odd ones, whose next class is second.
    labels = PUBLIC.labels[indices]
    shares[np.arange(200), labels] = np.where(labels % 2, 0.5, 0.8)
    shares[np.arange(200), (labels + 1) % 10] += np.where(labels % 2, 0.3, 0.0)
    model = train_distilled(
        config(max_steps=400),
        POOL,
        query_indices=indices,
        probabilities=shares,
        temperature=temperature,
    )
    logits = outputs(model, POOL.inputs[indices])
    found = scipy.special.softmax(logits / temperature, axis=1)
    assert (found.argmax(axis=1) == labels).mean() > 0.8
    odd = labels % 2 == 1
    second = found[np.arange(200), (labels + 1) % 10]
    assert second[odd].mean() > 3 * second[~odd].mean()


@pytest.mark.parametrize("shape", [(3, 10), (4, 9), (4,)])
def test_probabilities_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match=r"probabilities: expected \[4, 10\], got"):
        train_distilled(
            config(),
            POOL,
            query_indices=np.arange(4),
            probabilities=np.full(shape, 0.1, np.float32),
            temperature=1.0,
        )
